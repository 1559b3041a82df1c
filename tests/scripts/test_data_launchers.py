"""scripts/data_download.sh, data/create_*datasets_from_start.sh and data/bertPrep.py: words, variables, and a whole
run from a folder in the place of Wikimedia's server."""

import bz2
import gzip
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from data import bertPrep
from data.registry import GROUPS
from runkit.files import read_json

ROOT = Path(__file__).resolve().parents[2]
DOWNLOAD = "scripts/data_download.sh"
CREATE = "data/create_datasets_from_start.sh"
BIOBERT = "data/create_biobert_datasets_from_start.sh"
VARIABLES = """BERT_PREP_WORKING_DIR DATA_DIR STAGES FORMATTED_FILES BOOKS DUMP_DATE MIRROR VOCAB_FILE VOCAB_SIZE
    DO_LOWER_CASE DOCUMENT N_TRAINING_SHARDS N_TEST_SHARDS FRACTION_TEST_SET SEQ_LENGTHS DUPE_FACTOR MASKED_LM_PROB
    WHOLE_WORD_MASK RANDOM_SEED N_PROCESSES EXECUTOR SCHEDULER MPIRUN BERT_PYTHON KEEP_ARCHIVES CASES DRY_RUN""".split()


def clean_environment(**environment: object) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    return kept | {key: str(value) for key, value in environment.items()}


def bash(script: str, *words: str, **environment: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", str(ROOT / script), *words], env=clean_environment(**environment), capture_output=True, text=True
    )


def dry(script: str, *words: str, **environment: object) -> list[list[str]]:
    """The commands of a dry run, from the module on; with mpirun, from there on."""
    result = bash(script, *words, "--dry-run", **({"N_PROCESSES": 3, "DATA_DIR": "/d"} | environment))
    assert result.returncode == 0, result.stderr
    commands = [shlex.split(line) for line in result.stdout.splitlines() if " -m " in line]
    return [line if line[0] == "mpirun" else line[line.index("-m") + 1 :] for line in commands]


def modules(commands: list[list[str]]) -> list[str]:
    return [command[0] for command in commands]


def words_of(commands: list[list[str]]) -> list[str]:
    return [word for command in commands for word in command]


RECORDS = ["bert_tf.create_pretraining_data"] * 2 + ["data.stage"]
BASE = "/d/download/google_pretrained_weights/uncased_L-12_H-768_A-12/vocab.txt"


# ------------------------------------------------------------------------------------------------- create_datasets


def test_every_variable_is_told():
    for script in (DOWNLOAD, CREATE, BIOBERT):
        told = bash(script, "--help")
        assert told.returncode == 0 and "usage:" in told.stdout
        text = (ROOT / script).read_text(encoding="utf-8")
        for variable in set(VARIABLES) - {"DRY_RUN", "DATA_DIR"}:
            if f"${{{variable}:-" in text and (script == CREATE or variable in ("KEEP_ARCHIVES", "CASES", "MIRROR")):
                assert variable in told.stdout, (script, variable)


def test_wikipedia():
    commands = dry(CREATE, "wiki_only", MIRROR="/copy https://x.org/y", DUMP_DATE="20250101")
    assert modules(commands) == ["data.plan", "data.datasets", "data.wikipedia", "data.sharding", *RECORDS, *RECORDS]
    plan, download, extraction, sharding, records = commands[:5]
    servers = "--mirror /copy --mirror https://x.org/y --dump_date 20250101".split()
    assert plan[-5:] == servers[-5:] and plan[-6:] == servers and plan[1] == "wiki_only"
    assert download[1:] == ["fetch", "uncased_L-12_H-768_A-12", "wikicorpus_en", "--data_dir", "/d", *servers]
    text = "/d/formatted_one_article_per_line/wikicorpus_en_one_article_per_line.txt"
    dump = "/d/download/wikicorpus_en/wikicorpus_en.xml.bz2"
    assert extraction[1:] == [dump, "--output", text, "--n_processes", "3"]
    assert (
        sharding[1:3] == ["--input_files", text]
        and "wikicorpus_en" in sharding
        and sharding[-2:] == ["--n_processes", "3"]
    )
    assert records[records.index("--vocab_file") + 1] == BASE and "--max_seq_length=128" in records
    assert "--max_seq_length=512" in commands[7] and "--dupe_factor=1" in commands[8]


