"""Weights and training state by name, in Google's TF1 names.

A checkpoint is TensorFlow's V2 format (tensor_bundle): <prefix>.index and <prefix>.data-00000-of-00001, each
tensor under its plain name, with a CRC32C that TensorFlow verifies on reading. So files of Google's and of
the published recipe are read as they are, and they could read ours. Weights may also come from a folder or file
in the Hugging Face form, under the same names (see huggingface).

Two ways in, never mixed up:
    load_weights              weights only, from any checkpoint; moments, step and loss scale start anew
    restore_training_state    everything, from this run's own folder; training continues bit for bit
"""

import contextlib
import copy
import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from bert_tf import huggingface
from bert_tf.bundle import check_index
from bert_tf.model import BertConfig, variable_name
from bert_tf.optimization import Optimizer
from bert_tf.precision import LossScale
from bert_tf.tokenization import load_vocab
from runkit.errors import UserError
from runkit.files import read_json
from runkit.store import REMEDIES, CheckpointStore

GLOBAL_STEP = "global_step"
WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"

# What the training programs of Google, NVIDIA, BioBERT and TensorFlow leave in a checkpoint beside weights.
_TRAINING_STATE = re.compile(
    r"""
      /(adam_[mv] | lamb_[mv] | accum | ((BERT)?Adam | AdamWeightDecayOptimizer | LAMB(Optimizer)?)(_\d+)?) $
    | (^|/)(global_step | local_step | batch_finite | beta[12]_power(_\d+)?) $
    | (^|/)(loss_scale | current_loss_scale | (num_)?(good|bad)_steps) $
    | (^|/)(save_counter | _CHECKPOINTABLE_OBJECT_GRAPH) $
    | ^loss_scale/
    """,
    re.VERBOSE,
)


# ---------------------------------------------------------------------------------------------- files by name
def write_tensors(prefix: str | os.PathLike, tensors: Mapping[str, tf.Tensor | tf.Variable]) -> None:
    """Writes tensors under their names to <prefix>.index and <prefix>.data-00000-of-00001.

    Not atomic: training goes through a CheckpointStore. Raises UserError when the files cannot be written.
    """
    names = sorted(tensors)
    values = [tf.convert_to_tensor(tensors[name]) for name in names]
    with _naming_errors("write", prefix), tf.device("/CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=os.fspath(prefix), tensor_names=names, shape_and_slices=[""] * len(names), tensors=values
        )


class Reader(Protocol):
    """A checkpoint opened for reading; names and shapes are Google's whatever the form."""

    source: str  # what to call it
    shapes: dict[str, tuple[int, ...]]  # of all tensors by name, sorted

    def read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """The tensors of these names, all of which are in `shapes`. Raises UserError when the data are damaged."""


class TensorflowReader:
    """A checkpoint in TensorFlow's form. Implements Reader; raises UserError as resolve_prefix does."""

    def __init__(self, path: str | os.PathLike):
        self.source = resolve_prefix(path)
        check_index(self.source)
        with _naming_errors("read", self.source):
            self._reader = tf.train.load_checkpoint(self.source)
            shapes = self._reader.get_variable_to_shape_map()
        self.shapes = {name: tuple(shapes[name]) for name in sorted(shapes)}

    def read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        with _naming_errors("read", self.source):
            return {name: np.asarray(self._reader.get_tensor(name)) for name in names}


def open_checkpoint(path: str | os.PathLike) -> Reader:
    """Opens what a user named: a checkpoint of TensorFlow's (see resolve_prefix), or weights in the Hugging Face form.

    Raises UserError when there is neither, or a folder holds both.
    """
    path = os.fspath(path)
    prefixes = _prefixes_in(path) if os.path.isdir(path) else []
    if not huggingface.holds_weights(path):
        return TensorflowReader(path)
    if not prefixes:
        return huggingface.SafetensorsReader(path)
    if huggingface.has_safetensors(path):
        raise UserError(
            f"{path} holds both a TensorFlow checkpoint and {huggingface.WEIGHTS}; name one: {_listing(prefixes)}, or "
            f"{os.path.join(path, huggingface.WEIGHTS)}"
        )
    return TensorflowReader(path)


