"""Finds out when the words of known texts are said: forced alignment with a trained model.

    python -m jasper_pt.align --ckpt CKPT speech.flac speech.txt more.mp3 more.txt --output_format srt json
    python -m jasper_pt.align --ckpt CKPT --text "what was said" speech.flac
    python -m jasper_pt.align --ckpt CKPT --manifests DATA/dev.json --dataset_dir DATA --output_format ctm

Written to <output_dir>/alignments/<name of the audio>.<form>. Recordings may be hours long. What cannot be aligned is
named and the rest is still done; the exit code is then 3. Flags: --help.
"""

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import NamedTuple

if __package__ in (None, ""):  # started by path: python jasper_pt/align.py
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jasper_pt.audio import read_audio
from jasper_pt.manifest import read_manifest
from jasper_pt.precision import PRECISIONS
from jasper_pt.recognizer import Recognizer, load
from jasper_pt.transcript import WRITERS, Transcript, output_names, save_transcript
from runkit.errors import UserError, run_main
from runkit.files import read_lines
from runkit.progress import Progress

NOT_ALIGNED = 3  # exit code when some recordings could not be


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags. Unknown ones are refused."""
    parser = argparse.ArgumentParser(prog="align", description=__doc__.split("\n\n")[0], allow_abbrev=False)
    flag = parser.add_argument
    flag("files", nargs="*", metavar="AUDIO TEXT", help="pairs of a sound file and a text file; with --text, one AUDIO")
    flag("--text", help="what is said in AUDIO, in place of a text file")
    flag("--manifests", nargs="+", default=[], help="manifests: their audio and transcripts")
    flag("--dataset_dir", help="folder that audio paths in the manifests start from")
    flag("--ckpt", required=True, help="checkpoint or .nemo archive")
    flag("--ema", action=argparse.BooleanOptionalAction, default=True, help="averaged weights, where there are any")
    flag("--cpu", action="store_true", help="leave GPUs alone")
    flag("--precision", choices=tuple(PRECISIONS), help="default tf32 (GPU) or fp32 (CPU)")
    flag("--output_format", nargs="+", choices=tuple(WRITERS), default=["ctm"], help="what is written; default ctm")
    flag("-o", "--output_dir", default="results/", help="where alignments/ is made")
    return parser.parse_intermixed_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Aligns; returns the exit code. Raises UserError for anything a user can fix."""
    args = parse_arguments(argv)
    tasks = list_tasks(args)
    recognizer = load(args.ckpt, "cpu" if args.cpu else None, args.precision, ema=args.ema)
    names = output_names([task.source for task in tasks])
    folder = Path(args.output_dir) / "alignments"
    failures = 0
    with Progress(len(tasks), "aligning", "recordings") as bar:
        for task, name in zip(tasks, names, strict=True):
            try:
                transcript = align(recognizer, task)
            except UserError as error:
                print(f"warning: {error}", file=sys.stderr)
                failures += 1
            else:
                save_transcript(transcript, folder, name, args.output_format)
                print(f"{task.source}\t{len(transcript.words)} words, confidence {transcript.confidence:.3f}")
            bar.update()
    if failures:
        print(f"warning: {failures} of {len(tasks)} recordings could not be aligned, see above", file=sys.stderr)
    return NOT_ALIGNED if failures else 0


class Task(NamedTuple):
    """A recording, or a part of one, and what is said in it."""

    source: str  # its name
    path: Path
    offset: float  # s
    duration: float | None  # s; None: to the end
    text: str | None
    text_path: Path | None  # if there is no text


def list_tasks(args: argparse.Namespace) -> list[Task]:
    """What is to be aligned. Raises UserError where the words on the command line are no such list."""
    if bool(args.files) == bool(args.manifests):
        raise UserError("give AUDIO and TEXT files, or --manifests")
    if args.manifests:
        if args.text is not None:
            raise UserError("--text goes with one AUDIO file; manifests have transcripts of their own")
        utterances = (each for path in args.manifests for each in read_manifest(path, args.dataset_dir))
        return [
            Task(each.key, each.audio_path, each.offset, each.duration, each.transcript, None) for each in utterances
        ]
    if args.text is not None:
        if len(args.files) != 1:
            raise UserError(f"--text goes with one AUDIO file, not with {len(args.files)}")
        return [Task(args.files[0], Path(args.files[0]), 0.0, None, args.text, None)]
    if len(args.files) % 2:
        raise UserError(f"give a TEXT file for each AUDIO file: {len(args.files)} files are no pairs")
    pairs = zip(args.files[::2], args.files[1::2], strict=True)
    return [Task(audio, Path(audio), 0.0, None, None, Path(text)) for audio, text in pairs]


def align(recognizer: Recognizer, task: Task) -> Transcript:
    """The transcript with its times. Raises UserError naming the recording or the text file."""
    text = " ".join(read_lines(task.text_path)) if task.text is None else task.text
    samples = read_audio(task.path, recognizer.sample_rate, task.offset, task.duration)
    try:
        return dataclasses.replace(recognizer.align(samples, text), source=task.source)
    except UserError as error:
        raise UserError(f"{task.source}: {error}") from error


if __name__ == "__main__":
    run_main(main)
