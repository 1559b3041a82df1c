"""LibriSpeech (Panayotov et al. 2015, CC BY 4.0, openslr.org/12), and any folder in its layout.

    python -m data.librispeech download DATA_DIR [--subsets dev-clean ...] [--mirror URL_OR_FOLDER] [--remove_archives]
    python -m data.librispeech manifest FOLDER MANIFEST [--wav_dir DIR [--speeds 0.9 1.1] [--sample_rate HZ]]

Layout: sound files <speaker>-<chapter>-<utterance>.flac, at any depth, and beside them <speaker>-<chapter>.trans.txt
with a line "<speaker>-<chapter>-<utterance> WORDS" for each.

`manifest` needs the headers of the files only: seconds for 100 hours. FLAC is what is then trained on; with --wav_dir
it is converted to 16-bit WAV as the published scripts do, copies at other speeds included. The manifests of both are
named librispeech-<subset>-wav.json, because that is where the launchers look.

A manifest is a JSON array, an object a line:
    {"transcript": "lower-case words", "files": [{"fname": path relative to --dataset_dir (default: the manifest's
    folder), "speed": 1, "duration": s, "num_samples", "sample_rate", "channels", "bitdepth", "bitrate": bit/s,
    "encoding"}], "original_duration": s, "original_num_samples"}
with the file of speed 1 as the last of "files".
"""

import argparse
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
import soxr

from data.archives import unpacked
from data.download import fetch
from data.parallel import available_cores, ordered_map
from runkit.errors import UserError, run_main
from runkit.files import atomic_open, make_directory, read_lines, remove_abandoned
from runkit.progress import Progress

# -------------------------------------------------------------------------------------------------------- download


class Archive(NamedTuple):
    md5: str
    n_utterances: int


ARCHIVES = {
    "dev-clean": Archive("42e2234ba48799c1f50f24a7926300a1", 2703),
    "dev-other": Archive("c8d0bcc9cca99d4f8b62fcc847357931", 2864),
    "test-clean": Archive("32fa31d27d2e1cad72775fee3f4849a9", 2620),
    "test-other": Archive("fb5a50374b501bb3bac4815ee91d3135", 2939),
    "train-clean-100": Archive("2a93770f6d5c6c964bc36631d331a522", 28539),
    "train-clean-360": Archive("c0e676e450a7ff2f54aeade5171606fa", 104014),
    "train-other-500": Archive("d1a0fd59409feb2c614ce4d30c387708", 148688),
}
MIRRORS = (
    "https://www.openslr.org/resources/12",
    "https://us.openslr.org/resources/12",
    "https://openslr.elda.org/resources/12",
)


def download_subset(
    subset: str, data_dir: Path, mirrors: Iterable[str] = MIRRORS, remove_archive: bool = False
) -> None:
    """Leaves data_dir/<subset>, whole, and data_dir/<subset>.tar.gz unless remove_archive; goes on after an
    interruption.

    A folder that is there with all its utterances is left as it is. Raises UserError when it has not all of them, and
    as fetch and unpacked do.
    """
    folder, expected = data_dir / subset, ARCHIVES[subset]
    archive = data_dir / f"{subset}.tar.gz"
    if folder.exists():
        _require_utterances(folder, expected.n_utterances)
        remove_abandoned(data_dir, archive.name)
        if remove_archive:
            archive.unlink(missing_ok=True)
        print(f"{folder}: in place, {expected.n_utterances} utterances")
        return
    fetch([f"{mirror.rstrip('/')}/{archive.name}" for mirror in mirrors], archive, md5=expected.md5)
    with unpacked(archive, data_dir) as tree:
        top = tree / "LibriSpeech"
        if not (top / subset).is_dir():
            raise UserError(f"{archive}: there is no LibriSpeech/{subset} in it")
        _require_utterances(top / subset, expected.n_utterances)
        for path in top.iterdir():  # SPEAKERS.TXT, LICENSE.TXT ... are the same in every archive
            if path.is_file() and not (data_dir / path.name).exists():
                os.rename(path, data_dir / path.name)
        os.rename(top / subset, folder)
    if remove_archive:
        archive.unlink()
    print(f"{folder}: {expected.n_utterances} utterances")


