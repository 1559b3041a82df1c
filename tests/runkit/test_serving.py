"""What stands around a Triton server, without one: addresses, repositories, measurements, and answers one by one."""

import importlib
import socket
import sys
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest

from runkit.errors import UserError
from runkit.exports import check_files, check_output_dir, read_metadata, write_metadata
from runkit.serving import load, server
from runkit.serving.client import Address, is_alive, texts
from runkit.serving.repository import Serving, behind, in_front, python_model, write_model


# ------------------------------------------------------------------------------------------------------- addresses
@pytest.mark.parametrize(
    "protocol, url, expected",
    [
        ("gRPC", None, Address("grpc", "localhost:8001")),
        ("HTTP", None, Address("http", "localhost:8000")),
        ("http", "http://far:80/", Address("http", "far:80")),
        ("grpc", "far", Address("grpc", "far:8001")),
    ],
)
def test_addresses(protocol, url, expected):
    assert Address.of(protocol, url) == expected


@pytest.mark.parametrize(
    "protocol, url, message", [("ftp", None, "must be HTTP or gRPC"), ("grpc", "a:b", "HOST:PORT")]
)
def test_what_is_no_address(protocol, url, message):
    with pytest.raises(UserError, match=message):
        Address.of(protocol, url)


def test_texts_are_columns_of_bytes():
    values = texts(["ä", b"\x00\xff"])
    assert values.shape == (2, 1) and values.tolist() == [["ä".encode()], [b"\x00\xff"]]


def test_whether_a_process_lives(tmp_path):
    import os

    (tmp_path / "pid").write_text(f"{os.getpid()}\n")
    assert is_alive(str(tmp_path / "pid")) and is_alive(None) and is_alive(str(tmp_path / "none"))
    (tmp_path / "pid").write_text("4194305\n")  # above any number of Linux
    assert not is_alive(str(tmp_path / "pid"))


# ---------------------------------------------------------------------------------------------------- repositories
def test_a_model_is_put_in_place_whole_and_replaced_only_when_told(tmp_path):
    file = tmp_path / "weights"
    file.write_bytes(b"1")
    files = {"model.py": python_model("some.module"), "model.onnx": file}
    folder = write_model(tmp_path / "models", "m", 3, "name: 'm'", files)
    assert (folder / "config.pbtxt").read_text() == "name: 'm'" and (folder / "3" / "model.onnx").read_bytes() == b"1"
    assert "from some.module import TritonPythonModel" in (folder / "3" / "model.py").read_text()
    with pytest.raises(UserError, match="--triton_model_overwrite"):
        write_model(tmp_path / "models", "m", 4, "", files)
    write_model(tmp_path / "models", "m", 4, "new", files, overwrite=True)
    assert sorted(path.name for path in folder.iterdir()) == ["4", "config.pbtxt"]
    (tmp_path / "models" / "other").mkdir()
    (tmp_path / "models" / "other" / "thesis").touch()
    with pytest.raises(UserError, match="other files"):
        write_model(tmp_path / "models", "other", 1, "", files, overwrite=True)
    assert (tmp_path / "models" / "other" / "thesis").exists()


def test_a_model_that_another_asks_does_not_wait_again():
    waiting = Serving(delay_ms=5.0, gpu=True)
    assert behind(waiting).delay_ms == 0 and behind(Serving()).delay_ms is None
    assert in_front(waiting) == waiting._replace(gpu=False)


def test_a_server_is_not_started_in_vain(tmp_path):
    with pytest.raises(UserError, match="there is no folder"):
        server.check_repository(tmp_path / "none")
    with pytest.raises(UserError, match="holds no model"):
        server.check_repository(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UserError, match="another --http_port"):
        server.check_port("http", "127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UserError, match="is not an executable"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_SERVER", str(tmp_path / "none"))
        server.server_command()


