"""What was said, when and how surely: transcripts with times of words and characters, and their written forms.

    transcript = transcript_of(tokens, labels, frame_seconds=0.02, duration=3.2)
    write_transcript(transcript, stream, "srt")

Forms: txt (the text), json (everything), ctm (NIST: words with times, for sclite), srt and vtt (subtitles). Times are
seconds from the start of the audio. docs/transcripts.md tells how times and confidences come about.
"""

import dataclasses
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from runkit.files import atomic_open

# Subtitles, by common broadcasters' guides: two lines of 42 characters, 1 to 7 seconds.
LINE_CHARACTERS = 42
CUE_LINES = 2
MIN_CUE_SECONDS, MAX_CUE_SECONDS = 1.0, 7.0
CUE_PAUSE = 1.0  # s without words that end a cue in any case


# How far a word reaches beyond the frames of its first and last labels, at most: what fits a model of this recipe best
# on the development set of the synthetic corpus. benchmarks/asr_times.py measures it.
EDGE = 0.04  # s


class Tokens(NamedTuple):
    """What was recognised in one utterance; the lists are parallel."""

    ids: list[int]  # indices of labels
    frames: list[int]  # output frame at which each begins
    confidences: list[float]  # the greatest probability of each over the frames it spans
    ends: Sequence[int] = ()  # output frame behind the last that each spans; empty: each spans one frame


@dataclasses.dataclass(frozen=True, slots=True)
class Character:
    """A label of the model: a letter, mostly. Blanks between words are not among them."""

    text: str
    start: float  # s
    end: float  # s
    confidence: float  # 0..1: the greatest probability of the label over the frames it spans


@dataclasses.dataclass(frozen=True, slots=True)
class Word:
    """What lies between two blanks."""

    text: str
    start: float  # s
    end: float  # s
    confidence: float  # 0..1: the product of its characters'


@dataclasses.dataclass(frozen=True, slots=True)
class Transcript:
    """What was said in one recording; words and characters in order, none of them overlapping."""

    text: str
    words: tuple[Word, ...]
    characters: tuple[Character, ...]
    confidence: float  # 0..1: the mean of its words', so about the part of them that is right; 1 without words
    duration: float  # s, of the audio
    source: str = ""  # the audio's path or name, if it has one

    @classmethod
    def of(
        cls, words: Sequence[Word], characters: Sequence[Character], duration: float, source: str = ""
    ) -> "Transcript":
        """The transcript of these words; its confidence is their mean."""
        text = " ".join(word.text for word in words)
        confidence = sum(word.confidence for word in words) / len(words) if words else 1.0
        return cls(text, tuple(words), tuple(characters), confidence, duration, source)

    def to_dict(self) -> dict:
        """Plain lists and numbers, times to a millisecond: what the json form holds."""
        units = {name: [_rounded(unit) for unit in getattr(self, name)] for name in ("words", "characters")}
        return _rounded(self) | units


def _rounded(unit: Character | Word | Transcript) -> dict:
    values = {field.name: getattr(unit, field.name) for field in dataclasses.fields(unit)}
    digits = {"start": 3, "end": 3, "duration": 3, "confidence": 4}
    return {name: round(value, digits[name]) if name in digits else value for name, value in values.items()}


