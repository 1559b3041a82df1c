import json
import os
import re
import warnings

import numpy as np
import pytest

from runkit.errors import UserError
from runkit.log import RunLog, goal, read_log


def make(tmp_path, **kwargs):
    return RunLog(tmp_path / "run" / "log.json", **kwargs)


def test_lines_are_those_of_dllogger(tmp_path):
    """Keys, their order and their types as JSONStreamBackend of github.com/NVIDIA/dllogger writes them."""
    log = make(tmp_path)
    log.parameters({"seed": 42})
    log.metadata("total_loss", unit="nat")
    log.log(7, {"total_loss": 9.5})
    log.log((), {"total_loss": 9.25})
    log.close()
    lines = (tmp_path / "run" / "log.json").read_text().splitlines()
    seconds, moment = r'"\d+\.\d+(e-\d+)?"', r'"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+"'
    stamp = rf'"timestamp": {seconds}, "datetime": {moment}, "elapsedtime": {seconds}, "type": "LOG"'
    assert re.fullmatch(rf'DLLL {{{stamp}, "step": "PARAMETER", "data": {{"seed": 42}}}}', lines[0])
    assert re.fullmatch(
        rf'DLLL {{"timestamp": {seconds}, "elapsedtime": {seconds}, "datetime": {moment}, '
        r'"type": "METADATA", "metric": "total_loss", "metadata": {"unit": "nat", "GOAL": "MINIMIZE"}}',
        lines[1],
    )
    assert re.fullmatch(rf'DLLL {{{stamp}, "step": 7, "data": {{"total_loss": 9.5}}}}', lines[2])
    assert re.fullmatch(rf'DLLL {{{stamp}, "step": \[\], "data": {{"total_loss": 9.25}}}}', lines[3])


def test_goals():
    for metric in (
        "f1",
        "precision",
        "recall",
        "mcc",
        "exact_match",
        "masked_lm_accuracy",
        "throughput_train",
        "throughput_val",
        "sequences_per_second",
        "eval_accuracy",
    ):
        assert goal(metric) == "MAXIMIZE", metric
    for metric in ("loss", "mlm_loss", "nsp_loss", "total_loss", "avg_loss_step", "wer", "latency_ms"):
        assert goal(metric) == "MINIMIZE", metric
    for metric in ("learning_rate", "loss_scaler", "loss_scale", "step"):
        assert goal(metric) is None, metric


def test_a_wrong_goal_is_refused_and_an_unknown_one_left_open(tmp_path):
    log = make(tmp_path)
    with pytest.raises(ValueError, match="f1: GOAL is MAXIMIZE"):
        log.metadata("f1", GOAL="MINIMIZE")
    log.metadata("rescues", GOAL="MINIMIZE")
    log.metadata("learning_rate")
    log.close()
    metadata = [record["metadata"] for record in read_log(tmp_path / "run" / "log.json")]
    assert metadata == [{"GOAL": "MINIMIZE"}, {}]


def test_console_lines_have_step_format_and_unit(tmp_path, capsys):
    log = make(tmp_path)
    log.metadata("total_loss", unit="nat", format=":.3f")
    log.metadata("throughput_train", unit="sequences/s")
    log.log(12, {"total_loss": np.float32(9.87654), "throughput_train": 1234.56789, "skipped": 0})
    log.log((1, 5), {"total_loss": None})
    log.log((), {"total_loss": float("nan")})
    log.log(13, {"total_loss": 1.0}, echo=False)
    log.parameters({"seed": 1})
    log.info("hello")
    log.warning("disk nearly full")
    assert capsys.readouterr().out.splitlines() == [
        "Iteration: 12  total_loss : 9.877 nat  throughput_train : 1234.57 sequences/s  skipped : 0",
        "Epoch: 1  Iteration: 5  total_loss : None nat",
        "total_loss : nan nat",
        "hello",
        "warning: disk nearly full",
    ]
    assert read_log(tmp_path / "run" / "log.json")[-1]["data"] == {"warning": "disk nearly full"}


