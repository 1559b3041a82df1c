"""Lists of utterances: which sound file, which words, how long.

Three forms are read. The published one is a JSON array of

    {"transcript": "...", "files": [{"fname": "...", "speed": 1, "duration": 2.9}, ...], "original_duration": 2.9}

(data/librispeech.py writes it); the same objects may stand one a line; and so may NeMo's, {"audio_filepath": "...",
"duration": 2.9, "text": "...", "offset": 0.0}. "text_filepath" may stand for the words of either.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from jasper_pt.audio import AudioInfo, audio_info
from runkit.errors import UserError
from runkit.files import atomic_open, parse_json, read_lines

N_THREADS = 8  # reading headers is waiting for the disk
DURATION_TOLERANCE = 0.1  # s; durations in manifests are rounded, those of lossy files are estimates
CUT_TOLERANCE = 0.5  # s
NAMES_SHOWN = 20


class Utterance(NamedTuple):
    audio_path: Path  # the file of speed 1
    transcript: str  # as in the manifest, without blanks at the ends
    duration: float  # s, from offset; 0 where neither manifest nor file tells: check_files names the reason
    sample_rate: int | None  # Hz, where the manifest tells
    offset: float  # s
    speeds: tuple[tuple[Path, float, float], ...]  # every file: path, speed, duration (s); the one of speed 1 too
    key: str  # the file as named in the manifest, and "@<offset>" where that is not 0


# --------------------------------------------------------------------------------------------------------- reading


def read_manifest(
    path: str | os.PathLike, dataset_dir: str | os.PathLike | None = None, *, spoken: bool = True
) -> list[Utterance]:
    """Reads a manifest. Relative audio paths are below dataset_dir, by default the manifest's own folder. spoken: false
    for sounds without words; transcripts are then empty and need not be there.

    A relative `path` that is not there is looked for in dataset_dir. A duration that is absent, or no positive
    number, is read from the file. Raises UserError naming the manifest, the line or entry, and the key.
    """
    path = Path(path)
    if dataset_dir is not None and not path.exists() and (Path(dataset_dir) / path).exists():
        path = Path(dataset_dir) / path
    root = path.parent if dataset_dir is None else Path(dataset_dir)
    wordless = {} if spoken else {"transcript": ""}
    utterances = [_utterance(entry | wordless, where, root) for where, entry in _entries(path)]
    if not utterances:
        raise UserError(f"{path}: no utterances in it")
    untold = [index for index, utterance in enumerate(utterances) if not utterance.duration]
    infos = _infos(utterances[index].audio_path for index in untold)
    for index in untold:
        info = infos[utterances[index].audio_path]
        if isinstance(info, AudioInfo):
            duration = max(info.duration - utterances[index].offset, 0.0)
            utterances[index] = _with_duration(utterances[index], duration)
    return utterances


def _entries(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The JSON objects of a manifest, each with the words by which a message names its place."""
    lines = list(read_lines(path))
    first = next((line.lstrip() for line in lines if line.strip()), "")
    if first.startswith("["):
        try:
            entries = parse_json("\n".join(lines))
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from error
        places = (f"{path}: entry {number}" for number in range(1, len(entries) + 1))
    else:
        entries, places = [], []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                entries.append(parse_json(line))
            except json.JSONDecodeError as error:
                raise UserError(
                    f"{path}:{number}: not valid JSON: {error.msg} (column {error.colno}); a manifest is one JSON "
                    "object a line, or one array of objects"
                ) from error
            places.append(f"{path}:{number}")
    for place, entry in zip(places, entries, strict=True):
        if not isinstance(entry, dict):
            raise UserError(f"{place}: an object is wanted, not {json.dumps(entry)[:60]}")
        yield place, entry


def _utterance(entry: dict[str, Any], where: str, root: Path) -> Utterance:
    if "files" in entry:
        files = entry["files"]
        if not isinstance(files, list) or not files or not all(isinstance(file, dict) for file in files):
            raise UserError(f"{where}: 'files' is not a list of objects")
        names = [_text(file, ("fname",), f"{where}, 'files'") for file in files]
        speeds = [_number(file.get("speed", 1)) for file in files]
        if 1.0 not in speeds:
            raise UserError(f"{where}: no file of speed 1 among 'files'")
        plain = speeds.index(1.0)
        durations = [_duration(file.get("duration")) for file in files]
        duration = _duration(entry.get("original_duration")) or durations[plain]
        sample_rate = files[plain].get("sample_rate")
    else:
        names, speeds, plain = [_text(entry, ("audio_filepath",), where)], [1.0], 0
        durations = [duration] = [_duration(entry.get("duration"))]
        sample_rate = entry.get("sample_rate")
    offset = _number(entry.get("offset") or 0.0)
    if not 0 <= offset < math.inf:
        raise UserError(f"{where}: 'offset' is {entry['offset']!r}, not a number of seconds")
    paths = [root / name for name in names]
    return Utterance(
        audio_path=paths[plain],
        transcript=_transcript(entry, where, root).strip(),
        duration=duration,
        sample_rate=sample_rate if isinstance(sample_rate, int) else None,
        offset=offset,
        speeds=tuple(zip(paths, speeds, durations, strict=True)),
        key=names[plain] + (f"@{offset:g}" if offset else ""),
    )


def _transcript(entry: dict[str, Any], where: str, root: Path) -> str:
    if "text_filepath" in entry and "transcript" not in entry and "text" not in entry:
        path = root / _text(entry, ("text_filepath",), where)
        if not os.path.isfile(path):  # a device or a pipe might never end
            raise UserError(f"{where}: there is no file {os.fspath(path)!r}, its 'text_filepath'")
        return " ".join(read_lines(path))
    return _text(entry, ("transcript", "text"), where)


