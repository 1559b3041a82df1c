"""When a stage need not run again: its record names the same inputs and settings, and its files are whole.

A record is a JSON object with "inputs" (file names with SHA-256), "settings", and "files" (name -> at least
"bytes"). The files are entered last, so whatever a stopped run left behind is not taken for finished.

Around programs that keep no such record themselves, the shell calls

    python -m data.stage begin FOLDER --inputs FILE ... --settings KEY=VALUE ...
    python -m data.stage end FOLDER

of which the first prints "current" or "begun". FOLDER holds folders with a manifest.json each. What was made
there from other inputs or settings is removed at the beginning; what an interrupted run made from the same
ones stays, for the program to go on with.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from data.layout import MANIFEST
from runkit.errors import UserError, run_main
from runkit.files import atomic_open, read_json, sha256_file, write_json

RECORD = "stage.json"


def fingerprint(paths: Iterable[Path], base: Path | None = None) -> list[dict[str, Any]]:
    """Name (relative to base, if given), bytes and SHA-256 of each file, in the order given."""
    try:
        return [
            {
                "name": path.relative_to(base).as_posix() if base else path.name,
                "bytes": path.stat().st_size,
                "sha256": sha256_file(path),
            }
            for path in paths
        ]
    except OSError as error:
        raise UserError(f"cannot read {error.filename}: {error.strerror}") from error


def is_current(record_path: Path, inputs: Any, settings: dict[str, Any]) -> bool:
    """Whether record_path says that its files were made from these inputs with these settings, and they are
    whole."""
    if not record_path.is_file():
        return False
    record = _read_record(record_path)
    same = record.get("inputs") == inputs and record.get("settings") == settings
    return same and bool(record.get("files")) and files_are_whole(record_path)


def _read_record(path: Path) -> dict[str, Any]:
    """Raises UserError naming the file when it is no record or manifest."""
    record = read_json(path)
    files, settings = (record.get(k, {}) if isinstance(record, dict) else None for k in ("files", "settings"))
    sound = isinstance(files, dict) and isinstance(settings, dict)
    if not sound or not all(isinstance(facts, dict) for facts in files.values()):
        raise UserError(f"{path}: is no record of a stage; remove it, and the stage runs again")
    return record


def files_are_whole(record_path: Path) -> bool:
    """Whether every file named by a record or manifest is there in its full size; a manifest among them is
    followed."""
    for name, facts in _read_record(record_path).get("files", {}).items():
        path = record_path.parent / name
        if not os.path.isfile(path) or path.stat().st_size != facts.get("bytes"):
            return False
        if path.name == MANIFEST and path != record_path and not files_are_whole(path):
            return False
    return True


def make_file(
    output: Path, inputs: Any, settings: dict[str, Any], write: Callable[[IO[str]], dict[str, Any]]
) -> dict[str, Any] | None:
    """Writes a text file by write(stream), or says that it was made from the same inputs and settings.

    Its record, <name>.manifest.json beside it, is returned when the file was written: inputs, settings, what
    write() returned, and the file's bytes and SHA-256. A write() that raises leaves the file as it was.
    """
    path = output.with_suffix(".manifest.json")
    if is_current(path, inputs, settings):
        print(f"{output}: up to date")
        return None
    path.unlink(missing_ok=True)
    with atomic_open(output, "w") as stream:
        facts = write(stream)
    files = {output.name: {"bytes": output.stat().st_size, "sha256": sha256_file(output)}}
    record = {"inputs": inputs, "settings": settings, **facts, "files": files}
    write_json(path, record)
    return record


def begin(folder: Path, inputs: Any, settings: dict[str, Any]) -> bool:
    """Makes folder ready for a stage; False when all of it is done. A record without files says what is being
    made."""
    path = folder / RECORD
    if is_current(path, inputs, settings):
        return False
    if path.is_file():
        record = _read_record(path)
        old, new = (
            {"inputs": record.get("inputs"), **record.get("settings", {})},
            {"inputs": inputs, **settings},
        )
        changed = [key for key in old | new if old.get(key) != new.get(key)]
        if changed:
            print(f"{folder}: made with other {', '.join(changed)}, so it is made anew", file=sys.stderr)
            empty(folder)
    write_json(path, {"inputs": inputs, "settings": settings, "files": {}})
    return True


def empty(folder: Path) -> None:
    """Removes what is in a folder, which stays: somebody may hold a lock on it."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def end(folder: Path) -> None:
    """Enters the manifests below folder into its record: the stage is done."""
    manifests = fingerprint(sorted(folder.glob(f"*/{MANIFEST}")), base=folder)
    files = {facts["name"]: {"bytes": facts["bytes"], "sha256": facts["sha256"]} for facts in manifests}
    write_json(folder / RECORD, _read_record(folder / RECORD) | {"files": files})


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    beginning = commands.add_parser("begin", allow_abbrev=False)
    ending = commands.add_parser("end", allow_abbrev=False)
    for command in (beginning, ending):
        command.add_argument("folder", type=Path)
    beginning.add_argument("--inputs", type=Path, nargs="+", required=True)
    beginning.add_argument("--settings", nargs="*", default=[], metavar="KEY=VALUE")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.command == "end":
        end(arguments.folder)
        return
    settings = dict(setting.split("=", 1) for setting in arguments.settings)
    print("begun" if begin(arguments.folder, fingerprint(arguments.inputs), settings) else "current")


if __name__ == "__main__":
    run_main(main)
