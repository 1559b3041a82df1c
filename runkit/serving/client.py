"""A client of a Triton server over HTTP or gRPC, with errors that say what to do."""

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from runkit.errors import UserError, run_main

PORTS = {"http": 8000, "grpc": 8001}
TYPES = {"float32": "FP32", "int32": "INT32", "int64": "INT64", "object": "BYTES"}


class Address(NamedTuple):
    """Where a server is, and how it is spoken to."""

    protocol: str  # http or grpc
    url: str  # host:port

    @classmethod
    def of(cls, protocol: str, url: str | None) -> "Address":
        """protocol in any case; url: host:port, a host, or nothing for this machine. Raises UserError for others."""
        protocol = protocol.lower()
        if protocol not in PORTS:
            raise UserError(f"the protocol is {protocol!r}; it must be HTTP or gRPC")
        url = (url or "localhost").removeprefix(f"{protocol}://").rstrip("/")
        _, colon, port = url.rpartition(":")
        if colon and not port.isdecimal():
            raise UserError(f"the server's address is {url!r}; it must be HOST:PORT")
        return cls(protocol, url if colon else f"{url}:{PORTS[protocol]}")


class Client:
    """One connection; of one thread."""

    def __init__(self, address: Address, timeout: float = 120.0):
        """timeout (s): of each request."""
        self.address, self.timeout = address, timeout
        self._module = _module(address.protocol)
        if address.protocol == "http":
            self._client = self._module.InferenceServerClient(
                address.url, connection_timeout=timeout, network_timeout=timeout
            )
        else:
            self._client = self._module.InferenceServerClient(address.url)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_) -> None:
        self._client.close()

    def is_ready(self) -> bool:
        """Whether the server is up and all of its models are loaded."""
        try:
            return self._client.is_server_ready()
        except Exception:  # not up: each transport has its own errors
            return False

    def wait(self, seconds: float, alive: Callable[[], bool] = lambda: True) -> None:
        """Until the server is ready. Raises UserError when it is not in time, or no more alive."""
        deadline = time.monotonic() + seconds
        while not self.is_ready():
            if not alive():
                raise UserError("the server ended before it was ready; its log says why")
            if time.monotonic() > deadline:
                raise UserError(
                    f"no server is ready at {self.address.url} ({self.address.protocol}) after {seconds:g} s: start it "
                    "with scripts/triton/launch_server.sh, and look into its log"
                )
            time.sleep(0.2)

    def parameters(self, model: str) -> dict[str, str]:
        """Those of a model's config.pbtxt. Raises UserError with what the server says."""
        as_json = {} if self.address.protocol == "http" else {"as_json": True}
        try:
            found = self._client.get_model_config(model, **as_json)
        except Exception as error:
            raise UserError(f"{self.address.url}: {_message(error)}") from error
        return {key: value["string_value"] for key, value in found.get("config", found).get("parameters", {}).items()}

    def infer(
        self, model: str, inputs: Mapping[str, np.ndarray], outputs: Sequence[str], version: str = ""
    ) -> dict[str, np.ndarray]:
        """The outputs of a model. inputs: arrays with the batch first; texts and bytes as arrays of objects.

        Raises UserError with what the server says, or that there is none.
        """
        module, given = self._module, []
        for name, values in inputs.items():
            made = module.InferInput(name, list(values.shape), TYPES[values.dtype.name])
            made.set_data_from_numpy(values)
            given.append(made)
        wanted = [module.InferRequestedOutput(name) for name in outputs]
        timeout = {} if self.address.protocol == "http" else {"client_timeout": self.timeout}
        try:
            result = self._client.infer(model, given, model_version=version, outputs=wanted, **timeout)
        except Exception as error:
            raise UserError(f"{self.address.url}: {_message(error)}") from error
        return {name: result.as_numpy(name) for name in outputs}


def texts(values: Sequence[str | bytes]) -> np.ndarray:
    """A STRING input [B, 1]."""
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    array = np.empty((len(encoded), 1), object)
    array[:, 0] = encoded
    return array


def _module(protocol: str) -> ModuleType:
    try:
        if protocol == "http":
            import tritonclient.http as module
        else:
            import tritonclient.grpc as module
    except ImportError as error:
        raise UserError(f"the package tritonclient is missing ({error}): run scripts/setup.sh serving") from error
    return module


def _message(error: Any) -> str:
    """What an exception of tritonclient or of its transports says."""
    message = getattr(error, "message", None)
    return str(message() if callable(message) else error) or type(error).__name__


def main(argv: Sequence[str] | None = None) -> None:
    """Waits for a server. Raises UserError when it is not ready in time, or ends."""
    parser = argparse.ArgumentParser(prog="client", description="Waits until a server is ready.", allow_abbrev=False)
    parser.add_argument("server_url", metavar="HOST:PORT")
    parser.add_argument("--protocol", default="grpc", help="HTTP or gRPC")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long")
    parser.add_argument("--pid_file", help="with the number of the server's process: its end ends the waiting")
    args = parser.parse_args(argv)
    with Client(Address.of(args.protocol, args.server_url)) as client:
        client.wait(args.seconds, lambda: is_alive(args.pid_file))
    print(f"ready: {client.address.url} ({client.address.protocol})")


def is_alive(pid_file: str | None) -> bool:
    """Whether the process of the file runs; true where there is no such file, as for a server elsewhere."""
    try:
        os.kill(int(Path(pid_file or "").read_text()), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError):
        return True
    return True


if __name__ == "__main__":
    run_main(main)
