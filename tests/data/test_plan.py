"""data/plan.py: what is said to come, and when it is refused."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from data import plan as planning
from data.datasets import Request
from data.plan import DOWNLOAD_RATE, EXTRACTION, MB, RECORDS, SHARDING, download_rows, needed, plan, record_ratio, table
from data.registry import DATASETS
from runkit.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    (tmp_path / "mirror").mkdir()
    return Request(tmp_path / "data", (str(tmp_path / "mirror"),))


def stages(rows) -> list[str]:
    return [row.stage for row in rows]


def fill(path: Path, n_bytes: int = 1000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(n_bytes))
    return path


def test_wikipedia(request_):
    rows = plan("wiki_only", request_, n_processes=4, vocab=["uncased_L-12_H-768_A-12"])
    assert stages(rows) == [
        "download uncased_L-12_H-768_A-12",
        "download wikicorpus_en",
        "text of wikicorpus_en",
        "sharding",
        "records 128/20",
        "records 512/80",
    ]
    weights, dump, text, sharding, short, long = rows
    assert weights.guessed and dump.guessed and dump.reads == 22e9 and dump.seconds == 22e9 / DOWNLOAD_RATE
    assert text.reads == pytest.approx(22e9 * 3.9) and text.seconds == pytest.approx(text.reads / EXTRACTION.rate / 4)
    assert sharding.reads == sharding.writes == text.writes
    assert sharding.seconds == pytest.approx(sharding.reads / SHARDING.rate / 4)
    assert short.writes < long.writes and short.memory == RECORDS.lead_memory + 4 * RECORDS.worker_memory
    assert needed(rows) == sum(row.writes for row in rows)
    printed = table(rows, request_.data_dir)
    assert "22.00 GB?" in printed and "a rough estimate" in printed and "disk: " in printed and "ETA" not in printed


def test_more_passes_and_processes(request_):
    five, ten = (plan("wiki_only", request_, dupe_factor=n)[-1] for n in (5, 10))
    assert ten.writes == 2 * five.writes and ten.seconds == pytest.approx(2 * five.seconds)
    for source in ("wiki_only", "pubmed"):
        short, long = record_ratio(source, 128, 5), record_ratio(source, 512, 5)
        assert record_ratio(source, 100, 5) == short < long == record_ratio(source, 384, 5)
    assert record_ratio("wiki_only", 512, 5) < record_ratio("pubmed", 512, 5)  # short documents leave more empty
    one, eight = (plan("wiki_only", request_, n_processes=n)[-1] for n in (1, 8))
    assert one.seconds == pytest.approx(8 * eight.seconds) and one.memory == RECORDS.lead_memory
    lengths = [(384, 60)]
    assert stages(plan("pubmed", request_, lengths=lengths))[-2:] == ["sharding", "records 384/60"]


def test_texts(request_, tmp_path):
    fill(tmp_path / "books" / "a.txt")
    fill(tmp_path / "books" / "deep" / "b.txt")
    rows = plan("books", request_, tmp_path / "books")
    assert stages(rows)[:2] == ["text of bookscorpus", "sharding"] and rows[0].reads == rows[1].reads == 2000
    rows = plan("wiki_books", request_, tmp_path / "books")
    assert stages(rows)[:3] == ["text of bookscorpus", "download wikicorpus_en", "text of wikicorpus_en"]
    assert rows[3].reads == 2000 + rows[2].writes
    assert plan("text", request_, tmp_path / "books" / "a.txt", "mine")[0].stage == "text of mine"
    for name in ("wikicorpus_en", "embedded"):  # names are the user's
        assert stages(plan("text", request_, tmp_path / "books", name))[:2] == [f"text of {name}", "sharding"]
    assert "download" not in " ".join(stages(plan("embedded", request_)))
    with pytest.raises(UserError, match="no such file or folder"):
        plan("books", request_)


def test_servers_are_asked(request_, tmp_path):
    folder = tmp_path / "mirror" / "enwiki" / "20250101"
    name = "enwiki-20250101-pages-articles-multistream.xml.bz2"
    fill(folder / name, 5000)
    (folder / "enwiki-20250101-sha1sums.txt").write_text(f"{'0' * 40}  {name}\n")
    (row,) = download_rows(["wikicorpus_en"], request_)
    assert row.reads == row.writes == 5000 and not row.guessed
    # What was received counts.
    fill(request_.data_dir / (DATASETS["wikicorpus_en"].source.path + ".partial"), 2000)
    (row,) = download_rows(["wikicorpus_en"], request_)
    assert row.writes == 3000 and row.seconds == 3000 / DOWNLOAD_RATE


def test_what_is_unknown(request_):
    rows = download_rows(["nvidia_pretrained", "bookscorpus", "squad"], request_)
    assert [row.writes for row in rows[:3]] == [None] * 3 and rows[3].writes == 0 and rows[4].writes == 81_636_712
    assert re.search("not in these sums.*nvidia_squad11_large_384", table(rows, request_.data_dir))
    assert needed(rows) == 81_636_712
    with pytest.raises(UserError, match="no data set"):
        download_rows(["none"], request_)


def test_what_is_there_is_not_counted(request_):
    data_dir = request_.data_dir
    text = fill(data_dir / "formatted_one_article_per_line" / "wikicorpus_en_one_article_per_line.txt", 7000)
    rows = plan("wiki_only", request_)
    assert rows[1].there and rows[1].writes == 0 and rows[2].reads == text.stat().st_size
    (data_dir / "sharded" / "wikicorpus_en").mkdir(parents=True)
    (data_dir / "sharded" / "wikicorpus_en" / "manifest.json").write_text("{}")
    folder = data_dir / "tfrecord" / "lower_case_1_seq_len_128_max_pred_20_x_dupe_factor_5_x" / "wikicorpus_en"
    fill(folder / "training" / "a.tfrecord", 3000)
    (folder / "stage.json").write_text('{"files": {}}')  # begun
    rows = plan("wiki_only", request_)
    assert [row.there for row in rows[2:]] == [True, False, False]
    assert rows[3].writes == pytest.approx(7000 * record_ratio("wiki_only", 128, 5) - 3000, abs=20)
    (folder / "stage.json").write_text('{"files": {"training/manifest.json": {}}}')
    assert plan("wiki_only", request_)[3].there
    assert "there" in table(plan("wiki_only", request_), data_dir)


def test_the_disk_is_looked_at(request_, monkeypatch, capsys):
    words = ["plan", "wiki_only", "--data_dir", str(request_.data_dir), "--mirror", request_.mirrors[0]]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10e9))
    with pytest.raises(UserError, match=r"all of it takes .* free some space"):
        planning.main()
    assert "records 512/80" in capsys.readouterr().out  # the plan comes first
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10e12))
    planning.main()
    assert not request_.data_dir.exists()


def test_command_line(tmp_path):
    def call(*words: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "data.plan", *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    fill(tmp_path / "a.txt", 100_000)
    flags = ["--data_dir", str(tmp_path / "data")]
    done = call("text", "--text", str(tmp_path / "a.txt"), "--name", "mine", "--seq_lengths", "64:10", *flags)
    assert done.returncode == 0 and "records 64/10" in done.stdout and "0.1 MB" in done.stdout, done.stderr
    for words in (["wiki"], ["embedded", "--seq_lengths", "128"], ["text", "--text", str(tmp_path / "none"), *flags]):
        assert call(*words).returncode == 2


def test_rates_are_plausible():
    """Bars of the recipe: a plan must not promise less than what the stages have to reach."""
    assert EXTRACTION.rate >= 6 * MB and SHARDING.rate >= 4 * MB and RECORDS.rate >= 8 * 0.17 * MB
