import contextlib
import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from runkit.errors import UserError
from runkit.store import CheckpointFiles, CheckpointStore, retained
from tests.runkit.small_disk import read_only, small_disk

ROOT = Path(__file__).resolve().parents[2]


def writer(text, suffixes=(".index", ".data-00000-of-00001")):
    def write_files(prefix):
        for suffix in suffixes:
            Path(prefix + suffix).write_text(f"{text}{suffix}" * 50)

    return write_files


def contents(checkpoint, suffix=".index"):
    return Path(checkpoint.prefix + suffix).read_text().removesuffix(suffix).split(suffix)[0]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def files_of(*steps):
    ends = ("data-00000-of-00001", "index", "manifest.json")
    return sorted(["checkpoint", *(f"model.ckpt-{step}.{end}" for step in steps for end in ends)])


@pytest.fixture
def two(tmp_path):
    """A store that holds steps 10 and 20."""
    store = CheckpointStore(tmp_path, keep=2)
    for step in (10, 20):
        store.save(step, writer(f"weights {step}"), {"step": step})
    return store


def test_round_trip(tmp_path):
    store = CheckpointStore(tmp_path / "run" / "phase_1")
    assert store.newest_valid() is None
    state = {"loss_scale": 65536.0, "best": float("inf"), "rng": [2**64 - 1, 0.1], "note": "é", "none": None}
    prefix = store.save(7038, writer("weights"), state)
    assert prefix == tmp_path / "run" / "phase_1" / "model.ckpt-7038"
    assert names(prefix.parent) == files_of(7038)
    checkpoint = store.newest_valid()
    assert checkpoint == (7038, str(prefix), state)
    assert contents(checkpoint) == "weights"
    assert store.read(7038) == checkpoint


def test_manifest(two, tmp_path):
    manifest = json.loads((tmp_path / "model.ckpt-20.manifest.json").read_text())
    assert manifest["step"] == 20
    assert manifest["state"] == {"step": 20}
    index = (tmp_path / "model.ckpt-20.index").read_bytes()
    assert manifest["files"]["model.ckpt-20.index"]["bytes"] == len(index)
    assert re.fullmatch("[0-9a-f]{64}", manifest["files"]["model.ckpt-20.index"]["sha256"])
    assert sorted(manifest["files"]) == ["model.ckpt-20.data-00000-of-00001", "model.ckpt-20.index"]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_retention(tmp_path, keep):
    store = CheckpointStore(tmp_path, keep=keep)
    for step in range(0, 50, 10):
        store.save(step, writer(step), {})
    kept = list(range(0, 50, 10))[-keep:]
    assert store.steps() == kept
    assert names(tmp_path) == files_of(*kept)


@pytest.mark.parametrize(
    ("settings", "best", "kept"),
    [
        ({"keep": 1}, None, [100]),
        ({"keep": 3}, None, [80, 90, 100]),
        ({"keep": 1, "milestones": [20, 50, 999]}, None, [20, 50, 100]),
        ({"keep": 2, "milestone_every": 40}, None, [40, 80, 90, 100]),
        ({"keep": 1, "milestone_every": 50, "milestones": [30]}, None, [30, 50, 100]),
        ({"keep": 1}, 70, [70, 100]),
        ({"keep": 2, "milestone_every": 70}, 70, [70, 90, 100]),
        ({"keep": 1}, 100, [100]),
    ],
)
def test_retention_table(tmp_path, settings, best, kept):
    """The newest, the milestones and the best stay; TensorFlow's index lists them all, the newest first."""
    store = CheckpointStore(tmp_path, **settings)
    for step in range(10, 101, 10):
        store.save(step, writer(step), {}, best=best if best and step >= best else None)
    assert store.steps() == kept
    assert names(tmp_path) == files_of(*kept)
    lines = (tmp_path / "checkpoint").read_text().splitlines()
    assert lines == [
        'model_checkpoint_path: "model.ckpt-100"',
        *(f'all_model_checkpoint_paths: "model.ckpt-{step}"' for step in kept),
    ]
    assert all(store.read(step) for step in kept)


