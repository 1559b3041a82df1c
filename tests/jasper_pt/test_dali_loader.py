"""The DALI loaders against the plain ones, on real speech."""

import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from jasper_pt.audio import audio_info, read_audio
from jasper_pt.augment import trim_silence
from jasper_pt.config import load_config
from jasper_pt.dali_loader import DaliEvalLoader, DaliTrainLoader, import_dali, loaders
from jasper_pt.dali_loader import trim_silence as dali_trim_silence
from jasper_pt.loader import EvalLoader, TrainLoader
from jasper_pt.manifest import Utterance
from runkit.errors import UserError


def make_config(*overrides):
    return load_config("quartznet5x5.yaml", overrides)


def utterance(path, transcript="a b", **fields):
    duration = fields.pop("duration", None) or audio_info(path).duration
    return Utterance(path, transcript, duration, None, 0.0, ((path, 1.0, duration),), path.name)._replace(**fields)


@pytest.fixture(scope="module")
def dali():
    pytest.importorskip("nvidia.dali", reason="NVIDIA DALI is not installed")
    return import_dali()


@pytest.fixture(scope="module")
def speech(shared):
    """Twelve real utterances and their words."""
    torch.set_num_threads(1)
    folder = shared / "data/speech_librispeech_test_other"
    lines = [
        line.split(" ", 1) for file in sorted(folder.rglob("*.trans.txt")) for line in file.read_text().splitlines()
    ]
    words, files = dict(lines), sorted(folder.rglob("*.flac"), key=lambda file: file.stat().st_size)[:12]
    return [utterance(file, words[file.stem]) for file in files]


def compare(plain, dali):
    """Largest and mean difference of features, after checking that all else is equal."""
    differences, batches = [], 0
    for a, b in zip(plain, dali, strict=True):
        assert a.features.shape == b.features.shape and b.features.dtype == torch.float32
        for x, y in zip(a[1:4], b[1:4], strict=True):
            assert torch.equal(x, y) and x.dtype == y.dtype
        assert (a.keys, a.transcripts, a.indices) == (b.keys, b.transcripts, b.indices)
        assert b.durations == pytest.approx(a.durations, abs=1e-4)
        differences.append((a.features - b.features).abs().flatten())
        batches += 1
    assert batches
    differences = torch.cat(differences)
    return differences.max().item(), differences.mean().item()


# Float32 rounding, which the logarithm magnifies in the quietest bins.
MAX, MEAN = 1e-2, 5e-6


@pytest.mark.parametrize("trim", ["true", "false"])
def test_evaluation_features_equal_the_plain_path(dali, speech, trim):
    config = make_config(f"input_val.audio_dataset.trim_silence={trim}")
    largest, mean = compare(
        EvalLoader(speech, config, 5, num_workers=0), DaliEvalLoader(speech, config, 5, num_workers=2)
    )
    assert largest < MAX and mean < MEAN


def test_training_features_equal_the_plain_path(dali, speech):
    """Gain, shift, dither, trimming and masks too, with the same random choices."""
    config = make_config(
        "input_train.audio_dataset.speed_perturbation=null",
        "input_train.audio_dataset.gain_perturbation.p=0.5",
        "input_train.audio_dataset.shift_perturbation.p=0.5",
        "input_train.filterbank_features.dither=1e-4",
    )
    loaders = [kind(speech, config, 3, 2, seed=4, num_workers=1) for kind in (TrainLoader, DaliTrainLoader)]
    for epoch in (0, 1):
        largest, mean = compare(*(loader.epoch(epoch) for loader in loaders))
        assert largest < MAX and mean < MEAN
    largest, _ = compare(*(loader.epoch(1, start_update=1) for loader in loaders))
    assert largest < MAX


def test_changes_of_speed_are_the_same_up_to_the_filters(dali, speech):
    config = make_config(
        "input_train.audio_dataset.speed_perturbation.p=1",
        "input_train.audio_dataset.trim_silence=false",
        "input_train.filterbank_features.spec_augment=null",
    )
    compared = 0
    plain, fast = (kind(speech, config, 4, seed=2, num_workers=1).epoch(0) for kind in (TrainLoader, DaliTrainLoader))
    for a, b in zip(plain, fast, strict=True):
        assert (a.feature_lengths - b.feature_lengths).abs().max() <= 1  # lengths may round to another sample
        assert b.durations == pytest.approx(a.durations, abs=1e-3)
        for x, y, n, m in zip(a.features, b.features, a.feature_lengths, b.feature_lengths, strict=True):
            if n == m:  # below the edge of the band, where the two filters roll off differently
                assert (x[:52] - y[:52]).abs().mean() < 1e-3
                compared += 1
    assert compared >= 8


def test_other_rates_and_channels(dali, shared):
    files = sorted((shared / "cases/A04").glob("*.wav")) + sorted((shared / "cases/A03").glob("*.wav"))
    assert len(files) == 9
    utterances = [utterance(file) for file in files]
    (a,), (b,) = (kind(utterances, make_config(), 9, num_workers=0) for kind in (EvalLoader, DaliEvalLoader))
    assert torch.equal(a.feature_lengths, b.feature_lengths)
    for key, x, y in zip(a.keys, a.features, b.features, strict=True):
        exact = not key.startswith("r") or key == "r16000.wav"
        difference = (x - y).abs()[: 64 if exact else 36].mean()  # up to 3.4 kHz for the file of 8 kHz
        assert difference < (MEAN if exact else 5e-3), key


