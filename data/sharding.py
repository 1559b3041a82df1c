"""Documents, one a line, to shards with one sentence a line and an empty line between documents.

    python -m data.sharding --input_files FILE[,FILE...] --dataset NAME --output_dir data/sharded

writes <output_dir>/<dataset>/{training,test}/<dataset>_{training,test}_<i>.txt and a manifest, all or none.

A document belongs to the test set by a hash of its text and the seed, so that copies of a text never stand on both
sides, and goes whole to the shard of its set that has the fewest sentences so far; the longest documents go first, so
that the others even the shards out.

    split   pieces of the input are cut into sentences, many at a time      -> .<dataset>.partial/parts
    plan    every document gets its shard, from the numbers of sentences    -> .<dataset>.partial/plan
    gather  shards take their documents from the parts, many at a time      -> .<dataset>.partial/{training,test}

Memory grows with none of them: what depends on the corpus is on disk. Parts and shards that a run has finished are
kept when it is killed, for the same command to go on with. The shards depend on the text, the flags and the seed
alone; never on the number of workers, or where they are.
"""

import argparse
import hashlib
import heapq
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data.executors import Workers, absolute_path, add_flags, chosen_workers
from data.layout import MANIFEST, SPLITS, dataset_name
from data.parallel import completed_map, files_map
from data.segmentation import Segmenter, corpus_parameters, trained_parameters
from data.stage import begin, fingerprint, is_current
from runkit.errors import UserError, run_main
from runkit.files import (
    atomic_directory,
    atomic_open,
    locked_directory,
    make_directory,
    remove_abandoned,
    sha256_file,
    write_json,
)
from runkit.progress import Progress

FORMAT = 2
PUBLISHED_SHARDS = 1472
# What --n_*_shards 0 aims at: shards that a worker handles in seconds, and enough of them to share out.
SHARD_BYTES = 4_000_000
LEAST_AUTOMATIC_SHARDS = {"training": 8, "test": 2}
PART_BYTES = 8_000_000  # of the input, for a worker at a time: two seconds of work
PLAN_ROWS = 1_000_000  # of the plan, kept before they are appended to its files: 20 MB
# Documents longer than this share of an average shard are dealt first. There are at most 200 of them a shard.
LARGE_SHARE = 1 / 200
WANTED_SPREAD = 0.01  # of the sentences of an average shard, between the largest and the smallest
LEAST_BALANCED = 1000  # sentences a shard; below, one document is more than this

# A document in the index of its part, in the order of the text.
DOCUMENT = np.dtype([("hash", "<f8"), ("sentences", "<u4"), ("bytes", "<u8")])
# A document in the plan of its shard: where its sentences stand.
ROW = np.dtype([("part", "<u4"), ("offset", "<u8"), ("bytes", "<u8"), ("sentences", "<u4")])


# --------------------------------------------------------------------------------------------------- split: parts


class Part(NamedTuple):
    """The lines of a file that begin in [start, stop), and where its sentences go; the index is beside it."""

    source: Path
    start: int  # bytes
    stop: int
    text: Path

    @property
    def index(self) -> Path:
        return self.text.with_suffix(".npy")


def plan_parts(files: Sequence[Path], folder: Path) -> list[Part]:
    """Pieces of about PART_BYTES of all files, in order, whose results go to the folder."""
    ranges = [
        (path, start, min(start + PART_BYTES, size))
        for path in files
        for size in [path.stat().st_size]
        for start in range(0, size, PART_BYTES)
    ]
    return [Part(*place, folder / f"part_{i}.txt") for i, place in enumerate(ranges)]


def read_documents(files: Iterable[Path]) -> Iterator[str]:
    """The documents of formatted files, in order."""
    for path in files:
        yield from documents_between(path, 0, path.stat().st_size)


def documents_between(path: Path, start: int, stop: int) -> Iterator[str]:
    """The lines of a file that begin in the bytes [start, stop) and are not empty. Raises UserError where the text is
    not UTF-8."""
    with open(path, "rb") as stream:
        if start:
            stream.seek(start - 1)
            stream.readline()  # to the end of the line that is under way: it is of the part before
        while (position := stream.tell()) < stop:
            line = stream.readline()
            try:
                text = line.decode("utf-8" if position else "utf-8-sig")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path}: not UTF-8 at byte {position + error.start} (0x{line[error.start]:02x}); "
                    "convert it first: iconv -f <encoding> -t UTF-8"
                ) from error
            if document := text.strip():
                yield document


