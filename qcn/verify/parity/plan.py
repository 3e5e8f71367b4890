"""Is a calibrated program made of this trained network? Operation by operation. No torch here.

The plan of a calibrated bundle is the truth for its own files, so it must not be taken at its word: what calibration
makes of the network is computed again, with the plan's own scales of inputs, and the arrays are compared.
"""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np

from qcn.export.operations import Array, Operation
from qcn.export.program import Product, Program, Route
from qcn.export.quantise import TURNED, quantised

APART = 1e-5  # how far float32 numbers of two machines may be, as a share of the largest: batch norms are folded in


def not_of(plan: Program, trained: Program) -> Iterator[str]:
    """What a plan has that calibration would not make of the trained network's program, in words."""
    operations = tuple(map(_in_float32, plan.operations))
    if (plan.input, operations, plan.outputs) != (trained.input, trained.operations, trained.outputs):
        yield "its operations are others"
        return
    for op in plan.operations:
        if isinstance(op, Product) and op.precision == "int8":
            wrong = _of_int8(op, plan, trained)
        elif isinstance(op, Route) and op.scale is not None:
            turned = np.abs(plan.rotation(op) - trained.arrays[op.rotation]).max() < TURNED * op.scale
            wrong = [] if turned else [op.rotation]
            wrong += _apart(plan, trained, (op.beta_u, op.beta_a))
        else:
            wrong = _apart(plan, trained, op.arrays)
        for name in wrong:
            yield f"'{name}' of '{op.name}' is not what calibration makes of it"


def _in_float32(op: Operation) -> Operation:
    """The operation as it is before calibration."""
    usual: dict[str, Any] = {one.name: one.default for one in fields(op) if one.name in (*op.OPTIONAL, "precision")}
    return replace(op, **usual)


def _apart(plan: Program, trained: Program, names: tuple[str, ...]) -> list[str]:
    """The arrays that differ by more than the rounding of float32."""
    return [name for name in names if not _alike(plan.arrays[name], trained.arrays[name])]


def _alike(found: Array, expected: Array) -> bool:
    return found.dtype == expected.dtype and bool(np.abs(found - expected).max() <= APART * np.abs(expected).max())


def _of_int8(op: Product, plan: Program, trained: Program) -> list[str]:
    """The arrays of an operation in int8 that quantising the trained ones does not give.

    Its bias makes up for the rounding of weights, by the mean input, which is not known here: so it may differ by as
    much as the largest input would make of that.
    """
    scales = [plan.arrays[name].astype(np.float64) for name in op.weight_scales]
    unit = op.input_scales[0] * scales[0]
    bias = plan.arrays[op.bias] * unit
    arrays = {**trained.arrays, op.bias: bias.astype(np.float32)}
    made = quantised(replace(trained, arrays=arrays), op.name, op.input_scales)
    wrong = [name for name in op.weight_scales if not _alike(plan.arrays[name], made.arrays[name])]
    allowed = unit
    for factor, scale, largest in zip(op.factors, scales, op.input_scales, strict=True):
        found = plan.arrays[factor].astype(np.float64)
        if np.abs(found - made.arrays[factor]).max() > 1:  # which another machine may have rounded the other way
            wrong.append(factor)
        weight = trained.arrays[factor].astype(np.float64)
        error = found * scale.reshape(-1, *[1] * (found.ndim - 1)) - weight
        by_channel = np.abs(error.reshape(*error.shape[:2], -1).sum(2)).sum(1)
        allowed = allowed + 127 * largest * by_channel
    if (np.abs(bias - trained.arrays[op.bias]) > allowed).any():
        wrong.append(op.bias)
    return wrong
