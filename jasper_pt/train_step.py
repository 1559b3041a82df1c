"""One optimizer update from M micro-batches on W processes: accumulate, reduce, check, clip, apply, average.

However the micro-batches of an update are dealt to processes, the update is the same up to float32 rounding: the loss
is the sum over utterances divided by the utterances of the whole global batch, the gradient is clipped once, when it is
complete, dropout follows from a micro-batch's place in the update, and BatchNorm's running statistics take in the
micro-batches in their order. With micro-batches of another size it is the same where BatchNorm sees the same.

Legend: B utterances, T' output frames, V labels and blank.
"""

import contextlib
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from jasper_pt.checkpoint import Run
from jasper_pt.distributed import Distributed
from jasper_pt.loader import AsrBatch
from jasper_pt.losses import consistency_loss, ctc_loss
from jasper_pt.model import BATCH_NORM_MOMENTUM
from jasper_pt.novograd import global_norm
from jasper_pt.precision import Precision


class UpdateResult(NamedTuple):
    """What one update did.

    loss: mean over the utterances of the global batch. gradient_norm: of the complete gradient, before clipping.
    applied: False when loss or gradient was not finite and the update was skipped. stop: whether any process asked to
    stop. utterances, seconds: of the global batch, audio in seconds. losses, keys: of each micro-batch of this process,
    the mean over its utterances and their names. batch, log_probs [B,T',V], lengths [B]: the last micro-batch of this
    process and what the model made of it; None where the process had none.
    """

    loss: float
    gradient_norm: float
    applied: bool
    stop: bool
    utterances: int
    seconds: float
    losses: list[Tensor]
    keys: list[list[str]]
    batch: AsrBatch | None
    log_probs: Tensor | None
    lengths: Tensor | None


