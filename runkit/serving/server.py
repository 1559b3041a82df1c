"""Starts a Triton server on this machine, without a container where the package nvidia-pytriton brings one.

    python -m runkit.serving.server MODEL_REPOSITORY [--http_port 8000] [--grpc_port 8001] [--metrics_port 8002]

The process becomes the server: a signal to it ends the server, which lets requests under way finish.
"""

import argparse
import importlib.util
import os
import shutil
import socket
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from runkit.errors import UserError, run_main
from runkit.files import locked_directory

ROOT = Path(__file__).resolve().parents[2]
STUB = "triton_python_backend_stub"
REMEDY = "run scripts/setup.sh serving, set TRITON_SERVER to a tritonserver, or use --docker"


def main(argv: Sequence[str] | None = None) -> None:
    """Raises UserError for a server, repository or port that cannot be had."""
    parser = argparse.ArgumentParser(prog="server", description=__doc__.partition("\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("repository", metavar="MODEL_REPOSITORY", help="folder of models, as scripts/triton/export_model.sh makes it")
    add("--host", default="127.0.0.1", help="0.0.0.0: reachable from other machines")
    add("--http_port", type=int, default=8000)
    add("--grpc_port", type=int, default=8001)
    add("--metrics_port", type=int, default=8002)
    add("--verbose", action="store_true", help="every request in the server's log")
    args = parser.parse_args(argv)
    check_repository(Path(args.repository))
    ports = {name: getattr(args, f"{name}_port") for name in ("http", "grpc", "metrics")}
    if len(set(ports.values())) < len(ports):
        raise UserError(f"the three ports must differ: {', '.join(f'--{n}_port={p}' for n, p in ports.items())}")
    for name, port in ports.items():
        check_port(name, args.host, port)
    command, environment = server_command()
    command += [f"--model-repository={args.repository}", f"--log-verbose={int(args.verbose)}"]
    command += ["--disable-auto-complete-config", "--exit-timeout-secs=30"]
    for name, port in ports.items():
        command += [f"--{name}-address={args.host}", f"--{name}-port={port}"]
    sys.stdout.flush()
    os.execve(command[0], command, environment)


def check_repository(path: Path) -> None:
    """Raises UserError for a folder without models, which the server would serve happily."""
    if not path.is_dir():
        raise UserError(f"there is no folder {path}: scripts/triton/export_model.sh makes repositories")
    if not any(path.glob("*/config.pbtxt")):
        raise UserError(f"{path} holds no model (NAME/config.pbtxt): scripts/triton/export_model.sh makes some")


def check_port(name: str, host: str, port: int) -> None:
    """Raises UserError for a port that is taken, before models are loaded in vain."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            raise UserError(f"cannot listen on {host}:{port}: {error}; choose another --{name}_port") from error


def server_command() -> tuple[list[str], dict[str, str]]:
    """The server with the backends that go with this interpreter, and its environment."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH", "")]))
    # The python backend starts the interpreter that is first on PATH.
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
    named = os.environ.get("TRITON_SERVER") or shutil.which("tritonserver")
    if named:
        if not shutil.which(named):
            raise UserError(f"TRITON_SERVER={named} is not an executable")
        return [shutil.which(named) or named], environment
    spec = importlib.util.find_spec("pytriton")  # found, never imported: it would start things of its own
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"no Triton server on this machine: {REMEDY}")
    package = Path(spec.submodule_search_locations[0]) / "tritonserver"
    # And loads its library.
    libraries = [str(sysconfig.get_config_var("LIBDIR")), environment.get("LD_LIBRARY_PATH", "")]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
    program = package / "bin" / "tritonserver"
    program.chmod(0o755)
    return [str(program), f"--backend-directory={backends(package)}"], environment


def backends(package: Path) -> Path:
    """The wheel's backends with the stub of this Python, made once beside the environment's packages."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = package / "python_backend_stubs" / version / STUB
    if not stub.is_file():
        known = ", ".join(sorted(path.name for path in stub.parents[1].iterdir()))
        raise UserError(f"the Triton server has no python backend for Python {version}, only for {known}: {REMEDY}")
    folder = package / "backends"
    target = folder / "python" / STUB
    with locked_directory(folder, "preparing the python backend", wait=True):
        if not target.exists() or target.read_bytes() != stub.read_bytes():
            temporary = target.with_name(f".{STUB}")
            shutil.copyfile(stub, temporary)
            temporary.chmod(0o755)
            temporary.replace(target)
    return folder


if __name__ == "__main__":
    run_main(main)
