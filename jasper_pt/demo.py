"""A local page that transcribes a sound file or what the microphone hears, with times and confidence of words.

    python -m jasper_pt.demo MODEL [--port 8081] [--host 127.0.0.1] [--precision fp32]

POST /transcribe takes a sound file as the request's body and gives {"text", "words": [{"text", "start", "end",
"confidence"}, ...], "duration", "confidence", "seconds"}.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jasper_pt
from jasper_pt.audio import audio_info
from jasper_pt.checkpoint import find_model
from jasper_pt.precision import PRECISIONS
from jasper_pt.recognizer import Recognizer
from runkit.errors import UserError, run_main
from runkit.web import Action, serve

PAGE = Path(__file__).with_suffix(".html")
MAX_BYTES = 50_000_000
MAX_SECONDS = 600.0
CONTENT_TYPES = ("audio/", "video/", "application/ogg", "application/octet-stream")  # as browsers call sound files


def transcribing(recognizer: Recognizer) -> Callable[[bytes], dict[str, Any]]:
    """The function behind POST /transcribe. It raises UserError for what is no sound, or too long."""

    def transcribe(body: bytes) -> dict[str, Any]:
        duration = audio_info(body).duration
        if duration > MAX_SECONDS:
            raise UserError(
                f"{duration:.0f} s of sound; {MAX_SECONDS:g} s are the most here (scripts/transcribe.sh has no limit)"
            )
        started = time.perf_counter()
        transcript = recognizer.transcribe(body)
        return transcript.to_dict() | {"seconds": time.perf_counter() - started}

    return transcribe


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__.partition("\n")[0])
    parser.add_argument("model", metavar="MODEL", help="checkpoint, .nemo archive or training folder")
    parser.add_argument("--port", type=int, default=8081, help="0: any that is free")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0: reachable from other machines")
    parser.add_argument("--precision", choices=tuple(PRECISIONS))
    options = parser.parse_args(argv)
    model = find_model(options.model)
    print(f"loading {model}", flush=True)
    recognizer = jasper_pt.load(model, precision=options.precision)
    serve(PAGE, {"/transcribe": Action(transcribing(recognizer), CONTENT_TYPES, MAX_BYTES)}, options.host, options.port)


if __name__ == "__main__":
    run_main(main)
