"""An ONNX file by its protobuf alone, without the onnx package: what device machines read of a graph.

https://github.com/onnx/onnx/blob/main/onnx/onnx.proto has the messages and the numbers of their fields.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

UNKNOWN, INT64 = 0, 7  # of TensorProto.DataType
Key = tuple[str, str, str]  # of a function: domain, name, overload
Fields = Mapping[int, tuple[str, Any]]

# What is read of a message, by the number of the field: its name, and its kind, or the fields of the message in it.
NUMBER, NUMBERS, TEXT, ANYTHING = "number", "numbers", "text", "anything"
TENSOR: Fields = {1: ("dims", NUMBERS), 2: ("type", NUMBER), 8: ("name", TEXT)}
TYPE: Fields = {1: ("tensor", {1: ("element", NUMBER)})}
VALUE: Fields = {1: ("name", TEXT), 2: ("type", TYPE)}
ATTRIBUTE: Fields = {
    **{1: ("name", TEXT), 3: ("number", NUMBER), 5: ("tensor", TENSOR)},
    **{6: ("graph", ANYTHING), 11: ("graph", ANYTHING)},
}
NODE: Fields = {
    **{1: ("input", TEXT), 2: ("output", TEXT), 3: ("name", TEXT), 4: ("operator", TEXT)},
    **{5: ("attribute", ATTRIBUTE), 7: ("domain", TEXT), 8: ("overload", TEXT)},
}
GRAPH: Fields = {1: ("node", NODE), 5: ("initializer", TENSOR), 11: ("input", VALUE), 12: ("output", VALUE)}
FUNCTION: Fields = {
    **{1: ("name", TEXT), 4: ("input", TEXT), 5: ("output", TEXT), 7: ("node", NODE)},
    **{10: ("domain", TEXT), 13: ("overload", TEXT)},
}
FUNCTIONS = 25
MODEL: Fields = {7: ("graph", GRAPH), FUNCTIONS: ("function", FUNCTION)}


@dataclass
class Node:
    name: str
    operator: str
    key: Key  # of the function that it may call
    inputs: list[str]
    outputs: list[str]
    to: int = UNKNOWN  # the type that an attribute names, or that of the constant in it
    shape: tuple[int, ...] = ()  # of that constant
    nested: bool = False  # has graphs inside


@dataclass
class StoredGraph:
    """The graph of the model, or of a function in it. `given` are types by name, `shapes` those of the weights."""

    nodes: list[Node] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    given: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)


class Message:
    """A message as it was read: `last` of a field, as protobuf has it where there should be one, or `all` of it."""

    def __init__(self, data: memoryview, fields: Fields) -> None:
        self.values: dict[str, list[Any]] = {}
        for number, value, _, inside, end in _places(data):
            if number in fields:
                name, kind = fields[number]
                self.values.setdefault(name, []).extend(_read(kind, value, data[inside:end]))

    def all(self, name: str) -> list[Any]:
        return self.values.get(name, [])

    def last(self, name: str, default: Any = "") -> Any:
        return self.values[name][-1] if name in self.values else default


def _read(kind: Any, value: int, content: memoryview) -> Iterator[Any]:
    """The values in a field; a packed one has several numbers."""
    if kind == NUMBERS and content:
        place = 0
        while place < len(content):
            number, place = _number(content, place)
            yield number
    elif kind in (NUMBER, NUMBERS):
        yield value
    elif kind == TEXT:
        yield bytes(content).decode("utf-8")
    else:
        yield content if kind == ANYTHING else Message(content, kind)


def parse(model: bytes) -> tuple[StoredGraph, dict[Key, StoredGraph]]:
    """The graph of an ONNX file, and its functions; IndexError or ValueError where it is none."""
    whole = Message(memoryview(model), MODEL)
    stored = whole.last("graph", None)
    if stored is None or not stored.all("node"):
        raise ValueError("it has no nodes")
    graph = _graph(stored, *([value.last("name") for value in stored.all(side)] for side in ("input", "output")))
    for value in stored.all("input"):
        types = (kind.last("tensor", None) for kind in value.all("type"))
        graph.given[value.last("name")] = next((one.last("element", UNKNOWN) for one in types if one), UNKNOWN)
    for tensor in stored.all("initializer"):
        name = tensor.last("name")
        graph.given[name], graph.shapes[name] = tensor.last("type", UNKNOWN), tuple(tensor.all("dims"))
    functions = {}
    for one in whole.all("function"):
        key = (one.last("domain"), one.last("name"), one.last("overload"))
        functions[key] = _graph(one, one.all("input"), one.all("output"))
    return graph, functions


def without_functions(model: bytes) -> bytes:
    """An ONNX file without the functions of its model. What is no ONNX file stays as it is."""
    try:
        fields = list(_places(memoryview(model)))
    except (IndexError, ValueError):
        return model
    return b"".join(model[start:end] for number, _, start, _, end in fields if number != FUNCTIONS)


def _graph(message: Message, inputs: list[str], outputs: list[str]) -> StoredGraph:
    graph = StoredGraph([_node(one) for one in message.all("node")], inputs, outputs)
    for node in graph.nodes:
        if node.operator == "Constant" and node.outputs:
            graph.shapes[node.outputs[0]] = node.shape
    return graph


def _node(message: Message) -> Node:
    operator = message.last("operator")
    key = (message.last("domain"), operator, message.last("overload"))
    node = Node(message.last("name"), operator, key, message.all("input"), message.all("output"))
    for attribute in message.all("attribute"):
        if (name := attribute.last("name")) in ("to", "dtype"):
            node.to = attribute.last("number", 0)
        elif name in ("value_int", "value_ints"):
            node.to = INT64
        if tensor := attribute.last("tensor", None):
            node.to, node.shape = tensor.last("type", UNKNOWN), tuple(tensor.all("dims")) or node.shape
        node.nested = node.nested or bool(attribute.all("graph"))
    return node


def _places(data: memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """Per field: its number, its value if it is a whole number, and the places of its start, its bytes and its end."""
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
