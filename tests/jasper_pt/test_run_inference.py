"""Inference end to end with a model that reads tones: scores, texts of any files, speed, and whatever can be wrong."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from jasper_pt import build_lm, checkpoint, run_inference
from runkit.errors import UserError
from runkit.log import read_log

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def infer(trained, tmp_path):
    """Runs with the trained checkpoint; the exit code."""

    def run(*flags, ckpt=trained):
        fixed = ["--cpu", "--output_dir", tmp_path / "out", "--num_workers", 0, *(["--ckpt", ckpt] if ckpt else [])]
        return run_inference.main([*map(str, fixed), *map(str, flags)])

    return run


@pytest.fixture
def manifest(corpus):
    return ("--dataset_dir", corpus, "--val_manifests", corpus / "all.json")


def references(corpus):
    return [json.loads(line)["text"] for line in (corpus / "all.json").read_text().splitlines()]


def results(tmp_path):
    """Final results in the log."""
    found = {}
    for record in read_log(tmp_path / "out" / "nvlog_infer.json"):
        if record["type"] == "LOG" and record["step"] == []:
            found |= record["data"]
    return found


# ----------------------------------------------------------------------------------------------------- scoring
def test_scores_and_files(infer, manifest, corpus, tmp_path, capsys):
    assert infer(*manifest, "--ema", "--save_predictions", tmp_path / "p.txt") == 0
    summary = json.loads((tmp_path / "out" / "summary_infer.json").read_text())
    assert summary["wer"] < 5 and summary["utterances"] == 12 and summary["reference_words"] == 24 and summary["ema"]
    assert results(tmp_path)["eval_wer"] == summary["wer"]
    assert f"WER {summary['wer']:.2f} %" in capsys.readouterr().out

    predictions = (tmp_path / "p.txt").read_text()
    assert not predictions.endswith("\n") and len(predictions.split("\n")) == 12
    rows = [line.split("\t") for line in (tmp_path / "p.txt.tsv").read_text().splitlines()]
    assert rows == [[f"{i}.wav", text] for i, text in enumerate(predictions.split("\n"))]

    head, *report = [line.split("\t") for line in (tmp_path / "out" / "utterances.tsv").read_text().splitlines()]
    assert [dict(zip(head, row, strict=True))["reference"] for row in report] == references(corpus)
    errors = sum(int(dict(zip(head, row, strict=True))[kind]) for row in report
                 for kind in ("substitutions", "insertions", "deletions"))  # fmt: skip
    assert summary["wer"] == pytest.approx(100 * errors / 24)


def test_texts_and_log_probabilities_do_not_depend_on_the_batch(infer, manifest, tmp_path):
    texts, logits = [], []
    for size in (1, 5, 16):
        infer(*manifest, "--batch_size", size, "--save_predictions", tmp_path / "p", "--save_logits", tmp_path / "l")
        texts.append((tmp_path / "p").read_text())
        logits.append(load_file(tmp_path / "l"))
    assert texts[0] == texts[1] == texts[2]
    assert list(logits[0]) == sorted(f"{i}.wav" for i in range(12)) and logits[0]["0.wav"].shape[1] == 6
    for other in logits[1:]:
        for key, values in logits[0].items():
            torch.testing.assert_close(values, other[key], rtol=0, atol=1e-4)
    with safe_open(tmp_path / "l", "pt") as file:
        assert file.metadata() == {"labels": json.dumps([" ", *"abcd"])}


def test_beam_search(infer, manifest, corpus, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(references(corpus)))
    build_lm.main(["--text", str(tmp_path / "text.txt"), "--output", str(tmp_path / "3gram.arpa")])
    words = sorted({word for text in references(corpus) for word in text.split()})
    (tmp_path / "words.txt").write_text("\n".join(words))
    model = ("--lm", tmp_path / "3gram.arpa", "--beam_width", 10, "--lexicon", tmp_path / "words.txt")
    assert infer(*manifest, "--decoder", "beam", *model, "--save_predictions", tmp_path / "p.txt") == 0
    assert (tmp_path / "p.txt").read_text().split("\n") == references(corpus)
    assert json.loads((tmp_path / "out" / "summary_infer.json").read_text())["wer"] == 0
    assert infer(*manifest, "--decoder", "beam", "--steps", 2, "--batch_size", 4) == 0


def test_two_runs_are_identical(infer, manifest, tmp_path):
    """Case A11: no dither, no dropout, no augmentation."""
    for name in ("a", "b"):
        infer(*manifest, "--save_logits", tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_bf16_reads_the_same_words(infer, manifest, tmp_path):
    infer(*manifest, "--amp")
    assert results(tmp_path)["eval_wer"] < 5


def test_leading_frames(infer, manifest, tmp_path):
    infer(*manifest, "--save_logits", tmp_path / "a")
    infer(*manifest, "--save_logits", tmp_path / "b", "--pad_leading", 16)
    a, b = (load_file(tmp_path / name) for name in "ab")
    assert all(len(b[key]) == len(a[key]) + 8 for key in a)


@pytest.mark.dist
def test_two_processes_do_every_utterance_once(infer, manifest, trained, corpus, tmp_path):
    infer(*manifest, "--batch_size", 5, "--save_predictions", tmp_path / "one")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = f"-m torch.distributed.run --nproc_per_node 2 --master_port {port} -m jasper_pt.run_inference".split()
    flags = ["--cpu", "--ckpt", trained, "--output_dir", tmp_path / "two", "--batch_size", 5, *manifest]
    run = subprocess.run(
        [sys.executable, *launcher, *map(str, flags), "--save_predictions", str(tmp_path / "two.txt")],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "two.txt").read_text() == (tmp_path / "one").read_text()
    assert json.loads((tmp_path / "two" / "summary_infer.json").read_text())["utterances"] == 12


def test_a_set_without_a_word(infer, corpus, tmp_path, capsys):
    rows = [{"audio_filepath": f"{i}.wav", "duration": 0.5, "text": ""} for i in range(2)]
    (tmp_path / "m.json").write_text("\n".join(map(json.dumps, rows)))
    assert infer("--dataset_dir", corpus, "--val_manifests", tmp_path / "m.json") == 0
    assert "no reference word" in capsys.readouterr().out


def test_an_unreadable_file_is_named_and_the_others_are_scored(infer, corpus, tmp_path, capsys):
    rows = [json.loads(line) for line in (corpus / "all.json").read_text().splitlines()]
    rows[1]["audio_filepath"] = "missing.wav"
    (tmp_path / "m.json").write_text("\n".join(map(json.dumps, rows)))
    flags = ("--dataset_dir", corpus, "--val_manifests", tmp_path / "m.json", "--save_predictions", tmp_path / "p")
    assert infer(*flags) == run_inference.UNREADABLE == 3
    assert "missing.wav: No such file" in capsys.readouterr().out
    summary = json.loads((tmp_path / "out" / "summary_infer.json").read_text())
    assert (summary["utterances"], summary["unreadable"]) == (11, 1)
    texts = (tmp_path / "p").read_text().split("\n")
    assert len(texts) == 12 and texts[1] == "" and texts[2]


def test_ema_of_a_checkpoint_without_it_is_told(infer, manifest, trained, tmp_path, capsys):
    contents = checkpoint.read(trained) | {"ema_state_dict": None}
    torch.save(contents, tmp_path / "raw.pt")
    infer(*manifest, "--save_logits", tmp_path / "a", ckpt=tmp_path / "raw.pt")
    infer(*manifest, "--save_logits", tmp_path / "b", "--ema", ckpt=tmp_path / "raw.pt")
    assert "holds no EMA weights; its raw weights are used" in capsys.readouterr().out
    infer(*manifest, "--save_logits", tmp_path / "c", "--ema")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() != (tmp_path / "c").read_bytes()


# ------------------------------------------------------------------------------------------------- transcription
def tone_file(corpus, path, rate=16000, channels=1, **options):
    """The corpus's first utterance in another form."""
    audio, _ = soundfile.read(corpus / "0.wav")
    if rate == 8000:
        audio = audio[::2]  # tones up to 2 kHz: nothing to fold
    soundfile.write(path, np.stack([audio] * channels, 1), rate, **options)


