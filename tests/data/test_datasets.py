"""data/datasets.py: the rows, and fetching them from a folder or a server that stands for all the real ones."""

import bz2
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from data.datasets import Request, asked_bytes, fetch_datasets, is_there, list_datasets
from data.registry import DATASETS, GROUPS, Dataset, Files, Item, checked_by, expand, listed_bytes, where
from runkit.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
ITEMS = [item for dataset in DATASETS.values() if isinstance(dataset.source, Files) for item in dataset.source.items]
QUICK = {"attempts": 1, "timeout": 5.0, "first_pause": 0.001}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    (tmp_path / "mirror").mkdir()
    return tmp_path / "mirror"


@pytest.fixture
def request_of(tmp_path: Path, mirror: Path):
    """Makes the request for a data folder beside the mirror."""
    return partial(Request, tmp_path / "data", (str(mirror),), options=QUICK)


def put(root: Path, path: str, data: bytes) -> bytes:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(data)
    return data


def put_zip(root: Path, path: str, members: dict[str, bytes]) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(root / path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def tree(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def row(monkeypatch: pytest.MonkeyPatch, *items: Item) -> str:
    """A row "tiny" of these items."""
    monkeypatch.setitem(DATASETS, "tiny", Dataset("tiny", Files(items)))
    return "tiny"


# ------------------------------------------------------------------------------------------------------- the registry


def test_rows_are_sound():
    assert len(ITEMS) >= 25
    for item in ITEMS:
        assert re.fullmatch(r"https://[\w.-]+/[\w./-]+", item.url), item
        for digest, digits in ((item.sha256, 64), (item.sha1, 40), (item.md5, 32)):
            assert digest is None or re.fullmatch(f"[0-9a-f]{{{digits}}}", digest), item
        assert all(digest is None or re.fullmatch("[0-9a-f]{64}", digest) for digest in item.contents.values()), item
        assert item.n_bytes is None or item.n_bytes > 1000
        assert ".." not in item.path and not item.path.startswith("/")
    paths = [path for dataset in DATASETS.values() for path in where(dataset)]
    assert len(set(paths)) == len(paths)
    assert set().union(*GROUPS.values()) <= set(DATASETS) and not set(GROUPS) & set(DATASETS)
    assert len(GROUPS["google_pretrained_weights"]) == 7 and len(GROUPS["nvidia_pretrained"]) == 3
    assert len(GROUPS["glue"]) == 10


def test_digests_of_the_spec():
    """Google's weights: five files each, all with a SHA-256; models of one case share their vocabulary."""
    contents = {name: DATASETS[name].source.items[0].contents for name in GROUPS["google_pretrained_weights"]}
    assert all(len(files) == 5 and all(files.values()) for files in contents.values())
    base, large = contents["uncased_L-12_H-768_A-12"], contents["uncased_L-24_H-1024_A-16"]
    assert base["bert_config.json"].startswith("7b4e5f53") and large["bert_model.ckpt.index"].startswith("68b52f22")
    assert base["vocab.txt"] == large["vocab.txt"]
    assert contents["multi_cased_L-12_H-768_A-12"]["vocab.txt"].startswith("fe0fda7c")
    assert contents["chinese_L-12_H-768_A-12"]["vocab.txt"].startswith("45bbac6b")


def test_the_vocabulary_of_google_is_the_one_at_hand(shared: Path):
    known = {DATASETS[name].source.items[0].contents["vocab.txt"] for name in GROUPS["google_pretrained_weights"]}
    found = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (shared / "data" / "vocab_bert").rglob("*.txt")}
    assert found & known


def test_launchers_look_where_rows_put_things():
    text = "".join((ROOT / "scripts" / name).read_text() for name in ("finetuning.sh", "biobert/biobert.sh"))
    for path in (
        "nvidia_pretrained/bert_tf_pretraining_large_lamb",
        "download/squad/v",
        "BC5CDR/chem",
        "BC5CDR/disease",
        "chemprot-data_treeLSTM",
        "download/glue",
    ):
        assert path in text and any(path in there for dataset in DATASETS.values() for there in where(dataset)), path
    for name in ("bert_tf_squad11_large_384", "bert_tf_squad11_base_128", "cased_L-24_H-1024_A-16"):
        assert name in text and any(there.endswith(name) for dataset in DATASETS.values() for there in where(dataset))


def test_what_is_checked_is_said():
    said = {name: checked_by(dataset) for name, dataset in DATASETS.items()}
    assert said["squad"] == said["mnli"] == "SHA-256" and "each file" in said["chinese_L-12_H-768_A-12"]
    assert "SHA-1" in said["wikicorpus_en"] and "MD5" in said["pubmed_baseline"]
    assert said["nvidia_squad11_base_128"] == said["pubmed_fulltext"] == said["chemprot"]
    assert "no digest is public" in said["chemprot"]
    table = list_datasets()
    assert all(name in table for name in DATASETS) and "unknown" in table and "81.6 MB" in table


def test_names_and_groups():
    assert expand(["glue", "cola", "squad"]) == [*GROUPS["glue"], "squad"]
    assert set(expand(["weights"])) == {*GROUPS["google_pretrained_weights"], *GROUPS["nvidia_pretrained"]}
    with pytest.raises(UserError, match="no data set 'skuad'; there are glue"):
        expand(["skuad"])


# ------------------------------------------------------------------------------------------------------ files, archives


def test_files(monkeypatch, mirror, request_of, capsys):
    data = put(mirror, "some/where/a.json", b"{}" * 100)
    item = Item("https://x.org/some/where/a.json", "download/a/a.json", 200, hashlib.sha256(data).hexdigest())
    request = request_of()
    fetch_datasets([row(monkeypatch, item)], request)
    assert tree(request.data_dir) == ["download/a/a.json"] and "sha256 right" in capsys.readouterr().out
    assert is_there("tiny", request)
    (mirror / "some/where/a.json").unlink()
    fetch_datasets(["tiny"], request)  # in place: nothing is asked
    for changed in ({"sha256": "0" * 64}, {"n_bytes": 201}):
        with pytest.raises(UserError, match=r"cannot download a\.json"):
            fetch_datasets([row(monkeypatch, item._replace(**changed))], request)
    assert (request.data_dir / "download/a/a.json").read_bytes() == data


def test_a_wrong_squad_is_refused(mirror, request_of):
    put(mirror, "SQuAD-explorer/dataset/train-v1.1.json", b"{}")
    with pytest.raises(UserError, match="has 2 bytes, not 30288272"):
        fetch_datasets(["squad"], request_of())
    assert tree(request_of().data_dir) == []


def test_what_is_unknown_is_said(monkeypatch, mirror, request_of, capsys):
    put(mirror, "a.json", b"{}")
    fetch_datasets([row(monkeypatch, Item("https://x.org/a.json", "download/a.json"))], request_of())
    assert "no digest known" in capsys.readouterr().out


WEIGHTS = {"bert_config.json": b"{}", "vocab.txt": b"[PAD]\n"}


def weights_item(known: bool = True, **changes) -> Item:
    contents = {name: hashlib.sha256(data).hexdigest() if known else None for name, data in WEIGHTS.items()}
    item = Item("https://x.org/models/tiny.zip", "download/weights/tiny", contents=contents)
    return item._replace(**changes)


def test_archives(monkeypatch, mirror, request_of, capsys):
    members = {f"tiny/{name}": data for name, data in WEIGHTS.items()}
    put_zip(mirror, "models/tiny.zip", members | {"__MACOSX/tiny/._vocab.txt": b"x", "tiny/more/notes": b"y"})
    request, name = request_of(), row(monkeypatch, weights_item())
    fetch_datasets([name], request)
    files = ("bert_config.json", "more/notes", "vocab.txt")
    assert tree(request.data_dir) == [f"download/weights/tiny/{file}" for file in files]
    (mirror / "models/tiny.zip").unlink()
    fetch_datasets([name], request)
    assert "in place" in capsys.readouterr().out
    (request.data_dir / "download/weights/tiny/vocab.txt").write_text("changed")
    with pytest.raises(UserError, match=r"vocab\.txt has sha256 .* move it away"):
        fetch_datasets([name], request)


def test_archives_can_be_kept(monkeypatch, mirror, request_of):
    put_zip(mirror, "models/tiny.zip", WEIGHTS)  # without a folder in it
    request = request_of()
    fetch_datasets([row(monkeypatch, weights_item())], request, keep_archives=True)
    assert "download/archives/tiny.zip" in tree(request.data_dir)
    assert sorted(WEIGHTS) == sorted(path.name for path in (request.data_dir / "download/weights/tiny").iterdir())


@pytest.mark.parametrize(
    "members, message",
    [
        ({"tiny/vocab.txt": b"[PAD]\n"}, "no folder in it has bert_config.json, vocab.txt; it holds tiny/vocab.txt"),
        ({name: b"other" for name in WEIGHTS}, "bert_config.json has sha256"),
        ({}, "it holds nothing"),
        ({**WEIGHTS, "../evil": b"x"}, "outside of its folder"),
    ],
)
def test_wrong_archives(monkeypatch, mirror, request_of, members, message):
    put_zip(mirror, "models/tiny.zip", members)
    request = request_of()
    with pytest.raises(UserError, match=message):
        fetch_datasets([row(monkeypatch, weights_item())], request)
    assert tree(request.data_dir) == ["download/archives/tiny.zip"]  # to be looked at


def test_one_archive_for_several_folders(mirror, request_of):
    files = {"train.tsv": b"1", "devel.tsv": b"2", "test.tsv": b"3"}
    members = {
        f"bert_data/BC5CDR/{kind}/{name}": kind.encode() + data
        for kind in ("chem", "disease")
        for name, data in files.items()
    }
    members |= {
        f"bert_data/{task}/{name}.tsv": b"x" for task in ("ChemProt", "hoc") for name in ("train", "dev", "test")
    }
    put_zip(mirror, "ncbi-nlp/BLUE_Benchmark/releases/download/0.1/bert_data.zip", members)
    request = request_of()
    fetch_datasets(["bc5cdr", "chemprot"], request)
    assert (request.data_dir / "biobert/BC5CDR/disease/train.tsv").read_bytes() == b"disease1"
    assert len(tree(request.data_dir)) == 9 and "biobert/chemprot-data_treeLSTM/dev.tsv" in tree(request.data_dir)


def test_ngc_addresses(mirror, request_of):
    members = {name: b"x" for name in ("bert_config.json", "model.ckpt.index", "vocab.txt")}
    put_zip(mirror, "v2/models/nvidia/bert_tf_ckpt_base_qa_squad11_amp_128/versions/19.03.1/zip", members)
    fetch_datasets(["nvidia_squad11_base_128"], request_of())
    assert len(tree(request_of().data_dir / "download/nvidia_pretrained/bert_tf_squad11_base_128")) == 3


def test_what_was_finished_stays(monkeypatch, mirror, request_of):
    items = [Item(f"https://x.org/{name}", f"download/{name}") for name in "abc"]
    put(mirror, "a", b"a")
    put(mirror, "c", b"c")
    request, name = request_of(), row(monkeypatch, *items)
    with pytest.raises(UserError, match="cannot download b"):
        fetch_datasets([name], request)
    assert tree(request.data_dir) == ["download/a"]
    (mirror / "a").unlink()
    put(mirror, "b", b"b")
    fetch_datasets([name], request)
    assert tree(request.data_dir) == ["download/a", "download/b", "download/c"]


def test_mirrors_in_turn(monkeypatch, tmp_path, mirror):
    put(mirror, "deep/a", b"a")
    name = row(monkeypatch, Item("https://x.org/deep/a", "download/a"))
    request = Request(
        tmp_path / "data", ("http://127.0.0.1:1", str(tmp_path / "none"), mirror.as_uri() + "/"), options=QUICK
    )
    fetch_datasets([name], request)
    assert tree(request.data_dir) == ["download/a"]
    assert Request(tmp_path).places("https://x.org/deep/a") == ["https://x.org/deep/a"]


def test_books_are_yours(request_of, capsys):
    with pytest.raises(UserError, match=r"cannot be downloaded.*BOOKS"):
        fetch_datasets(["bookscorpus"], request_of())
    put(request_of().data_dir, "download/bookscorpus/a.txt", b"a book")
    fetch_datasets(["bookscorpus"], request_of())
    assert "in place" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------------------------- dumps


def put_dump(
    mirror: Path, date: str, text: bytes, names=("-multistream",), algorithm: str = "sha1", lists: bool = True
) -> None:
    folder, lines = f"enwiki/{date}", []
    for name in names:
        file = f"enwiki-{date}-pages-articles{name}.xml.bz2"
        data = put(mirror, f"{folder}/{file}", bz2.compress(text + name.encode()))
        lines.append(f"{hashlib.new(algorithm, data).hexdigest()}  {file}\n")
    if lists:
        lines.insert(0, f"{'0' * 40}  enwiki-{date}-page.sql.gz\n")
        put(mirror, f"{folder}/enwiki-{date}-{algorithm}sums.txt", "".join(lines).encode())


def dump_text(data_dir: Path) -> bytes:
    return bz2.decompress((data_dir / "download/wikicorpus_en/wikicorpus_en.xml.bz2").read_bytes())


def test_the_newest_complete_dump_and_no_other_later(mirror, request_of):
    put_dump(mirror, "20250101", b"old")
    put_dump(mirror, "20250201", b"new", names=("", "-multistream"))
    put_dump(mirror, "20250301", b"too new", lists=False)
    put(mirror, "enwiki/20250302/enwiki-20250302-sha1sums.txt", b"%s  enwiki-20250302-page.sql.gz\n" % (b"0" * 40))
    (mirror / "enwiki/latest").mkdir()
    request = request_of()
    fetch_datasets(["wikicorpus_en"], request)
    assert dump_text(request.data_dir) == b"new-multistream"
    record = json.loads((request.data_dir / "download/wikicorpus_en/source.json").read_text())
    assert record["dump_date"] == "20250201" and record["items"][0]["sha1"]
    # Later there is a newer one; it is taken only when that is asked for.
    put_dump(mirror, "20250301", b"newest")
    fetch_datasets(["wikicorpus_en"], request)
    assert dump_text(request.data_dir) == b"new-multistream"
    assert is_there("wikicorpus_en", request) and not is_there("wikicorpus_en", request_of(dump_date="20250101"))
    fetch_datasets(["wikicorpus_en"], request_of(renew=True))
    assert dump_text(request.data_dir) == b"newest-multistream"
    fetch_datasets(["wikicorpus_en"], request_of(dump_date="20250101"))
    assert dump_text(request.data_dir) == b"old-multistream"
    # All there: no server needed.
    fetch_datasets(["wikicorpus_en"], Request(request.data_dir, ("/nowhere",), options=QUICK))
    assert tree(request.data_dir / "download") == ["wikicorpus_en/source.json", "wikicorpus_en/wikicorpus_en.xml.bz2"]


def test_md5_and_single_stream_dumps(mirror, request_of):
    put_dump(mirror, "20250101", b"text", names=("",), algorithm="md5")
    fetch_datasets(["wikicorpus_en"], request_of())
    assert dump_text(request_of().data_dir) == b"text"


def test_a_damaged_dump_is_refused(mirror, request_of):
    put_dump(mirror, "20250101", b"text")
    path = mirror / "enwiki/20250101/enwiki-20250101-pages-articles-multistream.xml.bz2"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match="has sha1"):
        fetch_datasets(["wikicorpus_en"], request_of())
    assert tree(request_of().data_dir) == ["download/wikicorpus_en/source.json"]


