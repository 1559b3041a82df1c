"""Answers questions about a text with a model that run_squad trained: at a prompt, by arguments, or JSON to JSON.

    python -m bert_tf.answer MODEL_DIR                                                a prompt
    python -m bert_tf.answer MODEL_DIR --context_file text.txt --question "Who ...?"  one-shot
    python -m bert_tf.answer MODEL_DIR --json questions.json                          answers as JSON on stdout

MODEL_DIR is an output_dir of run_squad; the lengths, the case and the SQuAD version it was trained with are taken from
it. --json takes SQuAD's form or {"context": "...", "questions": ["...", ...]}; "-" is stdin. It writes {"answers":
[{"id", "question", "answer", "probability", "start", "end"}, ...]}: answer is "" and start and end null where there is
none; the context from start to end is the answer, counted in code points.
"""

import argparse
import contextlib
import io
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # started by path: python bert_tf/answer.py
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import bert_tf.quiet_tensorflow  # noqa: F401, I001 (first: it silences the import of TensorFlow)
import numpy as np

from bert_tf import checkpoint, huggingface
from bert_tf.answering import Answer, Settings, answer_questions, to_examples, to_squad
from bert_tf.features import SPAN, Feature, FeatureSet, batch_spec, choose_buckets, prediction_batches
from bert_tf.losses import QuestionAnswering
from bert_tf.model import BertForQuestionAnswering
from bert_tf.model_files import beside, is_lower_case, required_beside
from bert_tf.precision import PRECISIONS, Precision
from bert_tf.runs import check_vocabulary
from bert_tf.squad import SquadExample
from bert_tf.tokenization import CLS, SEP, FullTokenizer
from bert_tf.train_step import check_finite, create_prediction
from bert_tf.weights import ComputeWeights
from runkit.errors import UserError, run_main
from runkit.files import read_json, sha256_file

BATCH_SIZE = 8  # windows
EXCERPT = 40  # code points shown on both sides of an answer
MANY = 50  # questions from which progress is shown


# --------------------------------------------------------------------------------------------------- the model
def read_settings(weights: str, given: dict[str, Any]) -> Settings:
    """Settings as given, else as the run that made the weights had them, else run_squad's defaults."""
    path = beside(weights, "run_config.json")
    saved = read_json(path) if path else {}
    path = beside(weights, "labels.json")
    if path and "version_2_with_negative" not in saved:
        saved["version_2_with_negative"] = read_json(path).get("task") == "squad v2.0"
    known = {key: saved[key] for key in Settings._fields if key in saved}
    if "version_2_with_negative" not in known | given:
        print(
            f"note: nothing beside {weights} says for which version of SQuAD it was trained; 1.1 is assumed, where "
            "every question has an answer (else give --version_2_with_negative)",
            file=sys.stderr,
        )
    return Settings(**{"do_lower_case": is_lower_case(weights)} | known | given)


