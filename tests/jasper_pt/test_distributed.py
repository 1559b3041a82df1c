"""One process has identities; two real ones (this file run as a script, over gloo) exchange what they should."""

import datetime
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from jasper_pt import distributed
from runkit.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
SHAPES = ((2, 3, 5), (4, 3, 7))  # of each process's batch, [B,C,T]


def inputs(rank):
    return torch.randn(SHAPES[rank], generator=torch.Generator().manual_seed(rank), dtype=torch.float32)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4, eps=1e-3), nn.ReLU(), nn.Conv1d(4, 2, 1))


def loss(model, x):
    """A sum, with weights that make every position matter differently."""
    y = model(x)
    return (y * torch.linspace(-1, 1, y.shape[-1])).square().sum()


# ---------------------------------------------------------------------------------------------- the other processes
def work(group):
    """What each of two processes does; returns plain JSON."""
    out = {"rank": group.rank, "size": group.size, "is_root": group.is_root}
    out["sum"] = group.all_reduce_sum(torch.tensor([group.rank + 1.0, 10.0])).tolist()
    out["broadcast"] = group.broadcast_json({"from": group.rank, "text": "straße"})
    out["gathered"] = group.gather_json(["x" * (100 * group.rank), group.rank])
    group.barrier()

    # Mean gradients, of two passes exchanged once.
    x = inputs(group.rank)
    model = net().eval()  # BatchNorm out of the way
    wrapped = group.wrap(model)
    with group.no_sync(wrapped):
        loss(wrapped, x).backward()
    loss(wrapped, x + 1).backward()
    out["gradients"] = [p.grad.tolist() for p in model.parameters()]

    # Evaluation with more batches here than there must not wait for the other process.
    with torch.no_grad():
        for _ in range(1 + 3 * group.rank):
            wrapped(x)

    # Common statistics.
    model = distributed.synchronise_batch_norm(net(), group.device).train()
    wrapped = group.wrap(model)
    (loss(wrapped, x) * group.size).backward()  # the exchange takes the mean; this makes it a sum
    out["sync"] = {
        "keys": list(model.state_dict()),
        "gradients": [p.grad.tolist() for p in model.parameters()],
        "statistics": [model[1].running_mean.tolist(), model[1].running_var.tolist()],
    }
    return out


def lose_the_other(group):
    """The second process stops; returns what the first one makes of it."""
    short = dist.new_group(timeout=datetime.timedelta(seconds=1))
    if not group.is_root:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        with group.watching():
            dist.all_reduce(torch.ones(1), group=short)
    except distributed.PeerLost as error:
        return str(error)


def main():
    torch.set_num_threads(1)
    group = distributed.init(cpu=True)
    Path(sys.argv[1], f"{group.rank}.json").write_text(json.dumps(work(group)))
    Path(sys.argv[1], "lost.txt").write_text(lose_the_other(group))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen([sys.executable, __file__, folder], env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in (0, 1)
    ]
    try:
        assert processes[0].wait(timeout=120) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
    found[0]["lost"] = (folder / "lost.txt").read_text()
    return found


@pytest.mark.dist
def test_numbers_and_json(results):
    assert [(r["rank"], r["size"], r["is_root"]) for r in results] == [(0, 2, True), (1, 2, False)]
    assert [r["sum"] for r in results] == [[3.0, 20.0]] * 2
    assert [r["broadcast"] for r in results] == [{"from": 0, "text": "straße"}] * 2
    assert [r["gathered"] for r in results] == [[["", 0], ["x" * 100, 1]], None]


@pytest.mark.dist
def test_a_process_that_hangs_is_lost_after_the_timeout(results):
    """One that dies: test_multiprocess.py."""
    assert "process 0 of 2 ends because another one has not answered" in results[0]["lost"]
    assert "Start the run again with --resume" in results[0]["lost"]


def test_other_errors_are_not_those_of_a_lost_process():
    group = object.__new__(distributed.TorchDistributed)
    with pytest.raises(RuntimeError, match="out of memory"), group.watching():
        raise RuntimeError("out of memory")


@pytest.mark.dist
def test_gradients_are_the_mean_over_processes(results):
    model = net().eval()
    for rank in (0, 1):
        ((loss(model, inputs(rank)) + loss(model, inputs(rank) + 1)) / 2).backward()
    for r in results:
        for found, parameter in zip(r["gradients"], model.parameters(), strict=True):
            torch.testing.assert_close(torch.tensor(found), parameter.grad, rtol=1e-5, atol=1e-4)


@pytest.mark.dist
def test_synchronised_batch_norm_equals_one_process_with_all_data(results):
    model = net().train()
    x = torch.cat([inputs(rank).transpose(0, 1).flatten(1) for rank in (0, 1)], 1)[None]  # [1, C, all positions]
    y = model(x)
    weights = [torch.linspace(-1, 1, shape[-1]).repeat(shape[0]) for shape in SHAPES]
    (y * torch.cat(weights)).square().sum().backward()
    for r in results:
        assert r["sync"]["keys"] == list(model.state_dict())
        for found, parameter in zip(r["sync"]["gradients"], model.parameters(), strict=True):
            torch.testing.assert_close(torch.tensor(found), parameter.grad, rtol=1e-4, atol=1e-4)
        statistics = [model[1].running_mean, model[1].running_var]
        torch.testing.assert_close([torch.tensor(v) for v in r["sync"]["statistics"]], statistics)


# ------------------------------------------------------------------------------------------------- one process
def test_a_single_process_has_identities(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    group = distributed.init(cpu=True)
    model, tensor = net(), torch.ones(2)
    assert (group.rank, group.size, group.is_root, group.device.type) == (0, 1, True, "cpu")
    assert group.wrap(model) is model and group.all_reduce_sum(tensor) is tensor
    assert group.broadcast_json({"a": 1}) == {"a": 1} and group.gather_json(3) == [3]
    with group.no_sync(model):
        group.barrier()
        group.close()


def test_synchronised_batch_norm_of_a_single_process_is_batch_norm():
    plain, synchronised = net(), distributed.synchronise_batch_norm(net(), torch.device("cpu"))
    assert torch.equal(plain(inputs(0)), synchronised(inputs(0)))
    assert type(synchronised[1]) is distributed.SyncBatchNorm


def test_half_a_launcher_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="RANK, MASTER_ADDR, MASTER_PORT not: start the processes with torchrun"):
        distributed.init(cpu=True)


if __name__ == "__main__":
    main()