def test_wikipedia_and_books():
    commands = dry(CREATE, "wiki_books", BOOKS="/my books", DO_LOWER_CASE=0)
    assert modules(commands)[:5] == ["data.plan", "data.datasets", "data.books", "data.wikipedia", "data.sharding"]
    assert commands[0][-4:] == ["--text", "/my books", "--vocab", "cased_L-12_H-768_A-12"]
    folder = "/d/formatted_one_article_per_line"
    books, wiki = (f"{folder}/{name}_per_line.txt" for name in ("bookscorpus_one_book", "wikicorpus_en_one_article"))
    assert commands[2][1:4] == ["/my books", "--output", books]
    assert commands[4][2] == f"{books},{wiki}" and "books_wiki_en_corpus" in commands[4]
    assert "/d/sharded/books_wiki_en_corpus/training" in commands[5] and "--do_lower_case=0" in commands[5]


def test_books_pubmed_text_embedded():
    assert modules(dry(CREATE, "books", BOOKS="b"))[:4] == ["data.plan", "data.datasets", "data.books", "data.sharding"]
    assert dry(CREATE, "books", BOOKS="b")[1][1:3] == ["fetch", "uncased_L-12_H-768_A-12"]
    commands = dry(CREATE, "pubmed")
    assert modules(commands)[2] == "data.pubmed" and commands[2][1] == "/d/download/pubmed/baseline"
    assert "pubmed_baseline" in commands[1]
    assert modules(dry(CREATE, "embedded"))[:3] == ["data.embedded", "data.vocabulary", "data.sharding"]
    for name in ("mine", "pubmed_baseline", "wikicorpus_en", "embedded"):
        assert modules(dry(CREATE, "text", "p", name))[:3] == ["data.text", "data.vocabulary", "data.sharding"]
    assert dry(CREATE, "embedded", "--plan") == [
        "data.plan embedded --data_dir /d --n_processes 3 --seq_lengths 128:20 512:80 --dupe_factor 5".split()
    ]
    assert dry(CREATE, "text", "p", "mine", "--plan")[0][-4:] == ["--text", "p", "--name", "mine"]


def test_stages_one_by_one():
    assert modules(dry(CREATE, "wiki_only", STAGES="download")) == ["data.plan", "data.datasets"]
    assert modules(dry(CREATE, "wiki_only", STAGES="formatting")) == ["data.wikipedia"]
    assert modules(dry(CREATE, "wiki_only", STAGES="sharding records", SEQ_LENGTHS="64:10")) == [
        "data.sharding",
        *RECORDS,
    ]
    (sharding,) = dry(CREATE, "wiki_only", STAGES="sharding", FORMATTED_FILES="a.txt,b c.txt")
    assert sharding[2] == "a.txt,b c.txt"


def test_executors():
    for executor, words in (
        ({"EXECUTOR": "processes"}, ["--n_processes", "3"]),
        ({"EXECUTOR": "dask", "SCHEDULER": "tcp://h:1"}, ["--executor", "dask", "--scheduler", "tcp://h:1"]),
    ):
        for source in ("wiki_only", "pubmed", "books"):
            stages = {"STAGES": "formatting sharding records", "SEQ_LENGTHS": "64:10", "BOOKS": "b"}
            commands = dry(CREATE, source, **stages, **executor)
            assert [command[-len(words) :] == words for command in commands] == [True] * 4 + [False]
    commands = dry(CREATE, "wiki_only", STAGES="download formatting records", SEQ_LENGTHS="64:10", EXECUTOR="mpi")
    assert [command[:3] == ["mpirun", "-np", "4"] for command in commands] == [False] * 2 + [True] * 3 + [False]
    assert commands[2][-2:] == ["--executor", "mpi"]
    for words in (["embedded"], ["text", "p", "mine"]):
        formatting, vocabulary = dry(CREATE, *words, STAGES="formatting", EXECUTOR="mpi")
        assert formatting[0] == "mpirun" and vocabulary[0] == "data.vocabulary"


