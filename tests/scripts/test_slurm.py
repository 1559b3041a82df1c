"""The training jobs on Slurm: what they ask for, and both recipes on a real cluster of this machine, preempted."""

import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.scripts.slurm_cluster import Cluster, cluster

ROOT = Path(__file__).resolve().parents[2]
ROWS = yaml.safe_load((ROOT / "scripts" / "configs" / "configurations.yml").read_text(encoding="utf-8"))
# The published table: nodes, GPUs of a node, sequences of a micro-batch on a GPU, phase. DGX2_n16 had 256 sequences.
PUBLISHED = {
    f"bert--{system}{suffix}": (nodes, gpus, batch, phase)
    for system, gpus, batches in (("DGX1", 8, (8, 2)), ("DGX2", 16, (32, 8)))
    for phase, batch in zip((1, 2), batches, strict=True)
    for nodes in (1, 4, 16, 32)
    for suffix in (f"_n{nodes}p2" if phase == 2 else f"_n{nodes}" if nodes > 1 else "",)
}
TARGETS = {1: (65536, 6e-3, 7038), 2: (32768, 4e-3, 1564)}  # global batch, effective learning rate, updates


def launch(script: str, *words: str, **variables: str) -> subprocess.CompletedProcess:
    """A script of scripts/, outside of a job."""
    drop = ("SLURM", "DRY_RUN", "MPIRUN", "PHASE", "BATCHSIZE", "LEARNING_RATE", "NUM_ACCUMULATION_STEPS", "CONTAINER")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(drop)}
    command = ["bash", str(ROOT / "scripts" / script), *words]
    return subprocess.run(command, env=clean | variables, capture_output=True, text=True)


def flag_values(line: str) -> dict[str, str]:
    return dict(re.findall(r"--(\w+)=(\S+)", line))


# ------------------------------------------------------------------------------------------------- the table
def test_all_published_rows_are_there():
    assert len(PUBLISHED) == 16
    for name, (nodes, gpus, batch, phase) in PUBLISHED.items():
        row = ROWS[name]
        assert (row["NNODES"], row["GPUS_PER_NODE"], row["BATCHSIZE"], row["PHASE"]) == (nodes, gpus, batch, phase)
    assert {name for name in ROWS if "DGXA100" not in name} == set(PUBLISHED)


@pytest.mark.parametrize("name", ROWS)
def test_every_row_gives_the_published_batch_and_rate(name):
    row = ROWS[name]
    batch, rate, _ = TARGETS[row["PHASE"]]
    processes = row["NNODES"] * row["GPUS_PER_NODE"]
    assert row["BATCHSIZE"] * row["NUM_ACCUMULATION_STEPS"] * processes == batch
    assert row["LEARNING_RATE"] * processes == pytest.approx(rate, rel=1e-12)


def test_rows_are_submitted_as_they_stand():
    listed = launch("submit.sh").stdout.splitlines()
    assert [line.split()[0] for line in listed] == list(ROWS)
    for name, row in ROWS.items():
        result = launch("submit.sh", name, "--dry-run", "--time=1:00:00", "--", "--seed=1")
        assert result.returncode == 0, result.stderr
        (line,) = result.stdout.splitlines()
        variables = dict(word.split("=") for word in line.split()[1:] if re.match(r"[A-Z_]+=", word))
        assert {key: float(value) for key, value in variables.items()} == row
        assert f"sbatch --nodes={row['NNODES']} --ntasks-per-node={row['GPUS_PER_NODE']} --job-name={name} " in line
        assert line.endswith("--time=1:00:00 scripts/run.sub --seed=1")


def test_an_unknown_row_is_refused():
    result = launch("submit.sh", "bert--DGX9", "--dry-run")
    assert result.returncode == 1 and "no row 'bert--DGX9'" in result.stderr


