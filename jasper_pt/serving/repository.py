"""A Triton model repository from an export of a speech model.

    python -m jasper_pt.serving.repository EXPORT_DIR MODEL_REPOSITORY [--triton_model_name jasper]

Two models: NAME takes sound files or samples and gives text, words with times, and confidence; NAME-onnx is the
acoustic model that it asks, features in and log-probabilities out, for those who bring features of their own.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from jasper_pt.config import parse_config
from jasper_pt.decoder_options import PATHS, DecoderOptions, beam_decoder, read_options
from jasper_pt.exported import KEYS, MAKER
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
    """Raises UserError for an export or options that do not fit."""
    args = parse_arguments(argv)
    metadata = read_metadata(args.export_dir, KEYS, MAKER)
    check_files(args.export_dir, ("features.onnx", args.onnx_file), MAKER)
    config = parse_config(metadata["config"], f"configuration in {args.export_dir}/metadata.json")
    serving = from_arguments(args)
    options = read_options(args.decoder_config) if args.decoder_config else DecoderOptions()
    if options.decoder == "beam":
        beam_decoder(options, metadata["labels"])  # said here rather than by the server when it starts
    name, acoustic = args.triton_model_name, f"{args.triton_model_name}-onnx"
    export = Path(args.export_dir)
    add = {
        "repository": args.repository,
        "version": args.triton_model_version,
        "overwrite": args.triton_model_overwrite,
    }

    is_python = args.backend == "python"
    text = model_config(
        acoustic,
        args.backend,
        [Tensor("features", "FP32", (config.encoder.in_feats, -1)), Tensor("lengths", "INT64", scalar=True)],
        [Tensor("log_probs", "FP32", (-1, config.n_classes)), Tensor("output_lengths", "INT64", scalar=True)],
        behind(serving),
        {"threads": args.threads} if is_python else {},
    )
    files: dict[str, str | Path] = {"model.onnx": export / args.onnx_file}
    if is_python:
        files["model.py"] = python_model(ONNX_MODEL)
    written = [write_model(name=acoustic, config=text, files=files, **add)]

    text = model_config(
        name,
        "python",
        [
            Tensor("AUDIO_FILE", "STRING", optional=True),
            Tensor("AUDIO_SIGNAL", "FP32", (-1,), optional=True, ragged=True),
            Tensor("NUM_SAMPLES", "INT32", optional=True),
        ],
        [
            *(Tensor(output, "STRING") for output in ("TRANSCRIPT", "WORDS")),
            *(Tensor(output, "FP32") for output in ("CONFIDENCE", "DURATION")),
        ],
        in_front(serving),
        {
            "acoustic_model": acoustic,
            "max_seconds": args.max_seconds,
            "max_bytes": args.max_bytes,
            # For clients that compare with transcripts: how the model spells them.
            "labels": json.dumps(metadata["labels"]),
            "normalize_transcripts": json.dumps(config.input_val.audio.normalize_transcripts),
        },
    )
    files = {
        "model.py": python_model("jasper_pt.serving.transcribe_model"),
        "features.onnx": export / "features.onnx",
        "metadata.json": export / "metadata.json",
        **decoder_files(options),
    }
    written.append(write_model(name=name, config=text, files=files, **add))
    for path in written:
        print(f"written: {path}")


def decoder_files(options: DecoderOptions) -> dict[str, str | Path]:
    """decoder.json and what it names, all in one folder."""
    values = dataclasses.asdict(options)
    files: dict[str, str | Path] = {}
    for key in PATHS:
        if values[key] is not None:
            source = Path(values[key])
            values[key] = f"{key}{''.join(source.suffixes[-2:])}"
            files[values[key]] = source
    return {"decoder.json": json.dumps(values, indent=2) + "\n"} | files


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="repository", description=__doc__.partition("\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("export_dir", metavar="EXPORT_DIR", help="what export_asr.sh wrote")
    add("repository", metavar="MODEL_REPOSITORY", help="folder of models; made if need be")
    add("--triton_model_name", default="jasper", help="of the model that takes sound; its acoustic model is NAME-onnx")
    add_flags(parser)
    add("--decoder_config", metavar="FILE", help="decoding as tune_decoder writes it; by default greedy")
    add("--max_seconds", type=float, default=120.0, help="of a recording")
    add("--max_bytes", type=int, default=50_000_000, help="of a sound file")
    args = parser.parse_args(argv)
    if not args.max_seconds > 0 or args.max_bytes < 1:
        raise UserError("--max_seconds and --max_bytes must be positive")
    return args


if __name__ == "__main__":
    run_main(main)
