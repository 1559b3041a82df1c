"""What is in manifests, before days are spent on them: run_training --check_data.

Every sound file is decoded once. What is looked at: durations, sample rates, characters and the rules for transcripts,
whether CTC can align each text (frames for its labels, and one between equal neighbours), duplicates by sound and by
text, also between training and dev data, pace (characters a second), silence, files that cannot be read. Problems are

    fatal      training would fail, or learn from wrong pairs; the exit code is then 1
    warning    utterances are left out or of doubtful use
"""

import argparse
import hashlib
import math
import statistics
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jasper_pt.audio import audio_info, read_audio
from jasper_pt.config import Config
from jasper_pt.loader import output_frames
from jasper_pt.manifest import N_THREADS, Utterance, read_manifest
from jasper_pt.text import encode, frames_needed, transcript_rules
from runkit.errors import UserError
from runkit.files import make_directory, write_json
from runkit.progress import Progress
from runkit.tables import text_table

SHOWN = 5  # examples of a problem on the console; the file has all
SILENCE = 10 ** (-60 / 20)  # peak of full scale
PACE_FACTOR = 2.5  # slower or faster than the median by this is an outlier
UNKNOWN_SHARE = 0.01  # of characters that have no label: beyond it the labels are of another language
QUANTILES = {"shortest": 0.0, "5 %": 0.05, "median": 0.5, "95 %": 0.95, "longest": 1.0}


class Sound(NamedTuple):
    """What decoding an utterance's part of its file showed."""

    digest: str
    seconds: float
    sample_rate: int  # Hz, of the file
    channels: int
    peak: float  # of full scale


def training(args: argparse.Namespace, config: Config) -> int:
    """The report on the manifests of a training: on the console and in <output_dir>/data_report.json; the exit code."""
    subsets = {"train": args.train_manifests, "dev": args.val_manifests}
    utterances = {
        name: [utterance for path in paths for utterance in read_manifest(path, args.dataset_dir)]
        for name, paths in subsets.items()
    }
    found = report(utterances, config)
    print(text(found))
    target = Path(args.output_dir, "data_report.json")
    make_directory(target.parent)
    write_json(target, found)
    print(f"written: {target}")
    return 1 if found["fatal"] else 0


def report(subsets: dict[str, Sequence[Utterance]], config: Config) -> dict[str, Any]:
    """Figures of each subset ("train", "dev"), and the problems: {"subsets", "fatal", "warning"}, the last two lists of
    {"subset", "problem", "count", "examples"}."""
    sounds = {name: _listen(utterances, config.input_val.audio.sample_rate) for name, utterances in subsets.items()}
    problems: list[dict[str, Any]] = []

    def tell(severity: str, subset: str, problem: str, examples: Sequence[str]) -> None:
        if examples:
            found = {"severity": severity, "subset": subset, "problem": problem, "count": len(examples)}
            problems.append(found | {"examples": list(examples)})

    figures = {name: _subset(name, subsets[name], sounds[name], config, tell) for name in subsets}
    _between(subsets, sounds, tell)
    kinds = {kind: [p for p in problems if p["severity"] == kind] for kind in ("fatal", "warning")}
    return {"subsets": figures} | {
        kind: [{key: value for key, value in p.items() if key != "severity"} for p in found]
        for kind, found in kinds.items()
    }


def _listen(utterances: Sequence[Utterance], sample_rate: int) -> list[Sound | UserError]:
    def listen(utterance: Utterance) -> Sound | UserError:
        try:
            info = audio_info(utterance.audio_path)
            samples = read_audio(utterance.audio_path, sample_rate, utterance.offset, utterance.duration or None)
        except UserError as error:
            return error
        digest = hashlib.sha256(np.ascontiguousarray(samples)).hexdigest()
        peak = float(np.abs(samples).max(initial=0.0))
        return Sound(digest, len(samples) / sample_rate, info.sample_rate, info.channels, peak)

    with ThreadPoolExecutor(N_THREADS) as pool, Progress(len(utterances), "listening", "utterances") as progress:
        sounds = []
        for sound in pool.map(listen, utterances):
            sounds.append(sound)
            progress.update(1)
    return sounds