def test_a_best_step_that_another_overtakes_goes(tmp_path):
    store = CheckpointStore(tmp_path)
    for step, best in ((1, 1), (2, 1), (3, 3), (4, 3)):
        store.save(step, writer(step), {}, best=best)
    assert store.steps() == [3, 4]


def test_retained_is_pure_and_ordered():
    assert retained([1, 2, 3, 4, 5], 2, lambda step: step % 2 == 1) == [1, 3, 4, 5]
    assert retained([1], 5, lambda step: False) == [1] and retained([], 1, bool) == []


def test_retention_never_removes_what_was_just_saved(two):
    """Resumed from step 10 since 20 was damaged: 15 counts as the newest although 20 is beyond it."""
    damage(two.directory / "model.ckpt-20.index")
    two.keep = 1
    two.save(15, writer("weights 15"), {})
    assert two.steps() == [15, 20]
    with pytest.warns(UserWarning, match="model.ckpt-20.index is damaged"):
        assert two.newest_valid().step == 15


def test_a_resume_finishes_what_a_killed_save_had_still_to_do(tmp_path):
    keeper, store = CheckpointStore(tmp_path, keep=9), CheckpointStore(tmp_path, keep=1)
    for step in (10, 20, 30):
        keeper.save(step, writer(step), {})
    hidden = tmp_path / ".model.ckpt-30.abcd1234.tmp"
    hidden.mkdir()
    (hidden / "model.ckpt-30.index").write_text("half")
    store.tidy(20)  # what a resume took; 30 is damaged to it, and nothing to count by
    assert store.steps() == [20, 30] and not hidden.exists()
    assert '"model.ckpt-20"' in (tmp_path / "checkpoint").read_text()
    store.tidy(30)
    assert names(tmp_path) == files_of(30)


def test_steps_are_numbers_not_text(tmp_path):
    store = CheckpointStore(tmp_path, keep=3)
    for step in (9, 10, np.int64(100)):
        store.save(step, writer(step), {})
    assert store.steps() == [9, 10, 100]
    assert store.newest_valid().step == 100


def test_tensorflow_index(two):
    assert (two.directory / "checkpoint").read_text() == (
        'model_checkpoint_path: "model.ckpt-20"\n'
        'all_model_checkpoint_paths: "model.ckpt-10"\n'
        'all_model_checkpoint_paths: "model.ckpt-20"\n'
    )


def test_tensorflow_finds_and_reads_the_newest(tmp_path):
    tf = pytest.importorskip("tensorflow")
    store = CheckpointStore(tmp_path, keep=2)
    for step in (10, 20):
        store.save(step, tf.train.Checkpoint(step=tf.Variable(step)).write, {})
    newest = tf.train.latest_checkpoint(str(tmp_path))
    assert newest == store.newest_valid().prefix == str(tmp_path / "model.ckpt-20")
    assert tf.train.load_variable(newest, "step/.ATTRIBUTES/VARIABLE_VALUE") == 20
    assert list(tf.train.get_checkpoint_state(str(tmp_path)).all_model_checkpoint_paths) == [
        str(tmp_path / f"model.ckpt-{step}") for step in (10, 20)
    ]


# Damage


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path):
    os.truncate(path, path.stat().st_size - 2)  # a manifest ends in "}\n"


def empty(path):
    os.truncate(path, 0)


@pytest.mark.parametrize("how", [damage, truncate, empty, Path.unlink])
@pytest.mark.parametrize("end", ["index", "data-00000-of-00001", "manifest.json"])
def test_a_damaged_checkpoint_is_named_and_the_older_one_taken(two, how, end):
    path = two.directory / f"model.ckpt-20.{end}"
    how(path)
    if path.exists() or end != "manifest.json":
        with pytest.warns(UserWarning, match=re.escape(path.name)):
            checkpoint = two.newest_valid()
    else:  # no manifest, no checkpoint
        checkpoint = two.newest_valid()
    assert (checkpoint.step, contents(checkpoint), checkpoint.state) == (10, "weights 10", {"step": 10})


