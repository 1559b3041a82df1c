"""What do the options of docs/accuracy.md bring? Small QuartzNets that differ in one option each, trained and tested.

    .venv/asr/bin/python benchmarks/asr_options.py --work FOLDER [--runs start continued adaptive ...]

The corpus is the synthetic one of data/embedded_speech.py with 1000 test utterances; model, batch and seed are the
quickstart's. So that minutes of training show something, there are two groups. "start" is the quickstart's training of
24 epochs; "continued" and the options after it go on from its weights, for 4 epochs each. Labels cannot change on the
way: "characters" and "subwords" begin with random weights, for 8 epochs each. The averages are those of the checkpoints
of "continued". Within a group all have the same number of updates; "consistency" makes two passes for
each, "continued twice" has as many passes, and twice the updates.

Test sets: clean, as made; coloured noise at 10 dB, of the kind that "noise" trains on, drawn anew; babble at 10 dB,
three voices of the dev set at once, which no run has trained on. Figures are word error rates in percent, of the moving
averages of the weights (EMA) unless the row says otherwise. The interval is that of the difference to the first of the
group, 95 % by paired bootstrap over utterances (Bisani and Ney, ICASSP 2004). One seed: how much another would move a
figure, the interval does not tell.

A run that is finished in FOLDER is not made again, and one that was interrupted goes on: to begin anew, take another
FOLDER. With --runs only these are trained; the table has what there is. --divide N makes all runs but "start" N times
shorter, for a machine with little time.
"""

import argparse
import csv
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from data.parallel import available_cores  # noqa: E402
from jasper_pt import run_inference  # noqa: E402
from jasper_pt.audio import SAMPLE_RATE, read_audio  # noqa: E402
from jasper_pt.augment import utterance_rng  # noqa: E402
from jasper_pt.average_checkpoints import of_epochs  # noqa: E402
from jasper_pt.manifest import Utterance, read_manifest, write_manifest  # noqa: E402
from jasper_pt.surroundings import add_noise, coloured_noise  # noqa: E402
from runkit import machine  # noqa: E402
from runkit.files import atomic_directory, read_json, write_json  # noqa: E402
from runkit.log import read_log  # noqa: E402
from runkit.tables import markdown_table  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "results"
SIZES = {"train": 2000, "dev": 200, "test": 1000}
SNR_DB = 10.0
AVERAGED = 4  # checkpoints, at the ends of the last epochs
VOCABULARY = 96
RESAMPLES = 10_000  # of the bootstrap
TEST_SETS = {"corpus": "clean", "coloured": "coloured noise", "babble": "babble"}  # by folder
SPEC, AUDIO = "input_train.filterbank_features.spec_augment", "input_train.audio_dataset"


class Training(NamedTuple):
    """What tells a run from others. start: the run from whose weights it goes on; baseline: the run to compare with."""

    epochs: int
    rate: float
    start: str = ""
    baseline: str = ""
    changes: tuple[str, ...] = ()  # of the YAML file
    flags: tuple[str, ...] = ()


Runs = dict[str, Training]
NOISE = ("noise_perturbation.p=0.5", "noise_perturbation.min_snr_db=0", "gain_perturbation.p=0.5")
continued = partial(Training, 4, 1e-3, "start", "continued")
RUNS: Runs = {
    "start": Training(24, 3e-3),
    "continued": Training(4, 1e-3, "start"),
    "continued twice": Training(8, 1e-3, "start", "continued"),
    "adaptive": continued((f"{SPEC}.adaptive_multiplicity=0.04", f"{SPEC}.adaptive_size=0.04")),
    "noise": continued(tuple(f"{AUDIO}.{change}" for change in NOISE)),
    "consistency": continued((), ("--consistency=0.2",)),
    "characters": Training(8, 3e-3),
    "subwords": Training(8, 3e-3, "", "characters", (), ("--labels={work}/labels.txt",)),
}