def test_one_file_in_the_published_form(infer, corpus, capsys):
    infer("--transcribe_wav", corpus / "0.wav")
    assert f"Prediction   1: {references(corpus)[0]}\n" in capsys.readouterr().out


def test_files_folders_and_lists_of_any_format(infer, corpus, tmp_path, capsys):
    folder = tmp_path / "sounds"
    (folder / "deep").mkdir(parents=True)
    tone_file(corpus, folder / "a.flac")
    tone_file(corpus, folder / "deep" / "b.ogg", channels=2)
    tone_file(corpus, folder / "c.mp3", rate=8000)
    (folder / "notes.txt").write_text("not audio")
    (tmp_path / "list.txt").write_text("sounds/c.mp3\r\n\r\n" + str(corpus / "1.wav") + "\n")
    predictions = tmp_path / "p.txt"
    flags = (folder, corpus / "2.wav", tmp_path / "list.txt", "--save_predictions", predictions)
    assert infer("--transcribe_filelist", *flags) == 0
    files = [folder / "a.flac", folder / "c.mp3", folder / "deep" / "b.ogg", corpus / "2.wav"]
    files += [folder / "c.mp3", corpus / "1.wav"]
    words = references(corpus)
    texts = [words[0], words[0], words[0], words[2], words[0], words[1]]
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if "\t" in line] == [
        f"{f}\t{t}" for f, t in zip(files, texts, strict=True)
    ]
    assert predictions.read_text() == "\n".join(texts)


