"""The speech launchers: variables, words, what they print, the commands they build, how they fail."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
PLATFORM = SCRIPTS / "platform"
DEFAULT_CONFIG = str(ROOT / "configs/asr/quartznet15x5_speedp-online-1.15_speca.yaml")
JASPER = "configs/jasper10x5dr_speedp-online_speca.yaml"


def bash(script: str | Path, *words: str, cwd: Path = ROOT, **environment: object) -> subprocess.CompletedProcess:
    """Runs a script with nothing in the environment but what is given; CPU=false unless given."""
    keep = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
    given = {"CPU": "false"} | {key: str(value) for key, value in environment.items()}
    return subprocess.run(
        ["bash", str(SCRIPTS / script), *words], cwd=cwd, env=keep | given, capture_output=True, text=True
    )


def dry(script: str | Path, *words: str, **environment: object) -> subprocess.CompletedProcess:
    result = bash(script, *words, "--dry-run", **environment)
    assert result.returncode == 0, result.stderr
    return result


def commands(output: str) -> list[list[str]]:
    """The calls of a Python program shown in a dry run, or noted by the `fake` interpreter."""
    return [shlex.split(line) for line in output.splitlines() if " -m jasper_pt.run_" in f" {line}"]


def flags(command: list[str]) -> dict[str, str]:
    """Flags of the program by name; values of one flag are joined by blanks, those of a repeated flag by ";"."""
    program = next(i for i, word in enumerate(command) if word.startswith("jasper_pt.run_"))
    given: list[tuple[str, list[str]]] = []
    for word in command[program + 1 :]:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            given.append((name, [value] if equals else []))
        else:
            given[-1][1].append(word)
    found: dict[str, list[str]] = {}
    for name, values in given:
        found.setdefault(name, []).append(" ".join(values))
    return {name: ";".join(values) for name, values in found.items()}


def only_flags(result: subprocess.CompletedProcess) -> dict[str, str]:
    (command,) = commands(result.stdout)
    return flags(command)


@pytest.fixture
def fake(tmp_path: Path) -> dict[str, object]:
    """Data, and an ASR_PYTHON that notes its calls; a call that has $FAIL in a word ends with status $STATUS."""
    python = tmp_path / "python"
    python.write_text(
        r"""#!/usr/bin/env bash
