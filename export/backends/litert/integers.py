"""Products of integers in LiteRT. A convolution of int8 weights with a float32 input rounds the input to int8, by the
range of each image, multiplies integers, and gives float32: to LiteRT, dynamic range quantisation.

The range must be the calibrated one. So the input comes as the program's integers, and both ends of their range stand
beside them in every image: as two channels more, `MARKS`, whose weights are 0. LiteRT's step is then 1 and its zero 0:
its rounding changes nothing, and the sums are those of the program. The scales are those of the weights.

    x → DIV scale → ROUND, halves to even → MAXIMUM, MINIMUM → PAD → ADD marks → CONV_2D
"""

import functools
from typing import Any

import numpy as np

from qcn.export.backends.litert.graph import CONVOLUTIONS, LiteGraph, LiteTensor, fused
from qcn.export.backends.litert.precision import MARKS
from qcn.export.program.program import Array, Ending


def rounded(g: LiteGraph, name: str, x: LiteTensor, scale: float) -> LiteTensor:
    """clamp(round(x / scale), -128, 127), in float32."""
    lowest, highest = (g.number(f"{name}.end", end) for end in MARKS)
    steps = g.binary("DIV", f"{name}.steps", x, g.number(f"{name}.scale", scale))
    least = g.binary("MAXIMUM", f"{name}.least", g.unary("ROUND", f"{name}.round", steps), lowest)
    return g.binary("MINIMUM", f"{name}.rounded", least, highest)


def convolution(
    g: LiteGraph,
    name: str,
    q: LiteTensor,
    kernel: Array,
    scales: Array,
    bias: Array,
    stride: int,
    padding: int,
    ending: Ending,
    depthwise: bool = False,
) -> LiteTensor:
    """Convolve rounded maps [B, H, W, C] by int8 kernels [out, k, k, C]; `scales` [out] are the steps of sums and bias.

    A depthwise one, with kernels [1, k, k, C], makes maps of the marks too, which are left out.
    """
    maps = _marked(g, name, q, ((0, 0), (padding, padding), (padding, padding)))
    if depthwise:
        scales, bias = np.append(scales, np.ones(len(MARKS), np.float32)), _unmarked(bias)
    weight = g.constant(f"{name}.weight", _unmarked(kernel), scales, axis=3 if depthwise else 0)
    inputs = (maps, weight, _scaled(g, name, bias, scales))
    how: dict[str, Any] = {"window": kernel.shape[1:3], "stride": stride, "ending": ending}
    out = g.slide(*CONVOLUTIONS[depthwise], name, *inputs, out=len(bias), **how)
    return g.channels(f"{name}.maps", out, 0, kernel.shape[3]) if depthwise else out


def linear(
    g: LiteGraph, name: str, q: LiteTensor, weight: Array, scales: Array, bias: Array, ending: Ending
) -> LiteTensor:
    """Multiply rounded numbers [B, K] by an int8 weight [units, K].

    Not every runtime takes a scale per unit here: that of the weight is 1, and each unit is scaled thereafter.
    """
    one, zero = np.ones(1, np.float32), g.constant(f"{name}.zero", np.zeros(len(weight), np.float32))
    inputs = (_marked(g, name, q, ((0, 0),)), g.constant(f"{name}.weight", _unmarked(weight), one), zero)
    sums = g.node("FULLY_CONNECTED", f"{name}.sums", (g.images, len(weight)), *inputs, asymmetricQuantizeInputs=True)
    scaled = g.binary("MUL", f"{name}.scaled", sums, g.constant(f"{name}.scales", scales))
    return g.binary("ADD", name, scaled, _scaled(g, name, bias, scales), fusedActivationFunction=fused(ending))


def _scaled(g: LiteGraph, name: str, bias: Array, scales: Array) -> LiteTensor:
    return g.constant(f"{name}.bias", bias.astype(np.float32) * scales)


def _marked(g: LiteGraph, name: str, x: LiteTensor, rims: tuple[tuple[int, int], ...]) -> LiteTensor:
    """Pad with zeros, and append the marks to the last side."""
    padded = g.pad(f"{name}.padded", x, (*rims, (0, len(MARKS))))
    marks = np.array([0.0] * x.shape[-1] + [*MARKS], np.float32)
    return g.binary("ADD", f"{name}.marked", padded, g.constant(f"{name}.marks", marks))


def _unmarked(weight: Array) -> Array:
    """Weights that take no notice of the marks."""
    return np.pad(weight, [(0, 0)] * (weight.ndim - 1) + [(0, len(MARKS))])


@functools.cache
def multiplies_integers() -> bool:
    """Whether LiteRT rounds the inputs of int8 weights here: in integers 0.4 becomes 0, in floats it stays 0.4."""
    from ai_edge_litert.interpreter import Interpreter

    g, one = LiteGraph(batch=1), np.ones(1, np.float32)
    image = g.tensor("image", (1, 1, 1, 1))
    kernel = np.ones((1, 1, 1, 1), np.int8)
    by_map, by_channel = (
        convolution(g, name, image, kernel, one, 0 * one, 1, 0, "none", depthwise)
        for name, depthwise in (("map", False), ("channel", True))
    )
    flat = g.reshape("flat", image, -1, 1)
    by_row = linear(g, "row", flat, np.ones((1, 1), np.int8), one, 0 * one, "none")
    outputs = {"map": by_map, "channel": by_channel, "row": by_row}
    interpreter = Interpreter(model_content=g.file({"image": image}, outputs, {}))
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], np.full(image.shape, 0.4, np.float32))
    interpreter.invoke()
    return not any(interpreter.get_tensor(one["index"]).any() for one in interpreter.get_output_details())
