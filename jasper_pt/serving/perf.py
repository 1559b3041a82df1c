"""Latency and throughput of a speech model behind a Triton server.

python -m jasper_pt.serving.perf --manifest_filename test.json --data_dir DATA --clients 1 4 16 --output_dir OUT
"""

import argparse
from collections.abc import Sequence

from jasper_pt.serving.client import OUTPUTS, find_recordings
from runkit.errors import UserError, run_main
from runkit.serving import load
from runkit.serving.client import texts


def main(argv: Sequence[str] | None = None) -> None:
    """Raises UserError for a server that is not there or loses requests."""
    parser = argparse.ArgumentParser(prog="perf", description=__doc__.partition("\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("--audio_filename", nargs="+", default=[], help="sound files, sent in turn")
    add("--manifest_filename", nargs="+", default=[], help="manifests, whose files are sent in turn")
    add("--data_dir", help="folder that names of files start from")
    add("--max_utterances", type=int, default=200, help="of the manifests; 0: all")
    add("--model_name", default="jasper")
    add("--batch_size", type=int, default=1, help="recordings a request")
    load.add_flags(parser)
    args = parser.parse_args(argv)
    if bool(args.audio_filename) == bool(args.manifest_filename):
        raise UserError("give either --audio_filename or --manifest_filename")
    contents = [recording.path.read_bytes() for recording in find_recordings(args)]
    if not 1 <= args.batch_size <= len(contents):
        raise UserError(f"--batch_size is {args.batch_size}; it must be 1 to {len(contents)}, the recordings there are")
    requests = [
        {"AUDIO_FILE": texts([contents[(start + i) % len(contents)] for i in range(args.batch_size)])}
        for start in range(0, len(contents), args.batch_size)
    ]
    load.run(load.Load(args.model_name, args.model_version, requests, OUTPUTS[:1], "recordings", args.batch_size), args)


if __name__ == "__main__":
    run_main(main)
