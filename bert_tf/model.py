"""BERT (arXiv 1810.04805) as plain `tf.Module`s.

Shapes: B batch, S sequence, H hidden, A attention heads, D = H/A, I intermediate, V vocabulary, P predictions.

Every variable carries the name it has in Google's checkpoints, so that checkpoints are read and written by name. The
modules know nothing of precision or distribution: they ask `weights` for a variable's value, and `weights` decides in
which dtype the products run (see weights.ComputeWeights).
"""

import dataclasses
import functools
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import tensorflow as tf

from bert_tf import ops
from bert_tf.ops import NOT_PACKED, DropoutKey, Layout, Packing, Places
from bert_tf.recomputation import recomputed
from runkit.errors import UserError
from runkit.files import read_json

HEAD_DROPOUT = 0.1  # before the output layer of classification and tagging, as published


class Weights(Protocol):
    """What the modules need from the holder of the weights."""

    dtype: tf.DType

    def __call__(self, variable: tf.Variable) -> tf.Tensor:
        """The variable's value for a product, in `dtype` (LayerNorm's gamma and beta: float32)."""

    def joined(self, variables: Sequence[tf.Variable]) -> tf.Tensor:
        """The values of variables side by side, their last axes joined, for one product instead of several."""

    def lookup(self, variable: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
        """Rows of an embedding table in float32."""


# ----------------------------------------------------------------------------------------------------- config
@dataclasses.dataclass(frozen=True)
class BertConfig:
    """The keys of Google's bert_config.json, with the published defaults."""

    vocab_size: int
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 16
    initializer_range: float = 0.02

    # Keys of Google's multilingual and cased files that describe a pooler which the published code never builds.
    IGNORED = frozenset(
        {"directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
         "pooler_size_per_head", "pooler_type"}
    )  # fmt: skip

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            good = isinstance(value, field.type) or (field.type is float and isinstance(value, int))
            if not good or isinstance(value, bool):
                raise UserError(f"bert config: {field.name} must be {field.type.__name__}, got {value!r}")
            if field.type in (int, float) and not abs(value) < 1 << 31:  # not so for NaN
                raise UserError(f"bert config: {field.name} must be a number below 2^31, got {value}")
            if field.type is int and value <= 0:
                raise UserError(f"bert config: {field.name} must be positive, got {value}")
            if field.name.endswith("_prob") and not 0 <= value < 1:
                raise UserError(f"bert config: {field.name} must be at least 0 and below 1, got {value}")
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"bert config: hidden_size {self.hidden_size} is not a multiple of "
                f"num_attention_heads {self.num_attention_heads}"
            )
        if self.hidden_act not in ACTIVATIONS:
            raise UserError(f"bert config: hidden_act {self.hidden_act!r} is not one of {sorted(ACTIVATIONS)}")

    @classmethod
    def from_json_file(cls, path: str | Path) -> "BertConfig":
        """Reads Google's JSON; unknown keys, wrong types and a missing vocab_size raise UserError naming the file."""
        values = read_json(path)
        if not isinstance(values, dict):
            raise UserError(f"{path}: expected an object with the keys of bert_config.json")
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known - cls.IGNORED)
        if unknown:
            raise UserError(f"{path}: unknown keys {unknown}; known are {sorted(known)}")
        if "vocab_size" not in values:
            raise UserError(f"{path}: the key vocab_size is missing")
        try:
            return cls(**{key: value for key, value in values.items() if key in known})
        except UserError as error:
            raise UserError(f"{path}: {error}") from error

    @property
    def head_dropout_site(self) -> int:
        """The number of a head's dropout, behind those of the embeddings and layers (see Layer.first_site)."""
        return 1 + 3 * self.num_hidden_layers

    def to_dict(self) -> dict:
        """The JSON object that from_json_file reads."""
        return dataclasses.asdict(self)


# "gelu" is Google's tanh approximation; what Hugging Face's files call gelu is "gelu_exact" here.
ACTIVATIONS = {  # functions (x [R, C], bias [C]) -> activation(x + bias)
    "gelu": ops.gelu,
    "gelu_exact": ops.gelu_exact,
    "relu": lambda x, bias: tf.nn.relu(tf.nn.bias_add(x, bias)),
    "tanh": lambda x, bias: tf.tanh(tf.nn.bias_add(x, bias)),
    "linear": tf.nn.bias_add,
    "": tf.nn.bias_add,
}


