"""WordPiece against Google's vectors, the cases from the field, and a plain reading of the definition."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from bert_tf.tokenization import SPECIAL_TOKENS, FullTokenizer, basic_tokenize, load_vocab
from runkit.errors import UserError
from tests.bert_tf.plain_wordpiece import compare, random_text, reference_basic, reference_tokenize

ROOT = Path(__file__).resolve().parents[2]
SMALL_VOCAB = [
    *SPECIAL_TOKENS,
    *"the un ##want ##ed run ##ning , ! [ ] 北 ##京 京 été e ##e ete “ naïve ##ß ß a ##a b ##b i ##i".split(),
    *"σ ##ς ##σ = ` ; ก ##ก か ##が".split(),
]


@pytest.fixture
def small_vocab(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(SMALL_VOCAB) + "\n", encoding="utf-8")
    return path


# --- the definition, character by character -----------------------------------------------------------------


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_random_unicode_equals_the_definition(small_vocab, do_lower_case):
    rng = random.Random(7)
    tokenizer = FullTokenizer(small_vocab, do_lower_case)
    for _ in range(2000):
        text = random_text(rng, SMALL_VOCAB)
        assert basic_tokenize(text, do_lower_case) == reference_basic(text, do_lower_case), ascii(text)
        assert tokenizer.tokenize(text) == reference_tokenize(text, tokenizer.vocab, do_lower_case), ascii(text)


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_every_code_point_equals_the_definition(small_vocab, do_lower_case):
    tokenizer = FullTokenizer(small_vocab, do_lower_case)
    for code in [*range(0x3100), *range(0xF8F0, 0x10100), *range(0x1FFF0, 0x20010), *range(0xE0000, 0xE0200)]:
        text = f"a{chr(code)}b"
        assert tokenizer.tokenize(text) == reference_tokenize(text, tokenizer.vocab, do_lower_case), hex(code)


@pytest.mark.parametrize(("kind", "do_lower_case"), [("uncased", True), ("cased", False)])
def test_fuzzed_strings_with_google_vocabularies(shared, kind, do_lower_case):
    """20,000 strings; `python -m tests.bert_tf.plain_wordpiece` does the same with a million."""
    assert compare(shared / f"data/vocab_bert/{kind}_vocab.txt", do_lower_case, 10_000, seed=11) > 100_000


# --- Google's own results -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "do_lower_case"), [("uncased", True), ("cased", False)])
def test_google_vectors(shared, kind, do_lower_case):
    tokenizer = FullTokenizer(shared / f"data/vocab_bert/{kind}_vocab.txt", do_lower_case)
    with open(shared / f"data/truth_tokenizer/{kind}_vectors.jsonl", encoding="utf-8") as stream:
        rows = [json.loads(line) for line in stream]
    assert len(rows) == 148
    for row in rows:
        assert basic_tokenize(row["text"], do_lower_case) == row["basic"], row
        assert tokenizer.tokenize(row["text"]) == row["tokens"], row
        assert tokenizer.encode(row["text"]) == row["ids"], row
        assert tokenizer.convert_tokens_to_ids(row["tokens"]) == row["ids"], row


@pytest.mark.parametrize("case", ["T01", "T02", "T05"])
def test_cases_from_the_field(shared, case):
    rows = json.loads((shared / f"cases/{case}/expected.json").read_text(encoding="utf-8"))
    assert rows
    for kind, do_lower_case in (("uncased", True), ("cased", False)):
        tokenizer = FullTokenizer(shared / f"data/vocab_bert/{kind}_vocab.txt", do_lower_case)
        for row in rows:
            assert tokenizer.tokenize(row["text"]) == row[kind], row


def test_case_t04_utf8_whatever_the_locale(shared):
    case = shared / "cases/T04"
    expected = json.loads((case / "expected.json").read_text(encoding="utf-8"))
    program = (
        "import json; from bert_tf.tokenization import FullTokenizer; from runkit.files import read_lines; "
        f"t = FullTokenizer({str(case / 'vocab.txt')!r}, {expected['do_lower_case']}); "
        f"tokens = [x for line in read_lines({str(case / 'input.txt')!r}) for x in t.tokenize(line)]; "
        "print(json.dumps({'vocab_size': len(t.vocab), 'tokens': tokens}))"
    )
    locale = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=os.environ | locale, capture_output=True, check=True
    )
    found = json.loads(result.stdout)
    assert found == {key: expected[key] for key in found}


def test_agrees_with_the_tokenizers_library_on_a_book(shared):
    tokenizers = pytest.importorskip("tokenizers")
    book = shared / "data/text_corpora/pride_and_prejudice_1342-0.txt"
    lines = book.read_text(encoding="utf-8-sig").splitlines()[:3000]
    vocab = shared / "data/vocab_bert/uncased_vocab.txt"
    ours = FullTokenizer(vocab)
    theirs = tokenizers.BertWordPieceTokenizer(str(vocab), lowercase=True)
    for line in lines:
        assert ours.encode(line) == theirs.encode(line, add_special_tokens=False).ids, line


# --- words and caches ---------------------------------------------------------------------------------------


def test_longest_word(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, "x", "##x"]), encoding="utf-8")
    tokenizer = FullTokenizer(path)
    assert tokenizer.tokenize("x" * 200) == ["x"] + ["##x"] * 199
    assert tokenizer.tokenize("x" * 201) == ["[UNK]"]


def test_caches_stay_bounded(small_vocab, monkeypatch):
    monkeypatch.setattr("bert_tf.tokenization._MAX_CACHED_WORDS", 10)
    tokenizer = FullTokenizer(small_vocab)
    words = [f"{a}{b}" for a in "abei" for b in "abei"] + ["a" * 100]
    first = tokenizer.encode(" ".join(words))
    assert tokenizer.encode(" ".join(words)) == first
    assert max(len(tokenizer._run_ids), len(tokenizer._word_ids)) <= 10
    assert "a" * 100 not in tokenizer._run_ids


# --- vocabularies -------------------------------------------------------------------------------------------


def write(path: Path, tokens: list[str], newline: str = "\n", start: bytes = b"") -> Path:
    path.write_bytes(start + newline.join([*tokens, ""]).encode("utf-8"))
    return path


def test_bom_and_crlf_make_no_difference(tmp_path):
    plain = load_vocab(write(tmp_path / "a", SMALL_VOCAB))
    assert plain == {token: index for index, token in enumerate(SMALL_VOCAB)}
    assert load_vocab(write(tmp_path / "b", SMALL_VOCAB, "\r\n", b"\xef\xbb\xbf")) == plain
    assert load_vocab(write(tmp_path / "c", [*SMALL_VOCAB, "", ""])) == plain


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_missing_special_token(tmp_path, token):
    path = write(tmp_path / "vocab.txt", [other for other in SMALL_VOCAB if other != token])
    with pytest.raises(UserError) as error:
        load_vocab(path)
    assert str(path) in str(error.value)
    assert f"no token {token};" in str(error.value)


def test_repeated_token_names_both_lines(tmp_path):
    path = write(tmp_path / "vocab.txt", [*SMALL_VOCAB, "[MASK]"])
    with pytest.raises(UserError, match=rf"vocab.txt:{len(SMALL_VOCAB) + 1}: .*\[MASK\].* line 5"):
        load_vocab(path)


def test_empty_line_would_shift_ids(tmp_path):
    with pytest.raises(UserError, match=r"vocab.txt:3: empty line"):
        load_vocab(write(tmp_path / "vocab.txt", ["[PAD]", "[UNK]", "", "[CLS]", "[SEP]", "[MASK]"]))


def test_not_utf8(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("\n".join([*SPECIAL_TOKENS, "été"]).encode("latin-1"))
    with pytest.raises(UserError, match=r"vocab.txt:6: not UTF-8"):
        load_vocab(path)


def test_twice_encoded_vocabulary_is_refused(shared):
    with pytest.raises(UserError, match=r"broken_uncased_vocab_bom_mojibake.txt:1068: 'Â¡' should read '¡'"):
        load_vocab(shared / "data/vocab_bert/broken_uncased_vocab_bom_mojibake.txt")


def test_edited_vocabulary_is_read(shared):
    vocab = load_vocab(shared / "data/vocab_bert/modified_uncased_vocab_slots.txt")
    assert (len(vocab), vocab["[SLOT]"]) == (30522, 1)
