"""Makes pre-training records from text: one sentence a line, a blank line between documents.

    python -m bert_tf.create_pretraining_data --vocab_file=vocab.txt --input_file=sharded/wiki/training \\
        --output_dir=tfrecord/wiki/training --max_seq_length=128 --max_predictions_per_seq=20

With --output_dir each input <name>.txt becomes <name>.tfrecord and --n_processes files are worked on at a
time (data/executors.py: or many more, on a cluster); what an interrupted run has finished is kept. With
--output_file=a,b,... all instances are dealt in turn to the named files. Records depend on the text, its file
name, the flags and the seed; never on the workers.
"""

import os
import sys

if not __package__:  # started as a file: the repository, not this folder, is where modules are looked up
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import argparse
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bert_tf.instances import MIN_SEQ_LENGTH, InstanceSettings
from bert_tf.record_jobs import Job, RecordSettings, combine_lengths, run_jobs
from bert_tf.records import MANIFEST, SUFFIX, UNFINISHED_MANIFEST, TFRecordWriter, iter_tfrecord, tfrecord_files
from bert_tf.tokenization import load_vocab
from data.executors import Workers, add_flags, open_workers
from data.parallel import available_cores
from runkit.errors import UserError, run_main
from runkit.files import (
    locked_directory,
    read_json,
    remove_abandoned,
    sha256_file,
    temporary_directory,
    write_json,
)
from runkit.progress import Progress, print_line

SAVE_SECONDS = 5.0  # how much work on small files a kill can cost

# English text, measured; only used to see that the disk is plainly too small.
_TEXT_BYTES_PER_TOKEN = 4.5
_FILLED = 0.92  # share of a sequence that is not padding


# --- manifests ----------------------------------------------------------------------------------------------


def _manifest(header: dict, files: dict[str, dict]) -> dict:
    """header, files by name and totals."""
    totals = {k: sum(entry[k] for entry in files.values()) for k in ("records", "tokens", "masked_tokens")}
    places = totals["records"] * header["max_seq_length"]
    return {
        **header,
        "files": dict(sorted(files.items())),
        **totals,
        "lengths": combine_lengths(entry["lengths"] for entry in files.values()),
        "padding_fraction": round(1 - totals["tokens"] / places, 6) if places else 0.0,
    }


def _describe(manifest: dict) -> list[str]:
    """The sequence lengths, for the log."""
    lengths, s = manifest["lengths"], manifest["max_seq_length"]
    shares = " ".join(f"{100 * count / manifest['records']:.1f}" for count in lengths["classes"])
    mean = manifest["tokens"] / manifest["records"]
    return [
        f"sequence lengths: {lengths['shortest']} to {lengths['longest']}, mean {mean:.1f} of {s}; "
        f"{100 * manifest['padding_fraction']:.1f}% of all places are padding",
        f"percent of the sequences in each sixteenth of {s}: {shares}",
    ]


def _earlier_files(folder: Path, header: dict, overwrite: bool) -> dict[str, dict]:
    """The entries an earlier run with the same settings left in a folder.

    Other settings raise UserError, or are taken for nothing with overwrite.
    """
    unfinished, finished = folder / UNFINISHED_MANIFEST, folder / MANIFEST
    path = unfinished if unfinished.exists() else finished
    if not path.exists():
        return {}
    earlier = read_json(path)
    for key, value in header.items():
        if earlier.get(key) != value:
            if overwrite:
                return {}
            raise UserError(
                f"{folder} holds records made with {key}={earlier.get(key)}, this run has {key}={value}; "
                "choose another folder, or pass --overwrite to replace them"
            )
    return earlier["files"]


def _is_current(output: Path, entry: dict | None, sources: Sequence[Path]) -> bool:
    """Whether the output is what its manifest entry says, made from the present sources."""
    return (
        entry is not None
        and "lengths" in entry  # manifests of earlier versions have none
        and output.is_file()
        and output.stat().st_size == entry["bytes"]
        and entry["sources"] == {source.name: sha256_file(source) for source in sources}
        and sha256_file(output) == entry["sha256"]
    )