def test_dumps_that_are_not_there(mirror, request_of):
    with pytest.raises(UserError, match="cannot list"):
        fetch_datasets(["wikicorpus_en"], request_of())
    put_dump(mirror, "20250101", b"text", lists=False)
    for request, date in ((request_of(), "20250101"), (request_of(dump_date="20240101"), "20240101")):
        with pytest.raises(UserError, match=f"no checksum list names the pages-articles dump of {date}.*--dump_date"):
            fetch_datasets(["wikicorpus_en"], request)
    assert not request_of().data_dir.exists()


# --------------------------------------------------------------------------------------------------------------- pubmed


def put_pubmed(mirror: Path, number: int, folder: str = "pubmed/baseline") -> str:
    name = f"pubmed25n{number:04d}.xml.gz"
    data = put(mirror, f"{folder}/{name}", b"records %d" % number)
    put(mirror, f"{folder}/{name}.md5", f"MD5({name})= {hashlib.md5(data).hexdigest()}\n".encode())
    return name


def test_pubmed(mirror, request_of):
    names = [put_pubmed(mirror, number) for number in (1, 2)]
    put(mirror, "pubmed/baseline/README.txt", b"x")
    request = request_of()
    fetch_datasets(["pubmed_baseline"], request)
    there = tree(request.data_dir / "download/pubmed/baseline")
    assert there == sorted([*names, *(f"{name}.md5" for name in names), "source.json"])
    put_pubmed(mirror, 3)
    fetch_datasets(["pubmed_baseline"], request)
    assert tree(request.data_dir / "download/pubmed/baseline") == there
    assert is_there("pubmed_baseline", request_of(dump_date="20250101"))  # which is Wikipedia's
    fetch_datasets(["pubmed_baseline"], request_of(dump_date="20250101"))
    assert tree(request.data_dir / "download/pubmed/baseline") == there
    fetch_datasets(["pubmed_baseline"], request_of(renew=True))
    assert len(tree(request.data_dir / "download/pubmed/baseline")) == len(there) + 2
    put_pubmed(mirror, 1, "pubmed/updatefiles")
    fetch_datasets(["pubmed_daily_update"], request)
    assert (request.data_dir / "download/pubmed/daily_update/pubmed25n0001.xml.gz").is_file()


