"""One optimizer update from A micro-batches on W processes: accumulate, reduce, check, clip, apply, average.

However a global batch is split into micro-batches and processes, the update is the same up to float32 rounding, as long
as BatchNorm sees the same statistics: the loss is the sum over utterances divided by the utterances of the whole global
batch, and the gradient is clipped once, when it is complete.

Legend: B utterances, T' output frames, V labels and blank.
"""

import contextlib
import math
import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from jasper_pt.checkpoint import Run
from jasper_pt.distributed import Distributed
from jasper_pt.loader import AsrBatch
from jasper_pt.losses import ctc_loss
from jasper_pt.novograd import global_norm
from jasper_pt.precision import Precision


class UpdateResult(NamedTuple):
    """What one update did.

    loss: mean over the utterances of the global batch. gradient_norm: of the complete gradient, before clipping.
    applied: False when loss or gradient was not finite and the update was skipped. stop: whether any process asked to
    stop. utterances, seconds: of the global batch, audio in seconds. batch, log_probs [B,T',V], lengths [B]: the last
    micro-batch of this process and what the model made of it.
    """

    loss: float
    gradient_norm: float
    applied: bool
    stop: bool
    utterances: int
    seconds: float
    batch: AsrBatch
    log_probs: Tensor
    lengths: Tensor


class TrainingStep:
    """The update as a callable.

    micro_batch_size: utterances of a usual micro-batch (B); others may be smaller, as at the end of a small data set.
    accumulation: micro-batches an update (A). clip_norm: largest norm of the gradient, 0 for none. freeze_bn_stats:
    BatchNorm normalises with its running statistics and leaves them as they are.
    """

    def __init__(
        self,
        run: Run,
        precision: Precision,
        distributed: Distributed,
        micro_batch_size: int,
        accumulation: int = 1,
        clip_norm: float = 0.0,
        freeze_bn_stats: bool = False,
        seed: int = 0,
    ):
        self.run, self.precision, self.distributed = run, precision, distributed
        self.micro_batch_size, self.accumulation = micro_batch_size, accumulation
        self.clip_norm, self.freeze_bn_stats, self.seed = clip_norm, freeze_bn_stats, seed
        self.wrapped = distributed.wrap(run.model)
        self.parameters = [p for p in run.model.parameters() if p.requires_grad]
        self.buffers = list(run.model.buffers())
        self.buffers_before = [buffer.clone() for buffer in self.buffers]

    def __call__(
        self, batches: Iterable[AsrBatch], learning_rate: float, update: int, stop_requested: Callable[[], bool] = bool
    ) -> UpdateResult:
        """batches: this process's A micro-batches on its device. update: number of this update, which together with
        the run's seed and the rank decides the dropout. stop_requested: asked once, after the last micro-batch."""
        run, device = self.run, self.distributed.device
        self.set_mode()
        torch.manual_seed(zlib.crc32(f"dropout {self.seed} {update} {self.distributed.rank}".encode()))
        run.optimizer.zero_grad(set_to_none=True)
        copy_all(self.buffers_before, self.buffers)
        sums = torch.zeros(4, dtype=torch.float64, device=device)  # loss, utterances, seconds, requests to stop
        index = 0
        for index, batch in enumerate(batches, 1):
            last = index == self.accumulation  # the exchange of gradients overlaps with the last backward pass
            with contextlib.nullcontext() if last else self.distributed.no_sync(self.wrapped):
                log_probs, lengths, loss = self._forward_backward(batch)
            sums[0] += loss * len(batch.keys)
            sums[1] += len(batch.keys)
            sums[2] += sum(batch.durations)
        if index != self.accumulation:
            raise ValueError(f"{index} micro-batches given, {self.accumulation} expected")
        sums[3] += stop_requested()
        # The one wait for the device in an update.
        total, utterances, seconds, stops = self.distributed.all_reduce_sum(sums).tolist()
        norm, applied = self._apply(total, int(utterances), learning_rate)
        return UpdateResult(
            total / utterances, norm, applied, stops > 0, int(utterances), seconds, batch, log_probs, lengths
        )

    def set_mode(self) -> None:
        """Training mode, with BatchNorm in evaluation mode where its statistics are frozen."""
        self.run.model.train()
        if self.freeze_bn_stats:
            for module in self.run.model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()

    def _forward_backward(self, batch: AsrBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Adds the gradient of a micro-batch; log-probabilities [B,T',V], their lengths [B], the mean loss."""
        with self.precision.autocast(self.distributed.device):
            log_probs, lengths = self.wrapped(batch.features, batch.feature_lengths)
        loss = ctc_loss(log_probs, lengths, batch.targets, batch.target_lengths)
        # Divided by the usual number of utterances, so that float16 gradients of one micro-batch out of many do not
        # vanish; _apply corrects the divisor when it knows how many there were in all.
        share = len(batch.keys) / (self.micro_batch_size * self.accumulation)
        (loss * (share * self.run.loss_scale.scale)).backward()
        return log_probs.detach(), lengths, loss.detach()

    def _apply(self, total: float, utterances: int, learning_rate: float) -> tuple[float, bool]:
        """Gradient norm, and whether the update was applied."""
        run = self.run
        # The exchange took the mean over processes of sums divided by the usual number of utterances.
        usual = self.micro_batch_size * self.accumulation * self.distributed.size
        factor = usual / utterances / run.loss_scale.scale
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
            if run.ema is not None:
                run.ema.update()
        else:  # one NaN in an input is enough to spoil the running statistics for good
            copy_all(self.buffers, self.buffers_before)
        return norm, applied


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copies tensors in one launch; a model without BatchNorm has none."""
    if targets:
        torch._foreach_copy_(targets, sources)


def pre_allocate(step: TrainingStep, frame_counts: Iterable[int], n_filt: int, n_classes: int) -> None:
    """Runs forward and backward once for each length in frames, on noise, so that cuDNN's choice of algorithms and the
    allocator's blocks are there before training. Weights, BatchNorm statistics and random state are left as they were,
    and no gradient is exchanged."""
    model, device, size = step.run.model, step.distributed.device, step.micro_batch_size
    before = [buffer.clone() for buffer in step.buffers]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
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
    copy_all(step.buffers, before)
    if device.type == "cuda":
        torch.cuda.empty_cache()
