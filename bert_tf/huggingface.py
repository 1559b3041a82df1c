"""Weights, configs and vocabularies in the form of Hugging Face's `transformers`, both ways, by Google's names here.

A folder in this form holds config.json and model.safetensors, or several .safetensors files that
model.safetensors.index.json lists. PyTorch's pickles (pytorch_model.bin) are never opened: a pickle can run any code.

The models correspond one to one, see MODELS. There the products' matrices are [out, in], here [in, out]; the word
embedding table is the masked-LM head's projection on both sides.
"""

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bert_tf.model import HEAD_DROPOUT, BertConfig
from bert_tf.tokenization import CLS, MASK, PAD, SEP, UNK, load_vocab
from runkit.errors import UserError
from runkit.files import atomic_directory, read_json, write_json

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
EXPORTED = frozenset({CONFIG, WEIGHTS, "vocab.txt", "tokenizer_config.json", "labels.json"})

# Kinds of models, and what transformers calls them
MODELS = {
    "pretraining": "BertForPreTraining",
    "question_answering": "BertForQuestionAnswering",
    "classification": "BertForSequenceClassification",
    "tagging": "BertForTokenClassification",
}

# ----------------------------------------------------------------------------------------------------- names
_LEAVES = {  # Google's last part of a name -> transformers'
    "kernel": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "word_embeddings": "word_embeddings.weight",
    "token_type_embeddings": "token_type_embeddings.weight",
    "position_embeddings": "position_embeddings.weight",
}
_HEADS = {
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
}
_WHOLE_NAMES = {theirs: google for google, theirs in _HEADS.items()} | {
    # Copies of tied tensors, which some files hold.
    "cls.predictions.decoder.weight": "bert/embeddings/word_embeddings",
    "cls.predictions.decoder.bias": "cls/predictions/output_bias",
}


def huggingface_name(google: str) -> tuple[str, bool]:
    """A variable's name in transformers, and whether its matrix is transposed there.

    Raises ValueError for what is no weight of one of the four models.
    """
    if google in _HEADS:
        return _HEADS[google], False
    *path, leaf = google.split("/")
    if not google.startswith(("bert/", "cls/predictions/")) or leaf not in _LEAVES:
        raise ValueError(f"{google} is not a variable of a BERT model")
    path = [re.sub(r"^layer_(\d+)$", r"layer.\1", part) for part in path]
    return ".".join([*path, _LEAVES[leaf]]), leaf == "kernel"


def google_name(theirs: str) -> tuple[str, bool]:
    """The inverse of huggingface_name; also takes names of an encoder alone, and LayerNorm's old ones (gamma, beta).

    A name of another kind of model is returned as it is.
    """
    if theirs in _WHOLE_NAMES:
        return _WHOLE_NAMES[theirs], False
    full = f"bert.{theirs}" if theirs.startswith(("embeddings.", "encoder.", "pooler.")) else theirs
    if not full.startswith(("bert.", "cls.predictions.transform.")):
        return theirs, False
    module, _, leaf = full.rpartition(".")
    path = re.sub(r"/layer/(\d+)/", r"/layer_\1/", module.replace(".", "/"))
    if path.endswith("_embeddings") and leaf == "weight":
        return path, False
    if path.endswith("/LayerNorm"):
        return f"{path}/{ {'weight': 'gamma', 'bias': 'beta'}.get(leaf, leaf) }", False
    return f"{path}/{'kernel' if leaf == 'weight' else leaf}", leaf == "weight"


def kind_of(names: Iterable[str]) -> str:
    """Which of MODELS has variables of these (Google's) names.

    Classification and tagging have the same head. Told apart by the pooler: tagging needs none, but Google's code saves
    one all the same, so that such a checkpoint has to be named by its user. Raises UserError when there is no head.
    """
    names = set(names)
    if "cls/squad/output_weights" in names:
        return "question_answering"
    if "output_weights" in names:
        return "classification" if "bert/pooler/dense/kernel" in names else "tagging"
    if {"cls/predictions/output_bias", "cls/seq_relationship/output_weights"} <= names:
        return "pretraining"
    raise UserError("no complete head among the weights: neither pre-training, cls/squad/ nor output_weights")


# ---------------------------------------------------------------------------------------------------- config
_ACTIVATIONS = {  # transformers' -> ours: Google's gelu is the tanh approximation
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
}
_ACTIVATIONS_BACK = {"gelu": "gelu_new", "gelu_exact": "gelu", "": "linear"}
_SUPPORTED = {  # settings of transformers that BERT as published does not have, and what they may be
    "model_type": ("bert",),
    "position_embedding_type": ("absolute",),
    "layer_norm_eps": (1e-12,),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, None),
}