# ------------------------------------------------------------------------------------------------------------ data
def make_data(work: Path) -> None:
    """The corpus, its noisy test sets and the subword labels, unless they are there."""
    corpus = work / "corpus"
    python("-m", "data.embedded_speech", f"--output_dir={corpus}", *(f"--{name}={n}" for name, n in SIZES.items()))
    test = read_manifest(corpus / "librispeech-test-wav.json")
    voices = read_manifest(corpus / "librispeech-dev-wav.json")
    for kind in ("coloured", "babble"):
        if not (work / kind).exists():
            make_noisy(work / kind, test, voices if kind == "babble" else [])
    if not (work / "labels.txt").exists():
        python("-m", "jasper_pt.subwords", "--model_config=quartznet_quickstart", f"--dataset_dir={corpus}",
               f"--train_manifests={corpus}/librispeech-train-wav.json", f"--vocab_size={VOCABULARY}",
               f"--output={work}/labels.txt")  # fmt: skip


def make_noisy(folder: Path, test: Sequence[Utterance], voices: Sequence[Utterance]) -> None:
    """Writes the test utterances with noise at SNR_DB into a folder, with a manifest: babble of three `voices`, or
    coloured noise where there are none."""
    with atomic_directory(folder) as made:
        noisy = []
        for utterance in test:
            audio = read_audio(utterance.audio_path)
            rng = utterance_rng(0, 0, utterance.audio_path.name, f"test set {folder.name}")
            if voices:
                chosen = rng.choice(len(voices), 3, replace=False)
                noise = sum(np.resize(read_audio(voices[index].audio_path), len(audio)) for index in chosen)
            else:
                noise = coloured_noise(len(audio), rng.uniform(0, 2), SAMPLE_RATE, rng)
            path = made / utterance.audio_path.name
            loud = add_noise(audio, noise, SNR_DB)
            soundfile.write(path, loud / max(1.0, np.abs(loud).max()), SAMPLE_RATE, subtype="PCM_16")
            target = folder / path.name
            noisy.append(utterance._replace(audio_path=target, speeds=((target, 1.0, utterance.duration),)))
        write_manifest(made / "test.json", noisy, folder)


# ------------------------------------------------------------------------------------------------------------ runs
def python(*words: str) -> None:
    """Runs Python in the tree with these words."""
    environment = {"OMP_NUM_THREADS": str(available_cores()), "OMP_WAIT_POLICY": "PASSIVE"}
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True, env=os.environ | environment)


def train(name: str, runs: Runs, work: Path, seed: int) -> None:
    """Trains the run, or goes on with it, unless it is finished."""
    run = runs[name]
    if (work / name / "summary.json").exists():
        return
    corpus = work / "corpus"
    words = f"""--cpu --model_config quartznet_quickstart --seed {seed} --resume --dataset_dir {corpus}
        --train_manifests {corpus}/librispeech-train-wav.json --val_manifests {corpus}/librispeech-dev-wav.json
        --gpu_batch_size 16 --epochs {run.epochs} --warmup_epochs {0 if run.start else 1} --lr {run.rate}
        --lr_policy cosine --optimizer adamw --weight_decay 0.01 --ema 0.99 --eval_frequency 500
        --prediction_frequency 0 --log_frequency 125 --save_frequency 1 --keep_newest {AVERAGED}""".split()
    words += [f"--init_ckpt={final_checkpoint(run.start, runs, work)}"] if run.start else []
    words += [f"--override_config={change}" for change in run.changes] + [flag.format(work=work) for flag in run.flags]
    python("-m", "jasper_pt.run_training", f"--output_dir={work / name}", *words)


def final_checkpoint(name: str, runs: Runs, work: Path) -> Path:
    """The run's last checkpoint."""
    return work / name / f"QuartzNet_epoch{runs[name].epochs}_checkpoint.pt"


def averages(work: Path) -> dict[str, Path]:
    """Averages of the last checkpoints of "continued", made unless they are there; none where it has but one."""
    corpus, made = work / "corpus", {}
    if len(of_epochs(work / "continued")) < AVERAGED:
        return made
    statistics = [f"--train_manifests={corpus}/librispeech-train-wav.json", f"--dataset_dir={corpus}"]
    for name, flags in (("average", []), ("average, statistics recomputed", statistics)):
        made[name] = work / "averages" / f"{name.replace(', ', '_').replace(' ', '_')}.pt"
        if not made[name].exists():
            python("-m", "jasper_pt.average_checkpoints", str(work / "continued"), f"--last={AVERAGED}",
                   f"--output={made[name]}", *flags)  # fmt: skip
    return made


