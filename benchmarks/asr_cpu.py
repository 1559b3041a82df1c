"""How many seconds of audio a second does the speech model recognise, and train on, next to plain PyTorch on this CPU?

    .venv/asr/bin/python benchmarks/asr_cpu.py [--model quartznet15x5] [--rounds 5] [--threads N] [--out FILE.json]

Both sides have identical weights. Plain is the network as anyone writes it: nn.Conv1d, nn.BatchNorm1d and nn.ReLU on
[B,C,T], bfloat16 by autocast. Ours is the same network in channels-last memory (for inference with BatchNorm folded),
as run_inference.py and run_training.py use it on a CPU. Utterances have full length, so that nobody masks anything.
Training is forward, CTC loss, backward and the NovoGrad update; inference ends with the log-probabilities.

Everything runs in one process. The contestants take turns, A B C D A B C D, since the speed of shared machines drifts
by half within minutes; figures are medians over rounds, and a ratio is the median of the ratios within a round. The bar
for ours is plain at its better precision. --latency N also times single utterances of N seconds.
"""

import argparse
import copy
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jasper_pt  # noqa: F401  before torch, which reads the settings made there

# isort: split
import torch

from jasper_pt.config import load_config
from jasper_pt.fast import FastModel
from jasper_pt.losses import ctc_loss
from jasper_pt.model import AcousticModel, build_model
from jasper_pt.novograd import create_optimizer
from runkit import machine
from runkit.files import write_json
from runkit.tables import text_table

RESULTS = Path(__file__).resolve().parent / "results"
PRECISIONS = ("fp32", "bf16")
FRAMES_A_SECOND = 100
LABELS_A_SECOND = 14  # characters, about those of LibriSpeech


def autocast(precision: str) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16")


def make_model(name: str) -> AcousticModel:
    """Random weights, with BatchNorm statistics of a few passes: activations have the usual sizes."""
    torch.manual_seed(0)
    model = build_model(load_config(name)).train()
    with torch.no_grad():
        for _ in range(5):
            model(torch.randn(4, 64, 256), torch.full((4,), 256))
    return model


# ------------------------------------------------------------------------------------------------- contestants
def inference_contestants(model: AcousticModel, batch: int, frames: int) -> dict[tuple[str, str], Callable]:
    """(side, precision) -> a function that recognises the batch and returns log-probabilities."""
    features, lengths = torch.randn(batch, 64, frames), torch.full((batch,), frames)
    plain = copy.deepcopy(model).eval()
    plain.layout = "ncl"

    def run_plain(precision):
        with torch.inference_mode(), autocast(precision):
            return plain(features, lengths)[0]

    contestants = {}
    for precision in PRECISIONS:
        fast = FastModel(model, precision)
        contestants["plain", precision] = lambda precision=precision: run_plain(precision)
        contestants["ours", precision] = lambda fast=fast: fast(features, lengths)[0]
    return contestants


def training_contestants(model: AcousticModel, batch: int, frames: int) -> dict[tuple[str, str], Callable]:
    """(side, precision) -> a function that makes one update and returns the loss before it."""
    features, lengths = torch.randn(batch, 64, frames), torch.full((batch,), frames)
    units = LABELS_A_SECOND * frames // FRAMES_A_SECOND
    targets, target_lengths = torch.randint(0, 28, (batch, units)), torch.full((batch,), units)

    def make(side, precision):
        network = copy.deepcopy(model).train()
        network.layout = "ncl" if side == "plain" else "channels_last"
        optimizer = create_optimizer("novograd", network.parameters(), lr=1e-4, weight_decay=1e-3)

        def update():
            with autocast(precision):
                log_probs, out_lengths = network(features, lengths)
            loss = ctc_loss(log_probs, out_lengths, targets, target_lengths)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return update

    return {(side, precision): make(side, precision) for precision in PRECISIONS for side in ("plain", "ours")}


# --------------------------------------------------------------------------------------------------- the match
def match(task: str, contestants: dict, audio_seconds: float, rounds: int, turn: float) -> list[dict]:
    """One row a contestant; in each round each runs for `turn` seconds at least."""
    first = {name: run().float() for name, run in contestants.items()}  # warm up; the results are compared
    seconds = {name: [] for name in contestants}
    for round_ in range(rounds):
        for name, run in contestants.items():
            passes, start = 0, time.perf_counter()
            while passes == 0 or time.perf_counter() - start < turn:
                run()
                passes += 1
            seconds[name].append((time.perf_counter() - start) / passes)
        speeds = (f"{' '.join(name)} {audio_seconds / values[-1]:.1f}" for name, values in seconds.items())
        print(f"  {task} round {round_ + 1}/{rounds}, audio s/s: {', '.join(speeds)}", flush=True)
    bar = min((name for name in contestants if name[0] == "plain"), key=lambda name: statistics.median(seconds[name]))
    reference = first["plain", "fp32"]
    return [
        {
            "task": task,
            "contestant": name[0],
            "precision": name[1],
            "audio_seconds_per_second": audio_seconds / statistics.median(values),
            "ms_a_pass": 1000 * statistics.median(values),
            "times_plain": statistics.median(p / s for p, s in zip(seconds[bar], values, strict=True)),
            "plain_is": bar[1],
            "difference": (first[name] - reference).abs().max().item(),  # of log-probabilities, or of the loss
            "seconds": values,
        }
        for name, values in seconds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="quartznet15x5", help="a file of configs/asr")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.08, help="of audio an utterance")
    parser.add_argument("--tasks", default="inference,training")
    parser.add_argument("--latency", type=float, action="append", default=[], help="seconds of a single utterance")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turn", type=float, default=2.0, help="least seconds of a contestant's turn")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, help="JSON; default benchmarks/results/asr_cpu_<model>.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = make_model(options.model)
    load = [os.getloadavg()]
    rows = []
    for task in options.tasks.split(","):
        make = {"inference": inference_contestants, "training": training_contestants}[task]
        frames = round(options.seconds * FRAMES_A_SECOND)
        contestants = make(model, options.batch, frames)
        rows += match(task, contestants, options.batch * frames / FRAMES_A_SECOND, options.rounds, options.turn)
    for seconds in options.latency:
        frames = round(seconds * FRAMES_A_SECOND)
        contestants = inference_contestants(model, 1, frames)
        rows += match(f"inference 1 x {seconds:g} s", contestants, seconds, options.rounds, options.turn)
    load.append(os.getloadavg())

    shown = [key for key in rows[0] if key != "seconds"]
    print(f"{options.model}, batch {options.batch} x {options.seconds:g} s, {options.threads} threads")
    print(text_table([[row[key] for key in shown] for row in rows], shown))
    out = options.out or RESULTS / f"asr_cpu_{options.model}.json"
    settings = {key: getattr(options, key) for key in ("model", "batch", "seconds", "latency", "rounds", "threads")}
    result = {"settings": settings, "machine": machine.describe(["torch"]), "load_averages": load, "rows": rows}
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, result)
    print(f"written: {out}")


if __name__ == "__main__":
    main()
