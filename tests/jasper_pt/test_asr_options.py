"""The benchmark of the options for accuracy: its noisy test sets, and its arithmetic."""

import numpy as np
import pytest
import soundfile

pytest.importorskip("torch")  # of the speech environment
from benchmarks import asr_options
from jasper_pt.audio import read_audio
from jasper_pt.config import load_config
from jasper_pt.manifest import read_manifest


def test_runs_differ_from_their_baseline_in_one_option():
    for name, run in asr_options.RUNS.items():
        load_config("quartznet_quickstart", run.changes)
        assert run.start in ("", *asr_options.RUNS) and run.baseline in ("", *asr_options.RUNS)
        if run.baseline and name != "continued twice":
            baseline = asr_options.RUNS[run.baseline]
            assert run._replace(changes=(), flags=(), baseline="") == baseline


def test_rates_and_their_intervals():
    errors = np.array([[1, 4], [0, 3], [2, 3]])
    assert asr_options.wer(errors) == pytest.approx(30)
    assert asr_options.interval(errors, errors) == "+0.0 to +0.0"
    rng = np.random.default_rng(0)
    baseline = np.stack([rng.integers(0, 3, 400), np.full(400, 5)], axis=1)
    worse = baseline + np.stack([rng.integers(0, 2, 400), np.zeros(400, int)], axis=1)
    low, high = map(float, asr_options.interval(worse, baseline).split(" to "))
    # The mean of 400 fair coins, in units of a fifth: 10 % with a standard error of 0.5 %.
    assert low == pytest.approx(10 - 1.96 * 0.5, abs=0.6) and high == pytest.approx(10 + 1.96 * 0.5, abs=0.6)


@pytest.mark.parametrize("kind", ["coloured", "babble"])
def test_noisy_sets_have_their_level_and_words(tmp_path, kind):
    rng = np.random.default_rng(0)
    for name in ("a", "b", "c", "d"):
        soundfile.write(tmp_path / f"{name}.wav", 0.05 * rng.standard_normal(8000), 16000, subtype="FLOAT")
    lines = [f'{{"audio_filepath": "{name}.wav", "duration": 0.5, "text": "word {name}"}}' for name in "abcd"]
    (tmp_path / "all.json").write_text("\n".join(lines))
    first, *voices = read_manifest(tmp_path / "all.json")
    asr_options.make_noisy(tmp_path / kind, [first], voices if kind == "babble" else [])
    (noisy,) = read_manifest(tmp_path / kind / "test.json")
    assert noisy.transcript == "word a" and noisy.audio_path.parent == tmp_path / kind
    clean = read_audio(first.audio_path)
    noise = read_audio(noisy.audio_path) - clean
    assert 10 * np.log10(np.square(clean).mean() / np.square(noise).mean()) == pytest.approx(10, abs=0.1)
