"""Data parallelism over processes: the only importer of Horovod (0.28.1).

Every process computes its share of the gradients; the sums are exchanged once an update. A single process
runs the same code, with identities.

A process that dies is noticed at once by the others (its connections close), one that hangs after STALL_SECONDS. Then
the launcher ends them all; under Horovod Elastic (horovodrun --host-discovery-script) those left start over from the
newest checkpoint.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from runkit.errors import UserError

# Set by horovodrun, Open MPI, MPICH and srun for each process they start.
_LAUNCHER_SIZES = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
_FLOAT32_EXPONENT_BIAS = 127
# Seconds without an answer of one process after which the others give up. More than any work that one of them does
# alone, such as making features.
STALL_SECONDS = 600
T = TypeVar("T")


class Distributed:
    """A single process: rank 0 of 1, and every exchange an identity."""

    rank = 0  # of this process among all
    size = 1  # number of processes
    local_rank = 0  # of this process among those of its machine

    @property
    def is_root(self) -> bool:
        """Whether this process writes checkpoints and logs."""
        return self.rank == 0

    def all_reduce_sum(
        self, tensors: Sequence[tf.Tensor], compression: str | None = None, name: str = "tensors"
    ) -> list[tf.Tensor]:
        """Element-wise sums over all processes, in the dtypes of the tensors.

        tensors: dense float tensors, the same shapes in the same order on every process.
        name: under which the processes find each other, so that they may come here by different ways.
        compression: "fp16" halves the traffic. Values travel as float16 under one common power of two, chosen
            so that no sum can overflow: values over 2^28/size times smaller than the largest lose bits, over
            2^39/size times are lost, whatever the loss scale. NaN and infinity arrive as such.
            None sends float32.
        """
        _check_compression(compression)
        return list(tensors)

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        """Gives every process the root's values, after the root initialised or restored its own."""

    def broadcast_json(self, value: Any) -> Any:
        """The root's value (plain JSON) on every process, such as the state that a checkpoint carries."""
        return value

    def sum_array(self, values: np.ndarray) -> np.ndarray:
        """Element-wise sum of arrays [n] over all processes, in float64, on every process."""
        return np.asarray(values, np.float64)

    def gather_json(self, value: Any) -> list[Any] | None:
        """The values of all processes (plain JSON) by rank, on the root; None elsewhere."""
        return [value]

    def gather_array(self, array: np.ndarray) -> list[np.ndarray] | None:
        """Arrays [n] of one dtype, n of any size on each process, by rank, on the root; None elsewhere."""
        return [array]

    def barrier(self) -> None:
        """Returns when every process has come here."""

    def check_hosts(self) -> None:
        """Under Horovod Elastic: starts over with the new processes when there are any. To be called after a save."""


class HorovodDistributed(Distributed):
    """Processes started by horovodrun or mpirun, all of which must make the same calls in the same order."""

    def __init__(self, hvd):
        self._hvd = hvd
        self.rank, self.size, self.local_rank = hvd.rank(), hvd.size(), hvd.local_rank()
        self.check_hosts: Callable[[], None] = lambda: None

    def all_reduce_sum(
        self, tensors: Sequence[tf.Tensor], compression: str | None = None, name: str = "tensors"
    ) -> list[tf.Tensor]:
        _check_compression(compression)
        if self.size == 1 or not tensors:
            return list(tensors)
        values = [tf.cast(t, tf.float32) for t in tensors]  # Horovod knows no bfloat16
        if compression is None:
            sums = self._sum(values, name)
        else:
            scale = self._float16_scale(values)
            halves = [tf.cast(value * scale, tf.float16) for value in values]
            summed = self._sum(halves, f"{name}_float16")
            sums = [tf.cast(half, tf.float32) / scale for half in summed]
        return [tf.cast(total, t.dtype) for total, t in zip(sums, tensors, strict=True)]

    def _sum(self, values: list[tf.Tensor], name: str) -> list[tf.Tensor]:
        return self._hvd.grouped_allreduce(values, op=self._hvd.Sum, name=name, ignore_name_scope=True)

    def _float16_scale(self, values: list[tf.Tensor]) -> tf.Tensor:
        """A power of two under which no sum over all processes can exceed 2^15, a float32 scalar.

        Made from exponent bits, so that scaling is exact. NaN and infinity have exponent 128 and stay what
        they are under any scale.
        """
        largest = tf.reduce_max(tf.stack([tf.reduce_max(tf.abs(value)) for value in values]))
        largest = self._hvd.allreduce(largest, op=self._hvd.Max)
        exponent = tf.bitwise.right_shift(tf.bitcast(largest, tf.int32), 23) - _FLOAT32_EXPONENT_BIAS
        size_exponent = (self.size - 1).bit_length()  # size <= 2^size_exponent; largest < 2^(exponent + 1)
        power = tf.clip_by_value(15 - size_exponent - (exponent + 1), -126, 126)
        return tf.bitcast(tf.bitwise.left_shift(power + _FLOAT32_EXPONENT_BIAS, 23), tf.float32)

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        self._hvd.broadcast_variables(list(variables), root_rank=0)

    def broadcast_json(self, value: Any) -> Any:
        # Not hvd.broadcast_object: that one pickles.
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        length = int(self._hvd.broadcast(tf.constant(len(text), tf.int64), root_rank=0))
        buffer = tf.constant(text if self.is_root else np.zeros(length, np.uint8))
        return json.loads(self._hvd.broadcast(buffer, root_rank=0).numpy().tobytes())

    def sum_array(self, values: np.ndarray) -> np.ndarray:
        return self._hvd.allreduce(tf.constant(values, tf.float64), op=self._hvd.Sum, name="array_sum").numpy()

    def gather_json(self, value: Any) -> list[Any] | None:
        texts = self.gather_array(np.frombuffer(json.dumps(value).encode(), np.uint8))
        return None if texts is None else [json.loads(text.tobytes()) for text in texts]

    def gather_array(self, array: np.ndarray) -> list[np.ndarray] | None:
        lengths = self._hvd.allgather(tf.constant([len(array)], tf.int64), name="lengths").numpy()
        gathered = self._hvd.allgather(tf.constant(array), name="arrays").numpy()
        return np.split(gathered, np.cumsum(lengths)[:-1]) if self.is_root else None

    def barrier(self) -> None:
        # Horovod's TensorFlow interface has no barrier; reading the result waits for the slowest process.
        self._hvd.allreduce(tf.zeros([]), op=self._hvd.Sum).numpy()


