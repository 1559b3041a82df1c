"""run_training --check_data: what is wrong with data is told before training."""

import json

import numpy as np
import pytest
import soundfile

from jasper_pt import run_training

RATE = 16000


@pytest.fixture
def data(tmp_path, corpus):
    """A writer of manifests: rows of (name, seconds, text), each new name a sound of its own."""
    rng = np.random.default_rng(0)

    def write(manifest, rows, rate=RATE):
        lines = []
        for name, seconds, text in rows:
            path = tmp_path / name
            if not path.exists():
                soundfile.write(path, rng.normal(0, 0.1, round(seconds * rate)), rate)
            lines.append(json.dumps({"audio_filepath": name, "duration": seconds, "text": text}))
        (tmp_path / manifest).write_text("\n".join(lines))

    write("train.json", [(f"t{i}.wav", 1.0 + 0.1 * i, "ab cd dc") for i in range(6)])
    write("dev.json", [("d0.wav", 1.0, "dc ba"), ("d1.wav", 1.2, "da ba")])
    return write


@pytest.fixture
def check(tmp_path, corpus, data, capsys):
    """Runs the report: exit code, {(subset, problem): examples} of the fatal ones and of the warnings, the file."""

    def run(*flags):
        code = run_training.main(
            f"""--check_data --cpu --model_config {corpus}/model.yaml --dataset_dir {tmp_path}
            --train_manifests {tmp_path}/train.json --val_manifests {tmp_path}/dev.json
            --output_dir {tmp_path}/out""".split()
            + list(flags)
        )
        found = json.loads((tmp_path / "out" / "data_report.json").read_text())
        kinds = [{(p["subset"], p["problem"]): p["examples"] for p in found[kind]} for kind in ("fatal", "warning")]
        return code, *kinds, found, capsys.readouterr().out

    return run


def test_figures_of_sound_data(check):
    code, fatal, warnings, found, out = check()
    assert (code, fatal, warnings) == (0, {}, {}) and "0 fatal problems, 0 warnings" in out
    train = found["subsets"]["train"]
    assert train["utterances"] == train["readable"] == 6
    assert train["hours"] == pytest.approx(sum(1.0 + 0.1 * i for i in range(6)) / 3600)
    assert train["seconds"] == pytest.approx({"shortest": 1.0, "5 %": 1.0, "median": 1.2, "95 %": 1.5, "longest": 1.5})
    assert train["characters_a_second"]["longest"] == pytest.approx(8.0)
    assert train["sample_rates"] == {"16000": 6} and train["channels"] == {"1": 6}
    assert train["characters"] == {" ": 12, "c": 12, "d": 12, "a": 6, "b": 6}
    assert (train["words"], train["different_words"], train["different_texts"]) == (18, 3, 1)


def test_sounds_that_cannot_be_used(check, data, tmp_path):
    (tmp_path / "bad.wav").write_bytes(b"RIFF no")
    soundfile.write(tmp_path / "silent.wav", np.zeros(RATE), RATE)
    soundfile.write(tmp_path / "phone.wav", np.random.default_rng(1).normal(0, 0.1, 8000), 8000)
    good = [(f"t{i}.wav", 1.0 + 0.1 * i, "ab cd dc") for i in range(6)]
    rows = [*good, ("bad.wav", 1, "ab"), ("silent.wav", 1, "ab cd dc"), ("phone.wav", 1, "ab cd dc")]
    data("train.json", [*rows, ("short.wav", 0.05, "a")])
    limits = [f"input_train.{section}.max_duration=1.45" for section in ("audio_dataset", "filterbank_features")]
    code, fatal, warnings, found, _ = check(*(f"--override_config={limit}" for limit in limits))
    assert code == 1 and list(fatal) == [("train", "cannot be read")]
    assert "bad.wav" in fatal["train", "cannot be read"][0]
    assert warnings["train", "silent"] == ["silent.wav"]
    assert warnings["train", "shorter than min_duration 0.1 s, left out"] == ["short.wav: 0.05 s"]
    assert warnings["train", "longer than max_duration 1.45 s, left out"] == ["t5.wav: 1.50 s"]
    (low,) = [examples for (_, problem), examples in warnings.items() if "lower sample rate" in problem]
    assert low == ["phone.wav: 8000 Hz"] and found["subsets"]["train"]["sample_rates"] == {"16000": 8, "8000": 1}


def test_texts_that_do_not_fit(check, data):
    good = [(f"t{i}.wav", 1.0 + 0.1 * i, "ab cd dc") for i in range(6)]
    rows = [
        *good,
        ("long.wav", 0.5, "aabb" * 6),
        ("slow.wav", 5.0, "ab cd"),
        ("none.wav", 1.0, ""),
        ("n.wav", 1.0, "ab cd 5"),
    ]
    data("train.json", [*rows, ("other.wav", 1.0, "жжж")])
    code, fatal, warnings, _, out = check()
    assert code == 1
    # 24 labels, and a blank within each of 12 pairs; 50 frames of 10 ms are 25 behind the stride
    assert warnings["train", "more text than CTC can align, left out"] == ["long.wav: needs 36 frames, has 25"]
    assert set(fatal) == {
        ("train", "nothing of the transcript has a label"),
        ("train", "characters without a label, dropped"),
    }
    assert warnings["train", "no transcript"] == ["none.wav"]
    (pace,) = [examples for (_, problem), examples in warnings.items() if "pace far from" in problem]
    assert [line.split(":")[0] for line in pace] == ["long.wav", "slow.wav"]
    (digits,) = [examples for (_, problem), examples in warnings.items() if "numbers are spelled out" in problem]
    assert digits == ["n.wav"] and "'ж' CYRILLIC SMALL LETTER ZHE x 3" in out


def test_duplicates(check, data, tmp_path):
    good = [(f"t{i}.wav", 1.0 + 0.1 * i, "ab cd dc") for i in range(6)]
    for copy, source in (("same.wav", "t0.wav"), ("wrong.wav", "t1.wav"), ("heard.wav", "t2.wav")):
        (tmp_path / copy).write_bytes((tmp_path / source).read_bytes())
    data("train.json", [*good, ("same.wav", 1.0, "ab cd dc"), ("wrong.wav", 1.1, "ba dc cd")])
    data("dev.json", [("d0.wav", 1.0, "dc ba"), ("heard.wav", 1.2, "ab cd dc")])
    code, fatal, warnings, _, _ = check()
    assert code == 1
    assert fatal == {
        ("train", "the same sound with different words"): ["t1.wav = wrong.wav"],
        ("dev", "the same sound as in the training data"): ["heard.wav = t2.wav"],
    }
    assert warnings == {
        ("train", "the same sound and words more than once"): ["t0.wav = same.wav"],
        ("dev", "the same text as in the training data"): ["heard.wav"],
    }


def test_labels_that_are_not_in_the_data(check, tmp_path):
    labels = tmp_path / "labels.txt"
    labels.write_text(" \na\nb\nc\nd\nж\n")
    code, _, warnings, _, _ = check("--labels", str(labels))
    assert code == 0 and warnings == {("train", "labels that do not occur, and are not learnt"): ["'ж'"]}