# ---------------------------------------------------------------------------------------- what run.sub derives
@pytest.mark.parametrize("phase", TARGETS)
@pytest.mark.parametrize("processes", [8, 32, 128])
def test_the_published_run_is_derived_for_any_number_of_processes(phase, processes):
    result = launch("run.sub", "--dry-run", SLURM_NTASKS=str(processes), PHASE=str(phase), RESULTS_DIR="/r")
    assert result.returncode == 0, result.stderr
    assert "note: the published" not in result.stdout
    line = result.stdout.splitlines()[-1]
    flags, (batch, rate, updates) = flag_values(line), TARGETS[phase]
    assert int(flags["train_batch_size"]) == {1: 16, 2: 2}[phase]
    assert int(flags["train_batch_size"]) * int(flags["num_accumulation_steps"]) * processes == batch
    assert float(flags["learning_rate"]) * processes == pytest.approx(rate)
    assert (int(flags["num_train_steps"]), int(flags["num_warmup_steps"])) == (updates, {1: 2000, 2: 200}[phase])
    assert flags["output_dir"] == f"/r/phase_{phase}"
    assert flags.get("init_checkpoint") == {1: None, 2: "/r/phase_1/model.ckpt-7038"}[phase]
    assert line.startswith("srun ") and f" -n {processes} " in line and " --horovod " in line


def test_the_defaults_on_4_nodes_of_8_are_the_published_ones():
    for phase, wanted in ((1, ("16", "128", "0.0001875")), (2, ("2", "512", "0.000125"))):
        line = launch("run.sub", "--dry-run", SLURM_NTASKS="32", PHASE=str(phase)).stdout.splitlines()[-1]
        flags = flag_values(line)
        assert (flags["train_batch_size"], flags["num_accumulation_steps"], flags["learning_rate"]) == wanted


def test_what_does_not_fit_is_refused_or_noted():
    uneven = launch("run.sub", "--dry-run", SLURM_NTASKS="7")
    assert uneven.returncode == 1 and "is not divisible by 16 (BATCHSIZE) x 7 processes" in uneven.stderr
    own = launch("run.sub", "--dry-run", SLURM_NTASKS="7", NUM_ACCUMULATION_STEPS="2", LEARNING_RATE="1e-3")
    assert "is 65536, this is 224" in own.stdout and "is 6e-3, this is 0.007" in own.stdout
    assert "PHASE must be 1 or 2" in launch("run.sub", "--dry-run", PHASE="3").stderr
    for script in ("run.sub", "run_asr.sub"):
        outside = launch(script)
        assert outside.returncode == 1 and "this is a Slurm job: sbatch" in outside.stderr


def test_speech_keeps_its_global_batch():
    result = launch("run_asr.sub", "--dry-run", SLURM_NTASKS="4", CPU="true")
    assert result.returncode == 0, result.stderr
    flags = flag_values(result.stdout.splitlines()[-1])
    assert int(flags["gpu_batch_size"]) * int(flags["grad_accumulation"]) * 4 == 1152
    uneven = launch("run_asr.sub", "--dry-run", SLURM_NTASKS="5", CPU="true")
    assert uneven.returncode == 1 and "not divisible by 72 (GPU_BATCH_SIZE) x 5" in uneven.stderr


def test_in_a_container_paths_are_those_outside():
    variables = {"SLURM_NTASKS": "8", "CONTAINER_IMAGE": "my/image:1", "DATA_DIR": "/d", "RESULTS_DIR": "/r"}
    line = launch("run.sub", "--dry-run", **variables).stdout.splitlines()[-1].replace("\\,", ",")
    assert f" --container-image=my/image:1 --container-mounts={ROOT}:{ROOT},/d:/d,/r:/r " in line
    assert " python3 -m bert_tf.run_pretraining " in line
    blank = launch("run.sub", "--dry-run", **variables | {"DATA_DIR": "/my data"})
    assert blank.returncode == 1 and "may hold no blanks" in blank.stderr


def test_cells_of_a_sweep():
    sweep = {"SEQ_LENGTHS": "128 384", "PRECISIONS": "fp16 fp32", "BATCH_SIZES": "1 2 4"}
    listed = launch("benchmarks.sub", "finetune_train_benchmark.sh", "--list", **sweep)
    assert listed.returncode == 0, listed.stderr
    cells = [tuple(sorted(line.split()[1:])) for line in listed.stdout.splitlines() if line[0].isdigit()]
    wanted = [(f"BATCH_SIZES={b}", f"PRECISIONS={p}", f"SEQ_LENGTHS={s}")
              for s in (128, 384) for b in (1, 2, 4) for p in ("fp16", "fp32")]  # fmt: skip
    assert sorted(cells) == sorted(wanted)
    beyond = launch("benchmarks.sub", "train_benchmark.sh", SLURM_JOB_ID="1", SLURM_ARRAY_TASK_ID="12", **sweep)
    assert beyond.returncode == 1 and "cell 12" in beyond.stderr


