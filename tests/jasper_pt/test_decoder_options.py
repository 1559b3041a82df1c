"""decoder_options.py: flags, files of options, word lists; and tune_decoder.py, which writes such files."""

import argparse
import csv
import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from jasper_pt import build_lm, tune_decoder
from jasper_pt.decode import greedy_tokens
from jasper_pt.decoder_options import (
    DecoderOptions,
    add_flags,
    beam_options,
    choose_decoder,
    from_arguments,
    read_hot_words,
    read_options,
    read_word_list,
)
from jasper_pt.metrics import ErrorCounts
from jasper_pt.tune_decoder import Setting
from runkit.errors import UserError

LABELS = [*" abcdefghijklmnopqrstuvwxyz", "'"]
SENTENCES = ["the cat sat", "the dog ran", "a cat ran", "a dog sat", "the cat ran", "a cat sat"]


def parse(*words):
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return parser.parse_args(list(map(str, words)))


def test_greedy_is_the_default():
    assert choose_decoder(parse(), LABELS) is greedy_tokens


def test_flags_win_over_the_file(tmp_path):
    (tmp_path / "decoder.yaml").write_text("decoder: beam\nwidth: 30\nalpha: 0.7\nlm: lm/3gram.arpa\n")
    options = from_arguments(parse("--decoder_config", tmp_path / "decoder.yaml", "--beam_width", 5))
    assert options == DecoderOptions("beam", str(tmp_path / "lm/3gram.arpa"), alpha=0.7, width=5)
    found = beam_options(options)
    assert (found.width, found.alpha, found.beta, found.unknown) == (5, 0.7, 0.0, -10.0)
    (tmp_path / "decoder.json").write_text(json.dumps({"decoder": "beam", "beta": 1}))
    assert read_options(tmp_path / "decoder.json").beta == 1


@pytest.mark.parametrize(
    "content, message",
    [
        ("widht: 3", "'widht' is not known; there are: decoder, lm, alpha"),
        ("width: wide", "width is 'wide'"),
        ("width: 2.5", "width is 2.5"),
        ("alpha: true", "alpha is True"),
        ("decoder: best", "decoder is 'best'; choose greedy or beam"),
        ("hotword_weight: null", "hotword_weight is None"),
        ("- 1", "decoder.yaml"),
    ],
)
def test_wrong_files_of_options(tmp_path, content, message):
    (tmp_path / "decoder.yaml").write_text(content)
    with pytest.raises(UserError, match=message):
        read_options(tmp_path / "decoder.yaml")


def test_flags_that_contradict_each_other():
    with pytest.raises(UserError, match="--beam_width, --hotwords: the greedy decoder has no such option"):
        choose_decoder(parse("--beam_width", 3, "--hotwords", "x.txt"), LABELS)
    with pytest.raises(UserError, match="add --lm FILE"):
        choose_decoder(parse("--decoder", "beam", "--lm_alpha", 1), LABELS)
    with pytest.raises(UserError, match="cannot read none"):
        choose_decoder(parse("--decoder_config", "none.yaml"), LABELS)


def test_word_lists(tmp_path):
    (tmp_path / "words.txt").write_text("cat\n\n dog\n")
    assert read_word_list(tmp_path / "words.txt") == ["cat", "dog"]
    (tmp_path / "words.txt").write_text("cat\nhot dog\n")
    with pytest.raises(UserError, match=r"words.txt:2: 'hot dog' is more than one word"):
        read_word_list(tmp_path / "words.txt")
    (tmp_path / "hot.txt").write_text("new york\t3.5\nzoe\n\n")
    assert read_hot_words(tmp_path / "hot.txt", 5.0) == {"new york": 3.5, "zoe": 5.0}
    (tmp_path / "hot.txt").write_text("zoe\tmuch\n")
    with pytest.raises(UserError, match=r"hot.txt:1: 'much' is not a weight"):
        read_hot_words(tmp_path / "hot.txt", 5.0)


