"""How fast is one pre-training update of BERT, next to Hugging Face Transformers on the same machine, minute and cores?

    .venv/bert/bin/python benchmarks/bert_pretraining.py [--precisions bf16,fp32] [--rounds 6] [--out FILE.json]

Each contestant runs in a process of its own (ours in .venv/bert, PyTorch in .venv/dev), built and warmed up before
anything is timed. Then they take turns, A B A B, since the speed of shared machines drifts by half within minutes; the
figures are medians over the rounds, and the ratio is the median of the ratios within a round. One update = forward,
backward, clipping to a global norm of 1, optimizer step (ours NVLAMB; theirs AdamW, fused), dropout 0.1.

Model FLOPs count the products of one update, three times those of a forward pass: linear layers, attention, the MLM
head on the masked positions. (Transformers computes the head on all positions; that work earns it no credit.) The peak
is the best large matrix product of either framework, measured in the same run.
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.contest import PYTHON, Contestant, obey  # noqa: E402

LEARNING_RATE = 1e-4


# ----------------------------------------------------------------------------------------------- contestants
def make_inputs(vocab: int, batch: int, length: int, predictions: int):
    """Full-length sequences of random ids: there is no padding to save work on."""
    import numpy as np

    rng = np.random.default_rng(0)
    ids = rng.integers(1000, vocab, (batch, length), dtype=np.int32)
    positions = np.sort(np.stack([rng.permutation(length)[:predictions] for _ in range(batch)]), -1).astype(np.int32)
    labels = rng.integers(1000, vocab, (batch, predictions), dtype=np.int32)
    return ids, positions, labels, rng.integers(0, 2, batch, dtype=np.int32)


def our_step(options, batch_spec=None):
    """(configuration, our training step as run_pretraining.py makes it, a large product, versions)."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    from bert_tf.distributed import Distributed
    from bert_tf.losses import Pretraining
    from bert_tf.model import BertConfig, BertForPreTraining
    from bert_tf.optimization import create_optimizer
    from bert_tf.precision import LossScale, Precision
    from bert_tf.train_step import TrainStep
    from bert_tf.weights import ComputeWeights

    precision = Precision.from_name(options.precision)
    config = BertConfig.from_json_file(ROOT / "configs" / "bert" / f"{options.model}.json")
    model = BertForPreTraining(config, seed=1)
    weights = ComputeWeights(model.variables, precision.compute_dtype)
    step = TrainStep(
        model,
        Pretraining(),
        weights,
        create_optimizer("lamb", weights.masters),
        LossScale(precision.loss_scaling),
        Distributed(),
        batch_spec=batch_spec,
    )
    a = tf.cast(tf.random.normal([4096, 4096]), precision.compute_dtype)
    product = tf.function(lambda: tf.matmul(a, a), autograph=False)
    return config, step, lambda: product()[0, 0].numpy(), f"tensorflow {tf.__version__}"


def build_ours(options):
    """Updates of one batch by our training step."""
    config, step, product, versions = our_step(options)
    import numpy as np
    import tensorflow as tf

    from bert_tf.input_pipeline import Batch

    ids, positions, labels, nsp = make_inputs(config.vocab_size, options.batch, options.length, options.predictions)
    arrays = (ids, np.ones_like(ids), np.zeros_like(ids), positions, labels, np.ones(labels.shape, np.float32), nsp)
    batch = Batch(*map(tf.constant, arrays))
    count = iter(range(10**9))

    def update():
        assert step([batch], LEARNING_RATE, next(count)).applied

    return update, product, versions


def their_step(options):
    """(configuration, an update from inputs by BertForPreTraining of transformers under PyTorch, a large product,
    versions); autocast for bf16."""
    import torch
    import transformers

    torch.manual_seed(1)
    values = json.loads((ROOT / "configs" / "bert" / f"{options.model}.json").read_text())
    model = transformers.BertForPreTraining(transformers.BertConfig(**values)).train()
    if options.compile:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=True)

    def step(inputs):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.precision == "bf16"):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    a = torch.randn(4096, 4096, dtype=torch.bfloat16 if options.precision == "bf16" else torch.float32)
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return values, step, lambda: float((a @ a)[0, 0]), versions


def build_transformers(options):
    """Updates of one batch by transformers."""
    values, step, product, versions = their_step(options)
    import torch

    ids, positions, labels, nsp = (
        torch.from_numpy(a).long()
        for a in make_inputs(values["vocab_size"], options.batch, options.length, options.predictions)
    )
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.zeros_like(ids),
        "labels": torch.full_like(ids, -100).scatter_(1, positions, labels),
        "next_sentence_label": nsp,
    }
    return lambda: step(inputs), product, versions


