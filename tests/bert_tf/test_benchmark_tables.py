"""Tables of the fine-tuning benchmarks: folders of runs go in, the published columns and logs come out."""

import csv
import json
from pathlib import Path

import pytest

from bert_tf import benchmark_tables as tables
from runkit.errors import UserError

LATENCIES = {f"latency_{p}_ms": 10.0 + i for i, p in enumerate(("average", 50, 90, 95, 99, 100))}


def leave_run(folder: Path, name: str, summary: dict | None) -> None:
    (folder / name).mkdir(parents=True)
    if summary is not None:
        (folder / name / "summary.json").write_text(json.dumps(summary), encoding="utf-8")


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def is_png(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


def test_training(tmp_path: Path, capsys):
    """Sorted by numbers, not by names; a failed run says so; the folder of another sweep takes no part."""
    for batch, mode, precision, throughput in ((1, "amp", "fp16", 102.345), (12, "amp", "fp16", 767.1)):
        summary = {"precision": precision, "sequences_per_second": throughput, "train_loss": 1.0}
        leave_run(tmp_path, f"bert_large_gpu_8_sl_128_prec_--{mode}_bs_{batch}", summary)
    leave_run(tmp_path, "bert_large_gpu_8_sl_128_prec_--noamp_bs_2", None)
    leave_run(tmp_path, "bert_large_inf_sl_128_prec_--noamp_bs_2", {"inference": {"sequences_per_second": 1.0}})
    tables.main(["train", str(tmp_path)])

    rows = read_csv(tmp_path / "squad_training_benchmark.csv")
    assert list(rows[0]) == [
        "Model",
        "Processes",
        "Precision",
        "Sequence Length",
        "Batch size",
        "Performance(sent/sec)",
    ]
    assert [list(row.values()) for row in rows] == [
        ["large", "8", "fp16", "128", "1", "102.345"],
        ["large", "8", "noamp", "128", "2", "failed"],
        ["large", "8", "fp16", "128", "12", "767.1"],
    ]
    log = (tmp_path / "squad_training_benchmark_bert_large_gpu_8.log").read_text(encoding="utf-8")
    assert log.splitlines() == [
        "Precision, Sequence Length, Batch size, Performance(sent/sec)",
        "fp16 128 1 102.3",
        "noamp 128 2 failed",
        "fp16 128 12 767.1",
    ]
    markdown = (tmp_path / "squad_training_benchmark.md").read_text(encoding="utf-8")
    assert "1 of 3 runs failed." in markdown and "| large | 8 | noamp | 128 | 2 | failed |" in markdown
    assert "machine unknown" in markdown and "767.1" in capsys.readouterr().out
    assert is_png(tmp_path / "squad_training_benchmark.png")


def test_inference(tmp_path: Path):
    """Figures of an evaluation or a prediction; a log for each model."""
    figures = {"precision": "bf16", "sequences_per_second": 50.0, **LATENCIES}
    leave_run(tmp_path, "bert_base_inf_sl_384_prec_--amp_bs_1", {"inference": figures})
    leave_run(tmp_path, "bert_large_inf_sl_384_prec_--amp_bs_1", {"prediction": figures})
    leave_run(tmp_path, "bert_large_inf_sl_384_prec_--amp_bs_8", {"inference": {}})
    tables.main(["machine", str(tmp_path)])
    tables.main(["inference", str(tmp_path), "--task", "rel_chemprot"])

    rows = read_csv(tmp_path / "rel_chemprot_inference_benchmark.csv")
    assert list(rows[0]) == [
        "Model",
        "Sequence-Length",
        "Batch-size",
        "Precision",
        "Throughput-Average(sent/sec)",
        "Latency-Average(ms)",
        "Latency-50%(ms)",
        "Latency-90%(ms)",
        "Latency-95%(ms)",
        "Latency-99%(ms)",
        "Latency-100%(ms)",
    ]
    assert list(rows[0].values()) == "base 384 1 bf16 50.0 10.0 11.0 12.0 13.0 14.0 15.0".split()
    assert list(rows[2].values())[3:5] == ["amp", "failed"]
    for model, lines in (("base", 2), ("large", 3)):
        log = tmp_path / f"rel_chemprot_inference_benchmark_bert_{model}.log"
        assert len(log.read_text(encoding="utf-8").splitlines()) == lines
    assert "machine unknown" not in (tmp_path / "rel_chemprot_inference_benchmark.md").read_text(encoding="utf-8")
    for kind in ("latency", "throughput"):
        assert is_png(tmp_path / f"rel_chemprot_inference_benchmark_{kind}.png")


def test_a_sweep_in_which_all_failed_has_a_table_but_no_plot(tmp_path: Path):
    leave_run(tmp_path, "bert_tiny_gpu_1_sl_128_prec_--amp_bs_1", None)
    tables.main(["train", str(tmp_path)])
    assert "failed" in (tmp_path / "squad_training_benchmark.md").read_text(encoding="utf-8")
    assert not list(tmp_path.glob("*.png"))


def test_a_folder_without_runs_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="no folder of an inference run"):
        tables.main(["inference", str(tmp_path)])
