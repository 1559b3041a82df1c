import hashlib
import math
import os
import random
import re
import shutil
import signal
from functools import partial
from types import SimpleNamespace

import nltk
import numpy as np
import pytest

from data import sharding
from data.executors import open_workers
from runkit.errors import UserError
from runkit.files import locked_directory, read_json

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


def shard(tmp_path, documents, out="out", n_processes=1, **options):
    options = {"n_training_shards": 4, "n_test_shards": 2} | options
    with open_workers(n_processes=n_processes) as workers:
        path = write_corpus(tmp_path, documents)
        return sharding.shard_documents([path], tmp_path / out, "made_up", workers=workers, **options)


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


def test_shards_stand_in_the_order_of_the_text(tmp_path):
    documents = made_up_documents(200)
    folder = shard(tmp_path, documents)
    places = {document: i for i, document in enumerate(documents)}
    for path in folder.rglob("*.txt"):
        found = [places[" ".join(sentences)] for sentences in documents_of(path)]
        assert found == sorted(found)


@pytest.mark.parametrize("n_parts", [1, 7])
def test_a_corpus_of_long_and_short_documents_is_balanced_to_one_percent(n_parts):
    draw = random.Random(3)
    # Zipf-like, as articles are: most are short, the longest fill a fifth of a shard and come last.
    counts = np.array(sorted(min(5000, int(2 / (1 - draw.random()))) for _ in range(20_000)))
    pieces = np.array_split(counts, n_parts)
    shards = list(sharding.deal(lambda: iter(pieces), 16))
    assert [len(array) for array in shards] == [len(piece) for piece in pieces]
    sums = np.bincount(np.concatenate(shards), weights=counts, minlength=16)
    assert np.ptp(sums) <= 0.01 * sums.mean()
    assert counts.max() > 0.2 * sums.mean()


def test_equal_documents_are_dealt_in_turn():
    assert [array.tolist() for array in sharding.deal(lambda: [np.ones(5, int), np.ones(2, int)], 3)] == [
        [0, 1, 2, 0, 1],
        [2, 0],
    ]


def test_uneven_shards_are_said(tmp_path, capsys):
    long = " ".join(f"The {WORDS[i % 7]} has a {WORDS[i % 11]}." for i in range(4000))
    folder = shard(tmp_path, [*made_up_documents(20), long], n_training_shards=3, n_test_shards=1)
    assert "training shards differ by more than 1% in sentences" in capsys.readouterr().out
    facts = read_json(folder / "manifest.json")
    sizes = [facts["files"][f"training/made_up_training_{i}.txt"]["sentences"] for i in range(3)]
    assert facts["training"]["spread"] == pytest.approx((max(sizes) - min(sizes)) / (sum(sizes) / 3), abs=1e-6)
    assert facts["test"]["spread"] == 0


def same(one, other):
    """Whether two folders have the same files with the same bytes."""
    contents = [{p.relative_to(f).as_posix(): p.read_bytes() for p in f.rglob("*.*")} for f in (one, other)]
    return contents[0] == contents[1] and len(contents[0]) > 2


def test_any_number_of_processes_and_any_pieces_give_the_same_bytes(tmp_path, monkeypatch):
    documents = made_up_documents(60)
    one = shard(tmp_path, documents, "one")
    monkeypatch.setattr(sharding, "PART_BYTES", 5000)
    monkeypatch.setattr(sharding, "PLAN_ROWS", 10)
    assert same(one, shard(tmp_path, documents, "three", n_processes=3))
    monkeypatch.setattr(sharding, "PART_BYTES", 100)  # most documents are longer: parts without any
    assert same(one, shard(tmp_path, documents, "small"))
    assert [path.name for path in (tmp_path / "small").iterdir()] == ["made_up"]


def test_parts_take_each_line_once(tmp_path, monkeypatch):
    path = tmp_path / "in.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\r\ntwo \n" + "dr\u00e9i\n\n\nvier".encode())
    assert list(sharding.read_documents([path, path])) == 2 * ["one", "two", "dr\u00e9i", "vier"]
    for size in (*range(1, 12), 1000):
        monkeypatch.setattr(sharding, "PART_BYTES", size)
        parts = sharding.plan_parts([path], tmp_path)
        assert [d for part in parts for d in sharding.documents_between(*part[:3])] == [
            "one",
            "two",
            "dr\u00e9i",
            "vier",
        ]


