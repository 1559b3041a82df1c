import hashlib
import math
import random
import re

import nltk
import pytest

from data import sharding
from runkit.errors import UserError
from runkit.files import read_json

WORDS = "old mill river town grain boats light men north rope salt wood came from with the".split()


@pytest.fixture(autouse=True)
def no_trained_punkt(monkeypatch, tmp_path):
    """The same segmentation on every machine."""
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path / "no_nltk_data")])


def made_up_documents(n: int, seed: int = 1) -> list[str]:
    draw = random.Random(seed)
    return [
        " ".join(f"Doc{i} {' '.join(draw.choices(WORDS, k=draw.randint(4, 9)))}." for _ in range(draw.randint(2, 15)))
        for i in range(n)
    ]


def write_corpus(tmp_path, documents, name="in.txt"):
    path = tmp_path / name
    path.write_text("".join(document + "\n\n" for document in documents), encoding="utf-8")
    return path


def shard(tmp_path, documents, out="out", **options):
    options = {"n_training_shards": 4, "n_test_shards": 2, "n_processes": 1} | options
    return sharding.shard_documents([write_corpus(tmp_path, documents)], tmp_path / out, "made_up", **options)


def documents_of(path):
    blocks = path.read_text(encoding="utf-8").split("\n\n")
    assert blocks.pop() == ""
    return [block.split("\n") for block in blocks]


def by_split(folder):
    """{split: [[sentences of a document], ...] of all its shards}"""
    return {
        split: [d for path in sorted((folder / split).iterdir()) for d in documents_of(path)]
        for split in ("training", "test")
    }


def test_every_document_is_whole_and_in_one_shard(tmp_path):
    documents = made_up_documents(400)
    split = by_split(shard(tmp_path, documents))
    found = [" ".join(sentences) for documents in split.values() for sentences in documents]
    assert sorted(found) == sorted(documents)
    # Binomial(400, 0.1): within four standard deviations of 40
    assert abs(len(split["test"]) - 40) <= 4 * math.sqrt(400 * 0.1 * 0.9)
    assert all(re.fullmatch(r"Doc\d+ [a-z ]+\.", sentence) for d in split["training"] for sentence in d)


def test_names_and_manifest(tmp_path):
    folder = shard(tmp_path, made_up_documents(100))
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*.txt")}
    assert names == {f"training/made_up_training_{i}.txt" for i in range(4)} | {
        f"test/made_up_test_{i}.txt" for i in range(2)
    }
    manifest = read_json(folder / "manifest.json")
    assert set(manifest["files"]) == names
    for name, facts in manifest["files"].items():
        data = (folder / name).read_bytes()
        documents = documents_of(folder / name)
        assert facts == {
            "documents": len(documents),
            "sentences": sum(map(len, documents)),
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
    assert manifest["training"]["documents"] + manifest["test"]["documents"] == 100
    assert manifest["training"]["shards"] == 4
    assert "trained on" in manifest["segmentation"]
    assert str(tmp_path) not in (folder / "manifest.json").read_text(encoding="utf-8")


def test_shards_are_balanced_to_one_document(tmp_path):
    folder = shard(tmp_path, made_up_documents(200))
    for split in ("training", "test"):
        documents = [documents_of(path) for path in (folder / split).iterdir()]
        sizes = [sum(map(len, shard)) for shard in documents]
        assert max(sizes) - min(sizes) <= max(len(d) for shard in documents for d in shard)


def test_any_number_of_processes_and_any_buffer_give_the_same_bytes(tmp_path, monkeypatch):
    documents = made_up_documents(60)
    monkeypatch.setattr(sharding, "CHUNK_CHARACTERS", 5000)
    one = shard(tmp_path, documents, "one", n_processes=1)
    three = shard(tmp_path, documents, "three", n_processes=3)
    monkeypatch.setattr(sharding, "BUFFER_CHARACTERS", 1000)
    small = shard(tmp_path, documents, "small", n_processes=1)
    for path in one.rglob("*.*"):
        name = path.relative_to(one)
        assert path.read_bytes() == (three / name).read_bytes() == (small / name).read_bytes()


def test_seed_and_fraction_choose_the_test_set(tmp_path):
    documents = made_up_documents(200)
    sets = [
        {tuple(d) for d in by_split(shard(tmp_path, documents, str(i), **options))["test"]}
        for i, options in enumerate([{}, {"random_seed": 7}, {"fraction_test_set": 0.5}])
    ]
    assert sets[0] != sets[1]
    assert sets[0] < sets[2], "a larger share keeps the smaller one"
    assert abs(len(sets[2]) - 100) <= 4 * math.sqrt(200 * 0.25)


def test_copies_stand_on_one_side(tmp_path):
    documents = made_up_documents(60) * 3
    split = by_split(shard(tmp_path, documents))
    training, test = ({" ".join(d) for d in split[name]} for name in ("training", "test"))
    assert not training & test


@pytest.mark.parametrize("fraction", [0.0001, 0.1, 0.9999])
def test_two_documents_fill_both_sets(tmp_path, fraction):
    documents = ["One is here. It is short.", "Two is there. It is short."]
    split = by_split(shard(tmp_path, documents, n_training_shards=1, n_test_shards=1, fraction_test_set=fraction))
    assert len(split["training"]) == len(split["test"]) == 1


def test_corpora_that_cannot_be_split_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"in\.txt: no text"):
        shard(tmp_path, [])
    with pytest.raises(UserError, match=r"one document only.*--document"):
        shard(tmp_path, ["One is here."])
    with pytest.raises(UserError, match="one document only"):
        shard(tmp_path, ["One is here.", "One is here."])
    with pytest.raises(UserError, match=r"cannot read .*missing\.txt"):
        sharding.shard_documents([tmp_path / "missing.txt"], tmp_path / "out", "x")
    assert not (tmp_path / "out").exists()


