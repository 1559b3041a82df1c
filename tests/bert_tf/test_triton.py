"""A model that answers questions behind a real Triton server: the answers are those of run_squad, whatever is sent."""

import json
import re
from pathlib import Path

import pytest

from bert_tf import answer, exported, run_export, run_squad
from bert_tf.exported import padded
from runkit.errors import UserError
from tests import triton_server
from tests.bert_tf.mains import run_here
from tests.bert_tf.test_answer import ASKED, CONTEXT, model, squad  # noqa: F401 (a fixture)

pytestmark = pytest.mark.xdist_group("bert_triton")  # its models are made once
PROTOCOLS = ("http", "grpc")
QUESTIONS = [question for question, *_ in ASKED]


@pytest.fixture(scope="module")
def questions(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("questions") / "dev.json"
    path.write_text(json.dumps(squad()), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def export(model, questions, tmp_path_factory) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("export") / "out"
    run_export.main([str(model), f"--predict_file={questions}", f"--output_dir={folder}"])
    return folder


@pytest.fixture(scope="module")
def server(export, tmp_path_factory):
    triton_server.require()
    models = tmp_path_factory.mktemp("triton") / "models"
    triton_server.make(
        "bert_tf.serving.repository", export, models, "--triton_dyn_batching_delay=10", "--max_words=2000"
    )
    with triton_server.running(models) as running:
        yield running


def ask(protocol: str, question: str, context: str, *outputs: str) -> dict:
    inputs = {
        "QUESTION": {"dtype": "bytes", "values": [[question]]},
        "CONTEXT": {"dtype": "bytes", "values": [[context]]},
    }
    return {"protocol": protocol, "model": "bert-squad", "inputs": inputs, "outputs": list(outputs or ("ANSWER",))}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_clients_get_the_files_of_run_squad(server, protocol, model, questions, tmp_path):  # noqa: F811
    run_here(
        run_squad,
        {
            "vocab_file": model / "vocab.txt", "bert_config_file": model / "bert_config.json", "init_checkpoint": model,
            "output_dir": tmp_path / "run", "do_predict": True, "predict_file": questions, "max_seq_length": 40,
            "max_query_length": 10, "doc_stride": 16, "version_2_with_negative": True, "precision": "fp32",
        },
    )  # fmt: skip
    done = server.run(
        "bert_tf.serving.run_squad_triton_client", f"--predict_file={questions}", f"--output_dir={tmp_path / 'asked'}",
        f"--protocol={protocol}", f"--triton_server_url=localhost:{server.ports[protocol]}", "--predict_batch_size=3",
        "--vocab_file=old", "--triton_model_version=1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--vocab_file: without effect here" in done.stderr and '"exact": 100.0' in done.stdout
    assert "Throughput Average (sentences/sec)" in done.stdout

    def read(folder: str, name: str):
        return json.loads((tmp_path / folder / name).read_text())

    assert read("asked", "predictions.json") == read("run", "predictions.json")
    assert read("asked", "null_odds.json") == pytest.approx(read("run", "null_odds.json"), abs=1e-3)
    for key, wanted in read("run", "nbest_predictions.json").items():
        found = read("asked", "nbest_predictions.json")[key]
        assert [entry["text"] for entry in found] == [entry["text"] for entry in wanted]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_answers_have_places_and_probabilities(server, protocol, model):  # noqa: F811
    wanted = answer.ask(answer.load(str(model)), CONTEXT, QUESTIONS)
    outputs = ("ANSWER", "PROBABILITY", "START", "END")
    for found, expected in zip(
        server.ask([ask(protocol, q, CONTEXT, *outputs) for q in QUESTIONS]), wanted, strict=True
    ):
        assert found["ANSWER"] == [expected.answer] and found["START"] == [
            -1 if expected.start is None else expected.start
        ]
        assert found["PROBABILITY"] == pytest.approx([expected.probability], abs=1e-4)
        if expected.answer:
            assert CONTEXT[found["START"][0] : found["END"][0]] == expected.answer


def test_the_model_of_logits_takes_token_ids(server, export):
    local = exported.load(export)
    ids = [local.tokenizer.convert_tokens_to_ids(["[CLS]", "who", "[SEP]", "anna", "[SEP]"]), [2, 3]]
    for row in ids:
        values = {"input_ids": row, "input_mask": [1] * len(row), "segment_ids": [0] * len(row)}
        inputs = {name: {"dtype": "int32", "values": [value]} for name, value in values.items()}
        request = {"protocol": "grpc", "model": "bert", "inputs": inputs, "outputs": ["start_logits", "end_logits"]}
        (found,) = server.ask([request])
        feature = type("F", (), {"input_ids": row, "segment_ids": [0] * len(row)})
        start, end = local.model(*padded([feature]))
        assert found["start_logits"] == pytest.approx(start[0].tolist(), abs=1e-4)
        assert found["end_logits"] == pytest.approx(end[0].tolist(), abs=1e-4)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_cannot_be_answered_is_explained_and_the_server_goes_on(server, protocol):
    def ids(values):
        return {"dtype": "int32", "values": values}

    def logits(**changes):
        inputs = {name: ids([[2, 3]]) for name in ("input_ids", "input_mask", "segment_ids")} | changes
        return {"protocol": protocol, "model": "bert", "inputs": inputs, "outputs": ["start_logits"]}

    no_context = ask(protocol, "who?", "x")
    del no_context["inputs"]["CONTEXT"]
    refused = [
        (ask(protocol, "who has cats?", ""), "CONTEXT is empty"),
        (ask(protocol, "who has cats?", " \n "), "CONTEXT is empty"),
        (ask(protocol, "", CONTEXT), "QUESTION is empty"),
        (ask(protocol, "who?", "cat " * 100_000), "CONTEXT has 100,000 words; 2,000 are the most"),
        (no_context, "expected 2 inputs but got 1"),
        (logits(input_ids=ids([[2, 99999]])), "the model refuses its inputs"),
        (logits(input_ids=ids([[2] * 3])), "(?i)shape|dimension|refuses"),
        (logits(**{name: ids([[2] * 65]) for name in ("input_ids", "input_mask", "segment_ids")}), "refuses"),
        (logits(input_ids=ids([[[2, 3]]])), "unexpected shape for input 'input_ids'"),
        (ask(protocol, "who?", "x", "NOTHING"), "NOTHING"),
    ]
    long = ask(protocol, "who has cats?", f"{CONTEXT} " * 40)  # hundreds of windows
    *errors, answered, last = server.ask(
        [*(request for request, _ in refused), long, ask(protocol, QUESTIONS[0], CONTEXT)]
    )
    for found, (_, message) in zip(errors, refused, strict=True):
        assert re.search(message, found.get("error", "no error")), (message, found)
    assert "error" not in answered and last["ANSWER"] == ["Anna"]


def test_clients_at_once_lose_nothing_and_are_measured(server, questions, tmp_path):
    done = server.run(
        "bert_tf.serving.perf", f"--predict_file={questions}", "--clients", 8, "--seconds", 2, "--warm_up", 0.2,
        "-u", f"localhost:{server.ports['grpc']}", "--output_dir", tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "latency.json").read_text())["rows"]
    assert row["errors"] == 0 and row["requests"] > 20


def test_run_squad_exports_as_published(model, tmp_path):  # noqa: F811
    values = {
        "vocab_file": model / "vocab.txt", "bert_config_file": model / "bert_config.json", "init_checkpoint": model,
        "output_dir": tmp_path / "run", "max_seq_length": 40, "max_query_length": 10, "doc_stride": 16,
        "version_2_with_negative": True, "precision": "fp32", "export_triton": True, "triton_model_name": "squad",
        "triton_model_version": 3, "triton_max_batch_size": 6, "triton_dyn_batching_delay": 2.5,
        "triton_engine_count": 2,
    }  # fmt: skip
    run_here(run_squad, values)
    models = tmp_path / "run" / "triton_models"
    assert sorted(path.name for path in models.iterdir()) == ["squad", "squad-squad"]
    assert (models / "squad" / "3" / "model.onnx").is_file()
    config = (models / "squad-squad" / "config.pbtxt").read_text()
    assert "max_batch_size: 6" in config and "max_queue_delay_microseconds: 2500" in config and "count: 2" in config
    metadata = json.loads((models / "squad-squad" / "3" / "metadata.json").read_text())
    assert metadata["settings"]["max_seq_length"] == 40 and metadata["settings"]["version_2_with_negative"]
    with pytest.raises(UserError, match="--triton_model_overwrite"):  # as published, but no success
        run_here(run_squad, values)
    run_here(run_squad, values | {"triton_model_overwrite": True})
