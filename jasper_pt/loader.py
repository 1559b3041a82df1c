"""From utterances to batches: order, reading, augmentation, features.

    kept, report = filter_utterances(read_manifest(path, dataset_dir), config, train=True)
    loader = TrainLoader(kept, config, batch_size=32, grad_accumulation=2, rank=0, world_size=8, seed=0)
    for batch in loader.epoch(3, start_update=17): ...

Which utterances make an update, and what augmentation does to each, follows from (seed, epoch) alone: not from the
number of workers, nor from where a run was interrupted. An update's utterances are the same however batch_size *
grad_accumulation * processes is factored, and its micro-batches are the same whatever the number of processes that they
are dealt to.

Worker threads decode, resample, trim and perturb waveforms (all of it outside Python's lock); features and masks are
computed for whole batches on the training device.

Legend: B utterances, N samples, T frames, F mel bins, U target length, M masks.
"""

import collections
import math
import os
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from jasper_pt.audio import loud_part, read_audio
from jasper_pt.augment import draw_masks, mask_features, perturb, speed_factor, utterance_rng
from jasper_pt.config import Config, FeatureConfig, InputConfig
from jasper_pt.features import LogMel
from jasper_pt.manifest import Utterance
from jasper_pt.recordings import pad
from jasper_pt.surroundings import make_surroundings
from jasper_pt.text import encode, frames_needed, transcript_rules
from runkit.errors import UserError
from runkit.guards import StallGuard

PREFETCH_BATCHES = 2  # read ahead of the one in use
NAMES_SHOWN = 20


class AsrBatch(NamedTuple):
    """The one thing between data and model. Tensors are on the loader's device."""

    features: Tensor  # [B, F, T] float32, zeros past each length
    feature_lengths: Tensor  # [B] int64, frames
    targets: Tensor  # [B, U] int64, padded with 0
    target_lengths: Tensor  # [B] int64
    keys: list[str]
    transcripts: list[str]  # normalised: what the targets spell
    durations: list[float]  # s of audio read, before trimming and changes of speed
    indices: list[int]  # places in the sequence of utterances the loader was given
    starts: Sequence[float] = ()  # s of silence trimmed from the start; empty: not known
    second_view: Tensor | None = None  # [B, F, T], the same utterances under other masks


# ---------------------------------------------------------------------------------------------------- transcripts
# ------------------------------------------------------------------------------------------------------ filtering
class FilterReport(NamedTuple):
    """What filter_utterances left out, by key."""

    kept: int
    kept_seconds: float
    too_short: tuple[str, ...]
    too_long: tuple[str, ...]
    infeasible: tuple[tuple[str, int, int], ...]  # key, frames CTC needs, frames there are
    beyond_max_utts: int
    unknown: Counter[str]  # characters of the transcripts kept that have no label

    def lines(self) -> list[str]:
        """The report as lines for a log, at most NAMES_SHOWN names for each kind."""
        lines = [f"{self.kept} utterances, {self.kept_seconds / 3600:.2f} h"]
        needs = [f"{key} (needs {needed} frames, has {there})" for key, needed, there in self.infeasible]
        for title, names in (
            ("shorter than min_duration", self.too_short),
            ("longer than max_duration", self.too_long),
            ("with more text than CTC can align to their frames", needs),
        ):
            if names:
                more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
                lines.append(f"{len(names)} left out, {title}: {', '.join(names[:NAMES_SHOWN])}{more}")
        if self.beyond_max_utts:
            lines.append(f"{self.beyond_max_utts} left out, beyond max_utts")
        if self.unknown:
            counts = ", ".join(f"{character!r} x {n}" for character, n in self.unknown.most_common(NAMES_SHOWN))
            lines.append(f"{self.unknown.total()} characters without a label left out of transcripts: {counts}")
        return lines