def test_the_large_vocabulary_where_it_is(tmp_path):
    folder = tmp_path / "download" / "google_pretrained_weights" / "uncased_L-24_H-1024_A-16"
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("[PAD]\n")
    commands = dry(CREATE, "wiki_only", DATA_DIR=tmp_path)
    assert commands[1][2] == "wikicorpus_en" and str(folder / "vocab.txt") in commands[4]


def test_biobert():
    commands = dry(BIOBERT)
    assert modules(commands) == 2 * ["data.plan", "data.datasets", "data.pubmed", "data.sharding", *RECORDS, *RECORDS]
    records = [" ".join(command) for command in commands if command[0] == RECORDS[0] and "training" in command[2]]
    for case, line in zip([1, 1, 0, 0], records, strict=True):
        assert f"--do_lower_case={case}" in line and f"/{'un' * case}cased_L-12_H-768_A-12/vocab.txt" in line
    assert sum("--max_seq_length=512 --max_predictions_per_seq=80" in line for line in records) == 2
    assert len(dry(BIOBERT, CASES="cased")) == len(commands) / 2
    assert modules(dry(BIOBERT, "--plan")) == ["data.plan", "data.plan"]
    for words, environment, message in (
        (["more"], {}, "cannot make sense of 'more'"),
        ([], {"CASES": "upper"}, "neither uncased nor cased"),
        ([], {"VOCAB_FILE": "v"}, "each their own vocabulary"),
    ):
        result = bash(BIOBERT, *words, **environment)
        assert result.returncode == 1 and message in result.stderr


# --------------------------------------------------------------------------------------------------- data_download


@pytest.mark.parametrize("group", ["squad", "glue", "weights"])
def test_fetched_groups(group):
    (command,) = dry(DOWNLOAD, group, "--no-docker")
    assert command == ["data.datasets", "fetch", group, "--data_dir", "/d"] and (group == "squad" or group in GROUPS)
    (command,) = dry(DOWNLOAD, group, "--plan", "--no-docker", MIRROR="/copy", KEEP_ARCHIVES="true")
    assert command[5:] == ["--plan", "--mirror", "/copy", "--keep_archives"]


def test_made_groups():
    for what, words in (([], "wiki_only"), (["wiki_only"], "wiki_only"), (["wiki_books"], "wiki_books")):
        assert dry(DOWNLOAD, *what, "--no-docker", BOOKS="b") == dry(CREATE, words, BOOKS="b")
    assert dry(DOWNLOAD, "pubmed", "--no-docker") == dry(BIOBERT)
    parts = [dry(DOWNLOAD, part, "--no-docker") for part in ("squad", "glue", "weights", "wiki_only", "pubmed")]
    assert dry(DOWNLOAD, "all", "--no-docker") == [command for part in parts for command in part]
    assert "data.books" in modules(dry(DOWNLOAD, "all", "--no-docker", BOOKS="b"))
    assert modules(dry(DOWNLOAD, "all", "--plan", "--no-docker")) == 3 * ["data.datasets"] + 3 * ["data.plan"]


def test_download_refusals():
    for words, environment, message in (
        (["wiki"], {}, "unknown argument 'wiki'"),
        (["squad", "glue"], {}, "one word is wanted"),
        (["squad"], {"KEEP_ARCHIVES": "1"}, "KEEP_ARCHIVES must be true or false"),
    ):
        result = bash(DOWNLOAD, *words, **environment)
        assert result.returncode == 1 and message in result.stderr


def stub(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)


