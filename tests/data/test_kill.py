"""kill -9 at random points of every stage, then the same command again: the bytes of an undisturbed run, nothing else.

KILLS=100 python -m pytest tests/data/test_kill.py -m "" kills each stage so often (default: 2) and prints the counts.
A point is the n-th action on the folder (tests/data/kill_hook.py), half of the time a moment after it, to hit the
middle of writing; one run of three is killed twice. KILL_SEED (default: 0) draws other points.
"""

import gzip
import hashlib
import os
import random
import runpy
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.make_wiki_dump import write_dump
from bert_tf import create_pretraining_data
from bert_tf.tokenization import SPECIAL_TOKENS
from data import books, datasets, pubmed, sharding, text, vocabulary, wikipedia

ROOT = Path(__file__).resolve().parents[2]
HOOK = Path(__file__).with_name("kill_hook.py")
KILLS = int(os.environ.get("KILLS", "2"))
SEED = os.environ.get("KILL_SEED", "0")
DATE = "20250101"
PUBMED_FILE = "<PubmedArticleSet>{}</PubmedArticleSet>"
ABSTRACT = (
    "<PubmedArticle><MedlineCitation><Article><Abstract><AbstractText>{}</AbstractText></Abstract></Article>"
    "</MedlineCitation></PubmedArticle>"
)