def test_more_shards_than_documents_names_both_numbers(tmp_path):
    with pytest.raises(
        UserError, match=r"1472 training shards.*has 4[0-9] of 50 documents.*--n_training_shards"
    ) as caught:
        shard(tmp_path, made_up_documents(50), n_training_shards=1472)
    assert "N_TRAINING_SHARDS" in str(caught.value)


def test_automatic_number_of_shards():
    def count(split, documents, characters):
        other = dict.fromkeys(("training", "test"), 0)
        return sharding.shard_count(
            0, split, sharding.Survey(0.1, other | {split: documents}, other | {split: characters}, 0, 1)
        )

    assert count("training", 5, 1000) == 5
    assert count("training", 1000, 4_000_000) == 8
    assert count("training", 10_000, 40_000_001) == 11
    assert count("training", 10**7, 16 * 10**9) == 1472
    assert count("test", 1000, 500_000) == 2


def test_done_once_and_again_when_something_changed(tmp_path, capsys):
    documents = made_up_documents(80)
    shard(tmp_path, documents)
    capsys.readouterr()
    shard(tmp_path, documents)
    assert "up to date" in capsys.readouterr().out
    folder = shard(tmp_path, documents[:-1])
    assert sum(map(len, by_split(folder).values())) == 79
    shard(tmp_path, documents[:-1], random_seed=1)
    (folder / "training" / "made_up_training_0.txt").unlink()
    shard(tmp_path, documents[:-1], random_seed=1)
    assert "up to date" not in capsys.readouterr().out
    assert (folder / "training" / "made_up_training_0.txt").exists()


def test_a_failure_leaves_the_earlier_shards(tmp_path, monkeypatch):
    folder = shard(tmp_path, made_up_documents(50))
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    monkeypatch.setattr(sharding.ShardWriter, "close", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        shard(tmp_path, made_up_documents(60))
    assert {path: path.read_bytes() for path in folder.parent.rglob("*.*")} == before


def test_several_files_and_published_flags(tmp_path, monkeypatch):
    a = write_corpus(tmp_path, made_up_documents(30, 1), "a.txt")
    b = write_corpus(tmp_path, made_up_documents(30, 2), "b.txt")
    words = (
        f"sharding --input_files {a},{b} --output_dir {tmp_path} --dataset both --n_training_shards 3 "
        "--n_test_shards 1 --fraction_test_set 0.2 --segmentation_method nltk --n_processes 1 --random_seed 5"
    )
    monkeypatch.setattr("sys.argv", words.split())
    sharding.main()
    assert sum(map(len, by_split(tmp_path / "both").values())) == 60


@pytest.mark.parametrize(
    "words",
    ["--fraction_test_set 0", "--fraction_test_set 1.5", "--n_processes 0", "--n_test_shards -1", "--typo 1"],
)
def test_bad_flags_are_refused(tmp_path, monkeypatch, words):
    monkeypatch.setattr("sys.argv", f"sharding --input_files a --output_dir {tmp_path} --dataset d {words}".split())
    with pytest.raises(SystemExit) as caught:
        sharding.main()
    assert caught.value.code == 2