def work(options) -> None:
    """A contestant: builds, warms up, then obeys."""
    update, gemm, versions = {"ours": build_ours, "transformers": build_transformers}[options.worker](options)
    update()
    obey({"update": update, "gemm": gemm}, versions)


def start(name: str, options, precision: str, compiled: bool = False) -> Contestant:
    arguments = ["--worker", name, "--precision", precision, "--model", options.model]
    for key in ("batch", "length", "predictions"):
        arguments += [f"--{key}", str(getattr(options, key))]
    label = name + (" compiled" if compiled else "")
    return Contestant(label, name, __file__, arguments + ["--compile"] * compiled)


# ------------------------------------------------------------------------------------------------- the match
def model_flops(config: dict, length: int, predictions: int) -> float:
    """Floating-point operations of one training update for one sequence (two per multiply-add)."""
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    linear = layers * (4 * hidden * hidden + 2 * hidden * inner) * length
    attention = layers * 2 * length * length * hidden
    heads = predictions * (hidden * hidden + hidden * config["vocab_size"]) + hidden * hidden + 2 * hidden
    return 3 * 2.0 * (linear + attention + heads)


def match(options, precision: str) -> list[dict]:
    """One row a contestant: medians over rounds in which each takes its turn."""
    config = json.loads((ROOT / "configs" / "bert" / f"{options.model}.json").read_text())
    flops = model_flops(config, options.length, options.predictions) * options.batch
    contestants = [start("ours", options, precision), start("transformers", options, precision)]
    if options.compiled:
        contestants.append(start("transformers", options, precision, compiled=True))
    seconds = {c.label: [] for c in contestants}
    gemm = []
    for contestant in contestants:
        contestant.measure("update", 2)
        contestant.measure("gemm", 2)
    for round_ in range(options.rounds):
        for contestant in contestants:
            seconds[contestant.label].append(statistics.median(contestant.measure("update", options.updates)))
            gemm += [2 * 4096.0**3 / s for s in contestant.measure("gemm", 3)]
        print(f"  {precision} round {round_ + 1}/{options.rounds}: "
              + "  ".join(f"{k} {options.batch / v[-1]:.2f}/s" for k, v in seconds.items()), flush=True)  # fmt: skip
    peaks = {contestant.label: contestant.peak() for contestant in contestants}
    for contestant in contestants:
        contestant.close()
    # The best a core complex can do, not what it did while somebody else had it: upper decile.
    peak = sorted(gemm)[int(0.9 * (len(gemm) - 1))]
    rows = []
    for contestant in contestants:
        median = statistics.median(seconds[contestant.label])
        ratios = [s / o for s, o in zip(seconds[contestant.label], seconds["ours"], strict=True)]
        rows.append(
            {
                "contestant": contestant.label,
                "precision": precision,
                "sequences_per_second": options.batch / median,
                "ms_per_update": 1000 * median,
                "model_gflops": flops / median / 1e9,
                "gemm_peak_gflops": peak / 1e9,
                "model_flop_utilisation": flops / median / peak,
                "ours_is_faster_by": statistics.median(ratios),
                "peak_memory_mb": peaks[contestant.label] / 1e6,  # with the large product for the GEMM peak
                "versions": contestant.versions,
                "seconds": seconds[contestant.label],
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="base", choices=["tiny", "base", "large"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--predictions", type=int, default=20)
    parser.add_argument("--precisions", default="bf16,fp32")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--updates", type=int, default=3, help="updates a turn")
    parser.add_argument("--compiled", action="store_true", help="also torch.compile'd transformers")
    parser.add_argument(
        "--out", type=Path, help="JSON results; default benchmarks/results/bert_pretraining_<model>.json"
    )
    parser.add_argument("--worker", choices=list(PYTHON), help=argparse.SUPPRESS)
    parser.add_argument("--precision", help=argparse.SUPPRESS)
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return

    from runkit import machine
    from runkit.files import write_json
    from runkit.tables import text_table

    rows = [row for precision in options.precisions.split(",") for row in match(options, precision)]
    shown = ("contestant", "precision", "sequences_per_second", "model_gflops", "gemm_peak_gflops",
             "model_flop_utilisation", "ours_is_faster_by", "peak_memory_mb")  # fmt: skip
    print(f"BERT-{options.model}, sequence {options.length}, batch {options.batch}")
    print(text_table([[row[key] for key in shown] for row in rows], list(shown)))
    out = options.out or ROOT / "benchmarks" / "results" / f"bert_pretraining_{options.model}_{options.length}.json"
    settings = {key: getattr(options, key) for key in ("model", "batch", "length", "predictions", "rounds", "updates")}
    write_json(out, {"settings": settings, "machine": machine.describe(), "rows": rows})
    print(f"written: {out}")


if __name__ == "__main__":
    main()