def test_in_the_container(tmp_path):
    stub(
        tmp_path / "bin",
        "docker",
        '[[ $1 != image ]] || exit "${NO_IMAGE:-0}"; printf "%s\\n" "$@"; exit "${FAILS:-0}"',
    )
    stub(tmp_path / "bin", "nvidia-smi", "exit 1")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    done = bash(DOWNLOAD, "wiki_books", "--plan", PATH=path, BOOKS=tmp_path, DUMP_DATE="20250101")
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    for flag in ("--net=host", "--shm-size=1g", "memlock=-1", "stack=67108864", f"{ROOT}:/workspace/bert", "DUMP_DATE"):
        assert flag in words, flag
    assert f"{tmp_path}:/books:ro" in words and "BOOKS=/books" in words and "--gpus" not in words
    assert words[-6:] == ["bert", "bash", "scripts/data_download.sh", "wiki_books", "--no-docker", "--plan"]
    stub(tmp_path / "bin", "nvidia-smi", "exit 0")
    words = bash(DOWNLOAD, "squad", PATH=path, NVIDIA_VISIBLE_DEVICES="all").stdout.splitlines()
    assert words[words.index("--gpus") + 1] == "all"
    failed = bash(DOWNLOAD, "squad", PATH=path, FAILS=3)
    assert failed.returncode == 1 and "squad failed in the container" in failed.stderr
    without = bash(DOWNLOAD, "squad", "--dry-run", PATH=path, NO_IMAGE=1)
    assert "note: there is no Docker with an image 'bert'" in without.stdout and "data.datasets fetch" in without.stdout


# -------------------------------------------------------------------------------------------------------- bertPrep


def prep(monkeypatch, *words: str, **environment: str) -> tuple[list[str], dict[str, str]]:
    monkeypatch.setattr(os, "environ", clean_environment(**environment))
    monkeypatch.setattr(sys, "argv", ["bertPrep.py", *words])
    return bertPrep.command(bertPrep.parse_arguments())


def test_published_downloads(monkeypatch):
    known = {*GROUPS, *bertPrep.DATASETS} - {"all"}
    for dataset in bertPrep.DATASETS:
        words, _ = prep(monkeypatch, "--action", "download", "--dataset", dataset, BERT_PREP_WORKING_DIR="/w")
        assert words[1:4] == ["-m", "data.datasets", "fetch"] and words[-2:] == ["--data_dir", "/w"]
        assert set(words[4:-2]) <= known
    words, _ = prep(monkeypatch, "--action", "download", "--dataset", "squad", MIRROR="/a /b", DUMP_DATE="20250101")
    assert words[-6:] == ["--mirror", "/a", "--mirror", "/b", "--dump_date", "20250101"]


def test_published_stages(monkeypatch):
    words, variables = prep(monkeypatch, "--action", "sharding", "--dataset", "books_wiki_en_corpus")
    assert words[1:] == [str(ROOT / CREATE), "wiki_books"]
    expected = "STAGES sharding N_TRAINING_SHARDS 1472 N_TEST_SHARDS 1472 FRACTION_TEST_SET 0.1 N_PROCESSES 4"
    expected += " RANDOM_SEED 12345 DUPE_FACTOR 5 MASKED_LM_PROB 0.15 SEQ_LENGTHS 512:20 DO_LOWER_CASE 1"
    pairs = dict(zip(expected.split()[::2], expected.split()[1::2], strict=True))
    assert pairs.items() <= variables.items() and "VOCAB_FILE" not in variables
    flags = "--max_seq_length 128 --dupe_factor 7 --vocab_file v --do_lower_case 0 --n_processes 9".split()
    _, variables = prep(monkeypatch, "--action", "create_tfrecord_files", "--dataset", "pubmed_baseline", *flags)
    assert variables["STAGES"] == "records" and variables["SEQ_LENGTHS"] == "128:20"
    assert [variables[name] for name in ("DUPE_FACTOR", "VOCAB_FILE", "DO_LOWER_CASE", "N_PROCESSES")] == [
        "7",
        "v",
        "0",
        "9",
    ]
    words, variables = prep(monkeypatch, "--action", "sharding", "--dataset", "wikicorpus_en", "--input_files", "a,b")
    assert variables["FORMATTED_FILES"] == "a,b"


