"""How fast does BERT answer, next to Hugging Face under PyTorch, ONNX Runtime and OpenVINO on the same machine?

    .venv/bert/bin/python benchmarks/bert_inference.py [--model base,large] [--lock FILE]

The published grid: question answering, sequences of 128 and 384 tokens without padding, batches of 1, 2, 4 and 8.
Contestants, each with all cores, in a process of its own:

    ours            the prediction function of run_squad and answer; bf16 where the CPU has it, and fp32
    transformers    PyTorch, eager and compiled (inductor, constants frozen, one program a shape); bf16 and fp32
    onnxruntime     the exported graph with the fusions of its BERT optimizer; fp32, and int8 by dynamic quantization
    openvino        the exported graph, latency hint; fp32, bf16 where the CPU has it

All have the same random weights (exported once) and the same inputs, and before a cell is timed their outputs are
compared with our fp32 ones: fp32 must agree within 1e-3 of the outputs' spread, bf16 within 0.1, int8 within 0.5.
Contestants take turns, A B C A B C; figures are over all calls, ratios the medians of the ratios within a round. CPU
time is that of all threads of a process for a call: what is left to compare by where others use the machine too. Peak
memory is the process's high-water mark while the cell was measured. "first (s)" is the first call of the shape, with
all that is traced or compiled for it; start-up, to the first answer, stands in a table of its own.
"""

import argparse
import contextlib
import fcntl
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.contest import Contestant, obey  # noqa: E402

LENGTHS, BATCHES = (128, 384), (1, 2, 4, 8)
BF16_FLAGS = {"avx512_bf16", "amx_bf16"}  # of a CPU whose products of bf16 are no emulation
TOLERANCE = {"fp32": 1e-3, "bf16": 0.1, "int8": 0.5}  # largest difference, of the standard deviation of our outputs
CONTESTANTS = {  # label: kind, precision, compiled
    "ours bf16": ("ours", "bf16", False),
    "ours fp32": ("ours", "fp32", False),
    "transformers bf16": ("transformers", "bf16", False),
    "transformers bf16 compiled": ("transformers", "bf16", True),
    "transformers fp32": ("transformers", "fp32", False),
    "transformers fp32 compiled": ("transformers", "fp32", True),
    "onnxruntime fp32": ("onnxruntime", "fp32", False),
    "onnxruntime int8": ("onnxruntime", "int8", False),
    "openvino bf16": ("openvino", "bf16", False),
    "openvino fp32": ("openvino", "fp32", False),
}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def cell_name(length: int, batch: int) -> str:
    return f"{length}x{batch}"


CELLS = [cell_name(length, batch) for length in LENGTHS for batch in BATCHES]


def make_inputs(vocab_size: int, length: int, batch: int) -> list[np.ndarray]:
    """ids, mask, segments, [batch, length] int64: random tokens, a question of 16 and a text."""
    ids = np.random.default_rng(length * 100 + batch).integers(1000, vocab_size, (batch, length))
    return [ids, np.ones_like(ids), (np.arange(length) >= 16).astype(np.int64)[None].repeat(batch, 0)]


def cores() -> int:
    return len(os.sched_getaffinity(0))


# --------------------------------------------------------------------------------------------------- the model
def export_weights(model: str, folder: Path) -> None:
    """Our model with random weights, as Hugging Face reads it. Runs in a process of its own, which then is gone."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from bert_tf import huggingface
    from bert_tf.model import BertConfig, BertForQuestionAnswering, variable_name

    values = json.loads((ROOT / "configs" / "bert" / f"{model}.json").read_text())
    config = BertConfig(**values | {"hidden_act": "gelu_exact"})  # the function of Hugging Face's models
    built = BertForQuestionAnswering(config, seed=1)
    tensors = {variable_name(variable): variable.numpy() for variable in built.variables}
    huggingface.export(folder / "weights", "question_answering", config, tensors)


def load_torch(folder: Path, **options):
    """The model under PyTorch, as a module (ids, mask, segments) -> logits [B, S, 2]."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    class Served(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = transformers.BertForQuestionAnswering.from_pretrained(folder / "weights", **options).eval()

        def forward(self, ids, mask, segments):
            output = self.model(input_ids=ids, attention_mask=mask, token_type_ids=segments)
            return torch.stack([output.start_logits, output.end_logits], -1)

    return Served()


