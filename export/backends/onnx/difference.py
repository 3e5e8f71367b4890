"""How two ONNX graphs differ, of which one is a stranger's."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from qcn.export.backends.format import alike
from qcn.terminal.text import readable

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto


def graph_difference(content: bytes, built: bytes) -> str:
    """The first difference of two ONNX graphs, of which the second is ours; versions of writers are no difference."""
    if content == built:
        return ""
    try:
        stored = onnx.ModelProto.FromString(content)
    except DecodeError as error:
        return f"it is not an ONNX file: {error}"
    ours = onnx.ModelProto.FromString(built)
    for model in (stored, ours):
        model.ClearField("producer_version")
        notes = [one for one in model.metadata_props if one.key != "qcn"]
        del model.metadata_props[:]
        model.metadata_props.extend(notes)
    return next(_graph_differences(stored, ours), "")


def _graph_differences(model: "ModelProto", ours: "ModelProto") -> Iterator[str]:
    left, right = model.graph, ours.graph
    for kind in ("input", "output", "node"):
        for place, (a, b) in enumerate(zip_longest(getattr(left, kind), getattr(right, kind))):
            if a != b:
                yield f"its {kind} {place + 1} is {_description(a)}, where its program makes {_description(b)}"
    for a, b in zip_longest(left.initializer, right.initializer):
        if a is None or b is None or a.name != b.name:
            yield f"its weight {_description(a)} stands where its program has {_description(b)}"
        elif a != b and not _same_numbers(a, b):
            yield f"the numbers of its weight '{readable(a.name)}' are others than its program's"
    for graph in (left, right):
        del graph.initializer[:]
    if model != ours:
        yield f"{_first_field(model, ours)} is not as its program makes it"


def _same_numbers(tensor: "TensorProto", ours: "TensorProto") -> bool:
    """Whether a stranger's weight equals ours up to the last digits; one stored in another file does not."""
    if tensor.data_type != ours.data_type or tensor.HasField("data_location") or tensor.external_data:
        return False
    try:
        return alike(numpy_helper.to_array(tensor), numpy_helper.to_array(ours))
    except (ValueError, TypeError):  # fewer bytes than its shape says
        return False


def _first_field(model: "ModelProto", ours: "ModelProto") -> str:
    """The name of a part that differs, beside nodes and weights."""
    for a, b in ((model, ours), (model.graph, ours.graph)):
        for field in b.DESCRIPTOR.fields:
            if field.name != "graph" and getattr(a, field.name) != getattr(b, field.name):
                return field.name
    return "a part that ONNX does not know"


def _description(part: Any) -> str:
    """A node, a weight or an input of a graph, in words."""
    if part is None:
        return "nothing"
    name = f"'{readable(part.name)}'"
    return f"{readable(part.op_type)} {name}" if hasattr(part, "op_type") else name
