"""How fast are fine-tuning and inference of BERT on real texts, next to Hugging Face Transformers in the same minutes?

    .venv/bert/bin/python benchmarks/bert_finetuning.py --squad_file FILE.json --mrpc_dir DIR --vocab_file FILE

Two tasks: SQuAD (length 384, stride 128, batch 8) and MRPC (length 128, batch 32 in training, 8 in inference). Every
contestant works through the same features, made once by our code: ours in length buckets; Transformers in a random
order, padded to the maximum (the default of its example scripts) and padded to the longest of each batch (its dynamic
padding). Weights are random, which changes no speed. Training is forward, backward, clipping to a global norm of 1 and
an optimizer step (ours Adam; theirs AdamW, fused), dropout 0.1, bf16 by autocast on their side; for inference their
whole model is converted to bf16, which is faster there than autocast.

The contestants take turns, A B C A B C. A turn is one pass over a sample of the features, the same for all; figures are
medians over the rounds, ratios medians of the ratios within a round.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.contest import Contestant, obey  # noqa: E402

LEARNING_RATE = 1e-5
# features in a pass: as many as keep a turn of the slowest near a minute on two cores
TASKS = {
    "squad": {"length": 384, "train_batch": 8, "predict_batch": 8, "train_sample": 48, "predict_sample": 512},
    "mrpc": {"length": 128, "train_batch": 32, "predict_batch": 8, "train_sample": 128, "predict_sample": 512},
}
CONTESTANTS = {  # label: environment, how batches are padded
    "ours": ("ours", "buckets"),
    "transformers, padded to the maximum": ("transformers", "maximum"),
    "transformers, dynamic padding": ("transformers", "longest"),
}


# --------------------------------------------------------------------------------------------------- features
def make_features(task: str, options, path: Path) -> None:
    """Writes a sample of the task's features to an .npz: lengths, tokens and segments end to end, labels."""
    from bert_tf.tokenization import FullTokenizer

    tokenizer, settings = FullTokenizer(options.vocab_file), TASKS[task]
    if task == "squad":
        from bert_tf.squad import convert_examples, read_examples

        examples = read_examples(options.squad_file, True, False, print)
        windows = convert_examples(
            examples, tokenizer, max_seq_length=384, doc_stride=128, max_query_length=64, is_training=True
        )
        features = [window.feature for window in windows]
    else:
        from bert_tf import glue

        examples = glue.read_examples(glue.TASKS["MRPC"], options.mrpc_dir, "train")
        features = glue.convert_examples(examples, glue.TASKS["MRPC"], tokenizer, settings["length"])
    count = max(settings["train_sample"], settings["predict_sample"])
    chosen = np.random.default_rng(0).permutation(len(features))[:count]
    features = [features[i] for i in chosen]
    np.savez(
        path,
        lengths=[len(f.input_ids) for f in features],
        ids=np.concatenate([f.input_ids for f in features]),
        segments=np.concatenate([f.segment_ids for f in features]),
        labels=np.array([f.label for f in features]),
    )


def load_features(path: str, count: int) -> list[tuple]:
    """The first `count` features: (ids, segments, label)."""
    data = np.load(path)
    starts = np.concatenate([[0], np.cumsum(data["lengths"])])
    return [
        (data["ids"][a:b], data["segments"][a:b], data["labels"][i])
        for i, (a, b) in enumerate(itertools.pairwise(starts))
    ][:count]