printf '%q ' "threads=$OMP_NUM_THREADS" "$@" >>"$CALLS"
printf '\n' >>"$CALLS"
for word in "$@"; do [[ $word != *"${FAIL:-nowhere}"* ]] || exit "${STATUS:-7}"; done
""",
        encoding="utf-8",
    )
    python.chmod(0o755)
    data = tmp_path / "data"
    data.mkdir()
    for subset in ("train-clean-100", "train-clean-360", "train-other-500", "dev-clean", "test-other"):
        (data / f"librispeech-{subset}-wav.json").write_text("[]")
    return {
        "ASR_PYTHON": python,
        "CALLS": tmp_path / "calls",
        "DATA_DIR": data,
        "OUTPUT_DIR": tmp_path / "out",
        "CPU": "true",
    }


def calls(fake: dict[str, object]) -> list[str]:
    """The programs that were started."""
    path = Path(str(fake["CALLS"]))
    return [line for line in path.read_text(encoding="utf-8").splitlines() if " -m " in line] if path.exists() else []


# ------------------------------------------------------------------------------------------------------------- train.sh
def test_published_quartznet_defaults():
    result = dry("train.sh")
    (command,) = commands(result.stdout)
    launcher = "-m torch.distributed.run --standalone --nproc_per_node=8 -m jasper_pt.run_training"
    assert " ".join(command[1:7]) == launcher
    manifests = [
        f"/datasets/LibriSpeech/librispeech-train-{x}-wav.json" for x in ("clean-100", "clean-360", "other-500")
    ]
    assert flags(command) == {
        "model_config": DEFAULT_CONFIG,
        "dataset_dir": "/datasets/LibriSpeech",
        "output_dir": "/results",
        "report": "",
        "log_file": "/results/nvlog.json",
        "train_manifests": " ".join(manifests),
        "val_manifests": "/datasets/LibriSpeech/librispeech-dev-clean-wav.json",
        "dali_device": "gpu",
        "gpu_batch_size": "72",
        "grad_accumulation": "2",
        "optimizer": "fused_novograd",
        "lr": "0.01",
        "min_lr": "1e-5",
        "weight_decay": "1e-3",
        "lr_policy": "exponential",
        "lr_exp_gamma": "0.981",
        "ema": "0.999",
        "multi_tensor_ema": "",
        "seed": "0",
        "epochs": "260",
        "warmup_epochs": "2",
        "hold_epochs": "140",
        "epochs_this_job": "0",
        "save_frequency": "10",
        "keep_milestones": "100 200",
        "save_best_from": "200",
        "log_frequency": "1",
        "eval_frequency": "241",
        "prediction_frequency": "241",
        "cudnn_benchmark": "",
        "resume": "",
    }
    assert "global batch 1152 utterances (72 utterances x 2 accumulation steps x 8 processes)" in result.stdout
    assert "note: rates" not in result.stdout


def test_published_jasper_defaults():
    """Its batch of 64 is that of an update: 32 in each of 2 passes."""
    result = dry("train.sh", MODEL_CONFIG=JASPER)
    found = only_flags(result)
    expected = {
        "model_config": str(ROOT / "configs/asr" / Path(JASPER).name),
        "gpu_batch_size": "32",
        "grad_accumulation": "2",
        "optimizer": "novograd",
        "epochs": "440",
        "eval_frequency": "544",
        "prediction_frequency": "544",
        "keep_milestones": "100 200 300 400",
        "save_best_from": "380",
    }
    assert {key: found[key] for key in expected} == expected
    assert "global batch 512 " in result.stdout and "note: rates" not in result.stdout


def test_variables_reach_the_program():
    environment = {
        "NUM_GPUS": 1,
        "AMP": "true",
        "CUDNN_BENCHMARK": "false",
        "RESUME": "false",
        "MULTI_TENSOR_EMA": "false",
        "OPTIMIZER": "adamw",
        "LEARNING_RATE": "2.5e-3",
        "EPOCHS_THIS_JOB": 3,
        "LOG_FILE": "/l/x.json",
        "CHECKPOINT": "/c/a.pt",
        "PRE_ALLOCATE": "1408 1920",
        "BENCHMARK_EPOCHS": 4,
        "MAX_DURATION": 12.5,
        "PAD_TO_MAX_DURATION": "true",
        "TRAIN_MANIFESTS": "a.json /abs/b.json sub/c.json",
        "DALI_DEVICE": "none",
    }
    (command,) = commands(dry("train.sh", **environment).stdout)
    assert command[1:3] == ["-m", "jasper_pt.run_training"]
    found = flags(command)
    assert {"resume", "cudnn_benchmark", "multi_tensor_ema"} & set(found) == set()
    assert found["amp"] == found["no-cudnn_benchmark"] == ""
    assert found["optimizer"] == "adamw" and found["lr"] == "2.5e-3" and found["dali_device"] == "none"
    assert found["epochs_this_job"] == "3" and found["benchmark_epochs_num"] == "4"
    assert found["log_file"] == "/l/x.json" and found["ckpt"] == "/c/a.pt"
    assert found["pre_allocate_range"] == "1408 1920"
    assert found["train_manifests"] == "/datasets/LibriSpeech/a.json /abs/b.json sub/c.json"
    assert found["override_config"].split(";") == [
        f"input_train.{part}.{key}"
        for key in ("max_duration=12.5", "pad_to_max_duration=True")
        for part in ("audio_dataset", "filterbank_features")
    ]


def test_words_win_over_the_environment_and_flags_pass_through():
    words = ["/d", "", "/o", "/c.pt", "--clip_norm", "1", "--sync_bn", "--epochs=3"]
    found = only_flags(dry("train.sh", *words, DATA_DIR="/elsewhere", MODEL_CONFIG="quartznet5x5"))
    assert found["dataset_dir"] == "/d" and found["output_dir"] == "/o" and found["ckpt"] == "/c.pt"
    assert found["model_config"] == str(ROOT / "configs/asr/quartznet5x5.yaml")
    assert found["clip_norm"] == "1" and found["sync_bn"] == "" and found["epochs"] == "260;3"
    result = bash("train.sh", "/d", "quartznet5x5", "/o", "/c", "/fifth", "--dry-run")
    assert result.returncode == 1 and "'/fifth' is one word too many" in result.stderr


def test_a_config_of_ones_own(tmp_path: Path):
    """The model section decides, also where the file only changes another one."""
    (tmp_path / "big.yaml").write_text("name: Mine\njasper:\n  encoder: {}\n", encoding="utf-8")
    (tmp_path / "mine.yaml").write_text("base: 'big.yaml' # starts there\noverrides: {}\n", encoding="utf-8")
    found = only_flags(dry("train.sh", MODEL_CONFIG=tmp_path / "mine.yaml"))
    assert found["optimizer"] == "novograd" and found["model_config"] == str(tmp_path / "mine.yaml")
    for name in ("/nowhere/quartznet5x5.yaml", "configs/quartznet9x9.yaml"):
        result = bash("train.sh", "--dry-run", MODEL_CONFIG=name)
        assert result.returncode == 1 and "configs/asr has" in result.stderr and "quartznet5x5.yaml" in result.stderr


def test_batch_size_is_shared_by_the_accumulation_steps():
    found = only_flags(dry("train.sh", MODEL_CONFIG=JASPER, BATCH_SIZE=48, GRAD_ACCUMULATION_STEPS=4))
    assert (found["gpu_batch_size"], found["grad_accumulation"]) == ("12", "4")
    torn = bash("train.sh", "--dry-run", BATCH_SIZE=50, GRAD_ACCUMULATION=4)
    assert torn.returncode == 1 and "BATCH_SIZE=50 is not divisible by 4" in torn.stderr
    both = bash("train.sh", "--dry-run", BATCH_SIZE=50, GPU_BATCH_SIZE=5)
    assert both.returncode == 1 and "set one of the two" in both.stderr


def test_another_global_batch_is_noted():
    assert "published for a global batch of 1152" in dry("train.sh", NUM_GPUS=1).stdout
    assert "published for" in dry("train.sh", NUM_GPUS=1, EPOCHS=9).stdout
    assert "note: rates" not in dry("train.sh", NUM_GPUS=1, GRAD_ACCUMULATION=16).stdout
    assert "note: rates" not in dry("train.sh", NUM_GPUS=1, EPOCHS=9, LEARNING_RATE=1e-3).stdout


@pytest.mark.parametrize(
    "script, variable, value, message",
    [
        ("train.sh", "AMP", ":true", "AMP must be true or false, not ':true'"),
        ("train.sh", "CPU", "yes", "CPU must be true or false"),
        ("train.sh", "RESUME", "1", "RESUME must be true or false"),
        ("train.sh", "NUM_GPUS", "0", "NUM_GPUS"),
        ("train.sh", "GPU_BATCH_SIZE", "7.5", "GPU_BATCH_SIZE"),
        ("train.sh", "EPOCHS", "ten", "EPOCHS"),
        ("train.sh", "LEARNING_RATE", "0", "LEARNING_RATE"),
        ("train.sh", "MAX_DURATION", "long", "MAX_DURATION"),
        ("train.sh", "DALI_DEVICE", "tpu", "DALI_DEVICE must be none, cpu or gpu"),
        ("inference.sh", "EMA", "0.999", "EMA must be true or false"),
        ("inference.sh", "BATCH_SIZE", "-1", "BATCH_SIZE"),
        ("inference.sh", "NUM_STEPS", "many", "NUM_STEPS"),
        ("train_benchmark.sh", "GRAD_ACC_SEQ", "2 x", "accumulation must be a whole number"),
        ("train_benchmark.sh", "BENCHMARK_STEPS", "-2", "BENCHMARK_STEPS"),
        ("inference_benchmark.sh", "MAX_DURATION_SEQ", "2 x", "MAX_DURATION"),
        ("inference_benchmark.sh", "BATCH_SIZE_SEQ", "1 0", "BATCH_SIZE"),
        ("inference_benchmark.sh", "NUM_STEPS", "0", "NUM_STEPS"),
    ],
)
def test_a_wrong_value_is_named(script: str, variable: str, value: str, message: str):
    result = bash(script, "--dry-run", **{variable: value})
    assert result.returncode == 1
    assert result.stderr.startswith("error: ") and message in result.stderr
    assert commands(result.stdout) == []


# --------------------------------------------------------------------------------------------------- device and folders
def gpus(tmp_path: Path, count: int) -> str:
    """A PATH on which nvidia-smi shows so many GPUs."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    smi = folder / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\nfor i in $(seq {count}); do echo GPU $i; done\n[ {count} != 0 ]\n")
    smi.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_without_a_gpu_the_cpu_is_taken_with_a_note(tmp_path: Path):
    result = dry("train.sh", CPU="", PATH=gpus(tmp_path, 0))
    assert "note: nvidia-smi shows no GPU, so CPU=true" in result.stdout
    (command,) = commands(result.stdout)
    assert command[1:3] == ["-m", "jasper_pt.run_training"]
    assert flags(command)["cpu"] == "" and flags(command)["dali_device"] == "none"
    with_gpu = dry("train.sh", CPU="", PATH=gpus(tmp_path, 8))
    assert "note" not in with_gpu.stdout and "cpu" not in only_flags(with_gpu)