def test_what_cannot_be_decoded_is_named_and_the_rest_is_done(infer, corpus, tmp_path, capsys):
    (tmp_path / "text.wav").write_text("not audio at all")
    (tmp_path / "empty.wav").write_bytes(b"")
    tone_file(corpus, tmp_path / "good.wav")
    data = (tmp_path / "good.wav").read_bytes()
    (tmp_path / "cut.flac").write_bytes(b"fLaC" + data[4:2000])
    assert infer("--transcribe_filelist", tmp_path) == 3
    out = capsys.readouterr().out
    assert f"{tmp_path / 'good.wav'}\t{references(corpus)[0]}" in out
    for name in ("text.wav", "empty.wav", "cut.flac"):
        assert f"warning: {tmp_path / name}" in out
    assert "3 audio files could not be read" in out
    assert infer("--transcribe_wav", tmp_path / "text.wav") == 3


def test_case_A05_by_content_not_by_name(infer, shared, capsys):
    folder = shared / "cases" / "A05"
    expected = json.loads((folder / "expected.json").read_text())
    assert infer("--transcribe_filelist", folder) == 3
    lines = capsys.readouterr().out.splitlines()
    done = {Path(line.split("\t")[0]).name for line in lines if "\t" in line}
    assert set(expected["decodable"]) <= done and not done & set(expected["reported"])
    for name in expected["reported"]:
        assert any(line.startswith("warning: ") and name in line for line in lines)


def test_case_A01_clips_of_a_few_samples(infer, shared, tmp_path):
    folder = shared / "cases" / "A01"
    assert infer("--transcribe_filelist", folder, "--save_logits", tmp_path / "l") == 0
    logits = load_file(tmp_path / "l")
    assert len(logits) == 6 and all(len(values) >= 1 and values.isfinite().all() for values in logits.values())


def test_case_A11_silence_is_finite(infer, shared, tmp_path):
    assert infer("--transcribe_filelist", shared / "cases" / "A11", "--save_logits", tmp_path / "l") == 0
    assert all(values.isfinite().all() for values in load_file(tmp_path / "l").values())


