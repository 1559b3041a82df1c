"""Data parallelism over processes: the only module that knows torch.distributed.

torchrun starts the processes; each has its share of the batch, and DistributedDataParallel exchanges the gradients once
an update. A single process runs the same code, with identities. Results exchanged beside gradients are numbers and
JSON: nothing is pickled.

A process that dies is noticed at once by the others (its connections close), one that hangs after a timeout: PeerLost.
Then torchrun ends them all, and with --max_restarts starts those that are left from the newest checkpoint.
"""

import contextlib
import datetime
import gc
import json
import os
import secrets
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from runkit.errors import UserError

# Seconds that a process waits for the others before it takes them for lost. Longer than runkit.guards.INPUT_TIMEOUT: a
# process without input is to say so before the others give up on it.
PEER_TIMEOUT = 900.0


class PeerLost(UserError):
    """Another process has died, or has not answered for the timeout. What this process holds is whole."""


class Distributed:
    """A single process: rank 0 of 1, and every exchange an identity."""

    rank = 0  # of this process among all
    size = 1  # number of processes

    def __init__(self, device: torch.device):
        self.device = device

    @property
    def is_root(self) -> bool:
        """Whether this process writes checkpoints and logs."""
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model whose backward pass leaves the mean gradient of all processes."""
        return model

    def no_sync(self, wrapped: nn.Module) -> contextlib.AbstractContextManager:
        """Inside, backward passes of a wrapped model add to this process's gradients without exchanging them."""
        return contextlib.nullcontext()

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """Element-wise sum over all processes, in place; the tensor is returned."""
        return tensor

    def broadcast_json(self, value: Any) -> Any:
        """The root's value (plain JSON) on every process."""
        return value

    def gather_json(self, value: Any) -> list[Any] | None:
        """The values of all processes (plain JSON) by rank, on the root; None elsewhere."""
        return [value]

    def barrier(self) -> None:
        """Returns when every process has come here."""

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, failing exchanges raise PeerLost, with which this process has left the group."""
        yield

    def close(self) -> None:
        """Leaves the group. To be called last, by every process that ends well, when wrapped models are out of use."""


class TorchDistributed(Distributed):
    """Processes started by torchrun, all of which must make the same calls in the same order."""

    def __init__(self, device: torch.device, timeout: float):
        super().__init__(device)
        self.timeout, limit = timeout, datetime.timedelta(seconds=timeout)
        with self.watching():
            meeting = _fresh_store(limit)
            if device.type == "cuda":
                torch.cuda.set_device(device)
                dist.init_process_group("nccl", timeout=limit, device_id=device, **meeting)
            else:
                dist.init_process_group("gloo", timeout=limit, **meeting)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def wrap(self, model: nn.Module) -> nn.Module:
        # Without forward_sync_buffers a forward pass exchanges nothing, so that evaluation cannot wait for a process
        # that has fewer batches; the training step takes care of BatchNorm's statistics.
        devices = [self.device] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(
            model, device_ids=devices, forward_sync_buffers=False, gradient_as_bucket_view=True
        )

    def no_sync(self, wrapped: nn.Module) -> contextlib.AbstractContextManager:
        return wrapped.no_sync()

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        dist.all_reduce(tensor)
        return tensor

    def broadcast_json(self, value: Any) -> Any:
        values = self._all_gather_text(json.dumps(value) if self.is_root else "null")
        return json.loads(values[0])

    def gather_json(self, value: Any) -> list[Any] | None:
        values = self._all_gather_text(json.dumps(value))
        return [json.loads(text) for text in values] if self.is_root else None

    def _all_gather_text(self, text: str) -> list[str]:
        """ASCII text of every process, by rank."""
        own = torch.frombuffer(bytearray(text.encode("ascii")), dtype=torch.uint8).to(self.device)
        lengths = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        lengths[self.rank] = len(own)
        lengths = self.all_reduce_sum(lengths).tolist()
        padded = torch.zeros(max(lengths), dtype=torch.uint8, device=self.device)
        padded[: len(own)] = own
        received = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(received, padded)
        return [
            data[:length].cpu().numpy().tobytes().decode("ascii")
            for data, length in zip(received, lengths, strict=True)
        ]

    def barrier(self) -> None:
        self.all_reduce_sum(torch.zeros(1, device=self.device)).item()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            text = str(error).split(". This is typically")[0].splitlines()[0]
            if not (isinstance(error, dist.DistError) or any(sign in text for sign in ("gloo", "Gloo", "NCCL"))):
                raise
            if dist.is_initialized():
                dist.destroy_process_group()  # its threads must not outlive this one
            silent = "timed out" in text.lower() or "timeout" in text.lower()
            what = f"has not answered for {self.timeout:g} s" if silent else "has died"
            rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
            raise PeerLost(
                f"process {rank} of {size} ends because another one {what} (see its own message, if any): {text}. "
                "Start the run again with --resume; torchrun --max_restarts N does so by itself"
            ) from error

    def close(self) -> None:
        # A wrapped model still alive (it is part of reference cycles) would keep the group's threads running into the
        # interpreter's exit, which now and then aborts the process.
        self.barrier()
        gc.collect()
        dist.destroy_process_group()


def _fresh_store(limit: datetime.timedelta) -> dict[str, Any]:
    """Where the processes of this start find each other: arguments of init_process_group.

    torchrun gives the processes of every start the same store, in which a process that was started again may find the
    addresses of dead ones. So the processes agree on a name under which nothing is stored yet: each asks with a random
    word of its own, and the first process answers to it.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=limit)
    own = secrets.token_hex(8)
    if rank:
        store.set(f"asks/{rank}", own)
        name = store.get(f"answer/{own}").decode()
        store.set(f"{name}/knows/{rank}", "")
    else:
        name, ends = own, time.monotonic() + limit.total_seconds()
        while missing := [other for other in range(1, size) if not store.check([f"{name}/knows/{other}"])]:
            for other in missing:
                if store.check([f"asks/{other}"]):  # perhaps still a dead one's word: asked again until it knows
                    store.set(f"answer/{store.get(f'asks/{other}').decode()}", name)
            if time.monotonic() > ends:
                raise dist.DistStoreError(f"Timed out waiting for process {missing[0]} to start")
            time.sleep(0.01)
    return {"store": dist.PrefixStore(name, store), "rank": rank, "world_size": size}


