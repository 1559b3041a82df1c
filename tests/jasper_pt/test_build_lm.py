"""build_lm.py: Kneser-Ney by hand, and distributions that sum to one."""

import json
from collections import Counter

import pytest

from jasper_pt import build_lm, ngram
from runkit.errors import UserError

TEXT = "a b a\nb a\na b c a\nc b a b\n"


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    return str(tmp_path / "text.txt")


def test_bigrams_by_hand(tmp_path, text):
    """Discounts are the fallback here: 0.5, 1 and 1.5 for counts of 1, 2, and 3 and more."""
    path = tmp_path / "2gram.arpa"
    build_lm.main(["--text", text, "--order", "2", "--output", str(path)])
    model = ngram.ArpaReference(path)
    # Left neighbours: a 3 (<s> b c), b 3 (<s> a c), c 2 (<s> b), </s> 2 (a b); together 10.
    backoff = (1.5 + 1.5 + 1 + 1) / 10
    unigram = {"a": 1.5 / 10, "b": 1.5 / 10, "c": 1 / 10, "</s>": 1 / 10, "<unk>": 0}
    unigram = {word: p + backoff / 5 for word, p in unigram.items()}
    for word, p in unigram.items():
        assert 10 ** model.probabilities[(word,)] == pytest.approx(p, rel=1e-5)
    # After b: a 3 times, c once, </s> once.
    left = (1.5 + 0.5 + 0.5) / 5
    assert 10 ** model.probabilities[("b", "a")] == pytest.approx(1.5 / 5 + left * unigram["a"], rel=1e-5)
    assert 10 ** model.probabilities[("b", "c")] == pytest.approx(0.5 / 5 + left * unigram["c"], rel=1e-5)
    assert 10 ** model.backoffs[("b",)] == pytest.approx(left, rel=1e-5)


def test_discounts():
    """With n1..n4 = 6, 3, 2, 1: Y = 6/12; D1 = 1 - 2 Y 3/6, D2 = 2 - 3 Y 2/3, D3 = 3 - 4 Y 1/2."""
    counts = Counter({(f"w{i}",): n for i, n in enumerate([1] * 6 + [2] * 3 + [3] * 2 + [4])})
    assert build_lm.discounts(counts) == pytest.approx((0, 0.5, 1.0, 2.0))
    assert build_lm.discounts(Counter({("a",): 1})) == build_lm.FALLBACK


@pytest.mark.parametrize(
    "flags", ["--order 1", "--order 3", "--order 4 --prune 0 0 1", "--order 3 --prune 0 1", "--order 3 --vocabulary 2"]
)
def test_probabilities_sum_to_one(tmp_path, text, flags):
    path = tmp_path / "model.arpa.gz"
    build_lm.main(["--text", text, "--output", str(path), *flags.split()])
    model = ngram.ArpaReference(path)
    everything = [*model.words, "<unk>", "</s>"]
    contexts = {key[:-1] for key in model.probabilities} | {("a", "c"), ("x", "b")}
    for context in contexts:
        total = sum(10 ** model.scores([*context, word], begin=False, end=False)[-1] for word in everything)
        assert total == pytest.approx(1, abs=1e-5)


def test_pruned_n_grams_are_those_that_are_rare(tmp_path, text):
    build_lm.main(["--text", text, "--output", str(tmp_path / "m.arpa"), "--prune", "0", "1"])
    kept = [key for key in ngram.ArpaReference(tmp_path / "m.arpa").probabilities if len(key) == 2]
    assert sorted(kept) == [("<s>", "a"), ("a", "</s>"), ("a", "b"), ("b", "a")]


def test_the_same_text_gives_the_same_bytes(tmp_path, text):
    for name in ("one.arpa.gz", "two.arpa.gz"):
        build_lm.main(["--text", text, "--output", str(tmp_path / name)])
    assert (tmp_path / "one.arpa.gz").read_bytes() == (tmp_path / "two.arpa.gz").read_bytes()


def test_transcripts_of_a_manifest(tmp_path, text):
    rows = [{"audio_filepath": f"{i}.wav", "duration": 1, "text": line} for i, line in enumerate(TEXT.split("\n")[:4])]
    (tmp_path / "all.json").write_text("\n".join(map(json.dumps, rows)))
    build_lm.main(["--manifests", str(tmp_path / "all.json"), "--output", str(tmp_path / "one.arpa")])
    build_lm.main(["--text", text, "--output", str(tmp_path / "two.arpa")])
    assert (tmp_path / "one.arpa").read_bytes() == (tmp_path / "two.arpa").read_bytes()


@pytest.mark.parametrize(
    "flags, message",
    [
        ("", "give --text or --manifests"),
        ("--text {text} --order 0", "--order is 0"),
        ("--text {text} --prune 1", "thresholds begin with 0"),
        ("--text {text} --prune 0 2 1", "thresholds begin with 0"),
        ("--text {text} --vocabulary 0", "--vocabulary is 0"),
        ("--text {folder}/marks.txt", "marks.txt:2: <s> stands for itself"),
        ("--text {folder}/empty.txt", "there is no word"),
        ("--text {folder}/none.txt", "none.txt"),
    ],
)
def test_refusals(tmp_path, text, flags, message):
    (tmp_path / "marks.txt").write_text("a\n<s> b </s>\n")
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(UserError, match=message):
        build_lm.main([*flags.format(text=text, folder=tmp_path).split(), "--output", str(tmp_path / "m.arpa")])
    assert not (tmp_path / "m.arpa").exists()
