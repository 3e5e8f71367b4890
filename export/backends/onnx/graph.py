"""Writes an ONNX graph node by node, each named for its place in the network. Needs onnx, no torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qcn.errors import BuildError

TYPES = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}


@dataclass(frozen=True)
class GraphValue:
    """A tensor in the graph: its name, and its element type as ONNX counts them."""

    name: str
    type: int


class OnnxGraph:
    """Collects nodes and weights. Names are paths: `with graph.scope("capsules1")` puts what follows below it."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}
        self.functions: list[onnx.FunctionProto] = []
        self._path: list[str] = []
        self._names: set[str] = set()
        self._casts: dict[tuple[str, int], GraphValue] = {}

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """What is added inside the block is named below `name`."""
        self._path.append(name)
        try:
            yield
        finally:
            self._path.pop()

    def name(self, name: str) -> str:
        """The full name of something here; a second one of the same name gets a number."""
        full = "/".join((*self._path, name))
        number, unique = 2, full
        while unique in self._names:
            unique, number = f"{full}_{number}", number + 1
        self._names.add(unique)
        return unique

    def weight(self, name: str, array: NDArray[Any], type: int | None = None) -> GraphValue:
        """A constant in the graph's file, rounded to `type` where one is given."""
        full = self.name(name)
        if type is not None:
            with np.errstate(over="ignore"):
                rounded = array.astype(helper.tensor_dtype_to_np_dtype(type))
            if not np.isfinite(rounded.astype(np.float32)).all():
                largest = f"{abs(array).max():g}"
                raise BuildError(f"the weight '{full}' does not fit {rounded.dtype}: its largest is {largest}")
            array = rounded
        # Not ascontiguousarray, which makes a scalar one-dimensional: to TensorRT such a step of quantisation is one of
        # many along an axis, and the convolution behind it stays float32.
        self.weights[full] = numpy_helper.from_array(np.asarray(array, order="C"), full)
        return GraphValue(full, self.weights[full].data_type)

    def integers(self, name: str, *values: int) -> GraphValue:
        return self.weight(name, np.array(values, np.int64))

    def number(self, name: str, value: float) -> GraphValue:
        return self.weight(name, np.array(value, np.float32))

    def node(self, op: str, name: str, *inputs: GraphValue, type: int | None = None, **attributes: Any) -> GraphValue:
        """Add a node; its output has the node's name, and the first input's type unless `type` says otherwise."""
        full = self.name(name)
        self.nodes.append(helper.make_node(op, [value.name for value in inputs], [full], full, **attributes))
        return GraphValue(full, inputs[0].type if type is None else type)

    def cast(self, name: str, value: GraphValue, type: int) -> GraphValue:
        """The value in another type, or as it is where it has that type already. It is cast once for all who ask."""
        if value.type == type:
            return value
        if (value.name, type) not in self._casts:
            self._casts[value.name, type] = self.node("Cast", name, value, type=type, to=type)
        return self._casts[value.name, type]

    def reshape(self, name: str, value: GraphValue, *shape: int) -> GraphValue:
        """0 keeps a side as it is, -1 is what the others leave."""
        return self.node("Reshape", name, value, self.integers(f"{name}.shape", *shape))

    def sigmoid(self, name: str, value: GraphValue) -> GraphValue:
        """1 / (1 + exp(−x)), to the last digits of the smallest too.

        Means and variances are shares of activations, however small; ONNX Runtime's own Sigmoid has but the digits of
        numbers near ½ on a CPU: of the sigmoid of −9 it has two right, of that of −13 none.
        """
        power = self.node("Exp", f"{name}.power", self.node("Neg", f"{name}.below", value))
        one = self.number(f"{name}.one", 1.0)
        return self.node("Div", name, one, self.node("Add", f"{name}.one_more", power, one))

    def reduce(self, op: str, name: str, value: GraphValue, axis: int) -> GraphValue:
        """A reduction that leaves a side of 1. From opset 18 on (a sum from 13 on) the axis is an input."""
        if self.opset >= 18 or op == "ReduceSum":
            return self.node(op, name, value, self.integers(f"{name}.axis", axis), keepdims=1)
        return self.node(op, name, value, axes=[axis], keepdims=1)