def test_gpus_that_are_not_there(fake: dict, tmp_path: Path):
    few = bash("train.sh", **fake | {"CPU": "false", "PATH": gpus(tmp_path, 2)})
    assert few.returncode == 1 and "NUM_GPUS=8, but nvidia-smi shows 2: set NUM_GPUS=2" in few.stderr
    none = bash("train.sh", **fake | {"CPU": "false", "PATH": gpus(tmp_path, 0)})
    assert none.returncode == 1 and "set CPU=true" in none.stderr
    wrong = bash("train.sh", **fake, DALI_DEVICE="gpu")
    assert wrong.returncode == 1 and "DALI_DEVICE=gpu needs a GPU" in wrong.stderr
    assert calls(fake) == []


def test_processes_share_the_cores(fake: dict):
    cores = len(os.sched_getaffinity(0))
    assert bash("train.sh", **fake).returncode == 0
    assert bash("train.sh", **fake, NUM_GPUS=2).returncode == 0
    assert bash("train.sh", **fake, NUM_GPUS=2, OMP_NUM_THREADS=5).returncode == 0
    assert [line.split()[0] for line in calls(fake)] == [
        f"threads={cores}",
        f"threads={max(1, cores // 2)}",
        "threads=5",
    ]
    assert "torch.distributed.run --standalone --nproc_per_node=2 -m jasper_pt.run_training" in calls(fake)[1]