class TrainingStep:
    """The update as a callable.

    update_size: utterances of a usual global batch, over all processes. unit: of these, those that BatchNorm normalises
    together. shares: the parts (start, end) of an update that this process works on, one micro-batch each
    (loader.deal). All three are a TrainLoader's. clip_norm: largest norm of the gradient, 0 for none. freeze_bn_stats:
    BatchNorm normalises with its running statistics and leaves them as they are. consistency: weight of the
    `consistency_loss` between the two views of batches that have them.
    """

    def __init__(
        self,
        run: Run,
        precision: Precision,
        distributed: Distributed,
        update_size: int,
        unit: int,
        shares: Sequence[tuple[int, int]],
        clip_norm: float = 0.0,
        freeze_bn_stats: bool = False,
        seed: int = 0,
        consistency: float = 0.0,
        frozen: Sequence[tuple[nn.Parameter, float]] = (),
    ):
        """frozen: parameters that do not learn, each up to this update of the run."""
        self.frozen = list(frozen)
        self.run, self.precision, self.distributed = run, precision, distributed
        self.update_size, self.shares = update_size, list(shares)
        self.clip_norm, self.freeze_bn_stats, self.seed = clip_norm, freeze_bn_stats, seed
        self.consistency = consistency
        self.wrapped = distributed.wrap(run.model)
        self.parameters = [p for p in run.model.parameters() if p.requires_grad]
        self.statistics = RunningStatistics([] if freeze_bn_stats else batch_norms(run.model), update_size, unit)
        if distributed.size > 1:
            # The exchange lays out its buffers anew after the first backward pass. With that behind it, a run that was
            # resumed adds up gradients in the same order as one that was not.
            self.set_mode()
            with self.statistics.collecting():
                self._pass_without_data()

    def __call__(
        self, batches: Iterable[AsrBatch], learning_rate: float, update: int, stop_requested: Callable[[], bool] = bool
    ) -> UpdateResult:
        """batches: this process's micro-batches on its device, one for each share. update: number of this update, which
        with the run's seed and the place in the global batch decides the dropout. stop_requested: asked once, after the
        last micro-batch."""
        self.set_mode()
        if self.distributed.size == 1:  # several processes exchange all gradients, and leave these aside after that
            for parameter, last in self.frozen:
                parameter.requires_grad_(update > last)
        self.run.optimizer.zero_grad(set_to_none=True)
        losses: list[Tensor] = []
        keys: list[list[str]] = []
        seconds, batch, log_probs, lengths = 0.0, None, None, None
        with self.statistics.collecting():
            for batch, (start, end) in zip(batches, self.shares, strict=True):
                torch.manual_seed(zlib.crc32(f"dropout {self.seed} {update} {start}".encode()))
                last = end == self.shares[-1][1]  # the exchange of gradients overlaps with the last backward pass
                with contextlib.nullcontext() if last else self.distributed.no_sync(self.wrapped):
                    log_probs, lengths, loss = self._forward_backward(batch)
                self.statistics.take(start, end)
                losses.append(loss)
                keys.append(batch.keys)
                seconds += sum(batch.durations)
            if not self.shares:
                self._pass_without_data()
        own = [sum(map(len, keys)), seconds, stop_requested()]
        sums = [loss.double() * len(names) for loss, names in zip(losses, keys, strict=True)]
        device = self.distributed.device
        sums = torch.stack([*sums, torch.zeros((), dtype=torch.float64, device=device)]).sum(0, keepdim=True)
        sums = torch.cat([sums, torch.tensor(own, dtype=torch.float64, device=device), self.statistics.collected])
        self.distributed.all_reduce_sum(sums)
        total, utterances, seconds, stops = sums[:4].tolist()  # the one wait for the device in an update
        for parameter, last in self.frozen:
            if update <= last:
                parameter.grad = None  # so that optimizers pass it over, their weight decay too
        norm, applied = self._apply(total, int(utterances), learning_rate, sums[4:])
        return UpdateResult(
            total / utterances,
            norm,
            applied,
            stops > 0,
            int(utterances),
            seconds,
            losses,
            keys,
            batch,
            log_probs,
            lengths,
        )

    def set_mode(self) -> None:
        """Training mode, with BatchNorm in evaluation mode where its statistics are frozen."""
        self.run.model.train()
        if self.freeze_bn_stats:
            for module in self.run.model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()

    def _forward_backward(self, batch: AsrBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Adds the gradient of a micro-batch; log-probabilities [B,T',V] (of the first view), their lengths [B], the
        mean loss: CTC's, with two views the mean of both plus consistency times their consistency loss."""
        features, *inputs = batch.features, batch.feature_lengths, batch.targets, batch.target_lengths
        if batch.second_view is not None:  # one pass over both views, as one batch [2B]
            features = torch.cat([features, batch.second_view])
            inputs = [torch.cat([tensor, tensor]) for tensor in inputs]
        with self.precision.autocast(self.distributed.device):
            log_probs, lengths = self.wrapped(features, inputs[0])
        loss = ctc_loss(log_probs, lengths, *inputs[1:])
        if batch.second_view is not None:
            size = len(batch.keys)
            first, second, lengths = log_probs[:size], log_probs[size:], lengths[:size]
            loss = loss + self.consistency * consistency_loss(first, second, lengths)
            log_probs = first
        # Divided by the usual number of utterances, so that float16 gradients of one micro-batch out of many do not
        # vanish; _apply corrects the divisor when it knows how many there were in all.
        share = len(batch.keys) * self.distributed.size / self.update_size
        (loss * (share * self.run.loss_scale.scale)).backward()
        return log_probs.detach(), lengths, loss.detach()

    def _pass_without_data(self) -> None:
        """Takes part in the exchange of gradients with zeros."""
        device = self.distributed.device
        inputs = next(module for module in self.run.model.modules() if isinstance(module, nn.Conv1d)).in_channels
        frames = 64  # enough to leave several after the strides
        with self.precision.autocast(device):
            log_probs, _ = self.wrapped(
                torch.zeros(1, inputs, frames, device=device), torch.tensor([frames], device=device)
            )
        (log_probs.sum() * 0.0).backward()

    def _apply(self, total: float, utterances: int, learning_rate: float, statistics: Tensor) -> tuple[float, bool]:
        """Gradient norm, and whether the update was applied."""
        run = self.run
        # The exchange took the mean over processes of sums divided by each one's usual number of utterances.
        factor = self.update_size / utterances / run.loss_scale.scale
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = float(global_norm(gradients)) * factor  # not finite whenever any element on any process was not
        applied = run.loss_scale.update(math.isfinite(total), math.isfinite(norm))
        if applied:
            if self.clip_norm and norm > self.clip_norm:
                factor *= self.clip_norm / norm
            if factor != 1.0:
                torch._foreach_mul_(gradients, factor)
            for group in run.optimizer.param_groups:
                group["lr"] = learning_rate
            run.optimizer.step()
            self.statistics.advance(statistics)  # left alone otherwise: one NaN would spoil them for good
            if run.ema is not None:
                run.ema.update()
        return norm, applied


def batch_norms(model: nn.Module) -> list[nn.Module]:
    """The BatchNorm layers of a model."""
    return [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


class RunningStatistics:
    """BatchNorm's running statistics, moved as if one process had seen all units of an update in their order.

    With momentum a, BatchNorm moves a statistic r to (1 - a) r + a s, where s is that of the unit it normalises. After
    the n units of an update

        r' = (1 - a)^n r + sum_i a (1 - a)^(n - 1 - i) s_i

    Each process collects the terms of what it works on; their sum over all processes is added to r once an update.
    """

    def __init__(self, layers: Sequence[nn.Module], update_size: int, unit: int):
        """update_size, unit: in utterances, as for TrainingStep."""
        self.layers, self.unit, self.count = layers, unit, update_size // unit
        self.buffers = [buffer for layer in layers for buffer in (layer.running_mean, layer.running_var)]
        self.counters = [layer.num_batches_tracked for layer in layers]
        self.collected = self._flat().double()  # [all channels, means and variances]

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Inside, layers leave the statistics of a pass in their buffers, for `take`; behind it these are as before."""
        statistics, counters = self._flat(), [counter.clone() for counter in self.counters]
        self.collected = torch.zeros_like(statistics, dtype=torch.float64)
        for layer in self.layers:
            layer.momentum = 1.0
        try:
            yield
        finally:
            for layer in self.layers:
                layer.momentum = BATCH_NORM_MOMENTUM
            self._set(statistics, counters)

    def take(self, start: int, end: int) -> None:
        """Collects what the pass over the utterances start..end of the update has left in the buffers."""
        a = BATCH_NORM_MOMENTUM
        share = (end - start) / self.unit  # processes that normalise together all have the statistics of their unit
        self.collected += self._flat() * (share * a * (1 - a) ** (self.count - 1 - start // self.unit))

    def advance(self, collected: Tensor) -> None:
        """Moves the statistics, given the sum of `collected` over all processes."""
        decay = (1 - BATCH_NORM_MOMENTUM) ** self.count
        self._set((self._flat() * decay + collected).float(), [counter + self.count for counter in self.counters])

    @torch.no_grad()
    def _flat(self) -> Tensor:
        return torch.cat([buffer.flatten() for buffer in self.buffers]) if self.buffers else torch.zeros(0)

    def _set(self, statistics: Tensor, counters: list[Tensor]) -> None:
        if self.buffers:
            parts = statistics.split([buffer.numel() for buffer in self.buffers])
            torch._foreach_copy_(self.buffers + self.counters, [*parts, *counters])


def pre_allocate(step: TrainingStep, batch_size: int, frame_counts: Iterable[int], n_filt: int, n_classes: int) -> None:
    """Runs forward and backward once for each length in frames, on noise, so that cuDNN's choice of algorithms and the
    allocator's blocks are there before training. Weights, BatchNorm statistics and random state are left as they were,
    and no gradient is exchanged."""
    model, device, size = step.run.model, step.distributed.device, batch_size
    fork = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    with fork, step.statistics.collecting():
        step.set_mode()
        for frames in frame_counts:
            features = torch.randn(size, n_filt, frames, device=device)
            lengths = torch.full((size,), frames, device=device)
            targets = torch.randint(0, n_classes - 1, (size, 100), device=device)  # the last class is the blank
            target_lengths = torch.full((size,), 100, device=device)
            with step.precision.autocast(device):
                log_probs, out_lengths = model(features, lengths)
            ctc_loss(log_probs, out_lengths, targets, target_lengths).backward()
            step.run.optimizer.zero_grad(set_to_none=True)
    if device.type == "cuda":
        torch.cuda.empty_cache()