def _text(entry: dict[str, Any], keys: Sequence[str], where: str) -> str:
    """The value of the first of these keys that is there. Raises UserError naming them where none is."""
    for key in keys:
        if key in entry:
            if not isinstance(entry[key], str):
                raise UserError(f"{where}: {key!r} is {json.dumps(entry[key])[:60]}, not a string")
            return entry[key]
    wanted = " or ".join(map(repr, keys))
    raise UserError(f"{where}: no {wanted}; its keys are: {', '.join(entry) or 'none'}")


def _number(value: Any) -> float:
    """A number, or a string that is one; NaN otherwise."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _duration(value: Any) -> float:
    """A positive finite number of seconds, or 0 for anything else."""
    duration = _number(value)
    return duration if 0 < duration < math.inf else 0.0


def _with_duration(utterance: Utterance, duration: float) -> Utterance:
    speeds = tuple(
        (path, speed, duration if speed == 1 and path == utterance.audio_path else other)
        for path, speed, other in utterance.speeds
    )
    return utterance._replace(duration=duration, speeds=speeds)


# -------------------------------------------------------------------------------------------------------- checking


class FileReport(NamedTuple):
    """What check_files found, by key."""

    left_out: tuple[tuple[str, str], ...]  # key and cause: missing, unreadable, or shorter than its offset
    corrected: tuple[tuple[str, float, float], ...]  # key, duration in the manifest and in the file (s)
    cut: tuple[str, ...]  # only the beginning of the file is used, with no offset to say that it is meant so

    def lines(self) -> list[str]:
        """The report as lines for a log, at most NAMES_SHOWN names for each kind; none if all was well."""
        wrong = [f"{key}: {told:g} s, in the file {real:.2f} s" for key, told, real in self.corrected]
        return [
            *_listing("utterances left out", [cause for _, cause in self.left_out]),
            *_listing("durations corrected", wrong),
            *_listing("utterances end before their file does", list(self.cut)),
        ]


def _listing(title: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    more = [f"  and {len(names) - NAMES_SHOWN} more"] if len(names) > NAMES_SHOWN else []
    return [f"{len(names)} {title}:", *(f"  {name}" for name in names[:NAMES_SHOWN]), *more]


def check_files(utterances: Sequence[Utterance]) -> tuple[list[Utterance], FileReport]:
    """Compares a manifest with its files, by their headers: (utterances whose files can be read, report).

    A duration beyond the end of the file is corrected; a shorter one is a wish to use only that much. Raises
    UserError when no utterance is left.
    """
    infos = _infos(path for utterance in utterances for path, _, _ in utterance.speeds)
    kept: list[Utterance] = []
    left_out: list[tuple[str, str]] = []
    corrected: list[tuple[str, float, float]] = []
    cut: list[str] = []
    for utterance in utterances:
        problems = [str(info) for path, _, _ in utterance.speeds if isinstance(info := infos[path], UserError)]
        if problems:
            left_out.append((utterance.key, problems[0]))
            continue
        real = infos[utterance.audio_path].duration - utterance.offset
        if real <= 0:
            left_out.append(
                (utterance.key, f"{utterance.audio_path}: is shorter than the offset {utterance.offset:g} s")
            )
            continue
        excess = utterance.duration - real
        if excess > DURATION_TOLERANCE:
            corrected.append((utterance.key, utterance.duration, real))
        elif excess < -CUT_TOLERANCE and not utterance.offset:
            cut.append(utterance.key)
        kept.append(_with_duration(utterance, real) if excess > 0 else utterance)
    report = FileReport(tuple(left_out), tuple(corrected), tuple(cut))
    if not kept:
        raise UserError("\n".join(["no utterance has a readable sound file", *report.lines()]))
    return kept, report


def _infos(paths: Iterable[Path]) -> dict[Path, AudioInfo | UserError]:
    distinct = list(dict.fromkeys(paths))
    with ThreadPoolExecutor(N_THREADS) as pool:
        return dict(zip(distinct, pool.map(_info, distinct), strict=True))


def _info(path: Path) -> AudioInfo | UserError:
    try:
        return audio_info(path)
    except UserError as error:
        return error


# --------------------------------------------------------------------------------------------------------- writing


def write_manifest(
    path: str | os.PathLike, utterances: Iterable[Utterance], dataset_dir: str | os.PathLike | None = None
) -> None:
    """Writes the published form, an object a line: paths relative to dataset_dir (default: the manifest's folder)
    where they are below it. read_manifest gives the same utterances back."""
    root = os.path.abspath(Path(path).parent if dataset_dir is None else dataset_dir)
    objects = (json.dumps(_object(utterance, root), ensure_ascii=False) for utterance in utterances)
    with atomic_open(path, "w") as stream:
        stream.write("[\n" + ",\n".join(objects) + "\n]\n")


def _object(utterance: Utterance, root: str) -> dict[str, Any]:
    def name(file: Path) -> str:
        absolute = os.path.abspath(file)
        return os.path.relpath(absolute, root) if absolute.startswith(root + os.sep) else absolute

    files = [{"fname": name(file), "speed": speed, "duration": duration} for file, speed, duration in utterance.speeds]
    if utterance.sample_rate:
        files = [file | {"sample_rate": utterance.sample_rate} for file in files]
    optional = {"offset": utterance.offset} if utterance.offset else {}
    return {
        "transcript": utterance.transcript,
        "files": files,
        "original_duration": utterance.duration,
        **optional,
    }