def test_published_command_by_its_path(tmp_path):
    def call(*words: str, **environment: str) -> subprocess.CompletedProcess:
        command = [sys.executable, str(ROOT / "data" / "bertPrep.py"), *words]
        return subprocess.run(
            command, cwd=tmp_path, env=clean_environment(**environment), capture_output=True, text=True
        )

    done = call("--action", "text_formatting", "--dataset", "wikicorpus_en", "--skip_wikiextractor", "1", DRY_RUN="1")
    assert done.returncode == 0 and f"{sys.executable} -m data.wikipedia" in done.stdout, done.stderr
    for words, message in (
        (["--action", "sharding"], "--dataset"),
        (["--dataset", "squad"], "--action"),
        (["--action", "sharding", "--dataset", "squad"], "squad is only downloaded"),
        (["--action", "text_formatting", "--dataset", "wikicorpus_zh"], "only downloaded"),
        (["--action", "create_hdf5_files", "--dataset", "wikicorpus_en"], "HDF5 is not written"),
        (["--action", "download", "--dataset", "wikipedia"], "invalid choice"),
        (["--action", "text_formatting", "--dataset", "wikicorpus_en", "--input_files", "a"], "--input_files"),
    ):
        failed = call(*words)
        assert failed.returncode == 2 and message in failed.stderr, failed.stderr
    failed = call("--action", "sharding", "--dataset", "wikicorpus_en", BERT_PREP_WORKING_DIR=str(tmp_path / "none"))
    assert failed.returncode == 1 and "stage 'sharding' failed" in failed.stderr


# ------------------------------------------------------------------------------------------------------- whole runs

NOUNS = "river harbour mountain railway library painter village comet orchard glacier".split()


def dump_xml() -> bytes:
    """Forty articles, a redirect and a talk page."""
    pages = []
    for i in range(40):
        noun = NOUNS[i % len(NOUNS)]
        sentences = (f"It was built by hand in the year {1800 + i + j} or so, with {j} old {noun}s." for j in range(6))
        text = "\n\n".join([f"The '''{noun}''' is in [[town {i}]] and has a bridge.", *sentences])
        pages.append((f"{noun.title()} {i}", 0, text))
    pages += [("Old name", 0, "#REDIRECT [[River 0]]"), ("Talk:River 0", 1, "Discussion only.")]
    body = "".join(
        f"<page><title>{title}</title><ns>{space}</ns><id>{i + 1}</id><revision><id>{i + 1}</id>"
        f'<text xml:space="preserve">{text}</text></revision></page>\n'
        for i, (title, space, text) in enumerate(pages)
    )
    return f"<mediawiki><siteinfo></siteinfo>\n{body}</mediawiki>\n".encode()


@pytest.fixture
def site(tmp_path: Path) -> dict[str, object]:
    """A folder in the place of Wikimedia's server, and the settings of a small run from it."""
    folder = tmp_path / "mirror" / "enwiki" / "20250101"
    folder.mkdir(parents=True)
    name = "enwiki-20250101-pages-articles-multistream.xml.bz2"
    data = bz2.compress(dump_xml())
    (folder / name).write_bytes(data)
    (folder / "enwiki-20250101-sha1sums.txt").write_text(f"{hashlib.sha1(data).hexdigest()}  {name}\n")
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "of",
        "was",
        "built",
        "in",
        "it",
        "has",
        "a",
        ".",
        *NOUNS,
    ]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    return {
        "BERT_PREP_WORKING_DIR": tmp_path / "work",
        "BERT_PYTHON": sys.executable,
        "MIRROR": tmp_path / "mirror",
        "VOCAB_FILE": tmp_path / "vocab.txt",
        "SEQ_LENGTHS": "64:10",
        "N_PROCESSES": 1,
        "NLTK_DATA": tmp_path / "none",
        "TF_CPP_MIN_LOG_LEVEL": 2,
    }