def test_pubmed_that_is_wrong(mirror, request_of):
    (mirror / "pubmed/baseline").mkdir(parents=True)
    with pytest.raises(UserError, match="no file there is called"):
        fetch_datasets(["pubmed_baseline"], request_of())
    name = put_pubmed(mirror, 1)
    put(mirror, f"pubmed/baseline/{name}", b"records 2")
    with pytest.raises(UserError, match="has md5"):
        fetch_datasets(["pubmed_baseline"], request_of())
    put_pubmed(mirror, 1)
    put(mirror, f"pubmed/baseline/{name}.md5", b"<html>moved</html>")
    (request_of().data_dir / f"download/pubmed/baseline/{name}.md5").unlink()
    with pytest.raises(UserError, match="holds no MD5"):
        fetch_datasets(["pubmed_baseline"], request_of())
    (mirror / f"pubmed/baseline/{name}.md5").unlink()
    (request_of().data_dir / f"download/pubmed/baseline/{name}.md5").unlink()
    with pytest.raises(UserError, match=r"cannot download .*\.md5"):
        fetch_datasets(["pubmed_baseline"], request_of())


def test_full_texts(mirror, request_of):
    put(mirror, "pub/pmc/oa_bulk/oa_comm/xml/oa_comm_xml.PMC000xxxxxx.baseline.2025-06-26.tar.gz", b"x")
    put(mirror, "pub/pmc/oa_bulk/oa_comm/xml/oa_comm_xml.PMC000xxxxxx.baseline.2025-06-26.filelist.csv", b"x")
    put(mirror, "pub/pmc/oa_bulk/oa_noncomm/xml/oa_noncomm_xml.incr.2025-07-01.tar.gz", b"x")
    fetch_datasets(["pubmed_fulltext", "pubmed_open_access"], request_of())
    assert len([name for name in tree(request_of().data_dir) if name.endswith(".tar.gz")]) == 2