# --------------------------------------------------------------------------------------------- a real cluster
@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """Three nodes: BERT's two processes run on one, those of speech on one each."""
    with cluster(3) as up:
        yield up


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> Path:
    """A folder with training/ and test/ of length 128, and a tiny model's config."""
    from bert_tf import create_pretraining_data

    folder, rng = tmp_path_factory.mktemp("records"), random.Random(4)
    words = [f"w{i}" for i in range(30)]
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    sizes = {"vocab_size": 35, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    (folder / "config.json").write_text(json.dumps(sizes | {"intermediate_size": 8, "max_position_embeddings": 128}))
    for split, documents in (("training", 30), ("test", 4)):
        text = "\n\n".join("\n".join(" ".join(rng.choices(words, k=8)) for _ in range(6)) for _ in range(documents))
        (folder / f"{split}.txt").write_text(text + "\n")
        create_pretraining_data.main(
            ["--vocab_file", str(folder / "vocab.txt"), "--input_file", str(folder / f"{split}.txt"), "--output_dir",
             str(folder / split), "--max_seq_length", "128", "--max_predictions_per_seq", "20", "--dupe_factor", "2"]
        )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def speech(tmp_path_factory) -> tuple[str, Path]:
    """The interpreter of speech; a corpus of 12 utterances, and a tiny network's config."""
    python = shutil.which(os.environ.get("ASR_PYTHON", ROOT / ".venv" / "asr" / "bin" / "python"))
    if python is None:
        pytest.skip("no .venv/asr: bash scripts/setup.sh asr")
    folder = tmp_path_factory.mktemp("speech")
    sizes = ["--train", "12", "--dev", "4", "--test", "1", "--n_processes", "1"]
    subprocess.run(
        [python, "-m", "data.embedded_speech", "--output_dir", str(folder), *sizes],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    block = {"filters": 16, "repeat": 1, "kernel_size": [5], "dropout": 0.0, "residual": False, "separable": True}
    overrides = {
        "quartznet.encoder.blocks": [block | {"stride": [2]}, block],
        "quartznet.decoder.in_feats": 16,
    }
    base = str(ROOT / "configs" / "asr" / "quartznet_quickstart.yaml")
    (folder / "model.yaml").write_text(yaml.safe_dump({"base": base, "overrides": overrides}, sort_keys=False))
    return python, folder


def logged_updates(path: Path) -> list[dict]:
    """The lines of updates in a DLLogger file that may be being written."""
    if not path.exists():
        return []
    lines = [line.removeprefix("DLLL ") for line in path.read_text().splitlines() if line.endswith("}")]
    return [line for line in map(json.loads, lines) if line["type"] == "LOG" and line["step"]]


def loss_of_updates(path: Path, key: str) -> dict[str, float]:
    """The loss by step; of a step logged twice the later value."""
    return {str(line["step"]): line["data"][key] for line in logged_updates(path) if key in line["data"]}


def test_an_error_is_not_run_again(nodes, tmp_path):
    log = tmp_path / "log"
    job = nodes.submit(ROOT, log, "-n2", "scripts/run.sub", BERT_CONFIG=str(tmp_path / "absent.json"), BATCHSIZE="2")
    record = nodes.wait_for_end(job, log)
    assert (record["JobState"], record["ExitCode"], record["Restarts"]) == ("FAILED", "1:0", "0")
    assert "absent.json does not exist" in log.read_text()


def test_a_cell_for_every_task_of_an_array(nodes, tmp_path):
    sweep = {"SEQ_LENGTHS": "128 384", "BATCH_SIZES": "1", "PRECISIONS": "fp32", "RESULTS_DIR": str(tmp_path / "r")}
    words = ["--array=0-1", "scripts/benchmarks.sub", "finetune_train_benchmark.sh", "--quick", "--dry-run"]
    job = nodes.submit(ROOT, tmp_path / "%a.log", *words, **sweep)
    for cell, length in enumerate((128, 384)):
        log = tmp_path / f"{cell}.log"
        assert nodes.wait_for_end(f"{job}_{cell}", log)["JobState"] == "COMPLETED"
        assert f"cell {cell} of 2: SEQ_LENGTHS={length} " in log.read_text()
        assert f"_sl_{length}_prec_--fp32_bs_1" in log.read_text()


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.xdist_group("horovod")
@pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="no Horovod: bash scripts/install_horovod.sh")
def test_both_recipes_are_preempted_and_end_as_if_nothing_had_been(nodes, records, speech, tmp_path):
    """BERT gets USR1, as before its time limit, and learns what one undisturbed process does; Slurm requeues speech."""
    from bert_tf import run_pretraining
    from tests.bert_tf import mains

    python, corpus = speech
    bert, asr, updates, epochs = tmp_path / "bert", tmp_path / "asr", 270, 150
    bert_log, asr_log = tmp_path / "bert.log", tmp_path / "asr.log"
    bert_job = nodes.submit(
        ROOT, bert_log, "-N1", "-n2", "scripts/run.sub", "--display_loss_steps=1",
        BERT_CONFIG=str(records / "config.json"), SOURCES=str(records), RESULTS_DIR=str(bert), BATCHSIZE="2",
        NUM_ACCUMULATION_STEPS="1", LEARNING_RATE="0.005", PRECISION="fp32", USE_XLA="false", SEED="7",
        TRAIN_STEPS=str(updates * 10 // 9), WARMUP_STEPS="10", SAVE_CHECKPOINTS_STEPS="1000", MAX_EVAL_STEPS="2",
        BERT_PYTHON=sys.executable, TF_CPP_MIN_LOG_LEVEL="2", TF_NUM_INTRAOP_THREADS="1",
    )  # fmt: skip
    asr_settings = {
        "ASR_PYTHON": python, "CPU": "true", "LEARNING_RATE": "0.01", "EPOCHS": str(epochs), "EMA": "0",
        "WARMUP_EPOCHS": "1", "HOLD_EPOCHS": "1", "SAVE_FREQUENCY": "1000", "EVAL_FREQUENCY": "1000",
        "PREDICTION_FREQUENCY": "1000", "KEEP_MILESTONES": "", "SAVE_BEST_FROM": "1000", "SEED": "3",
    }  # fmt: skip
    asr_job = nodes.submit(
        ROOT, asr_log, "-N2", "--ntasks-per-node=1", "scripts/run_asr.sub", str(corpus), str(corpus / "model.yaml"),
        str(asr), "--num_workers=0", "--save_steps=5", "--sync_bn", GPU_BATCH_SIZE="2", GRAD_ACCUMULATION="1",
        **asr_settings,
    )  # fmt: skip

    bert_lines, asr_lines = bert / "phase_1" / "bert_dllog.json", asr / "nvlog.json"
    ready = {bert_job: lambda: len(loss_of_updates(bert_lines, "total_loss")) > 20,
             asr_job: lambda: len(loss_of_updates(asr_lines, "train_loss")) > 8}  # fmt: skip
    commands = {bert_job: ["scancel", "--batch", "--signal=USR1"], asr_job: ["scontrol", "requeue"]}

    def preempted() -> bool:
        for job in [job for job, is_ready in ready.items() if is_ready()]:
            nodes.call(*commands[job], job)
            del ready[job]
        return not ready

    nodes.wait_for(preempted, "updates", bert_log)
    for job, log in ((bert_job, bert_log), (asr_job, asr_log)):
        record = nodes.wait_for_end(job, log)
        assert (record["JobState"], record["ExitCode"], record["Restarts"]) == ("COMPLETED", "0:0", "1"), (
            log.read_text()
        )
    text = bert_log.read_text()
    assert f"job {bert_job} goes back into the queue" in text and f"resuming {bert / 'phase_1'} at step" in text
    assert f"job {bert_job}: 2 processes" in text
    done = int(re.search(r"going on from .*: (\d+) epochs and \d+ updates done", asr_log.read_text())[1])
    assert 0 < done < epochs

    straight = tmp_path / "straight"
    mains.run_here(run_pretraining, {
        "bert_config_file": records / "config.json", "input_files_dir": records / "training", "output_dir": straight,
        "do_train": True, "max_seq_length": 128, "max_predictions_per_seq": 20, "train_batch_size": 2,
        "num_accumulation_steps": 2, "num_train_steps": updates, "num_warmup_steps": 10, "learning_rate": 0.01,
        "precision": "fp32", "seed": 7, "save_checkpoints_steps": 1000, "allreduce_post_accumulation": True,
    })  # fmt: skip
    disturbed = loss_of_updates(bert_lines, "total_loss")
    assert len(disturbed) == updates
    assert disturbed == pytest.approx(loss_of_updates(straight / "bert_dllog.json", "total_loss"), rel=1e-3)

    summary = json.loads((asr / "summary.json").read_text())
    assert (summary["epochs"], summary["updates"]) == (epochs, 3 * epochs)
    assert len(loss_of_updates(asr_lines, "train_loss")) == 3 * epochs
