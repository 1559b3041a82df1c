"""The fine-tuning launchers: their words and published defaults, what a machine without GPUs makes of them, the
commands they build, what they refuse, how they fail."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
CONFIG = SCRIPTS / "configs" / "squad_config.sh"
BIOBERT = sorted(path for path in (SCRIPTS / "biobert").glob("*.sh") if path.name not in {"biobert.sh", "pubmed.sh"})
LAUNCHERS = [
    "run_squad.sh",
    "run_squad_inference.sh",
    "run_glue.sh",
    "run_glue_inference.sh",
    "biobert/ner_bc5cdr-chem.sh",
    "biobert/ner_bc5cdr-disease.sh",
    "biobert/rel_chemprot.sh",
    "biobert/run_biobert_finetuning_inference.sh",
]
BENCHMARKS = [
    "finetune_train_benchmark.sh",
    "finetune_inference_benchmark.sh",
    "biobert/biobert_finetune_training_benchmark.sh",
    "biobert/biobert_finetune_inference_benchmark.sh",
]
PHASES = [f"biobert/run_pretraining_pubmed_base_phase_{phase}.sh" for phase in (1, 2)]
ENVIRONMENT = """
    DATA_DIR BERT_PREP_WORKING_DIR RESULTS_DIR SOURCES BERT_CONFIG BERT_DIR VOCAB_FILE INIT_CHECKPOINT SQUAD_DIR
    GLUE_DIR DATASET_DIR NUM_ACCUMULATION_STEPS SEED MAX_EVAL_STEPS BERT_PYTHON DRY_RUN SEQ_LENGTHS BATCH_SIZES
    PRECISIONS BENCHMARK_STEPS NUM_EVAL_ITERATIONS MODELS USE_XLA EPOCHS SEQ_LENGTH
""".split()
DOWNLOAD = f"{ROOT}/data/download"
LARGE = f"{DOWNLOAD}/nvidia_pretrained/bert_tf_pretraining_large_lamb"


def launch(script: str, *words: str, **environment: object) -> subprocess.CompletedProcess:
    clean = {key: value for key, value in os.environ.items() if key not in ENVIRONMENT}
    return subprocess.run(
        ["bash", str(SCRIPTS / script), *words],
        cwd="/",
        env=clean | {key: str(value) for key, value in environment.items()},
        capture_output=True,
        text=True,
    )


def commands(output: str) -> list[dict[str, str]]:
    """The flags of each call of a main; those without a value map to "". "main" is its name."""
    found = []
    for line in output.splitlines():
        if match := re.search(r"-m bert_tf\.(run_\w+) ", line):
            flags = (word[2:].partition("=") for word in shlex.split(line) if word.startswith("--"))
            found.append({"main": match[1]} | {key: value for key, _, value in flags})
    return found


def with_gpus(folder: Path, n: int) -> str:
    """A PATH on which nvidia-smi shows n GPUs."""
    folder.mkdir(exist_ok=True)
    tool = folder / "nvidia-smi"
    lines = "".join(f"echo 'GPU {i}: NVIDIA A100'\n" for i in range(n))
    tool.write_text(f"#!/bin/sh\n{lines or 'exit 9'}\n", encoding="utf-8")
    tool.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.fixture(scope="session")
def gpus(tmp_path_factory) -> str:
    return with_gpus(tmp_path_factory.mktemp("gpus"), 16)


@pytest.fixture(scope="session")
def no_gpus(tmp_path_factory) -> str:
    return with_gpus(tmp_path_factory.mktemp("none"), 0)


def dry(script: str, *words: str, **environment: object) -> dict[str, str]:
    result = launch(script, *words, "--dry-run", **environment)
    assert result.returncode == 0 and result.stderr == "", result.stderr
    (flags,) = commands(result.stdout)
    return flags


@pytest.fixture
def fake(tmp_path: Path, no_gpus: str) -> dict[str, object]:
    """A folder with data and weights, and a BERT_PYTHON that notes its calls; it fails with 7 where $FAIL matches.

    Called for a main it leaves the figures that the tables want.
    """
    python = tmp_path / "python"
    python.write_text(
        r"""#!/usr/bin/env bash