def test_case_A09_is_scored(infer, shared, trained, tmp_path):
    """In evaluation a transcript too long to align counts as any other."""
    folder = shared / "cases" / "A09"
    assert infer("--dataset_dir", folder, "--val_manifests", folder / "manifest.jsonl") == 0
    assert json.loads((tmp_path / "out" / "summary_infer.json").read_text())["utterances"] == 4


def test_odd_files_of_other_projects(infer, shared, tmp_path, capsys):
    data = shared / "data"
    code = infer("--transcribe_filelist", data / "speech_odd", data / "speech_pocketsphinx" / "broken")
    lines = capsys.readouterr().out.splitlines()
    done = {Path(line.split("\t")[0]).name for line in lines if "\t" in line}
    assert {"stereo.sph", "jfk.mp3", "mono_c0.opus", "libri-1088-134315-0000_rvb.wav"} <= done
    named = [line for line in lines if line.startswith("warning: ")]
    assert code == 3 and all(any(name in line for line in named) for name in ("null.wav", "bad.wav", "evil.wav"))


# --------------------------------------------------------------------------------------------------------- speed
@pytest.mark.parametrize(("size", "steps"), [(4, 7), (16, 1)])
def test_latency(infer, manifest, tmp_path, size, steps):
    assert infer(*manifest, "--steps", steps, "--warmup_steps", 2, "--batch_size", size) == 0
    found = results(tmp_path)
    for name in ("data", "dnn", "data+dnn"):
        mean, median = found[f"{name}_latency_mean"], found[f"{name}_latency_median"]
        assert found[f"{name}_latency_0_5"] == mean  # published so
        assert median <= found[f"{name}_latency_0_9"] <= found[f"{name}_latency_0_95"] <= found[f"{name}_latency_0_99"]
    total = found["data_latency_mean"] + found["dnn_latency_mean"]
    assert found["data+dnn_latency_mean"] == pytest.approx(total, rel=1e-6)
    assert found["utterances_per_second"] == pytest.approx(1000 * size / total, rel=1e-6)
    assert 0.4 < found["audio_seconds_per_second"] / found["utterances_per_second"] < 1  # s an utterance


def test_speed_of_random_weights(infer, manifest, corpus, capsys):
    flags = ("--model_config", corpus / "model.yaml", "--steps", 1, "--batch_size", 2)
    assert infer(*manifest, *flags, ckpt=None) == 0
    assert "the weights are random" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", "give one of --val_manifests, --transcribe_wav, --transcribe_filelist"),
        ("--transcribe_wav a --transcribe_filelist b", "give one of"),
        ("--transcribe_wav a --steps 3", "--steps measures"),
        ("--transcribe_wav a --batch_size 0", "1 or more"),
        ("--transcribe_wav a --pad_leading -1", "0 or more"),
        ("--transcribe_wav a --precision fp16", "needs a GPU"),
        ("--transcribe_filelist absent", "absent: no such file"),
        ("--val_manifests absent", "cannot read absent"),
    ],
)
def test_unusable_flags(infer, flags, message):
    with pytest.raises(UserError, match=message):
        infer(*flags.split())


def test_a_checkpoint_without_configuration_needs_one(infer, trained, corpus, tmp_path, capsys):
    torch.save({"state_dict": checkpoint.read(trained)["state_dict"]}, tmp_path / "bare.pt")
    with pytest.raises(UserError, match=r"bare.pt holds no configuration: give --model_config"):
        infer("--transcribe_wav", corpus / "0.wav", ckpt=tmp_path / "bare.pt")
    flags = ("--transcribe_wav", corpus / "0.wav", "--model_config", corpus / "model.yaml")
    assert infer(*flags, ckpt=tmp_path / "bare.pt") == 0
    assert f"Prediction   1: {references(corpus)[0]}\n" in capsys.readouterr().out