def output_frames(seconds: float, features: FeatureConfig, stride: int) -> int:
    """Frames that a model makes of so much audio. stride: feature frames an output frame."""
    frames = -(-round(seconds * features.sample_rate) // features.hop_length)
    return -(-frames // stride)


def filter_utterances(
    utterances: Sequence[Utterance], config: Config, *, train: bool, stride: int | None = None
) -> tuple[list[Utterance], FilterReport]:
    """The utterances to use, in order, and what was left out.

    Left out are those outside min_duration..max_duration (by the manifest, before any change of speed), those after the
    first max_utts, and for training those whose targets CTC cannot align: at least one output frame a label and one
    between equal neighbours are needed. `stride` is feature frames an output frame (default: the encoder's). Raises
    UserError when nothing is left.
    """
    inputs = _inputs(config, train)
    audio = inputs.audio
    stride = stride or config.stride
    rules = transcript_rules(audio.normalize_transcripts, config.labels)
    kept, too_short, too_long, infeasible = [], [], [], []
    unknown: Counter[str] = Counter()
    beyond = 0
    for utterance in utterances:
        if utterance.duration < audio.min_duration:
            too_short.append(utterance.key)
            continue
        if utterance.duration > audio.max_duration:
            too_long.append(utterance.key)
            continue
        if audio.max_utts and len(kept) == audio.max_utts:
            beyond += 1
            continue
        missing: Counter[str] = Counter()
        needed = frames_needed(encode(rules(utterance.transcript, config.labels, missing), config.labels))
        frames = output_frames(utterance.duration, inputs.features, stride)
        if train and needed > frames:
            infeasible.append((utterance.key, needed, frames))
            continue
        unknown += missing
        kept.append(utterance)
    seconds = sum(utterance.duration for utterance in kept)
    report = FilterReport(len(kept), seconds, tuple(too_short), tuple(too_long), tuple(infeasible), beyond, unknown)
    if not kept:
        raise UserError("\n".join([f"none of {len(utterances)} utterances is left", *report.lines()[1:]]))
    return kept, report


# ---------------------------------------------------------------------------------------------------------- reading
class Example(NamedTuple):
    """What a worker makes of one utterance."""

    index: int
    audio: np.ndarray  # [N] float32
    duration: float  # s, as read
    target: list[int]
    transcript: str
    masks: np.ndarray | None  # [views, M, 4], None in evaluation
    start: float | None = None  # s of silence trimmed from the start, if known


class Reader:
    """Makes examples and batches of `utterances`, the same ones for an index (and epoch) whoever asks.

    views: 1, or 2 where batches are to have a second view.
    """

    def __init__(
        self, utterances: Sequence[Utterance], config: Config, train: bool, seed: int, device: Any, views: int = 1
    ):
        self.utterances, self.labels, self.seed, self.device = utterances, config.labels, seed, torch.device(device)
        self.views = views
        inputs = _inputs(config, train)
        self.audio, self.features = inputs.audio, inputs.features
        self.rules = transcript_rules(self.audio.normalize_transcripts, self.labels)
        self.log_mel = LogMel(self.features).to(self.device)
        self.surroundings = make_surroundings(self.audio) if train else None

    def read(self, index: int, epoch: int | None) -> Example:
        """Reads utterance `index`; without an epoch there is no augmentation. Raises UserError naming the file."""
        utterance = self.utterances[index]
        path, offset, seconds = self.part(utterance, epoch)
        try:
            audio = read_audio(path, self.audio.sample_rate, offset, seconds)
        except Exception as error:
            error.add_note(f"while reading {path}")
            raise
        duration = len(audio) / self.audio.sample_rate
        start = 0.0
        if self.audio.trim_silence:
            part = loud_part(audio)
            audio, start = audio[part], part.start / self.audio.sample_rate
        if epoch is not None:
            owner = (self.seed, epoch, utterance.key)
            audio = perturb(audio, self.audio, self.features.dither, *owner, self.surroundings)
        return Example(index, audio, duration, *self.target(utterance), self.masks(utterance, epoch), start)

    def file_name(self, index: int) -> str:
        return str(self.utterances[index].audio_path)

    def part(self, utterance: Utterance, epoch: int | None) -> tuple[os.PathLike, float, float | None]:
        """File, offset and duration (s; None: to the end). For training one of the speeds made offline, if there are
        any and the configuration does not ignore them."""
        path, speed, seconds = utterance.audio_path, 1.0, utterance.duration
        if epoch is not None and len(utterance.speeds) > 1 and not self.audio.ignore_offline_speed_perturbation:
            choice = utterance_rng(self.seed, epoch, utterance.key, "copy").integers(len(utterance.speeds))
            path, speed, seconds = utterance.speeds[choice]
        return path, utterance.offset / speed, seconds or None

    def seconds(self, epoch: int | None) -> np.ndarray:
        """Durations [utterances] (s) that the examples of an epoch will have, before trimming."""
        speed = None if epoch is None else self.audio.speed_perturbation
        return np.array(
            [
                (self.part(utterance, epoch)[2] or 0.0) / speed_factor(speed, self.seed, epoch, utterance.key)
                for utterance in self.utterances
            ]
        )

    def target(self, utterance: Utterance) -> tuple[list[int], str]:
        """Labels and the normalised transcript they spell."""
        transcript = self.rules(utterance.transcript, self.labels)
        return encode(transcript, self.labels), transcript

    def masks(self, utterance: Utterance, epoch: int | None) -> np.ndarray | None:
        if epoch is None:
            return None
        purposes = ("masks", "masks of the second view")[: self.views]
        rngs = [utterance_rng(self.seed, epoch, utterance.key, purpose) for purpose in purposes]
        return np.stack([draw_masks(self.features, rng) for rng in rngs])

    def batch(self, examples: Sequence[Example], width: int = 0) -> AsrBatch:
        """Features of the examples, on the device; at least `width` frames wide."""
        audio, lengths = pad([example.audio for example in examples])
        features, feature_lengths = self.log_mel(self.to_device(audio), self.to_device(lengths))
        return self.finish(examples, features, feature_lengths, width)

    def finish(self, examples: Sequence[Example], features: Tensor, feature_lengths: Tensor, width: int) -> AsrBatch:
        """Widens the features [B, F, T], masks them in training, and puts the rest of the batch beside them."""
        features = torch.nn.functional.pad(features, (0, max(width - features.shape[2], 0)))
        views = [features]
        if examples[0].masks is not None:
            draws = self.to_device(np.stack([example.masks for example in examples], axis=1))  # [views, B, M, 4]
            views += [features.clone() for _ in draws[1:]]
            for view, numbers in zip(views, draws, strict=True):
                mask_features(view, feature_lengths, numbers, self.features)
        targets, target_lengths = pad([np.asarray(example.target, np.int64) for example in examples])
        return AsrBatch(
            views[0],
            feature_lengths,
            self.to_device(targets),
            self.to_device(target_lengths),
            [self.utterances[example.index].key for example in examples],
            [example.transcript for example in examples],
            [example.duration for example in examples],
            [example.index for example in examples],
            [example.start for example in examples if example.start is not None],
            *views[1:],
        )

    def to_device(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type == "cuda":  # from pinned memory the copy does not stop the host
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor


class Workers:
    """Threads that compute function(item) for items in the order they are submitted.

    Daemons, unlike those of concurrent.futures: one that hangs in a read, as on a file system whose server is gone,
    must not keep a process alive that has given up on it.
    """

    def __init__(self, count: int, function: Callable[[Any], Any]):
        self.function = function
        self.items: queue.SimpleQueue[tuple[Future, Any] | None] = queue.SimpleQueue()
        self.threads = [threading.Thread(target=self._work, name=f"audio_{i}", daemon=True) for i in range(count)]
        for thread in self.threads:
            thread.start()

    def submit(self, item: Any) -> Future:
        future: Future = Future()
        self.items.put((future, item))
        return future

    def close(self, pending: Iterable[Future], wait: bool) -> None:
        """Ends the threads after the items under way; wait: returns when they have ended."""
        for future in pending:
            future.cancel()
        for _ in self.threads:
            self.items.put(None)
        for thread in self.threads if wait else ():
            thread.join()

    def _work(self) -> None:
        while (task := self.items.get()) is not None:
            future, item = task
            if future.set_running_or_notify_cancel():
                try:
                    result = self.function(item)
                except BaseException as error:  # raised where the result is asked for
                    future.set_exception(error)
                else:
                    future.set_result(result)


def in_order(
    batches: Iterable[Sequence[Any]],
    function: Callable[[Any], Any],
    num_workers: int,
    stall: StallGuard | None = None,
    name: Callable[[Any], str] = str,
) -> Iterator[list[Any]]:
    """Yields [function(item) for item in batch] for each batch, computed ahead in `num_workers` threads (0: here).

    An exception appears where its batch is due. Threads end with the iterator, early or not. stall: says when waiting
    for an item, called by its name, has taken too long (not with 0 workers, which have no one to watch them).
    """
    if num_workers == 0:
        yield from ([function(item) for item in batch] for batch in batches)
        return
    workers, hanging = Workers(num_workers, function), False
    pending: collections.deque[list[tuple[Any, Future]]] = collections.deque()

    def results(batch: list[tuple[Any, Future]]) -> list[Any]:
        nonlocal hanging
        for item, future in batch if stall else ():
            hanging = True
            stall.wait(partial(_finished, future), lambda item=item: name(item))
            hanging = False
        return [future.result() for _, future in batch]

    try:
        for batch in batches:
            pending.append([(item, workers.submit(item)) for item in batch])
            # Small batches are read further ahead, so that all workers have something to do.
            if len(pending) > max(PREFETCH_BATCHES, -(-2 * num_workers // len(batch))):
                yield results(pending.popleft())
        while pending:
            yield results(pending.popleft())
    finally:
        workers.close([future for batch in pending for _, future in batch], wait=not hanging)


def _finished(future: Future, seconds: float) -> None:
    """Waits for the result. Raises TimeoutError where there is none after so many seconds."""
    if not wait([future], seconds).done:
        raise TimeoutError


def default_workers() -> int:
    """Threads for one process: its share of the machine's cores, at most 8."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # set by torchrun
    return max(1, min(8, len(os.sched_getaffinity(0)) // processes))


# ---------------------------------------------------------------------------------------------------------- loaders
class TrainLoader:
    """Augmented batches of whole epochs.

    Each epoch is a new random order. Utterances of similar duration (that of this epoch, after its change of speed)
    stand together: durations blurred by a random factor in 1 +- length_jitter are sorted and cut into updates of
    batch_size * grad_accumulation * processes, and the updates are shuffled (with `sort_by_duration` they stay sorted,
    exactly). A large length_jitter gives updates of mixed lengths. Within an update the micro-batches, of batch_size
    each, are consecutive parts by duration. As many utterances as do not fill an update, others each time, are left out
    of the epoch (`left_out`).

    processes: how many the run's global batch is counted by, those it began with; default world_size. The micro-batches
    of an update are dealt to the world_size processes there are, one after the other; some may get one less, or none.

    together: processes normalise together what they work on at the same time (BatchNorm over all of them). Then an
    update has grad_accumulation rounds of batch_size * processes utterances, equally wide for all, and of each round
    every process gets its share: what is normalised together does not depend on world_size either.

    `shares` are this process's parts (start, end) of every update, in utterances: one batch each. stall: watches over
    reading. views: 2 for batches with a second view, the same waveforms under masks drawn once more.

    Raises UserError when there are fewer utterances than one update takes, or in a round fewer than processes.
    """

    def __init__(
        self,
        utterances: Sequence[Utterance],
        config: Config,
        batch_size: int,
        grad_accumulation: int = 1,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        num_workers: int | None = None,
        *,
        processes: int | None = None,
        together: bool = False,
        device: str | torch.device = "cpu",
        length_jitter: float = 0.1,
        stall: StallGuard | None = None,
        views: int = 1,
    ):
        processes = world_size if processes is None else processes
        update_size = batch_size * grad_accumulation * processes
        if update_size < 1 or not 0 <= rank < world_size:
            raise UserError(
                f"batch size {batch_size}, accumulation {grad_accumulation} and rank {rank} of {world_size} are no plan"
            )
        if seed < 0:
            raise UserError(f"seed {seed} must not be negative")
        if len(utterances) < update_size:
            raise UserError(
                f"{len(utterances)} training utterances are fewer than one update takes: batch size {batch_size} x "
                f"accumulation {grad_accumulation} x processes {processes} = {update_size}; lower one of them"
            )
        if together and batch_size * processes < world_size:
            raise UserError(
                f"{batch_size * processes} utterances are normalised together, fewer than {world_size} processes can "
                "share: start fewer processes"
            )
        self.update_size, self.unit = update_size, batch_size * processes if together else batch_size
        self.shares = deal(update_size, self.unit, rank, world_size, together)
        self.seed, self.length_jitter, self.stall = seed, length_jitter, stall
        self.num_workers = default_workers() if num_workers is None else num_workers
        self.updates_per_epoch, self.left_out = divmod(len(utterances), update_size)
        self.reader = self._reader(utterances, config, True, seed, device, views)

    def epoch(self, epoch: int, start_update: int = 0) -> Iterator[AsrBatch]:
        """This process's batches of an epoch, len(shares) an update, from update `start_update` (0-based) on."""
        if not 0 <= start_update <= self.updates_per_epoch:
            raise ValueError(f"start_update {start_update} is not in 0..{self.updates_per_epoch}")
        plan, widths = self.plan(epoch)
        first = start_update * len(self.shares)
        return self._batches(plan[first:], widths[first:], epoch)

    def plan(self, epoch: int) -> tuple[list[list[int]], list[int]]:
        """Indices of the utterances of each of this process's batches, and the frames that it is wide at least: as the
        longest utterance of its micro-batch or round, so that all processes see the same padding."""
        seconds = self.reader.seconds(epoch)
        updates = self.global_plan(seconds, epoch)  # [updates, utterances of an update]
        # Resampling may round up by a sample.
        longest = seconds[updates.reshape(len(updates), -1, self.unit)].max(axis=2)  # [updates, units]
        samples = np.ceil(longest * self.reader.audio.sample_rate).astype(int) + 1
        align = self.reader.features.pad_align
        widths = -(-self.reader.log_mel.num_frames(samples) // align) * align
        plan = [update[start:end].tolist() for update in updates for start, end in self.shares]
        return plan, [int(row[start // self.unit]) for row in widths for start, _ in self.shares]

    def global_plan(self, seconds: np.ndarray, epoch: int) -> np.ndarray:
        """Indices [updates, utterances of an update] for all processes, each update sorted by duration."""
        rng = np.random.default_rng([self.seed, epoch])
        chosen = rng.permutation(len(seconds))[: self.updates_per_epoch * self.update_size]
        in_length_order = self.reader.audio.sort_by_duration
        jitter = 0.0 if in_length_order else self.length_jitter
        blurred = seconds[chosen] * (1 + jitter * rng.uniform(-1, 1, len(chosen)))
        updates = chosen[np.argsort(blurred, kind="stable")].reshape(-1, self.update_size)
        if not in_length_order:
            rng.shuffle(updates)
        return np.take_along_axis(updates, np.argsort(seconds[updates], axis=1, kind="stable"), 1)

    def _reader(self, *args) -> Reader:
        return Reader(*args)

    def _batches(self, plan: list[list[int]], widths: list[int], epoch: int) -> Iterator[AsrBatch]:
        read = partial(self.reader.read, epoch=epoch)
        examples = in_order(plan, read, self.num_workers, self.stall, self.reader.file_name)
        yield from map(self.reader.batch, examples, widths)


def deal(update_size: int, unit: int, rank: int, world_size: int, together: bool) -> list[tuple[int, int]]:
    """The parts (start, end) of an update, counted in utterances, that process `rank` of `world_size` works on.

    Parts are the units of the update (its micro-batches), or where processes work `together` on a unit (a round) its
    world_size nearly equal parts. They are dealt back and forth, so that every process gets its share of long ones; the
    first process always gets one.
    """
    cuts = [unit * part // world_size for part in range(world_size)] if together else [0]
    starts = [begin + cut for begin in range(0, update_size, unit) for cut in cuts]
    parts = list(zip(starts, [*starts[1:], update_size], strict=True))
    turns = enumerate(range(0, len(parts), world_size))
    mine = [first + (rank if turn % 2 == 0 else world_size - 1 - rank) for turn, first in turns]
    return [parts[number] for number in mine if number < len(parts)]


class EvalLoader:
    """Every utterance once, over all processes together, without augmentation; the longest first.

    Batches hold batch_size utterances, fewer where max_batch_seconds (B times the longest, padding included) would be
    exceeded, but at least one. A process may have one batch less than another, or none. `AsrBatch.indices` tells where
    results belong.

    stall: watches over reading. on_error: called with utterance and error for a file that cannot be read, which is then
    left out of its batch; by default the error is raised.
    """

    def __init__(
        self,
        utterances: Sequence[Utterance],
        config: Config,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int | None = None,
        *,
        device: str | torch.device = "cpu",
        stall: StallGuard | None = None,
        max_batch_seconds: float = math.inf,
        on_error: Callable[[Utterance, UserError], None] | None = None,
    ):
        if batch_size < 1 or not 0 <= rank < world_size or max_batch_seconds <= 0:
            raise UserError(
                f"batch size {batch_size}, rank {rank} of {world_size} and {max_batch_seconds} s a batch are no plan"
            )
        durations = [utterance.duration for utterance in utterances]
        self.plan = eval_plan(durations, batch_size, max_batch_seconds)[rank::world_size]
        self.num_workers = default_workers() if num_workers is None else num_workers
        self.on_error, self.stall = on_error, stall
        self.reader = self._reader(utterances, config, False, 0, device)

    def _reader(self, *args) -> Reader:
        return Reader(*args)

    def __len__(self) -> int:
        """Batches of this process."""
        return len(self.plan)

    def __iter__(self) -> Iterator[AsrBatch]:
        for results in in_order(self.plan, self._read, self.num_workers, self.stall, self.reader.file_name):
            examples = []
            for index, result in results:
                if isinstance(result, Example):
                    examples.append(result)
                elif self.on_error:
                    self.on_error(self.reader.utterances[index], result)
                else:
                    raise result
            if examples:
                yield self.reader.batch(examples)

    def _read(self, index: int) -> tuple[int, Example | UserError]:
        try:
            return index, self.reader.read(index, epoch=None)
        except UserError as error:
            return index, error


def eval_plan(durations: Sequence[float], batch_size: int, max_batch_seconds: float = math.inf) -> list[list[int]]:
    """Indices of all utterances in batches, the longest first."""
    order = sorted(range(len(durations)), key=lambda index: -durations[index])
    batches: list[list[int]] = []
    done = 0
    while done < len(order):
        longest = max(durations[order[done]], 1e-9)
        size = max(1, int(min(batch_size, max_batch_seconds / longest)))
        batches.append(order[done : done + size])
        done += size
    return batches


def _inputs(config: Config, train: bool) -> InputConfig:
    """`input_train` or `input_val`. Raises UserError where a model imported for inference has no input_train."""
    if train and config.input_train is None:
        raise UserError("the configuration has no section input_train, which training needs")
    return config.input_train if train else config.input_val
