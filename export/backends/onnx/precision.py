"""The types of an ONNX graph, by its protobuf alone: the onnx package is not needed where graphs are only run.

Types go from node to node, as ONNX Runtime infers them: a cast gives its own, a comparison truth values, most nodes
what they are given. A convolution behind Q/DQ pairs is one of integers. Nodes that no output depends on are left out,
since they compute nothing.
"""

from collections.abc import Mapping, Sequence

from qcn.errors import UsageError
from qcn.export.backends.onnx.proto import INT64, UNKNOWN, Key, Node, StoredGraph, parse
from qcn.export.backends.precision import MOST_BYTES, Products

# TensorProto.DataType. Whole numbers and truth values are indices and shapes: they say nothing of the precision.
TYPES = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16"}
TYPES |= {17: "float8", 18: "float8", 19: "float8", 20: "float8", 21: "uint4", 22: "int4", 23: "float4"}
FLOAT, UINT8, BOOL = 1, 2, 9
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "ConvInteger", "MatMulInteger")
INDICES = ("Shape", "Size", "ArgMax", "ArgMin", "NonZero")
TRUTHS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor", "Not", "IsNaN", "IsInf")
BY_SECOND = ("Where", "CastLike")  # whose answer has the type of their second input
MOST_NODES = 200_000  # functions may call functions: this ends what would go on for long
DEEPEST = 64  # functions that are called from functions


def read(content: bytes) -> Products:
    """The products of a graph; UsageError says why they cannot be read."""
    types = _inferred(content)
    return Products(tuple(types.weights), frozenset(TYPES[type_] for type_ in types.seen if type_ in TYPES))


def convolutions(content: bytes) -> dict[str, str]:
    """The type of each convolution and linear layer by its node's name, as a TensorRT receipt wants them."""
    return _inferred(content).by_name


def _inferred(content: bytes) -> "_Types":
    if len(content) > MOST_BYTES:
        raise UsageError(f"the graph has more than {MOST_BYTES:,} bytes")
    try:
        graph, functions = parse(content)
    except (IndexError, ValueError) as error:
        raise UsageError(f"it is not an ONNX graph: {error}") from None
    types = _Types(functions)
    types.infer(graph, dict(graph.given))
    return types


class _Types:
    """Infers types: `seen` are all there are, `by_name` those of the products, by the names of their nodes."""

    def __init__(self, functions: Mapping[Key, StoredGraph]) -> None:
        self.functions, self.seen, self.left = functions, set[int](), MOST_NODES
        self.weights: list[tuple[str, tuple[int, ...]]] = []
        self.by_name: dict[str, str] = {}

    def infer(self, graph: StoredGraph, types: dict[str, int], calling: tuple[Key, ...] = ()) -> None:
        """Add to the types of a graph's inputs and weights those of all its values."""
        self.left -= len(graph.nodes)
        if self.left < 0:
            raise UsageError(f"it has more than {MOST_NODES:,} nodes")
        makers: dict[str, Node] = {}
        for node in _live(graph):
            if node.nested:
                raise UsageError(f"it has a {node.operator}, a node with graphs inside")
            inputs = [types.get(name, UNKNOWN) for name in node.inputs]
            self.seen |= set(inputs)
            if node.key in self.functions:
                outputs = self._call(node, inputs, calling)
            else:
                outputs = [_type(node, inputs)] * len(node.outputs)
                if node.operator in PRODUCTS and len(node.inputs) > 1:
                    kind, shape = _factor(node, graph, types, makers)
                    self.weights.append((kind, shape))
                    self.by_name[node.name] = kind
            makers |= dict.fromkeys(node.outputs, node)
            types |= dict(zip(node.outputs, outputs, strict=False))
            self.seen |= set(outputs)

    def _call(self, node: Node, inputs: Sequence[int], calling: tuple[Key, ...]) -> list[int]:
        if node.key in calling:
            raise UsageError(f"its function {node.operator} calls itself")
        if len(calling) == DEEPEST:
            raise UsageError(f"its functions call each other more than {DEEPEST} deep")
        body = self.functions[node.key]
        inner = {**body.given, **dict(zip(body.inputs, inputs, strict=False))}
        self.infer(body, inner, (*calling, node.key))
        return [inner.get(name, UNKNOWN) for name in body.outputs]


def _factor(
    node: Node, graph: StoredGraph, types: Mapping[str, int], makers: Mapping[str, Node]
) -> tuple[str, tuple[int, ...]]:
    """The type that a product is of, and the shape of its weight: behind Q/DQ pairs on both sides, that of the Q."""
    pairs = [makers.get(name) for name in node.inputs[:2]]
    weight, kind = node.inputs[1], types.get(node.inputs[1], UNKNOWN)
    if all(pair is not None and pair.operator == "DequantizeLinear" for pair in pairs):
        kinds = {types.get(pair.inputs[0], UNKNOWN) for pair in pairs if pair is not None}
        kind = kinds.pop() if len(kinds) == 1 else UNKNOWN
        weight = pairs[1].inputs[0] if pairs[1] is not None else weight
        quantised = makers.get(weight)
        weight = quantised.inputs[0] if quantised is not None and quantised.operator == "QuantizeLinear" else weight
    shape = graph.shapes.get(weight, ())
    return TYPES.get(kind, "unknown"), shape[::-1] if node.operator == "MatMulInteger" else shape


def _type(node: Node, inputs: Sequence[int]) -> int:
    if node.operator == "QuantizeLinear":
        return inputs[2] if len(inputs) > 2 else UINT8
    if node.operator == "DequantizeLinear":
        return inputs[1] if len(inputs) > 1 else UNKNOWN
    if node.operator in ("Cast", "Constant", "ConstantOfShape"):
        return node.to or FLOAT
    if node.operator in INDICES or node.operator in TRUTHS:
        return INT64 if node.operator in INDICES else BOOL
    if node.operator in BY_SECOND:
        return inputs[1] if len(inputs) > 1 else UNKNOWN
    return node.to or (inputs[0] if inputs else UNKNOWN)


def _live(graph: StoredGraph) -> list[Node]:
    """The nodes that an output depends on, in their order."""
    needed, result = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if needed & set(node.outputs):
            needed |= set(node.inputs)
            result.append(node)
    return result[::-1]
