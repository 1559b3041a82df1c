"""What do two processes do that one does not, and for how long does a checkpoint hold training up?

    .venv/bert/bin/python benchmarks/scaling.py --part bert [--rounds 3] [--out FILE.json]
    .venv/bert/bin/python benchmarks/scaling.py --part speech
    .venv/bert/bin/python benchmarks/scaling.py --part checkpoint

bert, speech: the training mains, through horovodrun and torchrun, on made-up data of full length. Contestants take
turns, A B C A B C; figures are medians over the rounds, ratios medians of those within a round. Each run warms up first
(compilation; speech: its first epoch), and counts steady updates only. A process has one thread and core, but in the
last:

    alone      one process on one core, N micro-batches an update
    fixed      two processes, the same global batch: N/2 micro-batches each
    weak       two processes, the same batch a process: N micro-batches each, twice the global batch
    apart      two single runs at the same time that know nothing of each other: what the cores give, sharing memory
    threads    one process on both cores, N micro-batches an update

weak over twice alone is the scaling efficiency; weak over apart leaves what the exchange costs, as apart has all the
rest. On two cores with one memory that is all it can show: no link between machines, no GPU (docs/scaling.md).

checkpoint: BERT-base with saves on the way, next to the same run with the one at the end only. The stall of a save is
the difference of their checkpoint_stall_seconds by the number of saves more: waiting for the last write falls out. From
the log's lines comes what a save costs in all, as its write takes CPU from the updates beside it. Shares are stated for
a save every 100 updates, at the measured time of an update.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.memory import python, versions_of, write_records, write_speech  # noqa: E402
from runkit import machine  # noqa: E402
from runkit.errors import UserError, run_main  # noqa: E402
from runkit.files import read_json, write_json  # noqa: E402
from runkit.log import read_log  # noqa: E402
from runkit.tables import rounded, text_table  # noqa: E402

STATED_INTERVAL = 100  # updates between saves, for which shares are stated
LENGTH, PREDICTIONS = 128, 20
SPEECH_SECONDS = 5.0


class Shape(NamedTuple):
    """How a contestant runs. cores: of each run. runs: at the same time. share: of the micro-batches of an update."""

    processes: int
    cores: int
    runs: int = 1
    share: float = 1.0


CONTESTANTS = {
    "alone": Shape(1, 1),
    "fixed": Shape(2, 2, share=0.5),
    "weak": Shape(2, 2),
    "apart": Shape(1, 1, runs=2),
    "threads": Shape(1, 2),
}


# ------------------------------------------------------------------------------------------------------- the commands
def bert_command(
    options: argparse.Namespace, data: Path, output: Path, processes: int, accumulation: int, updates: int, save: int
) -> list[str]:
    """A run of run_pretraining on records in `data`."""
    flags = {
        "bert_config_file": ROOT / "configs" / "bert" / f"{options.bert_model}.json", "input_files_dir": data,
        "output_dir": output, "precision": "bf16", "max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS,
        "train_batch_size": options.batch, "num_accumulation_steps": accumulation, "num_train_steps": updates,
        "num_warmup_steps": 1, "save_checkpoints_steps": save,
    }  # fmt: skip
    launcher = [python("bert")]
    if processes > 1:
        launcher = [str(Path(python("bert")).parent / "horovodrun"), "--gloo", "-np", str(processes), python("bert")]
    main = ["-m", "bert_tf.run_pretraining", "--do_train", *["--horovod"] * (processes > 1)]
    return [*launcher, *main, *(f"--{name}={value}" for name, value in flags.items())]


def speech_command(
    options: argparse.Namespace, data: Path, output: Path, processes: int, accumulation: int, epochs: int
) -> list[str]:
    """A run of run_training on the manifest in `data`; its last epochs but the first are measured."""
    flags = {
        "model_config": ROOT / "configs" / "asr" / f"{options.speech_model}.yaml", "dataset_dir": data,
        "train_manifests": data / "speech.json", "val_manifests": data / "speech.json", "output_dir": output,
        "precision": "bf16", "gpu_batch_size": options.batch, "grad_accumulation": accumulation, "epochs": epochs,
        "benchmark_epochs_num": epochs - 1, "eval_frequency": 10**6, "seed": 0,
        "override_config": "input_train.audio_dataset.speed_perturbation=null",
    }  # fmt: skip
    launcher = [python("asr"), "-m"]
    if processes > 1:
        launcher += ["torch.distributed.run", "--standalone", "--nproc_per_node", str(processes), "-m"]
    main = ["jasper_pt.run_training", "--cpu", "--no_save"]
    return [*launcher, *main, *(f"--{name}={value}" for name, value in flags.items())]


def start(command: Sequence[str], cores: set[int], threads: int, log: Path) -> subprocess.Popen:
    """A run on these cores, with so many threads a process; what it prints goes to `log`."""
    count = str(threads)
    variables = {"OMP_NUM_THREADS": count, "TF_NUM_INTRAOP_THREADS": count, "TF_NUM_INTEROP_THREADS": "1"}
    variables |= {"TF_CPP_MIN_LOG_LEVEL": "2", "OMP_WAIT_POLICY": "PASSIVE"}
    # horovodrun looks for its tools beside the interpreter
    variables["PATH"] = os.pathsep.join([str(Path(command[0]).parent), os.environ.get("PATH", os.defpath)])
    with open(log, "w") as stream:
        return subprocess.Popen(
            command, cwd=ROOT, env=os.environ | variables, stdout=stream, stderr=subprocess.STDOUT,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip


def finish(process: subprocess.Popen, log: Path) -> None:
    """Waits for a run. Raises UserError with what it printed when it failed."""
    if code := process.wait():
        raise UserError(f"exit code {code} of {' '.join(map(str, process.args))}:\n{log.read_text()[-3000:]}")


# --------------------------------------------------------------------------------------------------------- throughput
def rate_of(shape: Shape, command: Callable[[Path], list[str]], key: str, folder: Path) -> float:
    """Examples a second of a contestant, over all its runs; command: of the folder that it writes to."""
    own = sorted(os.sched_getaffinity(0))[:2]
    runs = []
    for number in range(shape.runs):
        output, log = folder / f"run{number}", folder / f"run{number}.log"
        cores = set(own) if shape.cores == 2 else {own[number]}
        process = start(command(output), cores, shape.cores // shape.processes, log)
        runs.append((process, log, output))
    try:
        for process, log, _ in runs:
            finish(process, log)
    finally:
        for process, _, _ in runs:
            if process.poll() is None:  # the other run has failed
                process.terminate()
                process.wait()
    return sum(read_json(output / "summary.json")[key] for _, _, output in runs)


def throughput(options: argparse.Namespace, data: Path) -> list[dict[str, Any]]:
    """One row a contestant: medians over rounds in which each takes its turn."""
    rates: dict[str, list[float]] = {name: [] for name in options.contestants}
    for round_ in range(options.rounds):
        for name in rates:
            shape = CONTESTANTS[name]
            accumulation = max(1, round(options.accumulation * shape.share))

            def command(output: Path, shape: Shape = shape, accumulation: int = accumulation) -> list[str]:
                arguments = (options, data, output, shape.processes, accumulation, options.updates)
                return (
                    bert_command(*arguments, options.updates) if options.part == "bert" else speech_command(*arguments)
                )

            key = {"bert": "sequences_per_second", "speech": "train_utterances_per_second"}[options.part]
            with tempfile.TemporaryDirectory() as folder:
                rates[name].append(rate_of(shape, command, key, Path(folder)))
            print(f"  round {round_ + 1}/{options.rounds}: {name} {rates[name][-1]:.3f}/s", flush=True)
    return [throughput_row(name, rates, options) for name in rates]


def throughput_row(name: str, rates: dict[str, list[float]], options: argparse.Namespace) -> dict[str, Any]:
    """A contestant's figures. Ratios to those that did not run are missing."""
    shape, own = CONTESTANTS[name], rates[name]

    def ratio(other: str, factor: float = 1.0) -> float | None:
        if other not in rates:
            return None
        return statistics.median(mine / (factor * theirs) for mine, theirs in zip(own, rates[other], strict=True))

    return {
        "contestant": name,
        "processes": shape.processes * shape.runs,
        "global_batch": round(options.batch * options.accumulation * shape.share) * shape.processes,
        "examples_per_second": statistics.median(own),
        "over_alone": ratio("alone"),
        "efficiency": ratio("alone", shape.cores * shape.runs),
        "over_apart": ratio("apart"),
        "rates": own,
    }