def prose(n_sentences: int, seed: str) -> list[str]:
    rng = random.Random(seed)
    words = "the a old mill river boat stone light rope salt north men came stood saw by under and".split()
    return [" ".join(rng.choices(words, k=rng.randint(4, 12))).capitalize() + "." for _ in range(n_sentences)]


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """What the stages read: a mirror of the servers, texts, shards and a vocabulary."""
    folder = tmp_path_factory.mktemp("inputs")
    mirror = folder / "mirror"
    write_dump(folder / "dump.xml.bz2", 120_000, multistream=True)
    dump = f"enwiki-{DATE}-pages-articles-multistream.xml.bz2"
    put(mirror / "enwiki" / DATE / dump, (folder / "dump.xml.bz2").read_bytes())
    sha1 = hashlib.sha1((folder / "dump.xml.bz2").read_bytes()).hexdigest()
    put(mirror / "enwiki" / DATE / f"enwiki-{DATE}-sha1sums.txt", f"{sha1}  {dump}\n".encode())
    for i in range(4):
        articles = "".join(ABSTRACT.format(" ".join(prose(4, f"{i} {j}"))) for j in range(20))
        packed = gzip.compress(PUBMED_FILE.format(articles).encode(), mtime=0)
        put(mirror / "pubmed" / "baseline" / f"pubmed25n000{i}.xml.gz", packed)
        md5 = hashlib.md5(packed).hexdigest()
        put(mirror / "pubmed" / "baseline" / f"pubmed25n000{i}.xml.gz.md5", f"MD5 = {md5}\n".encode())
        put(folder / "books" / f"{i}.txt", "\n".join(prose(120, f"book {i}")).encode())
        put(folder / "texts" / f"{i}.txt", "\n\n".join("\n".join(prose(5, f"{i} {j}")) for j in range(20)).encode())
        documents = ("\n".join(prose(6, f"shard {i} {j}")) + "\n\n" for j in range(20))
        put(folder / "shards" / f"d_training_{i}.txt", "".join(documents).encode())
        put(folder / "texts" / f"{i}.jsonl", f'{{"text": "{" ".join(prose(9, str(i)))}"}}\n'.encode())
    formatted = (" ".join(prose(10, f"document {j}")) + "\n\n" for j in range(60))
    put(folder / "formatted.txt", "".join(formatted).encode())
    words = sorted({word.strip(".").lower() for sentence in prose(99, "vocabulary") for word in sentence.split()})
    put(folder / "vocab.txt", "\n".join([*SPECIAL_TOKENS, ".", *words]).encode())
    archive = mirror / "ncbi-nlp" / "BLUE_Benchmark" / "releases" / "download" / "0.1" / "bert_data.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for place in ("ChemProt/train", "ChemProt/dev", "ChemProt/test"):
            packed.writestr(f"bert_data/{place}.tsv", "\n".join(prose(50, place)))
    with zipfile.ZipFile(folder / "books.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted((folder / "books").iterdir()):
            packed.writestr(f"top/{path.name}", path.read_bytes())
    return folder


# The stages: main and command line, which stands in the folder that it writes to.
STAGES: dict[str, Callable[[Path], tuple[Callable, list]]] = {
    "download": lambda i: (
        datasets.main,
        ["fetch", "wikicorpus_en", "pubmed_baseline", "chemprot", "--data_dir=.", f"--mirror={i / 'mirror'}"]
        + [f"--dump_date={DATE}"],
    ),
    "extraction": lambda i: (wikipedia.main, [f"{i / 'dump.xml.bz2'}", "--output=out.txt", "--n_processes=1"]),
    "books": lambda i: (books.main, [f"{i / 'books.zip'}", "--output=out.txt", "--n_processes=1"]),
    "pubmed": lambda i: (
        pubmed.main,
        [f"{i / 'mirror' / 'pubmed' / 'baseline'}", "--output=out.txt", "--n_processes=1"],
    ),
    "text and JSONL": lambda i: (text.main, [f"{i / 'texts'}", "--name=d", "--output_dir=.", "--n_processes=1"]),
    "vocabulary": lambda i: (
        vocabulary.main,
        [f"--input_files={i / 'formatted.txt'}", "--output=vocab.txt", "--vocab_size=100"],
    ),
    "sharding": lambda i: (
        sharding.main,
        [f"--input_files={i / 'formatted.txt'}", "--output_dir=.", "--dataset=d", "--n_processes=1"]
        + ["--n_training_shards=4", "--n_test_shards=2"],
    ),
    "records": lambda i: (
        create_pretraining_data.main,
        [f"--input_file={i / 'shards'}", f"--vocab_file={i / 'vocab.txt'}", "--output_dir=out", "--n_processes=1"]
        + ["--dupe_factor=2", "--max_seq_length=32"],
    ),
    "records dealt": lambda i: (
        create_pretraining_data.main,
        [f"--input_file={i / 'shards'}", f"--vocab_file={i / 'vocab.txt'}", "--output_file=a,b", "--n_processes=1"]
        + ["--dupe_factor=2", "--max_seq_length=32"],
    ),
}


def by_fork(main: Callable, arguments: list[str]) -> Callable[[Path, dict[str, str]], int]:
    """Runs a main in a copy of this process, which has imported all that it needs; returns its exit status."""

    def run(folder: Path, variables: dict[str, str]) -> int:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.setsid()  # a group of its own to kill
                os.chdir(folder)
                output = os.open(os.devnull, os.O_WRONLY)
                os.dup2(output, 1)
                if KILLS > 2 or variables["KILL_AT"] != "0":
                    os.dup2(output, 2)
                os.environ.update(variables, NLTK_DATA="none")
                sys.argv = ["main", *arguments]
                sharding.PART_BYTES = 5000
                runpy.run_path(str(HOOK))["install"]()
                main()
                status = 0
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    return run


def by_command(words: list, hook: Path, **settings: str) -> Callable[[Path, dict[str, str]], int]:
    """Runs a command whose Python processes all load the hook; returns its exit status."""
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(f"import runpy\nrunpy.run_path({str(HOOK)!r})['install']()\n")

    def run(folder: Path, variables: dict[str, str]) -> int:
        environment = os.environ | variables | {"PYTHONPATH": os.pathsep.join([str(hook), str(ROOT)])}
        environment |= {"NLTK_DATA": "none", "BERT_PREP_WORKING_DIR": str(folder), **settings}
        process = subprocess.Popen(
            list(map(str, words)), cwd=folder, env=environment, stdout=subprocess.DEVNULL, start_new_session=True,
            stderr=None if variables["KILL_AT"] == "0" else subprocess.DEVNULL,
        )  # fmt: skip
        return process.wait()

    return run


def tree(folder: Path) -> dict[str, bytes | None]:
    """All files, hidden ones too, with their contents, and all folders."""
    return {
        path.relative_to(folder).as_posix(): None if path.is_dir() else path.read_bytes() for path in folder.rglob("*")
    }


def kill_often(name: str, run: Callable[[Path, dict[str, str]], int], work: Path) -> None:
    """KILLS times: kill, repeat, compare."""
    work = Path(os.path.realpath(work))
    counter, counts = work / "counter", Counter()
    whole = work / "whole"

    def go(folder: Path, at: int, delay: float) -> int:
        counter.unlink(missing_ok=True)
        variables = {"KILL_FOLDER": str(folder), "KILL_COUNTER": str(counter)}
        return run(folder, variables | {"KILL_AT": str(at), "KILL_DELAY": f"{delay:.6f}" if delay else "0"})

    whole.mkdir()
    start = time.monotonic()
    assert go(whole, 0, 0) == 0
    seconds, n_actions = time.monotonic() - start, counter.stat().st_size
    expected = tree(whole)
    assert n_actions > 3 and expected
    for number in range(KILLS):
        rng = random.Random(f"{SEED} {name} {number}")
        folder = work / "killed"
        folder.mkdir()
        for _ in range(rng.choice((1, 1, 2))):
            delay = 0.0 if rng.random() < 0.5 else rng.uniform(0, 2 * seconds / n_actions)
            status = go(folder, rng.randint(1, n_actions), delay)
            assert status in (0, -signal.SIGKILL)
            counts["kills" if status else "ended before the kill"] += 1
            counts["kills that left a temporary"] += bool(status and any(".tmp" in path for path in tree(folder)))
        assert go(folder, 0, 0) == 0
        found = tree(folder)
        assert sorted(found) == sorted(expected), number
        assert found == expected, number
        counts["repeated runs equal to the undisturbed one"] += 1
        shutil.rmtree(folder)
    print(f"\n{name}: {n_actions} actions; " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))


