import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_tf.tokenization import FullTokenizer
from data import vocabulary
from runkit.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
TEXT = (
    "The quick brown fox jumps over the lazy dog, and the other dogs jumped too.\n\n"
    "Größe zählt: naïve Café-goers paid 1,234.50 (or so) for 東京 tea!\n\n"
    "Jumping foxes are quicker than lazier dogs; unjumped ones are laziest.\n\n"
) * 5


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_special_tokens_come_first_and_nothing_twice(corpus):
    tokens = vocabulary.train_vocabulary([corpus], 200, do_lower_case=True)
    assert tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(set(tokens)) == len(tokens) <= 200
    assert "the" in tokens and "dogs" in tokens
    assert "##東" not in tokens and "##," not in tokens, "these never continue a word"


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_every_word_of_the_text_can_be_written(corpus, tmp_path, do_lower_case):
    vocabulary.write_vocabulary([corpus], tmp_path / "vocab.txt", 150, do_lower_case)
    tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"), do_lower_case)
    pieces = tokenizer.tokenize(TEXT.replace("\n", " "))
    assert "[UNK]" not in pieces and len(pieces) > 100
    assert any(token != token.lower() for token in tokenizer.vocab if token[0] != "[") is not do_lower_case


def test_two_processes_write_the_same_file(corpus, tmp_path):
    written = []
    for i, threads in enumerate(("1", "4")):
        path = tmp_path / f"{i}.txt"
        command = [sys.executable, "-m", "data.vocabulary", "--input_files", corpus, "--output", path]
        environment = os.environ | {
            "PYTHONHASHSEED": str(i),
            "RAYON_NUM_THREADS": threads,
            "PYTHONPATH": str(ROOT),
        }
        subprocess.run([*command, "--vocab_size", "150"], check=True, env=environment, cwd=tmp_path)
        written.append(path.read_bytes())
    assert written[0] == written[1]


def test_small_text_gives_fewer_tokens(corpus):
    assert len(vocabulary.train_vocabulary([corpus], 8192, do_lower_case=True)) < 300


def test_rare_letters_are_left_out(corpus, monkeypatch):
    monkeypatch.setattr(vocabulary, "MAX_LETTERS", 10)
    tokens = vocabulary.train_vocabulary([corpus], 200, do_lower_case=True)
    assert len([token for token in tokens if len(token) == 1]) == 10
    assert "e" in tokens and "東" not in tokens


def test_no_room_and_no_text_are_refused(corpus, tmp_path):
    with pytest.raises(UserError, match=r"--vocab_size 20 is too small: .* need \d+"):
        vocabulary.train_vocabulary([corpus], 20, do_lower_case=True)
    (tmp_path / "empty.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"empty\.txt: no text"):
        vocabulary.train_vocabulary([tmp_path / "empty.txt"], 100, do_lower_case=True)


def test_done_once_and_again_when_something_changed(corpus, tmp_path, capsys):
    output = tmp_path / "vocab.txt"
    vocabulary.write_vocabulary([corpus], output, 150, True)
    before = output.read_bytes()
    capsys.readouterr()
    vocabulary.write_vocabulary([corpus], output, 150, True)
    assert "up to date" in capsys.readouterr().out
    vocabulary.write_vocabulary([corpus], output, 150, False)
    assert output.read_bytes() != before