def errors_of(checkpoint: Path, ema: bool, test_set: str, work: Path) -> np.ndarray:
    """Errors and words [utterances, 2] of a checkpoint on a test set, recognised unless that was done before."""
    output = work / "tests" / f"{checkpoint.parent.name}-{checkpoint.stem}{'-ema' if ema else ''}-{test_set}"
    if not (output / "summary_infer.json").exists():
        folder, manifest = work / test_set, "test.json"
        if test_set == "corpus":
            manifest = "librispeech-test-wav.json"
        words = [f"--ckpt={checkpoint}", f"--dataset_dir={folder}", f"--val_manifests={folder / manifest}"]
        run_inference.main(["--cpu", *words, *["--ema"] * ema, f"--output_dir={output}"])
    with open(output / "utterances.tsv", encoding="utf-8", newline="") as stream:
        rows = csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
        kinds = ("substitutions", "insertions", "deletions")
        return np.array([[sum(int(row[kind]) for kind in kinds), int(row["words"])] for row in rows])


def wer(errors: np.ndarray) -> float:
    """Percent, of errors and words [..., utterances, 2]."""
    errors, words = np.moveaxis(errors.sum(-2), -1, 0)
    return 100 * errors / words


def interval(errors: np.ndarray, baseline: np.ndarray) -> str:
    """The middle 95 % of the difference of word error rates over resampled test sets."""
    rng = np.random.default_rng(0)
    draws = (rng.integers(len(errors), size=len(errors)) for _ in range(RESAMPLES))
    differences = [wer(errors[draw]) - wer(baseline[draw]) for draw in draws]
    low, high = np.percentile(differences, [2.5, 97.5])
    return f"{low:+.1f} to {high:+.1f}"


def minutes(name: str, work: Path) -> float:
    """Of training, evaluations left out; of the epochs in the log."""
    took = {}
    for record in read_log(work / name / "nvlog.json"):
        if record["type"] == "LOG" and "train_avg_took" in record["data"] and record["step"]:
            took[record["step"][0]] = record["data"]["train_avg_took"]
    return sum(took.values()) / 60


# ----------------------------------------------------------------------------------------------------------- table
def table(runs: Runs, work: Path) -> list[dict]:
    """A row for each run that is finished, and for the averages."""
    rows, results = [], {}

    def add(title: str, path: Path, run: str, baseline: str, ema: bool) -> None:
        errors = {test_set: errors_of(path, ema, test_set, work) for test_set in TEST_SETS}
        results[title] = errors
        row = {
            "run": title,
            "updates": read_json(work / run / "summary.json")["updates"],
            "minutes": minutes(run, work),
        }
        for test_set, name in TEST_SETS.items():
            row[name] = float(wer(errors[test_set]))
            compared = baseline and interval(errors[test_set], results[baseline][test_set])
            row[f"{name}, difference"] = compared or None
        rows.append(row)

    for name, run in runs.items():
        if (work / name / "summary.json").exists():
            add(name, final_checkpoint(name, runs, work), name, run.baseline, True)
            if name == "continued":
                add("continued, last weights", final_checkpoint(name, runs, work), name, name, False)
                for title, path in averages(work).items():
                    add(f"continued, {title}", path, name, name, False)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="corpus, runs and tests")
    parser.add_argument("--runs", nargs="*", choices=tuple(RUNS), default=list(RUNS))
    parser.add_argument("--divide", type=int, default=1, metavar="N", help="epochs by N, 1, 2 or 4")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "asr_options.json")
    options = parser.parse_args()
    if options.divide not in (1, 2, 4):
        parser.error(f"--divide {options.divide}: the epochs of all runs can be divided by 1, 2 and 4")
    runs = {
        name: run if name == "start" else run._replace(epochs=run.epochs // options.divide)
        for name, run in RUNS.items()
    }
    work = options.work.resolve()
    make_data(work)
    for name in options.runs:
        train(name, runs, work, options.seed)
    rows = table(runs, work)
    shown = [{k: f"{v:.2f}" if isinstance(v, float) else v for k, v in row.items()} for row in rows]
    print(markdown_table(shown))
    settings = {"seed": options.seed, "snr_db": SNR_DB, "sizes": SIZES}
    described = {name: run._asdict() for name, run in runs.items()}
    result = {"settings": settings, "runs": described, "machine": machine.describe(["torch", "numpy"]), "rows": rows}
    write_json(options.out, result)
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