def test_text_that_is_not_utf8_is_named(tmp_path):
    path = tmp_path / "in.txt"
    path.write_bytes(b"good\n\nbad \xff\n")
    with pytest.raises(UserError, match=r"in\.txt: not UTF-8 at byte 10 \(0xff\)"), open_workers() as workers:
        sharding.shard_documents([path], tmp_path / "out", "x", 1, 1, workers=workers)


# ------------------------------------------------------------------------------------------------ interruptions


def killed_at(operation: int, work) -> bool:
    """Runs work() in a copy of this process that is killed at its n-th renaming; False when it comes to its end."""
    pid = os.fork()
    if pid == 0:
        try:
            left = operation

            def counted(really):
                def rename(*args, **kwargs):
                    nonlocal left
                    left -= 1
                    if left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return really(*args, **kwargs)

                return rename

            os.rename, os.replace = counted(os.rename), counted(os.replace)
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(sharding, "PART_BYTES", 5000)


def test_a_killed_run_repeated_gives_the_bytes_of_an_undisturbed_one(tmp_path, small_parts):
    documents = made_up_documents(40)
    whole = shard(tmp_path, documents, "whole")
    points = 0
    while killed_at(points + 1, partial(shard, tmp_path, documents, str(points))):
        out = tmp_path / str(points)
        assert not (out / "made_up").exists()
        assert same(whole, shard(tmp_path, documents, str(points)))
        assert [path.name for path in out.iterdir()] == ["made_up"], "nothing else is left"
        points += 1
    parts = len(sharding.plan_parts([tmp_path / "in.txt"], tmp_path))
    # the settings, text and index of each part, 6 shards, the moves of their 2 folders, the manifest, the whole
    assert points == 1 + 2 * parts + 6 + 2 + 1 + 1


def test_a_run_that_is_killed_again_and_again_comes_to_its_end(tmp_path, small_parts):
    documents = made_up_documents(40)
    runs = 1
    while killed_at(7, lambda: shard(tmp_path, documents)):
        runs += 1
        assert runs < 10
    assert runs > 2
    assert same(tmp_path / "out" / "made_up", shard(tmp_path, documents, "whole"))


def test_finished_parts_are_kept_for_the_same_text_only(tmp_path, small_parts, capfd):
    documents = made_up_documents(40)
    assert killed_at(8, lambda: shard(tmp_path, documents))
    shard(tmp_path, documents)
    assert "3 of " in capfd.readouterr().out
    assert killed_at(8, lambda: shard(tmp_path, documents, random_seed=5))
    folder = shard(tmp_path, documents, random_seed=6)
    assert "made with other random_seed" in capfd.readouterr().err
    assert same(folder, shard(tmp_path, documents, "whole", random_seed=6))


def test_two_runs_do_not_share_a_folder(tmp_path):
    with (
        locked_directory(tmp_path / "out" / ".made_up.partial", "sharding"),
        pytest.raises(UserError, match="another run is sharding made_up"),
    ):
        shard(tmp_path, made_up_documents(40))


def test_a_disk_without_room_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(UserError, match=r"0\.00 GB free, but sharding takes"):
        shard(tmp_path, made_up_documents(40))


# ------------------------------------------------------------------------------------------------ what is chosen


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
        sharding.shard_documents([tmp_path / "missing.txt"], tmp_path / "out", "x", workers=None)
    assert not list((tmp_path / "out").iterdir())


def test_more_shards_than_documents_names_both_numbers(tmp_path):
    with pytest.raises(
        UserError, match=r"1472 training shards.*has 4[0-9] of 50 documents.*--n_training_shards"
    ) as caught:
        shard(tmp_path, made_up_documents(50), n_training_shards=1472)
    assert "N_TRAINING_SHARDS" in str(caught.value)


def test_automatic_number_of_shards():
    def count(split, documents, size):
        zeros = dict.fromkeys(("training", "test"), 0)
        found = sharding.Survey(0.1, zeros | {split: documents}, zeros, zeros | {split: size}, 0, 1)
        return sharding.shard_count(0, split, found)

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
    monkeypatch.setattr(sharding, "gather_shard", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        shard(tmp_path, made_up_documents(60))
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before


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
    ["--fraction_test_set 0", "--fraction_test_set 1.5", "--executor slurm", "--n_test_shards -1", "--typo 1"],
)
def test_bad_flags_are_refused(tmp_path, monkeypatch, words):
    monkeypatch.setattr("sys.argv", f"sharding --input_files a --output_dir {tmp_path} --dataset d {words}".split())
    with pytest.raises(SystemExit) as caught:
        sharding.main()
    assert caught.value.code == 2