def test_restarts_and_several_machines():
    (command,) = commands(dry("train.sh", NUM_GPUS=1, MAX_RESTARTS=3).stdout)
    assert command[1:6] == ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1", "--max_restarts=3"]
    meeting = {"NNODES": "1:2", "RDZV_ENDPOINT": "host:29400", "RDZV_ID": "job7"}
    result = dry("train.sh", NUM_GPUS=4, MAX_RESTARTS=3, **meeting)
    (command,) = commands(result.stdout)
    words = (
        "--nnodes=1:2 --nproc_per_node=4 --max_restarts=3 --rdzv_backend=c10d --rdzv_endpoint=host:29400 --rdzv_id=job7"
    )
    assert command[3:9] == words.split()
    assert "x 8 processes" in result.stdout and flags(command)["global_batch_size"] == str(72 * 2 * 8)
    assert "global_batch_size" not in only_flags(dry("train.sh", **meeting | {"NNODES": 2}))
    refused = bash("train.sh", "--dry-run", NNODES=2)
    assert refused.returncode == 1 and "NNODES=2 needs RDZV_ENDPOINT=HOST:PORT" in refused.stderr
    assert "NNODES is a number of machines" in bash("train.sh", "--dry-run", NNODES="two").stderr


def test_the_starter_may_be_replaced():
    (command,) = commands(dry("train.sh", DISTRIBUTED="-m torch.distributed.run --nnodes=2").stdout)
    assert command[1:6] == ["-m", "torch.distributed.run", "--nnodes=2", "-m", "jasper_pt.run_training"]
    (command,) = commands(dry("train.sh", DISTRIBUTED="").stdout)
    assert command[1:3] == ["-m", "jasper_pt.run_training"]


@pytest.mark.parametrize("script", ["train.sh", "inference.sh", "evaluation.sh"])
def test_missing_data_says_what_to_do(script: str, fake: dict, tmp_path: Path):
    absent = bash(script, **fake | {"DATA_DIR": tmp_path / "none", "CHECKPOINT": ""})
    assert absent.returncode == 1
    for hint in (f"DATA_DIR={tmp_path}/none does not exist", "download_librispeech.sh", "data.embedded_speech"):
        assert hint in absent.stderr
    for name in ("librispeech-dev-clean-wav.json", "librispeech-test-other-wav.json"):
        Path(str(fake["DATA_DIR"]), name).unlink()
    torn = bash(script, **fake, CHECKPOINT="")
    assert torn.returncode == 1 and "there is no manifest" in torn.stderr
    assert "DATA_DIR has librispeech-train-clean-100-wav.json" in torn.stderr
    assert calls(fake) == []


def test_output_that_cannot_be_written(fake: dict):
    result = bash("train.sh", **fake | {"OUTPUT_DIR": f"{fake['ASR_PYTHON']}/results"})
    assert result.returncode == 1 and "cannot be written: set OUTPUT_DIR" in result.stderr


def test_missing_environment_is_named(fake: dict, tmp_path: Path):
    result = bash("train.sh", **fake | {"ASR_PYTHON": tmp_path / "none"})
    assert result.returncode == 1 and f"ASR_PYTHON={tmp_path}/none is not an executable" in result.stderr


def test_failure_is_passed_on(fake: dict):
    for script in ("train.sh", "inference.sh", "evaluation.sh"):
        assert bash(script, **fake, CHECKPOINT="", FAIL="jasper_pt.run").returncode == 7