def launch(use_horovod: bool, body: Callable[[Distributed], T]) -> T:
    """Joins the other processes (use_horovod) or stays alone, takes one GPU where there are any, and calls body(group).

    To be called before TensorFlow touches a GPU. Started by Horovod Elastic, body is called again whenever processes
    were lost or came; it must then go on from what it saved, with a global batch that does not depend on their number.

    Raises UserError when Horovod is asked for but cannot be imported, when a launcher started several processes and
    Horovod is not asked for (each would train alone and overwrite the others' files), or when the machine has fewer
    GPUs than processes.
    """
    if not use_horovod:
        _refuse_launcher()
        _pin_gpu(0)
        return body(Distributed())
    hvd = _import_horovod()
    os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(STALL_SECONDS))
    hvd.init()
    _pin_gpu(hvd.local_rank())
    if os.environ.get("HOROVOD_ELASTIC") != "1":
        return body(HorovodDistributed(hvd))
    return _launch_elastic(hvd, body)


def _launch_elastic(hvd, body: Callable[[Distributed], T]) -> T:
    """Horovod Elastic, with checkpoints on disk as the only commits: whoever is the root by then reads the newest."""
    from horovod.common.elastic import State, run_fn
    from horovod.common.exceptions import HorovodInternalError

    class SavedOnDisk(State):
        def save(self):
            pass

        restore = sync = save

    def attempt(state) -> T:
        group = HorovodDistributed(hvd)
        group.check_hosts = state.check_host_updates
        try:
            return body(group)
        except tf.errors.UnknownError as error:  # not by hvd.elastic.run, which drops those of grouped operations
            if "Horovod" not in error.message:
                raise
            print(f"a process was lost (rank {group.rank} of {group.size} goes on): {error.message}", file=sys.stderr)
            raise HorovodInternalError(error) from error

    def reset() -> None:
        hvd.shutdown()
        hvd.init()

    state = SavedOnDisk(lambda value: HorovodDistributed(hvd).broadcast_json(value), hvd.rank)
    return run_fn(attempt, reset)(state)


def _import_horovod():
    try:
        import horovod.tensorflow as hvd
    except (ImportError, tf.errors.NotFoundError) as error:  # absent, or built against another TensorFlow
        cause = str(error).splitlines()[0]
        raise UserError(
            f"--horovod was asked for, but Horovod cannot be imported ({cause}); build it with "
            "scripts/install_horovod.sh, or run a single process without --horovod"
        ) from error
    return hvd


def _refuse_launcher() -> None:
    for variable in _LAUNCHER_SIZES:
        count = os.environ.get(variable, "1")
        if count.isdigit() and int(count) > 1:
            raise UserError(
                f"started as one of {count} processes ({variable}={count}) but without --horovod: each would "
                "train alone and write the same files; add --horovod, or start a single process"
            )


def _pin_gpu(local_rank: int) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return
    # A launcher may show each process its own GPU only.
    own = len(gpus) == 1 and bool(os.environ.get("CUDA_VISIBLE_DEVICES"))
    if local_rank >= len(gpus) and not own:
        raise UserError(
            f"process {local_rank} (counted from 0) of this machine has no GPU of its own: TensorFlow sees "
            f"{len(gpus)}; start as many processes as there are GPUs"
        )
    gpu = gpus[0] if own else gpus[local_rank]
    tf.config.set_visible_devices(gpu, "GPU")
    tf.config.experimental.set_memory_growth(gpu, True)


def _check_compression(compression: str | None) -> None:
    if compression not in (None, "fp16"):
        raise ValueError(f"compression must be None or 'fp16', not {compression!r}")
