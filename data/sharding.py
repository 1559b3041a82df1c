"""Documents, one a line, to shards with one sentence a line and an empty line between documents.

    python -m data.sharding --input_files FILE[,FILE...] --dataset NAME --output_dir data/sharded

writes <output_dir>/<dataset>/{training,test}/<dataset>_{training,test}_<i>.txt and a manifest, all or none.

A document belongs to the test set by a hash of its text and the seed, so that copies of a text never stand on
both sides, and goes whole to the shard of its set that has the fewest sentences so far. The text is read once
to survey it and once to split it; memory does not grow with it, and the shards do not depend on the number of
processes.
"""

import argparse
import hashlib
import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.layout import MANIFEST, SPLITS, dataset_name
from data.parallel import ordered_map
from data.segmentation import Segmenter, corpus_parameters, trained_parameters
from data.stage import fingerprint, is_current
from runkit.errors import UserError, run_main
from runkit.files import atomic_directory, read_lines, write_json
from runkit.progress import Progress

FORMAT = 1
PUBLISHED_SHARDS = 1472
# What --n_*_shards 0 aims at: shards that a worker handles in seconds, and enough of them to share out.
SHARD_CHARACTERS = 4_000_000
LEAST_AUTOMATIC_SHARDS = {"training": 8, "test": 2}
CHUNK_CHARACTERS = 250_000  # of documents, to a worker at a time: about 0.1 s of work
BUFFER_CHARACTERS = 64_000_000  # kept before shard files are appended to; no file stays open


# ---------------------------------------------------------------------------------------- which set, how many


def read_documents(files: Iterable[Path]) -> Iterator[str]:
    """The documents of formatted files, in order."""
    for path in files:
        yield from (document for line in read_lines(path) if (document := line.strip()))


