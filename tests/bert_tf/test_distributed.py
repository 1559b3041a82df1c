"""Identities of a single process, and several ranks as threads over a stand-in for Horovod's calls.

The stand-in has signatures and limits of horovod.tensorflow 0.28.1 (no bfloat16; float16 sums in float16).
"""

import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import distributed
from runkit.errors import UserError


class World:
    """The processes of a job; each gets a module of its own from `module(rank)`."""

    def __init__(self, size):
        self.size = size
        self.slots = [None] * size
        self.barrier = threading.Barrier(size, timeout=20)
        self.calls = []

    def exchange(self, rank, value):
        self.slots[rank] = value
        self.barrier.wait()
        everyone = list(self.slots)
        self.barrier.wait()
        return everyone

    def module(self, rank):
        hvd = types.ModuleType("horovod.tensorflow")
        hvd.Average, hvd.Sum, hvd.Max = 0, 1, 4

        def reduce(tensors, op):
            assert all(t.dtype in (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64) for t in tensors)
            everyone = self.exchange(rank, [t.numpy() for t in tensors])
            combine = {hvd.Sum: np.add, hvd.Max: np.maximum}[op]
            with np.errstate(over="ignore", invalid="ignore"):
                parts = zip(*everyone, strict=True)
                return [tf.constant(combine.reduce(part, dtype=part[0].dtype)) for part in parts]

        def allreduce(tensor, op=None, name=None):
            self.calls.append(("allreduce", rank, tensor.dtype))
            return reduce([tensor], op)[0]

        def grouped_allreduce(tensors, op=None, name=None, ignore_name_scope=False):
            self.calls.append(("grouped_allreduce", rank, tensors[0].dtype))
            return reduce(tensors, op)

        def allgather(tensor, name=None):
            return tf.constant(np.concatenate(self.exchange(rank, tensor.numpy())))

        def broadcast(tensor, root_rank):
            return tf.constant(self.exchange(rank, tensor.numpy())[root_rank])

        def broadcast_variables(variables, root_rank):
            for variable in variables:
                variable.assign(broadcast(variable, root_rank))

        hvd.init = lambda: self.calls.append(("init", rank, None))
        hvd.rank, hvd.local_rank, hvd.size = lambda: rank, lambda: rank, lambda: self.size
        hvd.allreduce, hvd.grouped_allreduce = allreduce, grouped_allreduce
        hvd.broadcast, hvd.broadcast_variables, hvd.allgather = broadcast, broadcast_variables, allgather
        return hvd


def on_all_ranks(world, work):
    """work(distributed, rank) on every rank at once; the results in rank order."""

    def one(rank):
        try:
            return work(distributed.HorovodDistributed(world.module(rank)), rank)
        except BaseException:
            world.barrier.abort()
            raise

    with ThreadPoolExecutor(world.size) as pool:
        return list(pool.map(one, range(world.size)))


# ------------------------------------------------------------------------------------------- a single process
@pytest.fixture
def no_launcher(monkeypatch):
    for variable in distributed._LAUNCHER_SIZES:
        monkeypatch.delenv(variable, raising=False)


