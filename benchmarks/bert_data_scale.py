"""Do time and memory of the data stages of BERT grow as they should, from a small Wikipedia to a large one?

    .venv/bert/bin/python -m benchmarks.bert_data_scale --vocab_file FILE [--megabytes 100,500,2050] [--source DUMP]

For each size a dump is made (make_wiki_dump.py, multistream bzip2) and goes through extraction, sharding and records
(length 128, five passes), each the command that users start, with one process. Measured are its CPU time and its peak
memory, which so are those of a worker and of the process that leads it together. The largest size needs about eight
times its megabytes of disk in --work_dir; all of it is removed.
"""

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.make_wiki_dump import write_dump
from data.layout import formatted_file, sharded_folder
from runkit import machine
from runkit.errors import UserError, run_main
from runkit.files import make_directory, write_json
from runkit.tables import text_table

ROOT = Path(__file__).resolve().parents[1]
NAME = "scale"


def measured(module: str, *flags: str) -> dict[str, float]:
    """Runs a module of this tree; returns its CPU and wall seconds and its peak memory in MB."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", module, *flags], cwd=ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise UserError(f"{module} failed; the reason is above")
    return {
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "wall_seconds": round(time.perf_counter() - start, 1),
        "peak_mb": round(usage.ru_maxrss * 1024 / 1e6),
    }


def bytes_below(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.rglob(pattern))


def measure(megabytes: float, work: Path, vocab: Path, source: Path | None) -> list[dict[str, Any]]:
    """A row for each stage: what it read in MB, seconds, MB/s of a core, peak memory. Leaves nothing in work."""
    shutil.rmtree(work, ignore_errors=True)
    make_directory(work)
    dump, text, sharded = work / "dump.xml.bz2", formatted_file(work, NAME), sharded_folder(work, NAME)
    try:
        # In a process of its own: what this one holds would count as the peak of those that it starts.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            _, n_bytes = pool.submit(write_dump, dump, int(megabytes * 1e6), 0, source, True).result()
        found = {"extraction": (n_bytes, measured("data.wikipedia", f"{dump}", f"--output={text}", "--n_processes=1"))}
        dump.unlink()
        flags = [f"--input_files={text}", f"--output_dir={sharded.parent}", f"--dataset={NAME}", "--n_processes=1"]
        flags += ["--n_training_shards=0", "--n_test_shards=0"]
        found["sharding"] = (text.stat().st_size, measured("data.sharding", *flags))
        text.unlink()
        flags = [f"--input_file={sharded}/training", f"--output_dir={work}/records", f"--vocab_file={vocab}"]
        flags += ["--max_seq_length=128", "--max_predictions_per_seq=20", "--dupe_factor=5", "--n_processes=1"]
        records = measured("bert_tf.create_pretraining_data", *flags)
        found["records"] = (bytes_below(sharded / "training", "*.txt"), records)
        written = bytes_below(work / "records", "*.tfrecord")
    finally:
        shutil.rmtree(work)
    rows = [
        {"xml_mb": round(n_bytes / 1e6, 1), "stage": stage, "read_mb": round(size / 1e6, 1), **cost}
        for stage, (size, cost) in found.items()
    ]
    for row in rows:
        row["mb_per_cpu_second"] = round(row["read_mb"] / row["cpu_seconds"], 2)
    rows[-1]["written_mb"] = round(written / 1e6, 1)
    return rows


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--vocab_file", type=Path, required=True)
    parser.add_argument("--megabytes", default="100,500,2050", help="of XML, sizes separated by commas")
    parser.add_argument("--source", type=Path, help="a real dump, whose pages are repeated")
    parser.add_argument("--work_dir", type=Path, default=ROOT / "build" / "bert_data_scale")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "bert_data_scale.json")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    rows: list[dict[str, Any]] = []
    for megabytes in map(float, arguments.megabytes.split(",")):
        rows += measure(megabytes, arguments.work_dir.absolute(), arguments.vocab_file.absolute(), arguments.source)
        write_json(arguments.output, {"machine": machine.describe(), "rows": rows})
    print(text_table(rows, ["xml_mb", "stage", "read_mb", "cpu_seconds", "mb_per_cpu_second", "peak_mb"]))


if __name__ == "__main__":
    run_main(main)