@pytest.mark.parametrize("script", ["train.sh", "inference.sh", "evaluation.sh", "train_benchmark.sh"])
def test_dry_run_needs_and_leaves_nothing(script: str, tmp_path: Path):
    """Any directory, no interpreter, through the recipe's link."""
    link = ROOT / "jasper_pt" / "scripts" / script
    result = bash(link, "--dry-run", cwd=tmp_path, ASR_PYTHON=tmp_path / "none")
    assert result.returncode == 0 and result.stderr == ""
    assert commands(result.stdout) and list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------ inference.sh, evaluation.sh
def test_published_inference_defaults():
    assert only_flags(dry("inference.sh")) == {
        "model_config": DEFAULT_CONFIG,
        "output_dir": "/results",
        "log_file": "/results/nvlog_infer.json",
        "dali_device": "gpu",
        "batch_size": "64",
        "seed": "0",
        "pad_leading": "0",
        "steps": "0",
        "warmup_steps": "0",
        "ckpt": "pretrained_models/quartznet_en/nvidia_quartznet_210504.pt",
        "save_predictions": "/results/test-other.predictions",
        "ema": "",
        "no-cudnn_benchmark": "",
        "dataset_dir": "/datasets/LibriSpeech",
        "val_manifests": "/datasets/LibriSpeech/librispeech-test-other-wav.json",
    }
    jasper = only_flags(dry("inference.sh", MODEL_CONFIG=JASPER))
    assert jasper["pad_leading"] == "16" and jasper["ckpt"] == "/checkpoints/jasper_fp16.pt"


def test_inference_variables():
    found = only_flags(
        dry("inference.sh", DATASET="dev-clean", AMP="true", EMA="false", LOGITS_FILE="/l", MAX_DURATION=7, NUM_STEPS=9)
    )
    assert found["amp"] == "" and "ema" not in found and found["save_logits"] == "/l" and found["steps"] == "9"
    assert found["save_predictions"] == "/results/dev-clean.predictions"
    assert found["val_manifests"].endswith("/librispeech-dev-clean-wav.json")
    assert found["override_config"].count("input_val.") == 2
    assert "save_predictions" not in only_flags(dry("inference.sh", PREDICTION_FILE=""))


def test_beam_search():
    given = {"DECODER": "beam", "LM": "3gram.arpa", "LM_ALPHA": 0.7, "LM_BETA": 2, "BEAM_WIDTH": 50}
    files = {"LEXICON": "words.txt", "HOTWORDS": "hot.txt", "DECODER_CONFIG": "decoder.yaml"}
    for script in ("inference.sh", "evaluation.sh"):
        found = only_flags(dry(script, **given, **files))
        assert {key: found[key] for key in map(str.lower, given | files)} == {
            key.lower(): str(value) for key, value in (given | files).items()
        }
    assert not {key.lower() for key in given | files} & only_flags(dry("inference.sh")).keys()


def test_tuning_of_the_beam_search(tmp_path: Path):
    variables = {"LM": "3gram.arpa", "DATASET": "dev-clean", "CHECKPOINT": "mine.pt", "OUTPUT_DIR": tmp_path}
    result = dry("tune_decoder.sh", "--widths", "10", **variables)
    network, tuner = (shlex.split(line) for line in result.stdout.splitlines() if not line.startswith("note"))
    assert "inference.sh" in network[-1] and f"LOGITS_FILE={tmp_path}/dev-clean.logits.safetensors" in network
    assert "CHECKPOINT=mine.pt" in network and not any(word.startswith("LM=") for word in network)
    assert tuner[1:3] == ["-m", "jasper_pt.tune_decoder"] and tuner[-2:] == ["--widths", "10"]
    assert {"--lm=3gram.arpa", f"--output={tmp_path}/decoder.yaml"} < set(tuner)
    (tmp_path / "dev-clean.logits.safetensors").touch()
    assert "inference.sh" not in dry("tune_decoder.sh", **variables).stdout


def test_a_checkpoint_brings_its_config():
    assert "model_config" not in only_flags(dry("inference.sh", CHECKPOINT="mine.pt"))
    found = only_flags(dry("inference.sh", CHECKPOINT="mine.pt", MODEL_CONFIG="quartznet5x5"))
    assert found["model_config"].endswith("quartznet5x5.yaml")


def test_random_weights_have_no_average():
    found = only_flags(dry("inference.sh", CHECKPOINT=""))
    assert "ckpt" not in found and "ema" not in found and "model_config" in found


def test_a_missing_checkpoint_is_named(fake: dict):
    result = bash("inference.sh", **fake, CHECKPOINT="nowhere.pt")
    assert result.returncode == 1
    assert "CHECKPOINT=nowhere.pt does not exist" in result.stderr and "download_quartznet.sh" in result.stderr


