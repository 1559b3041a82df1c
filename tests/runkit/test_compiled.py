"""runkit.compiled: libraries that are whole or absent, and known by all that they depend on."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runkit import compiled
from runkit.compiled import CompileError, build_folder, compiled_library

ROOT = Path(__file__).resolve().parents[2]
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
SOURCE = '#include "three.h"\nextern "C" int three() { return THREE; }\n'


@pytest.fixture
def sources(tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "a.cc").write_text(SOURCE, encoding="utf-8")
    (folder / "three.h").write_text("#define THREE 3\n", encoding="utf-8")
    return folder


def build(sources, folder, options=("-fPIC",)):
    return compiled_library(folder, "three", {sources / "a.cc": options}, [sources / "three.h"])


@needs_compiler
def test_built_once_and_nothing_is_left_beside_it(sources, tmp_path):
    folder = tmp_path / "built"
    folder.mkdir()
    path = build(sources, folder)
    assert ctypes.CDLL(str(path)).three() == 3 and list(folder.iterdir()) == [path]
    time = path.stat().st_mtime_ns
    assert build(sources, folder) == path and path.stat().st_mtime_ns == time


@needs_compiler
def test_built_anew_for_other_headers_options_and_processors(sources, tmp_path, monkeypatch):
    paths = [build(sources, tmp_path), build(sources, tmp_path, ("-fPIC", "-O1"))]
    monkeypatch.setattr(compiled, "_processor", lambda: "another")
    paths.append(build(sources, tmp_path))
    (sources / "three.h").write_text("#define THREE 4\n", encoding="utf-8")
    paths.append(build(sources, tmp_path))
    assert len(set(paths)) == 4 and ctypes.CDLL(str(paths[-1])).three() == 4


@needs_compiler
def test_several_processes_at_once(sources, tmp_path):
    folder = tmp_path / "built"
    folder.mkdir()
    script = (
        f"import ctypes, sys; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path; "
        "from runkit.compiled import compiled_library; "
        f"sources, folder = Path({str(sources)!r}), Path({str(folder)!r}); "
        "path = compiled_library(folder, 'three', {sources / 'a.cc': ['-fPIC']}, [sources / 'three.h']); "
        "sys.exit(ctypes.CDLL(str(path)).three() != 3)"
    )
    processes = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert len(list(folder.iterdir())) == 1


@needs_compiler
def test_an_error_in_the_source_leaves_nothing(sources, tmp_path):
    folder = tmp_path / "built"
    folder.mkdir()
    (sources / "a.cc").write_text("int three() { return four; }\n", encoding="utf-8")
    with pytest.raises(CompileError, match=r"a\.cc"):
        build(sources, folder)
    assert list(folder.iterdir()) == []


def test_no_compiler(sources, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompileError, match="no-such-compiler"):
        build(sources, tmp_path)


def test_the_users_cache_where_the_tree_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "tree").write_text("no folder", encoding="utf-8")
    monkeypatch.setattr(compiled, "TREE", tmp_path / "tree")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert build_folder("recipe") == tmp_path / "cache" / "recipe"
    (tmp_path / "cache" / "recipe").rmdir()
    (tmp_path / "cache" / "recipe").write_text("no folder", encoding="utf-8")
    with pytest.raises(CompileError, match="can be written"):
        build_folder("recipe")
