"""How long is an update on many GPUs? A model of a few formulas, its errors against published tables, its predictions.

    python benchmarks/scaling_model.py            # the tables of docs/scaling.md, where the reasoning is

    update = N * micro-batch + exchange (what of it is not hidden) + fixed

micro-batch: seconds of one forward and backward pass, from the smallest published row of a series. exchange: all-reduce
of the gradients, from their bytes and the links. fixed: everything an update takes besides, the one fitted constant.
Checkpoints, input and failures are rated beside it. Units: seconds, bytes, bytes a second in one direction.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from runkit.tables import markdown_table

# ---------------------------------------------------------------------------------------------- what is taken as given
LINK_EFFICIENCY = 0.8  # of a link's nominal rate that an all-reduce attains; assumed
NVLINK_LATENCY = 3e-6  # of a hop within a node; assumed
NETWORK_LATENCY = 8e-6  # of a hop between nodes; assumed
FUSED_BYTES = 64 * 2**20  # Horovod's default fusion threshold: gradients travel in messages of this size
BACKWARD_SHARE = 2 / 3  # of a micro-batch; the backward pass has twice the products of the forward pass
CHECKPOINT_BYTES = 12  # a parameter: weights and two moments in float32
COPY_RATE = 2.6e9  # of the snapshot in host memory; measured (docs/checkpoints.md)
# 419 unexpected interruptions in 54 days on 16,384 GPUs (arXiv 2407.21783, section 3.3.4)
GPU_HOURS_BETWEEN_FAILURES = 54 * 24 * 16384 / 419
RESTART_SECONDS = 960.0  # "up to 16 minutes of start up time for every restart", README of the published BERT recipe


class Machine(NamedTuple):
    """A node. nvlink: of a GPU. network: of all the node's adapters together."""

    name: str
    gpus: int
    nvlink: float
    network: float


# Nominal rates of the makers' data sheets.
DGX_A100 = Machine("DGX A100", 8, 300e9, 8 * 25e9)  # NVLink 3: 600 GB/s both ways; 8 x HDR 200 Gb/s
DGX_2H = Machine("DGX-2H", 16, 150e9, 8 * 12.5e9)  # NVLink 2: 300 GB/s both ways; 8 x EDR 100 Gb/s
DGX_2 = DGX_2H._replace(name="DGX-2")
DGX_H200 = Machine("DGX H200", 8, 450e9, 8 * 50e9)  # NVLink 4: 900 GB/s both ways; 8 x NDR 400 Gb/s


def bert_parameters(hidden: int, layers: int, intermediate: int, vocab: int = 30522, positions: int = 512) -> int:
    """Parameters of BERT with both pre-training heads (arXiv 1810.04805)."""
    embeddings = (vocab + positions + 2) * hidden + 2 * hidden
    layer = 4 * (hidden * hidden + hidden) + 2 * hidden * intermediate + intermediate + hidden + 4 * hidden
    heads = 2 * (hidden * hidden + hidden) + 2 * hidden + vocab + 2 * hidden + 2
    return embeddings + layers * layer + heads


BERT_BASE = bert_parameters(768, 12, 3072)
BERT_LARGE = bert_parameters(1024, 24, 4096)
QUARTZNET = 18_924_381  # QuartzNet 15x5; as the headers of configs/asr say
JASPER = 332_632_349  # Jasper 10x5dr


# ------------------------------------------------------------------------------------------------------- the formulas
def ring_seconds(n_bytes: float, size: int, bandwidth: float, latency: float) -> float:
    """All-reduce of n_bytes around a ring of `size` members: reduce-scatter, then all-gather.

    2 (n-1)/n bytes / bandwidth + 2 (n-1) latency (Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002).
    """
    return 2 * (size - 1) * (n_bytes / size / bandwidth + latency)


def tree_seconds(n_bytes: float, size: int, bandwidth: float, latency: float) -> float:
    """The same over two complementary binary trees, each for half of the data, in a pipeline: up, then down.

    2 bytes / bandwidth + 2 log2(n) latency (Sanders, Speck, Traff 2009, doi:10.1016/j.parco.2009.09.001).
    """
    return 2 * n_bytes / bandwidth + 2 * math.log2(size) * latency if size > 1 else 0.0