# ------------------------------------------------------------------------------------------------ contestants
def build_ours(options):
    """Our training step and prediction, as the mains make them."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    from bert_tf import kernels
    from bert_tf.distributed import Distributed
    from bert_tf.features import (
        CLASS,
        SPAN,
        FeatureSet,
        TrainingOrder,
        batch_spec,
        choose_buckets,
        prediction_batches,
        training_batches,
    )
    from bert_tf.finetuning import FREE_BUCKET_STEP
    from bert_tf.losses import Classification, QuestionAnswering
    from bert_tf.model import BertConfig, BertForClassification, BertForQuestionAnswering
    from bert_tf.optimization import create_optimizer
    from bert_tf.precision import LossScale, Precision
    from bert_tf.records import Feature
    from bert_tf.train_step import TrainStep, create_prediction
    from bert_tf.weights import ComputeWeights

    precision, settings = Precision.from_name(options.precision), TASKS[options.task]
    config = BertConfig.from_json_file(ROOT / "configs" / "bert" / f"{options.model}.json")
    if options.task == "squad":
        model, objective, kind = BertForQuestionAnswering(config, 1), QuestionAnswering(), SPAN
    else:
        model, objective, kind = BertForClassification(config, 2, 1), Classification(), CLASS
    weights = ComputeWeights(model.variables, precision.compute_dtype)
    step = TrainStep(
        model,
        objective,
        weights,
        create_optimizer("adam", weights.masters),
        LossScale(precision.loss_scaling),
        Distributed(),
        batch_spec=batch_spec(kind),
    )

    def features(count):
        return FeatureSet((Feature(*f) for f in load_features(options.features, count)), kind)

    train_set, predict_set = features(settings["train_sample"]), features(settings["predict_sample"])
    updates = len(train_set) // settings["train_batch"]
    order = TrainingOrder(train_set.lengths, 1, settings["train_batch"], updates, by_length=True)
    limits = () if kernels.library() is None else (settings["length"], FREE_BUCKET_STEP)  # as finetuning.buckets_of
    train_buckets = choose_buckets(train_set.lengths, settings["length"], *limits)
    predict_buckets = choose_buckets(predict_set.lengths, settings["length"], *limits)
    function = create_prediction(model, objective, weights, batch_spec(kind))

    def train():
        batches = training_batches(train_set, order, train_buckets, 0, settings["train_batch"])
        for update in range(updates):
            assert step(next(batches), LEARNING_RATE, update).applied

    def predict():
        batches = prediction_batches(
            predict_set,
            predict_buckets,
            settings["predict_batch"],
            settings["length"],
            fill_up=kernels.library() is None,
        )
        for _, batch in batches:
            function(batch)[0].numpy()

    return train, predict, f"tensorflow {tf.__version__}"


def build_transformers(options):
    """BertForQuestionAnswering or BertForSequenceClassification under PyTorch."""
    import torch
    import transformers

    torch.manual_seed(1)
    settings = TASKS[options.task]
    config = transformers.BertConfig(**json.loads((ROOT / "configs" / "bert" / f"{options.model}.json").read_text()))
    kind = {"squad": transformers.BertForQuestionAnswering, "mrpc": transformers.BertForSequenceClassification}
    model, served = kind[options.task](config).train(), kind[options.task](config).eval()
    if options.precision == "bf16":
        served = served.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=True)

    def batches(count, size):
        """Random order; the length is the maximum or that of the longest."""
        features = load_features(options.features, count)
        chosen = np.random.default_rng(1).permutation(count).reshape(-1, size)
        for indices in chosen:
            rows = [features[i] for i in indices]
            length = settings["length"] if options.padding == "maximum" else max(len(ids) for ids, _, _ in rows)
            arrays = np.zeros([3, size, length], np.int64)
            for row, (ids, segments, _) in enumerate(rows):
                arrays[0, row, : len(ids)], arrays[1, row, : len(ids)] = ids, 1
                arrays[2, row, : len(ids)] = segments
            labels = torch.tensor(np.array([label for _, _, label in rows]))
            names = ("input_ids", "attention_mask", "token_type_ids")
            yield dict(zip(names, map(torch.from_numpy, arrays), strict=True)), labels

    train_set = list(batches(settings["train_sample"], settings["train_batch"]))
    predict_set = list(batches(settings["predict_sample"], settings["predict_batch"]))

    def train():
        for inputs, labels in train_set:
            targets = (
                {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}
                if options.task == "squad"
                else {"labels": labels}
            )
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.precision == "bf16"):
                loss = model(**inputs, **targets).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loss.item()

    @torch.inference_mode()
    def predict():
        for inputs, _ in predict_set:
            output = served(**inputs)
            (output.start_logits if options.task == "squad" else output.logits).float().numpy()

    return train, predict, f"torch {torch.__version__}, transformers {transformers.__version__}"


def work(options) -> None:
    """A contestant: builds, then obeys."""
    build = {"ours": build_ours, "transformers": build_transformers}[options.worker]
    train, predict, versions = build(options)
    obey({"train": train, "predict": predict}, versions)


# ------------------------------------------------------------------------------------------------- the match
def match(options, task: str, features: Path) -> list[dict]:
    """One row a contestant and kind of work: medians over rounds in which each takes its turn."""
    contestants = []
    for label, (environment, padding) in CONTESTANTS.items():
        arguments = ["--worker", environment, "--padding", padding, "--task", task, "--features", str(features),
                     "--model", options.model, "--precision", options.precision]  # fmt: skip
        contestants.append(Contestant(label, environment, __file__, arguments))
    rows = []
    for kind in options.work.split(","):
        for contestant in contestants:
            contestant.forget_peak()
        count, seconds = TASKS[task][f"{kind}_sample"], {c.label: [] for c in contestants}
        for contestant in contestants:
            contestant.measure(kind, 1)  # compiles every shape, allocates memory
        for round_ in range(options.rounds):
            for contestant in contestants:
                seconds[contestant.label] += contestant.measure(kind, 1)
            rates = "  ".join(f"{label} {count / s[-1]:.2f}/s" for label, s in seconds.items())
            print(f"  {task} {kind} round {round_ + 1}/{options.rounds}: {rates}", flush=True)
        for contestant in contestants:
            own, ours = seconds[contestant.label], seconds["ours"]
            rows.append(
                {
                    "task": task,
                    "work": kind,
                    "contestant": contestant.label,
                    "sequences_per_second": count / statistics.median(own),
                    "ours_is_faster_by": statistics.median(a / b for a, b in zip(own, ours, strict=True)),
                    "peak_memory_mb": contestant.peak() / 1e6,  # in prediction with what training left behind
                    "versions": contestant.versions,
                    "seconds": own,
                }
            )
    for contestant in contestants:
        contestant.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--squad_file", type=Path, help="SQuAD 1.1 JSON; without it that task is left out")
    parser.add_argument("--mrpc_dir", type=Path, help="folder of MRPC; without it that task is left out")
    parser.add_argument("--vocab_file", type=Path, help="uncased vocabulary of 30522 tokens")
    parser.add_argument("--model", default="base", choices=["tiny", "base", "large"])
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--work", default="train,predict", help="train, predict, or both (default)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="default benchmarks/results/bert_finetuning_<model>_<precision>.json")
    for name in ("worker", "padding", "task", "features"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return

    from runkit import machine
    from runkit.files import write_json
    from runkit.tables import text_table

    given = {"squad": options.squad_file, "mrpc": options.mrpc_dir}
    tasks = [task for task, source in given.items() if source]
    if not tasks or not options.vocab_file:
        parser.error("give --vocab_file, and --squad_file or --mrpc_dir or both")
    rows, lengths = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for task in tasks:
            path = Path(folder, f"{task}.npz")
            make_features(task, options, path)
            sample = np.load(path)["lengths"]
            lengths[task] = {
                "mean": float(sample.mean()),
                "longest": int(sample.max()),
                "padded": TASKS[task]["length"],
            }
            rows += match(options, task, path)
    shown = ("task", "work", "contestant", "sequences_per_second", "ours_is_faster_by", "peak_memory_mb")
    print(f"BERT-{options.model}, {options.precision}")
    print(text_table([[row[key] for key in shown] for row in rows], list(shown)))
    default = ROOT / "benchmarks" / "results" / f"bert_finetuning_{options.model}_{options.precision}.json"
    settings = {"model": options.model, "precision": options.precision, "rounds": options.rounds, "tasks": TASKS}
    write_json(
        options.out or default,
        {"settings": settings, "tokens": lengths, "machine": machine.describe(), "rows": rows},
    )
    print(f"written: {options.out or default}")


if __name__ == "__main__":
    main()
