"""Sends recordings to a Triton server and prints what was said; with a manifest, the word error rate.

python -m jasper_pt.serving.client --audio_filename speech.wav [-u localhost:8001] [-i gRPC]
python -m jasper_pt.serving.client --manifest_filename test.json --data_dir DATA [--output_dir OUT]
"""

import argparse
import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jasper_pt.audio import audio_info, is_audio
from jasper_pt.manifest import read_manifest
from jasper_pt.metrics import word_errors
from jasper_pt.text import transcript_rules
from runkit.errors import UserError, run_main
from runkit.files import atomic_open
from runkit.progress import Progress
from runkit.serving.client import Address, Client, texts

OUTPUTS = ("TRANSCRIPT", "WORDS", "CONFIDENCE", "DURATION")


class Recording(NamedTuple):
    path: Path
    reference: str | None  # what is said, if that is known


class Heard(NamedTuple):
    """The server's answer."""

    text: str
    words: list[dict]
    confidence: float
    duration: float
    seconds: float  # that the request took


def main(argv: Sequence[str] | None = None) -> None:
    """Raises UserError for files that cannot be read, and for requests that the server refuses."""
    args = parse_arguments(argv)
    recordings = find_recordings(args)
    address = Address.of(args.protocol, args.server_url)
    with Client(address) as client:
        client.wait(args.wait)
        parameters = client.parameters(args.model_name)
    started = time.perf_counter()
    heard = list(ask_all(recordings, args, address))
    seconds = time.perf_counter() - started
    for recording, answer in zip(recordings, heard, strict=True):
        print(f"{recording.path}: {answer.text}")
    if args.output_dir:
        write(Path(args.output_dir), recordings, heard)
    milliseconds = 1000 * np.array([answer.seconds for answer in heard])
    shown = ", ".join(f"p{p} {np.percentile(milliseconds, p):.1f}" for p in (50, 95, 99))
    audio = sum(answer.duration for answer in heard)
    print(
        f"{len(heard)} recordings, {audio:.1f} s of audio in {seconds:.2f} s ({audio / seconds:.1f} seconds of audio a "
        f"second); latency of a request, ms: mean {milliseconds.mean():.1f}, {shown}"
    )
    if args.manifest_filename:
        labels = json.loads(parameters["labels"])
        rules = transcript_rules(json.loads(parameters["normalize_transcripts"]), labels)
        references = [rules(recording.reference, labels) for recording in recordings]
        errors = word_errors(references, [answer.text for answer in heard])
        print(f"WER {100 * errors.wer:.2f} % of {errors.reference_units} words")


def find_recordings(args: argparse.Namespace) -> list[Recording]:
    """What is to be sent. Raises UserError where there is nothing."""
    if args.manifest_filename:
        folder = Path(args.data_dir) if args.data_dir else None
        found = [
            Recording(utterance.audio_path, utterance.transcript)
            for path in args.manifest_filename
            for utterance in whole(read_manifest(path, folder), path)
        ]
        return found[: args.max_utterances] if args.max_utterances else found
    folder = Path(args.data_dir or ".")
    paths = [folder / name for name in args.audio_filename]
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path}: no such file")
        if not is_audio(path):
            audio_info(path)  # says what is wrong with it
    return [Recording(path, None) for path in paths]


def whole(utterances, path: str):
    """Raises UserError for parts of files: a file is sent as it is."""
    for utterance in utterances:
        if utterance.offset:
            raise UserError(f"{path}: {utterance.key} begins within its file; the server is sent whole files")
    return utterances


def ask_all(recordings: Sequence[Recording], args: argparse.Namespace, address: Address) -> Iterator[Heard]:
    """The answers in order; `concurrency` requests are under way at a time."""
    batches = [recordings[start : start + args.batch_size] for start in range(0, len(recordings), args.batch_size)]
    local = threading.local()

    def ask(batch: Sequence[Recording]) -> list[Heard]:
        client = local.client = getattr(local, "client", None) or Client(address)
        started = time.perf_counter()
        inputs = {"AUDIO_FILE": texts([recording.path.read_bytes() for recording in batch])}
        try:
            found = client.infer(args.model_name, inputs, OUTPUTS, args.model_version)
        except UserError as error:
            raise UserError(f"{', '.join(str(recording.path) for recording in batch)}: {error}") from error
        seconds = time.perf_counter() - started
        columns = [found[name].reshape(-1).tolist() for name in OUTPUTS]
        return [
            Heard(text.decode(), json.loads(words), confidence, duration, seconds)
            for text, words, confidence, duration in zip(*columns, strict=True)
        ]

    with ThreadPoolExecutor(args.concurrency) as pool, Progress(len(batches), "asking", "requests") as progress:
        for answers in pool.map(ask, batches):
            progress.update(1)
            yield from answers


def write(folder: Path, recordings: Sequence[Recording], heard: Sequence[Heard]) -> None:
    """transcripts.json: everything the server said."""
    with atomic_open(folder / "transcripts.json", "w") as stream:
        rows = [
            {"audio_filepath": str(recording.path)} | answer._asdict()
            for recording, answer in zip(recordings, heard, strict=True)
        ]
        json.dump(rows, stream, ensure_ascii=False, indent=1)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="client", description=__doc__.partition("\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("--audio_filename", nargs="+", default=[], help="sound files")
    add("--manifest_filename", nargs="+", default=[], help="manifests, with transcripts to compare with")
    add("--data_dir", help="folder that names of files start from")
    add("-u", "--server_url", "--url", help="HOST:PORT (default: this machine, the protocol's port)")
    add("-i", "--protocol", default="gRPC", help="HTTP or gRPC")
    add("--model_name", default="jasper")
    add("--model_version", default="", help="default: the newest")
    add("--batch_size", type=int, default=1, help="recordings a request")
    add("--concurrency", type=int, default=4, help="requests under way at a time")
    add("--max_utterances", type=int, default=0, help="of the manifests; 0: all")
    add("--wait", type=float, default=10.0, help="seconds for the server to be ready")
    add("-o", "--output_dir", help="transcripts.json, with times of words and confidence, goes there")
    args = parser.parse_args(argv)
    if bool(args.audio_filename) == bool(args.manifest_filename):
        raise UserError("give either --audio_filename or --manifest_filename")
    if args.batch_size < 1 or args.concurrency < 1 or args.max_utterances < 0:
        raise UserError("--batch_size and --concurrency must be 1 or more, --max_utterances 0 or more")
    return args


if __name__ == "__main__":
    run_main(main)