def records(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.tfrecord")}


def test_wikipedia_from_a_mirror_to_records(tmp_path, site):
    planned = bash(DOWNLOAD, "wiki_only", "--plan", "--no-docker", **site)
    assert planned.returncode == 0 and "download wikicorpus_en" in planned.stdout and not (tmp_path / "work").exists()
    done = bash(DOWNLOAD, "wiki_only", "--no-docker", **site)
    assert done.returncode == 0, done.stderr
    text = tmp_path / "work/formatted_one_article_per_line/wikicorpus_en_one_article_per_line.txt"
    lines = text.read_text(encoding="utf-8").splitlines()
    assert (
        len(lines) == 80
        and lines[0].startswith("The river is in town 0 and has a bridge. It was")
        and not any(lines[1::2])
    )
    (manifest,) = (tmp_path / "work/tfrecord").glob("*/wikicorpus_en/training/manifest.json")
    assert read_json(manifest)["records"] > 20 and "_seq_len_64_max_pred_10_" in str(manifest)
    made = records(tmp_path / "work/tfrecord")
    again = bash(CREATE, "wiki_only", **site | {"MIRROR": tmp_path / "gone"})  # all there: no server needed
    assert again.returncode == 0 and again.stdout.count("up to date") >= 3, again.stderr
    assert records(tmp_path / "work/tfrecord") == made
    # The published commands, one after the other, from nothing: the same records.
    shutil.rmtree(tmp_path / "work")
    for action in ("download", "text_formatting", "sharding", "create_tfrecord_files"):
        command = f"--action {action} --dataset wikicorpus_en --n_processes 1 --n_training_shards 0 --n_test_shards 0"
        command += f" --max_seq_length 64 --max_predictions_per_seq 10 --vocab_file {site['VOCAB_FILE']}"
        done = subprocess.run(
            [sys.executable, str(ROOT / "data" / "bertPrep.py"), *command.split()],
            env=clean_environment(**site),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    assert records(tmp_path / "work/tfrecord") == made


def test_wikipedia_and_books_from_a_mirror(tmp_path, site):
    (tmp_path / "books").mkdir()
    for i in range(3):
        text = "\n".join(f"Chapter {j}\n\nThe painter {i} of the village saw the comet.\n" for j in range(5))
        (tmp_path / "books" / f"{i}.txt").write_text(text)
    done = bash(CREATE, "wiki_books", BOOKS=tmp_path / "books", **site)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "work/tfrecord").glob("*/books_wiki_en_corpus/test/manifest.json"))


def test_pubmed_from_a_mirror(tmp_path, site):
    folder = tmp_path / "mirror" / "pubmed" / "baseline"
    folder.mkdir(parents=True)
    for number in (1, 2):
        articles = "".join(
            f"<PubmedArticle><MedlineCitation><PMID>{number}{i}</PMID><Article><Abstract><AbstractText>"
            f"The comet of the village was old in {i}. It was built of a river and a railway. The library has it."
            "</AbstractText></Abstract></Article></MedlineCitation></PubmedArticle>\n"
            for i in range(20)
        )
        name = f"pubmed25n000{number}.xml.gz"
        data = gzip.compress(f"<?xml version='1.0'?>\n<PubmedArticleSet>{articles}</PubmedArticleSet>\n".encode())
        (folder / name).write_bytes(data)
        (folder / f"{name}.md5").write_text(f"MD5({name})= {hashlib.md5(data).hexdigest()}\n")
    done = bash(CREATE, "pubmed", **site)
    assert done.returncode == 0, done.stderr
    text = tmp_path / "work/formatted_one_article_per_line/pubmed_baseline_one_article_per_line.txt"
    assert text.read_text(encoding="utf-8").count("The comet of the village") == 40
    assert list((tmp_path / "work/tfrecord").glob("*/pubmed_baseline/training/manifest.json"))


def test_a_failed_stage_stops_the_rest(tmp_path, site):
    (dump,) = (tmp_path / "mirror").rglob("*.bz2")
    data = dump.read_bytes()
    dump.write_bytes(data[:-10])
    failed = bash(DOWNLOAD, "wiki_only", "--no-docker", **site)
    assert failed.returncode == 1
    for message in ("has sha1", "stage 'download' failed", "'wiki_only' stopped in data/create_datasets_from_start.sh"):
        assert message in failed.stderr
    assert not (tmp_path / "work/formatted_one_article_per_line").exists()
    dump.write_bytes(data)
    failed = bash(CREATE, "wiki_only", N_TRAINING_SHARDS=5000, **site)
    assert failed.returncode == 1 and "stage 'sharding' failed" in failed.stderr
    assert not (tmp_path / "work/tfrecord").exists()
