"""Benchmark tables against the published ones: throughputs and latencies go in as logs, the other columns come out."""

import csv
from pathlib import Path

import pytest

from jasper_pt import benchmark_tables as tables
from runkit.errors import UserError
from runkit.log import RunLog

# QuartzNet 15x5 on 1, 4 and 8 A100-80GB: batch, accumulation, GPUs, published utterances/s with TF32 and with mixed
# precision; then their quotients: speed-up, and weak scaling of both.
PUBLISHED_TRAINING = [
    (48, 24, 1, 78.89, 89.69, 1.14, 1.00, 1.00),
    (72, 16, 1, 79.01, 88.70, 1.12, 1.00, 1.00),
    (48, 6, 4, 303.16, 343.06, 1.13, 3.84, 3.82),
    (72, 4, 4, 304.47, 341.95, 1.12, 3.85, 3.86),
    (48, 3, 8, 576.37, 644.27, 1.12, 7.31, 7.18),
    (72, 2, 8, 583.31, 651.60, 1.12, 7.38, 7.35),
]


def write_log(path: Path, results: dict, **parameters) -> None:
    log = RunLog(path)
    log.parameters(parameters)
    log.log((1, 1, 1), {"train_throughput": 1.0}, echo=False)
    if results:
        log.log((), results, echo=False)
    log.close()


def write_training_log(folder: Path, name: str, throughput: float, **parameters) -> None:
    results = {"train_avg_throughput": throughput, "train_avg_benchmark_epochs_num": 2, "train_avg_loss": 5.0}
    write_log(folder / f"perf-train_dali-{name}.json", results, **parameters)


