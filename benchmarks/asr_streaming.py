"""Long audio and streams: memory, word errors against utterance by utterance, the last word, latency.

    .venv/asr/bin/python benchmarks/asr_streaming.py CHECKPOINT [--minutes 60] [--out FILE.json]

CHECKPOINT is what scripts/quickstart.sh asr leaves; the synthetic corpus of the quickstart must be there (its test set
is what is spoken). Utterances are joined with half a second of faint noise between them, over and over, to a file of
--minutes; real ones (../shared/data, where they are there) too, of which the model knows nothing: there only the
difference between the two ways counts. Each measurement that is about memory runs in a process of its own.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import soundfile

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import jasper_pt  # noqa: E402
from jasper_pt.audio import read_audio  # noqa: E402
from jasper_pt.metrics import ErrorCounts, word_errors  # noqa: E402
from jasper_pt.streaming import FILE, STREAM, Windows  # noqa: E402
from runkit import machine  # noqa: E402
from runkit.errors import run_main  # noqa: E402
from runkit.files import write_json  # noqa: E402
from runkit.tables import text_table  # noqa: E402

RATE = 16000
GAP = 0.5  # s between utterances
CORPUS = ROOT / "data" / "embedded_speech"
REAL = ROOT.parent / "shared" / "data" / "speech_librispeech_test_other"
WAYS = {
    "windows of 30 s": (FILE, False),
    "the same, normalised over the file": (FILE, True),
    "windows of 10 s": (Windows(10, 3, 3, quiet=True), False),
    "stream": (STREAM, False),
    "stream, half the delay": (Windows(0.24, 4, 0.48, memory=15), False),
}


def utterances() -> dict[str, list[tuple[Path, str]]]:
    manifest = json.loads((CORPUS / "librispeech-test-wav.json").read_text())
    sets = {"synthetic": [(CORPUS / each["files"][0]["fname"], each["transcript"]) for each in manifest]}
    if REAL.is_dir():
        texts = [
            line.split(" ", 1) for file in sorted(REAL.rglob("*.trans.txt")) for line in file.read_text().splitlines()
        ]
        names = {path.stem: path for path in REAL.rglob("*.flac")}
        sets["real"] = [(names[name], text.lower()) for name, text in texts if name in names]
    return sets


def join(spoken: list[tuple[Path, str]], seconds: float, target: Path) -> list[str]:
    """Writes the utterances over and over; returns what is said in the file, utterance by utterance."""
    rng, said, length, index = np.random.default_rng(0), [], 0.0, 0
    with soundfile.SoundFile(target, "w", RATE, 1, "PCM_16") as file:
        while length < seconds:
            path, text = spoken[index % len(spoken)]
            samples = read_audio(path)
            gap = (rng.normal(size=int(GAP * RATE)) * 1e-3).astype(np.float32)
            file.write(samples)
            file.write(gap)
            length += (len(samples) + len(gap)) / RATE
            said.append(text)
            index += 1
    return said


def work(options) -> None:
    """In a process of its own: one file in one way; prints text, seconds and peak memory as JSON."""
    recognizer = jasper_pt.load(options.checkpoint)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    windows, whole = WAYS[options.way]
    started = time.perf_counter()
    transcript = recognizer.transcribe_long(options.work, windows, whole)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"text": transcript.text, "duration": transcript.duration, "seconds": seconds,
                      "peak_mib": peak / 1024, "model_mib": before / 1024}))  # fmt: skip


def last_words(recognizer, spoken: list[tuple[Path, str]], cuts: int) -> dict:
    """How often a stream that is cut off anywhere ends as one pass over the same samples does."""
    rng, same, kept, delays = np.random.default_rng(1), 0, 0, []
    for case in range(cuts):
        samples = np.concatenate([read_audio(spoken[(case + i) % len(spoken)][0]) for i in range(2)])
        samples = samples[: int(rng.integers(len(samples) // 2, len(samples)))]
        stream = recognizer.stream(windows=Windows(rng.uniform(0.1, 2), 4, rng.uniform(0.5, 2), memory=15))
        for piece in np.split(samples, np.cumsum(rng.integers(100, 16000, 200))):
            if len(piece):
                started = time.perf_counter()
                stream.feed(piece)
                delays.append(time.perf_counter() - started)
        heard = stream.finish().text.split()
        expected = recognizer.transcribe(samples).text.split()
        same += heard[-1:] == expected[-1:]
        kept += bool(heard) == bool(expected) and abs(len(heard) - len(expected)) <= 1
    return {"cuts": cuts, "a_last_word_was_heard": kept, "it_is_that_of_one_pass": same}


def latency(recognizer, spoken: list[tuple[Path, str]]) -> dict:
    """Milliseconds of computing for each chunk of a stream of some utterances."""
    samples = np.concatenate([read_audio(path) for path, _ in spoken[:20]])
    stream, chunk = recognizer.stream(), int(STREAM.chunk * RATE)
    seconds = []
    for start in range(0, len(samples), chunk):
        started = time.perf_counter()
        stream.feed(samples[start : start + chunk])
        seconds.append(time.perf_counter() - started)
    seconds = sorted(seconds[5:])
    return {
        "chunk_ms": 1000 * STREAM.chunk,
        "algorithmic_ms": 1000 * STREAM.latency,
        "computing_ms_median": 1000 * statistics.median(seconds),
        "computing_ms_p95": 1000 * seconds[int(0.95 * len(seconds))],
        "real_time_factor": sum(seconds) / (len(seconds) * STREAM.chunk),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "asr_streaming.json")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options)
        return
    recognizer, rows = jasper_pt.load(options.checkpoint), []
    sets = utterances()
    for name, spoken in sets.items():
        single = ErrorCounts()
        texts = {path: recognizer.transcribe(str(path)).text for path, _ in spoken}
        for path, text in spoken:
            single += word_errors([text], [texts[path]])
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "long.flac"
            said = join(spoken, 60 * options.minutes, file)
            alone = " ".join(texts[spoken[index % len(spoken)][0]] for index in range(len(said)))
            for way in WAYS:
                command = [sys.executable, __file__, options.checkpoint, "--work", str(file), "--way", way]
                found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                rows.append({
                    "speech": name,
                    "way": way,
                    "minutes": found["duration"] / 60,
                    "wer": 100 * word_errors([" ".join(said)], [found["text"]]).wer,
                    "wer_alone": 100 * single.wer,
                    "differs_from_alone": 100 * word_errors([alone], [found["text"]]).wer,
                    "peak_mib": found["peak_mib"],
                    "model_mib": found["model_mib"],
                    "times_real_time": found["duration"] / found["seconds"],
                })  # fmt: skip
                print(f"  {name}, {way}: {rows[-1]}", flush=True)
    print(text_table(rows))
    results = {"last_words": last_words(recognizer, sets["synthetic"], options.cuts),
               "latency": latency(recognizer, sets["synthetic"])}  # fmt: skip
    print(json.dumps(results, indent=2))
    write_json(options.out, {"machine": machine.describe(["torch"]), "rows": rows, **results})
    print(f"written: {options.out}")


if __name__ == "__main__":
    run_main(main)
