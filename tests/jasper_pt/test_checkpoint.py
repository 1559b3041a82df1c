"""Checkpoints are whole or named as damaged, hold everything, keep their published names, and go when old."""

import errno
import hashlib
import io
import json
import math
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from jasper_pt import checkpoint
from jasper_pt.checkpoint import Checkpoints, Position, Run
from jasper_pt.ema import Ema
from jasper_pt.novograd import create_optimizer
from jasper_pt.precision import LossScale
from runkit.background import BackgroundWriter
from runkit.errors import UserError
from tests.runkit.small_disk import read_only, small_disk

ROOT = Path(__file__).resolve().parents[2]
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


def test_why_a_file_could_not_be_written_is_kept(tmp_path, monkeypatch):
    """torch.save raises an error without a cause."""

    class Full(io.BytesIO):
        def write(self, data):
            if self.tell() + len(data) > 1000:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    monkeypatch.setattr(checkpoint, "open", lambda path, mode: Full(), raising=False)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.write(tmp_path / "c.pt", contents(new_run()))


# ----------------------------------------------------------------------------------------------- a run's checkpoints
def save_all(store, places):
    run = new_run()
    for epoch, update in places:
        store.save(contents(run, epoch, update, step=10 * epoch + update))


def names(store):
    return [path.name for path in store.all()]


def manifests(store):
    return {path.with_suffix(".manifest.json").name for path in store.all()}


def bare(store):
    """Takes the manifests away, as in a folder of the published recipe."""
    for name in manifests(store):
        (store.directory / name).unlink()


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
    assert {path.name for path in tmp_path.iterdir()} == set(others) | set(names(store)) | manifests(store)
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


def test_the_manifest_beside_a_checkpoint(tmp_path):
    store = Checkpoints(tmp_path, "QuartzNet")
    path = store.save(contents(new_run(), epoch=3, update=4, step=34))
    manifest = json.loads((tmp_path / "QuartzNet_epoch3_step34_checkpoint.manifest.json").read_text())
    data = path.read_bytes()
    assert manifest["files"] == {path.name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}}
    position = {"epoch": 3, "update": 4, "updates_per_epoch": 10, "global_batch_size": 8}
    assert (manifest["step"], manifest["state"]) == (34, {"position": position, "seed": 7})


@pytest.mark.parametrize("damage", ["weights", "metadata", "missing", "manifest"])
def test_damage_that_the_manifest_tells(tmp_path, damage):
    """The CRCs of a zip archive do not cover all of its bytes; SHA-256 does."""
    store = Checkpoints(tmp_path, "QuartzNet")
    save_all(store, [(1, 0), (2, 0)])
    newest = store.all()[-1]
    if damage == "missing":
        newest.unlink()
    elif damage == "manifest":
        flip_a_byte(newest.with_suffix(".manifest.json"))
    else:
        flip_a_byte(newest, 0.5 if damage == "weights" else 1 - 1 / newest.stat().st_size)
    with pytest.warns(UserWarning, match=r"epoch2_checkpoint\.(pt|manifest\.json).*trying the checkpoint before it"):
        path, _ = store.newest_valid()
    assert path.name == "QuartzNet_epoch1_checkpoint.pt"


def test_checkpoints_without_manifests_are_found_checked_and_aged(tmp_path):
    """Of the published recipe, or of earlier versions of this one."""
    store = Checkpoints(tmp_path, "QuartzNet", milestones=[1])
    save_all(store, [(1, 0), (2, 0), (3, 0)])
    bare(store)
    store = Checkpoints(tmp_path, "QuartzNet", milestones=[1])
    assert names(store) == [f"QuartzNet_epoch{n}_checkpoint.pt" for n in (1, 2, 3)]
    path, found = store.newest_valid()
    assert path == tmp_path / "QuartzNet_epoch3_checkpoint.pt" and found["epoch"] == 3
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.warns(UserWarning, match=r"epoch3_checkpoint\.pt is damaged"):
        assert store.newest_valid()[1]["epoch"] == 2
    save_all(store, [(3, 0), (4, 0)])
    assert names(store) == [f"QuartzNet_epoch{n}_checkpoint.pt" for n in (1, 3, 4)]
    assert store.newest_valid()[1]["epoch"] == 4