def write_inference_log(folder: Path, name: str, mean: float, **parameters) -> None:
    """Latencies of the model with this mean, percentiles 1 to 4 ms above it; loading takes 10 ms."""
    results = {
        f"{series}_latency_{key}": value
        for series, base in (("dnn", mean), ("data", 10.0), ("data+dnn", mean + 10))
        for key, value in (
            ("mean", base),
            ("median", base + 1),
            ("0_9", base + 2),
            ("0_95", base + 3),
            ("0_99", base + 4),
        )
    }
    write_log(folder / f"perf-infer_dali-{name}.json", results, **parameters)


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def is_png(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


def test_published_training_table(tmp_path: Path):
    machine = {"cpu": "some CPU", "gpus": ["NVIDIA A100"] * 8, "packages": {"torch": "2.14.1"}}
    shared = {"machine": machine, "device": "cuda:0", "config": {"name": "QuartzNet"}}
    for batch, accumulation, gpus, full, mixed, *_ in PUBLISHED_TRAINING:
        setting = f"1x{gpus}x{batch}x{accumulation}"
        write_training_log(tmp_path, f"gpu_amp-false_{setting}", full, precision="tf32", **shared)
        write_training_log(tmp_path, f"gpu_amp-true_{setting}", mixed, precision="fp16", **shared)
    tables.write_training(tmp_path)

    rows = read_csv(tmp_path / "perf-train.csv")
    assert list(rows[0]) == [
        "Batch size / process",
        "Grad accumulation",
        "Processes",
        "DALI",
        "Throughput tf32 (utts/s)",
        "Throughput fp16 (utts/s)",
        "Speed-up",
        "Weak scaling tf32",
        "Weak scaling fp16",
    ]
    found = {tuple(int(x) for x in list(row.values())[:3]): list(row.values())[4:] for row in rows}
    assert len(found) == len(PUBLISHED_TRAINING)
    for *setting, full, mixed, speed_up, scaling_full, scaling_mixed in PUBLISHED_TRAINING:
        values = [float(value) for value in found[tuple(setting)]]
        assert values[:2] == [full, mixed]
        assert values[2:] == pytest.approx([speed_up, scaling_full, scaling_mixed], abs=0.006)

    markdown = (tmp_path / "perf-train.md").read_text(encoding="utf-8")
    assert markdown.startswith(
        "Training throughput: QuartzNet, NVIDIA A100, PyTorch 2.14.1. Mean over the last 2 epochs."
    )
    assert "|     72 |" not in markdown and "| 72 | 2 | 8 | gpu | 583.3 | 651.6 | 1.117 | 7.383 | 7.346 |" in markdown
    assert is_png(tmp_path / "perf-train.png")


def test_what_was_not_run_is_a_dash_or_left_out(tmp_path: Path):
    """No run without AMP, so no columns for it and no speed-up; no single process with a batch of 8."""
    write_training_log(tmp_path, "none_amp-true_1x2x8x2", 20.0)
    write_training_log(tmp_path, "none_amp-true_1x1x16x2", 12.0)
    tables.write_training(tmp_path)
    two, one = read_csv(tmp_path / "perf-train.csv")
    assert list(one)[4:] == ["Throughput mixed precision (utts/s)", "Weak scaling mixed precision"]
    assert list(one.values())[4:] == ["12.0", "1.0"] and list(two.values())[4:] == ["20.0", ""]
    assert "| 8 | 2 | 2 | none | 20 | - |" in (tmp_path / "perf-train.md").read_text(encoding="utf-8")


def test_weak_scaling_prefers_the_same_accumulation(tmp_path: Path):
    for name, throughput in (("1x1x8x2", 10.0), ("1x1x8x4", 16.0), ("1x2x8x2", 18.0), ("1x2x8x1", 16.0)):
        write_training_log(tmp_path, f"none_amp-false_{name}", throughput)
    runs = tables.read_runs(tmp_path, tables.TRAIN_LOG, tables.read_training_run)
    scaling = {
        (row["Grad accumulation"], row["Processes"]): row["Weak scaling full precision"]
        for row in tables.training_table(runs)
    }
    assert scaling == {(2, 1): 1.0, (4, 1): 1.0, (2, 2): 1.8, (1, 2): 1.0}


def test_jasper_names_say_the_accumulated_batch(tmp_path: Path):
    """Published throughputs of Jasper on 8 A100: 310.10 and 470.09 utterances/s with 32 on each."""
    write_training_log(tmp_path, "gpu_amp-false_ngpus8_bs32", 310.10, grad_accumulation=2)
    write_training_log(tmp_path, "gpu_amp-true_ngpus8_bs32", 470.09, grad_accumulation=2)
    runs = tables.read_runs(tmp_path, tables.TRAIN_LOG, tables.read_training_run)
    (row,) = tables.training_table(runs)
    assert (row["Batch size / process"], row["Grad accumulation"], row["Processes"]) == (16, 2, 8)
    assert row["Speed-up"] == pytest.approx(1.5159, abs=1e-4)


def test_published_inference_table(tmp_path: Path):
    """QuartzNet on A100, batch 16 of 16.7 s: 57.78 ms with fp16, 61.49 with TF32; 1 of 2 s: 35.71 and 33.23."""
    for setting, fp16, tf32 in (("dur16.7_bs16", 57.78, 61.49), ("dur2_bs1", 35.71, 33.23)):
        write_inference_log(tmp_path, f"cpu_amp-true_{setting}", fp16, precision="fp16")
        write_inference_log(tmp_path, f"cpu_amp-false_{setting}", tf32, precision="tf32")
    tables.write_inference(tmp_path)
    rows = {
        (row["Series"], row["Batch size"], row["Duration (s)"]): row for row in read_csv(tmp_path / "perf-infer.csv")
    }
    assert len(rows) == 6
    large, small = rows["dnn", "16", "16.7"], rows["dnn", "1", "2.0"]
    assert float(large["Speed-up"]) == pytest.approx(1.0642, abs=1e-4)
    assert float(small["Speed-up"]) == pytest.approx(0.9306, abs=1e-4)
    assert float(large["fp16 (s of audio / s)"]) == pytest.approx(4624.4, abs=0.1)  # 16 x 16.7 s in 57.78 ms
    assert [float(small[f"tf32 {column} (ms)"]) for column in ("50 %", "90 %", "95 %", "99 %", "mean")] == [
        34.23,
        35.23,
        36.23,
        37.23,
        33.23,
    ]
    assert rows["data", "1", "2.0"]["fp16 mean (ms)"] == "10.0"
    assert float(rows["data+dnn", "1", "2.0"]["fp16 mean (ms)"]) == pytest.approx(45.71)
    markdown = (tmp_path / "perf-infer.md").read_text(encoding="utf-8")
    assert [line for line in markdown.splitlines() if line.startswith("## ")] == [
        "## dnn: the model",
        "## data: loading and features",
        "## data+dnn: both",
    ]
    assert is_png(tmp_path / "perf-infer.png")


def test_unfinished_runs_are_named(tmp_path: Path, capsys):
    write_training_log(tmp_path, "none_amp-false_1x1x8x2", 10.0)
    write_log(tmp_path / "perf-train_dali-none_amp-false_1x2x8x1.json", {})
    write_log(tmp_path / "perf-train_something_else.json", {"train_avg_throughput": 1.0})
    tables.write_training(tmp_path)
    assert "1x2x8x1.json: no train_avg_throughput: the run did not finish" in capsys.readouterr().err
    assert len(read_csv(tmp_path / "perf-train.csv")) == 1


def test_a_folder_without_runs_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"no finished run among its 0 logs perf-infer_\*\.json"):
        tables.write_inference(tmp_path)


def test_the_last_run_in_a_log_counts(tmp_path: Path):
    path = tmp_path / "perf-train_dali-none_amp-false_1x1x8x2.json"
    for throughput in (5.0, 7.0):
        log = RunLog(path, append=True)
        log.parameters({"precision": "fp32"})
        log.log((), {"train_avg_throughput": throughput, "train_avg_benchmark_epochs_num": 2}, echo=False)
        log.close()
    (run,) = tables.read_runs(tmp_path, tables.TRAIN_LOG, tables.read_training_run)
    assert run.throughput == 7.0