# ----------------------------------------------------------------------------------------------------- pieces
class Initializer:
    """Truncated normal draws (at two deviations) that depend on (seed, variable name) only.

    So the same seed gives the same start whatever the order of construction or the number of processes. Without a seed
    there are zeros, for weights that will be loaded: the draws take longer than everything else that builds a model.
    """

    def __init__(self, seed: int | None, stddev: float):
        self.seed, self.stddev = seed, stddev

    def normal(self, name: str, shape: list[int]) -> tf.Variable:
        if self.seed is None:
            return self.zeros(name, shape)
        # Not hash(): Python's hash of a string changes from process to process.
        key = [self.seed, zlib.crc32(name.encode())]
        value = tf.random.stateless_truncated_normal(shape, key, stddev=self.stddev, dtype=tf.float32)
        return tf.Variable(value, name=name)

    def zeros(self, name: str, shape: list[int]) -> tf.Variable:
        return tf.Variable(tf.zeros(shape), name=name)

    def ones(self, name: str, shape: list[int]) -> tf.Variable:
        return tf.Variable(tf.ones(shape), name=name)


class Dense(tf.Module):
    """y = x W + b, W [in, out]."""

    def __init__(self, name: str, inputs: int, outputs: int, init: Initializer):
        super().__init__(name="dense")
        self.kernel = init.normal(f"{name}/kernel", [inputs, outputs])
        self.bias = init.zeros(f"{name}/bias", [outputs])

    def __call__(self, x: tf.Tensor, weights: Weights) -> tf.Tensor:
        return tf.nn.bias_add(self.product(x, weights), weights(self.bias))

    def product(self, x: tf.Tensor, weights: Weights) -> tf.Tensor:
        """x W alone, for ops that add the bias in the same pass."""
        return tf.matmul(x, weights(self.kernel))


class LayerNorm(tf.Module):
    """LayerNorm over the last axis, alone or of a residual sum."""

    def __init__(self, name: str, size: int, init: Initializer):
        super().__init__(name="layer_norm")
        self.beta = init.zeros(f"{name}/beta", [size])
        self.gamma = init.ones(f"{name}/gamma", [size])

    def __call__(self, x: tf.Tensor, weights: Weights) -> tf.Tensor:
        return ops.layer_norm(x, weights(self.gamma), weights(self.beta))

    def of_sum(self, x, bias, residual, weights: Weights, places: Places, key, site: int, rate: float) -> tf.Tensor:
        """LayerNorm(residual + dropout(x + bias))."""
        return ops.add_layer_norm(x, bias, residual, weights(self.gamma), weights(self.beta), places, key, site, rate)


class Embeddings(tf.Module):
    """LayerNorm(word + token type + position), then dropout."""

    def __init__(self, config: BertConfig, init: Initializer):
        super().__init__(name="embeddings")
        prefix, size = "bert/embeddings", config.hidden_size
        self.word = init.normal(f"{prefix}/word_embeddings", [config.vocab_size, size])
        self.token_type = init.normal(f"{prefix}/token_type_embeddings", [config.type_vocab_size, size])
        self.position = init.normal(f"{prefix}/position_embeddings", [config.max_position_embeddings, size])
        self.layer_norm = LayerNorm(f"{prefix}/LayerNorm", size, init)
        self.rate = config.hidden_dropout_prob

    def __call__(self, input_ids, segment_ids, layout: Layout, weights: Weights, key: DropoutKey | None) -> tf.Tensor:
        """input_ids, segment_ids: [B, S] int32 -> [B*S, H]."""
        tokens = weights.lookup(self.word, input_ids)  # [B, S, H]
        types = weights.lookup(self.token_type, segment_ids)
        positions = weights.lookup(self.position, layout.positions)  # [S, H], or as the others
        x = tf.cast(tokens + types + positions, weights.dtype)
        x = self.layer_norm(tf.reshape(x, [-1, self.word.shape[1]]), weights)
        return ops.dropout(x, layout.places, key, site=0, rate=self.rate)


