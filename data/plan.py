"""What a data set will take, before anything starts: downloads, disk, memory and time, stage by stage.

    python -m data.plan wiki_only|wiki_books|books|pubmed|embedded|text [--data_dir DIR] [--text PATH [--name NAME]]
                        [--n_processes N] [--seq_lengths 128:20 512:80] [--dupe_factor 5] [--vocab NAME...]
                        [--mirror URL_OR_FOLDER]... [--dump_date YYYYMMDD]

Prints a table and stops with an error where the disk is too small. Rates are of one core and were measured; sizes of
what is on no disk yet are estimates from the ratios below. What is there already is not counted.
"""

import argparse
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from data import layout, stage
from data.datasets import Request, asked_bytes, dump_date, is_there, size_text
from data.download import require_space
from data.parallel import available_cores
from data.registry import DATASETS, ByHand, expand, listed_bytes, where
from runkit.errors import UserError, run_main
from runkit.files import read_json
from runkit.progress import duration

# ------------------------------------------------------------------------------------- what a stage takes, in one place


class Cost(NamedTuple):
    """Of a stage: how fast a core reads, how much it writes for each byte read, and its memory."""

    rate: float  # bytes read a second and core
    ratio: float  # bytes written for each byte read
    lead_memory: float  # bytes of the process that leads
    worker_memory: float  # and of each worker
    parallel: bool = True


MB = 1e6
# Measured on one core of a Xeon (Python 3.11) with Wikipedia's text and Google's vocabulary. What cannot be measured
# without the whole corpora is an estimate: how much text is in Wikipedia's XML and PubMed's, the rate of the latter.
EXTRACTION = Cost(7.5 * MB, 0.18, 100 * MB, 100 * MB)  # of XML
ABSTRACTS = Cost(20 * MB, 0.08, 100 * MB, 100 * MB)  # of XML
FORMATTING = Cost(20 * MB, 1.0, 100 * MB, 0, parallel=False)  # of text
SHARDING = Cost(6.5 * MB, 1.0, 300 * MB, 150 * MB)  # of text
RECORDS = Cost(2.9 * MB, 0.0, 100 * MB, 150 * MB)  # of text, in PASSES; they write RECORD_RATIO
PASSES = 5
# Bytes for each byte of text in PASSES; other lengths count as the nearest. Short documents leave more of it empty.
RECORD_RATIO = {"long": {128: 9.2, 512: 9.4}, "short": {128: 9.7, 512: 12.7}}
LONG_DOCUMENTS = ("wiki_only", "wiki_books", "books")
XML = {  # how its text is made, and bytes of XML for each byte of the packed download
    "wikicorpus_en": (EXTRACTION, 3.9),
    "pubmed_baseline": (ABSTRACTS, 8.0),
}
DOWNLOAD_RATE = 5 * MB  # an assumption: what public servers often give to one connection
DOWNLOAD_MEMORY = 50 * MB
UNPACKED_RATIO = 1.2  # bytes unpacked for each byte of an archive of weights
EMBEDDED_BYTES = 4_700_000


class Row(NamedTuple):
    """A line of the plan. reads, writes (bytes) and seconds are None where they are not known, and writes and seconds
    0 for what is there."""

    stage: str
    reads: float | None
    writes: float | None
    memory: float
    seconds: float | None
    place: Path
    there: bool = False
    guessed: bool = False  # reads is the registry's estimate, for want of a server's word


# ------------------------------------------------------------------------------------------------------------ the plan


def stage_row(
    name: str, cost: Cost, reads: float | None, n_processes: int, place: Path, there: bool | None = None
) -> Row:
    """The line of a stage that reads so many bytes; what an interrupted run left at its place need not be written."""
    if place.exists() if there is None else there:
        return Row(name, reads, 0, 0, 0, place, there=True)
    cores = n_processes if cost.parallel else 1
    memory = cost.lead_memory + cost.worker_memory * (cores if cores > 1 else 0)
    if reads is None:
        return Row(name, None, None, memory, None, place)
    return Row(name, reads, max(reads * cost.ratio - bytes_at(place), 0), memory, reads / cost.rate / cores, place)


