import errno
import hashlib
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from runkit import files
from runkit.errors import UserError


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def disk_full():
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_atomic_open_replaces_only_when_the_block_ends(tmp_path):
    path = tmp_path / "new" / "a.txt"
    files.write_json(path, 1)
    with files.atomic_open(path, "w") as stream:
        stream.write("é\n")
        stream.flush()
        assert path.read_bytes() == b"1\n"
        assert [name for name in names(path.parent) if not name.startswith(".")] == ["a.txt"]
    assert path.read_bytes() == "é\n".encode()
    assert names(path.parent) == ["a.txt"]


def test_atomic_open_leaves_the_old_file_on_error(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), files.atomic_open(path) as stream:
        stream.write(b"new")
        1 // 0  # noqa: B018
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_atomic_open_names_the_file_when_the_disk_is_full(tmp_path):
    with pytest.raises(UserError, match=r"a\.bin: No space left"), files.atomic_open(tmp_path / "a.bin"):
        raise disk_full()
    assert names(tmp_path) == []


def test_atomic_open_where_nothing_can_be_made(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match="file"), files.atomic_open(tmp_path / "file" / "a"):
        pass


def test_atomic_open_writes_through_links_and_has_ordinary_permissions(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    with files.atomic_open(tmp_path / "link") as stream:
        stream.write(b"new")
    (tmp_path / "plain").touch()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    assert (tmp_path / "real").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_atomic_open_knows_two_modes(tmp_path):
    with pytest.raises(ValueError, match="mode"), files.atomic_open(tmp_path / "a", "r"):
        pass


def write_tree(folder, text):
    (folder / "sub").mkdir()
    (folder / "sub" / "a").write_text(text, encoding="utf-8")
    (folder / "b").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("can_exchange", [True, False])
def test_atomic_directory_replaces_a_whole_folder(tmp_path, monkeypatch, can_exchange):
    if not can_exchange:
        monkeypatch.setattr(files, "_exchange", lambda a, b: False)
    target = tmp_path / "data"
    for text in ("old", "new"):
        with files.atomic_directory(target) as folder:
            write_tree(folder, text)
            assert not target.exists() or (target / "b").read_text() == "old"
        assert (target / "sub" / "a").read_text() == text
        assert names(tmp_path) == ["data"]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_atomic_directory_leaves_the_old_folder_on_error(tmp_path, error):
    with files.atomic_directory(tmp_path / "data") as folder:
        write_tree(folder, "old")
    with pytest.raises(error), files.atomic_directory(tmp_path / "data") as folder:
        (folder / "half").touch()
        raise error
    assert names(tmp_path) == ["data"]
    assert names(tmp_path / "data") == ["b", "sub"]


def test_atomic_directory_puts_the_old_folder_back_when_the_second_rename_fails(tmp_path, monkeypatch):
    with files.atomic_directory(tmp_path / "data") as folder:
        write_tree(folder, "old")
    rename = os.rename

    def failing(source, target):
        if pathlib.Path(source).suffix == ".tmp":
            raise OSError(errno.EIO, "broken")
        rename(source, target)

    monkeypatch.setattr(files, "_exchange", lambda a, b: False)
    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OSError, match="broken"), files.atomic_directory(tmp_path / "data"):
        pass
    assert names(tmp_path) == ["data"]
    assert (tmp_path / "data" / "b").read_text() == "old"


def test_atomic_directory_refuses_a_file(tmp_path):
    (tmp_path / "data").touch()
    with pytest.raises(UserError, match="a file has that name"), files.atomic_directory(tmp_path / "data"):
        pass