def test_numpy_values_are_numbers(tmp_path):
    log = make(tmp_path)
    log.log(np.int64(3), {"a": np.float32(0.5), "b": np.arange(2)})
    log.close()
    [record] = read_log(tmp_path / "run" / "log.json")
    assert (record["step"], record["data"]) == (3, {"a": 0.5, "b": [0, 1]})


def test_lines_are_flushed(tmp_path):
    log = make(tmp_path)
    log.log(1, {"a": 1})
    assert len(read_log(tmp_path / "run" / "log.json")) == 1


def test_other_ranks_write_nothing(tmp_path, capsys):
    log = make(tmp_path, rank=1)
    log.metadata("loss")
    log.parameters({"a": 1})
    log.log(1, {"a": 1})
    log.info("x")
    log.warning("x")
    log.close()
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_a_resumed_run_appends(tmp_path):
    for step in (1, 2):
        log = make(tmp_path, append=True)
        log.log(step, {"a": 1})
        log.close()
    assert [record["step"] for record in read_log(tmp_path / "run" / "log.json")] == [1, 2]


@pytest.mark.parametrize("cut", [1, 4, 20, 100])
def test_a_torn_line_spoils_only_itself(tmp_path, cut):
    path = tmp_path / "run" / "log.json"
    log = make(tmp_path)
    log.log(1, {"a": 1})
    log.log(2, {"a": 1})
    log.close()
    whole = path.read_bytes()
    last = whole.rindex(b"DLLL ")
    path.write_bytes(whole[: last + cut])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [record["step"] for record in read_log(path)] == [1]
        log = make(tmp_path, append=True)
        log.log(2, {"a": 1})
        log.close()
        assert [record["step"] for record in read_log(path)] == [1, 2]
    assert path.read_bytes().startswith(whole[: last + cut] + b"\nDLLL ")


def test_torn_lines_are_named(tmp_path):
    (tmp_path / "log.json").write_text('console text\nDLLL {"type": "LOG"}\nDLLL {"ty')
    with pytest.warns(UserWarning, match=r"log\.json:3: torn line"):
        assert read_log(tmp_path / "log.json") == [{"type": "LOG"}]


def test_a_new_run_moves_an_older_log_aside(tmp_path):
    for step in (1, 2, 3):
        log = make(tmp_path)
        log.log(step, {})
        log.close()
    paths = [tmp_path / "run" / name for name in ("log.json.1", "log.json.2", "log.json")]
    assert [read_log(path)[0]["step"] for path in paths] == [1, 2, 3]


def test_files_that_cannot_be_read_or_written_are_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.json: No such file"):
        read_log(tmp_path / "none.json")
    with pytest.raises(UserError, match="run is a folder"):
        (tmp_path / "run").mkdir()
        RunLog(tmp_path / "run", append=True)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full, a file on a disk always full")
def test_a_full_disk_is_named():
    log = RunLog("/dev/full", append=True)
    for write in (lambda: log.log(1, {"a": 1}), log.close):
        with pytest.raises(UserError, match="cannot write /dev/full: No space left"):
            write()


def test_console_only(capsys):
    log = RunLog(None)
    log.log(1, {"a": 1})
    log.close()
    assert capsys.readouterr().out == "Iteration: 1  a : 1\n"


def test_every_line_is_one_json_object(tmp_path):
    log = make(tmp_path)
    log.info("two\nlines, \u2028 and é")
    log.close()
    [line] = (tmp_path / "run" / "log.json").read_bytes().splitlines()
    assert json.loads(line.removeprefix(b"DLLL "))["data"] == {"info": "two\nlines, \u2028 and é"}


def test_a_folder_is_not_taken_for_a_log(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "precious.txt").write_text("kept")
    with pytest.raises(UserError, match="results is a folder"):
        RunLog(folder)
    assert (folder / "precious.txt").read_text() == "kept"