def test_evaluation_keeps_no_predictions():
    found = only_flags(dry("evaluation.sh", "/d", "", "", "c.pt", "--batch_size=3", PREDICTION_FILE="/p"))
    assert "save_predictions" not in found
    assert found["dataset_dir"] == "/d" and found["ckpt"] == "c.pt" and found["batch_size"] == "64;3"


def test_alignment():
    found = dry("align.sh", "a.mp3", "a.txt", "--precision=fp32", CHECKPOINT="c.pt", CPU="true").stdout.splitlines()
    program, *words = shlex.split(next(line for line in found if "jasper_pt.align" in line).partition(" -m ")[2])
    assert program == "jasper_pt.align"
    assert words == (
        "--output_format srt json --ckpt=c.pt --output_dir=results/ --cpu a.mp3 a.txt --precision=fp32".split()
    )
    found = dry("align.sh", "a.mp3", "a.txt", FORMATS="ctm", OUTPUT_DIR="o", EMA="false").stdout
    assert "--output_format ctm " in found and "--output_dir=o --no-ema a.mp3 a.txt" in found
    assert "--ckpt=pretrained_models/quartznet_en/nvidia_quartznet_210504.pt" in found


@pytest.mark.parametrize(
    "words, environment, message",
    [
        ((), {}, "what is to be aligned?"),
        (("a.mp3", "a.txt"), {"CHECKPOINT": "nowhere.pt"}, "CHECKPOINT=nowhere.pt does not exist"),
        (("a.mp3", "a.txt"), {"EMA": "1"}, "EMA must be true or false"),
    ],
)
def test_alignments_that_are_refused(fake: dict, words, environment, message):
    result = bash("align.sh", *words, **fake | environment)
    assert result.returncode == 1 and message in result.stderr


def test_transcribing_needs_no_data_set(fake: dict):
    result = bash("inference.sh", "--transcribe_wav", "a.flac", **fake | {"DATA_DIR": "/none"}, CHECKPOINT="")
    assert result.returncode == 0, result.stderr
    (call,) = calls(fake)
    assert call.rstrip().endswith("--transcribe_wav a.flac")
    assert "--val_manifests" not in call and "--save_predictions" not in call


# --------------------------------------------------------------------------------------------------- train_benchmark.sh
def benchmark_runs(result: subprocess.CompletedProcess) -> list[tuple[int, int, int, int, int]]:
    """GPUs, batch, accumulation, measured epochs, all epochs of each run."""
    runs = []
    for command in commands(result.stdout):
        found = flags(command)
        processes = re.search(r"--nproc_per_node=(\d+)", " ".join(command))
        keys = ("gpu_batch_size", "grad_accumulation", "benchmark_epochs_num", "epochs_this_job")
        runs.append((int(processes[1]) if processes else 1, *(int(found[key]) for key in keys)))
    return runs


@pytest.mark.parametrize(
    "gpus, accumulations, acc_batch, batches",
    [
        (1, "16 24", 144, [72, 48]),
        (4, "4 6", 144, [72, 48]),
        (8, "2 3", 144, [72, 48]),
        (1, "24 48", 144, [48, 24]),
        (16, "3", 144, [24]),
        (4, "12 24", 144, [24, 12]),
        (8, "12 24", 144, [12, 6]),
        (2, "2 4", 4, [8, 4]),
    ],
)
def test_batches_of_the_published_benchmark(gpus: int, accumulations: str, acc_batch: int, batches: list[int]):
    result = dry("train_benchmark.sh", NUM_GPUS_SEQ=gpus, GRAD_ACC_SEQ=accumulations, ACC_BATCH_SIZE=acc_batch)
    runs = benchmark_runs(result)
    assert [run[0] for run in runs] == [gpus] * len(batches)
    assert [run[1] for run in runs] == batches
    assert {run[0] * run[1] * run[2] for run in runs} == {acc_batch * 8}


@pytest.mark.parametrize(
    "gpus, accumulations, acc_batch, numbers",
    [(16, "16", 144, "144 x 8 = 1152"), (1, "5", 144, "1152"), (3, "2 4", 4, "4 x 8 = 32")],
)
def test_batches_that_do_not_divide_are_refused(gpus: int, accumulations: str, acc_batch: int, numbers: str):
    """Truncating them, as published, would change the global batch: 16 GPUs x 4 x 16 = 1024."""
    environment = {"NUM_GPUS_SEQ": f"1 {gpus}", "GRAD_ACC_SEQ": accumulations, "ACC_BATCH_SIZE": acc_batch}
    result = bash("train_benchmark.sh", "--dry-run", **environment)
    assert result.returncode == 1 and commands(result.stdout) == []
    assert numbers in result.stderr and "GRAD_ACC_SEQ" in result.stderr


