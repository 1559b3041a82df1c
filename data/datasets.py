"""Fetches the data sets and weights of data/registry.py, all in one way.

    python -m data.datasets list
    python -m data.datasets fetch NAME... --data_dir DIR [--plan] [--mirror URL_OR_FOLDER]... [--dump_date YYYYMMDD]
                                          [--renew] [--keep_archives]

Everything lands below DIR (default: data/) as the launchers expect it, whole or not at all; what is there and right is
kept. `list` says what each download is checked by. Nothing that is fetched is ever run.

A mirror stands for scheme and host: the same paths are looked for below it. Several are tried in turn, and the
original place is not asked.
"""

import argparse
import os
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from data.archives import unpacked
from data.download import fetch, list_folder, read_text, remote_bytes
from data.registry import (
    DATASETS,
    GROUPS,
    WIKIMEDIA,
    ByHand,
    Dump,
    Files,
    Item,
    Listing,
    checked_by,
    expand,
    listed_bytes,
    where,
)
from runkit.errors import UserError, run_main
from runkit.files import (
    fsync_directory,
    make_directory,
    read_json,
    remove_abandoned,
    sha256_file,
    write_json,
)

# ------------------------------------------------------------------------------------------------ which files there are


class Request(NamedTuple):
    """What the caller of a fetch wants. options go to data.download.fetch."""

    data_dir: Path
    mirrors: tuple[str, ...] = ()
    dump_date: str | None = None
    renew: bool = False
    options: Mapping[str, Any] = {}

    def places(self, url: str) -> list[str]:
        """The addresses of a URL: at its own place, or at the mirrors."""
        path = urllib.parse.urlsplit(url).path
        return [mirror.rstrip("/") + path for mirror in self.mirrors] or [url]


def settled_items(name: str, request: Request, keep: bool = True) -> list[Item]:
    """The items of a data set.

    Where the server has to be asked which they are, the answer is kept (unless keep is False) in source.json beside
    them, so that a later call goes on with the same dump, and needs no network when all is there; renew, or another
    dump_date, asks anew. Raises UserError when no place answers.
    """
    source = DATASETS[name].source
    if isinstance(source, Files):
        return list(source.items)
    if isinstance(source, ByHand):
        return []
    record_file = record_path(source, request.data_dir)
    if record_file.is_file() and not request.renew:
        record = read_json(record_file)
        if request.dump_date in (None, record["dump_date"]) or isinstance(source, Listing):
            return [Item(**facts) for facts in record["items"]]
    date = request.dump_date if isinstance(source, Dump) else None
    if isinstance(source, Dump):
        date, items = _in_turn(request.places(WIKIMEDIA), lambda place: _dump_items(source, place, date, request))
    else:
        items = _in_turn(request.places(source.url), lambda place: _listed_items(source, place, request))
    if keep:
        write_json(record_file, {"dataset": name, "dump_date": date, "items": [item._asdict() for item in items]})
    return items


def record_path(source: Dump | Listing, data_dir: Path) -> Path:
    folder = Path(source.path) if isinstance(source, Listing) else Path(source.path).parent
    return data_dir / folder / "source.json"


def _in_turn(places: Sequence[str], ask: Callable[[str], Any]) -> Any:
    """ask(place) of the first place where it raises no UserError; one with all causes when there is none."""
    causes = []
    for place in places:
        try:
            return ask(place)
        except UserError as error:
            causes.append(str(error))
    raise UserError("\n".join(causes) + "\n--mirror (MIRROR) names another place")


def _dump_items(dump: Dump, place: str, date: str | None, request: Request) -> tuple[str, list[Item]]:
    """(date, items) of the dump of that date, by default of the newest one with a checksum list that names it."""
    base = f"{place.rstrip('/')}/{dump.project}"
    if date:
        dates = [date]
    else:
        names = list_folder(base, **request.options)
        dates = sorted((name[:-1] for name in names if re.fullmatch(r"\d{8}/", name)), reverse=True)
    for date in dates:
        for algorithm in ("sha1", "md5"):
            items = _dump_of(dump, base, date, algorithm, request)
            if items:
                return date, items
    raise UserError(
        f"{base}: no checksum list names the pages-articles dump of {' or '.join(dates[:5]) or 'any date'}; "
        "its folder tells which dates there are: choose one with --dump_date"
    )