def test_any_flipped_bit_in_a_manifest_is_seen(two):
    path = two.directory / "model.ckpt-20.manifest.json"
    whole = path.read_bytes()
    truth = two.read(20)
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with contextlib.suppress(UserError):
            assert two.read(20) == truth, position  # a blank became another: the contents are the same


@pytest.mark.parametrize("how", [damage, truncate, Path.unlink])
def test_no_silent_restart(two, how):
    for step in (10, 20):
        how(two.directory / f"model.ckpt-{step}.index")
    with pytest.warns(UserWarning) as caught, pytest.raises(UserError, match="no usable checkpoint"):
        two.newest_valid()
    assert len(caught) == 2


def test_no_silent_restart_without_manifests(two):
    for step in (10, 20):
        (two.directory / f"model.ckpt-{step}.manifest.json").unlink()
    with pytest.raises(UserError, match=r"model\.ckpt-10\.index has no manifest"):
        two.newest_valid()


def test_other_files_do_not_matter(tmp_path):
    for name in ("log.json", "bert_model.ckpt.index", "model.ckpt-best.index", ".model.ckpt-notes.tmp"):
        (tmp_path / name).touch()
    store = CheckpointStore(tmp_path)
    assert store.newest_valid() is None
    store.save(1, writer("a"), {})
    store.save(2, writer("b"), {})
    others = ["log.json", "bert_model.ckpt.index", "model.ckpt-best.index", ".model.ckpt-notes.tmp"]
    assert names(tmp_path) == sorted(files_of(2) + others)


def test_a_manifest_cannot_reach_outside_its_folder(tmp_path):
    from runkit.store import _sealed

    (tmp_path / "precious").touch()
    folder = tmp_path / "run"
    store = CheckpointStore(folder)
    store.save(1, writer("a"), {})
    sealed = _sealed(1, "model.ckpt-1", {"../precious": {"bytes": 0, "sha256": ""}}, {})
    (folder / "model.ckpt-1.manifest.json").write_text(json.dumps(sealed))
    with pytest.raises(UserError, match="outside"):
        store.read(1)
    store.save(2, writer("b"), {})
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize("change", [{"step": "1"}, {"prefix": 1}, {"files": []}, {"state": None}])
def test_a_manifest_of_another_form_is_refused(two, change):
    """Although its own checksum is right."""
    from runkit.store import _digest

    path = two.directory / "model.ckpt-20.manifest.json"
    manifest = {key: value for key, value in json.loads(path.read_text()).items() if key != "sha256"} | change
    path.write_text(json.dumps(manifest | {"sha256": _digest(manifest)}))
    with pytest.raises(UserError, match="is not the manifest of a checkpoint"):
        two.read(20)


def test_the_manifest_of_another_checkpoint_is_refused(two):
    (two.directory / "model.ckpt-30.manifest.json").write_bytes(
        (two.directory / "model.ckpt-20.manifest.json").read_bytes()
    )
    with pytest.raises(UserError, match=r"model\.ckpt-30\.manifest\.json is the manifest of model\.ckpt-20"):
        two.read(30)


# Other names


def test_names_are_ordered_by_all_their_numbers(tmp_path):
    files = CheckpointFiles(tmp_path, r"a\.b_epoch(\d+)(?:_step(\d+))?_end")
    unordered = ["a.b_epoch10_end", "a.b_epoch2_step25_end", "a.b_epoch2_end", "a.b_epoch2_step300_end"]
    for name in unordered:
        files.save(name, 0, writer(name, [".pt"]), {})
    (tmp_path / "axb_epoch3_end.manifest.json").touch()
    assert files.names() == ["a.b_epoch2_end", "a.b_epoch2_step25_end", "a.b_epoch2_step300_end", "a.b_epoch10_end"]
    assert files.age("a.b_epoch2_step25_end") == (2, 25) and files.age("a.b_epoch10_end") == (10, 0)


# Errors while saving