def _subset(
    name: str, utterances: Sequence[Utterance], sounds: Sequence[Sound | UserError], config: Config, tell: Callable
) -> dict[str, Any]:
    inputs = (config.input_train if name == "train" else None) or config.input_val
    labels, rules = config.labels, transcript_rules(inputs.audio.normalize_transcripts, config.labels)
    whole = [(u, s) for u, s in zip(utterances, sounds, strict=True) if isinstance(s, Sound)]
    unknown: Counter[str] = Counter()
    characters: Counter[str] = Counter()
    texts = [rules(utterance.transcript, labels, unknown) for utterance, _ in whole]
    for line in texts:
        characters.update(line)

    tell("fatal", name, "cannot be read", [str(s) for s in sounds if isinstance(s, UserError)])
    emptied = [f"{u.key}: {u.transcript[:60]!r}" for (u, _), line in zip(whole, texts, strict=True)
               if not line and u.transcript]  # fmt: skip
    tell("fatal", name, "nothing of the transcript has a label", emptied)
    tell("warning", name, "no transcript", [u.key for u, _ in whole if not u.transcript])
    tell("warning", name, "silent", [u.key for u, s in whole if s.peak < SILENCE])
    low, high = inputs.audio.min_duration, inputs.audio.max_duration
    tell("warning", name, f"shorter than min_duration {low:g} s, left out", [_length(u) for u, s in whole
                                                                             if s.seconds < low])  # fmt: skip
    tell("warning", name, f"longer than max_duration {high:g} s, left out", [_length(u) for u, s in whole
                                                                             if s.seconds > high])  # fmt: skip
    infeasible, stride = [], config.stride
    for (utterance, sound), line in zip(whole, texts, strict=True):
        needed, there = frames_needed(encode(line, labels)), output_frames(sound.seconds, inputs.features, stride)
        if needed > there:
            infeasible.append(f"{utterance.key}: needs {needed} frames, has {there}")
    left_out = "left out" if name == "train" else "in part wrong in any case"
    kind = "fatal" if whole and len(infeasible) > len(whole) / 2 else "warning"
    tell(kind, name, f"more text than CTC can align, {left_out}", infeasible)
    tell("fatal", name, "not one utterance can be used", [] if whole else ["all of them"])

    total = characters.total() + unknown.total()
    missing = [f"{c!r} {unicodedata.name(c, 'without a name')} x {n}" for c, n in unknown.most_common()]
    severe = name == "train" and unknown.total() > UNKNOWN_SHARE * total and any(map(str.isalpha, unknown))
    tell("fatal" if severe else "warning", name, "characters without a label, dropped", missing)
    digits = [u.key for u, _ in whole if any(map(str.isdigit, u.transcript))]
    if any(map(str.isdigit, unknown)):
        tell("warning", name, "digits in transcripts: numbers are spelled out in English only; write them as words",
             digits)  # fmt: skip
    spelled = {index for line in texts for index in encode(line, labels)}
    unused = [repr(label) for index, label in enumerate(labels) if index not in spelled]
    tell("warning", name, "labels that do not occur, and are not learnt", unused if name == "train" else [])
    rates = Counter(s.sample_rate for _, s in whole)
    wanted = inputs.audio.sample_rate
    tell("warning", name, f"of a lower sample rate than {wanted} Hz (what lies above is not there)",
         [f"{u.key}: {s.sample_rate} Hz" for u, s in whole if s.sample_rate < wanted])  # fmt: skip

    pace = {u.key: len(line) / s.seconds for (u, s), line in zip(whole, texts, strict=True) if line and s.seconds}
    median = statistics.median(pace.values()) if pace else math.nan
    odd = [key for key, value in pace.items() if abs(math.log(value / median)) > math.log(PACE_FACTOR)]
    tell("warning", name, f"pace far from {median:.1f} characters a second (text and sound may not belong together)",
         [f"{key}: {pace[key]:.1f} characters a second" for key in odd])  # fmt: skip
    _duplicates(name, whole, texts, tell)

    seconds = sorted(s.seconds for _, s in whole)
    return {
        "utterances": len(utterances),
        "readable": len(whole),
        "hours": sum(seconds) / 3600,
        "seconds": {title: _quantile(seconds, share) for title, share in QUANTILES.items()},
        "characters_a_second": {title: _quantile(sorted(pace.values()), share) for title, share in QUANTILES.items()},
        "sample_rates": {str(rate): count for rate, count in rates.most_common()},
        "channels": {str(channels): count for channels, count in Counter(s.channels for _, s in whole).most_common()},
        "words": sum(len(line.split()) for line in texts),
        "different_words": len({word for line in texts for word in line.split()}),
        "different_texts": len(set(texts)),
        "characters": dict(characters.most_common()),
        "unknown_characters": dict(unknown.most_common()),
    }


