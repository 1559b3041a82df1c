"""What does packing give BERT's pre-training at sequence 512, next to padding and to Hugging Face Transformers?

    .venv/bert/bin/python benchmarks/bert_packing.py --records FOLDER [--precisions bf16,fp32] [--rounds 4]

FOLDER holds records of sequence 512 with 80 masked tokens at most (data/create_datasets_from_start.sh makes them).
Every contestant gets the same records in the same batches: ours packed, ours padded, Transformers padded. They take
turns as in bert_pretraining.py, each turn over all batches; the ratio is the median of the ratios within a round. On a
machine that others use too, --cpu_time counts CPU seconds instead of time; start it on one core (taskset -c 0) then.

The lengths decide what packing gives. Those of whole English Wikipedia have a mean of 254.4 of 512; a few long articles
give longer ones. So records are drawn such that the mean is --mean_length: full ones (the longest length) and others in
proportion, among each other as they are. --mean_length=0 takes the records as they come.

Model FLOPs count what has to be computed: real tokens, attention within a sequence, real masked positions; what is
computed for padding earns nobody credit. The input pipeline (reading, checking, decoding, packing) is timed by itself.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bert_pretraining import LEARNING_RATE, model_flops, our_step, their_step  # noqa: E402
from benchmarks.contest import PYTHON, Contestant, obey  # noqa: E402

LENGTH, PREDICTIONS = 512, 80
FIELDS = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights",
          "next_sentence_labels")  # fmt: skip


# ------------------------------------------------------------------------------------------------ the batches
def read_records(folder: str):
    """The fields of all records of a folder, in NumPy."""
    import numpy as np

    from bert_tf.input_pipeline import PretrainingRecords

    records = PretrainingRecords([folder], LENGTH, PREDICTIONS, seed=1)
    batches = list(records.evaluation_batches(500))
    return {name: np.concatenate([getattr(batch, name).numpy() for batch in batches]) for name in FIELDS}


def draw(lengths, count: int, mean_length: float):
    """Indices of `count` records whose lengths have about this mean, see the head of this file."""
    import numpy as np

    rng = np.random.default_rng(0)
    if not mean_length:
        return rng.permutation(len(lengths))[:count]
    full = lengths >= lengths.max()
    rest = lengths[~full].mean()
    if not rest < mean_length < lengths.max():
        raise SystemExit(f"error: --mean_length must lie between {rest:.1f} and {lengths.max()} for these records")
    n_full = round(count * (mean_length - rest) / (lengths.max() - rest))
    # The others by quantiles, so that a small sample has the distribution too.
    others = np.flatnonzero(~full)[np.argsort(lengths[~full], kind="stable")]
    places = (np.arange(count - n_full) + 0.5) / (count - n_full) * len(others)
    return rng.permutation(np.concatenate([rng.choice(np.flatnonzero(full), n_full), others[places.astype(int)]]))


def reading_rate(folder: str, batch: int, seconds: float = 5.0) -> float:
    """Sequences a second that one thread reads, checks, decodes and packs."""
    from bert_tf.input_pipeline import PretrainingRecords
    from bert_tf.packing import Rows

    records = PretrainingRecords([folder], LENGTH, PREDICTIONS, seed=1)
    stream = records.batches(0, batch, 1, pack=Rows(None, False))
    for _ in range(10):  # what was made ahead
        next(stream)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        next(stream)
        count += batch
    rate = count / (time.perf_counter() - began)
    stream.close()
    return rate


# ----------------------------------------------------------------------------------------------- contestants
def batches_of(options):
    """The drawn records, cut into batches of arrays by field."""
    import numpy as np

    arrays = dict(np.load(options.drawn))
    count = len(arrays["input_ids"]) // options.batch
    return [
        {name: value[i * options.batch : (i + 1) * options.batch] for name, value in arrays.items()}
        for i in range(count)
    ]


def build_ours(options, pack: bool):
    """All batches once by our training step."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    from bert_tf.input_pipeline import Batch, packed, packed_spec
    from bert_tf.packing import Rows

    _, step, product, versions = our_step(options, packed_spec() if pack else None)
    batches = [
        packed(arrays, Rows(None, False)) if pack else Batch(**{k: tf.constant(v) for k, v in arrays.items()})
        for arrays in batches_of(options)
    ]
    count = iter(range(10**9))

    def updates():
        for batch in batches:
            assert step([batch], LEARNING_RATE, next(count)).applied

    return updates, product, versions


def build_transformers(options):
    """All batches once by Transformers, padded to 512."""
    _, step, product, versions = their_step(options)
    import torch

    batches = []
    for arrays in batches_of(options):
        tensors = {name: torch.from_numpy(value).long() for name, value in arrays.items()}
        labels = torch.full_like(tensors["input_ids"], -100)
        rows, places = torch.nonzero(tensors["masked_lm_weights"], as_tuple=True)
        labels[rows, tensors["masked_lm_positions"][rows, places]] = tensors["masked_lm_ids"][rows, places]
        batches.append(
            {
                "input_ids": tensors["input_ids"],
                "attention_mask": tensors["input_mask"],
                "token_type_ids": tensors["segment_ids"],
                "labels": labels,
                "next_sentence_label": tensors["next_sentence_labels"],
            }
        )

    def updates():
        for inputs in batches:
            step(inputs)

    return updates, product, versions


def work(options) -> None:
    """A contestant: builds, warms up, then obeys."""
    if options.worker == "ours":
        updates, product, versions = build_ours(options, options.pack)
    else:
        updates, product, versions = build_transformers(options)
    updates()
    clock = time.process_time if options.cpu_time else time.perf_counter
    obey({"updates": updates, "gemm": product}, versions, clock)


