"""Text files to record files, one job each, by any workers.

What a job writes depends on the text, its file name and the settings, never on the workers.
"""

import contextlib
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from bert_tf.instances import (
    Document,
    InstanceSettings,
    MaskingVocabulary,
    blocks,
    document_instances,
    generator,
    read_documents,
)
from bert_tf.records import MANIFEST_FORMAT, PretrainingEncoder, TFRecordWriter
from bert_tf.tokenization import FullTokenizer, load_vocab
from data.executors import Stopped, Workers, advance
from data.parallel import files_map
from runkit.errors import UserError
from runkit.files import sha256_file

# Text of this many characters is paired and masked at a time (about 2 million tokens, 100 MB of memory).
BLOCK_CHARS = 8_000_000


@dataclass(frozen=True)
class RecordSettings:
    """All that records depend on, besides the text."""

    vocab_file: str
    do_lower_case: bool
    random_seed: int
    dupe_factor: int
    instances: InstanceSettings

    def manifest_header(self) -> dict:
        """The settings as a manifest keeps them: the vocabulary by its size and sum, not by its place."""
        return {
            "format": MANIFEST_FORMAT,
            "vocab_size": len(load_vocab(self.vocab_file)),
            "vocab_sha256": sha256_file(self.vocab_file),
            "do_lower_case": self.do_lower_case,
            "random_seed": self.random_seed,
            "dupe_factor": self.dupe_factor,
            **asdict(self.instances),
        }


class Job(NamedTuple):
    """One text file, its instances dealt in turn to the outputs from outputs[first] on."""

    source: Path
    outputs: list[Path]
    first: int = 0


class JobResult(NamedTuple):
    entries: list[dict]  # manifest entry of each output
    warnings: list[str]


# --- sequence lengths ---------------------------------------------------------------------------------------

LENGTH_CLASSES = 16


def length_facts(counts: Mapping[int, int], max_seq_length: int) -> dict:
    """What a manifest keeps of the records by their number of tokens: shortest, longest (0 without any records), and
    how many fall in each sixteenth of max_seq_length (lengths in (i S / 16, (i + 1) S / 16])."""
    classes = [0] * LENGTH_CLASSES
    for length, records in counts.items():
        classes[(length * LENGTH_CLASSES - 1) // max_seq_length] += records
    return {"shortest": min(counts, default=0), "longest": max(counts, default=0), "classes": classes}


def combine_lengths(facts: Iterable[dict]) -> dict:
    """The length_facts of several files together."""
    filled = [fact for fact in facts if fact["longest"]]
    return {
        "shortest": min((fact["shortest"] for fact in filled), default=0),
        "longest": max((fact["longest"] for fact in filled), default=0),
        "classes": [sum(column) for column in zip([0] * LENGTH_CLASSES, *(f["classes"] for f in filled), strict=True)],
    }


# --- one file -----------------------------------------------------------------------------------------------


class RecordMaker:
    """Turns text files into record files."""

    def __init__(self, settings: RecordSettings):
        self.settings = settings
        self.tokenizer = FullTokenizer(settings.vocab_file, settings.do_lower_case)
        self.vocabulary = MaskingVocabulary.of(self.tokenizer.vocab)
        instances = settings.instances
        self.encoder = PretrainingEncoder(instances.max_seq_length, instances.max_predictions_per_seq)

    def make(self, job: Job) -> JobResult:
        """Writes the records of a file, telling the bytes of text that are done. Any error names the file."""
        try:
            return self._make(job)
        except OSError as error:
            raise UserError(f"{job.source}: {error}") from error
        except MemoryError as error:
            raise UserError(f"{job.source}: out of memory; use fewer --n_processes") from error
        except (UserError, Stopped):
            raise
        except Exception as error:
            error.add_note(f"while making records from {job.source}")
            raise

    def _make(self, job: Job) -> JobResult:
        lengths = [Counter() for _ in job.outputs]  # records by their number of tokens
        masked = [0 for _ in job.outputs]
        n_records = n_multiple = 0
        last = None
        size, done = job.source.stat().st_size, 0.0
        source_sha256 = sha256_file(job.source)
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(TFRecordWriter(output)) for output in job.outputs]
            texts = read_documents(job.source, self.tokenizer.encode, BLOCK_CHARS)
            for block, (documents, chars) in enumerate(blocks(texts, BLOCK_CHARS)):
                last = documents[-1]
                n_multiple += sum(len(document.sentences) > 1 for document in documents)
                for duplicate in range(self.settings.dupe_factor):
                    for record, n_tokens, n_masked in self._pass(job.source.name, documents, block, duplicate):
                        output = (job.first + n_records) % len(writers)
                        writers[output].write(record)
                        lengths[output][n_tokens] += 1
                        masked[output] += n_masked
                        n_records += 1
                    done += chars / self.settings.dupe_factor
                    advance(chars / self.settings.dupe_factor)
            if last is None:
                raise UserError(f"{job.source}: no text in this file; remove it from the input")
            if n_records == 0:
                raise UserError(
                    f"{job.source}: a single sentence makes no pair; the format is one sentence a line, "
                    "with a blank line between documents"
                )
        advance(size - done)  # line ends, and characters of several bytes
        return JobResult(
            [
                {
                    **writer.summary()._asdict(),
                    "tokens": sum(length * records for length, records in counts.items()),
                    "masked_tokens": n_masked,
                    "lengths": length_facts(counts, self.settings.instances.max_seq_length),
                    "sources": {job.source.name: source_sha256},
                }
                for writer, counts, n_masked in zip(writers, lengths, masked, strict=True)
            ],
            _doubts(job.source, last.number + 1, n_multiple),
        )

    def _pass(
        self, file_name: str, documents: list[Document], block: int, duplicate: int
    ) -> list[tuple[bytes, int, int]]:
        """(record, tokens, masked tokens) of every instance of a block in one pass over it, shuffled."""
        seed, settings, encode = self.settings.random_seed, self.settings.instances, self.encoder.encode
        records = [
            (encode(*instance), len(instance.tokens), len(instance.masked_positions))
            for index in range(len(documents))
            for instance in document_instances(documents, index, duplicate, seed, file_name, settings, self.vocabulary)
        ]
        generator(seed, file_name, duplicate, "order of block", block).shuffle(records)
        return records


def _doubts(source: Path, n_documents: int, n_multiple: int) -> list[str]:
    """Warnings about a text that is probably not in the format meant."""
    if n_documents == 1:
        return [
            f"{source}: a single document, so only true next sentences were made, and next-sentence "
            "prediction has nothing to learn; documents are separated by blank lines"
        ]
    if n_multiple == 0:
        return [
            f"{source}: every document is a single sentence, so only random next sentences were made; "
            "the format is one sentence a line, with a blank line between documents"
        ]
    return []


# --- many files, several workers ----------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _maker(settings: RecordSettings) -> RecordMaker:
    """What a worker keeps between files."""
    return RecordMaker(settings)


def make_records(job: Job, settings: RecordSettings) -> JobResult:
    """The task of a worker."""
    return _maker(settings).make(job)


def run_jobs(jobs: Sequence[Job], settings: RecordSettings, workers: Workers) -> Iterator[tuple[Job, JobResult]]:
    """Yields each job with its result as it ends. The first failure stops all and is raised."""
    sizes = {job.source: job.source.stat().st_size for job in jobs}
    make = functools.partial(make_records, settings=settings)
    yield from files_map(make, jobs, workers, lambda job: sizes[job.source], "records", lambda job: str(job.source))
