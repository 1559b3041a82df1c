"""How exact are times of words, how telling is their confidence, and what do alignment of an hour and many calls take?

    .venv/asr/bin/python benchmarks/asr_times.py --ckpt CKPT [--corpus data/embedded_speech] [--parts times confidence]
        [--out FILE.json]

Truth is what eSpeak NG tells of the synthetic corpus (its .ctm files), audio position by audio position. Parts:

times       errors of starts and ends of words, recognised (of those that are right) and aligned with the known text; of
            the test set, and of sentences with pauses at commas, read by the voices of the test set
confidence  words of the test set with noise at 20, 15 and 10 dB, right and wrong: area under the ROC curve (1: all
            right words are surer than all wrong ones; 0.5: chance) and normalised cross entropy (NIST; 1: certain, 0:
            as good as the rate of right words) of several formulas
hour        time and peak memory of aligning an hour, made of the test set over and over
calls       resident memory after 1,000 and after 11,000 calls of transcribe
"""

import argparse
import math
import multiprocessing
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jasper_pt

# isort: split
import numpy as np
import torch

from data.embedded_speech import Espeak, recording, sentences, speakers
from jasper_pt.audio import SAMPLE_RATE, read_audio
from jasper_pt.decode import greedy_tokens
from jasper_pt.manifest import read_manifest
from jasper_pt.metrics import word_errors
from jasper_pt.recognizer import Recognizer
from jasper_pt.transcript import Transcript
from runkit import machine
from runkit.errors import UserError, run_main
from runkit.files import write_json
from runkit.tables import text_table

PARTS = ("times", "confidence", "hour", "calls")
NOISE_DB = (20, 15, 10)  # signal to noise ratios, in turn


class Spoken(NamedTuple):
    audio: np.ndarray  # [N] float32 at SAMPLE_RATE
    text: str
    words: list[tuple[str, float, float]]  # start and end, s; several words joined by "_" where no border is known


# --------------------------------------------------------------------------------------------------------- speech
def read_corpus(folder: Path) -> list[Spoken]:
    """The test set with its times. Raises UserError where the corpus has none."""
    times: dict[str, list[tuple[str, float, float]]] = {}
    for path in sorted(folder.glob("test/**/*.ctm")):
        for line in path.read_text(encoding="utf-8").splitlines():
            key, _, start, duration, word = line.split()
            times.setdefault(key, []).append((word, float(start), float(start) + float(duration)))
    if not times:
        raise UserError(
            f"{folder} has no times of words: make it anew, python -m data.embedded_speech --output_dir DIR"
        )
    return [
        Spoken(read_audio(each.audio_path), each.transcript, times[each.audio_path.stem])
        for each in read_manifest(folder / "librispeech-test-wav.json")
    ]


def read_with_pauses(number: int) -> list[Spoken]:
    """One voice of the test set reads ten sentences with up to two commas each. (In a process of its own.)"""
    source = random.Random(number)
    speaker, espeak = speakers("test", 0)[number], Espeak()
    spoken = []
    for text in sentences(10 * (number + 1), seed=99)[-10:]:
        words = text.split()
        commas = set(source.sample(range(len(words) - 1), min(2, len(words) - 1)))
        said = " ".join(word + "," * (place in commas) for place, word in enumerate(words))
        samples, before = recording(espeak.say(said, speaker), espeak.sample_rate, source)
        times = [
            (word.replace(",", "").replace(" ", "_"), *(before / SAMPLE_RATE + at / espeak.sample_rate for at in span))
            for word, *span in espeak.spoken_words(said)
        ]
        spoken.append(Spoken(samples / np.float32(2**15), text, times))
    return spoken


def pink_noise(samples: np.ndarray, decibels: float, seed: int) -> np.ndarray:
    """The samples with noise of power ~ 1/f so many decibels below them."""
    noise = np.fft.rfft(np.random.default_rng(seed).standard_normal(len(samples)))
    noise /= np.sqrt(np.maximum(np.fft.rfftfreq(len(samples), 1 / SAMPLE_RATE), 50))
    noise = np.fft.irfft(noise, len(samples))
    noise *= samples.std() / noise.std() * 10 ** (-decibels / 20)
    mixed = samples + noise
    return (mixed * 0.5 / np.abs(mixed).max()).astype(np.float32)