def export_onnx(folder: Path) -> None:
    """model.onnx as PyTorch writes it, fused.onnx and int8.onnx for ONNX Runtime."""
    import warnings

    warnings.filterwarnings("ignore")
    import torch
    from onnx import TensorProto
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers import optimizer

    logging.getLogger().setLevel(logging.ERROR)
    model = load_torch(folder, attn_implementation="eager")  # whose attention ONNX Runtime's optimizer knows
    ids, mask, segments = (torch.from_numpy(a) for a in make_inputs(2000, 16, 2))
    mask[1, 12:] = 0  # or the mask would be traced away
    axes = {name: {0: "batch", 1: "length"} for name in (*INPUTS, "logits")}
    torch.onnx.export(
        model, (ids, mask, segments), str(folder / "model.onnx"), dynamo=False, opset_version=17,
        input_names=list(INPUTS), output_names=["logits"], dynamic_axes=axes,
    )  # fmt: skip
    config = model.model.config
    fused = optimizer.optimize_model(
        str(folder / "model.onnx"), model_type="bert", num_heads=config.num_attention_heads,
        hidden_size=config.hidden_size, opt_level=0,
    )  # fmt: skip
    assert fused.get_fused_operator_statistics()["Attention"] == config.num_hidden_layers
    fused.save_model_to_file(str(folder / "fused.onnx"))
    # Where there is no VNNI, sums of u8 x s8 overflow 16 bits unless weights have 7 bits.
    vnni = {"avx512_vnni", "avx_vnni", "amx_int8"} & cpu_flags()
    quantize_dynamic(
        folder / "fused.onnx", folder / "int8.onnx", per_channel=True, reduce_range=not vnni,
        weight_type=QuantType.QInt8, extra_options={"DefaultTensorType": TensorProto.FLOAT},  # fused ops tell no type
    )  # fmt: skip


def cpu_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("flags", "Features")):
            return set(line.split(":", 1)[1].split())
    return set()


# ------------------------------------------------------------------------------------------------- contestants
# Each builder returns (prepare, versions); prepare(inputs) a function that computes the logits as an array.
def build_ours(options):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    from bert_tf import checkpoint, huggingface
    from bert_tf.features import SPAN, TaskBatch, batch_spec
    from bert_tf.losses import QuestionAnswering
    from bert_tf.model import BertForQuestionAnswering
    from bert_tf.precision import Precision
    from bert_tf.train_step import create_prediction
    from bert_tf.weights import ComputeWeights

    precision = Precision.from_name(options.precision)
    precision.activate()
    model = BertForQuestionAnswering(huggingface.load_config(options.folder / "weights" / "config.json"), seed=None)
    weights = ComputeWeights(model.variables, precision.compute_dtype, join=True)
    checkpoint.load_weights(weights.masters, str(options.folder / "weights"))
    weights.refresh_all()
    function = create_prediction(model, QuestionAnswering(), weights, batch_spec(SPAN))

    def prepare(inputs):
        n = len(inputs[0])
        batch = TaskBatch(
            *(tf.constant(a, tf.int32) for a in inputs), tf.zeros([n, 2], tf.int32), tf.ones([n], tf.float32)
        )
        return lambda: function(batch)[0].numpy()

    return prepare, f"tensorflow {tf.__version__}"


def build_transformers(options):
    import torch
    import transformers

    torch.set_num_threads(cores())
    model = load_torch(options.folder)
    if options.precision == "bf16":
        model = model.bfloat16()
    if options.compiled:
        import torch._dynamo.config
        import torch._inductor.config

        torch._inductor.config.freezing = True
        torch._dynamo.config.recompile_limit = len(LENGTHS) * len(BATCHES)
        model = torch.compile(model, dynamic=False)

    def prepare(inputs):
        tensors = [torch.from_numpy(a) for a in inputs]

        def run():
            with torch.inference_mode() if not options.compiled else torch.no_grad():  # freezing wants the latter
                return model(*tensors).float().numpy()

        return run

    return prepare, f"torch {torch.__version__}, transformers {transformers.__version__}"


def build_onnxruntime(options):
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = cores()
    file = options.folder / ("int8.onnx" if options.precision == "int8" else "fused.onnx")
    session = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])

    def prepare(inputs):
        wanted = {i.name: i.type for i in session.get_inputs()}
        arrays = {name: a.astype(np.int32 if "int32" in wanted[name] else np.int64)
                  for name, a in zip(INPUTS, inputs, strict=True)}  # fmt: skip
        return lambda: session.run(None, arrays)[0]

    return prepare, f"onnxruntime {onnxruntime.__version__}"


