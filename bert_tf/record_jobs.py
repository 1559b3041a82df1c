"""Text files to record files, one job each, in this process or in a pool of them.

What a job writes depends on the text, its file name and the settings, never on the number of processes.
"""

import contextlib
import multiprocessing
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
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
    to_example,
)
from bert_tf.records import MANIFEST_FORMAT, TFRecordWriter, encode_example
from bert_tf.tokenization import FullTokenizer, load_vocab
from runkit.errors import UserError
from runkit.files import sha256_file
from runkit.progress import Progress

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


# --- one file -----------------------------------------------------------------------------------------------


class RecordMaker:
    """Turns text files into record files."""

    def __init__(self, settings: RecordSettings):
        self.settings = settings
        self.tokenizer = FullTokenizer(settings.vocab_file, settings.do_lower_case)
        self.vocabulary = MaskingVocabulary.of(self.tokenizer.vocab)

    def make(self, job: Job, advance: Callable[[float], None]) -> JobResult:
        """Writes the records of a file, calling advance(bytes of text done). Any error names the file."""
        try:
            return self._make(job, advance)
        except OSError as error:
            raise UserError(f"{job.source}: {error}") from error
        except MemoryError as error:
            raise UserError(f"{job.source}: out of memory; use fewer --n_processes") from error
        except UserError:
            raise
        except Exception as error:
            error.add_note(f"while making records from {job.source}")
            raise

    def _make(self, job: Job, advance: Callable[[float], None]) -> JobResult:
        counts = [Counter() for _ in job.outputs]
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
                        counts[output].update(tokens=n_tokens, masked_tokens=n_masked)
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
                    "tokens": count["tokens"],
                    "masked_tokens": count["masked_tokens"],
                    "sources": {job.source.name: source_sha256},
                }
                for writer, count in zip(writers, counts, strict=True)
            ],
            _doubts(job.source, last.number + 1, n_multiple),
        )

    def _pass(
        self, file_name: str, documents: list[Document], block: int, duplicate: int
    ) -> list[tuple[bytes, int, int]]:
        """(record, tokens, masked tokens) of every instance of a block in one pass over it, shuffled."""
        seed, settings = self.settings.random_seed, self.settings.instances
        s, p = settings.max_seq_length, settings.max_predictions_per_seq
        records = [
            (encode_example(to_example(instance, s, p)), len(instance.tokens), len(instance.masked_positions))
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


# --- many files, several processes --------------------------------------------------------------------------


class _Stopped(Exception):
    """Another file failed."""


class _Worker:
    """What a worker process keeps between files."""

    def __init__(self, settings: RecordSettings, counter, stop):
        self.maker = RecordMaker(settings)
        self.counter, self.stop = counter, stop

    def advance(self, n_bytes: float) -> None:
        if self.stop.is_set():
            raise _Stopped
        with self.counter.get_lock():
            self.counter.value += n_bytes


_worker: _Worker


def _start_worker(*arguments) -> None:
    global _worker
    _worker = _Worker(*arguments)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Workers of a killed run would wait for work for ever."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _work(job: Job) -> JobResult:
    return _worker.maker.make(job, _worker.advance)


def run_jobs(jobs: Sequence[Job], settings: RecordSettings, n_processes: int) -> Iterator[tuple[Job, JobResult]]:
    """Yields each job with its result as it ends. The first failure stops all and is raised."""
    kilobytes = sum(job.source.stat().st_size for job in jobs) // 1000
    n_processes = min(n_processes, len(jobs))
    label = "records" if n_processes == 1 else f"records, {n_processes} processes"
    with Progress(kilobytes, label, "kB") as progress:
        if n_processes <= 1:
            done = 0.0

            def advance(n_bytes: float) -> None:
                nonlocal done
                done += n_bytes
                progress.update(int(done / 1000) - progress.done)

            maker = RecordMaker(settings)
            for job in jobs:
                yield job, maker.make(job, advance)
        else:
            yield from _run_in_pool(jobs, settings, n_processes, progress)


def _run_in_pool(
    jobs: Sequence[Job], settings: RecordSettings, n_processes: int, progress: Progress
) -> Iterator[tuple[Job, JobResult]]:
    # A fork server: forking a process that may have threads (TensorFlow's, a progress bar's) is not safe.
    context = multiprocessing.get_context("forkserver")
    counter, stop = context.Value("d", 0.0), context.Event()
    waiting = iter(jobs)
    with ProcessPoolExecutor(n_processes, context, _start_worker, (settings, counter, stop)) as pool:
        running = {pool.submit(_work, job): job for _, job in zip(range(n_processes), waiting, strict=False)}
        try:
            while running:
                ended, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                progress.update(int(counter.value / 1000) - progress.done)
                for future in ended:
                    result = future.result()
                    yield running.pop(future), result
                    if (job := next(waiting, None)) is not None:
                        running[pool.submit(_work, job)] = job
        except BrokenProcessPool as error:
            files = ", ".join(str(job.source) for job in running.values())
            raise UserError(
                f"a worker process was killed (out of memory?) while working on one of: {files}; "
                "run again with fewer --n_processes, finished files are kept"
            ) from error
        finally:
            stop.set()
