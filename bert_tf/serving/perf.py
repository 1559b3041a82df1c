"""Latency and throughput of a model that answers questions behind a Triton server.

python -m bert_tf.serving.perf --predict_file=dev-v1.1.json --clients 1 4 16 --output_dir=OUT
"""

import argparse
import sys
from collections.abc import Sequence

from bert_tf.squad import read_examples
from runkit.errors import UserError, run_main
from runkit.serving import load
from runkit.serving.client import texts


def main(argv: Sequence[str] | None = None) -> None:
    """Raises UserError for a server that is not there or loses requests."""
    parser = argparse.ArgumentParser(prog="perf", description=__doc__.partition("\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("--predict_file", required=True, help="questions in SQuAD's form, asked in turn")
    add("--max_questions", type=int, default=500, help="of the file; 0: all")
    add("--model_name", default="bert-squad")
    add("--batch_size", type=int, default=1, help="questions a request")
    load.add_flags(parser)
    args = parser.parse_args(argv)
    examples = read_examples(args.predict_file, False, True, lambda text: print(f"warning: {text}", file=sys.stderr))
    pairs = [(example.question, example.context) for example in examples[: args.max_questions or None]]
    if not 1 <= args.batch_size <= len(pairs):
        raise UserError(f"--batch_size is {args.batch_size}; it must be 1 to {len(pairs)}, the questions there are")
    batches = [
        [pairs[(start + i) % len(pairs)] for i in range(args.batch_size)]
        for start in range(0, len(pairs), args.batch_size)
    ]
    requests = [
        {"QUESTION": texts([question for question, _ in batch]), "CONTEXT": texts([context for _, context in batch])}
        for batch in batches
    ]
    load.run(load.Load(args.model_name, args.model_version, requests, ("ANSWER",), "questions", args.batch_size), args)


if __name__ == "__main__":
    run_main(main)
