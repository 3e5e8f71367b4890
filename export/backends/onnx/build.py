"""A program as an ONNX graph. Capsule layers are written out, or are one node each: see the modules beside this one."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from qcn.export.backends.onnx import fused, integers
from qcn.export.backends.onnx.graph import TYPES, GraphValue, OnnxGraph
from qcn.export.backends.onnx.unrolled import UnrolledLayer
from qcn.export.program.program import Affine, Convolution, Ending, Linear, Operation, Pool, Program, Route, Sum


@dataclass(frozen=True)
class Style:
    """How a graph is written for the runtime that reads it.

    layer     writes a capsule layer in standard operators; None: one custom node per layer
    int8      writes a product of integers: in ONNX's integer operators, or as a product of floats between Q/DQ pairs
    folded    whether rotations are constants, and not computed from rotors in the graph
    """

    layer: type[UnrolledLayer] | None
    int8: Callable[[OnnxGraph, Program, Any, list[GraphValue]], GraphValue] = integers.pairs
    folded: bool = False


UNROLLED = Style(UnrolledLayer, integers.exact)  # arranged for ONNX Runtime
FUSED = Style(None, folded=True)


def build(
    program: Program,
    *,
    style: Style = UNROLLED,
    batch: int | None = None,
    opset: int = 17,
    every_layer: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> onnx.ModelProto:
    """The graph, checked. `batch` None leaves the batch open. Every operation computes in its own precision."""
    writer = _Writer(program, opset, style)
    for operation in program.operations:
        writer.write(operation)
    outputs = program.outputs_with(every_layer)
    g = writer.g
    for output in outputs:
        value = g.reshape(f"output/{output.name}.shaped", writer.values[output.value], 0, *output.shape)
        single = g.cast(f"output/{output.name}.float", value, TensorProto.FLOAT)
        g.nodes.append(helper.make_node("Identity", [single.name], [output.name], f"output/{output.name}"))
    image = program.input
    graph = helper.make_graph(
        g.nodes,
        "qcn",
        [helper.make_tensor_value_info(image.name, TensorProto.FLOAT, [batch or "batch", *image.shape])],
        [helper.make_tensor_value_info(output.name, TensorProto.FLOAT, None) for output in outputs],
        list(g.weights.values()),
    )
    opsets = [helper.make_opsetid("", opset)]
    if g.functions:
        opsets.append(helper.make_opsetid(fused.DOMAIN, fused.VERSION))
    model = helper.make_model(graph, opset_imports=opsets, producer_name="qcn", functions=g.functions)
    model.ir_version = max(helper.find_min_ir_version_for(opsets[:1]), 10 if g.functions else 8)  # 10: overloads
    helper.set_model_props(model, dict(metadata or {}))
    model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    onnx.checker.check_model(model, full_check=True)
    return model


class _Writer:
    """Adds operations to a graph, each by the method of its name; `values` are those that are there, by theirs."""

    def __init__(self, program: Program, opset: int, style: Style) -> None:
        self.program, self.style, self.shapes = program, style, program.shapes
        self.g = OnnxGraph(opset)
        self.values = {program.input.name: GraphValue(program.input.name, TensorProto.FLOAT)}

    def write(self, operation: Operation) -> None:
        """Add an operation. Its nodes are named below its own name, with a slash for every dot."""
        type_ = TYPES.get(operation.precision, TensorProto.FLOAT)  # int8: floats go in and come out
        inputs = [self.values[name] for name in operation.reads]
        with self.g.scope(operation.name.replace(".", "/")):
            outputs = getattr(self, f"_{operation.op}")(operation, inputs, type_)
        self.values |= {value.name: tensor for value, tensor in zip(operation.outputs, outputs, strict=True)}

    def _affine(self, op: Affine, inputs: list[GraphValue], type_: int) -> tuple[GraphValue, ...]:
        g, x = self.g, self.g.cast("cast", inputs[0], type_)
        scale, shift = (
            g.weight(role, self.program.arrays[name][:, None, None], type_)
            for role, name in (("scale", op.scale), ("shift", op.shift))
        )
        return (self._end(g.node("Add", "shifted", g.node("Mul", "scaled", x, scale), shift), op.ending),)

    def _convolution(self, op: Convolution, inputs: list[GraphValue], type_: int) -> tuple[GraphValue, ...]:
        if op.precision == "int8":
            return (self._end(self.style.int8(self.g, self.program, op, inputs), op.ending),)
        g = self.g
        parts: list[GraphValue] = []
        bias = g.weight("bias", self.program.arrays[op.bias], type_)
        for i, (x, name) in enumerate(zip(inputs, op.weights, strict=True)):
            role = "skip" if parts else "conv"
            weight = g.weight(f"{role}.weight", self.program.arrays[name], type_)
            operands = [g.cast(f"{role}.cast", x, type_), weight, *([] if parts else [bias])]  # the bias once
            parts.append(g.node("Conv", role, *operands, **integers.windows(op, i)))
        out = parts[0] if len(parts) == 1 else g.node("Add", "sum", *parts)
        return (self._end(out, op.ending),)

    def _sum(self, op: Sum, inputs: list[GraphValue], type_: int) -> tuple[GraphValue, ...]:
        return (self.g.node("Add", "sum", *(self.g.cast("cast", x, type_) for x in inputs)),)

    def _pool(self, op: Pool, inputs: list[GraphValue], type_: int) -> tuple[GraphValue, ...]:
        kind = {"max": "MaxPool", "average": "AveragePool"}[op.kind]
        x = self.g.cast("cast", inputs[0], type_)
        return (self.g.node(kind, "pool", x, kernel_shape=[op.kernel] * 2, strides=[op.stride] * 2),)

    def _linear(self, op: Linear, inputs: list[GraphValue], type_: int) -> tuple[GraphValue, ...]:
        g, count = self.g, math.prod(self.shapes[op.input])
        x = g.reshape("flat", g.cast("cast", inputs[0], type_), 0, count)
        if op.precision == "int8":
            return (self._end(self.style.int8(g, self.program, op, [x]), op.ending),)
        weight, bias = (
            g.weight(role, self.program.arrays[name], type_)
            for role, name in (("weight", op.weight), ("bias", op.bias))
        )
        return (self._end(g.node("Gemm", "gemm", x, weight, bias, transB=1), op.ending),)

    def _route(self, op: Route, inputs: list[GraphValue], type_: int) -> tuple[GraphValue, ...]:
        children, height, width = self.shapes[op.activation]
        pose, activation = inputs
        if len(self.shapes[op.pose]) == 3:  # as a convolution gives them
            pose = self.g.reshape("capsules", pose, 0, children, 3, height, width)
        arrays = self.program.arrays
        if self.style.folded:
            arrays = {**arrays, op.rotation: self.program.rotation(op)}
            op = replace(op, scale=None)
        layer = (self.g, op, (children, height, width), arrays)
        if self.style.layer is None:
            return fused.route(*layer, pose, activation)
        return self.style.layer(*layer).write(pose, activation)

    def _end(self, x: GraphValue, ending: Ending) -> GraphValue:
        """The ending of an operation. A sigmoid needs the digits of float32."""
        if ending == "none":
            return x
        if ending == "relu":
            return self.g.node("Relu", "relu", x)
        if ending == "relu6":
            limits = (self.g.weight(name, np.array(limit), x.type) for name, limit in (("zero", 0.0), ("six", 6.0)))
            return self.g.node("Clip", "relu6", x, *limits)
        return self.g.sigmoid("sigmoid", self.g.cast("float", x, TensorProto.FLOAT))
