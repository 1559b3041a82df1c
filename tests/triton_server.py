"""A real Triton server for the tests, and what is sent to it.

The server and its client live in .venv/serving. Requests are asked there, by this file run as a program: a JSON list of
{"protocol", "model", "inputs": {name: {"dtype", "values" | "file" | "size"}}, "outputs"} on stdin gives a JSON list of
{name: values} or {"error": text} on stdout. A size stands for that many bytes.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".venv" / "serving" / "bin" / "python"
TIMEOUT = 240  # seconds that anything may take on a busy machine


class Server(NamedTuple):
    """A running server."""

    process: subprocess.Popen
    ports: dict[str, int]  # by protocol

    def ask(self, requests: Sequence[dict]) -> list[dict]:
        """The answers, in order."""
        told = [request | {"port": self.ports[request["protocol"]]} for request in requests]
        done = subprocess.run(
            [PYTHON, __file__],
            input=json.dumps(told),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            env=environment(),
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def run(self, module: str, *words: Any) -> subprocess.CompletedProcess:
        """One of our programs that speak to a server."""
        command = [PYTHON, "-m", module, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environment())


def require() -> None:
    """Skips the test where there is no server to start."""
    import pytest

    if not PYTHON.exists():
        pytest.skip("no Triton server: scripts/setup.sh serving installs one")


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def make(module: str, *words: Any) -> None:
    """Runs one of our makers of repositories."""
    subprocess.run([PYTHON, "-m", module, *map(str, words)], check=True, timeout=TIMEOUT, env=environment())


@contextlib.contextmanager
def running(repository: Path) -> Iterator[Server]:
    """A server with the models of a repository, ready; it must end by itself when it is told to."""
    ports = dict(zip(("http", "grpc", "metrics"), free_ports(3), strict=True))
    command = [PYTHON, "-m", "runkit.serving.server", repository, *(f"--{k}_port={v}" for k, v in ports.items())]
    log = repository.parent / "server.log"
    with open(log, "wb") as stream:
        process = subprocess.Popen(list(map(str, command)), stdout=stream, stderr=stream, env=environment())
    server = Server(process, ports)
    try:
        waited = server.run("runkit.serving.client", f"localhost:{ports['grpc']}", f"--seconds={TIMEOUT // 2}")
        assert waited.returncode == 0, waited.stderr + log.read_text(errors="replace")
        yield server
        assert process.poll() is None, log.read_text(errors="replace")  # nothing that was asked ended it
        process.terminate()
        assert process.wait(TIMEOUT) == 0
    finally:
        process.kill()
        process.wait()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def main() -> None:
    """Asks what stdin says; see above."""
    import numpy as np

    from runkit.errors import UserError
    from runkit.serving.client import Address, Client, texts

    def array(spec: dict) -> np.ndarray:
        if "file" in spec:
            return texts([Path(spec["file"]).read_bytes()])
        if "size" in spec:
            return texts([b"x" * spec["size"]])
        if spec["dtype"] == "bytes":
            return np.array([[text.encode() for text in row] for row in spec["values"]], object)
        return np.array(spec["values"], spec["dtype"])

    answers = []
    for request in json.load(sys.stdin):
        with Client(Address.of(request["protocol"], f"localhost:{request['port']}"), TIMEOUT / 2) as client:
            inputs = {name: array(spec) for name, spec in request["inputs"].items()}
            started = time.perf_counter()
            try:
                found = client.infer(request["model"], inputs, request["outputs"])
            except UserError as error:
                answers.append({"error": str(error)})
                continue
            plain = {
                name: [v.decode() if isinstance(v, bytes) else v for v in values.reshape(-1).tolist()]
                for name, values in found.items()
            }
            answers.append(plain | {"seconds": time.perf_counter() - started})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