set -eu
case $2 in
    bert_tf.benchmark_questions) echo 40 && exit ;;
    bert_tf.benchmark_tables) printf '%q ' "$@" >>"$CALLS.tables" && exit ;;
esac
printf '%q ' "$0" "$@" >>"$CALLS"
printf '\n' >>"$CALLS"
for word in "$@"; do
    case $word in --output_dir=*) output=${word#*=} ;; esac
done
echo "working in $output"
[[ $* != *${FAIL:-nothing}* ]] || exit 7
touch "$output/model.ckpt-3.index"
""",
        encoding="utf-8",
    )
    python.chmod(0o755)
    for name in ("vocab.txt", "bert_config.json", "model.ckpt.index", "train-v1.1.json", "dev-v1.1.json"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    (tmp_path / "MRPC").mkdir()
    return {
        "BERT_PYTHON": python,
        "CALLS": tmp_path / "calls",
        "RESULTS_DIR": tmp_path / "results",
        "BERT_DIR": tmp_path,
        "SQUAD_DIR": tmp_path,
        "GLUE_DIR": tmp_path,
        "DATASET_DIR": tmp_path,
        "PATH": no_gpus,
    }


# --------------------------------------------------------------------------------------------------------- all of them
def test_all_launchers_are_known():
    assert sorted(f"biobert/{path.name}" for path in BIOBERT) == sorted(
        name for name in [*LAUNCHERS, *BENCHMARKS, *PHASES] if name.startswith("biobert/")
    )
    assert {path.name for path in SCRIPTS.glob("run_[sg]*.sh")} == {x for x in LAUNCHERS if "/" not in x}
    assert {path.name for path in SCRIPTS.glob("finetune_*_benchmark.sh")} == {x for x in BENCHMARKS if "/" not in x}


@pytest.mark.parametrize("script", [*LAUNCHERS, *BENCHMARKS, *PHASES])
def test_help_is_the_header(script: str):
    result = launch(script, "--help")
    assert result.returncode == 0 and result.stderr == ""
    assert re.search(rf"^usage: .*{re.escape(Path(script).name)}", result.stdout, re.MULTILINE)
    assert "set -euo" not in result.stdout
    assert os.access(SCRIPTS / script, os.X_OK)


@pytest.mark.parametrize("script", LAUNCHERS)
def test_a_dry_run_needs_and_leaves_nothing(script: str, tmp_path: Path, gpus: str):
    flags = dry(script, BERT_PYTHON=tmp_path / "none", RESULTS_DIR=tmp_path / "r", DATA_DIR=tmp_path / "d", PATH=gpus)
    assert flags["output_dir"] == f"{tmp_path}/r" and flags["precision"] == "fp16" and "use_xla" in flags
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------------------------------------------- published defaults
def test_squad(gpus: str):
    flags = dry("run_squad.sh", PATH=gpus, RESULTS_DIR="/r")
    expected = {
        "main": "run_squad",
        "train_batch_size": "8",
        "learning_rate": "5e-6",
        "max_seq_length": "384",
        "doc_stride": "128",
        "num_train_epochs": "2.0",
        "save_checkpoints_steps": "1000",
        "init_checkpoint": f"{LARGE}/model.ckpt",
        "vocab_file": f"{LARGE}/vocab.txt",
        "train_file": f"{DOWNLOAD}/squad/v1.1/train-v1.1.json",
        "predict_file": f"{DOWNLOAD}/squad/v1.1/dev-v1.1.json",
        "do_train": "",
        "do_predict": "",
        "amp": "",
        "use_xla": "",
        "horovod": "",
    }
    assert {key: flags.get(key) for key in expected} == expected
    assert "version_2_with_negative" not in flags
    result = launch("run_squad.sh", "--dry-run", PATH=gpus)
    assert "horovodrun -np 8 -H localhost:8 " in result.stdout
    assert "global batch 64 " in result.stdout and "effective learning rate 4e-05 (" in result.stdout
    assert re.search(r"/tf_bert_finetuning_squad_large_fp16_gbs64_\d{12} ", result.stdout)


def test_squad_of_base_starts_from_google_s_weights(gpus: str):
    flags = dry("run_squad.sh", "", "", "", "", "1", "", "", "base", "2.0", PATH=gpus)
    assert flags["init_checkpoint"] == f"{DOWNLOAD}/google_pretrained_weights/uncased_L-12_H-768_A-12/bert_model.ckpt"
    assert flags["train_file"] == f"{DOWNLOAD}/squad/v2.0/train-v2.0.json"
    assert "version_2_with_negative" in flags and "horovod" not in flags


def test_squad_inference(gpus: str):
    flags = dry("run_squad_inference.sh", PATH=gpus, RESULTS_DIR="/r")
    assert flags["init_checkpoint"] == f"{DOWNLOAD}/nvidia_pretrained/bert_tf_squad11_large_384/model.ckpt"
    assert flags["predict_batch_size"] == "8" and "do_train" not in flags and "allow_random_weights" not in flags
    shown = launch("run_squad_inference.sh", "/w/model.ckpt", "4", "fp32", "--dry-run", PATH=gpus).stdout
    assert re.search(r"/tf_bert_finetuning_squad_large_inf_fp32_gbs4_ckpt_-w-model.ckpt_\d{12} ", shown)
    base = dry("run_squad_inference.sh", "", "", "", "", "", "", "base", PATH=gpus)
    assert base["init_checkpoint"] == f"{DOWNLOAD}/nvidia_pretrained/bert_tf_squad11_base_128/model.ckpt"


def test_glue(gpus: str):
    flags = dry("run_glue.sh", PATH=gpus, RESULTS_DIR="/r")
    expected = {
        "main": "run_classifier",
        "task_name": "MRPC",
        "data_dir": f"{DOWNLOAD}/glue/MRPC",
        "train_batch_size": "16",
        "learning_rate": "3e-6",
        "max_seq_length": "128",
        "num_train_epochs": "3.0",
        "warmup_proportion": "0.1",
        "init_checkpoint": f"{LARGE}/model.ckpt",
        "do_train": "",
        "do_eval": "",
    }
    assert {key: flags.get(key) for key in expected} == expected
    assert "doc_stride" not in flags and "optimizer_type" not in flags
    shown = launch("run_glue.sh", "--dry-run", PATH=gpus).stdout
    assert re.search(r"/tf_bert_finetuning_glue_MRPC_large_fp16_gbs128_\d{12} ", shown)


def test_glue_inference(gpus: str):
    flags = dry("run_glue_inference.sh", PATH=gpus)
    assert flags["init_checkpoint"] == f"{LARGE}/model.ckpt" and flags["eval_batch_size"] == "32"
    assert "do_eval" in flags and "do_train" not in flags and "doc_stride" not in flags


@pytest.mark.parametrize(
    "script, main, task, rate, length, evaluation, epochs",
    [
        ("ner_bc5cdr-chem", "run_ner", "bc5cdr", "3.125e-6", "128", "8", "10.0"),
        ("ner_bc5cdr-disease", "run_ner", "bc5cdr", "3.125e-6", "128", "8", "100.0"),
        ("rel_chemprot", "run_re", "chemprot", "1.5e-6", "512", "16", "3.0"),
    ],
)
def test_biobert(script, main, task, rate, length, evaluation, epochs, gpus: str):
    flags = dry(f"biobert/{script}.sh", PATH=gpus)
    expected = {
        "main": main,
        "task_name": task,
        "train_batch_size": "8",
        "learning_rate": rate,
        "max_seq_length": length,
        "eval_batch_size": evaluation,
        "num_train_epochs": epochs,
        "do_lower_case": "true",
    }
    assert {key: flags.get(key) for key in expected} == expected
    assert flags["init_checkpoint"].endswith("/biobert_tf_uncased_base/model.ckpt")
    shown = launch(f"biobert/{script}.sh", "", "", "", "true", "--dry-run", PATH=gpus).stdout
    assert "horovodrun -np 16 " in shown and "global batch 128 " in shown and f"_{script}_base_cased_" in shown
    assert commands(shown)[0]["do_lower_case"] == "false"


def test_biobert_inference(gpus: str):
    flags = dry("biobert/run_biobert_finetuning_inference.sh", "rel_chemprot", "/w/model.ckpt", PATH=gpus)
    assert (flags["main"], flags["task_name"], flags["predict_batch_size"]) == ("run_re", "chemprot", "16")
    assert flags["max_seq_length"] == "512" and "do_predict" in flags and "do_train" not in flags


def test_pubmed_phases(gpus: str):
    google = f"{DOWNLOAD}/google_pretrained_weights/uncased_L-12_H-768_A-12/bert_model.ckpt"
    first = launch(PHASES[0], "--dry-run", PATH=gpus, RESULTS_DIR="/r")
    assert first.returncode == 0, first.stderr
    (flags,) = commands(first.stdout)
    expected = {
        "train_batch_size": "128",
        "learning_rate": "9.625e-5",
        "num_warmup_steps": "1953",
        "num_train_steps": "19531",
        "num_accumulation_steps": "32",
        "save_checkpoints_steps": "5000",
        "eval_batch_size": "80",
        "max_seq_length": "128",
        "init_checkpoint": google,
        "allreduce_post_accumulation": "True",
        "horovod": "",
    }
    assert {key: flags.get(key) for key in expected} == expected
    assert "horovodrun -np 16 " in first.stdout
    assert "global batch 65536 " in first.stdout and "effective learning rate 0.00154 (" in first.stdout

    second = launch(PHASES[1], "/p/model.ckpt-19531", "--dry-run", PATH=gpus)
    (flags,) = commands(second.stdout)
    expected |= {
        "train_batch_size": "16",
        "learning_rate": "2.9e-4",
        "num_warmup_steps": "434",
        "num_train_steps": "4340",
        "num_accumulation_steps": "128",
        "eval_batch_size": "26",
        "max_seq_length": "512",
        "init_checkpoint": "/p/model.ckpt-19531",
    }
    assert {key: flags.get(key) for key in expected} == expected
    assert "global batch 32768 " in second.stdout and "effective learning rate 0.00464 (" in second.stdout


def test_pubmed_refusals(fake: dict, tmp_path: Path):
    assert "give their checkpoint as word 1" in launch(PHASES[1], "--dry-run").stderr
    words = ["4", "1e-4", "true", "fp32", "false", "1", "1", "4", "1"]
    lower = tmp_path / "tfrecord" / "lower_case_1_seq_len_128_max_pred_20_x" / "pubmed_baseline"
    lower.mkdir(parents=True)  # records in lower case are none for a cased model
    result = launch(PHASES[0], *words, **fake, DATA_DIR=tmp_path)
    assert result.returncode == 1 and "no records lower_case_0_seq_len_128_max_pred_20_" in result.stderr
    missing = launch(PHASES[1], "/nowhere/model.ckpt", *words, **fake, SOURCES="x")
    assert missing.returncode == 1 and "there is no /nowhere/model.ckpt.index: run phase 1" in missing.stderr


# ------------------------------------------------------------------------------------------------------------- presets
PRESETS = {
    "dgxa100_8gpu_fp16": "32 5e-6 fp16 true 8 384 128 large",
    "dgxa100_8gpu_tf32": "16 5e-6 tf32 true 8 384 128 large",
    "dgx2_16gpu_fp16": "24 2.5e-6 fp16 true 16 384 128 large",
    "dgx2_16gpu_fp32": "8 2.5e-6 fp32 true 16 384 128 large",
    "dgx1_8gpu_fp16": "4 5e-6 fp16 true 8 384 128 large",
    "dgx1_8gpu_fp32": "2 5e-6 fp32 true 8 384 128 large",
    "cpu_tiny": "16 5e-4 fp32 false 1 384 128 tiny",
}


def test_all_presets_are_known():
    assert sorted(re.findall(r"^([a-z]\w*)\(\)", CONFIG.read_text(encoding="utf-8"), re.MULTILINE)) == sorted(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_start_as_documented(name: str):
    (usage,) = re.findall(r"^# usage: (.*) dgxa100_8gpu_fp16\)$", CONFIG.read_text(encoding="utf-8"), re.MULTILINE)
    result = subprocess.run(
        ["bash", "-c", f"RESULTS_DIR=/r {usage} {name}) --dry-run"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    batch, rate, precision, xla, gpus, length, stride, _ = PRESETS[name].split()
    (flags,) = commands(result.stdout)
    expected = [batch, rate, precision, length, stride]
    keys = ["train_batch_size", "learning_rate", "precision", "max_seq_length", "doc_stride"]
    assert [flags[key] for key in keys] == expected
    assert ("use_xla" in flags) == (xla == "true") and ("horovod" in flags) == (gpus != "1")
    if gpus != "1":
        assert float(rate) * int(gpus) == pytest.approx(4e-5)


# -------------------------------------------------------------------------------------------------------- this machine
def test_defaults_without_a_gpu(no_gpus: str):
    result = launch("run_squad.sh", "--dry-run", PATH=no_gpus)
    (flags,) = commands(result.stdout)
    assert "num_gpu=1 (published: 8)" in result.stdout and "use_xla=false (published: true)" in result.stdout
    assert "horovod" not in flags and "nouse_xla" in flags and flags["precision"] in ("bf16", "fp32")
    given = dry("run_squad.sh", "", "", "fp16", "true", "2", PATH=no_gpus)  # words win
    assert "horovod" in given and "use_xla" in given and given["precision"] == "fp16"


def test_fewer_gpus_than_published(tmp_path: Path):
    result = launch("run_glue.sh", "--dry-run", PATH=with_gpus(tmp_path / "bin", 2))
    assert "num_gpu=2 (published: 8)" in result.stdout and "horovodrun -np 2 " in result.stdout
    assert commands(result.stdout)[0]["precision"] == "fp16"


# --------------------------------------------------------------------------------------------------- words and weights
def test_words_and_environment_reach_the_command(no_gpus: str):
    words = ["4", "1.23e-5", "bf16", "false", "1", "256", "64", "tiny", "2.0", "none", "0.5"]
    flags = dry(
        "run_squad.sh", *words, "--nobucket", "--n_best_size=5",
        PATH=no_gpus, SEED=7, NUM_ACCUMULATION_STEPS=3, VOCAB_FILE="/v.txt", BERT_CONFIG="/c.json", SQUAD_DIR="/s",
    )  # fmt: skip
    expected = {
        "learning_rate": "1.23e-5",
        "num_accumulation_steps": "3",
        "seed": "7",
        "vocab_file": "/v.txt",
        "bert_config_file": "/c.json",
        "train_file": "/s/train-v2.0.json",
        "nobucket": "",
        "n_best_size": "5",
        "num_train_epochs": "0.5",
    }
    assert {key: flags.get(key) for key in expected} == expected
    assert "init_checkpoint" not in flags
    assert "allow_random_weights" in dry("run_squad_inference.sh", "none", PATH=no_gpus)


def test_vocabulary_and_config_lie_beside_the_weights(fake: dict, tmp_path: Path):
    """Of a checkpoint's prefix, of an output folder, and of a Hugging Face folder, which is cased."""
    other = tmp_path / "bert-base-cased"
    other.mkdir()
    for name in ("config.json", "vocab.txt", "model.safetensors"):
        (other / name).touch()
    (other / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")
    for weights, folder, config in (
        (tmp_path / "model.ckpt", tmp_path, "bert_config.json"),
        (tmp_path, tmp_path, "bert_config.json"),
        (other, other, "config.json"),
    ):
        fake["CALLS"].unlink(missing_ok=True)
        environment = fake | {"BERT_DIR": "/nowhere"}
        result = launch("run_squad_inference.sh", str(weights), "8", "fp32", **environment)
        assert result.returncode == 0, result.stderr
        (flags,) = commands(fake["CALLS"].read_text())
        assert flags["vocab_file"] == f"{folder}/vocab.txt" and flags["bert_config_file"] == f"{folder}/{config}"
        assert (flags.get("do_lower_case") == "false") == (folder == other)


def test_bert_dir_s_checkpoint_is_found_by_either_name(fake: dict, tmp_path: Path):
    (tmp_path / "model.ckpt.index").rename(tmp_path / "bert_model.ckpt.index")
    assert launch("run_squad.sh", **fake).returncode == 0
    assert commands(fake["CALLS"].read_text())[0]["init_checkpoint"] == f"{tmp_path}/bert_model.ckpt"


@pytest.mark.parametrize("name", ["CoLA", "cola", "SST-2", "sst2"])
def test_glue_folders_by_any_spelling(fake: dict, tmp_path: Path, name: str):
    folder = tmp_path / ("CoLA" if "o" in name.lower() else "SST-2")
    folder.mkdir()
    assert launch("run_glue.sh", name, **fake).returncode == 0
    assert commands(fake["CALLS"].read_text())[0]["data_dir"] == str(folder)


def test_glue_data_where_the_published_scripts_look(fake: dict, tmp_path: Path):
    (tmp_path / "download" / "MRPC").mkdir(parents=True)
    environment = {key: value for key, value in fake.items() if key != "GLUE_DIR"} | {"DATA_DIR": tmp_path}
    assert launch("run_glue.sh", **environment).returncode == 0
    assert commands(fake["CALLS"].read_text())[0]["data_dir"] == f"{tmp_path}/download/MRPC"


# ------------------------------------------------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    "script, position, word, message",
    [
        ("run_squad.sh", 1, "0", "batch_size"),
        ("run_squad.sh", 2, "a", "learning_rate"),
        ("run_squad.sh", 3, "fp8", "precision must be fp16, bf16, fp32 or tf32"),
        ("run_squad.sh", 4, "yes", "use_xla must be true or false"),
        ("run_squad.sh", 5, "x", "num_gpu"),
        ("run_squad.sh", 6, "x", "seq_length"),
        ("run_squad.sh", 7, "0", "doc_stride"),
        ("run_squad.sh", 8, "huge", "bert_model must be one of base large tiny"),
        ("run_squad.sh", 9, "3", "squad_version must be 1.1 or 2.0"),
        ("run_squad.sh", 11, "0", "epochs"),
        ("run_squad.sh", 12, "1", "at most 11"),
        ("run_squad_inference.sh", 2, "x", "batch_size"),
        ("run_squad_inference.sh", 9, "x", "at most 8"),
        ("run_glue.sh", 7, "128.5", "seq_length"),
        ("run_glue.sh", 10, "-1", "epochs"),
        ("run_glue.sh", 13, "x", "at most 12"),
        ("run_glue_inference.sh", 9, "x", "at most 8"),
        ("biobert/rel_chemprot.sh", 4, "yes", "cased must be true or false"),
        ("biobert/rel_chemprot.sh", 12, "x", "at most 11"),
        ("biobert/run_biobert_finetuning_inference.sh", 1, "ner", "task must be ner_bc5cdr-chem"),
        ("finetune_train_benchmark.sh", 4, "glue", "task must be squad"),
        ("finetune_inference_benchmark.sh", 1, "glue", "task must be squad"),
    ],
)
def test_a_wrong_word_is_named(script: str, position: int, word: str, message: str):
    result = launch(script, *[""] * (position - 1), word, "--dry-run")
    assert result.returncode == 1 and commands(result.stdout) == []
    assert result.stderr.startswith("error: ") and message in result.stderr


@pytest.mark.parametrize(
    "script, flag",
    [
        ("run_squad.sh", "--output_dir=/x"),
        ("run_squad.sh", "--noamp"),
        ("run_squad.sh", "--init_checkpoint=/x"),
        ("run_squad.sh", "--vocab_file=/x"),
        ("run_squad.sh", "--version_2_with_negative"),
        ("run_glue.sh", "--warmup_proportion=0.3"),
        ("run_glue.sh", "--nodo_train"),
        ("biobert/ner_bc5cdr-chem.sh", "--do_lower_case"),
        ("finetune_train_benchmark.sh", "--save_checkpoints_steps=1"),
    ],
)
def test_flags_that_words_set_are_refused(script: str, flag: str):
    result = launch(script, flag, "--dry-run")
    assert result.returncode == 1 and f"{flag.partition('=')[0]} is set by" in result.stderr


@pytest.mark.parametrize(
    "script, missing, message",
    [
        ("run_squad.sh", "train-v1.1.json", "data.embedded_questions"),
        ("run_squad_inference.sh", "dev-v1.1.json", "set SQUAD_DIR"),
        ("run_squad.sh", "model.ckpt.index", None),
        ("run_squad.sh", "vocab.txt", "set VOCAB_FILE"),
        ("run_glue.sh", "MRPC", "set GLUE_DIR"),
    ],
)
def test_what_is_missing_is_named(fake: dict, tmp_path: Path, script: str, missing: str, message: str | None):
    path = tmp_path / missing
    path.rmdir() if path.is_dir() else path.unlink()
    result = launch(script, **fake)
    if message is None:  # a folder that holds something else is the main's to look into
        assert commands(fake["CALLS"].read_text())[0]["init_checkpoint"] == str(tmp_path)
        return
    assert result.returncode == 1 and message in result.stderr and not fake["CALLS"].exists()


def test_missing_weights_and_data_folders_are_named(fake: dict):
    result = launch("run_squad.sh", **fake | {"BERT_DIR": "/nowhere"})
    assert result.returncode == 1 and "there are no weights /nowhere/model.ckpt" in result.stderr
    assert "BERT_DIR" in result.stderr and "'none'" in result.stderr
    result = launch("biobert/rel_chemprot.sh", **fake | {"DATASET_DIR": "/nowhere"})
    assert result.returncode == 1 and "there is no /nowhere" in result.stderr and "DATASET_DIR" in result.stderr


def test_several_processes_need_horovod(fake: dict):
    result = launch("run_glue.sh", "", "", "", "", "", "4", **fake)
    assert result.returncode == 1 and "num_gpu=4 starts one process a GPU through Horovod" in result.stderr


# ----------------------------------------------------------------------------------------------------- logs and status
@pytest.mark.parametrize("script", LAUNCHERS)
def test_log_and_exit_status(fake: dict, script: str):
    words = ["none"] if "inference" in script and "squad" in script else []
    done = launch(script, *words, **fake)
    assert done.returncode == 0, done.stderr
    (log,) = fake["RESULTS_DIR"].glob("tf_bert_*.log")
    assert re.search(r"\.\d{12}\.log$", log.name) and f"working in {fake['RESULTS_DIR']}" in log.read_text()
    assert launch(script, *words, **fake, FAIL="output_dir").returncode == 7


def test_the_log_of_weights_with_a_long_path(fake: dict, tmp_path: Path):
    folder = tmp_path / ("x" * 200) / ("y" * 200)
    folder.mkdir(parents=True)
    for name in ("model.ckpt.index", "vocab.txt"):
        (folder / name).touch()
    assert launch("run_squad_inference.sh", str(folder / "model.ckpt"), **fake).returncode == 0
    (log,) = fake["RESULTS_DIR"].glob("*-model.ckpt.*.log")
    assert len(log.name) < 255


# ---------------------------------------------------------------------------------------------------------- benchmarks
@pytest.mark.parametrize(
    "script, runs, name",
    [
        ("finetune_train_benchmark.sh", 12, "bert_large_gpu_8_sl_384_prec_--noamp_bs_4"),
        ("finetune_inference_benchmark.sh", 32, "bert_base_inf_sl_128_prec_--amp_bs_8"),
        ("biobert/biobert_finetune_training_benchmark.sh", 12, "bert_base_gpu_2_sl_512_prec_--amp_bs_64"),
        ("biobert/biobert_finetune_inference_benchmark.sh", 12, "bert_base_inf_sl_128_prec_--noamp_bs_8"),
    ],
)
def test_published_grids(script: str, runs: int, name: str, gpus: str):
    result = launch(script, "--dry-run", PATH=gpus)
    assert result.returncode == 0 and result.stderr == ""
    shown = commands(result.stdout)
    folders = [Path(flags["output_dir"]).name for flags in shown]
    assert len(folders) == len(set(folders)) == runs and name in folders
    for flags in shown:
        length, mode, batch = re.search(r"_sl_(\d+)_prec_--(\w+)_bs_(\d+)$", flags["output_dir"]).groups()
        assert flags["max_seq_length"] == length and mode in flags and "precision" not in flags
        assert batch in (flags.get("train_batch_size"), flags.get("predict_batch_size"))
        assert "nobucket" in flags and ("horovod" in flags) == ("gpu_" in name) and "use_xla" in flags
        if script == BENCHMARKS[0]:
            assert flags["doc_stride"] == {"128": "64", "384": "128"}[length] and flags["learning_rate"] == "5e-6"
        if script == BENCHMARKS[1]:
            assert flags["doc_stride"] == "128" and flags["num_eval_iterations"] == "1024"


@pytest.mark.parametrize("script", BENCHMARKS)
def test_quick_grids_are_small(script: str, no_gpus: str):
    result = launch(script, "--quick", "--dry-run", PATH=no_gpus)
    shown = commands(result.stdout)
    assert result.returncode == 0 and len(shown) == 8
    assert all("/configs/bert/tiny.json" in flags["bert_config_file"] for flags in shown)


def test_a_failed_run_is_named_and_the_others_go_on(fake: dict):
    result = launch(BENCHMARKS[0], "--quick", **fake, FAIL="sl_128_prec_--amp_bs_4", BENCHMARK_STEPS=10)
    assert result.returncode == 1
    assert "these runs failed, see above: bert_tiny_gpu_1_sl_128_prec_--amp_bs_4" in result.stderr
    shown = commands(fake["CALLS"].read_text())
    assert len(shown) == 8
    assert "train" in Path(f"{fake['CALLS']}.tables").read_text().split()  # the tables are made all the same
    for flags in shown:  # 40 questions: as many epochs as make 10 updates
        assert int(40 / int(flags["train_batch_size"]) * float(flags["num_train_epochs"])) == 10
    results = fake["RESULTS_DIR"]
    assert len(list(results.glob("bert_*/run.log"))) == 8 and not list(results.glob("bert_*/model.ckpt*"))


def test_grids_by_environment(fake: dict):
    grid = {"SEQ_LENGTHS": "64", "BATCH_SIZES": "2 3", "PRECISIONS": "bf16", "MODELS": "tiny base"}
    result = launch(BENCHMARKS[1], **fake, **grid)
    assert result.returncode == 0, result.stderr
    shown = commands(fake["CALLS"].read_text())
    assert [Path(flags["output_dir"]).name for flags in shown] == [
        f"bert_{model}_inf_sl_64_prec_--bf16_bs_{batch}" for model in ("tiny", "base") for batch in (2, 3)
    ]
    assert all(flags["precision"] == "bf16" for flags in shown)
    wrong = launch(BENCHMARKS[1], "--dry-run", PRECISIONS="fp8")
    assert wrong.returncode == 1 and "PRECISIONS must be of amp" in wrong.stderr
    fake["CALLS"].unlink()
    unknown = launch(BENCHMARKS[1], **fake, MODELS="tiny huge")
    assert unknown.returncode == 1 and "not 'huge'" in unknown.stderr and not fake["CALLS"].exists()


# ----------------------------------------------------------------------------------------------------------- answer.sh
def test_answer_passes_its_words(fake: dict):
    shown = launch("answer.sh", "/m", "--context", "a b", "--question", "c?", "--dry-run", **fake).stdout
    assert shlex.split(shown)[1:] == ["-m", "bert_tf.answer", "/m", "--context", "a b", "--question", "c?"]
    assert "MODEL_DIR is missing" in launch("answer.sh", "--dry-run").stderr