# ------------------------------------------------------------------------------------------------- the match
def start(label: str, name: str, options, precision: str, drawn: Path, *more: str) -> Contestant:
    arguments = ["--worker", name, "--precision", precision, "--model", options.model, "--batch", str(options.batch),
                 "--drawn", str(drawn), *["--cpu_time"] * options.cpu_time, *more]  # fmt: skip
    return Contestant(label, name, __file__, arguments)


def match(options, precision: str, drawn: Path, flops: float, sequences: int) -> list[dict]:
    """One row a contestant: medians over rounds in which each takes its turn. flops: of all batches."""
    contestants = [
        start("ours packed", "ours", options, precision, drawn, "--pack"),
        start("ours padded", "ours", options, precision, drawn),
        start("transformers padded", "transformers", options, precision, drawn),
    ]
    seconds = {c.label: [] for c in contestants}
    gemm = []
    for round_ in range(options.rounds):
        for contestant in contestants:
            seconds[contestant.label] += contestant.measure("updates", 1)
            gemm += [2 * 4096.0**3 / s for s in contestant.measure("gemm", 3)]
        print(f"  {precision} round {round_ + 1}/{options.rounds}: "
              + "  ".join(f"{k} {sequences / v[-1]:.2f}/s" for k, v in seconds.items()), flush=True)  # fmt: skip
    for contestant in contestants:
        contestant.close()
    peak = sorted(gemm)[int(0.9 * (len(gemm) - 1))]  # the best the cores can do, not what they did for others
    rows = []
    for contestant in contestants:
        own, median = seconds[contestant.label], statistics.median(seconds[contestant.label])
        ratios = [s / o for s, o in zip(own, seconds["ours packed"], strict=True)]
        rows.append(
            {
                "contestant": contestant.label,
                "precision": precision,
                "sequences_per_second": sequences / median,
                "model_gflops": flops / median / 1e9,
                "gemm_peak_gflops": peak / 1e9,
                "model_flop_utilisation": flops / median / peak,
                "packed_is_faster_by": statistics.median(ratios),
                "versions": contestant.versions,
                "seconds": own,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", help="folder of records of sequence 512")
    parser.add_argument("--model", default="base", choices=["tiny", "base", "large"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--batches", type=int, default=4, help="batches a turn")
    parser.add_argument("--mean_length", type=float, default=254.4)
    parser.add_argument("--precisions", default="bf16,fp32")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--cpu_time", action="store_true", help="count CPU seconds")
    parser.add_argument("--out", type=Path, help="JSON results; default benchmarks/results/bert_packing_<model>.json")
    parser.add_argument("--worker", choices=list(PYTHON), help=argparse.SUPPRESS)
    parser.add_argument("--precision", help=argparse.SUPPRESS)
    parser.add_argument("--drawn", help=argparse.SUPPRESS)
    parser.add_argument("--pack", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    if not options.records:
        parser.error("--records is required")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import numpy as np

    from bert_tf.packing import best_fit_decreasing
    from runkit import machine
    from runkit.files import write_json
    from runkit.tables import text_table

    arrays = read_records(options.records)
    lengths = np.count_nonzero(arrays["input_mask"], axis=1)
    chosen = draw(lengths, options.batch * options.batches, options.mean_length)
    arrays = {name: value[chosen] for name, value in arrays.items()}
    own, predictions = lengths[chosen], np.count_nonzero(arrays["masked_lm_weights"], axis=1)
    config = json.loads((ROOT / "configs" / "bert" / f"{options.model}.json").read_text())
    flops = sum(model_flops(config, int(n), int(p)) for n, p in zip(own, predictions, strict=True))
    best_fit = [len(best_fit_decreasing(part, LENGTH)) for part in own.reshape(-1, options.batch)]
    statistics_of = {
        "records": len(lengths),
        "records_mean_length": float(lengths.mean()),
        "drawn_mean_length": float(own.mean()),
        "drawn_full_share": float((own == lengths.max()).mean()),
        "drawn_mean_predictions": float(predictions.mean()),
        "tokens_of_padded_places": float(own.mean() / LENGTH),
        "tokens_of_best_fit_places": float(own.sum() / LENGTH / sum(best_fit)),
        "read_and_packed_per_second": reading_rate(options.records, options.batch),
    }
    for key, value in statistics_of.items():
        print(f"{key}: {value:.6g}")
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder) / "drawn.npz"
        np.savez(drawn, **arrays)
        rows = [
            row
            for precision in options.precisions.split(",")
            for row in match(options, precision, drawn, flops, len(own))
        ]
    shown = ("contestant", "precision", "sequences_per_second", "model_gflops", "gemm_peak_gflops",
             "model_flop_utilisation", "packed_is_faster_by")  # fmt: skip
    print(f"BERT-{options.model}, sequence {LENGTH}, batch {options.batch}, mean length {own.mean():.1f}")
    print(text_table([[row[key] for key in shown] for row in rows], list(shown)))
    out = options.out or ROOT / "benchmarks" / "results" / f"bert_packing_{options.model}.json"
    settings = {
        key: getattr(options, key) for key in ("model", "batch", "batches", "mean_length", "rounds", "cpu_time")
    }
    write_json(out, {"settings": settings, "lengths": statistics_of, "machine": machine.describe(), "rows": rows})
    print(f"written: {out}")


if __name__ == "__main__":
    main()