def test_published_train_benchmark():
    result = dry("train_benchmark.sh", DATA_DIR="/d", OUTPUT_DIR="/o")
    assert benchmark_runs(result) == [
        (8, 36, 4, 20, 21),
        (8, 72, 2, 20, 21),
        (4, 72, 4, 10, 11),
        (4, 144, 2, 10, 11),
        (1, 288, 4, 2, 3),
        (1, 576, 2, 2, 3),
    ]
    found = flags(commands(result.stdout)[0])
    expected = {
        "log_file": "/o/perf-train_dali-gpu_amp-false_1x8x36x4.json",
        "train_manifests": "/d/librispeech-train-clean-100-wav.json",
        "epochs": "100000",
        "eval_frequency": "100000",
        "save_frequency": "100000",
        "lr": "0.0001",
        "ema": "0",
        "pre_allocate_range": "1408 1920",
    }
    assert {key: found[key] for key in expected} == expected
    assert "resume" not in found and "no_save" in found and "override_config" not in found
    assert result.stdout.rstrip().endswith("-m jasper_pt.benchmark_tables train /o")


def test_jasper_train_benchmark():
    environment = {"DATA_DIR": "/d", "OUTPUT_DIR": "/o", "MODEL_CONFIG": JASPER, "BATCH_SIZE_SEQ": "32 64"}
    result = dry("train_benchmark.sh", **environment, AMP="true", GRAD_ACCUMULATION_STEPS=2, NUM_GPUS_SEQ="1 4")
    assert benchmark_runs(result) == [(1, 16, 2, 1, 2), (1, 32, 2, 1, 2), (4, 16, 2, 1, 2), (4, 32, 2, 1, 2)]
    logs = [flags(command)["log_file"] for command in commands(result.stdout)]
    names = [f"ngpus{gpus}_bs{batch}" for gpus in (1, 4) for batch in (32, 64)]
    assert logs == [f"/o/perf-train_dali-gpu_amp-true_{name}.json" for name in names]
    wrong = bash("train_benchmark.sh", "--dry-run", MODEL_CONFIG=JASPER, ACC_BATCH_SIZE=4)
    assert wrong.returncode == 1 and "BATCH_SIZE_SEQ" in wrong.stderr


def test_short_epochs():
    """BENCHMARK_STEPS updates of 2 x 8 x 2 utterances each."""
    environment = {"NUM_GPUS_SEQ": 2, "GRAD_ACC_SEQ": 2, "ACC_BATCH_SIZE": 4, "BENCHMARK_STEPS": 3}
    result = dry("train_benchmark.sh", "--num_workers=0", **environment, BENCHMARK_EPOCHS=2)
    assert benchmark_runs(result) == [(2, 8, 2, 2, 3)]
    (command,) = commands(result.stdout)
    assert "input_train.audio_dataset.max_utts=96" in command and "input_val.audio_dataset.max_utts=8" in command
    assert command[-1] == "--num_workers=0"


def test_benchmarks_on_a_laptop(tmp_path: Path):
    """No GPU, no LibriSpeech: synthetic speech, small sizes, and both are said."""
    result = dry("train_benchmark.sh", CPU="", PATH=gpus(tmp_path, 0))
    if Path("/datasets/LibriSpeech").exists():
        pytest.skip("this machine has the published data")
    assert "so CPU=true" in result.stdout and "so synthetic speech is taken" in result.stdout
    assert "-m data.embedded_speech" in result.stdout
    assert benchmark_runs(result) == [(1, 16, 2, 2, 3), (1, 8, 4, 2, 3), (2, 8, 2, 2, 3), (2, 4, 4, 2, 3)]
    assert all("--cpu" in command and "--amp" not in command for command in commands(result.stdout))


def test_a_failed_run_does_not_stop_the_others(fake: dict):
    environment = fake | {"NUM_GPUS_SEQ": "1 2", "GRAD_ACC_SEQ": "2", "ACC_BATCH_SIZE": "4"}
    result = bash("train_benchmark.sh", **environment, FAIL="1x1x16x2")
    assert result.returncode == 1
    assert "these runs failed, see above: perf-train_dali-none_amp-false_1x1x16x2" in result.stderr
    assert len(calls(fake)) == 3 and "benchmark_tables train" in calls(fake)[-1]
    stopped = bash("train_benchmark.sh", **environment, FAIL="1x1x16x2", STATUS=130)
    assert stopped.returncode == 130 and len(calls(fake)) == 4