def to_google(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of Google's bert_config.json from those of a transformers config.json.

    Raises UserError naming a setting under which the numbers would be others than ours.
    """
    for key, good in _SUPPORTED.items():
        if key in settings and settings[key] not in good:
            raise UserError(f"{key} is {settings[key]!r}, but only {good[0]!r} is supported")
    activation = settings.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise UserError(f"hidden_act {activation!r} is not one of {sorted(_ACTIVATIONS)}")
    if "vocab_size" not in settings:
        raise UserError("the key vocab_size is missing")
    keys = [field.name for field in dataclasses.fields(BertConfig)]
    defaults = {"type_vocab_size": 2}  # where transformers' default is not Google's
    return defaults | {key: settings[key] for key in keys if key in settings} | {"hidden_act": _ACTIVATIONS[activation]}


def to_huggingface(config: BertConfig) -> dict[str, Any]:
    """The settings of a transformers config.json, less those that depend on the model's head."""
    settings = config.to_dict()
    settings["hidden_act"] = _ACTIVATIONS_BACK.get(config.hidden_act, config.hidden_act)
    return {"model_type": "bert", "dtype": "float32", "layer_norm_eps": 1e-12} | settings


def load_config(path: str | os.PathLike) -> BertConfig:
    """A config from Google's bert_config.json or from transformers' config.json (or the folder that holds that).

    Raises UserError naming the file for what is broken or not supported.
    """
    path = Path(path, CONFIG) if Path(path).is_dir() else Path(path)
    settings = read_json(path)
    if not isinstance(settings, dict) or not ("model_type" in settings or "architectures" in settings):
        return BertConfig.from_json_file(path)
    try:
        return BertConfig(**to_google(settings))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def config_beside(path: str | os.PathLike) -> Path | None:
    """The config.json that belongs to the weights at `path` (a folder or a file in it); None where there is none."""
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    return folder / CONFIG if holds_weights(path) and (folder / CONFIG).is_file() else None


# --------------------------------------------------------------------------------------------------- reading
class _Place(NamedTuple):
    file: Path
    key: str
    transposed: bool


def holds_weights(path: str | os.PathLike) -> bool:
    """Whether a path names weights of this form: a folder or a file (pickles, which will be refused, included)."""
    path = Path(path)
    if path.is_dir():
        return has_safetensors(path) or any((path / name).exists() for name in PICKLES)
    return path.name.endswith((".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json"))


def has_safetensors(folder: str | os.PathLike) -> bool:
    """Whether a folder holds weights that can be read, and not only pickles."""
    return any(Path(folder, name).exists() for name in (WEIGHTS, INDEX))


class SafetensorsReader:
    """The tensors of a folder or file, by Google's names and in Google's shapes. Implements checkpoint.Reader.

    Only names and shapes are read at first. Buffers (position_ids) are left out; copies of tied tensors count as one.
    Raises UserError naming the file that is missing, damaged or a pickle.
    """

    def __init__(self, path: str | os.PathLike):
        self.source = os.fspath(path)
        self.files, keys = _files(Path(path))
        self._places: dict[str, list[_Place]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for file in self.files:
            with _opened(file) as tensors:
                held = set(tensors.keys())
                absent = sorted(keys.get(file, set()) - held)
                if absent:
                    raise UserError(f"{file} does not hold {absent[0]}, which {INDEX} says it does; copy both again")
                for key in sorted(key for key in held if not key.endswith(".position_ids")):
                    name, transposed = google_name(key)
                    shape = tensors.get_slice(key).get_shape()
                    self.shapes[name] = tuple(reversed(shape)) if transposed else tuple(shape)
                    self._places.setdefault(name, []).append(_Place(file, key, transposed))
        self.shapes = dict(sorted(self.shapes.items()))

    def file_of(self, name: str) -> Path:
        """The file that holds a tensor. Raises UserError when none does."""
        if name not in self._places:
            raise UserError(f"{self.source} does not hold {name}; is it a BERT model?")
        return self._places[name][0].file

    def read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """The tensors of these names. Raises UserError when the copies of one differ (a model that is not tied)."""
        wanted = [(name, place) for name in names for place in self._places[name]]
        values: dict[str, np.ndarray] = {}
        for file in self.files:
            with _opened(file) as tensors:
                for name, place in wanted:
                    if place.file != file:
                        continue
                    value = tensors.get_tensor(place.key)
                    value = value.T if place.transposed else value
                    if name in values and not np.array_equal(value, values[name]):
                        raise UserError(
                            f"{file}: {place.key} differs from {self._places[name][0].key}, but BERT ties the two; "
                            "to use the encoder alone, save it with transformers' BertModel"
                        )
                    values[name] = value
        return {name: values[name] for name in names}


def _files(path: Path) -> tuple[list[Path], dict[Path, set[str]]]:
    """The .safetensors files that a path stands for, and what an index says that each holds."""
    if path.is_dir():
        found = next((path / name for name in (WEIGHTS, INDEX) if (path / name).exists()), path / PICKLES[0])
    else:
        found = path
    if found.name.endswith((".bin", ".bin.index.json")):
        raise UserError(
            f"{path} holds its weights as a PyTorch pickle only, which can run any code and is not opened. Convert it "
            'where transformers is installed: AutoModel.from_pretrained("...").save_pretrained("...", '
            "safe_serialization=True), with the class of its head in place of AutoModel"
        )
    if not found.name.endswith(".index.json"):
        return [found], {}
    index = read_json(found)
    entries = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(entries, dict) or not entries:
        raise UserError(f"{found} has no weight_map from tensors to files")
    keys: dict[Path, set[str]] = {}
    for key, name in entries.items():
        if not isinstance(name, str) or name != Path(name).name or not name.endswith(".safetensors"):
            raise UserError(f"{found}: {key} is said to be in {name!r}, which is no .safetensors file of this folder")
        keys.setdefault(found.parent / name, set()).add(key)
    return sorted(keys), keys


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[safe_open]:
    """Opens one file; the library checks every size of its header against the file's own."""
    if not os.path.isfile(file):
        raise UserError(f"there is no file {file}")
    try:
        with safe_open(file, framework="numpy") as tensors:
            yield tensors
    except (SafetensorError, OSError, AttributeError, TypeError, ValueError) as error:  # the last: odd dtypes
        raise UserError(f"cannot read {file}: {error}; it is damaged, cut short or of another kind") from error


# --------------------------------------------------------------------------------------------------- writing
def export(
    directory: str | os.PathLike,
    kind: str,
    config: BertConfig,
    tensors: Mapping[str, np.ndarray],
    vocab_file: str | os.PathLike | None = None,
    do_lower_case: bool = True,
    labels: Sequence[str] | None = None,
) -> None:
    """Writes a folder that transformers' from_pretrained loads, and AutoTokenizer where a vocabulary is given.

    kind: one of MODELS; tensors: that model's variables by Google's names; labels: names of the classes in their order
    (default LABEL_0, ...); a tagger's id 0, which stands for padding, need not be named. A classifier with one output
    is a regression. The folder appears whole or not at all.

    Raises UserError when labels do not match the head, or the folder exists with files other than these.
    """
    head = _head_settings(kind, tensors["output_bias"].shape[0], labels) if "output_bias" in tensors else {}
    vocab = load_vocab(vocab_file) if vocab_file is not None else None
    refuse_other_files(directory, EXPORTED)
    weights = {}
    for google, value in tensors.items():
        name, transposed = huggingface_name(google)
        weights[name] = np.ascontiguousarray(value.T if transposed else value)
    settings = {
        "architectures": [MODELS[kind]],
        **to_huggingface(config),
        "pad_token_id": vocab[PAD] if vocab else 0,
        "tie_word_embeddings": True,
    }
    with atomic_directory(directory) as folder:
        # Not save_file, which makes files that others cannot read; transformers refuses files without a format.
        (folder / WEIGHTS).write_bytes(save(weights, metadata={"format": "pt"}))
        write_json(folder / CONFIG, settings | head)
        if vocab is not None:
            write_vocabulary(folder / "vocab.txt", vocab)
            write_json(folder / "tokenizer_config.json", _tokenizer_settings(config, do_lower_case))


def _head_settings(kind: str, outputs: int, labels: Sequence[str] | None) -> dict[str, Any]:
    labels = [f"LABEL_{index}" for index in range(outputs)] if labels is None else list(labels)
    if kind == "tagging" and len(labels) == outputs - 1:
        labels = [PAD, *labels]
    if len(labels) != outputs:
        raise UserError(f"the head has {outputs} outputs, but there are {len(labels)} labels: {', '.join(labels[:20])}")
    settings = {
        "classifier_dropout": HEAD_DROPOUT,
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
        "num_labels": outputs,
    }
    return settings | ({"problem_type": "regression"} if outputs == 1 else {})


def _tokenizer_settings(config: BertConfig, do_lower_case: bool) -> dict[str, Any]:
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": do_lower_case,
        "model_max_length": config.max_position_embeddings,
        "tokenize_chinese_chars": True,
        "strip_accents": None,  # as do_lower_case says
        "unk_token": UNK,
        "sep_token": SEP,
        "pad_token": PAD,
        "cls_token": CLS,
        "mask_token": MASK,
    }


def write_vocabulary(path: str | os.PathLike, vocab: Mapping[str, int]) -> None:
    """One token a line in the order of ids, UTF-8, without what load_vocab forgave."""
    tokens = sorted(vocab, key=vocab.__getitem__)
    Path(path).write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8", newline="\n")


def refuse_other_files(directory: str | os.PathLike, expected: Iterable[str]) -> None:
    """Raises UserError where a folder that is to be replaced holds files of other names than expected."""
    held = set(os.listdir(directory)) if Path(directory).is_dir() else set()
    other = sorted(held - set(expected))
    if other:
        raise UserError(
            f"{os.fspath(directory)} holds other files ({', '.join(other[:5])}); give a new or empty folder"
        )