class Layer(tf.Module):
    """One post-LayerNorm transformer block."""

    def __init__(self, config: BertConfig, index: int, init: Initializer):
        super().__init__(name=f"layer_{index}")
        prefix, size = f"bert/encoder/layer_{index}", config.hidden_size
        self.query = Dense(f"{prefix}/attention/self/query", size, size, init)
        self.key = Dense(f"{prefix}/attention/self/key", size, size, init)
        self.value = Dense(f"{prefix}/attention/self/value", size, size, init)
        self.attention_output = Dense(f"{prefix}/attention/output/dense", size, size, init)
        self.attention_norm = LayerNorm(f"{prefix}/attention/output/LayerNorm", size, init)
        self.intermediate = Dense(f"{prefix}/intermediate/dense", size, config.intermediate_size, init)
        self.output = Dense(f"{prefix}/output/dense", config.intermediate_size, size, init)
        self.output_norm = LayerNorm(f"{prefix}/output/LayerNorm", size, init)
        self.config = config
        self.first_site = 1 + 3 * index  # numbers this layer's three dropouts

    def __call__(self, x, layout: Layout, weights: Weights, key: DropoutKey | None) -> tf.Tensor:
        """x: [B*S, H] -> [B*S, H]."""
        config, site, places = self.config, self.first_site, layout.places
        three = (self.query, self.key, self.value)  # in the order of joined_place
        product = tf.matmul(x, weights.joined([dense.kernel for dense in three]))  # [B*S, 3H]
        bias = weights.joined([dense.bias for dense in three])
        context = ops.attention(
            product, bias, layout, config.num_attention_heads, key, site, config.attention_probs_dropout_prob
        )

        rate = config.hidden_dropout_prob
        attended, bias = self.attention_output.product(context, weights), weights(self.attention_output.bias)
        x = self.attention_norm.of_sum(attended, bias, x, weights, places, key, site + 1, rate)
        hidden = ACTIVATIONS[config.hidden_act](self.intermediate.product(x, weights), weights(self.intermediate.bias))
        output, bias = self.output.product(hidden, weights), weights(self.output.bias)
        return self.output_norm.of_sum(output, bias, x, weights, places, key, site + 2, rate)


def _run_layer(layer: Layer, layout: Layout, key: DropoutKey | None, x: tf.Tensor, weights: Weights) -> tf.Tensor:
    return layer(x, layout, weights, key)


class Encoder(tf.Module):
    """Token ids to hidden states: everything under `bert/` in a checkpoint."""

    def __init__(self, config: BertConfig, init: Initializer, has_pooler: bool = True):
        """has_pooler: heads that look at single tokens have no use for a pooled vector."""
        super().__init__(name="bert")
        self.config = config
        self.recompute_activations = False  # in training: see recomputation
        self.embeddings = Embeddings(config, init)
        self.layers = [Layer(config, index, init) for index in range(config.num_hidden_layers)]
        if has_pooler:
            self.pooler = Dense("bert/pooler/dense", config.hidden_size, config.hidden_size, init)

    def __call__(
        self,
        input_ids: tf.Tensor,
        input_mask: tf.Tensor,
        segment_ids: tf.Tensor,
        weights: Weights,
        key: DropoutKey | None = None,
        packing: Packing | tuple[()] = NOT_PACKED,
    ) -> tf.Tensor:
        """input_ids, input_mask (1 for tokens, then 0), segment_ids: [R, S] int32; rows are sequences unless packed.

        Returns hidden states [R, S, H]. Without a key there is no dropout.
        """
        rows, length = tf.shape(input_ids)[0], tf.shape(input_ids)[1]
        layout = ops.layout(input_mask, packing, weights.dtype)
        x = self.embeddings(input_ids, segment_ids, layout, weights, key)
        for layer in self.layers:
            step = functools.partial(_run_layer, layer, layout, key)
            again = self.recompute_activations and key is not None
            x = recomputed(step, x, weights, layer.variables) if again else step(x, weights)
        return tf.reshape(x, [rows, length, self.config.hidden_size])

    def of_batch(self, batch, weights: Weights, key: DropoutKey | None) -> tf.Tensor:
        """batch: input_pipeline.Batch or features.TaskBatch -> [R, S, H]."""
        return self(batch.input_ids, batch.input_mask, batch.segment_ids, weights, key, batch.packing)

    def pool(self, sequence: tf.Tensor, weights: Weights, packing: Packing | tuple[()] = NOT_PACKED) -> tf.Tensor:
        """hidden states [R, S, H] -> [B, H]: each sequence's first vector through a dense layer and tanh."""
        first = tf.gather(_flat(sequence), packing.starts) if packing else sequence[:, 0, :]
        return tf.tanh(self.pooler(first, weights))


def _flat(sequence: tf.Tensor) -> tf.Tensor:
    """[R, S, H] -> [R*S, H]."""
    return tf.reshape(sequence, [-1, sequence.shape[2]])


