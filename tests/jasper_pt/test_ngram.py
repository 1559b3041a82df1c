"""ngram.py against the kenlm package, KenLM's own binary files, and the definition of a back-off model in Python."""

import gzip
import random
import shutil
import struct
from pathlib import Path

import pytest

from jasper_pt import build_lm, ngram
from jasper_pt.search import native
from runkit.errors import UserError

needs_native = pytest.mark.skipif(native.library() is None, reason="no g++, or JASPER_KERNELS=reference")
GOLDEN = Path(__file__).with_name("golden") / "kenlm"
BINARIES = ("probing", "trie", "quantized", "array", "quantized_array")

# Back-offs by hand: p(b | a) is there; p(c | a) = bo(a) p(c); p(a | c) = p(a), since c has no back-off.
SMALL = """\
\\data\\
ngram 1=6
ngram 2=3
ngram 3=1

\\1-grams:
-99\t<s>\t-0.5
-1.5\t</s>
-2.0\t<unk>
-0.5\ta\t-0.25
-0.75\tb\t-0.125
-1.0\tc

\\2-grams:
-0.3\t<s> a\t-0.2
-0.4\ta b\t-0.1
-0.6\tb </s>

\\3-grams:
-0.05\t<s> a b

\\end\\
"""


@pytest.fixture(params=["C++", "Python"])
def read(request):
    """Each of the readers."""
    if request.param == "C++" and native.library() is None:
        pytest.skip("no g++, or JASPER_KERNELS=reference")
    return ngram.NativeModel if request.param == "C++" else ngram.ArpaReference


@pytest.fixture(scope="module")
def novel(tmp_path_factory):
    """3-grams of real text, and sentences of it and of another text, with words that the model does not know."""
    corpora = Path(__file__).resolve().parents[3] / "shared" / "data" / "text_corpora"
    if not corpora.is_dir():
        pytest.skip("../shared/data/text_corpora is not there")
    folder = tmp_path_factory.mktemp("novel")
    lines = (corpora / "pride_and_prejudice_1342-0.txt").read_text("utf-8-sig").lower().splitlines()
    (folder / "text.txt").write_text("\n".join(lines[100:3000]))
    path = folder / "3gram.arpa"
    assert build_lm.main(["--text", str(folder / "text.txt"), "--output", str(path), "--prune", "0", "0", "1"]) == 0
    other = (corpora / "lee_background.cor").read_text("utf-8").lower().split()[:2000]
    sentences = [line.split() for line in lines[2900:3300]] + [other[i : i + 20] for i in range(0, len(other), 20)]
    return path, sentences


def test_scores_by_hand(tmp_path, read):
    (tmp_path / "small.arpa").write_text(SMALL)
    model = read(tmp_path / "small.arpa")
    assert (model.order, sorted(model.words)) == (3, ["a", "b", "c"])
    assert model.knows("a") and not model.knows("d") and not model.knows("<unk>")
    expected = [-0.3, -0.05, -0.1 - 0.125 - 1.0, -0.5, -0.25 - 2.0, -1.5]  # <s> a b c a d </s>
    assert model.scores(["a", "b", "c", "a", "d"]) == pytest.approx(expected, abs=1e-6)
    assert model.scores(["a", "b"], begin=False, end=False) == pytest.approx([-0.5, -0.4], abs=1e-6)
    assert model.scores([]) == pytest.approx([-0.5 - 1.5], abs=1e-6)


def test_white_space_line_ends_and_gzip_do_not_matter(tmp_path, read):
    (tmp_path / "small.arpa").write_text(SMALL)
    expected = read(tmp_path / "small.arpa").scores("a b c a d b b".split())
    variants = [SMALL.replace("\n", "\r\n"), "by hand\n\n" + SMALL.replace("\t", "  "), SMALL.replace("<unk>", "<UNK>")]
    for text in [*variants, SMALL + "and what follows\n"]:
        (tmp_path / "variant").write_bytes(gzip.compress(text.encode()))
        assert read(tmp_path / "variant").scores("a b c a d b b".split()) == expected


@needs_native
def test_scores_are_those_of_the_kenlm_package(novel):
    kenlm = pytest.importorskip(
        "kenlm", reason="the kenlm package is not installed (pip install kenlm==0.3.0 compiles it)"
    )
    path, sentences = novel
    model, peer = ngram.read(path), kenlm.Model(str(path))
    unknown = 0
    for words in sentences:
        expected = list(peer.full_scores(" ".join(words)))
        assert model.scores(words) == pytest.approx([score for score, _, _ in expected], abs=1e-5)
        assert [model.knows(word) for word in words] == [not oov for _, _, oov in expected[:-1]]
        unknown += sum(oov for _, _, oov in expected)
    assert unknown > 100


@needs_native
def test_scores_are_those_of_the_definition(novel):
    path, sentences = novel
    model, reference = ngram.read(path), ngram.ArpaReference(path)
    assert sorted(model.words) == sorted(reference.words)
    for words in sentences:
        assert model.scores(words) == pytest.approx(reference.scores(words), abs=1e-5)
        assert model.scores(words, False, False) == pytest.approx(reference.scores(words, False, False), abs=1e-5)