def download_rows(names: Iterable[str], request: Request) -> list[Row]:
    """The lines of downloads, of which servers and mirrors are asked what the registry does not know. Raises
    UserError for an unknown name."""
    rows = []
    for name in expand(names):
        dataset = DATASETS[name]
        place = request.data_dir / os.path.commonpath(where(dataset))
        if isinstance(dataset.source, ByHand):
            rows.append(Row(f"{name} (yours)", None, 0, 0, 0, place, is_there(name, request)))
            continue
        known = listed_bytes(name)
        if is_there(name, request):
            rows.append(Row(f"download {name}", known, 0, 0, 0, place, there=True))
            continue
        certain = known if dataset.about_bytes is None and known is not None else asked_bytes(name, request)
        n_bytes = known if certain is None else certain
        if n_bytes is None:
            rows.append(Row(f"download {name}", None, None, DOWNLOAD_MEMORY, None, place))
            continue
        archives = {item.archive for item in getattr(dataset.source, "items", ()) if item.contents}
        received = bytes_at(place) + sum(bytes_at(request.data_dir / archive) for archive in archives)
        writes = max(n_bytes * (1 + UNPACKED_RATIO * bool(archives)) - received, 0)
        seconds = max(n_bytes - received, 0) / DOWNLOAD_RATE
        rows.append(Row(f"download {name}", n_bytes, writes, DOWNLOAD_MEMORY, seconds, place, guessed=certain is None))
    return rows


def record_ratio(source: str, length: int, dupe_factor: int) -> float:
    """Bytes of records for each byte of text, all of it counted as training set."""
    known = RECORD_RATIO["long" if source in LONG_DOCUMENTS else "short"]
    return known[min(known, key=lambda measured: abs(measured - length))] * dupe_factor / PASSES


def record_row(
    name: str,
    cost: Cost,
    n_text: float | None,
    n_processes: int,
    phase: tuple[int, int],
    dupe_factor: int,
    data_dir: Path,
) -> Row:
    """The line of a phase's records, whose folder's name tells more than is known here."""
    length, predictions = phase
    pattern = f"*_seq_len_{length}_max_pred_{predictions}_*_dupe_factor_{dupe_factor}_*/{name}/{stage.RECORD}"
    found = sorted((data_dir / "tfrecord").glob(pattern))
    place = found[0].parent if found else data_dir / "tfrecord" / f"..._seq_len_{length}_..." / name
    done = any(read_json(record)["files"] for record in found)
    return stage_row(f"records {length}/{predictions}", cost, n_text, n_processes, place, done)


# What data/create_datasets_from_start.sh makes: the data set, and the corpora in it.
SOURCES = {
    "embedded": ("embedded", ("embedded",)),
    "wiki_only": ("wikicorpus_en", ("wikicorpus_en",)),
    "wiki_books": ("books_wiki_en_corpus", ("bookscorpus", "wikicorpus_en")),
    "books": ("bookscorpus", ("bookscorpus",)),
    "pubmed": ("pubmed_baseline", ("pubmed_baseline",)),
}


def plan(
    source: str,
    request: Request,
    text: Path | None = None,
    name: str = "text",
    n_processes: int = 1,
    lengths: Sequence[tuple[int, int]] = ((128, 20), (512, 80)),
    dupe_factor: int = PASSES,
    vocab: Sequence[str] = (),
) -> list[Row]:
    """The lines of all stages for a source: of SOURCES, or "text".

    text: the user's (for text, books, wiki_books), else it is where the registry has it. vocab: data sets that are
    fetched for their vocabulary. Raises UserError for text that is not there.
    """
    dataset, corpora = SOURCES.get(source, (name, (name,)))
    rows = download_rows(vocab, request)
    n_text = 0.0
    for corpus in corpora:
        unit = "book" if source.endswith("books") and corpus == "bookscorpus" else "article"
        formatted = layout.formatted_file(request.data_dir, corpus, unit)
        if source != "text" and corpus in XML:
            cost, xml_ratio = XML[corpus]
            (row,) = download_rows([corpus], request)
            rows.append(row)
            n_packed = bytes_below(row.place) if row.there else row.reads
            rows.append(stage_row(f"text of {corpus}", cost, _times(n_packed, xml_ratio), n_processes, formatted))
        elif source == "embedded":
            rows.append(stage_row("text of embedded", FORMATTING, EMBEDDED_BYTES, 1, formatted))
        else:
            place = text or request.data_dir / DATASETS[corpus].source.path
            rows.append(stage_row(f"text of {corpus}", FORMATTING, bytes_below(place), 1, formatted))
        written = formatted.stat().st_size if rows[-1].there else rows[-1].writes
        n_text = None if None in (n_text, written) else n_text + written
    sharded = layout.sharded_folder(request.data_dir, dataset)
    made = (sharded / layout.MANIFEST).is_file()
    rows.append(stage_row("sharding", SHARDING, n_text, n_processes, sharded, made))
    for phase in lengths:
        ratio = record_ratio(source, phase[0], dupe_factor)
        cost = RECORDS._replace(rate=RECORDS.rate * PASSES / dupe_factor, ratio=ratio)
        rows.append(record_row(dataset, cost, n_text, n_processes, phase, dupe_factor, request.data_dir))
    return rows


