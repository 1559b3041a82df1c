"""Asks a Triton server the questions of a SQuAD file, or one question, and writes and scores the answers as run_squad.

python -m bert_tf.serving.run_squad_triton_client --predict_file=dev-v1.1.json --output_dir=OUT
python -m bert_tf.serving.run_squad_triton_client --question="Who ...?" --context="..."
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from bert_tf.squad import SquadExample, read_examples
from bert_tf.squad_answers import Answers, write_answers
from bert_tf.squad_evaluate import evaluate
from runkit.errors import UserError, run_main
from runkit.files import read_json
from runkit.progress import Progress
from runkit.serving.client import Address, Client, texts

OUTPUTS = ("ANSWER", "PROBABILITY", "START", "END", "PREDICTION", "NBEST", "NULL_ODDS")


class Found(NamedTuple):
    """The server's answer to a question."""

    answer: str
    probability: float
    start: int
    end: int
    prediction: str
    nbest: list[dict[str, Any]]
    null_odds: float


def main(argv: Sequence[str] | None = None) -> None:
    """Raises UserError for files that cannot be read, and for requests that the server refuses."""
    args = parse_arguments(argv)
    address, model = Address.of(args.protocol, args.triton_server_url), f"{args.triton_model_name}-squad"
    with Client(address) as client:
        client.wait(args.wait)
        settings = json.loads(client.parameters(model)["settings"])
        if args.question:
            (found,) = ask(client, model, args.triton_model_version, [args.question], [args.context])
            place = f"characters {found.start}-{found.end}" if found.answer else "no answer"
            print(f"{found.answer}\n  probability {found.probability:.2f}, {place}")
            return

    version_2 = settings["version_2_with_negative"]
    if args.version_2_with_negative is not None and args.version_2_with_negative != version_2:
        raise UserError(f"the model behind the server answers questions of SQuAD {'2.0' if version_2 else '1.1'}")
    examples = read_examples(
        args.predict_file, False, version_2, lambda text: print(f"warning: {text}", file=sys.stderr)
    )
    started = time.perf_counter()
    answers, latencies = [], []
    for found, seconds in ask_all(examples, args, address, model):
        answers += found
        latencies.append(1000 * seconds)
    seconds = time.perf_counter() - started
    report(len(examples), seconds, latencies)
    keys = [example.qas_id for example in examples]
    chosen = Answers(
        {key: found.prediction for key, found in zip(keys, answers, strict=True)},
        {key: found.nbest for key, found in zip(keys, answers, strict=True)},
        {key: found.null_odds for key, found in zip(keys, answers, strict=True)} if version_2 else None,
    )
    if args.output_dir:
        write_answers(args.output_dir, chosen)
    if any(example.answers or example.is_impossible for example in examples):
        dataset = read_json(args.predict_file)["data"]
        print(json.dumps(evaluate(dataset, chosen.predictions, chosen.null_odds, "2.0" if version_2 else "1.1")))


def ask(client: Client, model: str, version: str, questions: Sequence[str], contexts: Sequence[str]) -> list[Found]:
    """One request."""
    found = client.infer(model, {"QUESTION": texts(questions), "CONTEXT": texts(contexts)}, OUTPUTS, version)
    columns = [found[name].reshape(-1).tolist() for name in OUTPUTS]
    return [
        Found(answer.decode(), probability, start, end, prediction.decode(), json.loads(nbest), odds)
        for answer, probability, start, end, prediction, nbest, odds in zip(*columns, strict=True)
    ]


def ask_all(
    examples: Sequence[SquadExample], args: argparse.Namespace, address: Address, model: str
) -> Iterator[tuple[list[Found], float]]:
    """The answers of each request in order, and the seconds it took; `concurrency` of them are under way at a time."""
    size, local = args.predict_batch_size, threading.local()

    def one(start: int) -> tuple[list[Found], float]:
        client = local.client = getattr(local, "client", None) or Client(address)
        part, started = examples[start : start + size], time.perf_counter()
        try:
            found = ask(client, model, args.triton_model_version, [e.question for e in part], [e.context for e in part])
        except UserError as error:
            raise UserError(f"questions {', '.join(e.qas_id for e in part)}: {error}") from error
        return found, time.perf_counter() - started

    with ThreadPoolExecutor(args.concurrency) as pool, Progress(len(examples), "asking", "questions") as progress:
        for found, seconds in pool.map(one, range(0, len(examples), size)):
            progress.update(len(found))
            yield found, seconds


def report(questions: int, seconds: float, latencies: Sequence[float]) -> None:
    """The published lines of the client."""
    print(f"Total Inference Time = {seconds:.2f} for Sentences processed = {questions}")
    print(f"Throughput Average (sentences/sec) = {questions / seconds:.2f}")
    for percent in (95, 99, 100):
        print(f"Latency Confidence Level {percent} (ms) = {np.percentile(latencies, percent):.2f}")
    print(f"Latency Average (ms) = {np.mean(latencies):.2f}")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The published flags. Those of the tokenizer and the choice of answers are the server's now; they are taken, and
    told to be without effect."""
    parser = argparse.ArgumentParser(
        prog="run_squad_triton_client", description=__doc__.partition("\n")[0], allow_abbrev=False
    )
    add = parser.add_argument
    add("--predict_file", help="questions in SQuAD's form")
    add("--question", help="one question about --context")
    add("--context", help="the text it is about")
    add("--output_dir", help="predictions.json, nbest_predictions.json and null_odds.json go there")
    add("--predict_batch_size", type=int, default=8, help="questions a request")
    add("--concurrency", type=int, default=4, help="requests under way at a time")
    add("--version_2_with_negative", action=argparse.BooleanOptionalAction, help="checked against the model's version")
    add("--triton_server_url", help="HOST:PORT (default: this machine, the protocol's port)")
    add("--protocol", default="gRPC", help="HTTP or gRPC")
    add("--triton_model_name", default="bert")
    add("--triton_model_version", default="", help="default: the newest")
    add("--wait", type=float, default=10.0, help="seconds for the server to be ready")
    for name in SERVERS:
        add(f"--{name}", help="the server's: taken for the published command lines, and without effect")
    args = parser.parse_args(argv)
    given = [f"--{name}" for name in SERVERS if getattr(args, name) is not None]
    if given:
        print(f"note: {', '.join(given)}: without effect here; the export has them", file=sys.stderr)
    if bool(args.predict_file) == bool(args.question):
        raise UserError("give either --predict_file, or --question with --context")
    if args.question and not args.context:
        raise UserError("--question needs --context")
    if args.predict_batch_size < 1 or args.concurrency < 1:
        raise UserError("--predict_batch_size and --concurrency must be 1 or more")
    return args


SERVERS = (
    "vocab_file", "do_lower_case", "max_seq_length", "doc_stride", "max_query_length", "n_best_size",
    "max_answer_length", "verbose_logging", "trt_engine",
)  # fmt: skip


if __name__ == "__main__":
    run_main(main)