def _require_utterances(folder: Path, wanted: int) -> None:
    found = sum(name.endswith(".flac") for _, _, names in os.walk(folder) for name in names)
    if found != wanted:
        raise UserError(
            f"{folder}: holds {found} FLAC files, and LibriSpeech has {wanted} there (stopped while unpacking?); "
            "remove the folder and run again"
        )


# ---------------------------------------------------------------------------------------------- what a folder holds

# In order of preference where one utterance is there twice.
SUFFIXES = (".flac", ".wav", ".ogg", ".opus", ".mp3", ".sph")


class Utterance(NamedTuple):
    key: str
    path: Path
    text: str  # as in the transcript file


class LeftOut(NamedTuple):
    key: str
    reason: str


def read_transcripts(path: Path) -> tuple[dict[str, str], list[LeftOut]]:
    """(text by utterance, lines that cannot be used) of a <...>.trans.txt file."""
    texts: dict[str, str] = {}
    left_out = []
    for line in read_lines(path):
        key, _, text = line.strip().partition(" ")
        if key in texts:
            left_out.append(LeftOut(key, f"a second line in {path.name}"))
        elif key and not text.strip():
            left_out.append(LeftOut(key, "no text"))
        elif key:
            texts[key] = text.strip()
    return texts, left_out


def find_utterances(folder: Path) -> tuple[list[Utterance], list[LeftOut]]:
    """Every utterance below folder with sound and text, sorted; and those that lack one of them. Hidden files and
    folders do not count."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    utterances: list[Utterance] = []
    left_out: list[LeftOut] = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names = sorted(name for name in names if not name.startswith("."))
        sounds: dict[str, Path] = {}
        for suffix in reversed(SUFFIXES):
            sounds |= {name[: -len(suffix)]: Path(place, name) for name in names if name.lower().endswith(suffix)}
        texts: dict[str, str] = {}
        for name in names:
            if name.endswith(".trans.txt"):
                found, unusable = read_transcripts(Path(place, name))
                texts |= found
                left_out += unusable
        utterances += [Utterance(key, sounds[key], texts[key]) for key in sorted(texts.keys() & sounds.keys())]
        left_out += [LeftOut(key, "no audio") for key in sorted(texts.keys() - sounds.keys())]
        named = texts.keys() | {key for key, _ in left_out}
        left_out += [LeftOut(key, "no transcript") for key in sorted(sounds.keys() - named)]
    return utterances, left_out


# --------------------------------------------------------------------------------------------------- files -> facts


def file_facts(path: Path, dataset_dir: Path, speed: float = 1) -> dict[str, Any]:
    """What a manifest says of a sound file, from its header alone. Raises UserError when it cannot be read."""
    try:
        header = soundfile.info(path)
    except soundfile.LibsndfileError as error:
        raise UserError(_cause(error)) from error
    n_samples, rate = header.frames, header.samplerate
    if not 0 < n_samples < np.iinfo(np.int64).max:
        raise UserError("no samples, by its header")
    absolute, root = os.path.abspath(path), os.path.abspath(dataset_dir)
    bits = re.search(r"\d+$", header.subtype)
    return {
        "fname": os.path.relpath(absolute, root) if absolute.startswith(root + os.sep) else absolute,
        "speed": speed,
        "duration": n_samples / rate,
        "num_samples": n_samples,
        "sample_rate": rate,
        "channels": header.channels,
        **({"bitdepth": int(bits[0])} if bits else {}),
        "bitrate": round(8 * os.path.getsize(path) * rate / n_samples),
        "encoding": f"{header.format} {header.subtype}",
    }


def _cause(error: soundfile.LibsndfileError) -> str:
    return f"cannot be decoded: {error.error_string.removeprefix('Error : ').strip(' .')}"


Facts = list[dict[str, Any]] | UserError  # of the files of one utterance


def facts_of(utterance: Utterance, dataset_dir: Path) -> Facts:
    try:
        return [file_facts(utterance.path, dataset_dir)]
    except UserError as error:
        return error


class Conversion(NamedTuple):
    source_dir: Path
    wav_dir: Path
    speeds: tuple[float, ...]  # besides 1
    sample_rate: int | None  # Hz; None: as it is


def convert(utterance: Utterance, dataset_dir: Path, conversion: Conversion) -> Facts:
    """Writes <wav_dir>/<as below source_dir>/<key>.wav, and <key>-<speed>.wav for other speeds; files that are there
    are kept. The channels become one."""
    folder = conversion.wav_dir / utterance.path.parent.relative_to(conversion.source_dir)
    targets = [(speed, folder / f"{utterance.key}-{speed:g}.wav") for speed in conversion.speeds]
    targets.append((1, folder / f"{utterance.key}.wav"))
    try:
        source = file_facts(utterance.path, dataset_dir)
        rate = conversion.sample_rate or source["sample_rate"]
        missing = [(speed, path) for speed, path in targets if not _is_converted(path, source, speed, rate)]
        if missing:
            samples, source_rate = soundfile.read(utterance.path, dtype="int16", always_2d=True)
    except soundfile.LibsndfileError as error:
        return UserError(_cause(error))
    except UserError as error:
        return error
    for speed, path in missing:
        make_directory(folder)
        _write_wav(path, _at_speed(samples, source_rate, speed, rate), rate)
    return [file_facts(path, dataset_dir, speed) for speed, path in targets]


def _is_converted(path: Path, source: dict[str, Any], speed: float, rate: int) -> bool:
    """Whether path is a whole conversion of a file with these facts: by its rate and its length."""
    if not path.exists():
        return False
    try:
        found = file_facts(path, path.parent, speed)
    except UserError:
        return False
    same_length = abs(found["duration"] * speed - source["duration"]) < 0.01
    return same_length and (found["sample_rate"], found["channels"]) == (rate, 1)


def _at_speed(samples: np.ndarray, from_rate: int, speed: float, to_rate: int) -> np.ndarray:
    """int16 [N, channels] to int16 [about N * to_rate / from_rate / speed]; untouched where nothing is to be done."""
    if samples.shape[1] == 1 and from_rate * speed == to_rate:
        return samples[:, 0]
    mono = samples.mean(axis=1, dtype=np.float32)
    # As sox's "speed": the samples are taken to be of a higher rate, so that they are fewer and higher in pitch.
    resampled = soxr.resample(mono, from_rate * speed, to_rate, quality="HQ")
    return np.clip(np.rint(resampled), -(2**15), 2**15 - 1).astype(np.int16)


def _write_wav(path: Path, samples: np.ndarray, sample_rate: int) -> None:
    """Whole or not at all; not forced to the disk, which takes too long for 100,000 files."""
    wav = io.BytesIO()
    soundfile.write(wav, samples, sample_rate, subtype="PCM_16", format="WAV")
    with atomic_open(path, sync=False) as stream:
        stream.write(wav.getbuffer())


# -------------------------------------------------------------------------------------------------------- manifests

NAMES_SHOWN = 20


def manifest_name(subset: str) -> str:
    """Where the launchers look for the manifest of a subset, whatever the format of its files."""
    return f"librispeech-{subset}-wav.json"


def write_manifest(
    folder: Path,
    manifest: Path,
    dataset_dir: Path | None = None,
    wav_dir: Path | None = None,
    speeds: Iterable[float] = (),
    sample_rate: int | None = None,
    n_processes: int = 1,
) -> int:
    """Writes the manifest of a folder in LibriSpeech layout; returns the number of utterances in it.

    What cannot be used is counted and named on the console, and in full in <manifest>.left_out.txt beside it. Raises
    UserError when nothing is left. See the head of this module for the rest.
    """
    dataset_dir = manifest.parent if dataset_dir is None else dataset_dir
    utterances, left_out = find_utterances(folder)
    if wav_dir is None:
        work = _facts_by_threads(utterances, dataset_dir)
    else:
        extra = tuple(sorted({float(speed) for speed in speeds} - {1.0}))
        conversion = Conversion(folder, wav_dir, extra, sample_rate)
        work = ordered_map(partial(convert, dataset_dir=dataset_dir, conversion=conversion), utterances, n_processes)
    entries: list[str] = []
    seconds = 0.0
    with Progress(len(utterances), manifest.name, "utterances") as progress:
        for utterance, files in zip(utterances, work, strict=True):
            if isinstance(files, UserError):
                left_out.append(LeftOut(utterance.key, str(files)))
            else:
                entries.append(json.dumps(_entry(utterance, files), ensure_ascii=False))
                seconds += files[-1]["duration"]
            progress.update()
    _report(manifest, left_out)
    if not entries:
        raise UserError(
            f"{folder}: no utterance with sound and text ({len(left_out)} left out); no manifest is written"
        )
    with atomic_open(manifest, "w") as stream:
        stream.write("[\n" + ",\n".join(entries) + "\n]\n")
    print(f"{manifest}: {len(entries)} utterances, {seconds / 3600:.2f} h")
    return len(entries)


def _facts_by_threads(utterances: list[Utterance], dataset_dir: Path) -> Iterator[Facts]:
    """Reading headers is waiting for the disk, above all for one far away: a few threads wait together."""
    with ThreadPoolExecutor(8) as pool:
        yield from pool.map(partial(facts_of, dataset_dir=dataset_dir), utterances)


def _entry(utterance: Utterance, files: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "transcript": " ".join(utterance.text.lower().split()),
        "files": files,
        "original_duration": files[-1]["duration"],
        "original_num_samples": files[-1]["num_samples"],
    }


def _report(manifest: Path, left_out: list[LeftOut]) -> None:
    full = manifest.with_suffix(".left_out.txt")
    full.unlink(missing_ok=True)
    if not left_out:
        return
    reasons = ", ".join(f"{n} {reason}" for reason, n in Counter(reason for _, reason in left_out).most_common(5))
    print(f"left out: {len(left_out)} ({reasons})")
    for key, reason in left_out[:NAMES_SHOWN]:
        print(f"  {key} {reason}")
    if len(left_out) > NAMES_SHOWN:
        print(f"  and {len(left_out) - NAMES_SHOWN} more, see {full}")
    with atomic_open(full, "w") as stream:
        stream.writelines(f"{key} {reason}\n" for key, reason in left_out)


# ------------------------------------------------------------------------------------------------------------- main


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    download = commands.add_parser("download", allow_abbrev=False, help="fetch, verify and unpack the archives")
    download.add_argument("data_dir", type=Path)
    download.add_argument("--subsets", nargs="+", choices=ARCHIVES, default=list(ARCHIVES), metavar="SUBSET")
    download.add_argument(
        "--mirror", nargs="+", default=list(MIRRORS), help="URLs or folders that hold <subset>.tar.gz"
    )
    download.add_argument("--remove_archives", action="store_true", help="each one once it is unpacked")
    manifest = commands.add_parser("manifest", allow_abbrev=False, help="list the utterances of a folder")
    manifest.add_argument("folder", type=Path)
    manifest.add_argument("manifest", type=Path)
    manifest.add_argument("--dataset_dir", type=Path, help="what file names are relative to (default: the manifest's)")
    manifest.add_argument("--wav_dir", type=Path, help="convert to 16-bit WAV here")
    manifest.add_argument("--speeds", type=float, nargs="*", default=[], help="copies at these speeds too")
    manifest.add_argument("--sample_rate", type=int, help="of the WAV files, Hz (default: as they are)")
    manifest.add_argument("--n_processes", type=int, default=available_cores(), help="for the conversion")
    return parser.parse_args()


def main() -> None:
    arguments = vars(parse_arguments())
    if arguments.pop("command") == "manifest":
        if arguments["wav_dir"] is None and (arguments["speeds"] or arguments["sample_rate"]):
            raise UserError("--speeds and --sample_rate are for a conversion: give --wav_dir")
        if any(not 0.1 <= speed <= 10 for speed in arguments["speeds"]):
            raise UserError(f"--speeds {arguments['speeds']}: factors between 0.1 and 10 are wanted")
        write_manifest(**arguments)
        return
    for subset in arguments["subsets"]:
        download_subset(subset, arguments["data_dir"], arguments["mirror"], arguments["remove_archives"])


if __name__ == "__main__":
    run_main(main)
