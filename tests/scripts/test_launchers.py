"""The pre-training launchers: their words, what they print, the commands they build, how they fail."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
LAUNCHERS = sorted(SCRIPTS.glob("run_pretraining_*.sh"))
SOURCED = {"lib.sh", "bert.sh", "pretraining.sh", "finetuning.sh", "finetune_benchmark.sh", "asr.sh", "slurm.sh"}
COMMANDS = sorted(path for path in SCRIPTS.glob("*.sh") if path.name not in SOURCED)
# A shorter run on one GPU: 72 updates, then 8 * (4 * 2) / (2 * 4) = 8.
WORDS = "4 2 8 1e-3 5.50e-4 fp32 false 1 3 2 80 5 2 4 tiny".split()
ENVIRONMENT = """
    DATA_DIR RESULTS_DIR SOURCES BERT_CONFIG INIT_CHECKPOINT SEED MAX_EVAL_STEPS BERT_PYTHON DRY_RUN
""".split()


def bash(script: Path, *words: str, cwd: Path = ROOT, **environment: object) -> subprocess.CompletedProcess:
    clean = {key: value for key, value in os.environ.items() if key not in ENVIRONMENT}
    return subprocess.run(
        ["bash", str(script), *words],
        cwd=cwd,
        env=clean | {key: str(value) for key, value in environment.items()},
        capture_output=True,
        text=True,
    )


def launcher(name: str, *words: str, **environment: object) -> subprocess.CompletedProcess:
    return bash(SCRIPTS / f"run_pretraining_{name}.sh", *words, **environment)


def commands(output: str) -> list[dict[str, str]]:
    """The flags of each run_pretraining.py call shown in a dry run; those without a value map to ""."""
    lines = [shlex.split(line) for line in output.splitlines() if "-m bert_tf.run_pretraining" in line]
    return [
        {key: value for key, _, value in (word.partition("=") for word in line if word.startswith("--"))}
        for line in lines
    ]


@pytest.fixture
def fake(tmp_path: Path) -> dict[str, object]:
    """An environment whose BERT_PYTHON finds records, and notes its calls instead of training.

    A run leaves the checkpoint of its last step, unless its folder is in $FAIL: then it ends with status 7.
    """
    python = tmp_path / "python"
    python.write_text(
        r"""#!/usr/bin/env bash
set -eu
if [[ $2 == data.layout ]]; then
    printf '%s\n' "$*" >>"$CALLS.layout"
    [[ ! -e $CALLS.nodata ]] || { echo "error: no records" >&2; exit 2; }
    printf 'training /records/%s/training\ntest /records/%s/test\n' "$7" "$7"
    exit