def _dump_of(dump: Dump, base: str, date: str, algorithm: str, request: Request) -> list[Item]:
    """The files of a dump with their digests; none where there is no such list, or it does not name them (yet)."""
    prefix = f"{dump.project}-{date}"
    try:
        lines = read_text(f"{base}/{date}/{prefix}-{algorithm}sums.txt", **request.options)
    except UserError as error:
        if "HTTP 404" in str(error) or "No such file" in str(error):
            return []
        raise
    digests = dict(reversed(line.split()) for line in lines if len(line.split()) == 2)
    # The streams of the one can be read by several processes at a time.
    for end in ("-pages-articles-multistream.xml.bz2", "-pages-articles.xml.bz2"):
        if digest := digests.get(prefix + end):
            url = f"{WIKIMEDIA}/{dump.project}/{date}/{prefix}{end}"
            return [Item(url, dump.path, **{algorithm: digest})]
    return []


def _listed_items(listing: Listing, place: str, request: Request) -> list[Item]:
    names = [name for name in list_folder(place, **request.options) if re.fullmatch(listing.pattern, name)]
    if not names:
        raise UserError(f"{place}: no file there is called {listing.pattern}; was it moved?")
    return [Item(f"{listing.url}/{name}", f"{listing.path}/{name}", md5_beside=listing.md5_beside) for name in names]


# ------------------------------------------------------------------------------------------------------------- fetching


def fetch_datasets(names: Iterable[str], request: Request, keep_archives: bool = False) -> None:
    """Leaves the data sets below request.data_dir. Raises UserError naming what failed and why; what was finished
    before it stays."""
    archives = set()
    for name in expand(names):
        source = DATASETS[name].source
        if isinstance(source, ByHand):
            _require_by_hand(source, request.data_dir)
        for item in settled_items(name, request):
            if item.contents:
                _fetch_folder(item, request)
                archives.add(request.data_dir / item.archive)
            else:
                _fetch_file(item, request)
    if not keep_archives:
        for archive in archives:
            archive.unlink(missing_ok=True)


def _require_by_hand(source: ByHand, data_dir: Path) -> None:
    folder = data_dir / source.path
    if not folder.is_dir() or not any(folder.iterdir()):
        raise UserError(f"{folder}: there is nothing. {source.remedy}.")
    print(f"{folder}: in place")


def _fetch_file(item: Item, request: Request) -> None:
    target = request.data_dir / item.path
    md5 = item.md5
    if item.md5_beside:
        beside = fetch(request.places(item.url + ".md5"), target.with_name(target.name + ".md5"), **request.options)
        found = re.findall(r"\b[0-9a-fA-F]{32}\b", beside.read_text(encoding="utf-8", errors="replace"))
        if len(found) != 1:
            raise UserError(f"{beside}: holds no MD5; remove it to fetch it anew")
        md5 = found[0]
    digests = {"md5": md5, "sha1": item.sha1, "sha256": item.sha256}
    fetch(request.places(item.url), target, n_bytes=item.n_bytes, **digests, **request.options)
    checks = [name for name, digest in digests.items() if digest]
    print(
        f"{target}: {target.stat().st_size} bytes, {' and '.join(checks) + ' right' if checks else 'no digest known'}"
    )


def _fetch_folder(item: Item, request: Request) -> None:
    folder, archive = request.data_dir / item.path, request.data_dir / item.archive
    if folder.exists():
        remove_abandoned(folder.parent, archive.name)
        problem = problem_with_folder(folder, item)
        if problem:
            raise UserError(f"{folder}: {problem}; move it away and run again")
        print(f"{folder}: in place")
        return
    fetch(request.places(item.url), archive, n_bytes=item.n_bytes, sha256=item.sha256, **request.options)
    make_directory(folder.parent)
    with unpacked(archive, folder.parent) as tree:
        found = _wanted_folder(tree, item)
        problem = problem_with_folder(found, item) if found else _absence(tree, item)
        if problem:
            raise UserError(f"{archive}: {problem}; remove it to fetch it anew")
        os.rename(found, folder)
        fsync_directory(folder.parent)
    print(f"{folder}: {', '.join(item.contents)}{', sha256 right' if all(item.contents.values()) else ''}")


def problem_with_folder(folder: Path, item: Item) -> str | None:
    """Why a folder is not what the archive should hold; None if it is."""
    for name, sha256 in item.contents.items():
        path = folder / name
        if not path.is_file():
            return f"there is no {name} in it"
        if sha256 and (found := sha256_file(path)) != sha256:
            return f"{name} has sha256 {found}, not {sha256}"
    return None