# -------------------------------------------------------------------------------------------------------- checkpoints
def step_seconds(log_path: Path, global_batch: int) -> list[float]:
    """Wall seconds of each update, the snapshot before it included, from the lines of a run's log."""
    lines = [line for line in read_log(log_path) if line["type"] == "LOG" and isinstance(line["step"], int)]
    return [global_batch / line["data"]["throughput_train"] for line in lines if "throughput_train" in line["data"]]


def slowed_seconds(steps: Sequence[float], interval: int) -> list[float]:
    """What each save on the way cost in all: the updates up to the next one, beyond as many of the undisturbed.

    steps: seconds of each update of a run with a save every `interval`. Those up to the first save are undisturbed, but
    for the first three, which compile. The save at the end is followed by nothing.
    """
    usual = statistics.median(steps[3:interval])
    chunks = [steps[at : at + interval] for at in range(interval, len(steps) - interval + 1, interval)]
    return [sum(chunk) - usual * len(chunk) for chunk in chunks]


def checkpoint_row(options: argparse.Namespace, data: Path) -> dict[str, Any]:
    """The stall of a save and its share of the time, from rounds of a run with saves and one without."""
    saves = options.updates // options.interval
    stalls: dict[int, list[float]] = {options.interval: [], options.updates: []}
    seconds, slowed, n_bytes = [], [], 0
    for round_ in range(options.rounds):
        for save, found in stalls.items():
            with tempfile.TemporaryDirectory() as folder:
                output, log = Path(folder) / "out", Path(folder) / "out.log"
                command = bert_command(options, data, output, 1, options.accumulation, options.updates, save)
                cores = set(sorted(os.sched_getaffinity(0))[:2])
                finish(start(command, cores, 2, log), log)
                summary = read_json(output / "summary.json")
                steps = step_seconds(output / "bert_dllog.json", options.batch * options.accumulation)
                n_bytes = sum(path.stat().st_size for path in output.glob(f"model.ckpt-{options.updates}.*"))
            found.append(summary["checkpoint_stall_seconds"])
            if save == options.interval:
                slowed += slowed_seconds(steps, save)
            else:
                seconds.append(statistics.median(steps[3:]))
            print(
                f"  round {round_ + 1}/{options.rounds}: save every {save}: stalled {found[-1]:.2f} s in all",
                flush=True,
            )
    many, one = (statistics.median(found) for found in stalls.values())
    stall, update, cost = (many - one) / (saves - 1), statistics.median(seconds), statistics.median(slowed)
    return {
        "model": options.bert_model,
        "checkpoint_bytes": n_bytes,
        "seconds_per_update": update,
        "stalled_seconds_per_save": stall,
        "stalled_share": stall / (STATED_INTERVAL * update + stall),
        "stalled_and_slowed_seconds_per_save": cost,
        "stalled_and_slowed_share": cost / (STATED_INTERVAL * update + cost),
        "stated_interval": STATED_INTERVAL,
        "stalled_seconds": {f"every {save}": found for save, found in stalls.items()},
        "slowed_seconds": slowed,
        "seconds": seconds,
    }


