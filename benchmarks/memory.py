"""How much memory does a training process have at its peak, and how near is what --plan says of it?

    .venv/bert/bin/python benchmarks/memory.py [--runs base_bf16_128,quartznet_bf16] [--out FILE.json]

Each run is the training main itself in a process of its own, on made-up data of full length: a few updates, and a
checkpoint after each, so that one is being written while the next update is done. Its peak is the kernel's
(ru_maxrss of getrusage(2), here from wait4); the estimate is the line "together" of the same command with --plan.
The table belongs in docs/planning.md.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from bert_tf.records import PretrainingExample, TFRecordWriter, encode_example  # noqa: E402
from runkit import machine  # noqa: E402
from runkit.files import read_json, write_json  # noqa: E402
from runkit.tables import markdown_table  # noqa: E402

EPOCHS = 2  # of speech, an update each; after these the peak stays
SAMPLE_RATE = 16_000
UNITS = {"GB": 1e9, "MB": 1e6}
PACKAGES = {"bert": ("tensorflow-cpu", "tensorflow"), "asr": ("torch",)}


# ----------------------------------------------------------------------------------------------------------- the runs
def bert(
    model: str,
    precision: str,
    length: int,
    batch: int,
    accumulation: int = 1,
    recompute: bool = False,
    updates: int = 3,
) -> Callable[[Path], list[str]]:
    """A run of run_pretraining, as a function that makes its data in a folder and returns its command."""

    def command(folder: Path) -> list[str]:
        predictions, config = -(-length * 15 // 100), ROOT / "configs" / "bert" / f"{model}.json"
        write_records(folder / "records", length, predictions, json.loads(config.read_text())["vocab_size"])
        flags = {
            "bert_config_file": config, "input_files_dir": folder / "records", "output_dir": folder / "out",
            "precision": precision, "max_seq_length": length, "max_predictions_per_seq": predictions,
            "train_batch_size": batch, "num_accumulation_steps": accumulation, "num_train_steps": updates,
            "num_warmup_steps": 1, "save_checkpoints_steps": 1, "recompute_activations": recompute,
        }  # fmt: skip
        flags = [f"--{name}={value}" for name, value in flags.items()]
        return [python("bert"), "-m", "bert_tf.run_pretraining", "--do_train", *flags]

    return command


def asr(model: str, precision: str, seconds: float, batch: int) -> Callable[[Path], list[str]]:
    """The same for a run of run_training, with evaluation and averaged weights."""

    def command(folder: Path) -> list[str]:
        write_speech(folder, seconds, batch)
        flags = {
            "model_config": ROOT / "configs" / "asr" / f"{model}.yaml", "dataset_dir": folder,
            "train_manifests": folder / "speech.json", "val_manifests": folder / "speech.json",
            "output_dir": folder / "out", "precision": precision, "gpu_batch_size": batch, "ema": 0.999,
            "epochs": EPOCHS, "save_steps": 1, "eval_frequency": 1, "seed": 0,
            "override_config": "input_train.audio_dataset.speed_perturbation=null",
        }  # fmt: skip
        flags = [f"--{name}={value}" for name, value in flags.items()]
        return [python("asr"), "-m", "jasper_pt.run_training", "--cpu", *flags]

    return command


# fmt: off
RUNS = {
    "base_bf16_128": ("bert", "BERT-base, bf16, 16 x 128", bert("base", "bf16", 128, 16)),
    "base_fp32_512": ("bert", "BERT-base, fp32, 4 x 512", bert("base", "fp32", 512, 4)),
    "base_bf16_128_accumulated": ("bert", "the same, 2 micro-batches an update", bert("base", "bf16", 128, 16, 2)),
    "base_fp32_512_recomputed": (
        "bert", "BERT-base, fp32, 4 x 512, recomputed", bert("base", "fp32", 512, 4, recompute=True)
    ),
    "large_fp32_512_recomputed": (
        "bert", "BERT-large, fp32, 8 x 512, recomputed", bert("large", "fp32", 512, 8, recompute=True, updates=2)
    ),
    "quartznet_bf16": ("asr", "QuartzNet 15x5, bf16, 8 x 10 s", asr("quartznet15x5", "bf16", 10, 8)),
    "quartznet_fp32": ("asr", "QuartzNet 15x5, fp32, 8 x 10 s", asr("quartznet15x5", "fp32", 10, 8)),
    "jasper_fp32": ("asr", "Jasper 10x5dr, fp32, 4 x 5 s", asr("jasper10x5dr", "fp32", 5, 4)),
}
# fmt: on


def python(recipe: str) -> str:
    return os.environ.get(f"{recipe.upper()}_PYTHON", str(ROOT / ".venv" / recipe / "bin" / "python"))


# ---------------------------------------------------------------------------------------------------------- their data
def write_records(folder: Path, length: int, predictions: int, vocab_size: int, count: int = 64) -> None:
    """Records of random tokens without padding."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    with TFRecordWriter(folder / "random.tfrecord") as writer:
        for _ in range(count):
            ids = rng.integers(1000, vocab_size, length).tolist()
            positions = sorted(rng.permutation(length)[:predictions].tolist())
            labels = rng.integers(1000, vocab_size, predictions).tolist()
            example = PretrainingExample(
                ids, [1] * length, [0] * length, positions, labels, [1.0] * predictions, [int(rng.integers(2))]
            )
            writer.write(encode_example(example))