def _require_space(folder: Path, sources: Sequence[Path], settings: RecordSettings) -> None:
    """Raises UserError when the disk has less than half of what the records of English text would take."""
    s, p = settings.instances.max_seq_length, settings.instances.max_predictions_per_seq
    record_bytes = 4 * s + 8 * p
    text_bytes = sum(source.stat().st_size for source in sources)
    expected = text_bytes / _TEXT_BYTES_PER_TOKEN / (_FILLED * s) * record_bytes * settings.dupe_factor
    free = shutil.disk_usage(folder).free
    if free < expected / 2:
        raise UserError(
            f"{folder}: {free / 1e9:.2f} GB free, but these records will take about {expected / 1e9:.2f} GB; "
            "free some space, choose another disk or lower --dupe_factor"
        )


# --- the two ways to name outputs ---------------------------------------------------------------------------


def create_folder(
    sources: Sequence[Path], folder: Path, settings: RecordSettings, workers: Workers, overwrite: bool
) -> dict:
    """<name>.txt -> folder/<name>.tfrecord for every source, then the manifest; returns it.

    The manifest lists the files of this run only; until it is written, a partial one keeps readers out and
    tells a later run what is done.
    """
    _make_folder(folder)
    with locked_directory(folder, "making records"):
        remove_abandoned(folder)
        return _create_folder(sources, folder, settings, workers, overwrite)


def _create_folder(
    sources: Sequence[Path], folder: Path, settings: RecordSettings, workers: Workers, overwrite: bool
) -> dict:
    header = settings.manifest_header()
    earlier = _earlier_files(folder, header, overwrite)
    jobs = [Job(source, [folder / f"{source.stem}{SUFFIX}"]) for source in sources]
    files: dict[str, dict] = {}
    if earlier and not overwrite:
        with (
            ThreadPoolExecutor(available_cores()) as pool,
            Progress(len(jobs), "checking records", "files") as progress,
        ):

            def check(job: Job) -> bool:
                return _is_current(job.outputs[0], earlier.get(job.outputs[0].name), [job.source])

            for job, current in zip(list(jobs), pool.map(check, jobs), strict=True):
                if current:
                    files[job.outputs[0].name] = earlier[job.outputs[0].name]
                    jobs.remove(job)
                progress.update()
        print_line(f"{len(files)} of {len(sources)} files are already done")
    if jobs:
        _require_space(folder, [job.source for job in jobs], settings)
        unfinished = folder / UNFINISHED_MANIFEST
        write_json(unfinished, _manifest(header, files))
        saved = time.monotonic()
        try:
            for job, result in run_jobs(jobs, settings, workers):
                _warn(result.warnings)
                files[job.outputs[0].name] = result.entries[0]
                if time.monotonic() - saved > SAVE_SECONDS:
                    write_json(unfinished, _manifest(header, files))
                    saved = time.monotonic()
        finally:
            write_json(unfinished, _manifest(header, files))
    manifest = _manifest(header, files)
    write_json(folder / MANIFEST, manifest)
    (folder / UNFINISHED_MANIFEST).unlink(missing_ok=True)
    strays = [path.name for path in tfrecord_files(folder) if path.name not in files]
    if strays:
        _warn([f"{folder}: {len(strays)} other files are not part of the data set: {', '.join(strays[:3])}"])
    return manifest


def create_files(
    sources: Sequence[Path],
    outputs: Sequence[Path],
    settings: RecordSettings,
    workers: Workers,
    overwrite: bool,
) -> dict:
    """Deals the instances of all sources to the outputs and enters these into the manifests of their folders.

    Returns a manifest of the outputs alone.
    """
    header = settings.manifest_header()
    folders = {output.parent for output in outputs}
    for folder in folders:
        _make_folder(folder)
        remove_abandoned(folder)
    earlier = {folder: _earlier_files(folder, header, overwrite) for folder in folders}
    entries = [earlier[output.parent].get(output.name) for output in outputs]
    if not overwrite and all(
        _is_current(output, entry, sources) for output, entry in zip(outputs, entries, strict=True)
    ):
        print_line(f"all {len(outputs)} files are already done")
    else:
        _require_space(outputs[0].parent, sources, settings)
        entries = _deal(sources, outputs, settings, workers)
    for folder in folders:
        with locked_directory(folder, "making records", wait=True):
            files = _earlier_files(folder, header, overwrite)
            files |= {o.name: entry for o, entry in zip(outputs, entries, strict=True) if o.parent == folder}
            write_json(folder / MANIFEST, _manifest(header, files))
    return _manifest(header, {output.name: entry for output, entry in zip(outputs, entries, strict=True)})