# ---------------------------------------------------------------------------------------------------------- exports
def test_exports_are_known_by_their_hashes(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "file").write_text("content")
    write_metadata(tmp_path, {"head": "span"})
    assert read_metadata(tmp_path, ("head",), "maker")["head"] == "span"
    check_files(tmp_path, ["sub/file"], "maker")
    check_output_dir(tmp_path)  # an earlier export
    with pytest.raises(UserError, match="has no labels: it was made by another program or an older one; use maker"):
        read_metadata(tmp_path, ("head", "labels"), "maker")
    with pytest.raises(UserError, match="has no other; it has sub/file"):
        check_files(tmp_path, ["other"], "maker")
    (tmp_path / "sub" / "file").write_text("changed")
    with pytest.raises(UserError, match=r"not what metadata\.json describes"):
        check_files(tmp_path, ["sub/file"], "maker")


# ----------------------------------------------------------------------------------------------------- measurements
class FakeClient:
    """Answers after 10 ms, but the 3rd request not at all."""

    count, lock = 0, threading.Lock()

    def __init__(self, address):
        assert address == Address("grpc", "here:1")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def infer(self, model, inputs, outputs, version):
        with self.lock:
            FakeClient.count += 1
            number = FakeClient.count
        time.sleep(0.01)
        if number == 3:
            raise UserError("the third")


def test_a_measurement_counts_answers_and_errors(monkeypatch):
    monkeypatch.setattr(load, "Client", FakeClient)
    asked = load.Load("m", "", [{"x": np.zeros(1)}], ["y"], "items", per_request=4)
    measured = load.measure(asked, Address("grpc", "here:1"), 2, seconds=0.3, warm_up=0.1)
    assert measured.errors == ["the third"]
    assert 4 <= len(measured.latencies) <= 60 and measured.latencies.min() >= 0.01


def test_rows_are_percentiles_in_milliseconds():
    latencies = np.arange(1, 101) / 1000
    figures = load.row(load.Measured(4, latencies, ["lost"], 2.0), load.Load("m", "", [], [], "questions", 2))
    assert figures["questions/s"] == 100 * 2 / 2.0 and figures["p50 ms"] == pytest.approx(50.5)
    assert figures["p99 ms"] == pytest.approx(99.01) and figures["mean ms"] == pytest.approx(50.5)
    assert figures["requests"] == 100 and figures["errors"] == 1 and figures["clients"] == 4


# --------------------------------------------------------------------------------------------- inside the server
@pytest.fixture
def model(monkeypatch):
    """runkit.serving.model with a stand-in for what the server's processes have."""
    fake = types.ModuleType("triton_python_backend_utils")

    class TritonError(Exception):
        INVALID_ARG = 3

        def __init__(self, text, code):
            super().__init__(text)
            assert code == self.INVALID_ARG

    fake.TritonError = TritonError
    fake.Tensor = lambda name, values: (name, values)
    fake.InferenceResponse = lambda outputs=None, error=None: str(error) if error else dict(outputs)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", fake)
    monkeypatch.delitem(sys.modules, "runkit.serving.model", raising=False)
    yield importlib.import_module("runkit.serving.model")
    sys.modules.pop("runkit.serving.model", None)


def test_one_bad_request_does_not_spoil_those_that_wait_with_it(model):
    def read(request):
        if request == "unreadable":
            raise UserError("cannot be read")
        return request

    def answer(asked):
        if "unanswerable" in asked:
            raise UserError("cannot be answered")
        return [{"out": len(asked) * one} for one in asked]

    assert model.respond([1, "unreadable", 2], read, answer) == [{"out": 2}, "cannot be read", {"out": 4}]
    assert model.respond(["unreadable"], read, answer) == ["cannot be read"]
    found = model.respond([1, "unanswerable", 2], read, answer)  # each alone
    assert found == [{"out": 1}, "cannot be answered", {"out": 2}]


def test_arguments_are_those_of_the_version(model):
    config = '{"name": "m", "parameters": {"threads": {"string_value": "2"}}}'
    arguments = model.Arguments({"model_config": config, "model_repository": "/models/m", "model_version": "3"})
    assert arguments.folder == Path("/models/m/3") and arguments.parameters == {"threads": "2"}
