"""An ONNX file by its protobuf alone, without the onnx package: what device machines read of a graph.

https://github.com/onnx/onnx/blob/main/onnx/onnx.proto has the numbers of the fields.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

UNKNOWN, INT64 = 0, 7  # of TensorProto.DataType
FUNCTIONS = 25  # ModelProto.functions
Key = tuple[str, str, str]  # of a function: domain, name, overload


@dataclass
class Node:
    name: str = ""
    operator: str = ""
    key: Key = ("", "", "")  # of the function that it may call
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    to: int = UNKNOWN  # the type that an attribute names, or that of the constant in it
    shape: tuple[int, ...] = ()  # of that constant
    nested: bool = False  # has graphs inside


@dataclass
class StoredGraph:
    """Of the model, or of a function in it. `given` are types by name, `shapes` those of the weights."""

    nodes: list[Node] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    given: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def add(self, node: Node) -> None:
        self.nodes.append(node)
        if node.operator == "Constant" and node.outputs:
            self.shapes[node.outputs[0]] = node.shape


def parse(model: bytes) -> tuple[StoredGraph, dict[Key, StoredGraph]]:
    """The graph of an ONNX file, and its functions; IndexError or ValueError where it is none."""
    graph, functions = StoredGraph(), {}
    for number, _, inner in _fields(memoryview(model)):
        if number == 7:
            graph = _graph(inner)
        elif number == FUNCTIONS:
            key, body = _function(inner)
            functions[key] = body
    if not graph.nodes:
        raise ValueError("it has no nodes")
    return graph, functions


def without_functions(model: bytes) -> bytes:
    """An ONNX file without the functions of its model. What is no ONNX file stays as it is."""
    try:
        fields = list(_places(memoryview(model)))
    except (IndexError, ValueError):
        return model
    return b"".join(model[start:end] for number, _, start, _, end in fields if number != FUNCTIONS)


def _graph(data: memoryview) -> StoredGraph:
    graph = StoredGraph()
    for number, _, inner in _fields(data):
        if number == 1:
            graph.add(_node(inner))
        elif number == 5:
            name, type_, shape = _tensor(inner)
            graph.given[name], graph.shapes[name] = type_, shape
        elif number in (11, 12):
            name, type_ = _value(inner)
            (graph.inputs if number == 11 else graph.outputs).append(name)
            if number == 11:
                graph.given.setdefault(name, type_)
    return graph


def _function(data: memoryview) -> tuple[Key, StoredGraph]:
    graph, texts = StoredGraph(), {1: "", 10: "", 13: ""}
    for number, _, inner in _fields(data):
        if number in texts:
            texts[number] = _text(inner)
        elif number == 4:
            graph.inputs.append(_text(inner))
        elif number == 5:
            graph.outputs.append(_text(inner))
        elif number == 7:
            graph.add(_node(inner))
    return (texts[10], texts[1], texts[13]), graph


def _node(data: memoryview) -> Node:
    node, texts = Node(), {3: "", 4: "", 7: "", 8: ""}
    for number, _, inner in _fields(data):
        if number in (1, 2):
            (node.inputs if number == 1 else node.outputs).append(_text(inner))
        elif number in texts:
            texts[number] = _text(inner)
        elif number == 5:
            _read_attribute(node, inner)
    node.name, node.operator, node.key = texts[3], texts[4], (texts[7], texts[4], texts[8])
    return node


def _read_attribute(node: Node, data: memoryview) -> None:
    """Keep the type that an attribute names, or type and shape of the constant in it."""
    name, value, tensor = "", 0, None
    for number, wire, inner in _fields(data):
        if number == 1:
            name = _text(inner)
        elif number == 3:
            value = wire
        elif number == 5:
            tensor = _tensor(inner)
        elif number in (6, 11):
            node.nested = True
    if name in ("to", "dtype"):
        node.to = value
    elif name in ("value_int", "value_ints"):
        node.to = INT64
    if tensor is not None:
        _, node.to, shape = tensor
        node.shape = shape or node.shape


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


def _fields(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Of each field its number, and its value if it is a whole number, else its bytes."""
    for number, value, _, inside, end in _places(data):
        yield number, value, data[inside:end]


def _places(data: memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """Of each field its number, its value if it is a whole number; where it begins, its bytes begin, and it ends."""
    place = 0
    while place < len(data):
        start = place
        tag, place = _number(data, place)
        value, size = 0, {0: 0, 1: 8, 5: 4}.get(tag & 7, -1)
        if tag & 7 == 0:
            value, place = _number(data, place)
        elif tag & 7 == 2:
            size, place = _number(data, place)
        if size < 0 or place + size > len(data):
            raise ValueError("a field ends beyond the file")
        yield tag >> 3, value, start, place, place + size
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