def transcript_of(
    tokens: Tokens,
    labels: Sequence[str],
    frame_seconds: float,
    duration: float,
    source: str = "",
    first_frame: float = 0.0,
) -> Transcript:
    """The transcript that decoded tokens spell. A label " ", or one that begins with a blank, begins a word.

    frame_seconds: from one output frame to the next; duration (s): of the audio; first_frame: the second of the audio
    that output frame 0 stands for.

    Times: a label is sure to be said from its first frame to its last. What lies between two labels of a word is halved
    between them. Between two words each gets half, but no more than EDGE; so neighbours meet, and a pause stays one.
    The first word begins with its first label, since a label shows at once after silence.
    """
    begins_word = True
    spoken: list[tuple[str, bool, float]] = []  # text, whether it begins a word, confidence
    starts, stops = [], []  # s
    ends = tokens.ends or [frame + 1 for frame in tokens.frames]
    for index, frame, end, confidence in zip(tokens.ids, tokens.frames, ends, tokens.confidences, strict=True):
        begins_word |= labels[index].startswith(" ")
        if text := labels[index].strip():
            spoken.append((text, begins_word, confidence))
            starts.append(min(max(first_frame + frame * frame_seconds, 0.0), duration))
            stops.append(min(max(first_frame + end * frame_seconds, 0.0), duration))
            begins_word = False
    for i, (_, begins_word, _) in enumerate(spoken[1:]):
        reach = (starts[i + 1] - stops[i]) / 2
        if begins_word:
            reach = min(reach, EDGE)
        stops[i] += reach
        starts[i + 1] -= reach
    if spoken:
        stops[-1] = min(stops[-1] + EDGE, duration)

    characters = [
        Character(text, start, stop, confidence)
        for (text, _, confidence), start, stop in zip(spoken, starts, stops, strict=True)
    ]
    firsts = [i for i, (_, begins_word, _) in enumerate(spoken) if begins_word]
    words = []
    for first, last in itertools.pairwise([*firsts, len(spoken)]):
        part = characters[first:last]
        text = "".join(character.text for character in part)
        confidence = math.prod(character.confidence for character in part)
        words.append(Word(text, part[0].start, part[-1].end, confidence))
    return Transcript.of(words, characters, duration, source)


def respelled(transcript: Transcript, words: Sequence[str], pieces: Sequence[str]) -> Transcript:
    """The transcript with the words of a text; pieces: how the model's labels spell each of them ("$3" -> "three
    dollars"), together what the transcript spells. Words without a piece ("-") stay with the one before."""
    merged: list[list[str]] = []  # of each word: its spelling, what the labels spell
    before = ""
    for word, piece in zip(words, pieces, strict=True):
        if piece:
            merged.append([before + word, piece.replace(" ", "")])
            before = ""
        elif merged:
            merged[-1][0] += " " + word
        else:
            before += word + " "
    timed, rest = [], iter(transcript.characters)
    for text, piece in merged:
        part: list[Character] = []
        while sum(len(character.text) for character in part) < len(piece):
            part.append(next(rest))
        confidence = math.prod(character.confidence for character in part)
        timed.append(Word(text, part[0].start, part[-1].end, confidence))
    return dataclasses.replace(
        transcript,
        text=" ".join(words),
        words=tuple(timed),
        confidence=sum(word.confidence for word in timed) / len(timed),
    )


# ---------------------------------------------------------------------------------------------------------- the forms
def write_txt(transcript: Transcript, stream: TextIO) -> None:
    """The text and a line end."""
    stream.write(transcript.text + "\n")


def write_json(transcript: Transcript, stream: TextIO) -> None:
    """One object on one line: text, words, characters, confidence, duration, source. So files can be joined to JSON
    lines."""
    json.dump(transcript.to_dict(), stream, ensure_ascii=False)
    stream.write("\n")


def write_ctm(transcript: Transcript, stream: TextIO) -> None:
    """NIST's time-marked conversation form, a line a word: file, channel, start, duration, word, confidence.

    Files can be joined. The name of the file is that of the audio without folder and suffix. Blanks in it, and in words
    of a given text ("yes -"), would split the field and become "_". Source: NIST SCTK, doc/infmts.htm.
    """
    name = _field(Path(transcript.source).stem) or "audio"
    for word in transcript.words:
        start, end = round(word.start, 3), round(word.end, 3)
        stream.write(f"{name} 1 {start:.3f} {end - start:.3f} {_field(word.text)} {word.confidence:.4f}\n")


def _field(text: str) -> str:
    return re.sub(r"\s+", "_", text)


def write_srt(transcript: Transcript, stream: TextIO) -> None:
    """SubRip subtitles."""
    for number, (start, end, lines) in enumerate(cues(transcript.words), 1):
        text = "\n".join(lines)
        stream.write(f"{number}\n{_clock(start, ',')} --> {_clock(end, ',')}\n{text}\n\n")


def write_vtt(transcript: Transcript, stream: TextIO) -> None:
    """WebVTT subtitles (W3C); "&", "<" and ">" are escaped."""
    stream.write("WEBVTT\n")
    for start, end, lines in cues(transcript.words):
        text = "\n".join(lines).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        stream.write(f"\n{_clock(start, '.')} --> {_clock(end, '.')}\n{text}\n")


WRITERS = {"txt": write_txt, "json": write_json, "ctm": write_ctm, "srt": write_srt, "vtt": write_vtt}


