"""run_export.py: exports of all three heads are the model, for any batch and length, also without us and TensorFlow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import tensorflow as tf

from bert_tf import answer, exported, onnx_graph, run_export
from bert_tf.answering import to_examples
from bert_tf.features import TaskBatch
from bert_tf.model import BertConfig, BertForClassification, BertForQuestionAnswering, BertForTagging, variable_name
from bert_tf.run_export import Result, check_parity, onnx_run
from bert_tf.weights import ComputeWeights
from runkit.errors import UserError
from tests.bert_tf.test_answer import ASKED, CONTEXT, model, squad  # noqa: F401 (a fixture)

pytestmark = pytest.mark.xdist_group("bert_export")  # its models are made once
MODELS = {
    onnx_graph.SPAN: BertForQuestionAnswering,
    onnx_graph.CLASS: lambda config, seed: BertForClassification(config, 3, seed),
    onnx_graph.TAGS: lambda config, seed: BertForTagging(config, 5, seed),
}


def small(activation: str = "gelu") -> BertConfig:
    return BertConfig(
        vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
        hidden_act=activation, max_position_embeddings=32, type_vocab_size=2, initializer_range=0.2,
    )  # fmt: skip


def feeds() -> list[dict[str, np.ndarray]]:
    """Batches of odd sizes; one row is all padding, one sequence fills the positions."""
    rng = np.random.default_rng(0)
    batches = []
    for rows, length in ((1, 1), (3, 7), (2, 32), (5, 13)):
        lengths = rng.integers(1, length + 1, rows)
        lengths[0] = length
        if rows == 5:
            lengths[-1] = 0
        mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
        ids, segments = rng.integers(0, 50, (rows, length)), rng.integers(0, 2, (rows, length))
        batches.append(
            {
                name: (x * mask).astype(np.int32)
                for name, x in zip(onnx_graph.INPUTS, (ids, mask, segments), strict=True)
            }
        )
    return batches


@pytest.mark.parametrize("head", MODELS)
@pytest.mark.parametrize("activation", ["gelu", "gelu_exact", "relu"])
def test_the_graph_is_the_model(tmp_path, head, activation):
    config = small(activation)
    network = MODELS[head](config, 1)
    for index, variable in enumerate(network.variables):  # biases and norms that are not 0 and 1
        if "bias" in variable.name or "LayerNorm" in variable.name:
            variable.assign_add(tf.random.stateless_normal(variable.shape, [index, 2], stddev=0.3))
    compute = ComputeWeights(network.variables, tf.float32)
    proto = onnx_graph.build(config, head, {variable_name(v): v.numpy() for v in network.variables})
    onnx.checker.check_model(proto, full_check=True)
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    run = onnx_run(tmp_path / "model.onnx", head)
    for feed in feeds():
        batch = TaskBatch(*(tf.constant(feed[name]) for name in onnx_graph.INPUTS), (), ())
        expected = network(batch, compute).numpy()
        found = run(feed)
        found = np.stack(found, -1) if head == onnx_graph.SPAN else found[0]
        real = feed["input_mask"].astype(bool)
        rows = real.any(1)
        if head == onnx_graph.CLASS:
            np.testing.assert_allclose(found[rows], expected[rows], rtol=0, atol=1e-4)
        else:
            np.testing.assert_allclose(found[real], expected[real], rtol=0, atol=1e-4)
        assert np.isfinite(found).all()


@pytest.fixture(scope="module")
def export(model, tmp_path_factory) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("export") / "out"
    questions = folder.parent / "dev.json"
    questions.write_text(json.dumps(squad()), encoding="utf-8")
    run_export.main([str(model), f"--predict_file={questions}", f"--output_dir={folder}", "--int8", "--batch_size=3"])
    return folder


def test_a_question_answering_export_tells_what_it_is(export, model):  # noqa: F811
    metadata = json.loads((export / "metadata.json").read_text())
    assert metadata["task"] == "squad v2.0" and metadata["head"] == "span"
    assert metadata["settings"]["max_seq_length"] == 40 and metadata["settings"]["version_2_with_negative"]
    assert set(metadata["files"]) > {"model.onnx", "model_int8.onnx", "vocab.txt", "saved_model/saved_model.pb"}
    for name in ("model", "model.onnx", "saved_model"):
        assert metadata["scores"][name]["exact_match"] == 100 and metadata["scores"][name]["f1"] == 100
    assert "exact_match" in metadata["scores"]["model_int8.onnx"]
    int8 = onnx.load(export / "model_int8.onnx")
    quantised = [node for node in int8.graph.node if node.op_type == "MatMul" and "DequantizeLinear" in node.input[1]]
    assert len(quantised) == 2 * 6 + 1  # six products with weights in each of two layers, and the head


def test_without_tensorflow_the_answers_are_the_same(export, model):  # noqa: F811
    examples = to_examples({"context": CONTEXT, "questions": [question for question, *_ in ASKED]}, "questions")
    found, _ = exported.load(export).answer(examples)
    wanted = answer.load(str(model)).answer(examples)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours._replace(probability=0) == theirs._replace(probability=0)
        assert ours.probability == pytest.approx(theirs.probability, abs=1e-4)
    script = "import sys; import bert_tf.exported; sys.exit('tensorflow' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", script], check=True, env=os.environ | {"PYTHONPATH": str(root)})


def test_the_saved_model_needs_tensorflow_alone(export, tmp_path):
    feed = {name: [[2, 5, 3], [1, 1, 1], [0, 0, 1]][i] for i, name in enumerate(onnx_graph.INPUTS)}
    script = f"""
import json, sys
import tensorflow as tf
serve = tf.saved_model.load({str(export / "saved_model")!r}).signatures["serving_default"]
outputs = serve(**{{name: tf.constant([values]) for name, values in {feed!r}.items()}})
assert not any(name.startswith(("bert_tf", "runkit")) for name in sys.modules)
print(json.dumps({{name: value.numpy().tolist() for name, value in outputs.items()}}))
"""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    found = json.loads(done.stdout.splitlines()[-1])
    inputs = {name: np.array([values], np.int32) for name, values in feed.items()}
    expected = onnx_run(export / "model.onnx", onnx_graph.SPAN)(inputs)
    for name, values in zip(onnx_graph.OUTPUTS[onnx_graph.SPAN], expected, strict=True):
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-4)


# ------------------------------------------------------------------------------------------------ what is refused
@pytest.mark.parametrize(
    "difference, decision", [(0.5, ["a"]), (float("nan"), ["a"]), (0.0, ["b"])], ids=["far", "nan", "another answer"]
)
def test_what_differs_is_refused(difference, decision):
    with pytest.raises(UserError, match="does not agree"):
        check_parity("model.onnx", Result(decision, {}, difference), Result(["a"], {}, 0.0))


@pytest.mark.parametrize(
    "words, message",
    [
        (["MODEL", "--task=MRPC"], "--data_dir is missing: the folder with the files of MRPC"),
        (["MODEL", "--predict_file=/no/file.json"], "/no/file.json"),
        (["/no/folder", "--predict_file=x"], "there is no folder /no/folder"),
        (["MODEL", "--predict_file=DEV", "--max_seq_length=400"], "400"),
        ([], "MODEL_DIR is missing"),
    ],
)
def test_words_that_make_no_sense_write_nothing(words, message, model, export, tmp_path):  # noqa: F811
    words = [word.replace("MODEL", str(model)).replace("DEV", str(export.parent / "dev.json")) for word in words]
    with pytest.raises(UserError, match=message):
        run_export.main([*words, f"--output_dir={tmp_path / 'out'}"])
    assert not list(tmp_path.iterdir())