def _deal(sources: Sequence[Path], outputs: Sequence[Path], settings: RecordSettings, workers: Workers) -> list[dict]:
    """Writes the outputs, the records dealt to each in the order of sources; returns their entries."""
    if len(sources) == 1:
        ((_, result),) = run_jobs([Job(sources[0], list(outputs))], settings, workers)
        _warn(result.warnings)
        return result.entries
    with temporary_directory(outputs[0]) as folder:
        jobs = [
            Job(source, [folder / f"{i}-{k}{SUFFIX}" for k in range(len(outputs))], first=i)
            for i, source in enumerate(sources)
        ]
        results = {}
        for job, result in run_jobs(jobs, settings, workers):
            _warn(result.warnings)
            results[job.source] = result
        entries = []
        for k, output in enumerate(outputs):
            counts, names = Counter(), {}
            with TFRecordWriter(output) as writer:
                for job in jobs:
                    for record in iter_tfrecord(job.outputs[k]):
                        writer.write(record)
                    entry = results[job.source].entries[k]
                    counts.update(tokens=entry["tokens"], masked_tokens=entry["masked_tokens"])
                    names |= entry["sources"]
            lengths = combine_lengths(results[job.source].entries[k]["lengths"] for job in jobs)
            entries.append({**writer.summary()._asdict(), **counts, "lengths": lengths, "sources": names})
        return entries


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}") from error


def _warn(messages: Iterable[str]) -> None:
    for message in messages:
        print(f"warning: {message}", file=sys.stderr, flush=True)


# --- command line -------------------------------------------------------------------------------------------


def find_sources(input_file: str) -> list[Path]:
    """The text files of a comma list of files and folders (their *.txt), in the order given, folders by name.

    Raises UserError for a path that is missing, a folder without text and two files of the same name: the
    name is part of what the random choices depend on, and names the output.
    """
    sources: list[Path] = []
    for item in input_file.split(","):
        path = Path(os.path.abspath(item.strip()))
        if path.is_dir():
            found = sorted(p for p in path.glob("*.txt") if p.is_file() and not p.name.startswith("."))
            if not found:
                raise UserError(f"{path}: no *.txt files in this folder; has the text been sharded?")
            sources += found
        elif path.is_file():
            sources.append(path)
        else:
            raise UserError(f"--input_file: {item.strip()!r} is neither a file nor a folder")
    by_name: dict[str, Path] = {}
    for source in sources:
        other = by_name.setdefault(source.stem, source)
        if other is not source:
            raise UserError(f"--input_file: {other} and {source} have the same name; rename one")
    return sources


def _doubt_casing(settings: RecordSettings) -> list[str]:
    """Warnings when the vocabulary looks made for the other value of do_lower_case."""
    vocab = load_vocab(settings.vocab_file)
    n_capitals = sum(token != token.lower() and not token.startswith("[") for token in vocab)
    if settings.do_lower_case and n_capitals:
        return [
            f"{settings.vocab_file}: {n_capitals} tokens have capitals, but the text is lower-cased; "
            "for a cased vocabulary pass --do_lower_case=0"
        ]
    if not settings.do_lower_case and not n_capitals:
        return [
            f"{settings.vocab_file}: no token has a capital, but the text is not lower-cased; "
            "for an uncased vocabulary pass --do_lower_case=1"
        ]
    return []


def _boolean(text: str) -> bool:
    values = {"1": True, "true": True, "0": False, "false": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"{text!r} is none of 0, 1, true, false")
    return values[text.lower()]


