"""Which operation of a program computes in what. What an assignment does not name stays float32."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qcn.calibrate.record import Calibration
from qcn.errors import UsageError
from qcn.export.program.program import Convolution, Linear, Operation, Program, Route
from qcn.export.program.quantise import channel_scales, find, halved, quantised
from qcn.names import OperationPrecision

Assignment = Mapping[str, OperationPrecision]
# How long a multiplication takes, where it cannot be measured: tensor cores and vector units do twice as many in half
# the bits.
COST: dict[OperationPrecision, float] = {"fp32": 1.0, "fp16": 0.5, "bf16": 0.5, "int8": 0.25}
PER_VOTE = 20  # multiplications per number of a vote and iteration, beside the nine that make it: see `qcn.routing`


def lowest(program: Program) -> dict[str, OperationPrecision]:
    """Everything as low as it goes: convolutions and linear layers in int8, capsule layers in fp16."""
    result: dict[str, OperationPrecision] = {}
    for operation in program.operations:
        if isinstance(operation, Convolution | Linear):
            result[operation.name] = "int8"
        elif isinstance(operation, Route):
            result[operation.name] = "fp16"
    return result


def apply(program: Program, assignment: Assignment, calibration: Calibration) -> Program:
    """The program with these operations in these precisions."""
    for name, precision in assignment.items():
        operation = find(program, name)
        if precision == "int8" and isinstance(operation, Convolution | Linear):
            scales = [calibration.scales[value] for value in operation.reads]
            program = quantised(with_corrected_bias(program, operation, calibration), name, scales)
        elif precision == "fp16" and isinstance(operation, Route):
            program = halved(program, name)
        else:
            lowered = replace(operation, precision=precision)
            operations = tuple(lowered if one.name == name else one for one in program.operations)
            program = replace(program, operations=operations)
    return program


def with_corrected_bias(program: Program, operation: Convolution | Linear, calibration: Calibration) -> Program:
    """The program with a bias that makes up for what rounding the operation's weights does to its mean output.

    Of a mean input, which is known from the calibration, that is the rounding error times it (Nagel et al. 2019).
    """
    bias = program.arrays[operation.bias].astype(np.float64)
    for factor, value in zip(operation.factors, operation.reads, strict=True):
        weight = program.arrays[factor].astype(np.float64).reshape(*program.arrays[factor].shape[:2], -1)
        scale = channel_scales(weight)[:, None, None].astype(np.float64)
        error = (np.rint(weight / scale) * scale - weight).sum(2)  # [out, in]
        means = np.array(calibration.values[value].means)
        if isinstance(operation, Convolution) and operation.depthwise:
            bias -= error[:, 0] * means
        elif error.shape[1] == len(means):  # else it is a linear of a whole map, whose places have means of their own
            bias -= error @ means
    return replace(program, arrays={**program.arrays, operation.bias: bias.astype(np.float32)})


def require_float32(program: Program, source: str) -> None:
    """Refuse a program that was calibrated before: its ranges are not those of the trained network any more."""
    if low := [operation for operation in program.operations if operation.precision != "fp32"]:
        raise UsageError(
            f"{source} is already calibrated: {len(low)} of its operations are not fp32, such as '{low[0].name}' "
            f"({low[0].precision}); calibrate the run or bundle that it was made from"
        )


def array_bytes(program: Program) -> int:
    """The size of its arrays in weights.safetensors."""
    return sum(array.nbytes for array in program.arrays.values())


def multiplications(program: Program, operation: Operation) -> int:
    """How many products one image takes."""
    if isinstance(operation, Convolution):
        places = math.prod(operation.shape[1:])
        return sum(places * program.arrays[name].size for name in operation.weights)
    if isinstance(operation, Linear):
        return int(program.arrays[operation.weight].size)
    if isinstance(operation, Route):
        children = math.prod(operation.window) * program.shapes[operation.activation][0]
        return children * math.prod(operation.shape) * 3 * (3 + PER_VOTE * operation.iterations)
    return math.prod(operation.shape)


def estimated(program: Program, assignment: Assignment) -> float:
    """The time of an assignment over that of float32, by what its multiplications cost: a guess, not a measurement."""
    costs = {operation.name: multiplications(program, operation) for operation in program.operations}
    total = sum(cost * COST[assignment.get(name, "fp32")] for name, cost in costs.items())
    return total / sum(costs.values())


def in_words(program: Program, assignment: Assignment) -> str:
    """For example `9 of 9 convolutions int8, 3 of 4 capsule layers fp16`."""
    kinds = {"convolutions": Convolution, "linear layers": Linear, "capsule layers": Route}
    parts = []
    for kind, cls in kinds.items():
        names = [operation.name for operation in program.operations if isinstance(operation, cls)]
        for precision in dict.fromkeys(assignment[name] for name in names if name in assignment):
            count = sum(assignment.get(name) == precision for name in names)
            parts.append(f"{count} of {len(names)} {kind} {precision}")
    return ", ".join(parts) or "all fp32"