def launched() -> bool:
    """Whether this is one of several processes."""
    return int(os.environ.get("WORLD_SIZE", 1)) > 1


def restarted() -> bool:
    """Whether torchrun has started this process in place of one that failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0


def job_name() -> str | None:
    """The name of torchrun's job (--rdzv_id), the same for all processes that it starts in the course of time, or None
    where there is none."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return None if name == "none" else name


def init(cpu: bool = False, local_rank: int | None = None, timeout: float = PEER_TIMEOUT) -> Distributed:
    """Joins the processes of torchrun, or stays alone where it started none; takes a GPU where there is one.

    cpu: leave GPUs alone. local_rank: of this process on its machine, default $LOCAL_RANK or 0. timeout: seconds after
    which a process that does not answer is lost. Raises UserError when the machine has fewer GPUs than processes, or
    torchrun's variables are incomplete.
    """
    if local_rank is None:
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cpu")
    if torch.cuda.is_available() and not cpu:
        if local_rank >= torch.cuda.device_count():
            raise UserError(
                f"process {local_rank} of this machine has no GPU: there are {torch.cuda.device_count()}; start as "
                "many processes as there are GPUs (torchrun --nproc_per_node), or give --cpu"
            )
        device = torch.device("cuda", local_rank)
    if not launched():
        return Distributed(device)
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise UserError(
            f"WORLD_SIZE is set but {', '.join(missing)} not: start the processes with torchrun, or unset WORLD_SIZE"
        )
    return TorchDistributed(device, timeout)


# ------------------------------------------------------------------------------------ BatchNorm over all processes
class SyncBatchNorm(nn.BatchNorm1d):
    """BatchNorm whose statistics are those of the batches of all processes together. State as BatchNorm1d's.

    In plain operations, so that it runs on the CPU, where torch.nn.SyncBatchNorm does not.
    """

    def forward(self, input: Tensor) -> Tensor:
        """input [B,C,T] or [B,C]; B and T may differ between processes."""
        if not (self.training and dist.is_initialized()):
            return super().forward(input)
        axes, shape = [0, *range(2, input.dim())], (1, -1) + (1,) * (input.dim() - 2)
        values = input.float()
        # C sums and, behind them, the number of elements of a channel
        count = values.new_tensor([values.numel() / values.shape[1]])
        sums = _AllReduceSum.apply(torch.cat([values.sum(axes), count]))
        total, mean = sums[-1], sums[:-1] / sums[-1]
        centred = values - mean.view(shape)
        variance = _AllReduceSum.apply(centred.square().sum(axes)) / total
        self._update_statistics(mean.detach(), variance.detach() * (total / (total - 1)).detach())
        scale = (self.weight * (variance + self.eps).rsqrt()).view(shape)
        return (centred * scale + self.bias.view(shape)).to(input.dtype)

    @torch.no_grad()
    def _update_statistics(self, mean: Tensor, variance: Tensor) -> None:
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance, self.momentum)


class _AllReduceSum(torch.autograd.Function):
    """The sum over processes, and its gradient: the sum of the gradients."""

    @staticmethod
    def forward(ctx, tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        dist.all_reduce(tensor)
        return tensor

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


def synchronise_batch_norm(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with BatchNorm over all processes: PyTorch's fused one on GPUs, SyncBatchNorm on CPUs.

    Parameters, buffers and state-dict names stay. Done before `Distributed.wrap`.
    """
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for module in model.modules():
        if type(module) is nn.BatchNorm1d:
            module.__class__ = SyncBatchNorm  # same parameters and buffers; the forward pass alone differs
    return model