def build_openvino(options):
    import openvino

    core = openvino.Core()
    settings = {
        "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": cores(),
        "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16"}[options.precision],
    }  # fmt: skip
    request = core.compile_model(core.read_model(options.folder / "model.onnx"), "CPU", settings).create_infer_request()
    return lambda inputs: lambda: np.array(request.infer(inputs)[0]), f"openvino {openvino.__version__}"


BUILDERS = {
    "ours": build_ours,
    "transformers": build_transformers,
    "onnxruntime": build_onnxruntime,
    "openvino": build_openvino,
}


def work(options) -> None:
    """A contestant: builds, then obeys. Of each cell it knows the call, and one that also writes the outputs down."""
    prepare, versions = BUILDERS[options.worker](options)
    vocab_size = json.loads((options.folder / "weights" / "config.json").read_text())["vocab_size"]
    functions = {}
    for length in LENGTHS:
        for batch in BATCHES:
            name = cell_name(length, batch)
            functions[name] = call = prepare(make_inputs(vocab_size, length, batch))
            path = options.folder / f"{options.label}-{name}.npy"
            functions[f"first:{name}"] = lambda call=call, path=path: np.save(path, call())
    obey(functions, versions)


# --------------------------------------------------------------------------------------------------- the match
def choose(names: list[str]) -> tuple[list[str], dict[str, str]]:
    """The contestants that this machine can have, and why the others are left out."""
    bf16, left_out = BF16_FLAGS & cpu_flags(), {}
    for name in names:
        if CONTESTANTS[name][1] == "bf16" and not bf16:
            left_out[name] = f"the CPU has none of {', '.join(sorted(BF16_FLAGS))}"
    return [name for name in names if name not in left_out], left_out


