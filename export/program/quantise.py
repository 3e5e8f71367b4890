"""Calibrated programs: operations of a float32 program in int8 or fp16, with arrays made for it. No torch here.

    quantised(program, "pose.0.conv1", [0.031])     a convolution or linear in int8, given the scale of each input
    halved(program, "capsules1")                    a capsule layer in fp16, with its rotations as rotors in float16

Which operations, and with which scales, `qcn calibrate` decides.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qcn.errors import UsageError, unknown_name
from qcn.export.program.program import Array, Operation, Product, Program, Route

MOST_BIAS = 1 << 30  # of a bias in int32; half of the range is left for the sums
TURNED = 2.0**-8  # how far a matrix may be from its rotor's; rounding a rotor to float16 moves it by less than 2⁻⁹


def find(program: Program, name: str) -> Operation:
    """An operation by name."""
    names = [operation.name for operation in program.operations]
    if name not in names:
        raise unknown_name("operation", name, names)
    return program.operations[names.index(name)]


def quantised(program: Program, name: str, input_scales: Sequence[float]) -> Program:
    """The program with this convolution or linear in int8; `input_scales`, one per input, are rounded to float32."""
    op = find(program, name)
    if not isinstance(op, Product) or op.precision == "int8":
        raise UsageError(f"the operation '{name}' is {op.op} in {op.precision}: it cannot be quantised")
    if len(input_scales) != len(op.factors):
        raise UsageError(f"'{name}' has {len(op.factors)} inputs, and {len(input_scales)} scales were given")
    inputs = [float(np.float32(scale)) for scale in input_scales]
    weights, bias = [program.arrays[factor].astype(np.float64) for factor in op.factors], program.arrays[op.bias]
    scales = [channel_scales(weight) for weight in weights]
    scales[0] = np.maximum(scales[0], (np.abs(bias) / (np.float64(inputs[0]) * MOST_BIAS)).astype(np.float32))
    arrays: dict[str, Array] = {}
    for factor, weight, scale in zip(op.factors, weights, scales, strict=True):
        wide = scale.astype(np.float64).reshape(-1, *[1] * (weight.ndim - 1))
        arrays[factor] = np.clip(np.rint(weight / wide), -127, 127).astype(np.int8)
        arrays[f"{factor}.scale"] = scale.astype(np.float32)
    arrays[op.bias] = np.rint(bias / (np.float64(inputs[0]) * scales[0])).astype(np.int32)
    named = tuple(f"{factor}.scale" for factor in op.factors)
    return _with(program, replace(op, precision="int8", weight_scales=named, input_scales=tuple(inputs)), arrays)


def channel_scales(weight: Array) -> Array:
    """float32 [out] for a weight [out, …]: the largest number of a channel becomes 127; 1 for a channel of zeros."""
    largest = np.abs(weight).reshape(len(weight), -1).max(1) / 127
    return np.where(largest > 0, np.maximum(largest, np.finfo(np.float32).smallest_normal), 1).astype(np.float32)


def halved(program: Program, name: str) -> Program:
    """The program with this capsule layer in fp16, its rotations as rotors in float16."""
    op = find(program, name)
    if not isinstance(op, Route) or op.scale is not None:
        raise UsageError(f"the operation '{name}' is {op.op} in {op.precision}: it cannot be halved")
    matrices = program.arrays[op.rotation].astype(np.float64)
    scale = float(np.float32(np.cbrt(np.median(np.linalg.det(matrices)))))
    if not scale > 0:
        raise UsageError(f"the arrays of '{name}' are not rotations: they cannot be written as rotors")
    rotors = rotors_of(matrices / scale).astype(np.float16)
    result = _with(program, replace(op, precision="fp16", scale=scale), {op.rotation: rotors})
    if not np.abs(result.rotation(replace(op, scale=scale)) - matrices).max() < TURNED * scale:
        raise UsageError(f"the arrays of '{name}' are not rotations of one scale: they cannot be written as rotors")
    return result


def rotors_of(matrix: Array) -> Array:
    """The rotors [..., 4] (w, x, y, z) of rotation matrices [..., 3, 3], each with its largest component positive.

    Of the four products of a component with all others, the one of the largest component is taken (Shepperd 1978).
    """
    m = np.moveaxis(matrix, (-2, -1), (0, 1))
    trace = m[0, 0] + m[1, 1] + m[2, 2]
    axes = [(1, 2, 0), (2, 0, 1), (0, 1, 2)]  # (j, k, i): i is the axis, j and k the next two
    rows = [[1 + trace, *(m[k, j] - m[j, k] for j, k, _ in axes)]]
    for j, k, i in axes:
        row = [m[k, j] - m[j, k], *(m[i, h] + m[h, i] for h in range(3))]
        row[1 + i] = 1 + 2 * m[i, i] - trace
        rows.append(row)
    products = np.stack([np.stack(row, -1) for row in rows], -2)  # [..., 4, 4]: 4 · component · (w, x, y, z)
    best = np.argmax(np.diagonal(products, axis1=-2, axis2=-1), -1)[..., None, None]
    rotor = np.take_along_axis(products, best, -2)[..., 0, :]
    return rotor / np.linalg.norm(rotor, axis=-1, keepdims=True)


def _with(program: Program, operation: Operation, arrays: dict[str, Array]) -> Program:
    """The program with one operation and its arrays replaced."""
    operations = tuple(operation if one.name == operation.name else one for one in program.operations)
    return replace(program, operations=operations, arrays={**program.arrays, **arrays})
