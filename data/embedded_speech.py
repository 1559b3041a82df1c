"""Read speech made on the spot, for machines without a corpus: espeak-ng reads sentences of a small grammar.

    python -m data.embedded_speech --output_dir data/embedded_speech [--train 2000] [--dev 200] [--test 200]
                                   [--language en|ru]

In LibriSpeech layout, 16 kHz mono FLAC: <output_dir>/{train,dev,test}/<speaker>/1/<speaker>-1-<utterance>.flac with
.trans.txt files, and librispeech-{train,dev,test}-wav.json beside the three folders. SPEAKERS.TXT tells the voices.
<speaker>-1.ctm tells when each word is said (NIST's form: utterance, channel, start, duration, word); words that
espeak-ng runs together ("of the") are one, joined by "_".

A voice is a timbre (espeak-ng's variants: larynx and formants) with an accent, a rate and a pitch. No timbre and no
sentence of one split is in another; the words, about 180, are the same everywhere (other languages than English:
data/embedded_languages.py). There is a little room noise, since
no real recording has samples that are exactly 0.

The same seed and sizes give the same bytes, however many processes make them.
"""

import argparse
import contextlib
import ctypes
import importlib.metadata
import itertools
import multiprocessing
import random
import re
import signal
from collections import deque
from collections.abc import Iterable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
import soxr

from data import embedded_languages
from data.embedded_languages import Grammar
from data.librispeech import manifest_name, write_manifest
from data.parallel import available_cores
from data.stage import RECORD, is_current
from runkit.errors import UserError, run_main
from runkit.files import atomic_directory, atomic_open, sha256_file, write_json
from runkit.progress import Progress

SAMPLE_RATE = 16_000  # Hz

# -------------------------------------------------------------------------------------------------------- sentences

# No two of these words sound the same, so that hearing is enough to spell them.
WORDS = {
    "Name": "anna peter maria david lucy thomas julia victor helen max zoe oscar emma george",
    "Owner": "anna peter lucy helen oscar max george",
    "Person": "doctor farmer teacher captain queen painter sailor baker lawyer driver singer judge",
    "Smiled": "smiled waited laughed slept jumped sang danced arrived vanished stopped",
    "Found": "found carried painted bought watched fixed opened dropped counted followed washed moved broke",
    "Adjective": "red blue green yellow heavy quiet little golden broken empty frozen clever quick lazy modern",
    "Thing": "box letter bicycle jacket mirror piano basket bottle hammer kettle lemon window puzzle violin ticket",
    "Things": "boxes letters bicycles jackets mirrors baskets bottles hammers lemons windows horses puzzles tickets",
    "Number": "two three four five six seven eight nine ten eleven twelve twenty thirty fifty ninety",
    "Place": "river kitchen market village station bridge school museum forest castle library office valley island",
    "Near": "near behind beside under inside above across from",
    "Day": "monday tuesday wednesday thursday friday saturday sunday",
    "Season": "summer winter autumn spring",
    "Meal": "breakfast lunch dinner noon",
    "Hour": "two three four five six seven eight nine ten eleven twelve",
    "We": "we they you",
    "Know": "know understand remember believe",
}
# Each rule: its forms, all as likely as the others; upper-case symbols are rules or WORDS, lower-case ones are spoken.
RULES = {
    "Sentence": [
        "Subject Smiled",
        "Subject Smiled Where",
        "Subject Smiled When",
        "Subject Smiled Where When",
        "Subject Found Object",
        "Subject Found Object Where",
        "Subject Found Object When",
        "When Subject Found Object",
        "When Subject Smiled",
        "Subject Found Object and Object",
        "Subject Smiled because Subject Smiled",
        "Subject Found Object but Subject Smiled",
        "where is the Adjective Thing",
        "who Found the Adjective Thing",
        "who Smiled Where",
        "We don't Know the Person",
        "We didn't Know why Subject Smiled",
        "it's Hour o'clock",
        "it's a Adjective Thing",
        "it's Owner's Adjective Thing",
    ],
    "Subject": ["Name", "Name", "the Person", "the Adjective Person", "Name and Name", "Number Things"],
    "Object": ["the Thing", "a Thing", "the Adjective Thing", "Number Things", "Owner's Thing", "Owner's Things"],
    "Where": ["Near the Place", "Near the Place", "Near the Adjective Place"],
    "When": ["yesterday", "today", *["on Day"] * 4, "last Season", "before Meal", "at Hour o'clock"],
}
MAX_WORDS = 9
ACCENTS = ("en-us", "en-gb-x-rp", "en-us-nyc", "en-gb-scotland")
ENGLISH = Grammar(WORDS, RULES, ACCENTS, ("the", "a", "and", "o'clock"))
GRAMMARS = {"en": ENGLISH} | embedded_languages.GRAMMARS