@needs_native
def test_n_grams_whose_parts_were_pruned(tmp_path):
    """As SRILM leaves them: a 4-gram may be there without the 3-grams and 2-grams in it."""
    source = random.Random(0)
    words = list("abcde")
    (tmp_path / "text.txt").write_text("\n".join(" ".join(source.choices(words, k=8)) for _ in range(60)))
    build_lm.main(["--text", str(tmp_path / "text.txt"), "--order", "4", "--output", str(tmp_path / "4gram.arpa")])
    lines = (tmp_path / "4gram.arpa").read_text().split("\n")
    counts, kept, order = {}, [], 0
    for line in lines:
        if line.endswith("-grams:"):
            order = int(line[1])
        elif "\t" in line:
            if order in (2, 3) and source.random() < 0.4:
                continue
            counts[order] = counts.get(order, 0) + 1
        kept.append(line)
    kept = [f"ngram {line[6]}={counts[int(line[6])]}" if line.startswith("ngram ") else line for line in kept]
    (tmp_path / "pruned.arpa").write_text("\n".join(kept))
    model, reference = ngram.read(tmp_path / "pruned.arpa"), ngram.ArpaReference(tmp_path / "pruned.arpa")
    for _ in range(300):
        sentence = source.choices([*words, "x"], k=6)
        assert model.scores(sentence) == pytest.approx(reference.scores(sentence), abs=1e-5)


@needs_native
@pytest.mark.parametrize("kind", BINARIES)
def test_kenlm_binary_files(kind, tmp_path):
    """Made by KenLM's build_binary from golden/kenlm/model.arpa; scores of each by KenLM's own query."""
    path = unpacked(kind, tmp_path)
    model = ngram.read(path)
    assert model.kind.startswith("KenLM")
    assert sorted(model.words) == sorted(ngram.ArpaReference(GOLDEN / "model.arpa").words)
    for line in (GOLDEN / f"{kind}.scores").read_text().splitlines():
        sentence, scores = line.split("\t")
        assert model.scores(sentence.split()) == pytest.approx([float(x) for x in scores.split()], abs=2e-5)


@needs_native
@pytest.mark.parametrize("kind", BINARIES)
def test_kenlm_binary_files_equal_the_package(kind, tmp_path):
    kenlm = pytest.importorskip(
        "kenlm", reason="the kenlm package is not installed (pip install kenlm==0.3.0 compiles it)"
    )
    path = unpacked(kind, tmp_path)
    model, peer, source = ngram.read(path), kenlm.Model(str(path)), random.Random(1)
    for _ in range(300):
        words = source.choices([*model.words, "zebra"], k=source.randint(0, 9))
        expected = [score for score, _, _ in peer.full_scores(" ".join(words))]
        assert model.scores(words) == pytest.approx(expected, abs=1e-5)


def unpacked(kind, folder):
    path = folder / f"{kind}.bin"
    with gzip.open(GOLDEN / f"{kind}.bin.gz") as packed, open(path, "wb") as stream:
        shutil.copyfileobj(packed, stream)
    return path


@needs_native
def test_damaged_binary_files_are_refused(tmp_path):
    whole = unpacked("probing", tmp_path).read_bytes()
    path = tmp_path / "damaged.bin"
    kind, version, order = 88 + 8, 88 + 16, 88
    for change, message in [
        (whole[:60], "cut off in its header"),
        (whole[:-1000], "cut off"),
        (whole[:2000], "cut off"),
        (whole.replace(b"version 5", b"version 4"), "another version than 5"),
        (b"mmap lm http://kheafield.com/code incomplete\n".ljust(200, b"\0"), "did not finish"),
        (patched(whole, kind, "<i", 1), "rest costs.*which is not read: give the ARPA file"),
        (patched(whole, kind, "<i", 9), "kind 9, which is not read: give the ARPA file"),
        (patched(whole, version, "<I", 7), "version 7 of its kind"),
        (patched(whole, order, "<B", 60), "order 2 to 10 are read, not 60"),
        (patched(whole, 56, "<f", 5.0), "another kind of processor"),
    ]:
        path.write_bytes(change)
        with pytest.raises(UserError, match=message) as caught:
            ngram.read(path)
        assert str(path) in str(caught.value)


def patched(data, offset, form, value):
    changed = bytearray(data)
    struct.pack_into(form, changed, offset, value)
    return bytes(changed)


@needs_native
def test_flipped_bytes_do_not_crash(tmp_path):
    source = random.Random(3)
    path = tmp_path / "flipped.bin"
    words = "the cat sat on the mat and a dog".split()
    expected = ngram.read(unpacked(BINARIES[0], tmp_path)).scores(words)
    for kind in BINARIES:
        whole = unpacked(kind, tmp_path).read_bytes()
        for _ in range(40):
            data = bytearray(whole)
            for _ in range(20):
                data[source.randrange(88, len(data))] = source.randrange(256)
            path.write_bytes(data)
            try:
                model = ngram.read(path)
            except UserError:
                continue
            assert len(model.scores(words)) == len(expected)  # numbers of any size, but no crash


@pytest.mark.parametrize(
    "change, message",
    [
        (("\\data\\", "data"), "no line|no whole"),
        (("\\end\\\n", ""), "cut off|no whole"),
        (("-0.4\ta b", "x\ta b"), "line 16"),
        (("-0.4\ta b\t-0.1\n", ""), "2 2-grams|no whole"),
        (("-0.4\ta b", "-0.4\ta b c d"), "line 16"),
    ],
)
def test_broken_arpa_is_refused(tmp_path, read, change, message):
    path = tmp_path / "broken.arpa"
    path.write_text(SMALL.replace(*change))
    with pytest.raises(UserError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_unreadable_files_are_named(tmp_path, read):
    with pytest.raises(UserError, match="none"):
        read(tmp_path / "none.arpa")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(SMALL.encode())[:60])
    with pytest.raises(UserError, match="cut"):
        read(tmp_path / "cut.gz")