# ---------------------------------------------------------------------------------------------------------- times
def matches(found: list[str], truth: list[str]) -> Iterator[tuple[int, int]]:
    """Places of words in both that a shortest edit script pairs, equal ones."""
    cost = np.zeros((len(found) + 1, len(truth) + 1), int)
    cost[:, 0], cost[0] = range(len(found) + 1), range(len(truth) + 1)
    for i in range(1, len(found) + 1):
        for j in range(1, len(truth) + 1):
            same = found[i - 1] == truth[j - 1]
            cost[i, j] = min(cost[i - 1, j - 1] + (not same), cost[i - 1, j] + 1, cost[i, j - 1] + 1)
    i, j = len(found), len(truth)
    while i and j:
        same = found[i - 1] == truth[j - 1]
        if cost[i, j] == cost[i - 1, j - 1] + (not same):
            i, j = i - 1, j - 1
            if same:
                yield i, j
        elif cost[i, j] == cost[i - 1, j] + 1:
            i -= 1
        else:
            j -= 1


def errors(transcript: Transcript, truth: list[tuple[str, float, float]]) -> np.ndarray:
    """Errors [words, 2] (ms) of start and end of each word that is in both."""
    pairs = matches([word.text for word in transcript.words], [word for word, _, _ in truth])
    rows = [(transcript.words[i].start - truth[j][1], transcript.words[i].end - truth[j][2]) for i, j in pairs]
    return 1000 * np.array(rows).reshape(-1, 2)


def measure_times(recognizer: Recognizer, corpus: list[Spoken]) -> list[dict]:
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        pauses = [each for made in pool.imap(read_with_pauses, range(12), chunksize=1) for each in made]
    rows = []
    for name, spoken in (("test set", corpus), ("with pauses", pauses)):
        ways = {
            "recognised": lambda each: recognizer.transcribe(each.audio),
            "aligned": lambda each: recognizer.align(each.audio, each.text),
        }
        for way, ask in ways.items():
            found = np.concatenate([errors(ask(each), each.words) for each in spoken])
            rows.append(
                {"speech": name, "words": way, "n": len(found)}
                | {
                    f"{edge} error ms": round(float(e), 1)
                    for edge, e in zip(("start", "end"), np.abs(found).mean(0), strict=True)
                }
                | {
                    f"{edge} bias ms": round(float(e), 1)
                    for edge, e in zip(("start", "end"), found.mean(0), strict=True)
                }
                | {"95 % within ms": round(float(np.quantile(np.abs(found), 0.95)), 1)}
            )
    return rows


# ------------------------------------------------------------------------------------------------------ confidence
def formulas(log_probs: np.ndarray, spans: list[tuple[int, int]]) -> dict[str, float]:
    """Confidence of a word by several formulas; log_probs [T,V], spans: frames of each of its labels.

    What a frame says: its greatest probability, or one minus its Gibbs or Tsallis entropy, normalised exponentially
    (Laptev and Ginsburg 2022, arXiv 2212.08703). Of a label: the best of its frames, or the mean.
    """
    p = np.exp(log_probs.astype(np.float64))
    n = p.shape[1]
    frames = {
        "probability": p.max(1),
        "Gibbs entropy": (n * np.exp((p * log_probs).sum(1)) - 1) / (n - 1),
    }
    tsallis = (n**0.5 - (p**0.5).sum(1)) / 0.5
    frames["Tsallis entropy, 1/2"] = np.expm1(tsallis) / np.expm1((n**0.5 - 1) / 0.5)
    found = {}
    for name, values in frames.items():
        for how, reduce in (("best", np.max), ("mean", np.mean)):
            labels = np.clip([reduce(values[start:end]) for start, end in spans], 1e-6, 1 - 1e-6)
            found |= {
                f"{name}, {how} frame: product": labels.prod(),
                f"{name}, {how} frame: minimum": labels.min(),
                f"{name}, {how} frame: mean": labels.mean(),
            }
    return found


def roc_area(right: np.ndarray, scores: np.ndarray) -> float:
    """The chance that a right word scores above a wrong one, ties one half (Mann and Whitney)."""
    difference = scores[right][:, None] - scores[~right][None]
    return float((difference > 0).mean() + (difference == 0).mean() / 2)


def cross_entropy(right: np.ndarray, scores: np.ndarray) -> float:
    """Normalised cross entropy of NIST's evaluations."""
    rate = right.mean()
    prior = -(rate * math.log2(rate) + (1 - rate) * math.log2(1 - rate))
    scores = np.clip(scores, 1e-4, 1 - 1e-4)
    return float((prior + np.log2(np.where(right, scores, 1 - scores)).mean()) / prior)