def test_other_labels_are_refused(infer, corpus, tmp_path):
    (tmp_path / "labels.txt").write_text("a\nb\nc\nd\n \n")
    with pytest.raises(UserError, match="trained on other labels"):
        infer("--transcribe_wav", corpus / "0.wav", "--labels", tmp_path / "labels.txt")


def test_unknown_flags_are_refused(infer, capsys):
    with pytest.raises(SystemExit) as stop:
        infer("--torchscript")
    assert stop.value.code == 2 and "--torchscript" in capsys.readouterr().err


def test_published_spellings_and_defaults():
    args = run_inference.parse_arguments("--val_manifest a --save_prediction p --fp16 -o out --local-rank 1".split())
    assert (args.val_manifests, args.save_predictions, args.amp, args.output_dir) == (["a"], "p", True, "out")
    args = run_inference.parse_arguments([])
    assert (args.batch_size, args.steps, args.warmup_steps, args.ema, args.amp) == (16, 0, 0, False, False)
    assert (args.output_dir, args.cudnn_benchmark, args.cpu, args.log_file) == ("results/", False, False, None)


# ------------------------------------------------------------------------------------------------------------ times
TONE = 0.12  # s a letter, as in conftest.py


def test_files_with_times(infer, manifest, corpus, tmp_path):
    assert infer(*manifest, "--output_format", "ctm", "json", "txt", "--pad_leading", 16) == 0
    for number, text in enumerate(references(corpus)):
        made = tmp_path / "out" / "transcripts" / str(number)
        words = json.loads(made.with_suffix(".json").read_text())["words"]
        hypothesis = made.with_suffix(".txt").read_text().strip()
        assert [word["text"] for word in words] == hypothesis.split()
        if hypothesis == text:
            for word, match in zip(words, re.finditer(r"\S+", text), strict=True):
                # frames put before the utterance do not count
                assert abs(word["start"] - match.start() * TONE) < 0.08 and abs(word["end"] - match.end() * TONE) < 0.08
        assert [line.split()[4] for line in made.with_suffix(".ctm").read_text().splitlines()] == hypothesis.split()
    assert len(list((tmp_path / "out" / "transcripts").iterdir())) == 36


def test_times_on_the_console(infer, corpus, capsys, tmp_path):
    assert infer("--transcribe_wav", corpus / "0.wav", "--times", "--ema") == 0
    text = references(corpus)[0]
    *_, head, first, second = capsys.readouterr().out.rstrip().split("\n")
    assert head == f"Prediction   1: {text}"
    for line, match in zip((first, second), re.finditer(r"\S+", text), strict=True):
        start, end, confidence, word = line.split()
        assert word == match[0] and 0 < float(confidence) <= 1
        assert abs(float(start) - match.start() * TONE) < 0.08 and abs(float(end) - match.end() * TONE) < 0.08
    assert not (tmp_path / "out" / "transcripts").exists()


def test_trimmed_silence_counts_in_times(infer, corpus, tmp_path):
    samples, rate = soundfile.read(corpus / "0.wav")
    silence = 1e-4 * np.random.default_rng(0).standard_normal(rate)
    soundfile.write(tmp_path / "late.wav", np.concatenate([silence, samples, silence]), rate)
    trim = "--override_config=input_val.audio_dataset.trim_silence=true"
    assert infer("--transcribe_wav", tmp_path / "late.wav", "--output_format", "json", trim) == 0
    found = json.loads((tmp_path / "out" / "transcripts" / "late.json").read_text())
    assert abs(found["words"][0]["start"] - 1) < 0.08 and found["duration"] == pytest.approx(2 + len(samples) / rate)


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--times",), "--times shows the words of single files"),
        (("--output_format", "srt", "--dali_device", "cpu"), "--output_format needs --dali_device none"),
    ],
)
def test_times_that_cannot_be_told(infer, manifest, flags, message):
    with pytest.raises(UserError, match=message):
        infer(*manifest, *flags)