def sentence(random_source: random.Random, grammar: Grammar = ENGLISH) -> str:
    """One sentence of 2 to MAX_WORDS words."""
    while True:
        words = _expand("Sentence", random_source, grammar)
        if len(words) <= MAX_WORDS and not _has_twins(words, grammar):
            return " ".join(words).replace(" a empty", " an empty")


def _expand(symbol: str, random_source: random.Random, grammar: Grammar) -> list[str]:
    base, mark, suffix = symbol.partition("'")
    if base in grammar.words:
        return [random_source.choice(grammar.words[base].split()) + mark + suffix]
    if symbol in grammar.rules:
        form = random_source.choice(grammar.rules[symbol])
        return [word for part in form.split() for word in _expand(part, random_source, grammar)]
    return [symbol]


def _has_twins(words: Sequence[str], grammar: Grammar) -> bool:
    """Whether a word comes twice ("anna and anna"), articles and such aside."""
    content = [word for word in words if word not in grammar.articles]
    return len(set(content)) < len(content)


def sentences(n: int, seed: int, language: str = "en") -> list[str]:
    """n different sentences."""
    random_source = random.Random(f"sentences {seed}")
    found: dict[str, None] = {}
    misses = 0
    while len(found) < n:
        before = len(found)
        found.setdefault(sentence(random_source, GRAMMARS[language]))
        misses = misses + 1 if len(found) == before else 0
        if misses > 10_000:
            raise UserError(f"the grammar has not {n} different sentences: ask for fewer utterances")
    return list(found)


# ----------------------------------------------------------------------------------------------------------- voices

# Timbres by split. Robots and voices with an accent of their own are left out; and those with breath, which sounds
# different in every process.
TIMBRES = {
    "train": """m1 f4 m3 m5 Annie m7 m8 aunty Alex Denis belinda Gene Lee linda Mario Michael steph adam benjamin shelby
        boris david edward grandpa john max norbert quincy robert travis zac""".split(),
    "dev": "m2 grandma Mike rob Andrea Andy".split(),
    "test": "m4 f1 m6 anika michel pablo".split(),
}
ACCENTS_PER_TIMBRE = 2


class Speaker(NamedTuple):
    key: str
    voice: str  # as espeak-ng names it: accent+timbre
    rate: int  # words a minute
    pitch: int  # 0..100
    pitch_range: int  # 0..100


def speakers(split: str, seed: int, language: str = "en") -> list[Speaker]:
    """The voices of a split."""
    accents = GRAMMARS[language].accents
    random_source = random.Random(f"speakers {split} {seed}")
    first = {"train": 1001, "dev": 2001, "test": 3001}[split]
    voices = [
        f"{accents[(index + turn) % len(accents)]}+{timbre}"
        for turn in range(ACCENTS_PER_TIMBRE)
        for index, timbre in enumerate(TIMBRES[split])
    ]
    return [
        Speaker(
            str(first + number),
            voice,
            rate=random_source.randint(135, 185),
            pitch=random_source.randint(35, 65),
            pitch_range=random_source.randint(35, 65),
        )
        for number, voice in enumerate(voices)
    ]