def read_tensors(path: str | os.PathLike, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Tensors of a checkpoint by name, all of them or those asked for.

    Raises UserError when there is no checkpoint at `path` (see open_checkpoint), it is damaged, or a name is
    not in it.
    """
    reader = open_checkpoint(path)
    absent = sorted(set(names or ()) - set(reader.shapes))
    if absent:
        raise UserError(f"{reader.source} does not hold {_listing(absent)}; it holds {_listing(list(reader.shapes))}")
    return reader.read(list(reader.shapes) if names is None else names)


def list_variables(path: str | os.PathLike) -> dict[str, tuple[int, ...]]:
    """Shapes of a checkpoint's tensors by name, sorted. Raises UserError as open_checkpoint does."""
    return open_checkpoint(path).shapes


def resolve_prefix(path: str | os.PathLike) -> str:
    """The prefix of the checkpoint that a user named: by prefix, by a file, or by a folder (its newest).

    Raises UserError when there is none, saying what is there instead, or when a file of it is missing.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        return _newest_in(path)
    prefix = re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", path)
    if not os.path.isfile(f"{prefix}.index"):
        if os.path.isfile(path) and path == prefix:
            raise UserError(
                f"{path} is not a TensorFlow checkpoint: name the common prefix of an .index and a .data file"
            )
        raise UserError(f"no checkpoint {prefix}: there is no file {prefix}.index{_neighbours(prefix)}")
    if not glob.glob(f"{glob.escape(prefix)}.data-?????-of-?????"):
        raise UserError(f"checkpoint {prefix} is incomplete: {prefix}.data-00000-of-00001 is missing")
    return prefix


def identifying_file(path: str | os.PathLike) -> str:
    """The file that tells a checkpoint from any other.

    TensorFlow's index holds a checksum of every tensor. In the Hugging Face form it is the file of the word
    embeddings, which no training leaves as they were.
    """
    reader = open_checkpoint(path)
    if isinstance(reader, huggingface.SafetensorsReader):
        return os.fspath(reader.file_of(WORD_EMBEDDINGS))
    return f"{reader.source}.index"


def _newest_in(folder: str) -> str:
    store = CheckpointStore(folder)
    if store.steps():
        return store.newest_valid().prefix
    latest = tf.train.latest_checkpoint(folder)
    if latest is not None:
        return resolve_prefix(latest)
    prefixes = _prefixes_in(folder)
    numbered = {int(match[1]): prefix for prefix in prefixes if (match := re.search(r"-(\d+)$", prefix))}
    if numbered:
        return resolve_prefix(numbered[max(numbered)])
    if len(prefixes) == 1:
        return resolve_prefix(prefixes[0])
    if prefixes:
        raise UserError(f"{folder} holds several checkpoints, name one: {_listing(prefixes)}")
    raise UserError(f"no checkpoint in the folder {folder}: it holds no .index file")


def _neighbours(prefix: str) -> str:
    folder = os.path.dirname(prefix) or "."
    if not os.path.isdir(folder):
        return f", nor a folder {folder}"
    prefixes = _prefixes_in(folder)
    return f"; the folder holds {_listing(prefixes)}" if prefixes else "; the folder holds no checkpoint"


def _prefixes_in(folder: str) -> list[str]:
    indices = glob.glob(os.path.join(glob.escape(folder), "*.index"))
    return sorted(index.removesuffix(".index") for index in indices)


@contextlib.contextmanager
def _naming_errors(verb: str, prefix: str | os.PathLike) -> Iterator[None]:
    try:
        yield
    except (tf.errors.OpError, OSError, IndexError, ValueError) as error:  # the reader raises all of these
        cause = re.sub(r"\{\{.*?\}\} ?| \[Op:\w+\]", "", str(error)).splitlines()[0]  # less the graph node
        refusal = next((OSError(code, os.strerror(code)) for code in REMEDIES if os.strerror(code) in cause), None)
        raise UserError(f"cannot {verb} the checkpoint {os.fspath(prefix)}: {cause}") from refusal or error


def _listing(names: Sequence[str], limit: int = 8) -> str:
    """Names as text, the first few of many."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


# ----------------------------------------------------------------------------------------------- weights only
class LoadReport(NamedTuple):
    """What load_weights did with every name, on both sides."""

    source: str  # the checkpoint's prefix, folder or file
    matched: list[str]  # variables now holding the checkpoint's values
    missing: list[str]  # variables left at their initial values (only where allowed)
    unused: list[str]  # weights of the checkpoint that the model does not have
    slots_ignored: list[str]  # moments, step, loss scale and other training state in the checkpoint
    other_shape: list[str]  # variables left at their initial values, being of another shape there (where allowed)

    def __str__(self) -> str:
        total = len(self.matched) + len(self.missing) + len(self.other_shape)
        text = f"initialised {len(self.matched)} of {total} variables from {self.source}"
        text += f"; ignored {len(self.slots_ignored)} optimizer slots"
        if self.missing:
            text += f"; not in it, left at their initial values: {_listing(self.missing)}"
        if self.other_shape:
            text += f"; of another shape in it, left at their initial values: {_listing(self.other_shape)}"
        if self.unused:
            text += f"; in it, but not in the model: {_listing(self.unused)}"
        return text


def is_training_state(name: str) -> bool:
    """Whether a checkpoint name is not a weight: an optimizer slot, a step, a loss scale."""
    return _TRAINING_STATE.search(name) is not None


def load_weights(
    variables: Sequence[tf.Variable],
    path: str | os.PathLike,
    allow_missing: Sequence[str] = (),
    allow_other_shape: Sequence[str] = (),
) -> LoadReport:
    """Assigns the checkpoint's values to the variables of the same names; weights only.

    path: see open_checkpoint. allow_missing: prefixes of names that may be absent from the checkpoint, such as a new
    task's head; allow_other_shape: prefixes of names that may have another shape there, such as the head of a task
    with other labels. Such variables keep their initial values.

    Raises UserError, with no variable changed, when there is no checkpoint at `path`, a variable is missing
    from it, shapes differ, or it has more layers than the model.
    """
    reader = open_checkpoint(path)
    report = compare_weights(variables, reader, allow_missing, allow_other_shape)
    by_name = {variable_name(variable): variable for variable in variables}
    values = reader.read(report.matched)  # all read before the first is assigned
    integers = [name for name, value in values.items() if not tf.as_dtype(value.dtype).is_floating]
    if integers:
        raise UserError(
            f"{reader.source}: {integers[0]} is {values[integers[0]].dtype}, not floating point; quantised weights "
            "cannot be used"
        )
    for name, value in values.items():
        by_name[name].assign(tf.cast(value, by_name[name].dtype))
    return report


def compare_weights(
    variables: Sequence[Any],
    reader: Reader,
    allow_missing: Sequence[str] = (),
    allow_other_shape: Sequence[str] = (),
) -> LoadReport:
    """What load_weights would do, by names and shapes alone: no tensor is read.

    variables: anything with `name` and `shape`. Raises UserError where load_weights would for missing names, other
    shapes and more layers.
    """
    shapes = reader.shapes
    by_name = {variable_name(variable): variable for variable in variables}
    weights = {name for name in shapes if not is_training_state(name)}

    missing = [name for name in by_name if name not in weights]
    required = [name for name in missing if not name.startswith(tuple(allow_missing))]
    if required:
        raise UserError(_explain_missing(reader.source, required, by_name, weights))
    differing = [name for name, v in by_name.items() if name in weights and tuple(v.shape) != shapes[name]]
    other_shape = [name for name in differing if name.startswith(tuple(allow_other_shape))]
    matched = [name for name in by_name if name in weights and name not in other_shape]
    _check_shapes(reader.source, {name: by_name[name] for name in matched}, shapes)
    if 0 < _layer_count(by_name) < _layer_count(weights):
        raise UserError(f"{reader.source} has more layers than the model: {_layer_hint(by_name, weights)}")
    return LoadReport(
        source=reader.source,
        matched=matched,
        missing=missing,
        unused=sorted(weights - set(by_name)),
        slots_ignored=[name for name in shapes if is_training_state(name)],
        other_shape=other_shape,
    )


def _explain_missing(prefix: str, required: list[str], by_name: Mapping, weights: set[str]) -> str:
    if not any(name.startswith("bert/") for name in weights):
        held = _listing(sorted(weights)) or "no weights at all"
        hint = f"it is no BERT checkpoint with Google's names, it holds {held}"
    elif _layer_count(by_name) != _layer_count(weights):
        hint = _layer_hint(by_name, weights)
    elif all(name.startswith(("cls/", "output_")) for name in required):
        fine_tuned = required[0].startswith(("cls/squad/", "output_"))
        origin = "fine-tuning for this task" if fine_tuned else "pre-training"
        hint = f"it holds an encoder without this head; give a checkpoint that {origin} saved"
    elif all(name.startswith("bert/pooler/") for name in required):
        hint = "it was saved by a task without a pooler (questions, tagging); give a checkpoint that pre-training saved"
    else:
        hint = "give the config that belongs to it"
    lacking = f"{len(required)} of {len(by_name)} variables of the model"
    return f"{prefix} lacks {lacking} ({_listing(required)}): {hint}"


def _layer_hint(by_name: Iterable[str], weights: Iterable[str]) -> str:
    model, checkpoint = _layer_count(by_name), _layer_count(weights)
    return f"the model has {model} layers and the checkpoint {checkpoint}; give the config that belongs to it"


def _layer_count(names: Iterable[str]) -> int:
    indices = [int(match[1]) for name in names if (match := re.match(r"bert/encoder/layer_(\d+)/", name))]
    return max(indices, default=-1) + 1


def _check_shapes(prefix: str, variables: Mapping[str, tf.Variable], shapes: Mapping[str, tuple[int, ...]]) -> None:
    wrong = {
        name: f"{name} is {list(variable.shape)} in the model and {list(shapes[name])} in the checkpoint"
        for name, variable in variables.items()
        if tuple(variable.shape) != shapes[name]
    }
    if wrong and all(name.startswith("output_") for name in wrong):
        name = next(iter(wrong))
        raise UserError(
            f"{prefix} was fine-tuned for {shapes[name][0]} labels, and this task has {variables[name].shape[0]} "
            f"({_listing(list(wrong.values()), limit=3)}): give the checkpoint of this task, or a pre-trained one"
        )
    if wrong:
        raise UserError(f"{prefix} does not fit the model's config: {_listing(list(wrong.values()), limit=3)}")


def check_sizes(
    vocab_lines: int,
    config_vocab_size: int,
    checkpoint_rows: int | None = None,
    vocab_file: str = "the vocabulary",
    config_file: str = "the config",
    checkpoint: str = "the checkpoint",
) -> str | None:
    """Compares vocabulary, config and word embeddings before anything is built; returns a warning or None.

    checkpoint_rows: rows of the word embedding table (None: no checkpoint). Fewer vocabulary lines than rows
    leave rows unused, which is worth a warning; anything else raises UserError naming all the numbers.
    """
    numbers = f"{vocab_file} has {vocab_lines} lines, {config_file} has vocab_size {config_vocab_size}"
    if checkpoint_rows is not None:
        numbers += f", {checkpoint} has {checkpoint_rows} rows of word embeddings"
        if config_vocab_size != checkpoint_rows:
            raise UserError(f"{numbers}: config and checkpoint must agree; use files that belong together")
    if vocab_lines > config_vocab_size:
        raise UserError(f"{numbers}: the last tokens have no embedding; use files that belong together")
    if vocab_lines < config_vocab_size:
        return f"{numbers}: {config_vocab_size - vocab_lines} rows of word embeddings will not be used"
    return None


def word_embedding_rows(path: str | os.PathLike) -> int:
    """How many tokens a checkpoint has embeddings for. Raises UserError as open_checkpoint does, or if it has none."""
    reader = open_checkpoint(path)
    if WORD_EMBEDDINGS not in reader.shapes:
        held = _listing(list(reader.shapes)) or "nothing"
        raise UserError(f"{reader.source} is no BERT checkpoint: it has no {WORD_EMBEDDINGS}, it holds {held}")
    return reader.shapes[WORD_EMBEDDINGS][0]


def check_files(
    vocab_file: str | os.PathLike,
    config: BertConfig,
    checkpoint: str | os.PathLike | None = None,
    config_file: str = "the config",
) -> str | None:
    """Whether vocabulary, config and checkpoint belong together, before anything is built; returns a warning or None.

    Compares sizes (see check_sizes), and with a config.json beside the weights also what leaves no trace in shapes:
    attention heads and activation. Raises UserError naming the numbers, and as load_vocab and open_checkpoint do.
    """
    lines = len(load_vocab(vocab_file))
    if checkpoint is None:
        return check_sizes(lines, config.vocab_size, None, os.fspath(vocab_file), config_file)
    checkpoint = os.fspath(checkpoint)
    rows = word_embedding_rows(checkpoint)
    warnings = [check_sizes(lines, config.vocab_size, rows, os.fspath(vocab_file), config_file, checkpoint)]
    beside = huggingface.config_beside(checkpoint)
    if beside is not None:
        own = huggingface.load_config(beside)
        if own.num_attention_heads != config.num_attention_heads:
            raise UserError(
                f"{config_file} has num_attention_heads {config.num_attention_heads}, {beside} has "
                f"{own.num_attention_heads}; use {beside} as the config"
            )
        if own.hidden_act != config.hidden_act:
            warnings.append(
                f"{config_file} has hidden_act {config.hidden_act!r}, {beside} means {own.hidden_act!r} in our terms"
            )
    return "; ".join(filter(None, warnings)) or None


# ----------------------------------------------------------------------------------- the whole training state
class Snapshot(NamedTuple):
    """Everything that the next update depends on, in memory of its own that later updates do not change."""

    step: int
    tensors: dict[str, tf.Tensor]  # by name on disk, on the CPU
    state: dict[str, Any]


def take_snapshot(
    step: int,
    model_variables: Sequence[tf.Variable],
    optimizer: Optimizer,
    loss_scale: LossScale,
    state: dict[str, Any],
) -> Snapshot:
    """Copies the training state, between two updates, to be written while training goes on.

    state: plain JSON, what the caller needs beside the tensors (data position, seed, ...).
    """
    if step != int(optimizer.step):
        raise ValueError(f"step {step} is to be saved, but the optimizer counts {int(optimizer.step)}")
    variables = _training_tensors(model_variables, optimizer, loss_scale)
    with tf.device("/CPU:0"):
        tensors = {name: tf.raw_ops.DeepCopy(x=variable) for name, variable in variables.items()}
    return Snapshot(step, tensors, copy.deepcopy(state))


def write_snapshot(store: CheckpointStore, snapshot: Snapshot, best: int | None = None) -> Path:
    """Saves a snapshot, in any thread; returns the checkpoint's prefix. best: see CheckpointStore.save.

    Raises UserError, with the checkpoints before untouched, when a value is NaN or infinite or the disk refuses.
    """
    step, tensors, state = snapshot
    broken = [name for name, value in tensors.items() if value.dtype.is_floating and not _all_finite(value)]
    if broken:
        raise UserError(
            f"not saving a checkpoint at step {step}: {len(broken)} of {len(tensors)} tensors hold NaN or "
            f"infinity ({_listing(broken)}). The last checkpoint in {store.directory} is untouched; resume "
            "from it with a lower learning_rate"
        )
    return store.save(step, lambda prefix: write_tensors(prefix, tensors), state, best)


def restore_training_state(
    store: CheckpointStore,
    model_variables: Sequence[tf.Variable],
    optimizer: Optimizer,
    loss_scale: LossScale,
) -> dict[str, Any] | None:
    """Restores what write_snapshot saved last and returns its `state`; None where nothing was saved yet.

    A run may go on in another precision: a loss scale is restored where both sides have one, else it starts
    anew. Raises UserError when the folder's checkpoints are all damaged, or belong to another model.
    """
    checkpoint = store.newest_valid()
    if checkpoint is None:
        return None
    shapes = list_variables(checkpoint.prefix)
    tensors = _training_tensors(model_variables, optimizer, loss_scale)
    odd = sorted(name for name in set(shapes) ^ set(tensors) if not name.startswith("loss_scale/"))
    if odd:
        raise UserError(
            f"{checkpoint.prefix} was saved by a run with another model: {len(odd)} names are on one side "
            f"only ({_listing(odd)}). Resume with the settings of that run, or use an empty output folder"
        )
    tensors = {name: variable for name, variable in tensors.items() if name in shapes}
    _check_shapes(checkpoint.prefix, tensors, shapes)
    with _naming_errors("read", checkpoint.prefix):
        reader = tf.train.load_checkpoint(checkpoint.prefix)
        for name, variable in tensors.items():
            variable.assign(reader.get_tensor(name))
    return checkpoint.state


def _training_tensors(
    model_variables: Sequence[tf.Variable], optimizer: Optimizer, loss_scale: LossScale
) -> dict[str, tf.Variable]:
    weights = {variable_name(variable): variable for variable in model_variables}
    return weights | optimizer.slots | {GLOBAL_STEP: optimizer.step} | loss_scale.state


def saved_state(path: str | os.PathLike) -> dict[str, Any]:
    """The `state` that a run saved beside the checkpoint at `path`; empty for checkpoints of other tools."""
    if isinstance(open_checkpoint(path), huggingface.SafetensorsReader):
        return {}
    manifest = Path(f"{resolve_prefix(path)}.manifest.json")
    contents = read_json(manifest) if manifest.exists() else {}
    state = contents.get("state", {}) if isinstance(contents, dict) else None
    if not isinstance(state, dict):
        raise UserError(f"{manifest} is not the manifest of a checkpoint")
    return state


def _all_finite(value: tf.Tensor) -> bool:
    return bool(tf.reduce_all(tf.math.is_finite(value)))
