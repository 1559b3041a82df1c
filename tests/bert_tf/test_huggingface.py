"""The Hugging Face form both ways: names, configs, damaged files, and numbers equal to transformers' own models."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from bert_tf import checkpoint, export_huggingface, huggingface
from bert_tf.model import (
    BertConfig,
    BertForClassification,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForTagging,
    variable_name,
)
from bert_tf.tokenization import FullTokenizer
from bert_tf.weights import ComputeWeights
from runkit.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB = [*SPECIAL, "the", "cat", "sat", "on", "##s", "mat", "é", "e", "!", "中"]
TEXT = "The cats SAT on é mat! 中 dog"
CLASSES = 3
CONFIG = BertConfig(
    vocab_size=15,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=16,
    type_vocab_size=2,
)
MODELS = {
    "pretraining": BertForPreTraining,
    "question_answering": BertForQuestionAnswering,
    "classification": lambda config, seed: BertForClassification(config, CLASSES, seed),
    "tagging": lambda config, seed: BertForTagging(config, CLASSES, seed),
}
ACTIVATIONS = ("gelu", "gelu_exact")


def config_with(**changes) -> BertConfig:
    return BertConfig(**(CONFIG.to_dict() | changes))


def make_model(kind, config=CONFIG, seed=3):
    """A model whose biases and LayerNorms differ from their initial values, so that none goes untested."""
    model, rng = MODELS[kind](config, seed=seed), np.random.default_rng(seed)
    for variable in model.variables:
        variable.assign_add(rng.normal(0, 0.5, variable.shape).astype(np.float32))
    return model


def values(model) -> dict[str, np.ndarray]:
    return {variable_name(variable): variable.numpy() for variable in model.variables}


def assert_same(a, b):
    assert set(a) == set(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def theirs_of(tensors) -> dict[str, np.ndarray]:
    """The same tensors as a transformers state_dict."""
    result = {}
    for google, value in tensors.items():
        name, transposed = huggingface.huggingface_name(google)
        result[name] = np.ascontiguousarray(value.T) if transposed else value
    return result


# ----------------------------------------------------------------------------------------------------- names
# state_dict of transformers 5.24's BertForPreTraining (1 layer, H 4, I 16, V 15), less the tied decoder
PRETRAINING = {
    "bert.embeddings.word_embeddings.weight": (15, 4),
    "bert.embeddings.position_embeddings.weight": (16, 4),
    "bert.embeddings.token_type_embeddings.weight": (2, 4),
    "bert.embeddings.LayerNorm.weight": (4,),
    "bert.embeddings.LayerNorm.bias": (4,),
    "bert.encoder.layer.0.attention.self.query.weight": (4, 4),
    "bert.encoder.layer.0.attention.self.query.bias": (4,),
    "bert.encoder.layer.0.attention.self.key.weight": (4, 4),
    "bert.encoder.layer.0.attention.self.key.bias": (4,),
    "bert.encoder.layer.0.attention.self.value.weight": (4, 4),
    "bert.encoder.layer.0.attention.self.value.bias": (4,),
    "bert.encoder.layer.0.attention.output.dense.weight": (4, 4),
    "bert.encoder.layer.0.attention.output.dense.bias": (4,),
    "bert.encoder.layer.0.attention.output.LayerNorm.weight": (4,),
    "bert.encoder.layer.0.attention.output.LayerNorm.bias": (4,),
    "bert.encoder.layer.0.intermediate.dense.weight": (16, 4),
    "bert.encoder.layer.0.intermediate.dense.bias": (16,),
    "bert.encoder.layer.0.output.dense.weight": (4, 16),
    "bert.encoder.layer.0.output.dense.bias": (4,),
    "bert.encoder.layer.0.output.LayerNorm.weight": (4,),
    "bert.encoder.layer.0.output.LayerNorm.bias": (4,),
    "bert.pooler.dense.weight": (4, 4),
    "bert.pooler.dense.bias": (4,),
    "cls.predictions.bias": (15,),
    "cls.predictions.transform.dense.weight": (4, 4),
    "cls.predictions.transform.dense.bias": (4,),
    "cls.predictions.transform.LayerNorm.weight": (4,),
    "cls.predictions.transform.LayerNorm.bias": (4,),
    "cls.seq_relationship.weight": (2, 4),
    "cls.seq_relationship.bias": (2,),
}


@pytest.mark.parametrize(
    "google, theirs, transposed",
    [
        ("bert/encoder/layer_11/attention/self/key/kernel", "bert.encoder.layer.11.attention.self.key.weight", True),
        ("bert/embeddings/LayerNorm/gamma", "bert.embeddings.LayerNorm.weight", False),
        ("bert/embeddings/position_embeddings", "bert.embeddings.position_embeddings.weight", False),
        ("cls/predictions/output_bias", "cls.predictions.bias", False),
        ("cls/squad/output_weights", "qa_outputs.weight", False),
        ("cls/squad/output_bias", "qa_outputs.bias", False),
        ("output_weights", "classifier.weight", False),
        ("output_bias", "classifier.bias", False),
    ],
)
def test_names(google, theirs, transposed):
    assert huggingface.huggingface_name(google) == (theirs, transposed)
    assert huggingface.google_name(theirs) == (google, transposed)


@pytest.mark.parametrize("kind", MODELS)
def test_names_of_all_variables_go_there_and_back(kind):
    names = list(values(make_model(kind, config_with(num_hidden_layers=12))))
    theirs = [huggingface.huggingface_name(name) for name in names]
    assert len(set(theirs)) == len(names)
    assert [(huggingface.google_name(name)[0]) for name, _ in theirs] == names
    assert huggingface.kind_of(names) == kind


def test_names_of_files_by_other_hands():
    google = huggingface.google_name
    assert google("encoder.layer.3.output.dense.weight") == ("bert/encoder/layer_3/output/dense/kernel", True)
    assert google("bert.embeddings.LayerNorm.gamma") == ("bert/embeddings/LayerNorm/gamma", False)
    assert google("cls.predictions.transform.LayerNorm.beta") == ("cls/predictions/transform/LayerNorm/beta", False)
    assert (
        google("distilbert.transformer.layer.0.ffn.lin1.weight")[0] == "distilbert.transformer.layer.0.ffn.lin1.weight"
    )
    for other in ("cls/squad", "dense/kernel", "bert/pooler/dense/kernel/adam_m", "global_step"):
        with pytest.raises(ValueError, match="not a variable"):
            huggingface.huggingface_name(other)


def test_kind_needs_a_head():
    with pytest.raises(UserError, match="no complete head"):
        huggingface.kind_of(values(make_model("pretraining").bert))


# ---------------------------------------------------------------------------------------------------- config
def test_config_there_and_back():
    for activation, theirs in (("gelu", "gelu_new"), ("gelu_exact", "gelu"), ("relu", "relu"), ("linear", "linear")):
        config = config_with(hidden_act=activation)
        settings = huggingface.to_huggingface(config)
        assert settings["hidden_act"] == theirs and settings["layer_norm_eps"] == 1e-12
        assert BertConfig(**huggingface.to_google(settings)) == config
    assert huggingface.to_huggingface(config_with(hidden_act=""))["hidden_act"] == "linear"
    assert huggingface.to_google({"vocab_size": 9, "hidden_act": "gelu_pytorch_tanh"})["hidden_act"] == "gelu"
    # what transformers assumes where a file is silent
    assert huggingface.to_google({"vocab_size": 9}) == {
        "vocab_size": 9,
        "hidden_act": "gelu_exact",
        "type_vocab_size": 2,
    }


@pytest.mark.parametrize(
    "setting, match",
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"model_type": "roberta"}, "model_type is 'roberta', but only 'bert'"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps is 1e-05"),
        ({"is_decoder": True}, "is_decoder"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"hidden_act": "silu"}, "hidden_act 'silu' is not one of"),
        ({"hidden_size": "8"}, "hidden_size must be int"),
    ],
)
def test_unsupported_settings_are_named(tmp_path, setting, match):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(huggingface.to_huggingface(CONFIG) | setting))
    with pytest.raises(UserError, match=match) as error:
        huggingface.load_config(path)
    assert str(path) in str(error.value)


def test_load_config_takes_both_forms(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(huggingface.to_huggingface(CONFIG) | {"id2label": {"0": "x"}}))
    (tmp_path / "bert_config.json").write_text(json.dumps(CONFIG.to_dict()))
    for path in (tmp_path, tmp_path / "config.json", tmp_path / "bert_config.json"):
        assert huggingface.load_config(path) == CONFIG
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match="vocab_size is missing"):
        huggingface.load_config(tmp_path)


# --------------------------------------------------------------------------------------------------- reading
@pytest.fixture
def folder(tmp_path):
    """A folder with a pre-training model, as an old version of transformers might have left it."""
    tensors = theirs_of(values(make_model("pretraining")))
    tensors["bert.embeddings.position_ids"] = np.arange(16)[None]
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"]
    for new, old in (("weight", "gamma"), ("bias", "beta")):
        for name in [name for name in tensors if name.endswith(f"LayerNorm.{new}")]:
            tensors[name.replace(new, old)] = tensors.pop(name)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(huggingface.to_huggingface(CONFIG)))
    return tmp_path


def shard(folder):
    """Splits model.safetensors in two, as transformers does with large models."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, index = list(tensors), {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