class Answerer:
    """A model ready to answer."""

    def __init__(self, weights: str, vocab_file: str, bert_config_file: str, settings: Settings, precision: str):
        """Loads everything. Raises UserError naming the file that is missing or does not fit the others."""
        config = huggingface.load_config(bert_config_file)
        if settings.max_seq_length > config.max_position_embeddings:
            raise UserError(
                f"max_seq_length {settings.max_seq_length} is beyond max_position_embeddings "
                f"{config.max_position_embeddings} of {bert_config_file}"
            )
        if warning := checkpoint.check_files(vocab_file, config, weights, bert_config_file):
            print(f"warning: {warning}", file=sys.stderr)
        check_vocabulary(weights, sha256_file(vocab_file))
        chosen = Precision.from_name(precision)
        chosen.activate()
        self.settings = settings
        self.tokenizer = FullTokenizer(vocab_file, settings.do_lower_case)
        model = BertForQuestionAnswering(config, seed=None)
        variables = ComputeWeights(model.variables, chosen.compute_dtype, join=True)
        checkpoint.load_weights(variables.masters, weights)
        variables.refresh_all()
        self._function = create_prediction(model, QuestionAnswering(), variables, batch_spec(SPAN))
        self.description = (
            f"{config.num_hidden_layers} layers of {config.hidden_size}, "
            f"SQuAD {'2.0' if settings.version_2_with_negative else '1.1'}, {chosen.name}"
        )
        ids = self.tokenizer.convert_tokens_to_ids([CLS, SEP])
        self.logits([Feature(ids, [0, 0], (0, 0))])  # compiles; all other lengths use the same program

    def logits(self, features: Sequence[Feature]) -> list[np.ndarray]:
        """The logits [tokens, 2] of each feature."""
        features = FeatureSet(features, SPAN)
        length = self.settings.max_seq_length
        outputs: list[np.ndarray] = [np.empty(0)] * len(features)
        rows = max(1, min(BATCH_SIZE, len(features)))
        for indices, batch in prediction_batches(features, choose_buckets(features.lengths, length), rows, length):
            values = self._function(batch)[0].numpy()
            check_finite(values)
            for row, index in enumerate(indices):
                outputs[index] = values[row, : features.lengths[index]]
        return outputs

    def answer(self, examples: Sequence[SquadExample]) -> list[Answer]:
        """The answers in the order of the questions."""
        return answer_questions(examples, self.tokenizer, self.settings, self.logits)[0]


def load(
    weights: str,
    vocab_file: str | None = None,
    bert_config_file: str | None = None,
    given: dict[str, Any] | None = None,
    precision: str = "fp32",
) -> Answerer:
    """The model of a folder or checkpoint, with the vocabulary and configuration beside it unless others are named.

    given: settings that win over those of the run that made the weights. Raises UserError for what is missing.
    """
    config_name = huggingface.CONFIG if huggingface.holds_weights(weights) else "bert_config.json"
    return Answerer(
        weights,
        vocab_file or required_beside(weights, "vocab.txt", "vocab_file"),
        bert_config_file or required_beside(weights, config_name, "bert_config_file"),
        read_settings(weights, given or {}),
        precision,
    )


# ------------------------------------------------------------------------------------------------- the questions
def read_stdin_json() -> Any:
    """Raises UserError where stdin is no JSON."""
    if sys.stdin is None:
        raise UserError("stdin is closed: give a file to --json")
    try:
        return json.loads(sys.stdin.buffer.read().decode("utf-8-sig"))
    except ValueError as error:
        raise UserError(f"stdin: not valid JSON: {error}") from error


def read_context(path: str) -> str:
    """A whole text file. Raises UserError where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error


# ----------------------------------------------------------------------------------------------- ways to ask
def ask(answerer: Answerer, context: str, questions: Sequence[str]) -> list[Answer]:
    """Answers without progress lines."""
    with contextlib.redirect_stderr(io.StringIO()):
        return answerer.answer(to_examples({"context": context, "questions": list(questions)}, "questions"))


def describe(answer: Answer, context: str) -> str:
    """An answer as a person reads it."""
    if not answer.answer:
        return f"no answer (probability {answer.probability:.2f})"
    before, after = context[max(0, answer.start - EXCERPT) : answer.start], context[answer.end :][:EXCERPT]
    place = " ".join(f"{before}[{answer.answer}]{after}".split())
    left, right = "..." * (answer.start > EXCERPT), "..." * (answer.end + EXCERPT < len(context))
    return (
        f"{answer.answer}\n  probability {answer.probability:.2f}, characters {answer.start}-{answer.end}: "
        f"{left}{place}{right}"
    )


def prompt(answerer: Answerer, context: str | None) -> None:
    """Asks for a context and questions until both are empty, or the input ends."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (editing at the prompt, and lines as long as they are)
    with contextlib.suppress(EOFError):
        while True:
            if context is None:
                context = prompt_context()
                if context is None:
                    return
            print("Questions (an empty line ends them):")
            while question := input("? ").strip():
                (answer,) = ask(answerer, context, [question])
                print(describe(answer, context), flush=True)
            context = None


