"""metrics.py against jiwer's numbers, and cases A14 and A15."""

import json
import random

import pytest

from jasper_pt.metrics import ErrorCounts, align, character_errors, word_errors


def read_pairs(path):
    """References and hypotheses of a tab-separated file."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return tuple(zip(*(line.split("\t") for line in lines), strict=True))


def test_pairs_scored_by_jiwer(shared):
    lines = (shared / "data" / "truth_wer" / "pair_vectors.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 17
    for row in map(json.loads, lines):
        words = word_errors([row["ref"]], [row["hyp"]])
        assert words == ErrorCounts(row["sub"], row["ins"], row["del"], row["hits"]), row
        assert words.wer == pytest.approx(row["wer"])
        if "cer" in row:
            assert character_errors([row["ref"]], [row["hyp"]]).wer == pytest.approx(row["cer"]), row


def test_a_real_system_on_librispeech(shared):
    folder = shared / "data" / "truth_wer"
    expected = json.loads((folder / "librispeech_test_other.expected.json").read_text(encoding="utf-8"))
    keys, references = read_pairs(folder / "librispeech_test_other.ref.tsv")
    hypotheses = dict(zip(*read_pairs(folder / "librispeech_test_other.hyp.tsv"), strict=True))
    hypotheses = [hypotheses[key] for key in keys]
    words = word_errors(references, hypotheses)
    assert words[:3] == (expected["substitutions"], expected["insertions"], expected["deletions"])
    assert (words.reference_units, words.errors, len(keys)) == (expected["ref_words"], 5029, expected["utterances"])
    assert words.wer == pytest.approx(expected["wer"], rel=1e-12)
    characters = character_errors(references, hypotheses)
    assert list(characters[:3]) == expected["char_sub_ins_del"]
    assert characters.reference_units == expected["ref_chars"]
    assert characters.wer == pytest.approx(expected["cer"], rel=1e-12)


def test_random_pairs_as_jiwer_splits_them():
    jiwer = pytest.importorskip("jiwer")
    generator = random.Random(0)
    for _ in range(500):
        reference, hypothesis = (" ".join(generator.choices("abc", k=generator.randint(1, 20))) for _ in range(2))
        theirs = jiwer.process_words(reference, hypothesis)
        ours = word_errors([reference], [hypothesis])
        assert ours == (theirs.substitutions, theirs.insertions, theirs.deletions, theirs.hits), (reference, hypothesis)


def test_the_number_of_errors_is_the_levenshtein_distance():
    generator = random.Random(1)
    for _ in range(200):
        a, b = (generator.choices("abcd", k=generator.randint(0, 90)) for _ in range(2))
        row = list(range(len(b) + 1))  # the textbook's two rows
        for i, x in enumerate(a, 1):
            above, row = row, [i]
            for j, y in enumerate(b, 1):
                row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (x != y)))
        counts = align(a, b)
        assert counts.errors == row[-1]
        assert counts.reference_units == len(a)
        assert counts.hits + counts.substitutions + counts.insertions == len(b)


def test_case_a14(shared):
    folder = shared / "cases" / "A14"
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    references, hypotheses = read_pairs(folder / "pairs.tsv")
    counts = word_errors(references, hypotheses)
    assert (counts.wer, counts.errors, counts.reference_units) == (
        expected["wer"], expected["edits"], expected["ref_words"],
    )  # fmt: skip
    for cut in range(len(references) + 1):  # however it is cut
        parts = word_errors(references[:cut], hypotheses[:cut]), word_errors(references[cut:], hypotheses[cut:])
        assert parts[0] + parts[1] == counts
    assert sum((word_errors([r], [h]) for r, h in zip(references, hypotheses, strict=True)), ErrorCounts()) == counts


def test_case_a15(shared):
    folder = shared / "cases" / "A15"
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))["pairs.tsv"]
    counts = word_errors(*read_pairs(folder / "pairs.tsv"))
    assert (counts.wer, counts.insertions, counts.reference_units) == (
        expected["wer"], expected["insertions"], expected["ref_words"],
    )  # fmt: skip
    empty = word_errors(*read_pairs(folder / "only_empty.tsv"))
    assert empty.reference_units == 0 and empty.wer == 0  # no crash; the caller sees that there was nothing to score
    assert word_errors([""], ["x y"]).wer == 2 and word_errors([], []).wer == 0


def test_texts_must_come_in_pairs():
    with pytest.raises(ValueError, match="zip"):
        word_errors(["a"], ["a", "b"])