@pytest.mark.parametrize("sharded", [False, True])
def test_folder_and_file_load(folder, sharded):
    if sharded:
        shard(folder)
    file = folder / ("model.safetensors.index.json" if sharded else "model.safetensors")
    expected = values(make_model("pretraining"))
    assert checkpoint.list_variables(folder) == {name: v.shape for name, v in sorted(expected.items())}
    for path in (folder, file):
        model = BertForPreTraining(CONFIG, seed=9)
        report = checkpoint.load_weights(model.variables, path)
        assert_same(values(model), expected)
        assert report.source == str(path) and not (report.missing or report.unused or report.slots_ignored)
    assert checkpoint.identifying_file(folder).endswith(".safetensors")
    assert checkpoint.saved_state(folder) == {}


def test_encoder_alone_and_new_head(tmp_path):
    encoder = make_model("pretraining").bert
    tensors = {name.removeprefix("bert."): value for name, value in theirs_of(values(encoder)).items()}
    save_file(tensors, tmp_path / "model.safetensors")
    model = BertForQuestionAnswering(CONFIG, seed=1)
    head = model.output.output_weights.numpy()
    report = checkpoint.load_weights(model.variables, tmp_path, allow_missing=["cls/squad/"])
    assert sorted(report.missing) == ["cls/squad/output_bias", "cls/squad/output_weights"]
    assert report.unused == ["bert/pooler/dense/bias", "bert/pooler/dense/kernel"]
    np.testing.assert_array_equal(model.output.output_weights, head)
    with pytest.raises(UserError, match="an encoder without this head; give a checkpoint that fine-tuning"):
        checkpoint.load_weights(model.variables, tmp_path)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_converted(tmp_path, dtype):
    halves = {name: value.astype(dtype) for name, value in values(make_model("tagging")).items()}
    save_file(theirs_of(halves), tmp_path / "model.safetensors")
    model = BertForTagging(CONFIG, CLASSES)
    checkpoint.load_weights(model.variables, tmp_path)
    assert_same(values(model), {name: value.astype(np.float32) for name, value in halves.items()})


