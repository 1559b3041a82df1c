"""Hostile manifests, model configs and label files."""

import contextlib
import dataclasses
import json
import math

import numpy as np
import pytest
import soundfile
import yaml
from hypothesis import given
from hypothesis import strategies as st

from jasper_pt.config import load_config, parse_config
from jasper_pt.manifest import check_files, read_manifest
from jasper_pt.text import read_labels
from runkit.errors import UserError
from tests.fuzz.mutations import TREES, answer, fuzz, hostile_json, joined, json_bytes, mutated, mutated_trees

PUBLISHED = [
    {"transcript": "a b", "files": [{"fname": "a.wav", "speed": 1, "duration": 0.1}], "original_duration": 0.1},
    {"transcript": "c", "files": [{"fname": "a.wav", "speed": 0.9}, {"fname": "a.wav", "speed": 1}]},
]
NEMO = {"audio_filepath": "a.wav", "duration": 0.1, "text": "a b", "offset": 0.0, "sample_rate": 16000}
BESIDE = {"audio_filepath": "a.wav", "text_filepath": "a.txt"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("manifest")
    soundfile.write(path / "a.wav", np.full(1600, 0.1), 16000, "PCM_16")
    (path / "a.txt").write_text("a b\n")
    return path


@fuzz
@given(
    data=hostile_json(PUBLISHED, [NEMO, BESIDE])
    | st.lists(mutated_trees([NEMO, BESIDE, PUBLISHED[0]]), max_size=3).map(
        lambda trees: b"\n".join(map(json_bytes, trees))
    )
)
def test_manifests(folder, data):
    path = folder / "manifest.json"
    path.write_bytes(data)
    utterances = answer(lambda: read_manifest(path), path)
    if utterances is None:
        return
    text = data.decode("utf-8-sig").strip()
    assert len(utterances) == (
        len(json.loads(text)) if text.startswith("[") else sum(1 for line in text.split("\n") if line.strip())
    )
    for utterance in utterances:
        assert 0 <= utterance.duration < math.inf and 0 <= utterance.offset < math.inf
    try:
        kept, report = check_files(utterances)
    except UserError as error:
        assert "no utterance has a readable sound file" in str(error)
    else:
        assert len(kept) + len(report.left_out) == len(utterances)
        assert all(math.isfinite(utterance.duration) for utterance in kept)
        "\n".join(report.lines()).encode("utf-8", "surrogateescape")


@pytest.mark.parametrize("text", ["/dev/zero", "pipe", "a\0b", "."])
def test_words_are_read_from_files_only(folder, text):
    import os

    if not (folder / "pipe").exists():
        os.mkfifo(folder / "pipe")
    path = folder / "manifest.json"
    path.write_bytes(json_bytes({"audio_filepath": "a.wav", "text_filepath": text}))
    assert answer(lambda: read_manifest(path), path) is None


@pytest.mark.parametrize(
    "change",
    [{"offset": math.inf}, {"offset": 10**400}, {"duration": 10**400}, {"duration": 1e305}, {"audio_filepath": "a\0"}],
    ids=str,
)
def test_extreme_utterances(folder, change):
    path = folder / "manifest.json"
    path.write_bytes(json_bytes(NEMO | change))
    utterances = answer(lambda: read_manifest(path), path)
    if utterances is not None:
        with contextlib.suppress(UserError):
            check_files(utterances)


SMALL = """
name: QuartzNet
labels: [" ", a, b]
input_train: &input
  audio_dataset: &audio
    {trim_silence: false, max_duration: 16.7, speed_perturbation: {min_rate: 0.95, max_rate: 1.05, p: 0.5}}
  filterbank_features: &features
    {n_filt: 64, max_duration: 16.7, window_size: 0.02, window_stride: 1e-2, n_fft: 512, highfreq: null,
     spec_augment: {freq_masks: 1, max_freq: 4}}
input_val:
  audio_dataset: {<<: *audio, trim_silence: true}
  filterbank_features: *features
quartznet:
  encoder:
    blocks:
      - {filters: 24, repeat: 1, kernel_size: [5], stride: [2], residual: false, separable: true, dropout: 0.1}
      - {filters: 24, repeat: 2, kernel_size: 5, kernel_size_factor: 1.5, residual: true, groups: 2}
  decoder: {in_feats: 24}
"""
TREE = yaml.safe_load(SMALL.replace("1e-2", "0.01"))


def check_config(config) -> None:
    """What the rest of the recipe computes from a config is a number."""
    for half in (config.input_train, config.input_val):
        if half is not None:
            features = half.features
            assert features.win_length >= features.hop_length >= 1 and features.fft_length >= features.win_length
    for block in config.encoder.blocks:
        assert block.kernel % 2 == 1
    assert parse_config(config.to_dict()) == config


@fuzz
@given(data=mutated([SMALL.encode()]) | mutated_trees([TREE]).map(json_bytes))
def test_model_configs(place, data):
    path = place / "model.yaml"
    path.write_bytes(data)
    config = answer(lambda: load_config(path), path)
    if config is not None:
        check_config(config)


@fuzz
@given(
    data=joined(
        "a: ",
        "- ",
        "[",
        "]",
        "{",
        "}",
        "&a ",
        "*a",
        "<<: ",
        ", ",
        "\n",
        "  ",
        "'",
        '"',
        "\\0",
        "!!python/object/apply:os.system ",
        "!!binary ",
        "!!timestamp ",
        "!!int ",
        "!!bool ",
        "!!float ",
        "!!set ",
        "!!omap ",
        "!!map ",
        "!!str ",
        "0x" + "f" * 5000,
        "2001-99-99",
        "0o9",
        "1:99",
        "0x",
        "? ",
        "|",
        "%YAML 9",
        "--- ",
        "base: ",
        "overrides: ",
        "9" * 5000,
        ".inf",
        "=",
    )
    | TREES.map(json_bytes)
)
def test_yaml(place, data):
    path = place / "model.yaml"
    path.write_bytes(data)
    assert answer(lambda: load_config(path), path) is None


@fuzz
@given(
    tree=mutated_trees(
        [
            {
                "base": "base.yaml",
                "overrides": {"name": "x", "quartznet.encoder.blocks.*.dropout": 0.0, "quartznet.decoder.in_feats": 24},
            }
        ]
    )
)
def test_configs_with_a_base(place, tree):
    (place / "base.yaml").write_text(SMALL)
    path = place / "variant.yaml"
    path.write_bytes(json_bytes(tree))
    config = answer(lambda: load_config(path), place)
    if config is not None:
        check_config(config)


@fuzz
@given(
    key=st.sampled_from(
        [
            "name",
            "labels",
            "quartznet.encoder.blocks.*.dropout",
            "input_val.audio_dataset.max_duration",
            "a.b.c",
            "labels.0",
            "labels.9",
            "quartznet",
            "*",
            ".",
            "",
        ]
    ),
    value=joined(
        "1", "[", "]", "{", "}", "(", ")", "-", "'", "x", ",", ":", "inf", "9" * 5000, "1e999", "_", "\\", "\0"
    )
    | st.sampled_from([b"-" * 5000 + b"1", b"(" * 5000, b"[" * 150, b"{[]: 1}", b"{{}}"]),
)
def test_overrides(place, key, value):
    path = place / "base.yaml"
    path.write_text(SMALL)
    override = f"{key}={value.decode()}"
    config = answer(lambda: load_config(path, [override]), "")
    if config is not None:
        check_config(config)


def laughs(merge: bool) -> str:
    """Forty anchors, each of which holds the one before twice: 2^40 values."""
    lines = ["a0: &a0 {x: 1}"]
    for i in range(40):
        lines.append(f"a{i + 1}: &a{i + 1} " + (f"{{<<: [*a{i}, *a{i}]}}" if merge else f"{{x: *a{i}, y: *a{i}}}"))
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        laughs(False),
        laughs(True),
        "a: &a [*a]",
        "a: &a {b: *a}",
        "[" * 3000,
        "- " * 3000,
        "a: 2001-99-99",
        "a: 0x",
        "a: 0x" + "f" * 5000,
        "a: !!timestamp x",
        "a: !!bool x",
        "a: !!int ''",
        'a: "\\ud800"',
        "a: " + "9" * 5000,
        'base: "a\\0b"',
        "base: .",
        "base: " + "x" * 5000,
        SMALL.replace("n_filt: 64", "n_filt: " + "9" * 400),
        SMALL.replace("window_size: 0.02", "window_size: .inf"),
        SMALL.replace("window_stride: 1e-2", "window_stride: 1e-9"),
        SMALL.replace("kernel_size_factor: 1.5", "kernel_size_factor: .inf"),
        SMALL.replace("kernel_size_factor: 1.5", "kernel_size_factor: 1e308"),
    ],
    ids=range(22),
)
def test_hostile_configs_are_refused(place, text):
    path = place / "model.yaml"
    path.write_text(text)
    assert answer(lambda: load_config(path), path) is None


@fuzz
@given(data=mutated(["a\nb\n \né\n".encode()]) | joined("a", "b", "\n", " ", "\r", "\u2028"))
def test_labels(place, data):
    path = place / "labels.txt"
    path.write_bytes(data)
    labels = answer(lambda: read_labels(path), path)
    assert labels is None or (len(set(labels)) == len(labels) and all(len(label) == 1 for label in labels))


def test_the_small_config_is_valid(place):
    path = place / "model.yaml"
    path.write_text(SMALL)
    config = load_config(path)
    check_config(config)
    assert dataclasses.is_dataclass(config)