def test_single_process_needs_no_horovod(no_launcher, monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod", None)  # an import would fail
    alone = distributed.launch(False, lambda group: group)
    assert (alone.rank, alone.size, alone.local_rank, alone.is_root) == (0, 1, 0, True)
    tensors = [tf.constant([1.0, 2.0]), tf.constant([3.0], tf.bfloat16)]
    for compression in (None, "fp16"):
        for ours, given in zip(alone.all_reduce_sum(tensors, compression), tensors, strict=True):
            assert ours.dtype == given.dtype
            np.testing.assert_array_equal(ours, given)
    variable = tf.Variable(5.0)
    alone.broadcast([variable])
    alone.barrier()
    assert float(variable) == 5.0
    assert alone.broadcast_json({"a": [1, 2]}) == {"a": [1, 2]}
    assert alone.gather_json({"a": 1}) == [{"a": 1}]
    assert alone.sum_array([1.5, 2.0]).tolist() == [1.5, 2.0]
    np.testing.assert_array_equal(alone.gather_array(np.arange(3)), [[0, 1, 2]])


def test_single_process_works_in_a_graph(no_launcher):
    alone = distributed.launch(False, lambda group: group)

    @tf.function
    def step(x):
        (total,) = alone.all_reduce_sum([x], compression="fp16")
        return total

    assert step(tf.constant(2.0)) == 2.0


def test_missing_horovod_names_the_installer(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod", None)
    with pytest.raises(UserError, match=r"scripts/install_horovod\.sh"):
        distributed.launch(True, lambda group: group)


@pytest.mark.parametrize("variable", distributed._LAUNCHER_SIZES)
def test_launched_without_horovod_is_refused(no_launcher, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    assert distributed.launch(False, lambda group: group).size == 1
    monkeypatch.setenv(variable, "8")
    with pytest.raises(UserError, match=f"one of 8 processes .*{variable}.*--horovod"):
        distributed.launch(False, lambda group: group)


def test_unknown_compression():
    with pytest.raises(ValueError, match="bf16"):
        distributed.Distributed().all_reduce_sum([], compression="bf16")


# ---------------------------------------------------------------------------------------------- several ranks
def test_launch_goes_through_horovod(monkeypatch):
    world = World(2)
    package = types.ModuleType("horovod")
    package.tensorflow = world.module(1)
    monkeypatch.setitem(sys.modules, "horovod", package)
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", package.tensorflow)
    found = distributed.launch(True, lambda group: group)
    assert (found.rank, found.size, found.local_rank, found.is_root) == (1, 2, 1, False)
    assert world.calls == [("init", 1, None)]


@pytest.mark.parametrize("local_rank", [0, 1])
def test_one_gpu_for_each_local_rank(monkeypatch, local_rank):
    seen = []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["gpu0", "gpu1"])
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda gpu, kind: seen.append((gpu, kind)))
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, on: seen.append((gpu, on)))
    distributed._pin_gpu(local_rank)
    assert seen == [(f"gpu{local_rank}", "GPU"), (f"gpu{local_rank}", True)]
    with pytest.raises(UserError, match=r"process 2 .* sees 2"):
        distributed._pin_gpu(2)
    # each process shown its own GPU only
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["own"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    distributed._pin_gpu(3)
    assert seen[-1] == ("own", True)


@pytest.mark.parametrize("size", [2, 3])
def test_sum(size):
    world = World(size)

    def work(group, rank):
        tensors = [tf.constant([1.0, 10.0]) * (rank + 1), tf.constant([[0.5]], tf.bfloat16)]
        return group.all_reduce_sum(tensors)

    for sums in on_all_ranks(world, work):
        total = size * (size + 1) / 2
        np.testing.assert_allclose(sums[0], [total, 10 * total])
        assert sums[1].dtype == tf.bfloat16
        assert float(sums[1][0, 0]) == 0.5 * size
    # one grouped exchange for all tensors, in float32
    assert world.calls.count(("grouped_allreduce", 0, tf.float32)) == 1
    assert not [call for call in world.calls if call[0] == "allreduce"]


@pytest.mark.parametrize("magnitude", [1e-30, 1e-9, 1.0, 6e4, 1e9, 1e30])
@pytest.mark.parametrize("size", [2, 3])
def test_fp16_compression_is_safe_at_any_magnitude(magnitude, size):
    world = World(size)
    random = np.random.default_rng(0)
    parts = [(random.normal(size=1000) * magnitude).astype(np.float32) for _ in range(size)]
    parts[0][0] = magnitude * 1e-6  # far smaller than the rest, and alone
    for part in parts[1:]:
        part[0] = 0.0

    def work(group, rank):
        return group.all_reduce_sum([tf.constant(parts[rank])], "fp16")

    results = on_all_ranks(world, work)
    exact = np.sum(np.float64(parts), axis=0)
    # half a unit in the last place (2^-11) for each of `size` casts and size - 1 additions
    bound = (2 * size - 1) * 2.0**-11 * np.abs(parts).sum(axis=0).max()
    for (total,) in results:
        assert total.dtype == tf.float32
        np.testing.assert_allclose(total, exact, rtol=0, atol=bound)
        np.testing.assert_allclose(total[0], exact[0], rtol=1e-3)
    assert ("grouped_allreduce", 0, tf.float16) in world.calls


def test_fp16_compression_does_not_overflow_where_plain_float16_would():
    gradient = tf.fill([3], 60000.0)  # 8 of them exceed float16's 65504
    results = on_all_ranks(World(8), lambda group, rank: group.all_reduce_sum([gradient], "fp16"))
    for (total,) in results:
        np.testing.assert_allclose(total, [480000.0] * 3, rtol=1e-3)


@pytest.mark.parametrize("compression", [None, "fp16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_arrives_everywhere(compression, bad):
    def work(group, rank):
        gradient = tf.constant([1.0, bad if rank == 1 else 2.0])
        (total,) = group.all_reduce_sum([gradient], compression)
        return bool(tf.reduce_all(tf.math.is_finite(total)))

    assert on_all_ranks(World(2), work) == [False, False]


def test_zeros_survive_compression():
    results = on_all_ranks(World(2), lambda group, rank: group.all_reduce_sum([tf.zeros(4)], "fp16"))
    for (total,) in results:
        np.testing.assert_array_equal(total, np.zeros(4))


def test_gathering_arrays_of_any_length_and_json():
    def work(group, rank):
        arrays = group.gather_array(np.arange(rank, dtype=np.int64) + 10 * rank)
        return arrays and [a.tolist() for a in arrays], group.gather_json({"rank": rank}), group.sum_array([rank, 0.5])

    root, *others = on_all_ranks(World(3), work)
    assert root[:2] == ([[], [10], [20, 21]], [{"rank": 0}, {"rank": 1}, {"rank": 2}])
    assert all(other[:2] == (None, None) for other in others)
    assert all(found[2].tolist() == [3.0, 1.5] for found in (root, *others))


def test_broadcast_takes_the_roots_values():
    def work(group, rank):
        variables = [tf.Variable([1.0 + rank, 2.0]), tf.Variable(rank, dtype=tf.int64)]
        group.broadcast(variables)
        state = group.broadcast_json({"step": 3, "text": "é"} if group.is_root else None)
        group.barrier()
        return [v.numpy().tolist() for v in variables], state

    assert on_all_ranks(World(3), work) == [([[1.0, 2.0], 0], {"step": 3, "text": "é"})] * 3
