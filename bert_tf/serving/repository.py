"""A Triton model repository from an export of a model that answers questions.

    python -m bert_tf.serving.repository EXPORT_DIR MODEL_REPOSITORY [--triton_model_name bert]

Two models: NAME takes token ids and gives logits; NAME-squad takes a question and a text, and gives the answer as
run_squad does.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from bert_tf.exported import MAKER
from runkit.errors import UserError, run_main
from runkit.exports import check_files, read_metadata
from runkit.serving.repository import (
    ONNX_MODEL,
    Tensor,
    add_flags,
    behind,
    from_arguments,
    in_front,
    model_config,
    python_model,
    write_model,
)


def main(argv: Sequence[str] | None = None) -> None:
    """Raises UserError for an export that does not fit."""
    args = parse_arguments(argv)
    metadata = read_metadata(
        args.export_dir, ("head", "task", "settings", "inputs", "outputs"), "scripts/export_bert.sh"
    )
    check_files(args.export_dir, ("vocab.txt", args.onnx_file), MAKER)
    if metadata["head"] != "span":
        raise UserError(
            f"{args.export_dir} is an export for {metadata['task']}; only models that answer questions are served"
        )
    serving, export = from_arguments(args), Path(args.export_dir)
    name, place = args.triton_model_name, {
        "repository": args.repository, "version": args.triton_model_version, "overwrite": args.triton_model_overwrite
    }  # fmt: skip

    is_python = args.backend == "python"
    text = model_config(
        name,
        args.backend,
        [Tensor(one, "INT32", (-1,)) for one in metadata["inputs"]],
        [Tensor(one, "FP32", (-1,)) for one in metadata["outputs"]],
        behind(serving),
        {"threads": args.threads} if is_python else {},
    )
    files: dict[str, str | Path] = {"model.onnx": export / args.onnx_file}
    if is_python:
        files["model.py"] = python_model(ONNX_MODEL)
    written = [write_model(name=name, config=text, files=files, **place)]

    text = model_config(
        f"{name}-squad",
        "python",
        [Tensor(one, "STRING") for one in ("QUESTION", "CONTEXT")],
        [
            *(Tensor(one, "STRING") for one in ("ANSWER", "PREDICTION", "NBEST")),
            *(Tensor(one, "INT32") for one in ("START", "END")),
            Tensor("PROBABILITY", "FP32"),
            Tensor("NULL_ODDS", "FP64"),
        ],
        in_front(serving),
        {
            "logits_model": name,
            "rows": serving.max_batch_size,
            "max_words": args.max_words,
            "settings": json.dumps(metadata["settings"]),  # for clients: what version of SQuAD is answered
        },
    )
    files = {
        "model.py": python_model("bert_tf.serving.answer_model"),
        "vocab.txt": export / "vocab.txt",
        "metadata.json": export / "metadata.json",
    }
    written.append(write_model(name=f"{name}-squad", config=text, files=files, **place))
    for path in written:
        print(f"written: {path}")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="repository", description=__doc__.partition("\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("export_dir", metavar="EXPORT_DIR", help="what export_bert.sh wrote")
    add("repository", metavar="MODEL_REPOSITORY", help="folder of models; made if need be")
    add("--triton_model_name", default="bert", help="of the model of logits; the one that answers is NAME-squad")
    add_flags(parser)
    add("--max_words", type=int, default=50_000, help="of a text")
    args = parser.parse_args(argv)
    if args.max_words < 1:
        raise UserError(f"--max_words is {args.max_words}; it must be 1 or more")
    return args


if __name__ == "__main__":
    run_main(main)