# ---------------------------------------------------------------------------------------------- pre-training
class PretrainingLogits(NamedTuple):
    """masked_lm: [B*P, V] float32, packed [M, V]; next_sentence: [B, 2] float32 (0 the real next segment, 1 random)."""

    masked_lm: tf.Tensor
    next_sentence: tf.Tensor


class MaskedLmHead(tf.Module):
    """Vocabulary scores at the masked positions only; the projection is the word embedding table."""

    def __init__(self, config: BertConfig, init: Initializer):
        super().__init__(name="predictions")
        prefix, size = "cls/predictions", config.hidden_size
        self.transform = Dense(f"{prefix}/transform/dense", size, size, init)
        self.layer_norm = LayerNorm(f"{prefix}/transform/LayerNorm", size, init)
        self.output_bias = init.zeros(f"{prefix}/output_bias", [config.vocab_size])
        self.activation = ACTIVATIONS[config.hidden_act]

    def __call__(self, sequence, positions, table: tf.Variable, weights: Weights) -> tf.Tensor:
        """sequence [B, S, H], positions [B, P] -> logits [B*P, V] float32.

        Of packed rows: [R, S, H], [M] indices into [R * S] -> [M, V].
        """
        if positions.shape.rank == 2:
            first = tf.range(tf.shape(sequence)[0]) * tf.shape(sequence)[1]
            positions = tf.reshape(first[:, None] + positions, [-1])
        x = tf.gather(_flat(sequence), positions)  # [B*P, H]
        x = self.activation(self.transform.product(x, weights), weights(self.transform.bias))
        x = self.layer_norm(x, weights)
        logits = tf.matmul(x, weights(table), transpose_b=True)
        return tf.cast(logits, tf.float32) + tf.cast(weights(self.output_bias), tf.float32)


class NextSentenceHead(tf.Module):
    """Whether segment B follows segment A."""

    def __init__(self, config: BertConfig, init: Initializer):
        super().__init__(name="seq_relationship")
        self.output_weights = init.normal("cls/seq_relationship/output_weights", [2, config.hidden_size])
        self.output_bias = init.zeros("cls/seq_relationship/output_bias", [2])

    def __call__(self, pooled: tf.Tensor, weights: Weights) -> tf.Tensor:
        """pooled [B, H] -> [B, 2] float32."""
        logits = tf.matmul(pooled, weights(self.output_weights), transpose_b=True)
        return tf.cast(logits, tf.float32) + tf.cast(weights(self.output_bias), tf.float32)


class BertForPreTraining(tf.Module):
    """Encoder with the masked-LM and next-sentence heads."""

    def __init__(self, config: BertConfig, seed: int | None = 0):
        super().__init__(name="bert_for_pretraining")
        init = Initializer(seed, config.initializer_range)
        self.config = config
        self.bert = Encoder(config, init)
        self.predictions = MaskedLmHead(config, init)
        self.seq_relationship = NextSentenceHead(config, init)

    def __call__(self, batch, weights: Weights, key: DropoutKey | None = None) -> PretrainingLogits:
        """batch: input_pipeline.Batch. Without a key there is no dropout (evaluation)."""
        sequence = self.bert.of_batch(batch, weights, key)
        table = self.bert.embeddings.word
        return PretrainingLogits(
            self.predictions(sequence, batch.masked_lm_positions, table, weights),
            self.seq_relationship(self.bert.pool(sequence, weights, batch.packing), weights),
        )


# ----------------------------------------------------------------------------------------------- fine-tuning
class OutputLayer(tf.Module):
    """x W^T + b with Google's [N, H] weights; the logits are float32."""

    def __init__(self, prefix: str, outputs: int, config: BertConfig, init: Initializer):
        super().__init__(name="output")
        self.output_weights = init.normal(f"{prefix}output_weights", [outputs, config.hidden_size])
        self.output_bias = init.zeros(f"{prefix}output_bias", [outputs])

    def __call__(self, x: tf.Tensor, weights: Weights) -> tf.Tensor:
        """x: [R, H] -> [R, N] float32."""
        logits = tf.matmul(x, weights(self.output_weights), transpose_b=True)
        return tf.cast(logits, tf.float32) + tf.cast(weights(self.output_bias), tf.float32)


