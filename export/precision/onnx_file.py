"""The types of an ONNX graph, by its protobuf alone: the onnx package is not needed where graphs are only run.

Types go from node to node, as ONNX Runtime infers them: a cast gives its own, a comparison truth values, most nodes
what they are given. A convolution behind Q/DQ pairs is one of integers. Nodes that no output depends on are left out,
since they compute nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qcn.errors import UsageError
from qcn.export.precision.products import MOST_BYTES, Products

# TensorProto.DataType. Whole numbers and truth values are indices and shapes: they say nothing of the precision.
TYPES = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16"}
TYPES |= {17: "float8", 18: "float8", 19: "float8", 20: "float8", 21: "uint4", 22: "int4", 23: "float4"}
FLOAT, INT64, BOOL, UNKNOWN = 1, 7, 9, 0
UINT8 = 2
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "ConvInteger", "MatMulInteger")
INDICES = ("Shape", "Size", "ArgMax", "ArgMin", "NonZero")
TRUTHS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor", "Not", "IsNaN", "IsInf")
BY_SECOND = ("Where", "CastLike")  # whose answer has the type of their second input
MOST_NODES = 200_000  # functions may call functions: this ends what would go on for long
DEEPEST = 64  # functions that are called from functions


@dataclass
class _Node:
    name: str = ""
    operator: str = ""
    key: tuple[str, str, str] = ("", "", "")  # of the function that it may call: domain, name, overload
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    to: int = UNKNOWN  # the type that an attribute names, or that of the constant in it
    nested: bool = False  # has graphs inside


@dataclass
class _Graph:
    """Of the model, or of a function in it. `given` are types by name, `shapes` those of the weights."""

    nodes: list[_Node] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    given: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)


def read(path: Path) -> Products:
    """The products of a graph; UsageError says why they cannot be read."""
    return read_graph(_content(path))


def read_graph(content: bytes) -> Products:
    """The same, of a graph's bytes."""
    types = _inferred(content)
    return Products(tuple(types.weights), frozenset(TYPES[type_] for type_ in types.seen if type_ in TYPES))


def convolutions(path: Path) -> dict[str, str]:
    """The type of each convolution and linear layer by its node's name, as a TensorRT receipt wants them."""
    return _inferred(_content(path)).by_name


def _content(path: Path) -> bytes:
    if path.stat().st_size > MOST_BYTES:
        raise UsageError(f"the graph has more than {MOST_BYTES:,} bytes")
    return path.read_bytes()


def _inferred(content: bytes) -> "_Types":
    try:
        graph, functions = _model(memoryview(content))
    except (IndexError, ValueError) as error:
        raise UsageError(f"it is not an ONNX graph: {error}") from None
    types = _Types(functions)
    types.infer(graph, dict(graph.given))
    return types


class _Types:
    """Infers types: `seen` are all there are, `by_name` those of the products, by the names of their nodes."""

    def __init__(self, functions: Mapping[tuple[str, str, str], _Graph]) -> None:
        self.functions, self.seen, self.left = functions, set[int](), MOST_NODES
        self.weights: list[tuple[str, tuple[int, ...]]] = []
        self.by_name: dict[str, str] = {}

    def infer(self, graph: _Graph, types: dict[str, int], calling: tuple[tuple[str, str, str], ...] = ()) -> None:
        """Add to the types of a graph's inputs and weights those of all its values."""
        self.left -= len(graph.nodes)
        if self.left < 0:
            raise UsageError(f"it has more than {MOST_NODES:,} nodes")
        makers: dict[str, _Node] = {}
        for node in _live(graph):
            if node.nested:
                raise UsageError(f"it has a {node.operator}, a node with graphs inside")
            given = [types.get(name, UNKNOWN) for name in node.inputs]
            self.seen |= set(given)
            if node.key in self.functions:
                made = self._call(node, given, calling)
            else:
                made = [_type(node, given)] * len(node.outputs)
                if node.operator in PRODUCTS and len(node.inputs) > 1:
                    kind, shape = _factor(node, graph, types, makers)
                    self.weights.append((kind, shape))
                    self.by_name[node.name] = kind
            makers |= dict.fromkeys(node.outputs, node)
            types |= dict(zip(node.outputs, made, strict=False))
            self.seen |= set(made)

    def _call(self, node: _Node, given: Sequence[int], calling: tuple[tuple[str, str, str], ...]) -> list[int]:
        if node.key in calling:
            raise UsageError(f"its function {node.operator} calls itself")
        if len(calling) == DEEPEST:
            raise UsageError(f"its functions call each other more than {DEEPEST} deep")
        body = self.functions[node.key]
        inner = {**body.given, **dict(zip(body.inputs, given, strict=False))}
        self.infer(body, inner, (*calling, node.key))
        return [inner.get(name, UNKNOWN) for name in body.outputs]


