"""The integers of a program in numpy: what an operation in int8 computes, to the last bit (program.py).

This is the oracle for libqcn's kernels and for ONNX Runtime's integers. No torch here.
"""

import numpy as np

from qcn.export.program.program import Array, Convolution, Linear, Product, Program


def quantise(x: Array, scale: float) -> Array:
    """int8 from float32: the nearest multiple of the scale, halves to even."""
    return np.clip(np.rint(x / np.float32(scale)), -128, 127).astype(np.int8)


def accumulate(program: Program, op: Product, inputs: list[Array]) -> list[Array]:
    """The int32 sums [N, out, …] of each input, float32 [N, …]; the bias is in the first."""
    bias = program.arrays[op.bias]
    sums = []
    for place, (x, scale) in enumerate(zip(inputs, op.input_scales, strict=True)):
        q, weight = quantise(x, scale), program.arrays[op.factors[place]]
        if isinstance(op, Convolution):
            columns = _columns(q, weight.shape[2], op.strides[place], op.paddings[place])
        else:
            columns = q.reshape(len(q), -1, 1)
        # Sums below 2³¹ are exact in float64, where the product is fast.
        acc = np.matmul(weight.reshape(len(weight), -1).astype(np.float64), columns.astype(np.float64))
        sums.append((acc + (0 if place else bias[:, None])).astype(np.int32).reshape(len(q), *op.shape))
    return sums


def before_ending(program: Program, op: Convolution | Linear, inputs: list[Array]) -> Array:
    """What the operation makes of float32 inputs [N, …] before its ending: float32 [N, *shape]."""
    whole: Array | None = None
    for acc, scale, name in zip(accumulate(program, op, inputs), op.input_scales, op.weight_scales, strict=True):
        factor = np.float32(scale) * program.arrays[name]
        part = acc.astype(np.float32) * factor.reshape(-1, *[1] * (len(op.shape) - 1))
        whole = part if whole is None else whole + part
    assert whole is not None  # an operation has an input
    return whole


def _columns(q: Array, kernel: int, stride: int, padding: int) -> Array:
    """The windows of maps [N, C, H, W] as [N, C·k·k, places]."""
    padded = np.pad(q, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), (2, 3))[:, :, ::stride, ::stride]
    return windows.transpose(0, 1, 4, 5, 2, 3).reshape(len(q), q.shape[1] * kernel * kernel, -1)