def write_speech(folder: Path, seconds: float, count: int) -> None:
    """Noise of one length, with fifteen letters a second as its transcript, and a manifest."""
    rng = np.random.default_rng(0)
    entries = []
    for number in range(count):
        with wave.open(str(folder / f"{number}.wav"), "wb") as stream:
            stream.setnchannels(1)
            stream.setsampwidth(2)
            stream.setframerate(SAMPLE_RATE)
            stream.writeframes(rng.integers(-3000, 3000, int(seconds * SAMPLE_RATE), np.int16).tobytes())
        text = "".join(rng.choice(list("etaoin shrdlu"), int(15 * seconds)))
        entries.append({"audio_filepath": f"{number}.wav", "duration": seconds, "text": text})
    (folder / "speech.json").write_text("\n".join(map(json.dumps, entries)))


# -------------------------------------------------------------------------------------------------------- the measure
def peak_of(command: list[str]) -> tuple[float, str]:
    """Peak memory (bytes) of a command, and what it printed. Raises SystemExit where it fails."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, text=True)
        _, status, usage = os.wait4(process.pid, 0)
        output.seek(0)
        text = output.read()
    process.returncode = os.waitstatus_to_exitcode(status)  # or Popen would wait for it again
    if process.returncode:
        raise SystemExit(f"{text}\nerror: exit code {process.returncode} of {' '.join(command)}")
    return usage.ru_maxrss * 1024.0, text


def measure(name: str) -> dict:
    """One row: estimate and peak of a run, in MB."""
    _, title, make = RUNS[name]
    with tempfile.TemporaryDirectory() as folder:
        command = make(Path(folder))
        began = time.monotonic()
        _, plan = peak_of([*command, "--plan"])
        took = time.monotonic() - began
        value, unit = re.search(r"^ *together +([\d.]+) (GB|MB)", plan, re.MULTILINE).groups()
        peak, _ = peak_of(command)
        summary = Path(folder, "out", "summary.json")
        rate = read_json(summary).get("sequences_per_second") if summary.exists() else None
    estimate = float(value) * UNITS[unit]
    return {
        "run": title,
        "estimate (MB)": round(estimate / 1e6),
        "measured (MB)": round(peak / 1e6),
        "difference (%)": round(100 * (estimate / peak - 1), 1),
        "--plan took (s)": round(took, 1),
        "sequences/s": rate and round(rate, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default=",".join(RUNS), help=f"of {', '.join(RUNS)}")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "memory.json")
    options = parser.parse_args()
    rows = []
    for name in options.runs.split(","):
        rows.append(measure(name))
        print(rows[-1], flush=True)
    print(markdown_table(rows))
    packages = {name: versions_of(name) for name in sorted({RUNS[name][0] for name in options.runs.split(",")})}
    write_json(options.out, {"machine": machine.describe(), "packages": packages, "rows": rows})
    print(f"written: {options.out}")


def versions_of(recipe: str) -> dict[str, str | None]:
    """What a recipe's interpreter runs with."""
    code = f"import json, runkit.machine as m; print(json.dumps(m.describe({PACKAGES[recipe]})['packages']))"
    done = subprocess.run([python(recipe), "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name: version for name, version in json.loads(done.stdout).items() if version}


if __name__ == "__main__":
    main()