def prompt_context() -> str | None:
    """Lines up to an empty one, or the file that @FILE names; None for nothing."""
    while True:
        print("Context (paste it, an empty line ends it; or @FILE):")
        lines = []
        while line := input("> "):
            lines.append(line)
            if len(lines) == 1 and line.startswith("@"):
                break
        if not lines:
            return None
        if not lines[0].startswith("@"):
            return "\n".join(lines)
        try:
            return read_context(lines[0][1:].strip())
        except UserError as error:
            print(f"error: {error}")


# ------------------------------------------------------------------------------------------------------ the main
def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="answer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add("model_dir", nargs="?", default=None, metavar="MODEL_DIR", help="output_dir of run_squad, or a folder like it")
    add("--init_checkpoint", default=None, help="other weights: a checkpoint, or a Hugging Face folder")
    add("--vocab_file", default=None, help="default: vocab.txt beside the weights")
    add("--bert_config_file", default=None, help="default: bert_config.json or config.json beside the weights")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--context", default=None, help="the text")
    source.add_argument("--context_file", default=None, metavar="FILE", help="a file with the text")
    source.add_argument("--json", default=None, metavar="FILE", help='questions as JSON; "-" is stdin')
    add("--question", action="append", default=[], help="may be given several times")
    add("--precision", choices=PRECISIONS, default="fp32")
    boolean = argparse.BooleanOptionalAction
    for name, default in Settings._field_defaults.items():
        if isinstance(default, bool):
            add(f"--{name}", action=boolean, help="default: as in the model's run")
        else:
            add(f"--{name}", type=type(default), help="default: as in the model's run")
    args = parser.parse_args(argv)
    for name in ("max_seq_length", "doc_stride", "max_query_length", "n_best_size", "max_answer_length"):
        if getattr(args, name, 1) < 1:
            parser.error(f"--{name} must be at least 1")
    if not math.isfinite(getattr(args, "null_score_diff_threshold", 0.0)):
        parser.error("--null_score_diff_threshold must be a finite number")
    if not (args.model_dir or args.init_checkpoint):
        parser.error("MODEL_DIR is missing: the output_dir of run_squad")
    if args.json is not None and args.question:
        parser.error("--question goes with --context or --context_file; --json brings its own")
    if args.question and args.context is None and args.context_file is None:
        parser.error("--question needs --context or --context_file")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Raises UserError for anything a user can fix."""
    args = parse_arguments(argv)
    started = time.perf_counter()
    weights = args.init_checkpoint or args.model_dir
    if not args.init_checkpoint and not Path(weights).is_dir():
        raise UserError(f"there is no folder {weights}: give the output_dir of run_squad, or --init_checkpoint")
    context = read_context(args.context_file) if args.context_file else args.context
    content, name = None, "stdin" if args.json == "-" else args.json
    if args.json is not None:
        content = to_squad(read_stdin_json() if args.json == "-" else read_json(args.json), name)
    given = {key: value for key, value in vars(args).items() if key in Settings._fields}
    answerer = load(weights, args.vocab_file, args.bert_config_file, given, args.precision)
    seconds = time.perf_counter() - started
    print(f"ready, loaded in {seconds:.1f} s: {weights} ({answerer.description})", file=sys.stderr, flush=True)

    if content is not None:
        examples = to_examples(content, name, answerer.settings.version_2_with_negative)
        quiet = contextlib.redirect_stderr(io.StringIO()) if len(examples) < MANY else contextlib.nullcontext()
        with quiet:
            answers = answerer.answer(examples)
        print(json.dumps({"answers": [answer._asdict() for answer in answers]}, indent=2))
    elif args.question:
        for answer in ask(answerer, context, args.question):
            print(f"? {answer.question}\n{describe(answer, context)}")
    elif sys.stdin is None:
        raise UserError("there is no stdin to read questions from: give --question or --json FILE")
    else:
        prompt(answerer, context)


if __name__ == "__main__":
    run_main(main)
