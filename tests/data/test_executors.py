"""The same bytes from processes, a dask cluster and an MPI job; the last two where their libraries are installed."""

import argparse
import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.make_wiki_dump import write_dump
from bert_tf import create_pretraining_data
from bert_tf.tokenization import SPECIAL_TOKENS
from data import books, embedded, executors, pubmed, sharding, text, wikipedia
from data.executors import advance, open_workers
from data.parallel import completed_map, ordered_map
from runkit.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = ["The old mill stood by the river.", "Boats came from the north.", "Men had rope and salt.", "It is light."]
# mpirun of Open MPI: as root in a container, and on fewer cores than ranks.
MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
}

with_dask = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="dask is not installed: bash scripts/setup.sh data"
)
with_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or shutil.which("mpirun") is None,
    reason="mpi4py or mpirun is not installed: bash scripts/setup.sh data, and an MPI library of the system",
)


def third(x: int) -> float:
    advance(1)
    return x / 3


def refuse(x: int) -> int:
    if x == 2:
        raise UserError("two is too many")
    return x


@pytest.fixture(scope="module")
def cluster():
    """The address of a dask cluster with two workers."""
    from distributed import LocalCluster

    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as found:
        yield found.scheduler_address


def run_both_stages(folder: Path, flags: list[str], launcher: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Shards and records of a small text made by the commands; returns the contents of all files."""
    folder.mkdir()
    formatted, vocab = folder.parent / "in.txt", folder.parent / "vocab.txt"
    documents = [" ".join(SENTENCES[(i + j) % 4] for j in range(2 + i % 9)) + f" It is {i}." for i in range(60)]
    formatted.write_text("".join(document + "\n\n" for document in documents), encoding="utf-8")
    words = sorted({word for sentence in SENTENCES for word in sentence.lower().strip(".").split()})
    vocab.write_text("\n".join([*SPECIAL_TOKENS, ".", *words, *"0123456789"]), encoding="utf-8")
    shard = ["data.sharding", f"--input_files={formatted}", f"--output_dir={folder}", "--dataset=d"]
    shard += ["--n_training_shards=4", "--n_test_shards=2"]
    record = ["bert_tf.create_pretraining_data", f"--vocab_file={vocab}", f"--input_file={folder}/d/training"]
    record += [f"--output_dir={folder}/records", "--dupe_factor=2", "--max_seq_length=32"]
    for command in (shard, record):
        subprocess.run(
            [*launcher, sys.executable, "-m", *command, *flags],
            cwd=ROOT, env=os.environ | MPI_ENVIRONMENT, check=True, timeout=120,
        )  # fmt: skip
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}
    assert len(contents) == 4 + 2 + 1 + 4 + 1
    return contents


def run_formatting(folder: Path, flags: list[str], launcher: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Formatted text of all kinds made by the commands, from files named relative to where they are called; returns
    the contents of all files."""
    books, baseline = folder / "books", folder / "baseline"
    for path in (books, baseline):
        path.mkdir(parents=True)
    for i in range(6):
        lines = [f"Chapter {i}", "", *(f"{SENTENCES[(i + j) % 4]} It is {i}." for j in range(8)), ""]
        (books / f"{i}.txt").write_text("\n".join(lines), encoding="utf-8")
        abstract = f"<Abstract><AbstractText>{' '.join(SENTENCES)} {i}</AbstractText></Abstract>"
        article = f"<PubmedArticle><MedlineCitation><Article>{abstract}</Article></MedlineCitation></PubmedArticle>"
        (baseline / f"{i}.xml").write_text(f"<PubmedArticleSet>{article}</PubmedArticleSet>", encoding="utf-8")
    (books / "broken.txt").write_bytes(b"\xff\xfe no text")
    (books / "records.jsonl").write_text('{"text": "One record."}\n', encoding="utf-8")
    write_dump(folder / "dump.xml.bz2", 30_000, multistream=True)
    commands = [
        ["data.books", "books", "--output=out/books.txt"],
        ["data.pubmed", "baseline", "--output=out/pubmed.txt"],
        ["data.text", "books", "--encoding=latin-1", "--name=d", "--output_dir=out"],
        ["data.wikipedia", f"{folder}/dump.xml.bz2", f"--output={folder}/out/wiki.txt"],
    ]
    environment = os.environ | MPI_ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    for command in commands:
        subprocess.run(
            [*launcher, sys.executable, "-m", *command, *flags], cwd=folder, env=environment, check=True, timeout=120
        )
    contents = {path.name: path.read_bytes() for path in (folder / "out").iterdir()}
    assert len(contents) == 2 * len(commands)
    return contents


def run_all(folder: Path, flags: list[str], launcher: tuple[str, ...] = ()) -> dict[str, bytes]:
    return run_both_stages(folder / "a", flags, launcher) | run_formatting(folder / "b", flags, launcher)


@pytest.fixture(scope="module")
def by_one_process(tmp_path_factory) -> dict[str, bytes]:
    return run_all(tmp_path_factory.mktemp("one"), ["--n_processes=1"])


def test_two_processes(by_one_process, tmp_path):
    assert run_all(tmp_path, ["--n_processes=2"]) == by_one_process


@with_dask
@pytest.mark.dist
def test_dask(by_one_process, cluster, tmp_path):
    assert run_all(tmp_path, ["--executor=dask", f"--scheduler={cluster}"]) == by_one_process


@with_mpi
@pytest.mark.dist
def test_mpi(by_one_process, tmp_path):
    assert run_all(tmp_path, ["--executor=mpi"], ("mpirun", "-np", "2")) == by_one_process


@with_dask
@pytest.mark.dist
def test_embedded_text_on_dask(cluster):
    files = [
        path for path in embedded.source_files([]) if path.name in ("argparse.py", "ast.py", "cmd.py", "topics.py")
    ]
    with open_workers("dask", scheduler=cluster) as workers:
        found = list(embedded.documents(files, workers, lambda: None))
    assert found and found == list(embedded.documents(files, 1, lambda: None))


@with_dask
@pytest.mark.dist
def test_maps_on_dask(cluster):
    with open_workers("dask", scheduler=cluster) as workers:
        assert workers.slots == 2
        assert list(ordered_map(third, range(50), workers)) == [x / 3 for x in range(50)]
        assert sorted(completed_map(third, range(50), workers)) == [(x, x / 3) for x in range(50)]
        with pytest.raises(UserError, match="two is too many"):
            list(ordered_map(refuse, range(5), workers))


@with_dask
def test_no_scheduler_at_the_address(monkeypatch):
    monkeypatch.setattr(executors, "CONNECT_SECONDS", 0.5)
    with (
        pytest.raises(UserError, match=r"--scheduler tcp://127\.0\.0\.1:9: no dask scheduler answers"),
        open_workers("dask", scheduler="tcp://127.0.0.1:9"),
    ):
        pass


@with_mpi
def test_an_mpi_job_of_one_rank_is_refused():
    with pytest.raises(UserError, match="at least two ranks"), open_workers("mpi"):
        pass


# ------------------------------------------------------------------------------------------------------- anywhere


@pytest.mark.parametrize(("executor", "package"), [("dask", "distributed"), ("mpi", "mpi4py")])
def test_a_library_that_is_not_installed_is_named(monkeypatch, executor, package):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with (
        pytest.raises(UserError, match=rf"--executor {executor} needs {package}, .*setup.sh data"),
        open_workers(executor, scheduler="tcp://somewhere:8786" if executor == "dask" else ""),
    ):
        pass


@pytest.mark.parametrize(
    "place", [{"executor": "dask"}, {"scheduler": "tcp://x:1"}, {"executor": "mpi", "scheduler": "x"}]
)
def test_scheduler_and_dask_go_together(place):
    with pytest.raises(UserError, match="go together"), open_workers(**place):
        pass


def test_no_process_is_too_few():
    with pytest.raises(UserError, match="--n_processes=0"), open_workers(n_processes=0):
        pass


def test_flags_are_the_arguments_of_open_workers():
    parser = argparse.ArgumentParser()
    executors.add_flags(parser, n_processes=3)
    assert vars(parser.parse_args([])) == {"n_processes": 3, "executor": "processes", "scheduler": ""}
    with open_workers(**vars(parser.parse_args(["--n_processes=1"]))) as workers:
        assert workers.executor is None


@pytest.mark.parametrize(
    ("main", "flags"),
    [
        (books.main, ["x", "--output=out"]),
        (embedded.main, ["--output=out"]),
        (pubmed.main, ["x", "--output=out"]),
        (text.main, ["x", "--name=d", "--output_dir=out"]),
        (wikipedia.main, ["x", "--output=out"]),
        (sharding.main, ["--input_files=x", "--dataset=d", "--output_dir=out"]),
        (create_pretraining_data.main, ["--input_file=x", "--vocab_file=vocab.txt", "--output_dir=out"]),
    ],
)
def test_a_rank_that_has_served_does_nothing_else(monkeypatch, tmp_path, main, flags):
    """open_workers gives None to the ranks of an MPI job that do not lead."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIAL_TOKENS), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["main", *flags, "--executor=mpi"])
    monkeypatch.setattr(executors, "_mpi", lambda: contextlib.nullcontext(None))
    assert not main()
    assert not (tmp_path / "out").exists()
