"""Checkpoints are whole or named as damaged, hold everything, keep their published names, and go when old."""

import contextlib
import errno
import io
import math
import pickle
import warnings

import pytest
import torch
from torch import nn

from jasper_pt import checkpoint
from jasper_pt.checkpoint import Checkpoints, Position, Run
from jasper_pt.ema import Ema
from jasper_pt.novograd import create_optimizer
from jasper_pt.precision import LossScale
from runkit.errors import UserError
from runkit.files import atomic_open

CONFIG = {"name": "QuartzNet", "labels": [" ", "a", "b"], "n": {"deep": [1, 2.5, None, True]}}


def new_run(seed=0, ema=True, optimizer="novograd", width=4, lr=0.01):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv1d(3, width, 1), nn.BatchNorm1d(width), nn.Conv1d(width, 2, 1))
    parameters = create_optimizer(optimizer, model.parameters(), lr, 1e-3)
    return Run(model, Ema(model, 0.9) if ema else None, parameters, LossScale(True))


def train(run, steps, seed=0):
    for step in range(steps):
        torch.manual_seed(100 * seed + step)
        run.optimizer.zero_grad()
        run.model(torch.randn(2, 3, 5)).square().sum().backward()
        run.optimizer.step()
        run.loss_scale.update(True, step % 3 != 1)
        if run.ema:
            run.ema.update()


def contents(run, epoch=1, update=0, step=10, best=math.inf):
    return run.contents(Position(epoch, update, 10, 8), step, best, seed=7, config=CONFIG)