def _factor(
    node: _Node, graph: _Graph, types: Mapping[str, int], makers: Mapping[str, _Node]
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


def _type(node: _Node, given: Sequence[int]) -> int:
    if node.operator == "QuantizeLinear":
        return given[2] if len(given) > 2 else UINT8
    if node.operator == "DequantizeLinear":
        return given[1] if len(given) > 1 else UNKNOWN
    if node.operator in ("Cast", "Constant", "ConstantOfShape"):
        return node.to or FLOAT
    if node.operator in INDICES or node.operator in TRUTHS:
        return INT64 if node.operator in INDICES else BOOL
    if node.operator in BY_SECOND:
        return given[1] if len(given) > 1 else UNKNOWN
    return node.to or (given[0] if given else UNKNOWN)


def _live(graph: _Graph) -> list[_Node]:
    """The nodes that an output depends on, in their order."""
    needed, found = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if needed & set(node.outputs):
            needed |= set(node.inputs)
            found.append(node)
    return found[::-1]


# The protobuf: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto has the numbers of the fields.


def _fields(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Of each field its number, and its value if it is a whole number, else its bytes."""
    place, none = 0, data[:0]
    while place < len(data):
        tag, place = _number(data, place)
        kind = tag & 7
        if kind == 0:
            value, place = _number(data, place)
            yield tag >> 3, value, none
        else:
            size = {1: 8, 5: 4}.get(kind, -1)
            if kind == 2:
                size, place = _number(data, place)
            if size < 0 or place + size > len(data):
                raise ValueError("a field ends beyond the file")
            yield tag >> 3, 0, data[place : place + size]
            place += size


def _number(data: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128 or shift > 63:
            return value, place


def _text(data: memoryview) -> str:
    return bytes(data).decode("utf-8")


def _model(data: memoryview) -> tuple[_Graph, dict[tuple[str, str, str], _Graph]]:
    graph, functions = _Graph(), {}
    for number, _, inner in _fields(data):
        if number == 7:
            graph = _graph(inner)
        elif number == 25:
            key, body = _function(inner)
            functions[key] = body
    if not graph.nodes:
        raise ValueError("it has no nodes")
    return graph, functions


def _graph(data: memoryview) -> _Graph:
    graph = _Graph()
    for number, _, inner in _fields(data):
        if number == 1:
            graph.nodes.append(_keeping_constants(_node(inner), graph))
        elif number == 5:
            name, type_, shape = _tensor(inner)
            graph.given[name], graph.shapes[name] = type_, shape
        elif number in (11, 12):
            name, type_ = _value(inner)
            (graph.inputs if number == 11 else graph.outputs).append(name)
            if number == 11:
                graph.given.setdefault(name, type_)
    return graph


def _function(data: memoryview) -> tuple[tuple[str, str, str], _Graph]:
    graph, texts = _Graph(), {1: "", 10: "", 13: ""}
    for number, _, inner in _fields(data):
        if number in texts:
            texts[number] = _text(inner)
        elif number == 4:
            graph.inputs.append(_text(inner))
        elif number == 5:
            graph.outputs.append(_text(inner))
        elif number == 7:
            graph.nodes.append(_keeping_constants(_node(inner), graph))
    return (texts[10], texts[1], texts[13]), graph


def _keeping_constants(parsed: tuple[_Node, tuple[int, ...]], graph: _Graph) -> _Node:
    node, shape = parsed
    if node.operator == "Constant" and node.outputs:
        graph.shapes[node.outputs[0]] = shape
    return node


def _node(data: memoryview) -> tuple[_Node, tuple[int, ...]]:
    """A node, and the shape of the constant in it."""
    node, texts = _Node(), {3: "", 4: "", 7: "", 8: ""}
    shape: tuple[int, ...] = ()
    for number, _, inner in _fields(data):
        if number in (1, 2):
            (node.inputs if number == 1 else node.outputs).append(_text(inner))
        elif number in texts:
            texts[number] = _text(inner)
        elif number == 5:
            shape = _attribute(node, inner) or shape
    node.name, node.operator, node.key = texts[3], texts[4], (texts[7], texts[4], texts[8])
    return node, shape


def _attribute(node: _Node, data: memoryview) -> tuple[int, ...]:
    """Keep the type that an attribute names; the shape of the constant in it."""
    name, value, tensor = "", 0, None
    for number, given, inner in _fields(data):
        if number == 1:
            name = _text(inner)
        elif number == 3:
            value = given
        elif number == 5:
            tensor = _tensor(inner)
        elif number in (6, 11):
            node.nested = True
    if name in ("to", "dtype"):
        node.to = value
    elif name in ("value_int", "value_ints"):
        node.to = INT64
    if tensor is None:
        return ()
    node.to = tensor[1]
    return tensor[2]


def _tensor(data: memoryview) -> tuple[str, int, tuple[int, ...]]:
    """Name, type and shape of a TensorProto; its numbers are left alone."""
    name, type_, shape = "", UNKNOWN, list[int]()
    for number, value, inner in _fields(data):
        if number == 1:
            if inner:  # packed
                place = 0
                while place < len(inner):
                    side, place = _number(inner, place)
                    shape.append(side)
            else:
                shape.append(value)
        elif number == 2:
            type_ = value
        elif number == 8:
            name = _text(inner)
    return name, type_, tuple(shape)


def _value(data: memoryview) -> tuple[str, int]:
    """Name and element type of a ValueInfoProto."""
    name, type_ = "", UNKNOWN
    for number, _, inner in _fields(data):
        if number == 1:
            name = _text(inner)
        elif number == 2:
            for kind, _, tensor in _fields(inner):
                for place, value, _ in _fields(tensor) if kind == 1 else ():
                    type_ = value if place == 1 else type_
    return name, type_