def _add_boolean(parser: argparse.ArgumentParser, name: str, default: bool, text: str) -> None:
    """--name, --name=0|1|true|false and --noname."""
    parser.add_argument(f"--{name}", type=_boolean, nargs="?", const=True, default=default, metavar="0|1", help=text)
    parser.add_argument(f"--no{name}", dest=name, action="store_false", help=argparse.SUPPRESS)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    # Defaults are those of the published script.
    parser = argparse.ArgumentParser(
        prog="create_pretraining_data",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--vocab_file", required=True, help="WordPiece vocabulary, one token a line")
    add("--input_file", required=True, help="text file, folder of *.txt, or a comma list of these")
    outputs = parser.add_mutually_exclusive_group(required=True)
    outputs.add_argument("--output_file", help="comma list of TFRecord files, instances dealt in turn")
    outputs.add_argument("--output_dir", help="folder that gets <name>.tfrecord for each input <name>.txt")
    _add_boolean(parser, "do_lower_case", True, "lower-case and strip accents (default 1)")
    _add_boolean(parser, "do_whole_word_mask", False, "mask all pieces of a word together (default 0)")
    add("--max_seq_length", type=int, default=128, help="tokens a sequence (default %(default)s)")
    add("--max_predictions_per_seq", type=int, default=20, help="masked tokens at most (default %(default)s)")
    add("--random_seed", type=int, default=12345, help="default %(default)s")
    add("--dupe_factor", type=int, default=10, help="passes over the text (default %(default)s)")
    add("--masked_lm_prob", type=float, default=0.15, help="share of tokens masked (default %(default)s)")
    add("--short_seq_prob", type=float, default=0.1, help="share of shorter sequences (default %(default)s)")
    add_flags(parser, available_cores(), "files worked on at a time (default: one a core, %(default)s)")
    _add_boolean(parser, "overwrite", False, "make again what is finished or has other settings")
    args = parser.parse_args(argv)
    for flag, low, high in (
        ("max_seq_length", MIN_SEQ_LENGTH, None),
        ("max_predictions_per_seq", 1, None),
        ("dupe_factor", 1, None),
        ("masked_lm_prob", 0.0, 1.0),
        ("short_seq_prob", 0.0, 1.0),
    ):
        value = getattr(args, flag)
        if not (low <= value and (high is None or value <= high)):
            bounds = f"at least {low}" if high is None else f"from {low} to {high}"
            raise UserError(f"--{flag}={value}: must be {bounds}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; raises UserError for whatever the user can fix."""
    args = _parse(argv)
    settings = RecordSettings(
        vocab_file=os.path.abspath(args.vocab_file),  # workers elsewhere stand in other folders
        do_lower_case=args.do_lower_case,
        random_seed=args.random_seed,
        dupe_factor=args.dupe_factor,
        instances=InstanceSettings(
            max_seq_length=args.max_seq_length,
            max_predictions_per_seq=args.max_predictions_per_seq,
            masked_lm_prob=args.masked_lm_prob,
            short_seq_prob=args.short_seq_prob,
            do_whole_word_mask=args.do_whole_word_mask,
        ),
    )
    with open_workers(args.executor, args.n_processes, args.scheduler) as workers:
        if workers is None:
            return 0
        _warn(_doubt_casing(settings))
        sources = find_sources(args.input_file)
        if args.output_dir:
            folder = Path(os.path.abspath(args.output_dir))
            manifest = create_folder(sources, folder, settings, workers, args.overwrite)
        else:
            outputs = [Path(os.path.abspath(name.strip())) for name in args.output_file.split(",") if name.strip()]
            names = {output.name for output in outputs}
            if len(names) < args.output_file.count(",") + 1:
                raise UserError(f"--output_file={args.output_file}: a name is empty or stands twice")
            manifest = create_files(sources, outputs, settings, workers, args.overwrite)
    print_line(
        f"{manifest['records']} records in {len(manifest['files'])} files, {manifest['tokens']} tokens, "
        f"{manifest['masked_tokens']} of them masked: {args.output_dir or args.output_file}"
    )
    for line in _describe(manifest):
        print_line(line)
    return 0


if __name__ == "__main__":
    run_main(main, sys.argv[1:])