# ----------------------------------------------------------------------------------------------- sizes, server, command


def test_sizes(mirror, request_of):
    assert listed_bytes("squad") == 81_636_712 and listed_bytes("nvidia_squad11_base_128") is None
    assert listed_bytes("wikicorpus_zh") is None and listed_bytes("bookscorpus") is None
    assert asked_bytes("wikicorpus_en", request_of()) is None
    put_dump(mirror, "20250101", b"text")
    n_bytes = (mirror / "enwiki/20250101/enwiki-20250101-pages-articles-multistream.xml.bz2").stat().st_size
    assert asked_bytes("wikicorpus_en", request_of()) == n_bytes
    for number in range(1, 101):
        put_pubmed(mirror, number)
    assert 900 <= asked_bytes("pubmed_baseline", request_of()) <= 1100  # from a sample
    assert not request_of().data_dir.exists()  # asking leaves nothing


def test_from_a_server(monkeypatch, tmp_path, mirror):
    put_dump(mirror, "20250101", b"text")
    put_pubmed(mirror, 1)
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    http = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=mirror))
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        request = Request(tmp_path / "data", (f"http://127.0.0.1:{http.server_address[1]}",), options=QUICK)
        assert asked_bytes("wikicorpus_en", request)
        fetch_datasets(["wikicorpus_en", "pubmed_baseline"], request)
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
    assert dump_text(request.data_dir) == b"text-multistream" and is_there("pubmed_baseline", request)


def test_command_line(tmp_path, mirror):
    def call(*words: object) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "data.datasets", *map(str, words)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    listed = call("list")
    assert listed.returncode == 0 and "glue: cola sst-2" in listed.stdout
    put_dump(mirror, "20250101", b"text")
    flags = ("--data_dir", tmp_path / "data", "--mirror", mirror)
    planned = call("fetch", "wikicorpus_en", "squad", "--plan", *flags)
    assert planned.returncode == 0 and "download squad" in planned.stdout and not (tmp_path / "data").exists()
    done = call("fetch", "wikicorpus_en", *flags, "--dump_date", "20250101")
    assert done.returncode == 0 and "sha1 right" in done.stdout, done.stderr
    for words, message in (
        (("fetch", "nothing"), "no data set 'nothing'"),
        (("fetch", "wikicorpus_en", "--dump_date", "latest"), "as in 20250101"),
        (("fetch", "squad", "--mirorr", "x"), "unrecognized"),
        (("fetch", "squad", *flags), "train-v1.1.json: No such file"),
    ):
        failed = call(*words)
        assert failed.returncode == 2 and message in failed.stderr