def test_atomic_directory_killed_leaves_the_old_folder(tmp_path):
    with files.atomic_directory(tmp_path / "data") as folder:
        write_tree(folder, "old")
    code = (
        "import os, signal, sys\nfrom runkit.files import atomic_directory\n"
        "with atomic_directory(sys.argv[1]) as folder:\n"
        "    (folder / 'half').touch()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = pathlib.Path(files.__file__).parents[1]
    child = subprocess.run([sys.executable, "-c", code, str(tmp_path / "data")], cwd=root)
    assert child.returncode == -signal.SIGKILL
    assert names(tmp_path / "data") == ["b", "sub"]
    assert all(name == "data" or name.startswith(".") for name in names(tmp_path))


KILLED_WHILE = """
import os, signal, sys
from pathlib import Path
from runkit import files
with getattr(files, sys.argv[1])(sys.argv[2]) as made:
    if isinstance(made, Path):
        (made / "half").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_while(writer, path):
    root = pathlib.Path(files.__file__).parents[1]
    child = subprocess.run([sys.executable, "-c", KILLED_WHILE, writer, str(path)], cwd=root)
    assert child.returncode == -signal.SIGKILL


@pytest.mark.parametrize("writer", ["atomic_open", "atomic_directory", "temporary_directory"])
def test_the_next_writer_removes_what_a_killed_one_left(tmp_path, writer):
    killed_while(writer, tmp_path / "a")
    killed_while(writer, tmp_path / "ab")
    left = names(tmp_path)
    assert len(left) == 2
    with getattr(files, writer)(tmp_path / "a"):
        pass
    ours = [] if writer == "temporary_directory" else ["a"]
    assert names(tmp_path) == sorted([*ours, *(name for name in left if name.startswith(".ab."))]), (
        "of this target only"
    )
    files.remove_abandoned(tmp_path)
    assert names(tmp_path) == ours


@pytest.mark.parametrize("writer", ["atomic_open", "atomic_directory", "temporary_directory"])
def test_what_a_living_writer_is_at_stays(tmp_path, writer):
    for mode in ("in this process", "in another"):
        target = tmp_path / mode
        with getattr(files, writer)(target / "a"):
            (at_work,) = names(target)
            if mode == "in another":
                code = "import sys; from runkit import files; files.remove_abandoned(sys.argv[1])"
                root = pathlib.Path(files.__file__).parents[1]
                subprocess.run([sys.executable, "-c", code, str(target)], cwd=root, check=True)
            else:
                with files.atomic_open(target / "a"):
                    pass
                (target / "a").unlink()
            assert names(target) == [at_work]


def test_a_temporary_that_is_seen_before_it_is_locked_is_made_anew(tmp_path, monkeypatch):
    lock, swept = files._lock, []

    def swept_first(descriptor):
        if not swept:
            swept.append(True)
            files.remove_abandoned(tmp_path)
        return lock(descriptor)

    monkeypatch.setattr(files, "_lock", swept_first)
    with files.atomic_open(tmp_path / "a") as stream:
        stream.write(b"x")
    assert swept and names(tmp_path) == ["a"] and (tmp_path / "a").read_bytes() == b"x"


def test_on_a_filesystem_without_locks_nothing_is_taken_for_abandoned(tmp_path, monkeypatch):
    def without(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    (tmp_path / ".a.0123abcd.tmp").touch()
    monkeypatch.setattr(files.fcntl, "flock", without)
    with files.atomic_open(tmp_path / "a"):
        pass
    assert names(tmp_path) == [".a.0123abcd.tmp", "a"]


def test_sha256_file(tmp_path):
    data = bytes(range(256)) * 5000
    (tmp_path / "a").write_bytes(data)
    assert files.sha256_file(tmp_path / "a") == hashlib.sha256(data).hexdigest()


def test_json_round_trip_keeps_order_and_takes_numpy(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, {"z": np.float32(0.5), "a": [np.int64(3), float("inf")], "p": pathlib.Path("x")})
    assert path.read_text().startswith('{\n  "z": 0.5,\n  "a": [\n')
    assert path.read_text().endswith("}\n")
    assert files.read_json(path) == {"z": 0.5, "a": [3, float("inf")], "p": "x"}


def test_write_json_leaves_the_old_file_when_the_object_is_not_json(tmp_path):
    files.write_json(tmp_path / "a.json", 1)
    with pytest.raises(TypeError, match="set"):
        files.write_json(tmp_path / "a.json", {"x": {1}})
    assert files.read_json(tmp_path / "a.json") == 1


@pytest.mark.parametrize(
    ("contents", "message"),
    [(b'{"a": 1,\n "b": }', r"a\.json:2:7: not valid JSON"), (b"", r"a\.json:1:1:"), (b'"\xff"', "byte 1")],
)
def test_read_json_says_where_it_is_broken(tmp_path, contents, message):
    (tmp_path / "a.json").write_bytes(contents)
    with pytest.raises(UserError, match=message):
        files.read_json(tmp_path / "a.json")


def test_missing_files_are_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.json: No such file"):
        files.read_json(tmp_path / "none.json")
    with pytest.raises(UserError, match=r"none\.txt: No such file"):
        list(files.read_lines(tmp_path / "none.txt"))


def test_read_lines(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\ntwo\u2028still two\x85\x0c\r\r\n\n\ufeffkept\nlast".encode())
    assert list(files.read_lines(path)) == ["one", "two\u2028still two\x85\x0c", "", "\ufeffkept", "last"]
    path.write_bytes(b"")
    assert list(files.read_lines(path)) == []


def test_read_lines_names_line_and_byte_of_what_is_not_utf8(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffé\n".encode() + b"caf\xe9 au lait\n")
    with pytest.raises(UserError, match=r"a\.txt:2: not UTF-8 at byte 9 \(0xe9\)"):
        list(files.read_lines(path))
    path.write_bytes("\ufeffab".encode() + b"\xff\n")
    with pytest.raises(UserError, match=r"a\.txt:1: not UTF-8 at byte 5 "):
        list(files.read_lines(path))


def test_text_is_utf8_in_any_locale(tmp_path):
    code = (
        "import sys\nfrom runkit.files import atomic_open, read_lines\n"
        "with atomic_open(sys.argv[1], 'w') as f: f.write('\\u00e9\\u4e2d\\n')\n"
        "assert list(read_lines(sys.argv[1])) == ['\\u00e9\\u4e2d']\n"
    )
    root = pathlib.Path(files.__file__).parents[1]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], cwd=root, env=environment, check=True)
    assert (tmp_path / "a").read_bytes() == "é中\n".encode()