def measure_confidence(recognizer: Recognizer, corpus: list[Spoken]) -> list[dict]:
    right: list[bool] = []
    scores: dict[str, list[float]] = {}
    counts = word_errors([], [])
    for number, each in enumerate(corpus):
        noisy = pink_noise(each.audio, NOISE_DB[number % len(NOISE_DB)], seed=number)
        log_probs = recognizer.log_probs(noisy)
        (tokens,) = greedy_tokens(log_probs[None], torch.tensor([len(log_probs)]))
        words: list[tuple[str, list[tuple[int, int]]]] = [("", [])]
        for index, start, end in zip(tokens.ids, tokens.frames, tokens.ends, strict=True):
            label = recognizer.labels[index]
            words = (
                [*words, ("", [])]
                if label == " "
                else [*words[:-1], (words[-1][0] + label, [*words[-1][1], (start, end)])]
            )
        words = [word for word in words if word[0]]
        counts += word_errors([each.text], [" ".join(text for text, _ in words)])
        good = {i for i, _ in matches([text for text, _ in words], each.text.split())}
        for place, (_, spans) in enumerate(words):
            right.append(place in good)
            for name, value in formulas(log_probs.numpy(), spans).items():
                scores.setdefault(name, []).append(value)
    truth = np.array(right)
    print(f"WER {100 * counts.wer:.1f} %, {len(truth)} words, {100 * truth.mean():.1f} % of them right")
    return [
        {
            "formula": name,
            "ROC area": round(roc_area(truth, np.array(values)), 3),
            "NCE": round(cross_entropy(truth, np.array(values)), 3),
        }
        for name, values in scores.items()
    ]


# ---------------------------------------------------------------------------------------------------- what it takes
def measure_hour(recognizer: Recognizer, corpus: list[Spoken]) -> list[dict]:
    audio, text, truth, clock = [], [], [], 0.0
    while clock < 3600:
        for each in corpus:
            audio.append(each.audio)
            text.append(each.text)
            truth += [(word, start + clock, end + clock) for word, start, end in each.words]
            clock += len(each.audio) / SAMPLE_RATE
    samples = np.concatenate(audio)
    begun = time.process_time(), time.perf_counter()
    recognizer.log_probs(samples)
    heard = time.process_time(), time.perf_counter()
    transcript = recognizer.align(samples, " ".join(text))
    done = time.process_time(), time.perf_counter()
    # The words are as many as in the text; those that are run together in the truth are left out.
    found, place = [], 0
    for word, start, end in truth:
        said = transcript.words[place : place + word.count("_") + 1]
        place += len(said)
        found.append((said[0].start - start, said[-1].end - end))
    network = heard[0] - begun[0]
    return [
        {
            "seconds": round(clock),
            "words": len(transcript.words),
            "CPU s network": round(network, 1),
            "CPU s trellis": round(done[0] - heard[0] - network, 1),
            "wall s": round(done[1] - heard[1], 1),
            "peak GB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
            "error ms": round(float(1000 * np.abs(found).mean()), 1),
        }
    ]


def measure_calls(recognizer: Recognizer, corpus: list[Spoken]) -> list[dict]:
    def resident() -> float:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return round(pages * resource.getpagesize() / 1e6, 1)

    rows = []
    for calls in range(1, 11_001):
        recognizer.transcribe(corpus[calls % len(corpus)].audio)
        if calls in (1, 100, 1_000, 6_000, 11_000):
            rows.append({"calls": calls, "resident MB": resident()})
    return rows


MEASURE: dict[str, Callable[[Recognizer, list[Spoken]], list[dict]]] = {
    "times": measure_times,
    "confidence": measure_confidence,
    "hour": measure_hour,
    "calls": measure_calls,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--corpus", type=Path, default=Path("data/embedded_speech"))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["times", "confidence"])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    corpus = read_corpus(args.corpus)
    recognizer = jasper_pt.load(args.ckpt, device="cpu")
    results = {}
    for part in args.parts:
        results[part] = MEASURE[part](recognizer, corpus)
        print(f"\n{part}\n{text_table(results[part])}", flush=True)
        if args.out:
            write_json(args.out, {"machine": machine.describe(["torch", "numpy", "espeakng-loader"]), **results})


if __name__ == "__main__":
    run_main(main)