def unit_hash(document: str, seed: int) -> float:
    """A number in [0, 1) from nothing but text and seed: the first 53 bits of SHA-256, as a fraction."""
    digest = hashlib.sha256(f"{seed}\n{document}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2.0**53


def split_of(value: float, threshold: float) -> str:
    return "test" if value < threshold else "training"


@dataclass
class Survey:
    """What one reading of the corpus tells; documents with a unit_hash below threshold are the test set."""

    threshold: float
    documents: dict[str, int]  # by split
    characters: dict[str, int]  # by split
    lowest: float  # unit_hash of any document
    highest: float

    @property
    def total_documents(self) -> int:
        return sum(self.documents.values())


def survey_with(files: Sequence[Path], threshold: float, seed: int) -> Survey:
    """Reads the corpus once."""
    result = Survey(threshold, dict.fromkeys(SPLITS, 0), dict.fromkeys(SPLITS, 0), math.inf, -math.inf)
    with Progress(None, "surveying", "documents") as progress:
        for document in read_documents(files):
            value = unit_hash(document, seed)
            split = split_of(value, threshold)
            result.documents[split] += 1
            result.characters[split] += len(document)
            result.lowest = min(result.lowest, value)
            result.highest = max(result.highest, value)
            progress.update(1)
    return result


def survey(files: Sequence[Path], fraction_test_set: float, seed: int) -> Survey:
    """The survey with about fraction_test_set of the documents in the test set, and at least one in each set.

    Raises UserError when that cannot be: no text, one document, or copies of one document.
    """
    result = survey_with(files, fraction_test_set, seed)
    if not result.total_documents:
        raise UserError(f"{', '.join(map(str, files))}: no text, so nothing to shard; check the stage before")
    if result.lowest == result.highest:
        raise UserError(
            f"{', '.join(map(str, files))}: one document only, but the training and the test set need one "
            "each; format the text with --document book, line or blank_line to get more documents from it"
        )
    if not result.documents["test"]:
        return survey_with(files, math.nextafter(result.lowest, 1), seed)
    if not result.documents["training"]:
        return survey_with(files, result.highest, seed)
    return result


def shard_count(asked: int, split: str, found: Survey) -> int:
    """asked, or for 0 one shard for every SHARD_CHARACTERS, at least LEAST_AUTOMATIC_SHARDS and at most
    PUBLISHED_SHARDS or the number of documents. Raises UserError when more are asked than there are
    documents."""
    documents = found.documents[split]
    if asked == 0:
        wanted = max(LEAST_AUTOMATIC_SHARDS[split], math.ceil(found.characters[split] / SHARD_CHARACTERS))
        return min(wanted, documents, PUBLISHED_SHARDS)
    if asked > documents:
        raise UserError(
            f"{asked} {split} shards asked for, but the {split} set has {documents} of "
            f"{found.total_documents} documents: set --n_{split}_shards (N_{split.upper()}_SHARDS) "
            f"to at most {documents}, or to 0 to choose by size"
        )
    return asked


# ------------------------------------------------------------------------------------- documents -> sentences


def chunks(documents: Iterable[str]) -> Iterator[list[str]]:
    """Documents in lists of about CHUNK_CHARACTERS."""
    chunk: list[str] = []
    size = 0
    for document in documents:
        chunk.append(document)
        size += len(document)
        if size >= CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


_segmenter: Segmenter  # of a worker process


def _start_worker(segmenter: Segmenter) -> None:
    global _segmenter
    _segmenter = segmenter


def _split_chunk(documents: list[str]) -> list[tuple[str, list[str]]]:
    """(document, its sentences) for each document."""
    return [(document, _segmenter.sentences(document)) for document in documents]


# ---------------------------------------------------------------------------------------- sentences -> shards


class ShardWriter:
    """Deals the documents of one split to its shards: each to the one with the fewest sentences so far (the
    first such)."""

    def __init__(self, folder: Path, dataset: str, split: str, n_shards: int):
        self.names = [f"{split}/{dataset}_{split}_{i}.txt" for i in range(n_shards)]
        self._folder = folder
        self._fewest = [(0, i) for i in range(n_shards)]  # heap of (sentences, shard)
        self._buffers: list[list[str]] = [[] for _ in range(n_shards)]
        self._buffered = 0
        self._hashes = [hashlib.sha256() for _ in range(n_shards)]
        self.facts = [{"documents": 0, "sentences": 0, "bytes": 0} for _ in range(n_shards)]
        (folder / split).mkdir()

    def add(self, sentences: list[str]) -> None:
        total, shard = self._fewest[0]
        heapq.heapreplace(self._fewest, (total + len(sentences), shard))
        self.facts[shard]["documents"] += 1
        self.facts[shard]["sentences"] += len(sentences)
        text = "\n".join(sentences) + "\n\n"
        self._buffers[shard].append(text)
        self._buffered += len(text)
        if self._buffered >= BUFFER_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        """Appends what is buffered to the shard files."""
        for i, buffer in enumerate(self._buffers):
            if buffer:
                data = "".join(buffer).encode()
                self._hashes[i].update(data)
                self.facts[i]["bytes"] += len(data)
                with open(self._folder / self.names[i], "ab") as stream:
                    stream.write(data)
                buffer.clear()
        self._buffered = 0

    def close(self) -> dict[str, dict[str, Any]]:
        """Writes the rest; returns documents, sentences, bytes and sha256 of each shard by name."""
        self.flush()
        return {
            name: {**facts, "sha256": digest.hexdigest()}
            for name, facts, digest in zip(self.names, self.facts, self._hashes, strict=True)
        }


# -------------------------------------------------------------------------------------------------- the stage


def shard_documents(
    input_files: Sequence[Path],
    output_dir: Path,
    dataset: str,
    n_training_shards: int = PUBLISHED_SHARDS,
    n_test_shards: int = PUBLISHED_SHARDS,
    fraction_test_set: float = 0.1,
    n_processes: int = 4,
    random_seed: int = 12345,
) -> Path:
    """Writes <output_dir>/<dataset>, unless it was made from the same text and settings; returns its path.

    0 shards: as many as the size asks for. Raises UserError for text that cannot fill the shards.
    """
    folder = output_dir / dataset
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
        return folder
    found = survey(input_files, fraction_test_set, random_seed)
    asked = {"training": n_training_shards, "test": n_test_shards}
    shards = {split: shard_count(asked[split], split, found) for split in SPLITS}
    segmenter = Segmenter(*(trained or corpus_parameters(input_files)))
    print(f"sentences by {segmenter.origin}")
    with atomic_directory(folder) as temporary:
        writers = {split: ShardWriter(temporary, dataset, split, shards[split]) for split in SPLITS}
        split_chunks = ordered_map(
            _split_chunk, chunks(read_documents(input_files)), n_processes, _start_worker, (segmenter,)
        )
        with Progress(found.total_documents, f"sharding {dataset}", "documents") as progress:
            for chunk in split_chunks:
                for document, sentences in chunk:
                    split = split_of(unit_hash(document, random_seed), found.threshold)
                    writers[split].add(sentences)
                progress.update(len(chunk))
        files = {split: writers[split].close() for split in SPLITS}
        manifest = {
            "format": FORMAT,
            "dataset": dataset,
            "inputs": inputs,
            "settings": settings,
            "segmentation": segmenter.origin,
            **{split: totals(files[split]) for split in SPLITS},
            "files": files["training"] | files["test"],
        }
        write_json(temporary / MANIFEST, manifest)
    for split in SPLITS:
        facts = manifest[split]
        print(
            f"{folder / split}: {facts['shards']} shards, {facts['documents']} documents, "
            f"{facts['sentences']} sentences, {facts['bytes'] / 1e6:.1f} MB"
        )
    return folder


def totals(files: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Sums over the shards of a split."""
    sums = {key: sum(facts[key] for facts in files.values()) for key in ("documents", "sentences", "bytes")}
    return {"shards": len(files), **sums}


def input_list(text: str) -> list[Path]:
    return [Path(name) for name in text.split(",") if name]


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
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--dataset", type=dataset_name, required=True)
    parser.add_argument("--n_training_shards", type=shard_number, default=PUBLISHED_SHARDS, help="0: by size")
    parser.add_argument("--n_test_shards", type=shard_number, default=PUBLISHED_SHARDS, help="0: by size")
    parser.add_argument("--fraction_test_set", type=float, default=0.1)
    parser.add_argument("--segmentation_method", choices=("nltk",), default="nltk")
    parser.add_argument("--n_processes", type=int, default=4)
    parser.add_argument("--random_seed", type=int, default=12345)
    arguments = parser.parse_args()
    if not 0 < arguments.fraction_test_set < 1:
        parser.error(f"--fraction_test_set must be between 0 and 1, not {arguments.fraction_test_set}")
    if arguments.n_processes < 1:
        parser.error(f"--n_processes must be at least 1, not {arguments.n_processes}")
    return arguments


def main() -> None:
    arguments = vars(parse_arguments())
    del arguments["segmentation_method"]  # NLTK's is the only one
    shard_documents(**arguments)


if __name__ == "__main__":
    run_main(main)
