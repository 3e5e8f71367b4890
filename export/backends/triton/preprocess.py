"""Pre-processing as an ONNX graph: the arithmetic of `qcn.data.numpy_preprocess`, step by step, and so the same bits.

All in float64, in which the whole numbers before the first division are exact: ONNX Runtime may sum them in any order.
Needs onnx.
"""

import math
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from qcn.data.spec import STD_FLOOR, Preprocessing
from qcn.export.backends.onnx.graph import GraphValue, OnnxGraph

OPSET = 17
PIXELS = "pixels"


def preprocess_graph(image: tuple[int, int, int], spec: Preprocessing, output: str) -> onnx.ModelProto:
    """A graph from PIXELS, uint8 [B, C, H, W], to `output`, float32 [B, C, h, w]; `image` is [C, H, W]."""
    g = OnnxGraph(OPSET)
    value = g.cast("whole", GraphValue(PIXELS, TensorProto.UINT8), TensorProto.DOUBLE)
    unit = 255
    for axis, size in ((2, image[1]), (3, image[2])):
        if spec.resize and spec.resize != size:
            with g.scope("down" if axis == 2 else "across"):
                value, parts = _resized(g, value, axis, size, spec.resize)
            unit *= parts
    height, width = (spec.resize or side for side in image[1:])
    if spec.crop:
        top, left = (height - spec.crop) // 2, (width - spec.crop) // 2
        starts, ends = g.integers("starts", top, left), g.integers("ends", top + spec.crop, left + spec.crop)
        value = g.node("Slice", "cropped", value, starts, ends, g.integers("axes", 2, 3))
    height, width = spec.output_size(*image[1:])
    value = (
        _by_image(g, value, unit, height * width) if spec.standardise == "image" else _by_dataset(g, value, unit, spec)
    )
    g.nodes.append(helper.make_node("Cast", [value.name], [output], output, to=TensorProto.FLOAT))
    pixels = helper.make_tensor_value_info(PIXELS, TensorProto.UINT8, ["batch", *image])
    normalised = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", image[0], height, width])
    graph = helper.make_graph(g.nodes, "preprocess", [pixels], [normalised], list(g.weights.values()))
    model = helper.make_model(graph, producer_name="qcn", opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = min(model.ir_version, 10)  # what the servers of the last years read
    onnx.checker.check_model(model, full_check=True)
    return model


def _resized(g: OnnxGraph, value: GraphValue, axis: int, size: int, side: int) -> tuple[GraphValue, int]:
    """One axis from `size` to `side` pixels: whole numbers, so many times larger."""
    common = math.gcd(2 * size, 2 * side, size - side)
    parts = 2 * side // common
    place = ((np.arange(side) * 2 + 1) * size - side).clip(0) // common
    lower, weight = place // parts, place % parts
    shape = (-1, 1) if axis == 2 else (-1,)
    shares = {"lower": (lower, parts - weight), "upper": ((lower + 1).clip(max=size - 1), weight)}
    halves = []
    for name, (places, share) in shares.items():
        gathered = g.node("Gather", name, value, g.integers(f"{name}.places", *places.tolist()), axis=axis)
        halves.append(g.node("Mul", f"{name}.part", gathered, _double(g, f"{name}.share", share.reshape(shape))))
    return g.node("Add", "sum", *halves), parts


def _by_dataset(g: OnnxGraph, value: GraphValue, scale_unit: int, spec: Preprocessing) -> GraphValue:
    mean, std = (_double(g, name, np.array(of)[:, None, None]) for name, of in (("mean", spec.mean), ("std", spec.std)))
    unit = g.node("Div", "unit", value, _double(g, "white", np.array(float(scale_unit))))
    return g.node("Div", "standardised", g.node("Sub", "centred", unit, mean), std)


def _by_image(g: OnnxGraph, value: GraphValue, unit: int, count: int) -> GraphValue:
    number, axes = _double(g, "count", np.array(float(count))), g.integers("sides", 2, 3)
    total = g.node("ReduceSum", "total", value, axes, keepdims=1)
    deviation = g.node("Sub", "deviation", g.node("Mul", "times", value, number), total)
    squares = g.node("ReduceSum", "squares", g.node("Mul", "square", deviation, deviation), axes, keepdims=1)
    std = g.node("Sqrt", "std", g.node("Div", "variance", squares, number))
    floor = _double(g, "floor", np.array(count * unit * STD_FLOOR))
    return g.node("Div", "standardised", deviation, g.node("Max", "clipped", std, floor))


def _double(g: OnnxGraph, name: str, array: NDArray[Any]) -> GraphValue:
    return g.weight(name, array.astype(np.float64))