def flat_ring_seconds(n_bytes: float, machine: Machine, gpus: int) -> float:
    """One ring through all GPUs of all nodes; the slower of NVLink and network is its speed."""
    nodes = node_count(machine, gpus)
    bandwidth = min(machine.nvlink, machine.network) if nodes > 1 else machine.nvlink
    latency = ((gpus - nodes) * NVLINK_LATENCY + nodes * NETWORK_LATENCY) / gpus if nodes > 1 else NVLINK_LATENCY
    return ring_seconds(n_bytes, gpus, bandwidth * LINK_EFFICIENCY, latency)


def hierarchical_seconds(n_bytes: float, machine: Machine, gpus: int) -> float:
    """Reduce-scatter and all-gather within nodes (a ring), and between them an all-reduce of each GPU's part (trees).

    The parts of a node's GPUs share its network: together they are n_bytes.
    """
    nodes = node_count(machine, gpus)
    within = ring_seconds(n_bytes, gpus // nodes, machine.nvlink * LINK_EFFICIENCY, NVLINK_LATENCY)
    return within + tree_seconds(n_bytes, nodes, machine.network * LINK_EFFICIENCY, NETWORK_LATENCY)


def exchange_seconds(n_bytes: float, machine: Machine, gpus: int) -> float:
    """All-reduce of gradients in fused messages, each by the faster way, as NCCL chooses."""
    messages = math.ceil(n_bytes / FUSED_BYTES)
    size = n_bytes / messages
    return messages * min(flat_ring_seconds(size, machine, gpus), hierarchical_seconds(size, machine, gpus))


def node_count(machine: Machine, gpus: int) -> int:
    """Nodes that hold so many GPUs. Raises ValueError where whole nodes do not make them up."""
    if gpus > machine.gpus and gpus % machine.gpus:
        raise ValueError(f"{gpus} GPUs are no whole number of {machine.name} nodes of {machine.gpus}")
    return max(1, gpus // machine.gpus)


def exposed_seconds(exchange: float, micro_batch: float, overlapped: bool) -> float:
    """What of the exchange an update waits for; overlapped: it goes on during the last backward pass."""
    return max(0.0, exchange - BACKWARD_SHARE * micro_batch) if overlapped else exchange


def young_interval(save: float, between_failures: float) -> float:
    """Seconds of work between saves that lose the least (Young 1974, doi:10.1145/361147.361115)."""
    return math.sqrt(2 * save * between_failures)


def daly_interval(save: float, between_failures: float) -> float:
    """The same, of higher order; between_failures where a save takes longer (Daly 2006,
    doi:10.1016/j.future.2004.11.016)."""
    if save >= 2 * between_failures:
        return between_failures
    ratio = save / (2 * between_failures)
    return young_interval(save, between_failures) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save


def lost_share(save: float, interval: float, between_failures: float, restart: float) -> float:
    """Share of time that goes into saves, work done again and restarts, to first order."""
    return save / interval + (interval / 2 + restart) / between_failures


# ------------------------------------------------------------------------------------------------ the published tables
class Row(NamedTuple):
    """One measured row. accumulation: micro-batches an update. throughput: examples a second, of all GPUs."""

    gpus: int
    accumulation: int
    throughput: float


class Series(NamedTuple):
    """Rows that differ in the number of GPUs only; from the first, the seconds of a micro-batch are taken.

    batch: examples of a micro-batch on a GPU. element: bytes of a gradient's number on the wire.
    """

    title: str
    machine: Machine
    parameters: int
    element: int
    batch: int
    rows: tuple[Row, ...]
    overlapped: bool = False

    def seconds(self, row: Row) -> float:
        """Of an update, measured."""
        return self.batch * row.accumulation * row.gpus / row.throughput

    def exposed(self, gpus: int, micro_batch: float) -> float:
        """Seconds of the exchange that are not hidden."""
        exchange = exchange_seconds(self.parameters * self.element, self.machine, gpus) if gpus > 1 else 0.0
        return exposed_seconds(exchange, micro_batch, self.overlapped)

    def micro_batch(self, fixed: float) -> float:
        """Seconds of a micro-batch, given the fixed seconds of an update on several processes."""
        first = self.rows[0]
        overhead = self.exposed(first.gpus, math.inf) + fixed if first.gpus > 1 else 0.0
        return (self.seconds(first) - overhead) / first.accumulation

    def predicted(self, gpus: int, accumulation: int, fixed: float) -> float:
        """Seconds of an update on so many GPUs."""
        micro_batch = self.micro_batch(fixed)
        return accumulation * micro_batch + self.exposed(gpus, micro_batch) + (fixed if gpus > 1 else 0.0)


def _rows(*values: tuple[int, int, float]) -> tuple[Row, ...]:
    return tuple(Row(*value) for value in values)


# README of NVIDIA/DeepLearningExamples, TensorFlow/LanguageModeling/BERT (multi-node tables). fp16 sends float16. The
# DGX-2H series have no one-node row of the same machine and software, except phase 2 in fp16. Of two phase 2 series,
# the global batch given there is not batch x accumulation x GPUs; the latter three are taken.
BERT_SERIES = (
    Series("BERT-large, 128, fp16", DGX_A100, BERT_LARGE, 2, 64,
           _rows((8, 128, 2871.89), (32, 32, 11159), (128, 8, 41144), (256, 4, 77479.87))),
    Series("BERT-large, 128, TF32", DGX_A100, BERT_LARGE, 4, 64,
           _rows((8, 128, 1889.71), (32, 32, 7532.00), (128, 8, 28605.62), (256, 4, 53585.82))),
    Series("BERT-large, 512, fp16", DGX_A100, BERT_LARGE, 2, 16,
           _rows((8, 256, 572.112), (32, 128, 2197.44), (128, 32, 8723.1), (256, 16, 16705))),
    Series("BERT-large, 512, TF32", DGX_A100, BERT_LARGE, 4, 8,
           _rows((8, 512, 316.51), (32, 128, 1268.43), (128, 32, 4903.39), (256, 16, 9463.80))),
    Series("BERT-large, 128, fp16", DGX_2H, BERT_LARGE, 2, 64,
           _rows((64, 16, 13192), (256, 4, 48223), (512, 2, 86673.64))),
    Series("BERT-large, 128, fp32", DGX_2H, BERT_LARGE, 4, 32,
           _rows((64, 32, 3389.83), (256, 8, 13217.78), (512, 4, 25142.26))),
    Series("BERT-large, 512, fp16", DGX_2H, BERT_LARGE, 2, 8,
           _rows((16, 256, 577.79), (64, 64, 2284.23), (256, 16, 8853), (512, 8, 17059))),
    Series("BERT-large, 512, fp32", DGX_2H, BERT_LARGE, 4, 8,
           _rows((64, 64, 765.04), (256, 16, 3001.43), (512, 8, 5893.14))),
)  # fmt: skip
# The same, PyTorch/SpeechRecognition/QuartzNet and Jasper (one node; Jasper's of 2019, padded to one length). The
# gradients are float32 and travel during the backward pass.
SPEECH_SERIES = (
    Series("QuartzNet 15x5, AMP", DGX_A100, QUARTZNET, 4, 48,
           _rows((1, 24, 89.69), (4, 6, 343.06), (8, 3, 644.27)), True),
    Series("QuartzNet 15x5, AMP", DGX_A100, QUARTZNET, 4, 72,
           _rows((1, 16, 88.70), (4, 4, 341.95), (8, 2, 651.60)), True),
    Series("QuartzNet 15x5, TF32", DGX_A100, QUARTZNET, 4, 72,
           _rows((1, 16, 79.01), (4, 4, 304.47), (8, 2, 583.31)), True),
    Series("QuartzNet 15x5, AMP", DGX_2, QUARTZNET, 4, 24,
           _rows((1, 48, 67.95), (4, 12, 258.56), (8, 6, 495.52), (16, 3, 872.99)), True),
    Series("Jasper 10x5, AMP", DGX_2, JASPER, 4, 64,
           _rows((1, 1, 29.22), (4, 1, 114.29), (8, 1, 222.61), (16, 1, 414.57)), True),
    Series("Jasper 10x5, fp32", DGX_2, JASPER, 4, 32,
           _rows((1, 1, 8.12), (4, 1, 32.16), (8, 1, 63.68), (16, 1, 124.88)), True),
)  # fmt: skip


def fit_fixed(series: Series) -> float:
    """The fixed seconds of an update: what reconciles the last row of a series with its first.

    Both are linear in it, so it is where the error of the last row is zero.
    """
    last = series.rows[-1]
    without, slope = (series.predicted(last.gpus, last.accumulation, fixed) for fixed in (0.0, 1.0))
    return (series.seconds(last) - without) / (slope - without)


FIXED_SECONDS = fit_fixed(BERT_SERIES[0])


# --------------------------------------------------------------------------------------------------------- the tables
def comparison(all_series: Sequence[Series], fixed: float) -> Iterator[dict[str, Any]]:
    """One line a published row: measured and predicted update, and what the predicted one misses."""
    for series in all_series:
        for number, row in enumerate(series.rows):
            measured, predicted = series.seconds(row), series.predicted(row.gpus, row.accumulation, fixed)
            fitted = number == 0 or (series is BERT_SERIES[0] and row is series.rows[-1])
            yield {
                "series": f"{series.title}, {series.machine.name}, batch {series.batch}",
                "GPUs": row.gpus,
                "N": row.accumulation,
                "published (examples/s)": f"{row.throughput:.0f}",
                "predicted": f"{series.batch * row.accumulation * row.gpus / predicted:.0f}",
                "error of the update (%)": "fitted" if fitted else f"{100 * (predicted / measured - 1):+.1f}",
            }


def errors(all_series: Sequence[Series], fixed: float) -> list[float]:
    """Relative errors of the predicted seconds of an update, of all rows that nothing was fitted to."""
    rows = ((series, row) for series in all_series for row in series.rows[1:])
    return [
        series.predicted(row.gpus, row.accumulation, fixed) / series.seconds(row) - 1
        for series, row in rows
        if not (series is BERT_SERIES[0] and row is series.rows[-1])
    ]


class Job(NamedTuple):
    """A training job to be predicted. example_bytes: of an example as it is read."""

    series: Series
    global_batch: int
    example_bytes: float

    def accumulation(self, gpus: int) -> int:
        """Micro-batches that make up the global batch; one, and so a larger global batch, where it has no more."""
        return max(1, round(self.global_batch / self.series.batch / gpus))


def _assumed(title: str, machine: Machine, parameters: int, batch: int, rate: float) -> Series:
    """A series of one row: examples a second of a single GPU."""
    return Series(title, machine, parameters, 2, batch, (Row(1, 1, rate),))


# Record sizes: bert_tf.records, full length. Speech: 12.3 s, LibriSpeech's mean, as 16-bit samples at 16 kHz.
# BERT-base: large's rate by the ratio of their operations a sequence (benchmarks/bert_pretraining.py: model_flops),
# 3.44. H200: 500 TFLOP/s, which is assumed, over 240.6 GFLOP a sequence.
SPEECH_BYTES = 12.3 * 16_000 * 2
JOBS = (
    Job(BERT_SERIES[0], 65536, 932),
    Job(BERT_SERIES[2], 32768, 3116),
    Job(_assumed("BERT-base, 128, fp16", DGX_A100, BERT_BASE, 64, 3.44 * 2871.89 / 8), 65536, 932),
    Job(_assumed("BERT-large, 128, fp16", DGX_H200, BERT_LARGE, 64, 500e3 / 240.6), 65536, 932),
    Job(SPEECH_SERIES[1], 1152, SPEECH_BYTES),
    Job(Series("Jasper 10x5, AMP", DGX_A100, JASPER, 4, 64, (Row(1, 1, 75.6),), True), 512, SPEECH_BYTES),
)
GPUS = (8, 64, 256, 512, 1024)


def predictions(jobs: Sequence[Job], gpu_counts: Sequence[int], fixed: float) -> Iterator[dict[str, Any]]:
    """One line a job and number of GPUs. Efficiencies compare with the same micro-batches, and nothing else."""
    for job in jobs:
        series, micro_batch = job.series, job.series.micro_batch(fixed)
        for gpus in gpu_counts:
            accumulation = job.accumulation(gpus)
            compute, exchange = accumulation * micro_batch, series.exposed(gpus, micro_batch)
            update, total = compute + exchange + fixed, series.batch * accumulation * gpus
            yield {
                "job": f"{series.title}, {series.machine.name}",
                "GPUs": gpus,
                "N": accumulation,
                "global batch": total,
                "compute (ms)": f"{1000 * compute:.0f}",
                "exchange (ms)": f"{1000 * exchange:.1f}",
                "update (ms)": f"{1000 * update:.0f}",
                "examples/s": f"{total / update:.0f}",
                "efficiency (%)": f"{100 * compute / update:.0f}",
                "without fixed (%)": f"{100 * compute / (compute + exchange):.0f}",
                "input (MB/s)": f"{total / update * job.example_bytes / 1e6:.0f}",
            }


def exchanges(gpu_counts: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Ways of one exchange, in ms: one ring, hierarchical, each as one message and as fused ones."""
    kinds = (("BERT-large", BERT_LARGE), ("BERT-base", BERT_BASE), ("Jasper", JASPER), ("QuartzNet", QUARTZNET))
    for name, parameters in kinds:
        for element, kind in ((4, "fp32"), (2, "fp16")):
            n_bytes = parameters * element
            messages = math.ceil(n_bytes / FUSED_BYTES)
            line = {"gradients": f"{name}, {kind}", "MB": f"{n_bytes / 1e6:.0f}", "messages": messages}
            for gpus in gpu_counts:
                ways = (
                    messages * way(n_bytes / messages, DGX_A100, gpus)
                    for way in (flat_ring_seconds, hierarchical_seconds)
                )
                line[f"{gpus} GPUs"] = " / ".join(f"{1000 * seconds:.1f}" for seconds in ways)
            yield line


def saving(job: Job, gpu_counts: Sequence[int], fixed: float) -> Iterator[dict[str, Any]]:
    """Checkpoints of a job: what one holds up, at every 100 updates and at the best interval."""
    n_bytes = job.series.parameters * CHECKPOINT_BYTES
    stall = n_bytes / COPY_RATE
    for gpus in gpu_counts:
        update = job.series.predicted(gpus, job.accumulation(gpus), fixed)
        between = GPU_HOURS_BETWEEN_FAILURES * 3600 / gpus
        best = daly_interval(stall, between)
        yield {
            "GPUs": gpus,
            "update (s)": f"{update:.2f}",
            "failures a day": f"{86400 / between:.2f}",
            "stalled at every 100 updates (%)": f"{100 * stall / (100 * update + stall):.1f}",
            "write (MB/s)": f"{n_bytes / (100 * update) / 1e6:.0f}",
            "Young (min)": f"{young_interval(stall, between) / 60:.0f}",
            "Daly (min)": f"{best / 60:.0f}",
            "in updates": round(best / update),
            "lost (%)": f"{100 * lost_share(stall, best, between, RESTART_SECONDS):.1f}",
        }


def report() -> str:
    """Everything that docs/scaling.md shows, as Markdown."""
    lines = [f"fixed: {1000 * FIXED_SECONDS:.0f} ms an update"]
    for name, series in (("BERT", BERT_SERIES), ("speech", SPEECH_SERIES)):
        found = errors(series, FIXED_SECONDS)
        mean = 100 * sum(map(abs, found)) / len(found)
        worst = 100 * max(found, key=abs)
        lines.append(f"{name}: {len(found)} rows not fitted, mean absolute error {mean:.1f} %, largest {worst:+.1f} %")
        lines.append(markdown_table(list(comparison(series, FIXED_SECONDS))))
    lines.append(markdown_table(list(exchanges((8, 256, 1024)))))
    lines.append(markdown_table(list(predictions(JOBS, GPUS, FIXED_SECONDS))))
    lines.append(markdown_table(list(saving(JOBS[0], GPUS, FIXED_SECONDS))))
    return "\n\n".join(lines)


if __name__ == "__main__":
    print(report())