def test_integers_are_no_weights(tmp_path):
    quantised = {name: (10 * value).astype(np.int8) for name, value in values(make_model("tagging")).items()}
    save_file(theirs_of(quantised), tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="is int8, not floating point"):
        checkpoint.load_weights(BertForTagging(CONFIG, CLASSES).variables, tmp_path)


def test_untied_model_is_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["cls.predictions.decoder.weight"] = tensors["cls.predictions.decoder.weight"] + 1
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"decoder.weight differs from bert.embeddings.word_embeddings.weight"):
        checkpoint.load_weights(BertForPreTraining(CONFIG).variables, folder)


def with_header(header, data=b"\0" * 8) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "content",
    [
        lambda whole: b"",
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:-1],
        lambda whole: struct.pack("<Q", 1 << 60) + whole[8:],
        lambda whole: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        lambda whole: with_header({"a": {"dtype": "F32", "shape": [10**11], "data_offsets": [0, 8]}}),
        lambda whole: with_header({"a": {"dtype": "F32", "shape": [10**11], "data_offsets": [0, 4 * 10**11]}}),
        lambda whole: with_header([1]),
    ],
)
def test_damaged_files_are_named(folder, content):
    file = folder / "model.safetensors"
    file.write_bytes(content(file.read_bytes()))
    model = BertForPreTraining(CONFIG)
    before = values(model)
    with pytest.raises(UserError, match=r"cannot read .*model\.safetensors: .*damaged, cut short"):
        checkpoint.load_weights(model.variables, folder)
    assert_same(values(model), before)


