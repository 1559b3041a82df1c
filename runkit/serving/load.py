"""How fast a server answers: clients that ask without a pause, latencies against throughput.

Closed loop: each client sends its next request when the last one is answered, so that the number of clients is the
number of requests under way. Latency is what the client sees, from before it sends to after it has the answer.
"""

import argparse
import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from runkit.errors import UserError
from runkit.files import write_json
from runkit.machine import describe
from runkit.serving.client import Address, Client
from runkit.tables import csv_text, markdown_table, rounded, write_report

PERCENTILES = (50, 90, 95, 99)


class Load(NamedTuple):
    """What is asked, of which model."""

    model: str
    version: str
    requests: Sequence[Mapping[str, np.ndarray]]  # in turn, from the start again
    outputs: Sequence[str]
    items: str  # what throughput counts, such as "questions"
    per_request: int = 1  # of them


class Measured(NamedTuple):
    """What came of so many clients."""

    clients: int
    latencies: np.ndarray  # s, of the requests answered in the time that counts
    errors: list[str]
    seconds: float


def measure(load: Load, address: Address, clients: int, seconds: float, warm_up: float) -> Measured:
    """Lets `clients` ask for warm_up + seconds; only requests that end in the second part count.

    Raises UserError where no client could ask at all.
    """
    turns, lock = itertools.count(), threading.Lock()
    latencies: list[float] = []
    errors: list[str] = []
    barrier = threading.Barrier(clients)

    def ask() -> None:
        with Client(address) as client:
            barrier.wait()
            begin = time.perf_counter()
            while (now := time.perf_counter()) - begin < warm_up + seconds:
                request = load.requests[next(turns) % len(load.requests)]
                try:
                    client.infer(load.model, request, load.outputs, load.version)
                except UserError as error:
                    with lock:
                        errors.append(str(error))
                    if len(errors) > 10 * clients:  # nothing works: no use in asking on
                        return
                    continue
                done = time.perf_counter()
                if warm_up <= done - begin <= warm_up + seconds:
                    with lock:
                        latencies.append(done - now)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not latencies:
        raise UserError(f"no request was answered: {errors[0] if errors else 'none was sent in time'}")
    return Measured(clients, np.array(latencies), errors, seconds)


def row(measured: Measured, load: Load) -> dict[str, Any]:
    """A line of the table; milliseconds."""
    milliseconds = 1000 * measured.latencies
    return {
        "clients": measured.clients,
        f"{load.items}/s": len(milliseconds) * load.per_request / measured.seconds,
        **{f"p{p} ms": float(np.percentile(milliseconds, p)) for p in PERCENTILES},
        "mean ms": float(milliseconds.mean()),
        "requests": len(milliseconds),
        "errors": len(measured.errors),
    }


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--protocol", "-i", default="grpc", help="HTTP or gRPC")
    add("--server_url", "-u", help="HOST:PORT (default: this machine, the protocol's port)")
    add("--model_version", default="", help="default: the newest")
    add("--clients", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="how many ask at once, one row each")
    add("--seconds", type=float, default=10.0, help="of measuring in each row")
    add("--warm_up", type=float, default=2.0, help="seconds before, which do not count")
    add("--max_latency", type=float, help="ms of the 95th percentile beyond which no more clients are tried")
    add("--label", default="", help="what is said of the server in table and plot, such as 'dynamic batching'")
    add("--output_dir", "-o", help="where table (CSV, Markdown), figures (JSON) and plot (PNG) go")


def run(load: Load, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures each number of clients, prints and writes. Raises UserError for flags that make no sense, and for a
    server that loses requests."""
    if min(args.clients) < 1 or args.seconds <= 0 or args.warm_up < 0:
        raise UserError("--clients must be 1 or more, --seconds above 0, --warm_up 0 or more")
    address = Address.of(args.protocol, args.server_url)
    with Client(address) as client:
        client.wait(10)
    rows, lost = [], []
    for clients in args.clients:
        measured = measure(load, address, clients, args.seconds, args.warm_up)
        rows.append(({"server": args.label} if args.label else {}) | row(measured, load))
        lost += measured.errors
        print(markdown_table(rounded(rows[-1:])).splitlines()[-1], flush=True)
        if args.max_latency and rows[-1]["p95 ms"] > args.max_latency:
            print(f"the 95th percentile is above {args.max_latency:g} ms: no more clients are tried", flush=True)
            break
    print("\n" + markdown_table(rounded(rows)))
    if args.output_dir:
        write(Path(args.output_dir), rows, load, address)
    if lost:
        raise UserError(f"{len(lost)} requests failed; the first: {lost[0]}")
    return rows


def write(folder: Path, rows: Sequence[dict[str, Any]], load: Load, address: Address) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_report(folder / "latency.csv", csv_text(rows))
    write_report(folder / "latency.md", markdown_table(rounded(rows)) + "\n")
    packages = ("nvidia-pytriton", "tritonclient", "onnxruntime", "numpy")
    about = {"model": load.model, "protocol": address.protocol, "rows": list(rows), "machine": describe(packages)}
    write_json(folder / "latency.json", about)
    plot(folder / "latency.png", rows, load)


def plot(path: Path, rows: Sequence[dict[str, Any]], load: Load) -> None:
    """Latency against throughput, a line for each percentile."""
    from runkit.plots import points_plot

    rate = f"{load.items}/s"
    points = [(f"p{p}", r[rate], r[f"p{p} ms"]) for r in rows for p in (50, 95, 99)]
    points_plot(path, points, rate, "latency, ms", f"{load.model}: 1 to {rows[-1]['clients']} clients")