def equal(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return torch.equal(a, b) if torch.is_tensor(a) else a == b


def flip_a_byte(path, where=0.5):
    data = bytearray(path.read_bytes())
    data[int(len(data) * where)] ^= 1
    path.write_bytes(data)


# ------------------------------------------------------------------------------------------------------- contents
@pytest.mark.parametrize("optimizer", ["novograd", "adamw", "lamb98"])
def test_a_restored_run_goes_on_bit_for_bit(tmp_path, optimizer):
    run = new_run(optimizer=optimizer)
    train(run, 5)
    checkpoint.write(tmp_path / "c.pt", contents(run))
    other = new_run(seed=1, optimizer=optimizer)
    assert other.restore(checkpoint.read(tmp_path / "c.pt"), "c.pt") == []
    train(run, 5, seed=2)
    train(other, 5, seed=2)
    assert equal(contents(run), contents(other))


def test_keys_are_the_published_ones_and_ours():
    published = {"epoch", "step", "best_wer", "state_dict", "ema_state_dict", "optimizer", "scaler"}
    found = contents(new_run())
    assert found.keys() == published | {"position", "seed", "config", "labels", "format"}
    assert found["config"] == CONFIG and found["labels"] == CONFIG["labels"]
    assert contents(new_run(ema=False))["ema_state_dict"] is None


def test_restoring_keeps_the_flags_of_the_new_job(tmp_path):
    run = new_run()
    train(run, 2)
    other = new_run(lr=0.5)
    other.optimizer.param_groups[0]["weight_decay"] = 0.25
    other.restore(contents(run), "c.pt")
    assert (other.optimizer.param_groups[0]["lr"], other.optimizer.param_groups[0]["weight_decay"]) == (0.5, 0.25)


def test_a_checkpoint_without_ema_starts_the_average_at_its_weights():
    run = new_run(ema=False)
    train(run, 2)
    other = new_run(seed=1)
    (note,) = other.restore(contents(run), "c.pt")
    assert "without EMA" in note
    assert equal(dict(other.ema.model.state_dict()), dict(run.model.state_dict()))


def test_ema_weights_that_are_dropped_are_told():
    run = new_run()
    train(run, 1)
    (note,) = new_run(ema=False).restore(contents(run), "c.pt")
    assert "--ema is 0" in note


def test_another_model_is_refused_by_key():
    run = new_run()
    train(run, 1)
    with pytest.raises(
        UserError, match=r"c.pt does not fit.*0.weight \[4, 3, 1\] instead of \[6, 3, 1\].*model_config"
    ):
        new_run(width=6).restore(contents(run), "c.pt")
    state = dict(run.model.state_dict()) | {"extra": torch.ones(1)}
    del state["2.bias"]
    with pytest.raises(UserError, match=r"missing: 2.bias; unknown: extra"):
        checkpoint.load_weights(new_run().model, state, "c.pt")


def test_names_of_the_first_jasper_recipe_are_understood():
    old = {
        "jasper_encoder.encoder.0.conv.0.weight": torch.ones(1),
        "jasper_decoder.decoder_layers.0.bias": torch.ones(2),
        "acoustic_model.x": torch.ones(3),
        "audio_preprocessor.window": torch.ones(4),
        "encoder.layers.1.out.0": torch.ones(5),
    }
    names = ["encoder.layers.0.conv.0.weight", "decoder.layers.0.bias", "encoder.layers.1.out.0"]
    assert list(checkpoint.present_names(old)) == names


def test_another_optimizer_is_refused():
    run = new_run(optimizer="adamw")
    train(run, 1)
    with pytest.raises(UserError, match=r"not NovoGrad's.*--init_ckpt"):
        new_run().restore(contents(run), "c.pt")
    weights_only = {"state_dict": run.model.state_dict()}
    with pytest.raises(UserError, match=r"weights only.*--init_ckpt"):
        new_run(ema=False).restore(weights_only, "c.pt")


# --------------------------------------------------------------------------------------------------------- one file
@pytest.mark.parametrize("where", [0.3, 0.5, 0.7, 0.9])
def test_a_flipped_bit_is_found(tmp_path, where):
    path = tmp_path / "c.pt"
    run = new_run(width=300)
    train(run, 1)
    checkpoint.write(path, contents(run))
    assert equal(checkpoint.read(path), contents(run))
    flip_a_byte(path, where)
    with pytest.raises(UserError, match=r"c.pt"):
        checkpoint.read(path)


def test_what_is_no_checkpoint_is_named(tmp_path):
    with pytest.raises(UserError, match="there is no such file"):
        checkpoint.read(tmp_path / "absent.pt")
    with pytest.raises(UserError, match="it is a folder"):
        checkpoint.read(tmp_path)
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(UserError, match=r"text.pt is damaged, or not a PyTorch checkpoint"):
        checkpoint.read(tmp_path / "text.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(UserError, match="no 'state_dict'"):
        checkpoint.read(tmp_path / "list.pt")


class Hostile:
    def __reduce__(self):
        return (pickle.loads, (b"",))


def test_nothing_in_a_file_is_executed(tmp_path):
    torch.save({"state_dict": {}, "bad": Hostile()}, tmp_path / "hostile.pt")
    with pytest.raises(UserError, match=r"cannot read the checkpoint .*hostile.pt"):
        checkpoint.read(tmp_path / "hostile.pt")


def test_a_full_disk_keeps_the_old_file_and_says_so(tmp_path, monkeypatch):
    path = tmp_path / "c.pt"
    checkpoint.write(path, contents(new_run()))
    before = path.read_bytes()

    class Full(io.BytesIO):
        def write(self, data):
            if self.tell() + len(data) > 1000:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    @contextlib.contextmanager
    def on_a_full_disk(path):
        with atomic_open(path):
            yield Full()

    monkeypatch.setattr(checkpoint, "atomic_open", on_a_full_disk)
    with pytest.raises(UserError, match=r"c.pt: No space left.*free some space"):
        checkpoint.write(path, contents(new_run(seed=1)))
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["c.pt"]


# ----------------------------------------------------------------------------------------------- a run's checkpoints
def save_all(store, places):
    run = new_run()
    for epoch, update in places:
        store.save(contents(run, epoch, update, step=10 * epoch + update))


def names(store):
    return [path.name for path in store.all()]


def test_names_and_retention(tmp_path):
    store = Checkpoints(tmp_path, "QuartzNet", milestones=[2])
    assert store.newest_valid() is None
    save_all(store, [(1, 0), (2, 0), (2, 5), (3, 0), (10, 0)])
    assert names(store) == [f"QuartzNet_epoch{n}_checkpoint.pt" for n in (2, 3, 10)]
    save_all(store, [(10, 4)])
    assert names(store) == [f"QuartzNet_epoch{n}_checkpoint.pt" for n in (2, 10)] + [
        "QuartzNet_epoch10_step104_checkpoint.pt"
    ]
    path, found = store.newest_valid()
    assert path.name == "QuartzNet_epoch10_step104_checkpoint.pt" and found["position"]["update"] == 4


def test_other_files_are_left_alone(tmp_path):
    others = [
        "Jasper_epoch1_checkpoint.pt",
        "QuartzNet_best_checkpoint.pt",
        "QuartzNet_epochX_checkpoint.pt",
        "log.json",
    ]
    for name in others:
        (tmp_path / name).write_text("")
    store = Checkpoints(tmp_path, "QuartzNet")
    save_all(store, [(n, 0) for n in range(1, 5)])
    assert {path.name for path in tmp_path.iterdir()} == set(others) | set(names(store))
    assert len(names(store)) == 2


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_used(tmp_path):
    store = Checkpoints(tmp_path, "QuartzNet")
    save_all(store, [(1, 0), (2, 0)])
    newest = store.all()[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="epoch2_checkpoint.pt is damaged.*trying the checkpoint before it"):
        path, found = store.newest_valid()
    assert path.name == "QuartzNet_epoch1_checkpoint.pt" and found["epoch"] == 1


def test_no_silent_restart_when_all_are_damaged(tmp_path):
    store = Checkpoints(tmp_path, "QuartzNet")
    save_all(store, [(1, 0)])
    store.all()[0].write_bytes(b"")
    with (
        warnings.catch_warnings(),
        pytest.raises(UserError, match=r"no usable checkpoint.*start over in an empty folder"),
    ):
        warnings.simplefilter("ignore")
        store.newest_valid()


def test_saving_behind_a_damaged_later_checkpoint_keeps_what_is_whole(tmp_path):
    store = Checkpoints(tmp_path, "QuartzNet")
    save_all(store, [(1, 0), (5, 0)])
    store.all()[-1].write_bytes(b"damaged")
    save_all(store, [(2, 0), (3, 0)])
    assert names(store) == [f"QuartzNet_epoch{n}_checkpoint.pt" for n in (2, 3, 5)]


def test_the_best_checkpoint_holds_its_own_figure(tmp_path):
    store = Checkpoints(tmp_path, "QuartzNet")
    for wer in (30.0, 20.0):
        store.save_best(contents(new_run(), best=wer))
    assert checkpoint.read(store.best_path)["best_wer"] == 20.0
    assert store.all() == [] and store.best_path.name == "QuartzNet_best_checkpoint.pt"
