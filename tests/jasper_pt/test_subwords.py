"""Learning subwords: what is learnt, and that encoding is SentencePiece's own."""

import dataclasses
import io
import random
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from small_models import BLOCKS, small_config

from data.embedded_speech import sentences
from jasper_pt import subwords
from jasper_pt.config import load_config
from jasper_pt.streaming import Stream
from jasper_pt.text import decode, encode, read_labels
from runkit.errors import UserError

TEXTS = sentences(400, seed=1)
CHARACTERS = load_config("quartznet_quickstart").labels


@pytest.fixture(scope="module")
def labels():
    return subwords.learn(TEXTS, CHARACTERS, 120)


def test_characters_come_first_then_pieces(labels):
    assert len(labels) == len(set(labels)) == 120 and labels[: len(CHARACTERS)] == CHARACTERS
    pieces = labels[len(CHARACTERS) :]
    assert all(len(piece) > 1 and " " not in piece[1:] for piece in pieces)
    # A piece is made of two that were there before it: byte-pair encoding's order.
    for place, piece in enumerate(pieces):
        known = {*CHARACTERS, *pieces[:place]}
        assert any({piece[:cut], piece[cut:]} <= known for cut in range(1, len(piece)))
    assert subwords.learn(TEXTS, CHARACTERS, 120) == labels


def test_the_first_piece_is_the_most_frequent_pair():
    assert subwords.learn(["bab bab", "bab ba"], ("a", "b", " "), 4)[3] in ("ba", " b")  # 4 times each


def test_encoding_is_sentencepieces(labels):
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, model_type="bpe", vocab_size=121 - len(CHARACTERS) + 28,
        character_coverage=1.0, normalization_rule_name="identity", remove_extra_whitespaces=False, bos_id=-1,
        eos_id=-1, num_threads=1, minloglevel=2,
    )  # fmt: skip
    peer = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [peer.id_to_piece(i).replace("\u2581", " ") for i in range(1, peer.get_piece_size())]
    own = (*CHARACTERS, *(piece for piece in pieces if len(piece) > 1))
    rng = random.Random(0)
    letters = sorted(set("".join(TEXTS)))
    noise = ["".join(rng.choices(letters, k=rng.randint(1, 40))) for _ in range(300)]
    for text in [*sentences(100, seed=2), *(" ".join(text.split()) for text in noise)]:
        if text:
            theirs = [piece.replace("\u2581", " ") for piece in peer.encode(text, out_type=str)]
            assert [own[index] for index in encode(text, own)] == theirs, text


def test_texts_survive_the_round_trip(labels):
    for text in [*TEXTS, "zzz qqq", "'"]:
        assert decode(encode(text, labels), labels) == text


def test_the_main_writes_what_training_reads(corpus, tmp_path, capsys):
    words = f"--model_config {corpus}/model.yaml --train_manifests {corpus}/all.json --vocab_size 8".split()
    assert subwords.main([*words, "--output", str(tmp_path / "labels.txt")]) == 0
    labels = read_labels(tmp_path / "labels.txt")
    assert labels[:5] == (" ", *"abcd") and len(labels) == 8
    assert "8 labels; " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("size", "message"), [(28, "greater than the number of characters, 28"), (5000, "lower --vocab")]
)
def test_impossible_sizes_are_refused(size, message):
    with pytest.raises(UserError, match=message):
        subwords.learn(TEXTS, CHARACTERS, size)


def test_without_the_package_the_error_names_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(UserError, match=r"bash scripts/setup\.sh asr"):
        subwords.learn(TEXTS, CHARACTERS, 120)


def test_a_long_stream_is_cut_before_a_piece_that_begins_a_word():
    config = dataclasses.replace(small_config(BLOCKS), labels=(" ", *"ab", " ab", "ba"))
    stream = Stream(lambda *_: None, config, stride=2)
    speech = [4, 5, 3, 3, 5, 4, 5, 3, 3, 5, 4, 4] * 150  # "ba", blank, " ab", blank, ...: 36 s without a pause
    stream._segment = torch.nn.functional.one_hot(torch.tensor(speech), config.n_classes).float()
    cut = stream._segment_end()
    assert speech[cut] == 3 and speech[cut - 1] != 3 and 3 not in speech[cut + 2 :]