def test_a_small_disk_that_fills_keeps_the_old_checkpoints_and_says_so(tmp_path):
    with small_disk(tmp_path / "disk", 100) as folder:
        store = Checkpoints(folder, "QuartzNet")
        save_all(store, [(1, 0)])
        store.save_best(contents(new_run()))
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        wide = contents(new_run(width=3000), epoch=2)
        said = r"QuartzNet_epoch2_checkpoint: No space left on device; free some space.*as they were"
        with pytest.raises(UserError, match=said):
            store.save(wide)
        with pytest.raises(UserError, match=r"QuartzNet_best_checkpoint: No space left on device"):
            store.save_best(wide)
        with read_only(folder), pytest.raises(UserError, match=r"epoch2_checkpoint: Read-only file system; have"):
            store.save(contents(new_run(), epoch=2))
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("optimizer", ["novograd", "adamw", "lamb98"])
def test_a_snapshot_written_while_training_goes_on_is_of_its_moment(tmp_path, optimizer):
    run = new_run(optimizer=optimizer)
    train(run, 3)
    at_once = io.BytesIO()
    torch.save(contents(run), at_once)
    store = Checkpoints(tmp_path, "QuartzNet")
    saved = contents(run)
    with BackgroundWriter() as writer:
        writer.submit(lambda: (train(run, 4, seed=5), store.save(saved)))  # the worst case: all changes come before
    at_once.seek(0)
    expected = torch.load(at_once, weights_only=True)
    assert equal(store.newest_valid()[1], expected) and not equal(contents(run), expected)
    assert all(value.device.type == "cpu" for value in saved["state_dict"].values())


# --------------------------------------------------------------------------------------------------------- kills
CRASH_POINTS = """
import json, os, shutil, sys, warnings
from pathlib import Path
import torch
from jasper_pt import checkpoint
from jasper_pt.checkpoint import Checkpoints
from tests.runkit.crash_points import DONE, interrupted

os.fsync = lambda descriptor: None  # a kill, unlike a power loss, does not ask for it
root, refusal = Path(sys.argv[1]), int(sys.argv[2])
warnings.simplefilter("error")  # nothing may look damaged

def contents(epoch, text):
    position = {"epoch": epoch, "update": 0, "updates_per_epoch": 1, "global_batch_size": 1}
    return {"position": position, "step": epoch, "seed": 0, "state_dict": {"w": torch.tensor(list(text.encode()))}}

def text(found):
    return bytes(found["state_dict"]["w"].tolist()).decode()

def newest(store):
    found = store.newest_valid()
    return found and text(found[1])

def best(store):
    return text(checkpoint.read(store.best_path)) if store.best_path.exists() else None

def check(saved, epoch, manifests, is_best):
    before = root / "before"
    shutil.rmtree(before, ignore_errors=True)
    before.mkdir()
    store = Checkpoints(before, "M")
    for old in saved:
        store.save(contents(old, f"old {old}"))
    if is_best and saved:
        store.save_best(contents(1, "old best"))
    for path in [] if manifests else before.glob("*.manifest.json"):
        path.unlink()
    look = best if is_best else newest
    old, number, outcome = look(store), 0, None
    while outcome != DONE:
        number += 1
        folder = root / "run"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(before, folder)
        store = Checkpoints(folder, "M")
        save = store.save_best if is_best else store.save
        outcome = interrupted(lambda: save(contents(epoch, "new")), number, refusal)
        assert look(store) in (old, "new"), (number, look(store))
        assert outcome != DONE or look(store) == "new"
        first = look(store)
        interrupted(lambda: save(contents(epoch, "newer")), 1 + (5 * number) % 17, refusal)
        assert look(store) in (first, "newer"), (number, look(store))
        assert is_best or len(store.all()) >= len(saved), number
        store.save(contents(epoch + 1, "last"))
        assert newest(store) == "last"
        assert len(store.all()) <= 2, (number, store.all())
        kept = {path.name for path in [*store.all(), store.best_path] if path.exists()}
        for path in folder.glob("*.manifest.json"):
            kept |= {path.name, *json.loads(path.read_text())["files"]}
        assert {path.name for path in folder.iterdir()} == kept, number
    return number

print(check([], 1, True, False), check([1, 2], 3, True, False), check([1, 2], 2, True, False),
      check([1, 2], 2, False, False), check([1], 2, True, True), check([1], 2, False, True), check([], 2, True, True))
"""


@pytest.mark.parametrize("refusal", [0, errno.EDQUOT], ids=["killed", "refused"])
def test_interrupted_at_every_change_of_the_disk(tmp_path, refusal):
    """Before each file operation of a save: first ever, next, same name again, over a file without manifest, best."""
    command = [sys.executable, "-c", CRASH_POINTS, str(tmp_path), str(refusal)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    child = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    counts = [int(count) for count in child.stdout.split()]
    assert min(counts) > 8, counts