def write_transcript(transcript: Transcript, stream: TextIO, form: str) -> None:
    """Writes one of the forms that WRITERS names."""
    WRITERS[form](transcript, stream)


def save_transcript(transcript: Transcript, folder: Path, name: str, forms: Iterable[str]) -> None:
    """Writes <folder>/<name>.<form> for each of the forms, whole or not at all."""
    for form in forms:
        path = folder / f"{name}.{form}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_open(path, "w") as stream:
            write_transcript(transcript, stream, form)


def output_names(sources: Sequence[str | os.PathLike]) -> list[str]:
    """A relative path without suffix for the outputs of each audio file, no two alike: the file's name; with folders
    where names repeat, and with its suffix where only that differs; then numbered."""
    paths = [Path(source) for source in sources]
    if len({path.stem for path in paths}) == len(paths):
        return [path.stem for path in paths]
    base = os.path.commonpath([path.absolute().parent for path in paths])
    names = [path.absolute().relative_to(base) for path in paths]
    if len({name.with_suffix("") for name in names}) == len(names):
        return [str(name.with_suffix("")) for name in names]
    seen: dict[str, int] = {}
    unique = []
    for name in map(str, names):
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name}.{seen[name]}")
    return unique


def _clock(seconds: float, point: str) -> str:
    """ "01:02:03,004" """
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}{point}{rest % 1000:03d}"


# ----------------------------------------------------------------------------------------------------------- subtitles
def cues(words: Sequence[Word]) -> Iterator[tuple[float, float, list[str]]]:
    """Subtitles as (start, end, lines): of at most CUE_LINES lines and MAX_CUE_SECONDS, unless one word alone is more.

    Of all ways to cut the words, the one of least cost: 1 for each cue, less for a pause behind it (a pause of
    CUE_PAUSE costs nothing), and the square of its length in parts of the greatest, which favours cues of like length.
    Cues shorter than MIN_CUE_SECONDS stay until that or the next cue.
    """
    pauses = [max(after.start - word.end, 0.0) for word, after in itertools.pairwise(words)]
    best = [0.0]  # least cost of the first n words
    starts = [0]  # of the last of their cues
    for end in range(1, len(words) + 1):
        saved = min(pauses[end - 1] / CUE_PAUSE, 1.0) if end < len(words) else 1.0
        costs = [(best[start] + 1 - saved + share**2, start) for start, share in _last_cues(words, pauses, end)]
        cost, start = min(costs)
        best.append(cost)
        starts.append(start)
    cuts = [len(words)]
    while cuts[-1]:
        cuts.append(starts[cuts[-1]])
    cuts.reverse()
    for first, last in itertools.pairwise(cuts):
        start, end = words[first].start, words[last - 1].end
        after = words[last].start if last < len(words) else float("inf")
        yield start, max(end, min(start + MIN_CUE_SECONDS, after)), _lines(words[first:last])


def _last_cues(words: Sequence[Word], pauses: Sequence[float], end: int) -> Iterator[tuple[int, float]]:
    """Where a cue that ends before word `end` can start, and its length in parts of the greatest."""
    length = 0
    for start in range(end - 1, -1, -1):
        length += len(words[start].text) + (start < end - 1)
        alone = start == end - 1
        seconds = words[end - 1].end - words[start].start
        fits = seconds <= MAX_CUE_SECONDS and len(_lines(words[start:end])) <= CUE_LINES
        if not alone and (not fits or pauses[start] >= CUE_PAUSE):
            return
        yield start, length / (CUE_LINES * LINE_CHARACTERS)


def _lines(words: Sequence[Word]) -> list[str]:
    """The words in as few lines of LINE_CHARACTERS as hold them; two lines of about the same length."""
    texts = [word.text for word in words]
    whole = " ".join(texts)
    if len(whole) <= LINE_CHARACTERS or len(texts) == 1:
        return [whole]
    halves = [(" ".join(texts[:cut]), " ".join(texts[cut:])) for cut in range(1, len(texts))]
    balanced = min(halves, key=lambda pair: max(map(len, pair)))
    if max(map(len, balanced)) <= LINE_CHARACTERS:
        return list(balanced)
    lines: list[str] = []
    for text in texts:
        if lines and len(lines[-1]) + 1 + len(text) <= LINE_CHARACTERS:
            lines[-1] += " " + text
        else:
            lines.append(text)
    return lines