def failing(error):
    def write_files(prefix):
        writer("half", [".index"])(prefix)
        raise error

    return write_files


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), UserError),
        (OSError(errno.EIO, "I/O error"), OSError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
@pytest.mark.parametrize("step", [20, 30])
def test_errors_in_write_files_change_nothing(two, error, expected, step):
    before = names(two.directory)
    with pytest.raises(expected):
        two.save(step, failing(error), {})
    assert names(two.directory) == before
    assert contents(two.newest_valid()) == "weights 20"


@pytest.mark.parametrize("step", [20, 30])
def test_errors_while_publishing_roll_back(two, step, monkeypatch):
    replace = os.replace

    def replace_until_the_manifest(source, target):
        if Path(target).name == f"model.ckpt-{step}.manifest.json" and Path(source).parent != two.directory:
            raise OSError(errno.EIO, "I/O error")
        replace(source, target)

    monkeypatch.setattr("runkit.store.os.replace", replace_until_the_manifest)
    with pytest.raises(OSError, match="I/O error"):
        two.save(step, writer("new"), {})
    assert contents(two.newest_valid()) == "weights 20"
    monkeypatch.undo()
    two.save(step, writer("new"), {})
    assert contents(two.newest_valid()) == "new"
    assert names(two.directory) == files_of(*([10, 20] if step == 20 else [20, 30]))


def test_what_cannot_be_stored_is_refused(two):
    before = names(two.directory)
    with pytest.raises(TypeError, match="not JSON serializable"):
        two.save(30, writer("a"), {"rng": {1}})
    with pytest.raises(ValueError, match="wrote no file"):
        two.save(30, lambda prefix: None, {})
    for suffix in ("0.index", ".manifest.json"):
        with pytest.raises(ValueError, match="only files"):
            two.save(30, writer("a", [suffix]), {})
    with pytest.raises(ValueError, match="negative"):
        two.save(-1, writer("a"), {})
    with pytest.raises(ValueError, match="keep"):
        CheckpointStore(two.directory, keep=0)
    assert names(two.directory) == before


@pytest.mark.parametrize("links", [True, False])
def test_the_same_step_saved_again(two, monkeypatch, links):
    def no_link(source, target):
        raise OSError(errno.EPERM, "no hard links here")

    if not links:
        monkeypatch.setattr(os, "link", no_link)
    two.save(20, writer("again", [".index"]), {"second": True})
    assert two.steps() == [10, 20]
    checkpoint = two.newest_valid()
    assert (contents(checkpoint), checkpoint.state) == ("again", {"second": True})
    assert checkpoint.prefix == str(two.directory / "model.ckpt-20")
    expected = set(files_of(10, 20)) - {"model.ckpt-20.data-00000-of-00001"}
    assert set(names(two.directory)) == expected


def test_a_damaged_step_saved_again(two):
    damage(two.directory / "model.ckpt-20.index")
    two.save(20, writer("again"), {})
    assert contents(two.newest_valid()) == "again"
    assert names(two.directory) == files_of(10, 20)


def test_everything_is_on_disk_before_the_manifest_has_its_name(tmp_path, monkeypatch):
    """Power loss: contents are synced before files get names, and these before the manifest gets its own."""
    events = []
    fsync, replace = os.fsync, os.replace

    def recording_fsync(descriptor):
        events.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def recording_replace(source, target):
        events.append(("move", str(source), str(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "replace", recording_replace)
    CheckpointStore(tmp_path).save(1, writer("a"), {})
    moves = {
        Path(event[2]).name: (number, event[1])
        for number, event in enumerate(events)
        if event[0] == "move" and Path(event[2]).parent == tmp_path
    }
    published, _ = moves["model.ckpt-1.manifest.json"]
    for name in ("model.ckpt-1.index", "model.ckpt-1.data-00000-of-00001"):
        moved, source = moves[name]
        assert events.index(("sync", source)) < moved < published
        assert ("sync", str(tmp_path)) in events[moved:published]
    assert ("sync", str(tmp_path)) in events[published : moves["checkpoint"][0]]


def test_leftovers_of_killed_saves_go_before_the_next_is_written(two):
    """A checkpoint may be gigabytes: the space is needed at once."""
    before = names(two.directory)
    for leftover in (".model.ckpt-30.0a1b2c3d.tmp", ".model.ckpt-5.ffffffff.tmp"):
        (two.directory / leftover).mkdir()
        (two.directory / leftover / "model.ckpt-30.index").touch()
    (two.directory / ".checkpoint.0a1b2c3d.tmp").touch()
    (two.directory / ".model.ckpt-20.replaced.index").touch()
    assert two.newest_valid().step == 20

    def write_files(prefix):
        assert set(names(two.directory)) == {*before, Path(prefix).parent.name}
        writer("new")(prefix)

    two.save(30, write_files, {})
    assert names(two.directory) == files_of(20, 30)


def test_a_small_disk_that_fills(tmp_path):
    with small_disk(tmp_path / "disk", 200) as folder:
        store = CheckpointStore(folder / "run")
        store.save(1, writer("a" * 1000), {})
        before = names(store.directory)
        with pytest.raises(UserError, match=r"run/model\.ckpt-2: No space left on device; free some.*as they were"):
            store.save(2, writer("b" * 4000), {})
        assert names(store.directory) == before
        assert contents(store.newest_valid()) == "a" * 1000
        (folder / "other").mkdir()
        with read_only(folder), pytest.raises(UserError, match=r"model\.ckpt-2: Read-only file system; have .*mounted"):
            store.save(2, writer("b"), {})
        with read_only(folder), pytest.raises(UserError, match=r"new/model\.ckpt-0: Read-only file system"):
            CheckpointStore(folder / "new").save(0, writer("b"), {})
        store.save(2, writer("b"), {})
        assert names(store.directory) == files_of(2)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(two):
    two.directory.chmod(0o500)
    try:
        with pytest.raises(UserError, match=r"model\.ckpt-30: Permission denied; make the folder writable"):
            two.save(30, writer("b"), {})
        assert contents(two.newest_valid()) == "weights 20"
    finally:
        two.directory.chmod(0o700)


# Kills

CRASH_POINTS = """
import json, os, shutil, sys
from pathlib import Path
from runkit.store import CheckpointStore
from tests.runkit.crash_points import DONE, KILLED, interrupted

os.fsync = lambda descriptor: None  # a kill, unlike a power loss, does not ask for it
root = Path(sys.argv[1])

def writer(text, suffixes=(".index", ".data")):
    def write_files(prefix):
        for suffix in suffixes:
            with open(prefix + suffix, "w") as stream:
                stream.write(text)
    return write_files

def save_killed_at(store, step, text, number):
    return interrupted(lambda: store.save(step, writer(text), {"text": text}), number) == KILLED

def loaded(store):
    checkpoint = store.newest_valid()
    if checkpoint is None:
        return None
    texts = {Path(checkpoint.prefix + suffix).read_text() for suffix in (".index", ".data")}
    assert texts == {checkpoint.state["text"]}, texts
    return checkpoint.step, texts.pop()

def check(keep, saved, step, points_of_second):
    before = root / f"before-{keep}-{step}"
    for old in saved:
        write_files = writer(f"old {old}", [".index", ".data", ".extra"])
        CheckpointStore(before, keep=keep).save(old, write_files, {"text": f"old {old}"})
    old = loaded(CheckpointStore(before))
    number, total = 0, 0
    died = True
    while died:
        number += 1
        folder = root / "run"
        shutil.rmtree(folder, ignore_errors=True)
        if before.exists():
            shutil.copytree(before, folder)
        store = CheckpointStore(folder, keep=keep)
        died = save_killed_at(store, step, "new", number)
        assert loaded(store) in (old, (step, "new")), (number, loaded(store))
        assert died or loaded(store) == (step, "new")
        total += 1
        first = loaded(store)
        for second in points_of_second(number):
            if not save_killed_at(store, step, "newer", second):
                break
            assert loaded(store) in (first, (step, "newer")), (number, second, loaded(store))
            first = loaded(store)
            total += 1
        store.save(step + 1, writer("last"), {"text": "last"})
        assert loaded(store) == (step + 1, "last")
        kept = sorted({*saved, step, step + 1} & {*store.steps()})[-keep:]
        assert store.steps() == kept, (number, store.steps())
        manifests = [f"model.ckpt-{s}.manifest.json" for s in kept]
        listed = [file for name in manifests for file in json.loads((folder / name).read_text())["files"]]
        found = sorted(os.listdir(folder))
        assert found == sorted({"checkpoint", *manifests, *listed}), (number, found)
    return total

none = lambda number: ()
some = lambda number: range(1 + number % 3, 60, 3)
print(check(1, [], 1, none), check(1, [1], 2, none), check(2, [1, 2], 3, none), check(1, [1], 1, none),
      check(2, [1, 2], 2, some))
"""


def test_kill_at_every_change_of_the_disk(tmp_path):
    """Dies before each single file operation of a save, first ever, next, same step again, twice in a row."""
    counts = run_script(CRASH_POINTS, tmp_path)
    assert min(counts) > 10, counts


def run_script(script, *arguments):
    """The whole numbers that a script prints. In a process of its own, which has one thread and can fork."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    return [int(count) for count in child.stdout.split()]


REFUSALS = (
    CRASH_POINTS[: CRASH_POINTS.index("def check(")]
    + """
def check(code, for_good, saved, step):
    before = root / f"before-{step}-{len(saved)}"
    for old in saved:
        CheckpointStore(before, keep=2).save(old, writer(f"old {old}"), {"text": f"old {old}"})
    old = loaded(CheckpointStore(before))
    number, outcome = 0, None
    while outcome != DONE:
        number += 1
        folder = root / "run"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(before, folder)
        store = CheckpointStore(folder, keep=2)
        save = lambda: store.save(step, writer("new"), {"text": "new"})
        outcome = interrupted(save, number, code, for_good)
        assert loaded(store) in (old, (step, "new")), (number, loaded(store))
        store.save(step + 1, writer("last"), {"text": "last"})
        assert loaded(store) == (step + 1, "last")
        manifests = [f"model.ckpt-{s}.manifest.json" for s in store.steps()]
        listed = [file for name in manifests for file in json.loads((folder / name).read_text())["files"]]
        assert sorted(os.listdir(folder)) == sorted({"checkpoint", *manifests, *listed}), number
    return number

code = int(sys.argv[2])
print(*(check(code, for_good, saved, step)
        for for_good in (False, True) for saved, step in (([1], 2), ([1, 2], 3), ([1, 2], 2))))
"""
)


@pytest.mark.parametrize("code", ["ENOSPC", "EDQUOT", "EROFS", "EACCES"])
def test_the_disk_refuses_at_every_change(tmp_path, code):
    """Full, over quota, remounted read-only, no permission: once or from there on; told, and nothing old is lost."""
    counts = run_script(REFUSALS, tmp_path, getattr(errno, code))
    assert min(counts) > 10, counts


SAVE_FOR_EVER = """
import os, sys
from pathlib import Path
from runkit.store import CheckpointStore

def writer(step):
    def write_files(prefix):
        for suffix, size in ((".index", 1000), (".data", 300000)):
            with open(prefix + suffix, "wb", buffering=0) as stream:
                for _ in range(10):
                    stream.write(step.to_bytes(8, "little") * (size // 80))
    return write_files

store = CheckpointStore(sys.argv[1])
newest = store.newest_valid()
step = newest.step if newest else 0
while True:
    step += 1
    store.save(step, writer(step), {"step": step})
    print(step, flush=True)
"""


def test_sigkill_at_random_moments(tmp_path):
    rng = random.Random(0)
    store = CheckpointStore(tmp_path)
    saved = 0
    for _ in range(15):
        child = subprocess.Popen(
            [sys.executable, "-c", SAVE_FOR_EVER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        reported = [child.stdout.readline()]
        time.sleep(rng.uniform(0, 0.05))
        child.send_signal(signal.SIGKILL)
        reported += child.communicate()[0].splitlines()
        assert child.returncode == -signal.SIGKILL
        with warnings.catch_warnings(action="error"):
            checkpoint = store.newest_valid()
        last = int(reported[-1])
        assert saved < last <= checkpoint.step <= last + 1
        assert Path(checkpoint.prefix + ".data").read_bytes() == checkpoint.step.to_bytes(8, "little") * 37500
        assert checkpoint.state == {"step": checkpoint.step}
        saved = checkpoint.step