def test_strange_number_formats_are_named(folder):
    header = {"bert.pooler.dense.bias": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}}
    (folder / "model.safetensors").write_bytes(with_header(header))
    with pytest.raises(UserError, match=r"cannot read .*model\.safetensors"):
        checkpoint.read_tensors(folder)


def test_incomplete_sharded_model_is_named(folder):
    shard(folder)
    index_file = folder / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())

    def refused(weight_map, match):
        index_file.write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(UserError, match=match):
            checkpoint.list_variables(folder)

    refused(None, r"index\.json has no weight_map")
    refused({"a": "../other.safetensors"}, "which is no .safetensors file of this folder")
    refused(
        index["weight_map"] | {"a": "model-00001-of-00002.safetensors"}, "00001-of-00002.safetensors does not hold a,"
    )
    (folder / "model-00002-of-00002.safetensors").unlink()
    refused(index["weight_map"], "there is no file .*model-00002-of-00002.safetensors")


def test_pickles_are_refused(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    for path in (tmp_path, tmp_path / "pytorch_model.bin"):
        with pytest.raises(UserError, match=r"pickle.*not opened.*save_pretrained\(.*safe_serialization=True"):
            checkpoint.list_variables(path)
    checkpoint.write_tensors(tmp_path / "model.ckpt-1", {"a": tf.zeros(1)})
    assert list(checkpoint.list_variables(tmp_path)) == ["a"]  # a pickle beside a checkpoint does not matter


def test_folder_with_both_forms_is_ambiguous(folder):
    checkpoint.write_tensors(folder / "model.ckpt-1", {"a": tf.zeros(1)})
    with pytest.raises(UserError, match=r"holds both .*model\.ckpt-1, or .*model\.safetensors"):
        checkpoint.list_variables(folder)
    assert list(checkpoint.list_variables(folder / "model.ckpt-1")) == ["a"]


def test_another_kind_of_model_is_named(tmp_path):
    save_file({"roberta.encoder.layer.0.output.dense.weight": np.zeros([2, 2], np.float32)}, tmp_path / "m.safetensors")
    with pytest.raises(UserError, match=r"no BERT checkpoint .* holds roberta\.encoder"):
        checkpoint.load_weights(BertForPreTraining(CONFIG).variables, tmp_path / "m.safetensors")
    with pytest.raises(UserError, match="there is no file"):
        checkpoint.list_variables(tmp_path / "none.safetensors")


# --------------------------------------------------------------------------------------------------- writing
def write_vocab(path):
    path.write_text("\n".join(VOCAB), encoding="utf-8")
    return path


def test_export_writes_the_published_names(tmp_path):
    config = config_with(hidden_size=4, num_hidden_layers=1)
    model = make_model("pretraining", config)
    huggingface.export(tmp_path / "hf", "pretraining", config, values(model))
    assert sorted(path.name for path in (tmp_path / "hf").iterdir()) == ["config.json", "model.safetensors"]
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    assert {name: tensor.shape for name, tensor in tensors.items()} == PRETRAINING
    ours = values(model)
    np.testing.assert_array_equal(
        tensors["bert.encoder.layer.0.output.dense.weight"], ours["bert/encoder/layer_0/output/dense/kernel"].T
    )
    np.testing.assert_array_equal(tensors["cls.seq_relationship.weight"], ours["cls/seq_relationship/output_weights"])
    raw = (tmp_path / "hf" / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
    assert header["__metadata__"] == {"format": "pt"}
    settings = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert settings["hidden_act"] == "gelu_new" and settings["layer_norm_eps"] == 1e-12
    assert settings["model_type"] == "bert" and settings["architectures"] == ["BertForPreTraining"]
    assert "id2label" not in settings


def test_export_of_labels(tmp_path):
    tensors = values(make_model("classification"))
    huggingface.export(tmp_path / "hf", "classification", CONFIG, tensors, labels=["no", "maybe", "yes"])
    settings = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert settings["id2label"] == {"0": "no", "1": "maybe", "2": "yes"} and settings["num_labels"] == 3
    assert settings["label2id"] == {"no": 0, "maybe": 1, "yes": 2} and "problem_type" not in settings
    with pytest.raises(UserError, match="the head has 3 outputs, but there are 2 labels: no, yes"):
        huggingface.export(tmp_path / "hf", "classification", CONFIG, tensors, labels=["no", "yes"])
    huggingface.export(tmp_path / "hf", "tagging", CONFIG, values(make_model("tagging")), labels=["B", "I"])
    settings = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert settings["id2label"] == {"0": "[PAD]", "1": "B", "2": "I"}  # 0 is padding in run_ner
    one = BertForClassification(CONFIG, 1)
    huggingface.export(tmp_path / "hf", "classification", CONFIG, values(one))
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["problem_type"] == "regression"


def test_export_replaces_only_its_own_files(tmp_path):
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(UserError, match=r"holds other files \(thesis.txt\)"):
        huggingface.export(tmp_path, "tagging", CONFIG, values(make_model("tagging")))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


# ---------------------------------------------------------------------------------------------- the command
def save_checkpoint(prefix, model):
    named = {variable_name(v): v for v in model.variables}
    slots = {f"{name}/adam_m": tf.zeros_like(v) for name, v in named.items()}
    checkpoint.write_tensors(prefix, named | slots | {"global_step": tf.constant(5, tf.int64)})
    return prefix


def run_command(**given) -> str:
    arguments = [f"--{name}={value}" for name, value in given.items()]
    command = [sys.executable, "-m", "bert_tf.export_huggingface", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_command_exports_a_run_and_converts_back(tmp_path):
    run, model = tmp_path / "run", make_model("classification")
    run.mkdir()
    save_checkpoint(run / "model.ckpt-5", model)
    (run / "bert_config.json").write_text(json.dumps(CONFIG.to_dict()))
    kept = {"task": "mood", "labels": ["no", "maybe", "yes"], "do_lower_case": False}
    (run / "labels.json").write_text(json.dumps(kept))
    write_vocab(run / "vocab.txt")

    printed = run_command(init_checkpoint=run, output_dir=tmp_path / "hf")
    assert "initialised 41 of 41 variables" in printed and "ignored 42 optimizer slots" in printed
    assert "as BertForSequenceClassification to" in printed and "keeps case" in printed
    assert {path.name for path in (tmp_path / "hf").iterdir()} == huggingface.EXPORTED
    assert json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())["do_lower_case"] is False
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["label2id"] == {"no": 0, "maybe": 1, "yes": 2}

    run_command(init_checkpoint=tmp_path / "hf", output_dir=tmp_path / "google", to="tf1")
    assert_same(checkpoint.read_tensors(tmp_path / "google"), values(model))
    assert BertConfig.from_json_file(tmp_path / "google" / "bert_config.json") == CONFIG
    assert (tmp_path / "google" / "vocab.txt").read_text(encoding="utf-8").split("\n") == [*VOCAB, ""]


def test_kind_may_be_named(tmp_path):
    """Google's code saves a pooler with a tagging model too."""
    save_checkpoint(tmp_path / "m", make_model("classification"))
    assert export_huggingface.load_model(str(tmp_path / "m"), CONFIG, None)[0] == "classification"
    kind, model = export_huggingface.load_model(str(tmp_path / "m"), CONFIG, "tagging")
    assert kind == "tagging" and "bert/pooler/dense/bias" not in values(model)


def test_export_needs_a_head_and_its_files(tmp_path):
    checkpoint.write_tensors(tmp_path / "m", {variable_name(v): v for v in make_model("pretraining").bert.variables})
    with pytest.raises(UserError, match=r"/m: no complete head"):
        export_huggingface.load_model(str(tmp_path / "m"), CONFIG, None)
    with pytest.raises(UserError, match=r"there is no vocab\.txt beside .*/m; give --vocab_file"):
        export_huggingface.required_beside(str(tmp_path / "m"), "vocab.txt", "vocab_file")
    assert export_huggingface.is_lower_case(str(tmp_path / "m"))


def test_label_files(tmp_path):
    path = tmp_path / "labels.json"
    for content, labels in (('["no", "yes"]', ["no", "yes"]), ('{"labels": ["a"]}', ["a"]), ('{"labels": []}', None)):
        path.write_text(content)
        assert export_huggingface.read_labels(str(path)) == labels
    for content in ('{"0": "a"}', "[1]", '["a", "a"]'):
        path.write_text(content)
        with pytest.raises(UserError, match=r"labels\.json: "):
            export_huggingface.read_labels(str(path))


# ------------------------------------------------------------------------------------- equal to transformers
def peer_python() -> str:
    path = os.environ.get("DEV_PYTHON", str(ROOT / ".venv" / "dev" / "bin" / "python"))
    if not Path(path).exists():
        pytest.skip("transformers' environment is absent: bash scripts/setup.sh dev")
    return path


def batch():
    rng = np.random.default_rng(0)
    lengths = np.array([12, 7, 9])
    mask = (np.arange(12)[None] < lengths[:, None]).astype(np.int32)
    ids = rng.integers(0, CONFIG.vocab_size, mask.shape).astype(np.int32) * mask
    segments = (np.arange(12)[None] > lengths[:, None] // 2).astype(np.int32) * mask
    return {"input_ids": ids, "input_mask": mask, "segment_ids": segments}


@pytest.fixture(scope="module")
def peer(tmp_path_factory):
    """Folders by (who made it, kind, activation), each with transformers' outputs for `batch` in out.npz."""
    python, root = peer_python(), tmp_path_factory.mktemp("peer")
    vocab = write_vocab(root / "source_vocab.txt")
    np.savez(root / "in.npz", **batch())
    np.savez(root / "in_with_text.npz", text=TEXT, **batch())
    folders, paths = {}, []
    for kind in MODELS:
        for activation in ACTIVATIONS:
            config = config_with(hidden_act=activation)
            ours, theirs = (root / f"{who}_{kind}_{activation}" for who in ("ours", "theirs"))
            huggingface.export(ours, kind, config, values(make_model(kind, config)), vocab)
            theirs.mkdir()
            settings = {"architectures": [huggingface.MODELS[kind]], "num_labels": 2 if "ques" in kind else CLASSES}
            (theirs / "config.json").write_text(json.dumps(huggingface.to_huggingface(config) | settings))
            for who, folder in (("ours", ours), ("theirs", theirs)):
                inputs = "in_with_text.npz" if who == "ours" else "in.npz"
                folders[who, kind, activation] = folder
                paths += [folder, root / inputs, f"{folder}.npz"]
    script = Path(__file__).with_name("transformers_forward.py")
    subprocess.run([python, script, *paths], check=True, capture_output=True)
    return folders


@pytest.mark.parametrize("who", ["ours", "theirs"])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_logits_equal_those_of_transformers(peer, who, kind, activation):
    folder = peer[who, kind, activation]
    expected = np.load(f"{folder}.npz")
    assert expected["missing"].size == 0 and expected["unexpected"].size == 0
    config = huggingface.load_config(folder)
    assert config == config_with(hidden_act=activation)
    model = MODELS[kind](config, seed=77)
    report = checkpoint.load_weights(model.variables, folder)
    assert len(report.matched) == len(model.variables) and not report.unused
    assert_allclose_logits(kind, model, expected)


def assert_allclose_logits(kind, model, expected):
    arrays = batch()
    tensors = SimpleNamespace(packing=(), **{name: tf.constant(value) for name, value in arrays.items()})
    weights, mask = ComputeWeights(model.variables, tf.float32), arrays["input_mask"].astype(bool)
    sequence = model.bert(tensors.input_ids, tensors.input_mask, tensors.segment_ids, weights).numpy()
    np.testing.assert_allclose(sequence[mask], expected["last_hidden_state"][mask], atol=1e-4)
    if kind == "pretraining":
        tensors.masked_lm_positions = tf.constant(np.tile(np.arange(7, dtype=np.int32), [3, 1]))
        logits = model(tensors, weights)
        masked_lm = logits.masked_lm.numpy().reshape([3, 7, -1])
        np.testing.assert_allclose(masked_lm, expected["prediction_logits"][:, :7], atol=1e-4)
        np.testing.assert_allclose(logits.next_sentence, expected["seq_relationship_logits"], atol=1e-4)
        return
    logits = model(tensors, weights).numpy()
    if kind == "question_answering":
        both = np.stack([expected["start_logits"], expected["end_logits"]], axis=-1)
        np.testing.assert_allclose(logits[mask], both[mask], atol=1e-4)
    elif kind == "tagging":
        np.testing.assert_allclose(logits[mask], expected["logits"][mask], atol=1e-4)
    else:
        np.testing.assert_allclose(logits, expected["logits"], atol=1e-4)


@pytest.mark.parametrize("who", ["ours", "theirs"])
def test_the_two_gelus_differ_enough_to_be_told_apart(peer, who):
    """So that the test above would see them mixed up."""
    folder = peer[who, "classification", "gelu_exact"]
    model = MODELS["classification"](config_with(hidden_act="gelu"), seed=0)
    checkpoint.load_weights(model.variables, folder)
    with pytest.raises(AssertionError, match="Mismatched elements"):
        assert_allclose_logits("classification", model, np.load(f"{folder}.npz"))


def test_exported_tokenizer_and_labels(peer):
    folder = peer["ours", "tagging", "gelu"]
    tokenizer, found = FullTokenizer(folder / "vocab.txt"), np.load(f"{folder}.npz")
    ids = [tokenizer.vocab["[CLS]"], *tokenizer.encode(TEXT), tokenizer.vocab["[SEP]"]]
    assert found["text_ids"].tolist() == ids and VOCAB.index("##s") in ids
    assert found["labels"].tolist() == ["LABEL_0", "LABEL_1", "LABEL_2"]