def _duplicates(name: str, whole: Sequence[tuple[Utterance, Sound]], texts: Sequence[str], tell: Callable) -> None:
    """The same sound more than once, told apart by whether it has the same words each time."""
    by_sound: dict[str, list[int]] = defaultdict(list)
    for index, (_, sound) in enumerate(whole):
        by_sound[sound.digest].append(index)
    groups = [group for group in by_sound.values() if len(group) > 1]
    for severity, problem, wanted in (
        ("fatal", "the same sound with different words", True),
        ("warning", "the same sound and words more than once", False),
    ):
        found = [g for g in groups if (len({texts[index] for index in g}) > 1) == wanted]
        tell(severity, name, problem, [" = ".join(whole[index][0].key for index in group) for group in found])


def _between(
    subsets: dict[str, Sequence[Utterance]], sounds: dict[str, list[Sound | UserError]], tell: Callable
) -> None:
    """Dev utterances that are trained on."""
    trained = {s.digest: u.key for u, s in zip(subsets["train"], sounds["train"], strict=True) if isinstance(s, Sound)}
    heard = [
        f"{u.key} = {trained[s.digest]}"
        for u, s in zip(subsets["dev"], sounds["dev"], strict=True)
        if isinstance(s, Sound) and s.digest in trained
    ]
    tell("fatal", "dev", "the same sound as in the training data", heard)
    read = {u.transcript for u in subsets["train"] if u.transcript}
    tell("warning", "dev", "the same text as in the training data", [u.key for u in subsets["dev"]
                                                                     if u.transcript in read])  # fmt: skip


def _length(utterance: Utterance) -> str:
    return f"{utterance.key}: {utterance.duration:.2f} s"


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    """The value below which lies this share of the sorted values."""
    return ordered[round(share * (len(ordered) - 1))] if ordered else None


def text(found: dict[str, Any]) -> str:
    """The report for the console."""
    rows = []
    for name, figures in found["subsets"].items():
        rates = ", ".join(f"{rate} Hz x {count}" for rate, count in figures["sample_rates"].items())
        rows += [
            [name, "utterances", f"{figures['utterances']}, {figures['hours']:.2f} h, {rates or 'none readable'}"],
            [name, "duration (s)", _spread(figures["seconds"])],
            [name, "characters a second", _spread(figures["characters_a_second"])],
            [name, "texts", f"{figures['different_texts']} different, {figures['different_words']} different words"],
            [name, "characters", " ".join(f"{c if c != ' ' else '_'}:{n}" for c, n in figures["characters"].items())],
        ]
    lines = [text_table(rows, ["data", "what", "figures"])]
    for kind in ("fatal", "warning"):
        for problem in found[kind]:
            more = problem["count"] - SHOWN
            lines.append(f"{kind}: {problem['subset']}: {problem['count']} x {problem['problem']}")
            lines += [f"    {example}" for example in problem["examples"][:SHOWN]]
            lines += [f"    and {more} more"] if more > 0 else []
    count = {kind: len(found[kind]) for kind in ("fatal", "warning")}
    lines.append(f"{count['fatal']} fatal problems, {count['warning']} warnings")
    return "\n".join(lines)


def _spread(values: dict[str, float | None]) -> str:
    return ", ".join(f"{title} {value:.2f}" for title, value in values.items() if value is not None)
