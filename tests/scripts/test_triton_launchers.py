"""The scripts around Triton: published words, defaults, what they refuse; a dry run shows what they would start."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "scripts" / "triton"


def bash(name: str, *words: str, dry: bool = True, **environment: object) -> subprocess.CompletedProcess:
    clean = {k: v for k, v in os.environ.items() if not re.match(r"(DATA|MODEL|EXPORT|RESULTS?)_|(HTTP|GRPC)_PORT", k)}
    return subprocess.run(
        ["bash", str(FOLDER / name), *words],
        env=clean | ({"DRY_RUN": "true"} if dry else {}) | {k: str(v) for k, v in environment.items()},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


def commands(name: str, *words: str, **environment: object) -> list[list[str]]:
    done = bash(name, *words, **environment)
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in done.stdout.splitlines() if not line.startswith("note:")]


def test_export_takes_the_published_words_of_bert(tmp_path):
    words = f"ckpt 4 int8 true 320 64 {tmp_path}/bert 2 squad 3.5 2 True"
    export, repository = commands("export_model.sh", *shlex.split(words), MODEL_REPOSITORY="/models")
    assert export[1:3] == ["-m", "bert_tf.run_export"]
    assert {"--init_checkpoint=ckpt", "--max_seq_length=320", "--doc_stride=64", "--int8"} <= set(export)
    assert {f"--vocab_file={tmp_path}/bert/vocab.txt", f"--bert_config_file={tmp_path}/bert/bert_config.json"} <= set(
        export
    )
    assert repository[2] == "bert_tf.serving.repository" and repository[4] == "/models"
    assert set(repository[5:]) == {
        "--triton_model_name=squad", "--triton_model_version=2", "--triton_max_batch_size=4",
        "--triton_dyn_batching_delay=3.5", "--triton_engine_count=2", "--onnx_file=model_int8.onnx",
        "--triton_model_overwrite",
    }  # fmt: skip
    assert export[-1] == f"--output_dir={repository[3]}"


def test_export_of_speech_takes_variables(tmp_path):
    site = {
        "CHECKPOINT_PATH": "model.pt",
        "DATA_DIR": tmp_path,
        "DATASET": "dev-clean",
        "EMA": "false",
        "DYNAMIC_DELAY": 5,
    }
    export, repository = commands("export_model.sh", "asr", "--backend=onnxruntime", "--backend_device=gpu", **site)
    assert export[1:] == [
        "-m", "jasper_pt.run_export", "--ckpt=model.pt", f"--val_manifests={tmp_path}/librispeech-dev-clean-wav.json",
        f"--dataset_dir={tmp_path}", f"--output_dir={repository[3]}",
    ]  # fmt: skip
    assert repository[-2:] == ["--backend=onnxruntime", "--backend_device=gpu"]
    assert {"--triton_dyn_batching_delay=5", "--triton_model_name=jasper"} <= set(repository)


def test_the_server_s_runtime_chooses_half_precision():
    done = bash("export_model.sh", "ckpt", "8", "fp16")
    assert "note: the exported model is fp32; fp16 is for the server's runtime" in done.stdout


@pytest.mark.parametrize(
    "name, words, message",
    [
        ("export_model.sh", ["a", "0"], "batch_size must be a whole number above 0"),
        ("export_model.sh", ["a", "8", "fp8"], "precision must be fp32, int8, fp16, bf16 or tf32"),
        ("export_model.sh", [*"123456789012", "x"], "13 words given, at most 12 are known"),
        ("export_model.sh", ["asr", "x"], "at most 0 are known"),
        ("run_perf.sh", ["bert", "m", "1", "1", "100", "1", "8", "host:8001"], "must be without a port"),
        ("launch_server.sh", ["a", "b"], "one MODEL_REPOSITORY is wanted"),
    ],
)
def test_refusals(name, words, message):
    done = bash(name, *words)
    assert done.returncode == 1 and message in done.stderr


def test_what_is_missing_is_named(tmp_path):
    done = bash("export_model.sh", str(tmp_path / "none"), dry=False, BERT_PYTHON="true", SERVING_PYTHON="true")
    assert done.returncode == 1 and "quickstart.sh bert" in done.stderr
    done = bash(
        "export_model.sh", "asr", dry=False, CHECKPOINT_PATH=tmp_path / "n", ASR_PYTHON="true", SERVING_PYTHON="true"
    )
    assert done.returncode == 1 and "quickstart.sh asr" in done.stderr
    done = bash("launch_server.sh", str(tmp_path / "none"), dry=False, SERVING_PYTHON="true")
    assert done.returncode == 1 and "export_model.sh makes repositories" in done.stderr
    done = bash("launch_server.sh", "--stop", dry=False, SERVING_PYTHON="true", MODEL_REPOSITORY=tmp_path / "models")
    assert done.returncode == 1 and "no server that this script started" in done.stderr


def test_a_server_that_cannot_start_is_told_at_once(tmp_path):
    (tmp_path / "models").mkdir()
    if not (ROOT / ".venv/serving/bin/python").exists():
        pytest.skip("no Triton server: scripts/setup.sh serving installs one")
    done = bash("launch_server.sh", str(tmp_path / "models"), dry=False, WAIT=50)
    assert done.returncode == 2 and "the server ended before it was ready" in done.stderr
    assert "holds no model" in done.stderr  # its log


def test_launch_in_the_container():
    start, wait = commands(
        "launch_server.sh", "--docker", "--verbose", MODEL_REPOSITORY="/models", PATH=os.environ["PATH"]
    )
    text = " ".join(start)
    assert text.startswith("docker run --rm --detach --name triton_server_cont --net=host --shm-size=1g")
    assert text.endswith("triton /models --http_port=8000 --grpc_port=8001 --metrics_port=8002 --verbose")
    assert "--volume /models:/models:ro" in text and wait[2:4] == ["runkit.serving.client", "localhost:8001"]


def test_clients_and_measurements_take_the_published_words():
    (client,) = commands(
        "run_client.sh", "16", "384", "128", "2", "squad", "dir", "--question", "Who?", "--context", "Ada."
    )
    assert {"--predict_batch_size=16", "--triton_model_version=2", "--triton_model_name=squad"} <= set(client)
    assert client[-4:] == ["--question", "Who?", "--context", "Ada."] and not any(
        "predict_file" in word for word in client
    )
    (client,) = commands("run_client.sh", "asr", "a b.wav", PROTOCOL="HTTP", HTTP_PORT=9000)
    assert client[2:] == [
        "jasper_pt.serving.client",
        "--protocol=HTTP",
        "--server_url=localhost:9000",
        "--audio_filename",
        "a b.wav",
    ]
    (perf,) = commands("run_perf.sh", "asr", "jasper", "1", "2", "100", "3", "20", "far")
    assert perf[perf.index("--clients") + 1 :] == ["3", "6", "12", "20", "--max_latency=100"]
    assert {"--server_url=far:8001", "--batch_size=2", "--model_version=1"} <= set(perf)
