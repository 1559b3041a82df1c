"""BERT as an ONNX graph, written from its weights: embeddings, encoder, and one of the three heads.

Inputs input_ids, input_mask, segment_ids: int32 [B,S], any B and S up to the positions there are. Outputs float32:
start_logits and end_logits [B,S] (questions), or logits [B,N] (classes) or [B,S,N] (tags).

B batch, S sequence, H hidden, A attention heads, D = H/A, N labels.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bert_tf.model import BertConfig
from bert_tf.ops import LAYER_NORM_EPSILON, MASKED_SCORE

OPSET = 18
INPUTS = ("input_ids", "input_mask", "segment_ids")
SPAN, CLASS, TAGS = "span", "class", "tags"
OUTPUTS = {SPAN: ("start_logits", "end_logits"), CLASS: ("logits",), TAGS: ("logits",)}
_SHAPES = {SPAN: ["batch", "sequence"], CLASS: ["batch", "labels"], TAGS: ["batch", "sequence", "labels"]}


def build(config: BertConfig, head: str, weights: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """The model. weights: by Google's names, float32. Raises KeyError for one that is missing."""
    graph = _Graph(weights)
    x = _embeddings(graph)
    bias = _mask_bias(graph)
    for index in range(config.num_hidden_layers):
        x = _layer(graph, x, bias, config, f"bert/encoder/layer_{index}")
    if head == SPAN:
        logits = graph.output_layer(x, "cls/squad/output_weights", "cls/squad/output_bias")  # [B,S,2]
        for side, name in enumerate(OUTPUTS[SPAN]):
            graph.node("Gather", [logits, graph.integers(side, scalar=True)], output=name, axis=2)
    elif head == CLASS:
        first = graph.node("Gather", [x, graph.integers(0, scalar=True)], axis=1)  # [B,H]
        pooled = graph.node("Tanh", [graph.dense(first, "bert/pooler/dense")])
        graph.output_layer(pooled, "output_weights", "output_bias", output="logits")
    else:
        graph.output_layer(x, "output_weights", "output_bias", output="logits")
    labels = weights["cls/squad/output_bias" if head == SPAN else "output_bias"].shape[0]
    shape = [labels if side == "labels" else side for side in _SHAPES[head]]
    proto = helper.make_graph(
        graph.nodes,
        "bert",
        [helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", "sequence"]) for name in INPUTS],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in OUTPUTS[head]],
        graph.initializers,
    )
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    model.producer_name = "bert_tf"
    onnx.checker.check_model(model)
    return model


def products_of_activations(model: onnx.ModelProto) -> list[str]:
    """Names of the MatMul nodes without a weight, those of attention."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return [node.name for node in model.graph.node if node.op_type == "MatMul" and node.input[1] not in constants]


class _Graph:
    """Nodes and constants so far."""

    def __init__(self, weights: Mapping[str, np.ndarray]):
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.known: set[str] = set()

    def node(self, op: str, inputs: Sequence[str], output: str = "", **attributes) -> str:
        """Adds a node; returns the name of its output."""
        output = output or f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=f"{output}_node", **attributes))
        return output

    def constant(self, name: str, value: np.ndarray) -> str:
        if name not in self.known:
            self.known.add(name)
            self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def weight(self, name: str, transposed: bool = False) -> str:
        value = self.weights[name]
        return self.constant(name, np.ascontiguousarray(value.T) if transposed else value)

    def number(self, value: float) -> str:
        return self.constant(f"number_{value!r}", np.array(value, np.float32))

    def integers(self, *values: int, scalar: bool = False) -> str:
        name = f"integers_{'_'.join(map(str, values))}{'_scalar' * scalar}"
        return self.constant(name, np.array(values[0] if scalar else values, np.int64))

    def dense(self, x: str, name: str) -> str:
        """x W + b."""
        return self.node("Add", [self.node("MatMul", [x, self.weight(f"{name}/kernel")]), self.weight(f"{name}/bias")])

    def output_layer(self, x: str, weights: str, bias: str, output: str = "") -> str:
        """x W^T + b."""
        product = self.node("MatMul", [x, self.weight(weights, transposed=True)])
        return self.node("Add", [product, self.weight(bias)], output)

    def layer_norm(self, x: str, name: str) -> str:
        inputs = [x, self.weight(f"{name}/gamma"), self.weight(f"{name}/beta")]
        return self.node("LayerNormalization", inputs, axis=-1, epsilon=LAYER_NORM_EPSILON)


def _embeddings(graph: _Graph) -> str:
    """[B,S,H]."""
    prefix = "bert/embeddings"
    tokens = graph.node("Gather", [graph.weight(f"{prefix}/word_embeddings"), "input_ids"])
    types = graph.node("Gather", [graph.weight(f"{prefix}/token_type_embeddings"), "segment_ids"])
    length = graph.node("Shape", ["input_ids"], start=1, end=2)  # [1]
    table = graph.weight(f"{prefix}/position_embeddings")
    positions = graph.node("Slice", [table, graph.integers(0), length, graph.integers(0)])
    total = graph.node("Add", [graph.node("Add", [tokens, types]), positions])
    return graph.layer_norm(total, f"{prefix}/LayerNorm")


def _mask_bias(graph: _Graph) -> str:
    """0 for tokens and MASKED_SCORE for padding, [B,1,1,S]."""
    mask = graph.node("Cast", [graph.node("Unsqueeze", ["input_mask", graph.integers(1, 2)])], to=TensorProto.FLOAT)
    return graph.node("Mul", [graph.node("Sub", [graph.number(1.0), mask]), graph.number(MASKED_SCORE)])


def _layer(graph: _Graph, x: str, bias: str, config: BertConfig, prefix: str) -> str:
    """One transformer block, [B,S,H] -> [B,S,H]."""
    heads = config.num_attention_heads
    size = config.hidden_size // heads
    shape = graph.integers(0, 0, heads, size)  # 0: as it is

    def split(name: str, order: Sequence[int]) -> str:
        dense = graph.dense(x, f"{prefix}/attention/self/{name}")
        return graph.node("Transpose", [graph.node("Reshape", [dense, shape])], perm=order)

    query, key, value = split("query", (0, 2, 1, 3)), split("key", (0, 2, 3, 1)), split("value", (0, 2, 1, 3))
    scores = graph.node("Div", [graph.node("MatMul", [query, key]), graph.number(size**0.5)])
    probabilities = graph.node("Softmax", [graph.node("Add", [scores, bias])], axis=-1)
    context = graph.node("Transpose", [graph.node("MatMul", [probabilities, value])], perm=(0, 2, 1, 3))
    context = graph.node("Reshape", [context, graph.integers(0, 0, config.hidden_size)])

    attended = graph.dense(context, f"{prefix}/attention/output/dense")
    x = graph.layer_norm(graph.node("Add", [attended, x]), f"{prefix}/attention/output/LayerNorm")
    hidden = _activation(graph, graph.dense(x, f"{prefix}/intermediate/dense"), config.hidden_act)
    output = graph.dense(hidden, f"{prefix}/output/dense")
    return graph.layer_norm(graph.node("Add", [output, x]), f"{prefix}/output/LayerNorm")


def _activation(graph: _Graph, x: str, name: str) -> str:
    """The functions of model.ACTIVATIONS."""
    if name == "gelu_exact":  # x/2 (1 + erf(x / sqrt 2))
        inner = graph.node("Erf", [graph.node("Div", [x, graph.number(2**0.5)])])
    elif name == "gelu":  # x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
        cube = graph.node("Mul", [graph.node("Pow", [x, graph.number(3.0)]), graph.number(0.044715)])
        argument = graph.node("Mul", [graph.node("Add", [x, cube]), graph.number((2 / np.pi) ** 0.5)])
        inner = graph.node("Tanh", [argument])
    elif name in ("relu", "tanh"):
        return graph.node(name.capitalize(), [x])
    else:
        return x
    half = graph.node("Mul", [x, graph.number(0.5)])
    return graph.node("Mul", [half, graph.node("Add", [inner, graph.number(1.0)])])