class BertForQuestionAnswering(tf.Module):
    """For each token, how well an answer may start and end there (SQuAD)."""

    HEAD = "cls/squad/"

    def __init__(self, config: BertConfig, seed: int | None = 0):
        super().__init__(name="bert_for_question_answering")
        init = Initializer(seed, config.initializer_range)
        self.config = config
        self.bert = Encoder(config, init, has_pooler=False)
        self.output = OutputLayer(self.HEAD, 2, config, init)

    def __call__(self, batch, weights: Weights, key: DropoutKey | None = None) -> tf.Tensor:
        """batch: features.TaskBatch -> logits [B, S, 2] float32: start, end. S of a packed batch: see by_sequence."""
        sequence = self.bert.of_batch(batch, weights, key)
        return by_sequence(_each_token(self.output, sequence, weights), batch.packing)


class BertForClassification(tf.Module):
    """A class, or with one output a number, for a text or a pair of texts (GLUE, relations)."""

    HEAD = "output_"

    def __init__(self, config: BertConfig, num_labels: int, seed: int | None = 0):
        super().__init__(name="bert_for_classification")
        init = Initializer(seed, config.initializer_range)
        self.config = config
        self.bert = Encoder(config, init)
        self.output = OutputLayer("", num_labels, config, init)

    def __call__(self, batch, weights: Weights, key: DropoutKey | None = None) -> tf.Tensor:
        """batch: features.TaskBatch -> logits [B, N] float32."""
        sequence = self.bert.of_batch(batch, weights, key)
        pooled = self.bert.pool(sequence, weights, batch.packing)
        places = ops.first_tokens(tf.shape(pooled)[0])
        dropped = ops.dropout(pooled, places, key, self.config.head_dropout_site, HEAD_DROPOUT)
        return self.output(dropped, weights)


class BertForTagging(tf.Module):
    """A label for each token (named entities)."""

    HEAD = "output_"

    def __init__(self, config: BertConfig, num_labels: int, seed: int | None = 0):
        super().__init__(name="bert_for_tagging")
        init = Initializer(seed, config.initializer_range)
        self.config = config
        self.bert = Encoder(config, init, has_pooler=False)
        self.output = OutputLayer("", num_labels, config, init)

    def __call__(self, batch, weights: Weights, key: DropoutKey | None = None) -> tf.Tensor:
        """batch: features.TaskBatch -> logits [R, S, N] float32."""
        sequence = self.bert.of_batch(batch, weights, key)
        places = ops.layout(batch.input_mask, batch.packing, weights.dtype).places
        dropped = ops.dropout(_flat(sequence), places, key, self.config.head_dropout_site, HEAD_DROPOUT)
        return _each_token(self.output, tf.reshape(dropped, tf.shape(sequence)), weights)


def _each_token(output: OutputLayer, sequence: tf.Tensor, weights: Weights) -> tf.Tensor:
    """sequence [R, S, H] -> [R, S, N]."""
    logits = output(_flat(sequence), weights)
    return tf.reshape(logits, [tf.shape(sequence)[0], tf.shape(sequence)[1], logits.shape[1]])


def by_sequence(values: tf.Tensor, packing: Packing | tuple[()]) -> tf.Tensor:
    """Values of tokens [R, S, N] as [B, L, N], one row a sequence; what stands beyond a sequence's end is arbitrary.

    L is the longest sequence's length (under XLA, which wants it fixed, S), and S where nothing is packed.
    """
    if not packing:
        return values
    flat, size = _flat(values), tf.shape(values)[0] * tf.shape(values)[1]
    longest = tf.shape(values)[1] if ops.is_inside_xla() else tf.reduce_max(packing.lengths)
    return tf.gather(flat, tf.minimum(packing.starts[:, None] + tf.range(longest), size - 1))


_ATTENTION_INPUTS = ("query", "key", "value")
_ATTENTION_INPUT = re.compile(rf"(.*/attention/self)/({'|'.join(_ATTENTION_INPUTS)})/(kernel|bias)$")


class JoinedPlace(NamedTuple):
    """Where a variable stands among those that one product reads side by side."""

    group: tuple[str, str]  # equal for all of them
    index: int


def joined_place(name: str) -> JoinedPlace | None:
    """The place of the variable of this name; None for one that is read alone."""
    match = _ATTENTION_INPUT.match(name)
    return JoinedPlace((match[1], match[3]), _ATTENTION_INPUTS.index(match[2])) if match else None


def variable_name(variable: tf.Variable) -> str:
    """The variable's name in a checkpoint (`tf.Variable.name` without its `:0`)."""
    return variable.name.removesuffix(":0")