# -------------------------------------------------------------------------------------------------------- synthesis


class Event(ctypes.Structure):
    """espeak_EVENT: what begins at a sample."""

    LIST_TERMINATED, WORD, PHONEME = 0, 1, 7
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),  # character, from 1
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),  # ms
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),  # of a phoneme: its name
    )


class SpokenWord(NamedTuple):
    text: str  # several words where espeak-ng runs them together ("of the")
    start: int  # sample
    end: int


class Espeak:
    """libespeak-ng through its C interface (espeak-ng/speak_lib.h).

    It carries state from one sentence to the next (the phase of flutter and noise) that cannot be set back, so that
    sound is the same only for the same sentences in the same order in a new process.
    """

    SYNCHRONOUS, PHONEME_EVENTS, DO_NOT_EXIT, UTF8 = 2, 1, 0x8000, 1
    RATE, VOLUME, PITCH, RANGE = 1, 2, 3, 4
    CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(Event))

    def __init__(self):
        loader = espeak_loader()
        self._library = ctypes.CDLL(loader.get_library_path())
        path = loader.get_data_path().encode()
        self.sample_rate = self._library.espeak_Initialize(
            self.SYNCHRONOUS, 0, path, self.DO_NOT_EXIT | self.PHONEME_EVENTS
        )
        if self.sample_rate <= 0:
            raise UserError("espeak-ng does not start: install espeakng-loader anew (bash scripts/setup.sh asr)")
        self._chunks: list[np.ndarray] = []
        self._events: list[tuple[int, int, int, bytes]] = []  # type, character from 0, sample, id
        self._callback = self.CALLBACK(self._take)  # kept here, since the library keeps no reference
        self._library.espeak_SetSynthCallback(self._callback)

    def _take(self, samples, n_samples: int, events) -> int:
        if samples and n_samples > 0:
            self._chunks.append(np.ctypeslib.as_array(samples, (n_samples,)).copy())
        index = 0
        while events[index].type != Event.LIST_TERMINATED:
            event = events[index]
            self._events.append((event.type, event.text_position - 1, event.sample, event.id))
            index += 1
        return 0

    def say(self, text: str, speaker: Speaker, volume: int = 60) -> np.ndarray:
        """int16 [N] at self.sample_rate. The volume is below espeak-ng's 100, where some voices clip."""
        self._chunks.clear()
        self._events.clear()
        if self._library.espeak_SetVoiceByName(speaker.voice.encode()) != 0:
            raise UserError(f"espeak-ng has no voice {speaker.voice}")
        values = (speaker.rate, volume, speaker.pitch, speaker.pitch_range)
        for parameter, value in zip((self.RATE, self.VOLUME, self.PITCH, self.RANGE), values, strict=True):
            self._library.espeak_SetParameter(parameter, value, 0)
        data = text.encode() + b"\0"
        self._library.espeak_Synth(data, ctypes.c_size_t(len(data)), 0, 0, 0, self.UTF8, None, None)
        self._library.espeak_Synchronize()
        return np.concatenate(self._chunks)

    def spoken_words(self, text: str) -> list[SpokenWord]:
        """When the words of the text said last were said. A word begins where espeak-ng says so (the closure of a stop
        belongs to it) and ends where the next one or a pause begins."""
        words = [(match.start(), match.end()) for match in re.finditer(r"\S+", text)]
        begun: dict[int, int] = {}  # word -> sample
        pauses = []
        for kind, character, sample, name in self._events:
            if kind == Event.WORD:
                begun.setdefault(next(i for i, (_, end) in enumerate(words) if character < end), sample)
            elif kind == Event.PHONEME and name.startswith(b"_"):
                pauses.append(sample)
        spoken = []
        for first, last in itertools.pairwise([*begun, len(words)]):
            start = begun[first]
            end = min(sample for sample in (*pauses, begun.get(last, pauses[-1])) if sample > start)
            spoken.append(SpokenWord(text[words[first][0] : words[last - 1][1]], start, end))
        return spoken