def unit_hash(document: str, seed: int) -> float:
    """A number in [0, 1) from nothing but text and seed: the first 53 bits of SHA-256, as a fraction."""
    digest = hashlib.sha256(f"{seed}\n{document}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2.0**53


def split_part(part: Part, segmenter: Segmenter, seed: int) -> None:
    """Writes the sentences and the index of a part."""
    index = []
    with atomic_open(part.text) as stream:
        for document in documents_between(part.source, part.start, part.stop):
            sentences = segmenter.sentences(document)
            data = ("\n".join(sentences) + "\n\n").encode()
            stream.write(data)
            index.append((unit_hash(document, seed), len(sentences), len(data)))
    with atomic_open(part.index) as stream:  # last: it says that the part is complete
        np.save(stream, np.array(index, DOCUMENT))


# ---------------------------------------------------------------------------------- plan: which set, how many shards


@dataclass
class Survey:
    """What the indices tell; documents with a unit_hash below threshold are the test set."""

    threshold: float
    documents: dict[str, int]  # by split
    sentences: dict[str, int]  # by split
    bytes: dict[str, int]  # by split
    lowest: float  # unit_hash of any document
    highest: float

    @property
    def total_documents(self) -> int:
        return sum(self.documents.values())


def survey_with(indices: Iterable[np.ndarray], threshold: float) -> Survey:
    """Reads the indices once."""
    zeros = dict.fromkeys(SPLITS, 0)
    result = Survey(threshold, dict(zeros), dict(zeros), dict(zeros), math.inf, -math.inf)
    for index in indices:
        for split, documents in split_index(index, threshold).items():
            result.documents[split] += len(documents)
            result.sentences[split] += int(documents["sentences"].sum(dtype=np.int64))
            result.bytes[split] += int(documents["bytes"].sum(dtype=np.int64))
        result.lowest = min(result.lowest, index["hash"].min(initial=math.inf))
        result.highest = max(result.highest, index["hash"].max(initial=-math.inf))
    return result


def split_index(index: np.ndarray, threshold: float) -> dict[str, np.ndarray]:
    """The documents of each set, in order."""
    in_test = index["hash"] < threshold
    return {"training": index[~in_test], "test": index[in_test]}


def survey(indices: Callable[[], Iterable[np.ndarray]], fraction_test_set: float, sources: Sequence[Path]) -> Survey:
    """The survey with about fraction_test_set of the documents in the test set, and at least one in each set.

    Raises UserError when that cannot be: no text, one document, or copies of one document.
    """
    result = survey_with(indices(), fraction_test_set)
    names = ", ".join(map(str, sources))
    if not result.total_documents:
        raise UserError(f"{names}: no text, so nothing to shard; check the stage before")
    if result.lowest == result.highest:
        raise UserError(
            f"{names}: one document only, but the training and the test set need one "
            "each; format the text with --document book, line or blank_line to get more documents from it"
        )
    if not result.documents["test"]:
        return survey_with(indices(), math.nextafter(result.lowest, 1))
    if not result.documents["training"]:
        return survey_with(indices(), result.highest)
    return result


def shard_count(asked: int, split: str, found: Survey) -> int:
    """asked, or for 0 one shard for every SHARD_BYTES, at least LEAST_AUTOMATIC_SHARDS and at most PUBLISHED_SHARDS
    or the number of documents. Raises UserError when more are asked than there are documents."""
    documents = found.documents[split]
    if asked == 0:
        wanted = max(LEAST_AUTOMATIC_SHARDS[split], math.ceil(found.bytes[split] / SHARD_BYTES))
        return min(wanted, documents, PUBLISHED_SHARDS)
    if asked > documents:
        raise UserError(
            f"{asked} {split} shards asked for, but the {split} set has {documents} of "
            f"{found.total_documents} documents: set --n_{split}_shards (N_{split.upper()}_SHARDS) "
            f"to at most {documents}, or to 0 to choose by size"
        )
    return asked


# ------------------------------------------------------------------------------------- plan: documents -> shards


def deal(counts: Callable[[], Iterable[np.ndarray]], n_shards: int) -> Iterator[np.ndarray]:
    """Shards of documents: for every array of sentence counts, an int64 array as long.

    Each document goes to the shard with the fewest sentences so far (the first such), large ones first and largest
    first, then all others in order. counts is read twice; what is kept is the large ones, whose number has a bound
    that depends on n_shards alone.
    """
    limit = LARGE_SHARE * sum(int(array.sum(dtype=np.int64)) for array in counts()) / n_shards
    large = []
    first = 0
    for array in counts():
        large += [(-int(array[i]), first + int(i)) for i in np.flatnonzero(array > limit)]
        first += len(array)
    fewest = [(0, shard) for shard in range(n_shards)]  # a heap of (sentences, shard)

    def place(sentences: int) -> int:
        total, shard = fewest[0]
        heapq.heapreplace(fewest, (total + sentences, shard))
        return shard

    placed = {number: place(-negative) for negative, number in sorted(large)}
    first = 0
    for array in counts():
        yield np.array(
            [
                placed[number] if number in placed else place(sentences)
                for number, sentences in enumerate(array.tolist(), first)
            ],
            np.int64,
        )
        first += len(array)


class PlanWriter:
    """The plan of one split: a file of ROWs for each shard, appended to; no file stays open."""

    def __init__(self, folder: Path, n_shards: int):
        self.paths = [folder / f"{shard}.rows" for shard in range(n_shards)]
        self._rows: list[list[np.ndarray]] = [[] for _ in self.paths]
        self._kept = 0
        folder.mkdir(parents=True)
        for path in self.paths:
            path.touch()

    def add(self, rows: np.ndarray, shards: np.ndarray) -> None:
        order = np.argsort(shards, kind="stable")
        bounds = np.searchsorted(shards[order], np.arange(len(self.paths) + 1))
        for shard in np.unique(shards):
            self._rows[shard].append(rows[order[bounds[shard] : bounds[shard + 1]]])
        self._kept += len(rows)
        if self._kept >= PLAN_ROWS:
            self.flush()

    def flush(self) -> None:
        for path, rows in zip(self.paths, self._rows, strict=True):
            if rows:
                with open(path, "ab") as stream:
                    stream.write(np.concatenate(rows).tobytes())
                rows.clear()
        self._kept = 0


def write_plan(folder: Path, parts: Sequence[Part], found: Survey, shards: dict[str, int]) -> dict[str, list[Path]]:
    """Deals all documents; returns the plan's files by split, in the order of the shards."""
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    paths = {}
    for split in SPLITS:

        def counts(split: str = split) -> Iterator[np.ndarray]:
            return (split_index(index, found.threshold)[split]["sentences"] for index in read_indices(parts))

        writer = PlanWriter(folder / split, shards[split])
        with Progress(found.documents[split], f"dealing {split}", "documents") as progress:
            for i, (index, chosen) in enumerate(zip(read_indices(parts), deal(counts, shards[split]), strict=True)):
                rows = np.zeros(len(index), ROW)
                rows["part"], rows["offset"] = i, np.cumsum(index["bytes"]) - index["bytes"]
                rows["bytes"], rows["sentences"] = index["bytes"], index["sentences"]
                in_test = index["hash"] < found.threshold
                writer.add(rows[in_test if split == "test" else ~in_test], chosen)
                progress.update(len(chosen))
        writer.flush()
        paths[split] = writer.paths
    return paths


def read_indices(parts: Sequence[Part]) -> Iterator[np.ndarray]:
    return (np.load(part.index) for part in parts)


# ------------------------------------------------------------------------------------------------- gather: shards


class Shard(NamedTuple):
    """A shard to be made: its name in the data set, the file, and its plan."""

    name: str
    path: Path
    plan: Path


def gather_shard(shard: Shard, parts_folder: Path) -> dict[str, Any]:
    """Writes a shard, unless an earlier run has; returns documents, sentences, bytes and sha256."""
    rows = np.fromfile(shard.plan, ROW)
    size = int(rows["bytes"].sum())
    if shard.path.is_file() and shard.path.stat().st_size == size:
        digest = sha256_file(shard.path)
    else:
        digest = _copy(rows, parts_folder, shard.path)
    return {"documents": len(rows), "sentences": int(rows["sentences"].sum()), "bytes": size, "sha256": digest}


def _copy(rows: np.ndarray, parts_folder: Path, path: Path) -> str:
    """Writes the documents of the rows, which are in the order of the parts; returns the SHA-256 of all."""
    digest = hashlib.sha256()
    with atomic_open(path) as stream:
        for part, of_part in groupby(rows.tolist(), lambda row: row[0]):
            with open(parts_folder / f"part_{part}.txt", "rb") as source:
                for _, offset, size, _ in of_part:
                    data = os.pread(source.fileno(), size, offset)
                    digest.update(data)
                    stream.write(data)
    return digest.hexdigest()


# -------------------------------------------------------------------------------------------------- the stage


def shard_documents(
    input_files: Sequence[Path],
    output_dir: Path,
    dataset: str,
    n_training_shards: int = PUBLISHED_SHARDS,
    n_test_shards: int = PUBLISHED_SHARDS,
    fraction_test_set: float = 0.1,
    random_seed: int = 12345,
    *,
    workers: Workers,
) -> Path:
    """Writes <output_dir>/<dataset>, unless it was made from the same text and settings; returns its path.

    0 shards: as many as the size asks for. Raises UserError for text that cannot fill the shards, and a disk that
    cannot hold them.
    """
    folder, work = output_dir / dataset, output_dir / f".{dataset}.partial"
    trained = trained_parameters()
    inputs = fingerprint(input_files)
    settings = {
        "n_training_shards": n_training_shards,
        "n_test_shards": n_test_shards,
        "fraction_test_set": fraction_test_set,
        "random_seed": random_seed,
        "segmentation_method": trained[1] if trained else "NLTK Punkt, trained on the corpus",
    }
    if is_current(folder / MANIFEST, inputs, settings):
        print(f"{folder}: up to date")
        if work.is_dir():  # of a run that was killed with nothing left to do but this
            _clear(work, output_dir, dataset)
        return folder
    make_directory(output_dir)
    with locked_directory(work, f"sharding {dataset}"):
        begin(work, inputs, settings | {"format": FORMAT, "part_bytes": PART_BYTES})
        _require_space(work, input_files)
        segmenter = Segmenter(*(trained or corpus_parameters(input_files)))
        print(f"sentences by {segmenter.origin}", flush=True)
        parts = plan_parts(input_files, work / "parts")
        _split(parts, partial(split_part, segmenter=segmenter, seed=random_seed), dataset, workers)
        try:
            found = survey(lambda: read_indices(parts), fraction_test_set, input_files)
            asked = {"training": n_training_shards, "test": n_test_shards}
            shards = {split: shard_count(asked[split], split, found) for split in SPLITS}
        except UserError:
            shutil.rmtree(work)
            raise
        plan = write_plan(work / "plan", parts, found, shards)
        files = {split: _gather(plan[split], split, work, dataset, workers) for split in SPLITS}
        manifest = {
            "format": FORMAT,
            "dataset": dataset,
            "inputs": inputs,
            "settings": settings,
            "segmentation": segmenter.origin,
            **{split: totals(files[split]) for split in SPLITS},
            "files": files["training"] | files["test"],
        }
        with atomic_directory(folder) as temporary:
            for split in SPLITS:
                remove_abandoned(work / split)
                os.rename(work / split, temporary / split)
            write_json(temporary / MANIFEST, manifest)
        _clear(work, output_dir, dataset)
    for split in SPLITS:
        facts = manifest[split]
        print(
            f"{folder / split}: {facts['shards']} shards, {facts['documents']} documents, "
            f"{facts['sentences']} sentences, {facts['bytes'] / 1e6:.1f} MB, spread {100 * facts['spread']:.2f}%"
        )
        if facts["spread"] > WANTED_SPREAD and facts["sentences"] >= LEAST_BALANCED * facts["shards"]:
            print(
                f"warning: the {split} shards differ by more than {100 * WANTED_SPREAD:.0f}% in sentences: some "
                f"documents are too long to be dealt evenly to {facts['shards']} shards; fewer shards would help"
            )
    return folder


def _clear(work: Path, output_dir: Path, dataset: str) -> None:
    """Removes the working folder, and what runs that were killed while they moved the shards into place have left."""
    for kind in ("tmp", "old"):
        remove_abandoned(output_dir, dataset, kind)
    shutil.rmtree(work)


def _require_space(work: Path, input_files: Sequence[Path]) -> None:
    """Raises UserError when the disk cannot hold parts and shards, each about as large as the text."""
    needed = 2 * sum(path.stat().st_size for path in input_files)
    there = sum(path.stat().st_size for path in work.rglob("*") if path.is_file())
    free = shutil.disk_usage(work).free
    if free + there < needed:
        raise UserError(
            f"{work.parent}: {free / 1e9:.2f} GB free, but sharding takes {needed / 1e9:.2f} GB, half of it for a "
            "while only; free some space or choose another --output_dir"
        )


def _split(parts: Sequence[Part], split: Callable[[Part], None], dataset: str, workers: Workers) -> None:
    """Makes the parts that are not there yet."""
    missing = [part for part in parts if not part.index.is_file()]
    if len(missing) < len(parts):
        print(f"{len(parts) - len(missing)} of {len(parts)} parts are already done", flush=True)
    for _ in files_map(
        split, missing, workers, lambda part: part.stop - part.start, f"sentences of {dataset}", lambda p: str(p.source)
    ):
        pass


def _gather(plan: Sequence[Path], split: str, work: Path, dataset: str, workers: Workers) -> dict[str, dict[str, Any]]:
    """Makes the shards of a split; returns their facts by name, in their order."""
    names = [f"{split}/{dataset}_{split}_{i}.txt" for i in range(len(plan))]
    shards = [Shard(name, work / name, rows) for name, rows in zip(names, plan, strict=True)]
    gather = partial(gather_shard, parts_folder=work / "parts")
    facts = {}
    with Progress(len(shards), f"shards of {dataset} ({split})", "shards") as progress:
        for shard, found in completed_map(gather, shards, workers, describe=lambda shard: shard.name):
            facts[shard.name] = found
            progress.update()
    return {name: facts[name] for name in names}


def totals(files: dict[str, dict[str, Any]]) -> dict[str, int | float]:
    """Sums over the shards of a split, and how far apart these are: (largest - smallest) / mean of the sentences."""
    sums = {key: sum(facts[key] for facts in files.values()) for key in ("documents", "sentences", "bytes")}
    sentences = [facts["sentences"] for facts in files.values()]
    spread = (max(sentences) - min(sentences)) * len(files) / sums["sentences"]
    return {"shards": len(files), **sums, "spread": round(spread, 6)}


def input_list(text: str) -> list[Path]:
    return [absolute_path(name) for name in text.split(",") if name]


def shard_number(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--input_files", type=input_list, required=True, help="formatted text, separated by commas")
    parser.add_argument("--output_dir", type=absolute_path, required=True)
    parser.add_argument("--dataset", type=dataset_name, required=True)
    parser.add_argument("--n_training_shards", type=shard_number, default=PUBLISHED_SHARDS, help="0: by size")
    parser.add_argument("--n_test_shards", type=shard_number, default=PUBLISHED_SHARDS, help="0: by size")
    parser.add_argument("--fraction_test_set", type=float, default=0.1)
    parser.add_argument("--segmentation_method", choices=("nltk",), default="nltk")
    add_flags(parser, n_processes=4)
    parser.add_argument("--random_seed", type=int, default=12345)
    arguments = parser.parse_args()
    if not 0 < arguments.fraction_test_set < 1:
        parser.error(f"--fraction_test_set must be between 0 and 1, not {arguments.fraction_test_set}")
    return arguments


def main() -> None:
    arguments = vars(parse_arguments())
    del arguments["segmentation_method"]  # NLTK's is the only one
    with chosen_workers(arguments) as workers:
        if workers is not None:
            shard_documents(**arguments, workers=workers)


if __name__ == "__main__":
    from data import sharding  # under its own name, so that workers find its functions by module

    run_main(sharding.main)