def _times(n_bytes: float | None, factor: float) -> float | None:
    return None if n_bytes is None else n_bytes * factor


def bytes_at(place: Path) -> int:
    """Bytes of a file or folder that may be there, in part or not at all."""
    partial = place.with_name(place.name + ".partial")
    return sum(bytes_below(path) for path in (place, partial) if path.exists())


def bytes_below(path: Path) -> int:
    """Bytes of a file, or of the files in a folder. Raises UserError when there is none."""
    if path.is_file():
        return path.stat().st_size
    if not path.is_dir():
        raise UserError(f"{path}: no such file or folder")
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


# ------------------------------------------------------------------------------------------------------------ the table


def table(rows: Sequence[Row], data_dir: Path) -> str:
    """The plan as it is printed."""
    cells = [("stage", "reads", "writes", "memory", "time", "where")]
    for row in rows:
        place = row.place.relative_to(data_dir) if row.place.is_relative_to(data_dir) else row.place
        if row.there:
            cells.append((row.stage, _size(row.reads), "-", "-", "there", str(place)))
            continue
        time = "unknown" if row.seconds is None else duration(row.seconds)
        reads = _size(row.reads) + "?" * row.guessed
        cells.append((row.stage, reads, _size(row.writes), _size(row.memory), time, str(place)))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    free = shutil.disk_usage(_existing(data_dir)).free
    todo = [row for row in rows if not row.there]
    lines += [
        "",
        f"disk: {_size(needed(rows))} more below {data_dir}, where {_size(free)} are free",
        f"memory: {_size(max((row.memory for row in todo), default=0))}",
        f"time: {duration(sum(row.seconds or 0 for row in todo))} (downloads at {DOWNLOAD_RATE / MB:g} MB/s)",
    ]
    if any(row.guessed for row in todo):
        lines.append("?: a rough estimate, for no server was asked or none told")
    if unknown := [row.stage for row in todo if row.writes is None or row.seconds is None]:
        lines.append(f"not in these sums, for want of a size: {', '.join(unknown)}")
    return "\n".join(lines)


def needed(rows: Iterable[Row]) -> float:
    """Bytes that the stages write, as far as they are known."""
    return sum(row.writes or 0 for row in rows)


def _size(n_bytes: float | None) -> str:
    return size_text(None if n_bytes is None else int(n_bytes))


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    path = path.resolve()
    return path if path.exists() else _existing(path.parent)


def download_plan(names: Iterable[str], request: Request) -> str:
    """The table of downloads only."""
    return table(download_rows(names, request), request.data_dir)


# ----------------------------------------------------------------------------------------------------------------- main


def phase(text: str) -> tuple[int, int]:
    length, _, predictions = text.partition(":")
    if not (length.isdecimal() and predictions.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not LENGTH:PREDICTIONS, as in 128:20")
    return int(length), int(predictions)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("source", choices=(*SOURCES, "text"))
    parser.add_argument("--data_dir", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--text", type=Path, help="your text, or books: a file or folder")
    parser.add_argument("--name", type=layout.dataset_name, default="text", help="of a data set from text")
    parser.add_argument("--n_processes", type=int, default=available_cores())
    parser.add_argument(
        "--seq_lengths", type=phase, nargs="+", default=[(128, 20), (512, 80)], metavar="LENGTH:PREDICTIONS"
    )
    parser.add_argument("--dupe_factor", type=int, default=PASSES)
    parser.add_argument("--vocab", nargs="*", default=[], metavar="NAME", help="weights fetched for their vocabulary")
    parser.add_argument("--mirror", action="append", default=[], metavar="URL_OR_FOLDER", help="as of data.datasets")
    parser.add_argument("--dump_date", type=dump_date, help="as of data.datasets")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    data_dir = arguments.data_dir
    request = Request(data_dir, tuple(arguments.mirror), arguments.dump_date)
    rows = plan(
        arguments.source,
        request,
        arguments.text,
        arguments.name,
        arguments.n_processes,
        arguments.seq_lengths,
        arguments.dupe_factor,
        arguments.vocab,
    )
    print(table(rows, data_dir), flush=True)
    require_space(_existing(data_dir), int(needed(rows)), "all of it")


if __name__ == "__main__":
    run_main(main)