def test_short_clips_and_silence(dali, shared):
    files = sorted((shared / "cases/A01").glob("*.wav")) + sorted((shared / "cases/A11").glob("*.wav"))
    utterances = [utterance(file) for file in files]
    a, b = (kind(utterances, make_config(), 9, num_workers=0) for kind in (EvalLoader, DaliEvalLoader))
    assert len(files) == 9 and compare(a, b)[0] < MAX
    assert all(torch.isfinite(batch.features).all() for batch in b)


def test_parts_of_files_and_padding(dali, speech):
    parts = [source._replace(offset=0.5, duration=1.25 - 0.25 * i) for i, source in enumerate(speech[:3])]
    config = make_config("input_val.audio_dataset.trim_silence=false")
    assert compare(EvalLoader(parts, config, 3), DaliEvalLoader(parts, config, 3))[0] < MAX
    padded = make_config(
        *(
            f"input_val.{section}.{key}"
            for section in ("audio_dataset", "filterbank_features")
            for key in ("max_duration=7", "pad_to_max_duration=true")
        )
    )
    (batch,) = DaliEvalLoader(parts, padded, 3)
    assert batch.features.shape == (3, 64, 704)


def test_trimming_in_dali_equals_ours(dali, speech):
    signals = [read_audio(source.audio_path) for source in speech]
    signals += [np.zeros(1000, np.float32), np.ones(1, np.float32), np.pad(signals[0], (9000, 12345))]
    for top_db in (60, 30):
        pipeline = dali.Pipeline(batch_size=len(signals), num_threads=1, device_id=None, prefetch_queue_depth=1)
        with pipeline:
            audio = dali.fn.external_source(source=lambda: signals, batch=True, dtype=dali.types.FLOAT)
            pipeline.set_outputs(dali_trim_silence(dali, audio, top_db))
        (trimmed,) = pipeline.run()
        for ours, theirs in zip(signals, trimmed, strict=True):
            assert np.array_equal(trim_silence(ours, top_db), np.array(theirs))


def test_files_repeated_in_a_list_keep_their_own_words(dali, speech):
    twice = [speech[0]._replace(transcript="one"), speech[1], speech[0]._replace(transcript="two")]
    batches = list(DaliEvalLoader(twice, make_config(), 1, num_workers=0))
    assert {batch.indices[0]: batch.transcripts[0] for batch in batches}.items() >= {(0, "one"), (2, "two")}


def test_what_cannot_be_read_is_named(dali, speech, tmp_path):
    (tmp_path / "text.wav").write_text("this is not audio at all")
    for path, reason in ((tmp_path / "text.wav", "text.wav"), (tmp_path / "gone.wav", "cannot read .*gone.wav")):
        broken = [*speech[:2], utterance(path, duration=1.0)]
        with pytest.raises(UserError, match=reason):
            list(DaliEvalLoader(broken, make_config(), 2, num_workers=1))


def test_formats_beyond_dali_say_so(dali, speech, tmp_path):
    soundfile.write(tmp_path / "speech.mp3", read_audio(speech[0].audio_path), 16000)
    with pytest.raises(UserError, match=r"speech\.mp3.*WAV, FLAC and Ogg only"):
        list(DaliEvalLoader([utterance(tmp_path / "speech.mp3")], make_config(), 1, num_workers=0))


def test_wrong_devices_are_refused(dali, speech):
    with pytest.raises(UserError, match="needs a run on a GPU"):
        DaliEvalLoader(speech, make_config(), 2, dali_device="gpu")
    for make in loaders("tpu"):
        with pytest.raises(UserError, match="tpu"):
            make(speech, make_config(), 2)
    with pytest.raises(ValueError, match="on_error"):
        DaliEvalLoader(speech, make_config(), 2, on_error=print)


def test_without_dali_the_error_names_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali.fn", None)
    with pytest.raises(UserError, match=r"install nvidia-dali-cuda130, or take --dali_device none"):
        DaliEvalLoader([utterance(Path("x.wav"), duration=1.0)], make_config(), 1)
    with pytest.raises(UserError, match="nvidia-dali"):
        DaliTrainLoader([utterance(Path("x.wav"), duration=1.0)], make_config(), 1)


@pytest.mark.gpu
def test_gpu_equals_cpu(dali, speech):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    cpu = EvalLoader(speech, make_config(), 5)
    gpu = DaliEvalLoader(speech, make_config(), 5, device="cuda", dali_device="gpu")
    for a, b in zip(cpu, gpu, strict=True):
        torch.testing.assert_close(b.features.cpu(), a.features, atol=MAX, rtol=0)


@pytest.mark.parametrize("name", ["noise", "impulse"])
def test_noise_and_rooms_are_refused(name):
    config = make_config(f"input_train.audio_dataset.{name}_perturbation.p=0.5")
    with pytest.raises(UserError, match="set them to null, or --dali_device none"):
        DaliTrainLoader([utterance(Path("x.wav"), duration=1.0)], config, 1)