fi
printf '%q ' "$@" >>"$CALLS"
printf '\n' >>"$CALLS"
for word in "$@"; do
    case $word in
        --output_dir=*) output=${word#*=} ;;
        --num_train_steps=*) steps=${word#*=} ;;
    esac
done
echo "training into $output"
[[ $output != *"${FAIL:-nowhere}" ]] || exit 7
mkdir -p "$output"
touch "$output/model.ckpt-$steps.index"
""",
        encoding="utf-8",
    )
    python.chmod(0o755)
    return {"BERT_PYTHON": python, "CALLS": tmp_path / "calls", "RESULTS_DIR": tmp_path / "results"}


def test_there_are_launchers():
    assert [path.name for path in LAUNCHERS] == [
        "run_pretraining_adam.sh",
        "run_pretraining_lamb.sh",
        "run_pretraining_lamb_phase1.sh",
        "run_pretraining_lamb_phase2.sh",
    ]
    assert len(COMMANDS) >= len(LAUNCHERS) + 3  # setup, quickstart, test


@pytest.mark.parametrize("script", COMMANDS, ids=lambda path: path.name)
def test_help_is_the_header(script: Path, tmp_path: Path):
    result = bash(script, "--help", cwd=tmp_path)
    assert result.returncode == 0 and result.stderr == ""
    assert re.search(rf"^usage: .*{re.escape(script.name)}", result.stdout, re.MULTILINE)
    assert "set -euo pipefail" in script.read_text(encoding="utf-8").splitlines()
    assert "set -euo" not in result.stdout
    assert os.access(script, os.X_OK)


@pytest.mark.parametrize("script", LAUNCHERS, ids=lambda path: path.name)
def test_dry_run_needs_nothing(script: Path, tmp_path: Path):
    """No data, no environment, no Horovod, any directory, through the link: the command is still shown."""
    linked = ROOT / "bert_tf" / "scripts" / script.name
    result = bash(linked, "--dry-run", cwd=tmp_path, BERT_PYTHON=tmp_path / "none", RESULTS_DIR=tmp_path / "r")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    shown = commands(result.stdout)
    assert len(shown) == (2 if script.name == "run_pretraining_lamb.sh" else 1)
    for flags in shown:
        assert {"do_train", "do_eval", "horovod", "amp", "use_xla"} <= {key[2:] for key in flags}
        assert flags["--allreduce_post_accumulation"] == "True"
        assert flags["--precision"] == "fp16"
        assert flags["--bert_config_file"] == str(ROOT / "configs" / "bert" / "large.json")
        shape = f"_seq_len_{flags['--max_seq_length']}_max_pred_{flags['--max_predictions_per_seq']}_"
        assert shape in flags["--input_files_dir"] and flags["--input_files_dir"].endswith("/training")
        assert shape in flags["--eval_files_dir"] and flags["--eval_files_dir"].endswith("/test")
    assert list(tmp_path.iterdir()) == []


def test_published_lamb_defaults():
    phase1, phase2 = commands(launcher("lamb", "--dry-run", RESULTS_DIR="/r").stdout)
    expected1 = {
        "output_dir": "/r/phase_1",
        "train_batch_size": "64",
        "eval_batch_size": "8",
        "learning_rate": "7.5e-4",
        "num_warmup_steps": "2000",
        "num_train_steps": "7038",
        "num_accumulation_steps": "128",
        "save_checkpoints_steps": "100",
        "max_seq_length": "128",
        "max_predictions_per_seq": "20",
    }
    expected2 = {
        "output_dir": "/r/phase_2",
        "train_batch_size": "8",
        "eval_batch_size": "8",
        "learning_rate": "5e-4",
        "num_warmup_steps": "200",
        "num_train_steps": "1564",
        "num_accumulation_steps": "512",
        "save_checkpoints_steps": "100",
        "max_seq_length": "512",
        "max_predictions_per_seq": "80",
        "init_checkpoint": "/r/phase_1/model.ckpt-7038",
    }
    assert {key: phase1[f"--{key}"] for key in expected1} == expected1
    assert {key: phase2[f"--{key}"] for key in expected2} == expected2
    assert "--init_checkpoint" not in phase1
    assert "--optimizer_type" not in phase1 | phase2


def test_published_adam_defaults():
    (flags,) = commands(launcher("adam", "--dry-run", RESULTS_DIR="/r").stdout)
    expected = {
        "output_dir": "/r",
        "optimizer_type": "adam",
        "train_batch_size": "16",
        "eval_batch_size": "8",
        "learning_rate": "1e-4",
        "num_warmup_steps": "10000",
        "num_train_steps": "1144000",
        "save_checkpoints_steps": "5000",
        "num_accumulation_steps": "1",
        "max_seq_length": "512",
        "max_predictions_per_seq": "80",
        "bert_config_file": str(ROOT / "configs" / "bert" / "large.json"),
    }
    assert {key: flags[f"--{key}"] for key in expected} == expected


def test_global_batch_and_effective_learning_rate_are_printed():
    lines = launcher("lamb", "--dry-run").stdout.splitlines()
    assert any("phase 1: 7038 updates" in x and "batch 65536 " in x and "rate 0.006 (" in x for x in lines)
    assert any("phase 2: 1564 updates" in x and "batch 32768 " in x and "rate 0.004 (" in x for x in lines)
    adam = launcher("adam", "--dry-run", "16", "8", "1.25e-4", "fp16", "true", "3").stdout
    assert "global batch 48 " in adam and "effective learning rate 0.000375 (" in adam


def test_tag_names_the_default_results_folder():
    lamb = launcher("lamb", "--dry-run").stdout
    assert re.search(r"/tf_bert_pretraining_lamb_large_fp16_gbs165536_gbs232768_\d{12}/phase_1 ", lamb)
    adam = launcher("adam", "--dry-run").stdout
    assert re.search(r"/tf_bert_pretraining_adam_large_fp16_gbs128_\d{12} ", adam)


@pytest.mark.parametrize(
    "word, expected, absent",
    [
        ("fp16", {"--precision": "fp16", "--amp": ""}, "--noamp"),
        ("manual_fp16", {"--precision": "fp16", "--amp": ""}, "--noamp"),
        ("bf16", {"--precision": "bf16", "--noamp": ""}, "--amp"),
        ("tf32", {"--precision": "tf32", "--noamp": ""}, "--amp"),
        ("fp32", {"--precision": "fp32", "--noamp": ""}, "--amp"),
    ],
)
def test_precision(word: str, expected: dict[str, str], absent: str):
    (flags,) = commands(launcher("adam", "--dry-run", "", "", "", word).stdout)
    assert expected.items() <= flags.items() and absent not in flags


def test_words_reach_the_command_as_given():
    """No rounding of rates, empty words are defaults, flags come last, environment is honoured."""
    words = [*WORDS[:3], "1.23456789e-3", "", *WORDS[5:], "--display_loss_steps=7", "--verbose_logging"]
    environment = {
        "SEED": 5,
        "MAX_EVAL_STEPS": 9,
        "INIT_CHECKPOINT": "/w/bert_model.ckpt",
        "BERT_CONFIG": "/c/x.json",
    }
    result = launcher("lamb_phase1", *words, "--dry-run", **environment)
    (flags,) = commands(result.stdout)
    assert flags["--learning_rate"] == "1.23456789e-3"
    assert flags["--num_train_steps"] == "72"
    assert flags["--display_loss_steps"] == "7" and flags["--verbose_logging"] == ""
    assert flags["--seed"] == "5" and flags["--max_eval_steps"] == "9"
    assert flags["--init_checkpoint"] == "/w/bert_model.ckpt"
    assert flags["--bert_config_file"] == "/c/x.json"
    assert "--horovod" not in flags and "--nouse_xla" in flags and "horovodrun" not in result.stdout


def test_several_gpus_start_through_horovod(fake: dict, tmp_path: Path):
    words = [*WORDS[:7], "4", *WORDS[8:]]
    missing = launcher("lamb_phase1", *words, **fake)
    assert missing.returncode == 1
    assert "install_horovod.sh" in missing.stderr and "num_gpus" in missing.stderr
    assert not fake["CALLS"].exists()

    horovodrun = tmp_path / "bin" / "horovodrun"
    horovodrun.parent.mkdir()
    horovodrun.write_text('#!/usr/bin/env bash\necho "horovodrun $1 $2 $3 $4"\nshift 4\nexec "$@"\n')
    horovodrun.chmod(0o755)
    started = launcher("lamb_phase1", *words, **fake, PATH=f"{horovodrun.parent}:{os.environ['PATH']}")
    assert started.returncode == 0, started.stderr
    assert "horovodrun -np 4 -H localhost:4" in started.stdout
    assert "--horovod" in fake["CALLS"].read_text()


@pytest.mark.parametrize(
    "name, position, word, message",
    [
        ("lamb", 1, "0", "train_batch_size_phase1"),
        ("lamb", 2, "8.5", "train_batch_size_phase2"),
        ("lamb", 3, "-1", "eval_batch_size"),
        ("lamb", 4, "7.5x-4", "learning_rate_phase1"),
        ("lamb", 5, "0.0e-4", "learning_rate_phase2"),
        ("lamb", 6, "fp8", "precision must be fp16, bf16, fp32 or tf32"),
        ("lamb", 7, "yes", "use_xla must be true or false"),
        ("lamb", 8, "eight", "num_gpus"),
        ("lamb", 9, "x", "warmup_steps_phase1"),
        ("lamb", 10, "1e2", "warmup_steps_phase2"),
        ("lamb", 11, "9", "train_steps=9 leaves 8 updates for phase 1 and 0 for phase 2"),
        ("lamb", 12, "08", "save_checkpoints_steps"),
        ("lamb", 13, "1;ls", "num_accumulation_steps_phase1"),
        ("lamb", 14, "$(ls)", "num_accumulation_steps_phase2"),
        ("lamb", 15, "huge", "bert_model must be one of base large tiny"),
        ("lamb_phase1", 1, "a", "train_batch_size_phase1"),
        ("lamb_phase2", 2, "a", "train_batch_size_phase2"),
        ("adam", 1, "a", "train_batch_size"),
        ("adam", 3, "a", "learning_rate"),
        ("adam", 10, "huge", "bert_model must be one of base large tiny"),
        ("adam", 13, "a", "max_pred_per_seq"),
        ("adam", 14, "1", "at most 13"),
        ("lamb", 16, "1", "at most 15"),
    ],
)
def test_a_wrong_word_is_named(name: str, position: int, word: str, message: str):
    result = launcher(name, *[""] * (position - 1), word, "--dry-run")
    assert result.returncode == 1
    assert result.stderr.startswith("error: ") and message in result.stderr
    assert commands(result.stdout) == []


def test_a_word_after_a_flag_is_refused():
    result = launcher("lamb", "64", "--seed", "3", "--dry-run")
    assert result.returncode == 1 and "'3' stands after --seed" in result.stderr


def test_missing_environment_is_named(tmp_path: Path):
    result = launcher("adam", "", "", "", "", "", "1", BERT_PYTHON=tmp_path / "python")
    assert result.returncode == 1 and f"BERT_PYTHON={tmp_path}/python is not an executable" in result.stderr


def test_both_phases_run_and_are_logged(fake: dict, tmp_path: Path):
    result = launcher("lamb", *WORDS, **fake, cwd=tmp_path, INIT_CHECKPOINT=fake["BERT_PYTHON"])
    assert result.returncode == 0, result.stderr
    phase1, phase2 = commands("\n".join(fake["CALLS"].read_text().splitlines()))
    results = fake["RESULTS_DIR"]
    assert phase1["--input_files_dir"] == "/records/128/training"
    assert phase2["--eval_files_dir"] == "/records/512/test"
    assert phase1["--init_checkpoint"] == str(fake["BERT_PYTHON"])  # INIT_CHECKPOINT is for phase 1 only
    assert phase2["--init_checkpoint"] == f"{results}/phase_1/model.ckpt-72"
    assert phase2["--num_train_steps"] == "8" and phase2["--learning_rate"] == "5.50e-4"
    (log,) = results.glob("*.log")
    assert re.fullmatch(r"tf_bert_pretraining_lamb_tiny_fp32_gbs18_gbs28\.\d{12}\.log", log.name)
    text = log.read_text()
    assert text in result.stdout
    assert f"training into {results}/phase_1" in text and f"training into {results}/phase_2" in text
    assert "global batch 8 (4 sequences x 2 accumulation steps x 1 processes)" in text


def test_a_failed_phase_1_stops_the_run(fake: dict):
    result = launcher("lamb", *WORDS, **fake, FAIL="phase_1")
    assert result.returncode == 7
    assert len(fake["CALLS"].read_text().splitlines()) == 1
    assert "phase_2" not in "".join(line for line in result.stdout.splitlines() if "training into" in line)


def test_a_failed_phase_2_is_reported(fake: dict):
    assert launcher("lamb", *WORDS, **fake, FAIL="phase_2").returncode == 7


def test_adam_status_and_log(fake: dict):
    words = ["2", "8", "1e-4", "bf16", "false", "1", "0", "10", "5", "tiny", "1", "128", "20"]
    assert launcher("adam", *words, **fake).returncode == 0
    assert len(list(fake["RESULTS_DIR"].glob("tf_bert_pretraining_adam_tiny_bf16_gbs2.*.log"))) == 1
    assert launcher("adam", *words, **fake, FAIL="results").returncode == 7


def test_missing_records_stop_before_phase_1(fake: dict):
    Path(f"{fake['CALLS']}.nodata").touch()
    result = launcher("lamb", *WORDS, **fake)
    assert result.returncode == 1 and result.stderr == "error: no records\n"
    assert not fake["CALLS"].exists()


def test_phase_2_needs_the_checkpoint_of_phase_1(fake: dict):
    result = launcher("lamb_phase2", *WORDS, **fake)
    assert result.returncode == 1
    assert f"{fake['RESULTS_DIR']}/phase_1/model.ckpt-72.index" in result.stderr
    assert "run phase 1" in result.stderr and not fake["CALLS"].exists()


def test_init_checkpoint_must_exist(fake: dict):
    result = launcher("lamb_phase1", *WORDS, **fake, INIT_CHECKPOINT="/nowhere/model.ckpt")
    assert result.returncode == 1 and "/nowhere/model.ckpt.index" in result.stderr


def test_sources_are_datasets_or_folders(fake: dict, tmp_path: Path):
    """Names go to data.layout; folders are taken as they are, each in the phase of its sequence length."""
    folders = [tmp_path / f"lower_case_1_seq_len_{s}_max_pred_{p}_x" / "mine" for s, p in ((128, 20), (512, 80))]
    plain = tmp_path / "any" / "other"
    for folder in (*folders, plain):
        for split in ("training", "test"):
            (folder / split).mkdir(parents=True)
    sources = f"embedded,{folders[0]},{folders[1]},{plain},c_seq_len_512_max_pred_80_x/wiki"
    result = launcher("lamb", *WORDS, **fake, SOURCES=sources)
    assert result.returncode == 0, result.stderr
    phase1, phase2 = commands(fake["CALLS"].read_text())
    assert phase1["--input_files_dir"] == f"{folders[0]}/training,{plain}/training,/records/128/training"
    assert phase2["--eval_files_dir"] == f"{folders[1]}/test,{plain}/test,/records/512/test"
    layout = Path(f"{fake['CALLS']}.layout").read_text().splitlines()
    for length, named in (("128", ["embedded"]), ("512", ["embedded", "c_seq_len_512_max_pred_80_x/wiki"])):
        asked = [line.split() for line in layout if f"--max_seq_length {length}" in line]
        assert asked
        for words in asked:
            assert [word for word in words if word.startswith("--source")] == [f"--source={x}" for x in named]

    only_512 = launcher("lamb_phase1", *WORDS, **fake, SOURCES=folders[1])
    assert only_512.returncode == 1 and "no records of sequence length 128" in only_512.stderr
    torn = launcher("lamb_phase1", *WORDS, **fake, SOURCES=tmp_path / "any")
    assert torn.returncode == 1 and "does not hold training/ and test/" in torn.stderr