def _wanted_folder(tree: Path, item: Item) -> Path | None:
    """The highest folder of an unpacked archive with the files that must be there."""
    folders = [tree, *(path for path in tree.rglob("*") if path.is_dir() and not path.is_symlink())]
    fitting = [
        folder
        for folder in folders
        if f"/{folder.relative_to(tree).as_posix()}".endswith(f"/{item.inside}" if item.inside else "")
        and all((folder / name).is_file() for name in item.contents)
    ]
    return min(fitting, key=lambda folder: (len(folder.parts), folder), default=None)


def _absence(tree: Path, item: Item) -> str:
    there = sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file())
    return (
        f"no folder {item.inside + ' ' if item.inside else ''}in it has {', '.join(item.contents)}; it holds "
        f"{', '.join(there[:10]) or 'nothing'}{' ...' if len(there) > 10 else ''}"
    )


# ------------------------------------------------------------------------------------------------------ what it will be

ASK_SECONDS = 10.0  # for a server to answer, when only its word for a plan is wanted
ASKED_FILES = 20


def asked_bytes(name: str, request: Request) -> int | None:
    """Bytes to download by the word of the servers or mirrors, of which many files are sampled; None where they do
    not tell."""
    try:
        items = settled_items(name, request._replace(options={"attempts": 1, "timeout": ASK_SECONDS}), keep=False)
    except UserError:
        return None
    items = list({item.url: item for item in items}.values())
    sample = items[:: max(1, len(items) // ASKED_FILES)]
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(lambda item: item.n_bytes or remote_bytes(request.places(item.url), ASK_SECONDS), sample))
    return None if not sizes or None in sizes else round(sum(sizes) * len(items) / len(sample))


def size_text(n_bytes: int | None, about: bool = False) -> str:
    if n_bytes is None:
        return "unknown"
    text = f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.1f} MB"
    return f"about {text}" if about else text


def is_there(name: str, request: Request) -> bool:
    """Whether all files and folders of a data set are in place, by their names."""
    source, data_dir = DATASETS[name].source, request.data_dir
    if isinstance(source, ByHand):
        folder = data_dir / source.path
        return folder.is_dir() and any(folder.iterdir())
    if isinstance(source, Files):
        return all((data_dir / item.path).exists() for item in source.items)
    record_file = record_path(source, data_dir)
    if not record_file.is_file() or request.renew:
        return False
    record = read_json(record_file)
    same = request.dump_date in (None, record["dump_date"]) or isinstance(source, Listing)
    return same and all((data_dir / item["path"]).exists() for item in record["items"])


def list_datasets() -> str:
    """The registry as a table."""
    rows = [("name", "what", "download", "checked by", "below the data folder")]
    for name, dataset in DATASETS.items():
        size = size_text(listed_bytes(name), dataset.about_bytes is not None)
        rows.append((name, dataset.what, size, checked_by(dataset), os.path.commonpath(where(dataset))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    groups = [f"{group}: {' '.join(members)}" for group, members in GROUPS.items()]
    return "\n".join([*lines, "", "groups", *groups])


# ----------------------------------------------------------------------------------------------------------------- main


def dump_date(text: str) -> str:
    if not re.fullmatch(r"\d{8}", text):
        raise argparse.ArgumentTypeError(f"{text!r}: a dump is named by its day, as in 20250101")
    return text


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what there is", allow_abbrev=False)
    get = commands.add_parser("fetch", help="download", allow_abbrev=False)
    get.add_argument("names", nargs="+", metavar="NAME", help=f"data sets, or groups: {', '.join(GROUPS)}")
    get.add_argument("--data_dir", type=Path, default=Path(__file__).resolve().parent)
    get.add_argument("--plan", action="store_true", help="say what would be downloaded, and stop")
    get.add_argument("--mirror", action="append", default=[], metavar="URL_OR_FOLDER")
    get.add_argument("--dump_date", type=dump_date, help="of Wikipedia (default: the newest that is complete)")
    get.add_argument("--renew", action="store_true", help="ask anew which dump is the newest, which files there are")
    get.add_argument("--keep_archives", action="store_true", help="of what is unpacked (download/archives)")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.command == "list":
        print(list_datasets())
        return
    names = expand(arguments.names)
    request = Request(arguments.data_dir, tuple(arguments.mirror), arguments.dump_date, arguments.renew)
    if arguments.plan:
        from data.plan import download_plan  # it needs this module

        print(download_plan(names, request))
        return
    fetch_datasets(names, request, arguments.keep_archives)


if __name__ == "__main__":
    run_main(main)