@contextlib.contextmanager
def turn(lock: Path | None):
    """Holds a lock file, so that other measurements on the machine wait."""
    if lock is None:
        yield
        return
    with open(lock, "a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def run_worker(environment: str, *arguments: str) -> None:
    """A worker that does one thing and ends."""
    contestant = Contestant(arguments[1], environment, __file__, list(arguments))
    contestant.close()


def check(label: str, precision: str, outputs: np.ndarray, reference: np.ndarray) -> float:
    """The largest difference from our fp32 outputs, in their standard deviations. Raises SystemExit where too large."""
    difference = float(np.max(np.abs(outputs - reference)) / np.std(reference))
    if outputs.shape != reference.shape or not difference <= TOLERANCE[precision]:
        raise SystemExit(f"error: {label} differs by {difference:.3g} deviations; {TOLERANCE[precision]} are allowed")
    return difference


def measure_cell(contestants: list[Contestant], cell: tuple[int, int], options, folder: Path) -> list[dict]:
    """One row a contestant."""
    length, batch = cell
    name, names, first = cell_name(*cell), [c.label for c in contestants], {}
    for c in contestants:
        c.forget_peak()
        first[c.label] = c.measure(f"first:{name}", 1)[0]
    outputs = {c.label: np.load(folder / f"{c.label}-{name}.npy") for c in contestants}
    reference = outputs["ours fp32"]
    differences = {c.label: check(c.label, CONTESTANTS[c.label][1], outputs[c.label], reference) for c in contestants}
    slowest = max(c.measure(name, 2)[1] for c in contestants)  # warm-up
    calls = max(1, min(options.calls, int(options.turn_seconds / slowest)))
    seconds, cpu = {c.label: [] for c in contestants}, dict.fromkeys(names, 0.0)
    for _ in range(options.rounds):
        for c in contestants:
            before = c.cpu()
            seconds[c.label].append(c.measure(name, calls))
            cpu[c.label] += c.cpu() - before
    ours = next(c.label for c in contestants if c.label.startswith("ours"))  # bf16 where there is
    rows = []
    for c in contestants:
        medians = [statistics.median(round_) for round_ in seconds[c.label]]
        of_ours = [statistics.median(round_) for round_ in seconds[ours]]
        every = np.concatenate(seconds[c.label])
        p50, p90, p99 = (1000 * float(np.percentile(every, p)) for p in (50, 90, 99))
        rows.append(
            {
                "sequence": length,
                "batch": batch,
                "contestant": c.label,
                "sequences/s": batch / statistics.median(every),
                "p50 (ms)": p50,
                "p90 (ms)": p90,
                "p99 (ms)": p99,
                "ours is faster by": statistics.median(a / b for a, b in zip(medians, of_ours, strict=True)),
                "CPU (ms)": 1000 * cpu[c.label] / len(every),
                "peak memory (MB)": c.peak() / 1e6,
                "first (s)": first[c.label],
                "difference": differences[c.label],
                "calls": len(every),
                "seconds": seconds[c.label],
            }
        )
    return rows


def match(model: str, options) -> dict:
    """The grid of one model."""
    names, left_out = choose(options.contestants.split(","))
    for label, why in left_out.items():
        print(f"  left out: {label} ({why})", flush=True)
    rows, starts = [], []
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch)
        with turn(options.lock):
            run_worker("ours", "--worker", "weights", "--model", model, "--folder", scratch)
            run_worker("transformers", "--worker", "onnx", "--folder", scratch)
        contestants = []
        for label in names:
            kind, precision, compiled = CONTESTANTS[label]
            arguments = ["--worker", kind, "--label", label, "--precision", precision, "--folder", scratch]
            environment = "ours" if kind == "ours" else "transformers"
            with turn(options.lock):
                c = Contestant(label, environment, __file__, arguments + ["--compiled"] * compiled)
                first = c.measure(f"first:{cell_name(LENGTHS[0], BATCHES[0])}", 1)[0]
            stack.callback(c.close)
            contestants.append(c)
            starts.append(
                {"contestant": label, "ready (s)": c.ready_seconds, "first answer (s)": c.ready_seconds + first}
            )
        for cell in [tuple(map(int, name.split("x"))) for name in options.cells.split(",")]:
            with turn(options.lock):
                found = measure_cell(contestants, cell, options, folder)
            rows += found
            rates = "  ".join(f"{row['contestant']} {row['p50 (ms)']:.1f}" for row in found)
            print(f"  BERT-{model} {cell_name(*cell)}, ms: {rates}", flush=True)
        versions = {c.label: c.versions for c in contestants}
    return {"rows": rows, "start_up": starts, "left_out": left_out, "versions": versions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="base,large", help="of tiny, base, large")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS), help="default: all, as far as the CPU has them")
    parser.add_argument("--cells", default=",".join(CELLS), help="of the grid, LENGTHxBATCH; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=20, help="calls a turn at most")
    parser.add_argument("--turn_seconds", type=float, default=2.0, help="about the time of the slowest one's turn")
    parser.add_argument("--lock", type=Path, help="file that is held locked while something is measured")
    parser.add_argument("--scratch", help="folder for the exported models (large: 6 GB); default: the system's")
    parser.add_argument("--out", help="results; default benchmarks/results/bert_inference_<model>.json")
    parser.add_argument("--worker", choices=[*BUILDERS, "weights", "onnx"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--label", help=argparse.SUPPRESS)
    parser.add_argument("--precision", help=argparse.SUPPRESS)
    parser.add_argument("--compiled", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker in ("weights", "onnx"):
        export_weights(options.model, options.folder) if options.worker == "weights" else export_onnx(options.folder)
        return obey({}, "")
    if options.worker:
        return work(options)

    from runkit import machine
    from runkit.files import write_json
    from runkit.tables import markdown_table, rounded

    unknown = set(options.contestants.split(",")) - set(CONTESTANTS)
    if unknown or "ours fp32" not in options.contestants:
        parser.error(f"--contestants: of {', '.join(CONTESTANTS)}; 'ours fp32' among them (unknown: {sorted(unknown)})")
    for model in options.model.split(","):
        began = time.monotonic()
        found = match(model, options)
        shown = [{k: v for k, v in row.items() if k not in ("seconds", "calls")} for row in found["rows"]]
        print(f"BERT-{model}, {cores()} cores, {time.monotonic() - began:.0f} s")
        print(markdown_table(rounded(shown, 3)))
        print(markdown_table(rounded(found["start_up"], 3)))
        out = Path(options.out or ROOT / "benchmarks" / "results" / f"bert_inference_{model}.json")
        settings = {key: getattr(options, key) for key in ("rounds", "calls", "turn_seconds")}
        settings |= {"model": model, "tolerance": TOLERANCE}
        write_json(out, {"settings": settings, "machine": machine.describe(), **found})
        print(f"written: {out}", flush=True)


if __name__ == "__main__":
    main()
