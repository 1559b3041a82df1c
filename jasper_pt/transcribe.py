"""Transcribes files of any length, a stream of samples, or the microphone, and shows the words as they are heard.

    python -m jasper_pt.transcribe speech.flac lecture.mp3 FOLDER        files, one after the other, in bounded memory
    ... | python -m jasper_pt.transcribe -                               WAV, or raw 16-bit samples, from stdin
    python -m jasper_pt.transcribe --microphone                          until Ctrl+C

On a terminal the last line is what may still change; elsewhere each line is final. A file that cannot be read is named
and the others are still done; the exit code is then 3. Transcripts with times are written with --output_format.
"""

import argparse
import contextlib
import os
import queue
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

import jasper_pt
from jasper_pt.audio import MAX_AMPLITUDE, SAMPLE_RATES, UNREADABLE, list_audio
from jasper_pt.checkpoint import find_model
from jasper_pt.decoder_options import add_flags, choose_decoder
from jasper_pt.precision import PRECISIONS
from jasper_pt.streaming import FILE, STREAM, Stream, Update, Windows
from jasper_pt.transcript import WRITERS, Transcript, output_names, save_transcript
from runkit.errors import UserError, run_main

READ_SECONDS = 0.1  # of a stream at a time
LINE_PAUSE = 0.8  # s between words that begin a line
DTYPES = {(1, 8): np.uint8, (1, 16): "<i2", (1, 32): "<i4", (3, 32): "<f4"}  # WAV: format and bits of a sample


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="transcribe", description=__doc__.split("\n\n")[0])
    flag = parser.add_argument
    flag(
        "inputs",
        nargs="*",
        metavar="FILE|FOLDER|-",
        help="audio files, folders, text files of one path a line; -: stdin",
    )
    flag("--microphone", action="store_true", help="what the default input hears, until Ctrl+C")
    flag(
        "--model", metavar="PATH", help="checkpoint, .nemo archive or training folder; default: the newest in results/"
    )
    flag("--raw_weights", action="store_true", help="not the averaged (EMA) weights where there are any")
    flag("--precision", choices=tuple(PRECISIONS), help="default: tf32 on a GPU, fp32 on a CPU")
    flag("--cpu", action="store_true", help="leave GPUs alone")
    flag(
        "--live", action="store_true", help="treat files as streams too: short chunks, words as soon as they are known"
    )
    for name, what in (("chunk", "of a window"), ("left", "of context before it"), ("right", "of context behind it"),
                       ("memory", "over which loudness is evened out; 0: the window")):  # fmt: skip
        files, live = getattr(FILE, name), getattr(STREAM, name)
        flag(f"--{name}", type=float, metavar="SECONDS", help=f"seconds {what}; files {files:g}, streams {live:g}")
    flag("--rate", type=int, default=16000, help="samples a second of raw samples on stdin (default: %(default)s)")
    flag("--output_format", nargs="+", choices=tuple(WRITERS), default=[], help="also write transcripts in these forms")
    flag("-o", "--output_dir", default="results/transcripts", help="where to (default: %(default)s)")
    add_flags(parser)
    args = parser.parse_args(argv)
    if bool(args.inputs) == args.microphone:
        raise UserError("name files, folders or - (stdin), or give --microphone; one of the two")
    if "-" in args.inputs and args.inputs != ["-"]:
        raise UserError("- (stdin) cannot stand beside files")
    if args.rate not in SAMPLE_RATES:
        raise UserError(f"--rate {args.rate}: it must be {SAMPLE_RATES[0]} to {SAMPLE_RATES[-1]}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_arguments(argv)
    live = args.live or args.microphone or args.inputs == ["-"]
    given = {key: getattr(args, key) for key in ("chunk", "left", "right", "memory") if getattr(args, key) is not None}
    windows = Windows(**{**vars(STREAM if live else FILE), **given})
    files = [] if args.microphone or args.inputs == ["-"] else list_audio(args.inputs)
    model = find_model(args.model)
    recognizer = jasper_pt.load(model, "cpu" if args.cpu else None, args.precision, ema=not args.raw_weights)
    recognizer.decoder = choose_decoder(args, recognizer.labels)
    delay = f"; words are known {windows.latency:g} s after they were said, at most" if live else ""
    note(f"model {model} ({recognizer.precision}){delay}")

    display = Display(sys.stdout)
    if args.microphone:
        with microphone(recognizer.sample_rate) as pieces:
            transcripts = [listen(recognizer.stream(windows=windows), pieces, display)]
    elif args.inputs == ["-"]:
        rate, pieces = read_stream(sys.stdin.buffer, args.rate)
        transcripts = [listen(recognizer.stream(rate, windows), pieces, display)]
    else:
        transcripts = []
        for path in files:
            if len(files) > 1:
                note(f"{path}:")
            try:
                transcripts.append(recognizer.transcribe_long(path, windows, on_update=display.show))
            except UserError as error:
                note(f"warning: {error}")
            display.end_line()
    write_all(transcripts, args.output_format, Path(args.output_dir))
    missing = len(files) - len(transcripts) if files else 0
    if missing:
        note(f"warning: {missing} of {len(files)} audio files could not be read, see above")
    return UNREADABLE if missing else 0


def note(text: str) -> None:
    """For the reader, beside the words."""
    print(text, file=sys.stderr, flush=True)


# --------------------------------------------------------------------------------------------------------- the display
class Display:
    """Final words on lines of their own, a line a pause; on a terminal what may still change behind them."""

    def __init__(self, stream: IO[str]):
        self.stream, self.terminal = stream, stream.isatty()
        self._line: list[str] = []  # final words of the line begun
        self._end = 0.0

    def show(self, update: Update) -> None:
        for word in update.words:
            width = sum(len(each) + 1 for each in self._line)
            if self._line and (word.start - self._end > LINE_PAUSE or width + len(word.text) > 100):
                self.end_line()
            self._line.append(word.text)
            self._end = word.end
        if self.terminal:
            self.stream.write("\r\x1b[K" + self._text(update.pending))
            self.stream.flush()

    def end_line(self) -> None:
        """The line is complete."""
        if self._line:
            self.stream.write(("\r\x1b[K" if self.terminal else "") + " ".join(self._line) + "\n")
            self.stream.flush()
        self._line = []

    def _text(self, pending: str) -> str:
        """One line of the terminal: its end where it is too long."""
        width = max(20, _columns(self.stream) - 1)
        text = " ".join(self._line)
        return (
            f"{text} \x1b[2m{pending}\x1b[0m" if len(text) + len(pending) < width else f"{text} {pending}"[-width:]
        ).strip()


def _columns(stream: IO[str]) -> int:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.get_terminal_size(stream.fileno()).columns
    return 80


# ------------------------------------------------------------------------------------------------------------- sources
def listen(stream: Stream, pieces: Iterator[np.ndarray], display: Display) -> Transcript:
    """Feeds a stream until its source or the listener ends it (Ctrl+C); the last words are not lost."""
    heard = 0
    with contextlib.suppress(KeyboardInterrupt):
        for samples in pieces:
            update = stream.feed(samples)
            heard += len(update.words)
            display.show(update)
    transcript = stream.finish()
    display.show(Update(transcript.words[heard:], ""))
    display.end_line()
    return transcript


def read_stream(stream: IO[bytes], raw_rate: int) -> tuple[int, Iterator[np.ndarray]]:
    """The rate of a stream, and its samples float32 [N] in pieces: a WAV file, or raw 16-bit samples of one channel.

    Raises UserError for nothing at all and for WAV files of other sample formats.
    """
    start = stream.read(12)
    if not start:
        raise UserError("stdin: is empty")
    if start[:4] != b"RIFF" or start[8:] != b"WAVE":
        return raw_rate, _samples(stream, np.dtype("<i2"), 1, raw_rate, start)
    dtype = channels = rate = None
    while True:
        header = stream.read(8)
        if len(header) < 8:
            raise UserError("stdin: a WAV file that ends before its samples")
        name, size = header[:4], int.from_bytes(header[4:], "little")
        if name == b"data":
            break
        content = stream.read(min(size + size % 2, 1 << 20))
        if name == b"fmt " and len(content) >= 16:
            kind, channels, rate, _, _, bits = struct.unpack("<HHIIHH", content[:16])
            if kind == 0xFFFE and len(content) >= 26:  # "extensible": the format stands further behind
                kind = int.from_bytes(content[24:26], "little")
            dtype = DTYPES.get((kind, bits))
    if dtype is None or not channels or rate not in SAMPLE_RATES:
        raise UserError("stdin: a WAV file of an unusual format; 8, 16 or 32-bit samples or floats can be read")
    return rate, _samples(stream, np.dtype(dtype), channels, rate, b"")


def _samples(stream: IO[bytes], dtype: np.dtype, channels: int, rate: int, rest: bytes) -> Iterator[np.ndarray]:
    frame = dtype.itemsize * channels
    read = getattr(stream, "read1", stream.read)  # what is there by now
    while piece := read(max(1, int(READ_SECONDS * rate)) * frame):
        rest += piece
        whole = len(rest) // frame * frame
        values = np.frombuffer(rest[:whole], dtype).reshape(-1, channels)
        rest = rest[whole:]
        if dtype.kind == "u":
            values = (values.astype(np.float32) - 128) / 128
        elif dtype.kind == "i":
            values = values.astype(np.float32) / -float(np.iinfo(dtype).min)
        samples = values.astype(np.float32).mean(axis=1)
        if len(samples) and not np.abs(samples).max() <= MAX_AMPLITUDE:
            raise UserError("stdin: holds NaN or infinite samples, or absurd ones")
        yield samples


@contextlib.contextmanager
def microphone(rate: int) -> Iterator[Iterator[np.ndarray]]:
    """Yields the pieces that the default input hears, at `rate`. Raises UserError where there is none."""
    try:
        import sounddevice
    except (ImportError, OSError) as error:  # OSError: no PortAudio
        raise UserError(
            f"--microphone needs the package sounddevice and PortAudio ({error}): pip install sounddevice; on Debian "
            "and Ubuntu, apt-get install libportaudio2"
        ) from error
    heard: queue.Queue[np.ndarray] = queue.Queue()

    def hear(samples: np.ndarray, _frames: int, _time: Any, status: Any) -> None:
        if status:
            note(f"warning: microphone: {status}")
        heard.put(samples[:, 0].copy())

    try:
        with sounddevice.InputStream(rate, int(READ_SECONDS * rate), channels=1, dtype="float32", callback=hear):
            note("listening; Ctrl+C ends it")
            yield iter(heard.get, None)
    except sounddevice.PortAudioError as error:
        raise UserError(f"the microphone cannot be used: {error}") from error


def write_all(transcripts: Sequence[Transcript], forms: Sequence[str], folder: Path) -> None:
    """Each transcript in each form, named after its file."""
    names = output_names([transcript.source or "stream" for transcript in transcripts]) if transcripts else []
    for transcript, name in zip(transcripts, names, strict=True):
        save_transcript(transcript, folder, name, forms)
        for form in forms:
            note(f"written: {folder / name}.{form}")


if __name__ == "__main__":
    run_main(main)
