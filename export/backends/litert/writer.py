"""A program as a LiteRT model. Maps are [B, H, W, C] in it; images and answers are as those of model.onnx."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from qcn.errors import UsageError
from qcn.export.backends.litert import integers
from qcn.export.backends.litert.graph import LiteGraph, LiteTensor, fused
from qcn.export.backends.litert.unrolled import UnrolledLayer
from qcn.export.program import operations as ops
from qcn.export.program.program import Array, Program


def write(
    program: Program, *, batch: int | None = None, every_layer: bool = False, metadata: Mapping[str, str] | None = None
) -> tuple[bytes, dict[str, Any]]:
    """The file's bytes, and facts of it. `batch` None leaves the batch open."""
    writer = _Writer(program, batch)
    for operation in program.operations:
        writer.write(operation)
    outputs = {
        output.name: writer.answer(output.name, output.value, output.shape)
        for output in program.outputs_with(every_layer)
    }
    g = writer.g
    content = g.file({program.input.name: writer.image}, outputs, metadata or {})
    return content, {"operators": len(g.operators), "outputs": list(outputs)}


class _Writer:
    """Adds operations to a graph, each by the method of its name; `values` are those that are there, by theirs.

    A map [C, H, W] is [B, H, W, C], poses [C, 3, H, W] are [B, H, W, 3C], and numbers [K] are [B, K].
    """

    def __init__(self, program: Program, batch: int | None) -> None:
        self.program, self.shapes, self.g = program, program.shapes, LiteGraph(batch)
        self.image = self.g.tensor(program.input.name, (self.g.images, *program.input.shape))
        self.values = {program.input.name: self.g.transpose("image.map", self.image, 0, 2, 3, 1)}
        self._rounded: dict[tuple[int, float], LiteTensor] = {}

    def write(self, operation: ops.Operation) -> None:
        """Add an operation."""
        if isinstance(operation, ops.Product) and operation.precision not in ("fp32", "int8"):
            raise UsageError(f"LiteRT has no {operation.op} in {operation.precision}, as '{operation.name}' is")
        inputs = [self.values[name] for name in operation.reads]
        with self.g.scope(operation.name.replace(".", "/")):
            outputs = getattr(self, f"_{operation.op}")(operation, inputs)
        self.values |= {value.name: tensor for value, tensor in zip(operation.outputs, outputs, strict=True)}

    def answer(self, name: str, value: str, shape: tuple[int, ...]) -> LiteTensor:
        """A value as it is given out: in the program's order, by an operator of its own."""
        g = self.g
        with g.scope(f"output/{name}"):
            return g.copy(name, self._in_order(value), shape)

    def _in_order(self, value: str) -> LiteTensor:
        """[B, numbers], in the order of the program."""
        g, x, count = self.g, self.values[value], math.prod(self.shapes[value])
        places = math.prod(x.shape[1:3]) if len(x.shape) == 4 else 1
        if places > 1:
            x = g.transpose("in_order", g.reshape("places", x, -1, places, count // places), 0, 2, 1)
        return g.reshape("flat", x, -1, count)

    def _affine(self, op: ops.Affine, inputs: list[LiteTensor]) -> tuple[LiteTensor, ...]:
        g = self.g
        scale, shift = (
            g.constant(role, self._array(name)) for role, name in (("scale", op.scale), ("shift", op.shift))
        )
        scaled = g.binary("MUL", "scaled", inputs[0], scale)
        out = g.binary("ADD", "shifted", scaled, shift, fusedActivationFunction=fused(op.ending))
        return (g.end(out, op.ending),)

    def _convolution(self, op: ops.Convolution, inputs: list[LiteTensor]) -> tuple[LiteTensor, ...]:
        g = self.g
        order = (1, 2, 3, 0) if op.depthwise else (0, 2, 3, 1)
        parts: list[LiteTensor] = []
        for i, (x, stride, padding) in enumerate(zip(inputs, op.strides, op.paddings, strict=True)):
            name, ending = "skip" if parts else "conv", op.ending if len(inputs) == 1 else "none"
            kernel = np.ascontiguousarray(self._array(op.weights[i]).transpose(order))
            bias = self._array(op.bias) if not parts else np.zeros_like(self._array(op.bias))  # once
            how = (bias, stride, padding, ending, op.depthwise)
            if op.precision == "int8":
                q, scales = self._integers(op, i, name, x)
                part = integers.convolution(g, name, q, kernel, scales, *how)
            else:
                part = g.convolution(name, x, kernel, *how)
            parts.append(part)
        out = parts[0]
        if len(parts) > 1:
            out = g.binary("ADD", "sum", *parts, fusedActivationFunction=fused(op.ending))
        return (g.end(out, op.ending),)

    def _sum(self, op: ops.Sum, inputs: list[LiteTensor]) -> tuple[LiteTensor, ...]:
        return (self.g.binary("ADD", "sum", *inputs),)

    def _pool(self, op: ops.Pool, inputs: list[LiteTensor]) -> tuple[LiteTensor, ...]:
        kind = {"max": "MAX_POOL_2D", "average": "AVERAGE_POOL_2D"}[op.kind]
        out, window = op.shape[0], (op.kernel, op.kernel)
        reach = {"filterHeight": op.kernel, "filterWidth": op.kernel}
        return (self.g.slide(kind, reach, "pool", *inputs, out=out, window=window, stride=op.stride),)

    def _linear(self, op: ops.Linear, inputs: list[LiteTensor]) -> tuple[LiteTensor, ...]:
        g, x = self.g, self._in_order(op.input)
        weight, bias = self._array(op.weight), self._array(op.bias)
        if op.precision == "int8":
            q, scales = self._integers(op, 0, "linear", x)
            return (g.end(integers.linear(g, "linear", q, weight, scales, bias, op.ending), op.ending),)
        operands = (x, g.constant("weight", weight), g.constant("bias", bias))
        last = fused(op.ending)
        out = g.node("FULLY_CONNECTED", "linear", (g.images, *op.shape), *operands, fusedActivationFunction=last)
        return (g.end(out, op.ending),)

    def _integers(self, op: ops.Product, i: int, name: str, x: LiteTensor) -> tuple[LiteTensor, Array]:
        """An input rounded to integers, once for all who take it so, and the steps of its sums."""
        scale = op.input_scales[i]
        if (x.index, scale) not in self._rounded:
            self._rounded[x.index, scale] = integers.rounded(self.g, name, x, scale)
        return self._rounded[x.index, scale], np.float32(scale) * self._array(op.weight_scales[i])

    def _route(self, op: ops.Route, inputs: list[LiteTensor]) -> tuple[LiteTensor, ...]:
        program = self.program
        layer = UnrolledLayer(self.g, op, self.shapes[op.activation], program.arrays, program.rotation(op))
        return layer.write(*inputs)

    def _array(self, name: str) -> Array:
        return self.program.arrays[name]
