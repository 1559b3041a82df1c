"""The data stages as users start them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_tf.records import scan_tfrecord
from runkit.files import read_json

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "data" / "create_datasets_from_start.sh"


def create(tmp_path, *words, **variables):
    environment = {
        **os.environ,
        "BERT_PREP_WORKING_DIR": str(tmp_path / "work"),
        "BERT_PYTHON": sys.executable,
        "N_PROCESSES": "1",
        "SEQ_LENGTHS": "32:5",
        "VOCAB_SIZE": "120",
        "NLTK_DATA": str(tmp_path / "none"),
        **variables,
    }
    return subprocess.run(
        ["bash", SCRIPT, *map(str, words)], env=environment, cwd=tmp_path, capture_output=True, text=True
    )


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "my text.txt"
    subjects = [f"{subject} number {i}" for i in range(12) for subject in ("ferry", "train")]
    documents = ["\n".join(f"The {s} {v} here ." for v in ("sails", "rests", "waits")) for s in subjects]
    path.write_text("\n\n".join(documents), encoding="utf-8")
    return path


def tfrecords(tmp_path):
    return sorted((tmp_path / "work" / "tfrecord").glob("*/mine/*/*.tfrecord"))


def test_text_to_records_once_and_never_stale(tmp_path, text):
    first = create(tmp_path, "text", text, "mine")
    assert first.returncode == 0, first.stderr
    (folder,) = (tmp_path / "work" / "tfrecord").glob("*/mine")
    assert folder.parent.name.startswith(
        "lower_case_1_seq_len_32_max_pred_5_masked_lm_prob_0.15_random_seed_12345_dupe_"
    )
    for split, dupe_factor in (("training", 5), ("test", 1)):
        manifest = read_json(folder / split / "manifest.json")
        assert manifest["dupe_factor"] == dupe_factor and manifest["records"] > 0
        assert manifest["records"] == sum(len(scan_tfrecord(path)) - 1 for path in (folder / split).glob("*.tfrecord"))

    before = {path: path.stat().st_mtime_ns for path in tfrecords(tmp_path)}
    again = create(tmp_path, "text", text, "mine")
    assert again.returncode == 0 and again.stdout.count("up to date") == 4
    assert before == {path: path.stat().st_mtime_ns for path in tfrecords(tmp_path)}

    lost = tfrecords(tmp_path)[0]
    content = lost.read_bytes()
    lost.unlink()
    assert create(tmp_path, "text", text, "mine").returncode == 0
    assert lost.read_bytes() == content

    text.write_text(text.read_text(encoding="utf-8").replace("ferry", "barge"), encoding="utf-8")
    changed = create(tmp_path, "text", text, "mine")
    assert changed.returncode == 0, changed.stderr
    assert "made with other inputs" in changed.stderr
    assert "barge" in (tmp_path / "work" / "vocab" / "mine" / "vocab.txt").read_text(encoding="utf-8")
    assert lost.read_bytes() != content

    other = create(tmp_path, "text", text, "mine", WHOLE_WORD_MASK="1")
    assert other.returncode == 0, other.stderr
    assert "made with other do_whole_word_mask" in other.stderr
    assert read_json(lost.parent / "manifest.json")["do_whole_word_mask"] is True


def test_a_given_vocabulary_is_used(tmp_path, text):
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] the ferry train number sails rests waits here .".split()
    (tmp_path / "vocab.txt").write_text("".join(word + "\n" for word in words), encoding="utf-8")
    result = create(tmp_path, "text", text, "mine", VOCAB_FILE=str(tmp_path / "vocab.txt"))
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "work" / "vocab").exists()
    (manifest,) = (tmp_path / "work" / "tfrecord").glob("*/mine/training/manifest.json")
    assert read_json(manifest)["vocab_size"] == len(words)


def test_it_stops_at_the_stage_that_fails(tmp_path, text):
    result = create(tmp_path, "text", text, "mine", N_TRAINING_SHARDS="1472")
    assert result.returncode != 0
    assert "1472 training shards" in result.stderr and "stage 'sharding' failed" in result.stderr
    assert not (tmp_path / "work" / "tfrecord").exists()


def test_dry_run_shows_and_makes_nothing(tmp_path, text):
    result = create(tmp_path, "text", text, "mine", "--dry-run", BERT_PYTHON="no_such_python")
    assert result.returncode == 0, result.stderr
    for module in ("data.text", "data.vocabulary", "data.sharding", "bert_tf.create_pretraining_data"):
        assert f"no_such_python -m {module} " in result.stdout
    assert not (tmp_path / "work").exists()
    embedded = create(tmp_path, "embedded", "--dry-run", SEQ_LENGTHS="128:20 512:80")
    assert "-m data.embedded " in embedded.stdout
    assert embedded.stdout.count("--max_seq_length=512 --max_predictions_per_seq=80") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "'embedded'"),
        (["embeded"], "cannot make sense of 'embeded'"),
        (["text", "x"], "text needs a PATH and a NAME"),
        (["wiki_books"], "there are no books in"),
        (["wiki_only", "more"], "cannot make sense of 'wiki_only more'"),
        (["embedded", "--plam"], "cannot make sense of 'embedded --plam'"),
        (["text", "nowhere", "mine"], "nowhere: no such file"),
    ],
)
def test_mistakes_are_named(tmp_path, words, message):
    result = create(tmp_path, *words)
    assert result.returncode != 0
    assert message in result.stderr


def test_bad_settings_are_named(tmp_path, text):
    assert "SEQ_LENGTHS: '128' is not" in create(tmp_path, "text", text, "mine", SEQ_LENGTHS="128").stderr
    assert "does not exist" in create(tmp_path, "text", text, "mine", VOCAB_FILE="nowhere.txt").stderr
    for variables, message in (
        ({"STAGES": "sharding recods"}, "STAGES: 'recods' is none of"),
        ({"DO_LOWER_CASE": "true"}, "DO_LOWER_CASE must be 0 or 1"),
        ({"EXECUTOR": "slurm"}, "EXECUTOR must be processes, dask or mpi"),
        ({"EXECUTOR": "dask"}, "EXECUTOR=dask needs SCHEDULER"),
        ({"FORMATTED_FILES": "a"}, "set STAGES to 'sharding'"),
    ):
        result = create(tmp_path, "text", text, "mine", **variables)
        assert result.returncode == 1 and message in result.stderr
    assert not (tmp_path / "work").exists()