# ----------------------------------------------------------------------------------------------- inference_benchmark.sh
def test_published_inference_benchmark():
    result = dry("inference_benchmark.sh", DATA_DIR="/d", OUTPUT_DIR="/o", AMP="true")
    found = [flags(command) for command in commands(result.stdout)]
    names = [f"dur{duration}_bs{batch}" for duration in ("2", "7", "16.7") for batch in (1, 2, 4, 8, 16)]
    assert [one["log_file"] for one in found] == [f"/o/perf-infer_dali-cpu_amp-true_{name}.json" for name in names]
    last = found[-1]
    expected = {"steps": "500", "warmup_steps": "10", "batch_size": "16", "pad_leading": "0", "amp": ""}
    assert {key: last[key] for key in expected} == expected
    assert "cudnn_benchmark" in last and "save_predictions" not in last
    for part in ("audio_dataset", "filterbank_features"):
        for value in ("max_duration=16.7", "pad_to_max_duration=True"):
            assert f"input_val.{part}.{value}" in last["override_config"]
    assert result.stdout.rstrip().endswith("-m jasper_pt.benchmark_tables inference /o")


def test_inference_benchmark_on_the_cpu(fake: dict):
    environment = fake | {"BATCH_SIZE_SEQ": "1 4", "MAX_DURATION_SEQ": "2 7"}
    result = bash("inference_benchmark.sh", **environment, FAIL="dur2_bs4")
    assert result.returncode == 1 and "these runs failed, see above: perf-infer_dali-none" in result.stderr
    assert "note: on the CPU NUM_STEPS is 50 (published: 500)" in result.stdout
    assert "note: no CHECKPOINT, so the weights are random" in result.stdout
    assert len(calls(fake)) == 5 and "benchmark_tables inference" in calls(fake)[-1]


# -------------------------------------------------------------------------------------------------------------- presets
# Utterances of a pass, passes of an update, as published for each platform, model and precision.
PRESETS = {
    "DGXA100_QuartzNet_AMP_8GPU": (72, 2),
    "DGXA100_QuartzNet_TF32_8GPU": (72, 2),
    "DGX2_QuartzNet_AMP_8GPU": (36, 4),
    "DGX2_QuartzNet_AMP_16GPU": (36, 2),
    "DGX2_QuartzNet_FP32_8GPU": (36, 4),
    "DGX2_QuartzNet_FP32_16GPU": (36, 2),
    "DGX1-16GB_Jasper_AMP_8GPU": (16, 4),
    "DGX1-16GB_Jasper_FP32_8GPU": (16, 4),
    "DGX1-32GB_Jasper_AMP_8GPU": (64, 1),
    "DGX1-32GB_Jasper_FP32_8GPU": (32, 2),
    "DGX2_Jasper_AMP_8GPU": (64, 1),
    "DGX2_Jasper_AMP_16GPU": (64, 1),
    "DGX2_Jasper_FP32_8GPU": (32, 2),
    "DGX2_Jasper_FP32_16GPU": (64, 1),
    "DGXA100_Jasper_AMP_8GPU": (64, 1),
    "DGXA100_Jasper_TF32_8GPU": (32, 2),
}


def test_all_presets_are_known():
    assert {path.stem for path in PLATFORM.glob("*.sh")} == {*PRESETS, "preset"}
    assert all(path.readlink() == Path("preset.sh") for path in PLATFORM.glob("DGX*.sh"))


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name: str):
    _, model, precision, gpus = name.split("_")
    (command,) = commands(dry(f"platform/{name}.sh", CPU="").stdout)
    found = flags(command)
    assert (int(found["gpu_batch_size"]), int(found["grad_accumulation"])) == PRESETS[name]
    assert ("amp" in found) == (precision == "AMP")
    assert f"--nproc_per_node={gpus.removesuffix('GPU')}" in command
    assert model.lower() in Path(found["model_config"]).name and "cpu" not in found


def test_presets_yield_to_what_is_set():
    environment = {"NUM_GPUS": 4, "GPU_BATCH_SIZE": 9, "GRAD_ACCUMULATION": 3}
    (command,) = commands(dry("platform/DGXA100_QuartzNet_AMP_8GPU.sh", "/d", "--max_updates=1", **environment).stdout)
    found = flags(command)
    assert (found["gpu_batch_size"], found["grad_accumulation"], found["dataset_dir"]) == ("9", "3", "/d")
    assert found["max_updates"] == "1" and "--nproc_per_node=4" in command
    unknown = bash("platform/preset.sh", "--dry-run")
    assert unknown.returncode == 1 and "preset.sh is no published run" in unknown.stderr
