"""Convolutions and linears in int8 as ONNX nodes, in two arrangements of the same arithmetic (export/program).

ONNX Runtime makes an integer convolution of Q/DQ pairs only where a Q follows it, which would round every sum to 8 bits
before the skip is added. So its graph says what is meant, and the sums are exact:

    exact    QuantizeLinear → ConvInteger (MatMulInteger) → Add bias → Cast → Mul, and the parts added in float32

TensorRT has no such operator, and takes integers from pairs in front of both factors: symmetric, per channel for the
weights, which come as float32 (8.6 knows no others), and with the bias in float32.

    pairs    QuantizeLinear → DequantizeLinear of input and weight → Conv (Gemm)
"""

from typing import Any

import numpy as np
from onnx import TensorProto

from qcn.export.backends.onnx.graph import GraphValue, OnnxGraph
from qcn.export.program.program import Array, Convolution, Product, Program


def exact(g: OnnxGraph, program: Program, op: Product, inputs: list[GraphValue]) -> GraphValue:
    """The operation before its ending, float32, by integer operators."""
    parts: list[GraphValue] = []
    for i, x in enumerate(inputs):
        role = "skip" if parts else "conv"
        weight, scale = program.arrays[op.factors[i]], np.array(op.input_scales[i], np.float32)
        q, _, _ = _quantise(g, role, x, scale)
        if isinstance(op, Convolution):
            factor = g.weight(f"{role}.weight", weight)
            acc = g.node("ConvInteger", role, q, factor, type=TensorProto.INT32, **windows(op, i))
        else:
            factor = g.weight(f"{role}.weight", weight.T)
            acc = g.node("MatMulInteger", role, q, factor, type=TensorProto.INT32)
        if not parts:
            acc = g.node("Add", f"{role}.sum", acc, g.weight("bias", _broad(op, program.arrays[op.bias])))
        factors = g.weight(f"{role}.scale", _broad(op, scale * program.arrays[op.weight_scales[i]]))
        parts.append(g.node("Mul", f"{role}.scaled", g.cast(f"{role}.float", acc, TensorProto.FLOAT), factors))
    return parts[0] if len(parts) == 1 else g.node("Add", "sum", *parts)


def pairs(g: OnnxGraph, program: Program, op: Product, inputs: list[GraphValue]) -> GraphValue:
    """The operation before its ending, float32, with Q/DQ pairs."""
    parts: list[GraphValue] = []
    for i, x in enumerate(inputs):
        role = "skip" if parts else "conv"
        weight, scales = program.arrays[op.factors[i]], program.arrays[op.weight_scales[i]]
        scale = np.array(op.input_scales[i], np.float32)
        wide = weight.astype(np.float32) * scales.reshape(-1, *[1] * (weight.ndim - 1))
        operands = [_paired(g, role, x, scale), _paired(g, f"{role}.weight", g.weight(f"{role}.weight", wide), scales)]
        if not parts:
            operands.append(g.weight("bias", program.arrays[op.bias].astype(np.float32) * (scale * scales)))
        if isinstance(op, Convolution):
            # TensorRT 8.6 reads the size of a kernel that is not an initializer from this attribute, and nowhere else.
            parts.append(g.node("Conv", role, *operands, kernel_shape=list(weight.shape[2:]), **windows(op, i)))
        else:
            parts.append(g.node("Gemm", role, *operands, transB=1))
    return parts[0] if len(parts) == 1 else g.node("Add", "sum", *parts)


def _quantise(g: OnnxGraph, name: str, x: GraphValue, scale: Array) -> tuple[GraphValue, GraphValue, GraphValue]:
    """int8 by one scale, or by one per output channel of a weight; and the scale and zero point as constants."""
    step, zero = g.weight(f"{name}.step", scale), g.weight(f"{name}.zero", np.zeros(scale.shape, np.int8))
    q = g.node("QuantizeLinear", f"{name}.quantised", x, step, zero, type=TensorProto.INT8, **_axis(scale))
    return q, step, zero


def _paired(g: OnnxGraph, name: str, x: GraphValue, scale: Array) -> GraphValue:
    """Quantise a value to int8 and back to float32."""
    integers = _quantise(g, name, x, scale)
    return g.node("DequantizeLinear", f"{name}.pair", *integers, type=TensorProto.FLOAT, **_axis(scale))


def _axis(scale: Array) -> dict[str, int]:
    return {"axis": 0} if scale.ndim else {}


def windows(op: Convolution, i: int) -> dict[str, Any]:
    """The attributes of a convolution over its input `i`."""
    groups = {"group": op.shape[0]} if op.depthwise else {}  # ONNX's word for it
    return {"strides": [op.strides[i]] * 2, "pads": [op.paddings[i]] * 4, **groups}


def _broad(op: Product, array: Array) -> Array:
    """An array [out] as it is added to, or multiplied with, the output."""
    return array.reshape(-1, *[1] * (len(op.shape) - 1))