# ------------------------------------------------------------------------------------------------------------ tuning
def test_searches():
    def errors(setting):
        tried.append(setting)
        wide = setting.width >= 20
        return round(10 * abs(setting.alpha - 0.7) + 10 * abs(setting.beta - setting.alpha)) + (not wide), 0

    values = ([0.5, 0.1, 0.7], [0.0, 0.7, 2.0], [50, 10, 20])
    for grid in (False, True):
        tried: list[Setting] = []
        assert tune_decoder.search(errors, *values, grid) == Setting(0.7, 0.7, 20)
        assert tried[0] == Setting(0.5, 0.0, 50)


@pytest.fixture
def development_set(tmp_path):
    """Noisy log-probabilities of sentences, a manifest, and a model of the sentences."""
    generator = np.random.default_rng(0)
    tensors, rows = {}, []
    for number in range(12):
        text = SENTENCES[number % len(SENTENCES)]
        ids = [index for character in text for index in (LABELS.index(character), len(LABELS))]
        log_probs = 5 * torch.nn.functional.one_hot(torch.tensor(ids), len(LABELS) + 1).float()
        log_probs += torch.from_numpy(generator.normal(0, 1.4, log_probs.shape).astype(np.float32))
        tensors[f"{number}.wav"] = log_probs.log_softmax(-1)
        rows.append({"audio_filepath": f"{number}.wav", "duration": 1.0, "text": text.upper()})
    save_file(tensors, tmp_path / "dev.safetensors", {"labels": json.dumps(LABELS)})
    (tmp_path / "dev.json").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES))
    build_lm.main(["--text", str(tmp_path / "text.txt"), "--order", "2", "--output", str(tmp_path / "2gram.arpa")])
    return ["--logits", tmp_path / "dev.safetensors", "--manifests", tmp_path / "dev.json"]


def tune(*words):
    return tune_decoder.main(list(map(str, words)))


def test_tuning(development_set, tmp_path, capsys):
    output = tmp_path / "out" / "decoder.yaml"
    values = ["--alphas", 0.5, 0.01, "--betas", 0, 1, "--widths", 20, 5]
    assert tune(*development_set, "--lm", tmp_path / "2gram.arpa", *values, "--output", output) == 0
    with open(f"{output}.csv") as stream:
        table = list(csv.DictReader(stream))
    assert table[0]["decoder"] == "greedy" and {row["decoder"] for row in table[1:]} == {"beam"}
    assert float(table[0]["wer"]) > 5
    best = min(float(row["wer"]) for row in table)
    assert best < float(table[0]["wer"]) / 2
    assert f"WER {best:.2f} %" in capsys.readouterr().out
    options = read_options(output)
    assert options.decoder == "beam" and (tmp_path / "2gram.arpa").samefile(options.lm)
    args = parse("--decoder_config", output)
    dev = tune_decoder.read_development_set(
        tune_decoder.parse_arguments([*map(str, development_set), "--output", "x", "--batch_size", "5"])
    )
    outcome = tune_decoder.measure(choose_decoder(args, LABELS), dev)
    assert 100 * outcome.words.wer == best and isinstance(outcome.words, ErrorCounts)


def test_tuning_without_a_model(development_set, tmp_path):
    assert tune(*development_set, "--betas", 0, "--widths", 5, 10, "--output", tmp_path / "d.yaml") == 0
    assert read_options(tmp_path / "d.yaml") == DecoderOptions("beam", beta=0.0, width=5)


def test_tuning_refusals(development_set, tmp_path):
    output = ["--output", tmp_path / "d.yaml"]
    with pytest.raises(UserError, match="nothing to tune"):
        tune(*development_set, "--decoder", "greedy", *output)
    (tmp_path / "part.json").write_text((tmp_path / "dev.json").read_text().split("\n")[0])
    with pytest.raises(UserError, match="not of the same utterances"):
        tune(*development_set[:2], "--manifests", tmp_path / "part.json", *output)
    (tmp_path / "other").write_text("no tensors")
    with pytest.raises(UserError, match="is not what run_inference --save_logits writes"):
        tune("--logits", tmp_path / "other", *development_set[2:], *output)
    assert not (tmp_path / "d.yaml").exists()