def espeak_loader():
    """The package that brings espeak-ng. Raises UserError where it is not installed."""
    try:
        import espeakng_loader
    except ImportError as error:
        raise UserError("espeakng-loader is not installed: bash scripts/setup.sh asr") from error
    return espeakng_loader


def require_voices() -> None:
    """Raises UserError when a timbre is not there: espeak-ng itself would go on with its plain voice."""
    folder = Path(espeak_loader().get_data_path(), "voices", "!v")
    missing = [timbre for timbres in TIMBRES.values() for timbre in timbres if not (folder / timbre).is_file()]
    if missing:
        raise UserError(f"this espeak-ng has no voices {', '.join(missing)}: install the pinned espeakng-loader")


class Reading(NamedTuple):
    """What one speaker reads; the work of one process."""

    speaker: Speaker
    texts: list[str]
    folder: Path  # of the split
    seed: int


def read_aloud(reading: Reading) -> None:
    """Writes <folder>/<speaker>/1/<speaker>-1-<utterance>.flac, the transcripts and the times of words."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process too
    speaker = reading.speaker
    random_source = random.Random(f"reading {speaker.key} {reading.seed}")
    espeak = Espeak()
    chapter = reading.folder / speaker.key / "1"
    chapter.mkdir(parents=True)
    lines, times = [], []
    for number, text in enumerate(reading.texts):
        today = speaker._replace(
            rate=round(speaker.rate * random_source.uniform(0.92, 1.08)),
            pitch=speaker.pitch + random_source.randint(-4, 4),
        )
        key = f"{speaker.key}-1-{number:04d}"
        samples, before = recording(espeak.say(text, today), espeak.sample_rate, random_source)
        soundfile.write(chapter / f"{key}.flac", samples, SAMPLE_RATE, subtype="PCM_16", format="FLAC")
        lines.append(f"{key} {text.upper()}\n")
        for words, *span in espeak.spoken_words(text):
            start, end = (before / SAMPLE_RATE + sample / espeak.sample_rate for sample in span)
            times.append(f"{key} 1 {start:.3f} {end - start:.3f} {words.replace(' ', '_')}\n")
    (chapter / f"{speaker.key}-1.trans.txt").write_text("".join(lines), encoding="utf-8")
    (chapter / f"{speaker.key}-1.ctm").write_text("".join(times), encoding="utf-8")


def recording(speech: np.ndarray, sample_rate: int, random_source: random.Random) -> tuple[np.ndarray, int]:
    """int16 [N] of synthesis -> int16 [N'] at SAMPLE_RATE: at some level, between short pauses, with room noise; and
    the samples of the pause before."""
    resampled = soxr.resample(speech.astype(np.float32), sample_rate, SAMPLE_RATE, quality="HQ")
    peak = random_source.uniform(0.25, 0.9)
    before, after = (round(random_source.uniform(0.05, 0.25) * SAMPLE_RATE) for _ in range(2))
    noise_level = 10 ** (random_source.uniform(-70, -55) / 20)
    signal_ = np.pad(resampled * (peak / np.abs(resampled).max()), (before, after))
    noise = np.random.default_rng(random_source.getrandbits(64)).normal(0.0, noise_level, len(signal_))
    return np.rint((signal_ + noise).clip(-1, 1) * (2**15 - 1)).astype(np.int16), before


# ------------------------------------------------------------------------------------------------------- the corpus

SPLITS = tuple(TIMBRES)


def make_corpus(
    output_dir: Path, sizes: dict[str, int], seed: int = 0, n_processes: int = 1, language: str = "en"
) -> None:
    """Makes the corpus unless it is there, whole and made in the same way. sizes: utterances by split.

    Raises UserError when output_dir holds such folders of another origin, or espeak-ng is not as it should be.
    """
    require_voices()
    version = importlib.metadata.version("espeakng-loader")
    inputs = [{"name": "espeakng-loader", "version": version}, {"name": "rules", "sha256": sha256_file(__file__)}]
    settings = {"seed": seed, **sizes}
    if language != "en":
        inputs.append({"name": "languages", "sha256": sha256_file(embedded_languages.__file__)})
        settings["language"] = language
    record = output_dir / RECORD
    if is_current(record, inputs, settings):
        print(f"{output_dir}: up to date")
        return
    for split in SPLITS:
        if (output_dir / split).exists() and not record.is_file():
            raise UserError(f"{output_dir / split} is there and was not made here; choose another --output_dir")
    write_json(record, {"inputs": inputs, "settings": settings, "files": {}})

    texts = iter(sentences(sum(sizes.values()), seed, language))
    with contextlib.ExitStack() as stack:
        readings = []
        for split in SPLITS:
            folder = stack.enter_context(atomic_directory(output_dir / split))
            voices = speakers(split, seed, language)[: sizes[split]]
            shares = [len(range(index, sizes[split], len(voices))) for index in range(len(voices))]
            for speaker, share in zip(voices, shares, strict=True):
                readings.append(Reading(speaker, [next(texts) for _ in range(share)], folder, seed))
        read_all(readings, n_processes)
    with atomic_open(output_dir / "SPEAKERS.TXT", "w") as stream:
        stream.write("; ID | SUBSET | VOICE | WORDS A MINUTE | PITCH | RANGE\n")
        for split in SPLITS:
            for speaker in speakers(split, seed, language)[: sizes[split]]:
                stream.write(" | ".join([speaker.key, split, *map(str, speaker[1:])]) + "\n")
    for split in SPLITS:
        write_manifest(output_dir / split, output_dir / manifest_name(split))
    made = [path for split in SPLITS for path in sorted((output_dir / split).rglob("*")) if path.is_file()]
    made += [output_dir / manifest_name(split) for split in SPLITS]
    files = {path.relative_to(output_dir).as_posix(): {"bytes": path.stat().st_size} for path in made}
    write_json(record, {"inputs": inputs, "settings": settings, "files": files})


def read_all(readings: Iterable[Reading], n_processes: int) -> None:
    """Reads everything, each reading in a process of its own (see Espeak), n_processes at a time."""
    # A server that has the imports done forks each of them in some milliseconds.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["data.librispeech"])  # and with it NumPy, soundfile, soxr
    waiting = deque(readings)
    running: dict[int, tuple[multiprocessing.process.BaseProcess, Reading]] = {}
    with Progress(sum(len(reading.texts) for reading in waiting), "reading aloud", "utterances") as progress:
        while waiting or running:
            while waiting and len(running) < n_processes:
                reading = waiting.popleft()
                process = context.Process(target=read_aloud, args=(reading,), daemon=True)
                process.start()
                running[process.sentinel] = process, reading
            for sentinel in wait(list(running)):
                process, reading = running.pop(sentinel)
                process.join()
                if process.exitcode != 0:
                    raise UserError(f"reading as {reading.speaker.voice} failed (exit {process.exitcode}), see above")
                progress.update(len(reading.texts))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--output_dir", type=Path, required=True)
    for split, size in (("train", 2000), ("dev", 200), ("test", 200)):
        parser.add_argument(f"--{split}", type=int, default=size, metavar="N", help=f"utterances (default: {size})")
    parser.add_argument("--language", choices=tuple(GRAMMARS), default="en", help="of sentences and voices")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n_processes", type=int, default=available_cores())
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    sizes = {split: getattr(arguments, split) for split in SPLITS}
    if min(sizes.values()) < 1 or arguments.n_processes < 1:
        raise UserError("--train, --dev, --test and --n_processes are at least 1")
    make_corpus(arguments.output_dir, sizes, arguments.seed, arguments.n_processes, arguments.language)


if __name__ == "__main__":
    run_main(main)