@pytest.mark.parametrize("stage", STAGES)
def test_stage(stage: str, inputs: Path, tmp_path: Path):
    kill_often(stage, by_fork(*STAGES[stage](inputs)), tmp_path)


MODULES = {
    "extraction": "data.wikipedia",
    "text and JSONL": "data.text",
    "sharding": "data.sharding",
    "records": "bert_tf.create_pretraining_data",
}


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("stage", MODULES)
def test_stage_by_two_processes(stage: str, inputs: Path, tmp_path: Path):
    _, arguments = STAGES[stage](inputs)
    arguments = [word for word in arguments if word != "--n_processes=1"]
    words = [sys.executable, "-m", MODULES[stage], *arguments, "--n_processes=2"]
    kill_often(f"{stage}, 2 processes", by_command(words, tmp_path / "hook"), tmp_path)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("corpus", ["text", "wiki_only", "books", "pubmed"])
def test_launcher(corpus: str, inputs: Path, tmp_path: Path):
    words = ["bash", ROOT / "data" / "create_datasets_from_start.sh", corpus]
    words += [inputs / "texts", "mine"] if corpus == "text" else []
    settings = {
        "BERT_PYTHON": sys.executable,
        "N_PROCESSES": "1",
        "SEQ_LENGTHS": "32:5",
        "VOCAB_SIZE": "100",
        "MIRROR": str(inputs / "mirror"),
        "DUMP_DATE": DATE,
        "BOOKS": str(inputs / "books"),
    }
    if corpus != "text":
        settings["VOCAB_FILE"] = str(inputs / "vocab.txt")
    kill_often(f"launcher, {corpus}", by_command(words, tmp_path / "hook", **settings), tmp_path)