# -------------------------------------------------------------------------------------------------------------- main
DEFAULTS = {  # batch, accumulation, updates (speech: epochs of four updates of "weak")
    "bert": (8, 2, 12),
    "speech": (4, 2, 3),
    "checkpoint": (16, 1, 30),
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", required=True, choices=list(DEFAULTS))
    parser.add_argument("--bert_model", default="base", choices=["tiny", "base", "large"])
    parser.add_argument("--speech_model", default="quartznet15x5", help="a file of configs/asr")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS), help="which of them, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, help="examples of a micro-batch; default 8, 4 and 16")
    parser.add_argument("--accumulation", type=int, help="micro-batches an update of one process; default 2, 2 and 1")
    parser.add_argument("--updates", type=int, help="of a run; speech: epochs; default 12, 3 and 30")
    parser.add_argument("--interval", type=int, default=10, help="checkpoint: updates between saves")
    parser.add_argument("--out", type=Path, help="JSON; default benchmarks/results/scaling_<part>.json")
    options = parser.parse_args()
    for name, value in zip(("batch", "accumulation", "updates"), DEFAULTS[options.part], strict=True):
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.contestants = options.contestants.split(",")
    check(options)
    return options


def check(options: argparse.Namespace) -> None:
    """Raises UserError for what would waste a run."""
    if unknown := [name for name in options.contestants if name not in CONTESTANTS]:
        raise UserError(f"--contestants: {', '.join(unknown)} unknown; there are {', '.join(CONTESTANTS)}")
    if options.part != "checkpoint" and options.accumulation % 2:
        raise UserError(f"--accumulation {options.accumulation} cannot be halved for two processes: give an even one")
    if options.part == "speech" and options.updates < 2:
        raise UserError("--updates: the first epoch warms up, so that two are needed")
    if options.part == "checkpoint" and (options.updates % options.interval or options.updates < 3 * options.interval):
        raise UserError(
            f"--updates {options.updates}: three times --interval {options.interval} at least, and a multiple"
        )
    if options.part == "checkpoint" and options.interval < 5:
        raise UserError("--interval: the first updates compile, so that five are needed")
    if len(os.sched_getaffinity(0)) < 2:
        raise UserError("two cores are needed")


def main() -> None:
    options = parse_arguments()
    load = [os.getloadavg()]
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        if options.part == "speech":
            data.mkdir()
            # Four updates an epoch of the largest global batch
            write_speech(data, SPEECH_SECONDS, 4 * 2 * options.batch * options.accumulation)
        else:
            config = json.loads((ROOT / "configs" / "bert" / f"{options.bert_model}.json").read_text())
            write_records(data, LENGTH, PREDICTIONS, config["vocab_size"])
        rows = [checkpoint_row(options, data)] if options.part == "checkpoint" else throughput(options, data)
    load.append(os.getloadavg())
    hidden = ("rates", "seconds", "stalled_seconds", "slowed_seconds")
    shown = [{key: value for key, value in row.items() if key not in hidden} for row in rows]
    print(text_table(rounded(shown, 3)))
    recipe = "asr" if options.part == "speech" else "bert"
    result = {
        "settings": {key: value for key, value in vars(options).items() if key != "out"},
        "machine": machine.describe(),
        "packages": versions_of(recipe) | (machine.describe(["horovod"])["packages"] if options.part == "bert" else {}),
        "load_averages": load,
        "rows": rows,
    }
    out = options.out or ROOT / "benchmarks" / "results" / f"scaling_{options.part}.json"
    write_json(out, result)
    print(f"written: {out}")


if __name__ == "__main__":
    run_main(main)
