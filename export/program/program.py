"""The program: the one definition of a network on the device side. A flat list of operations, and their arrays.

`qcn.export.program.lower` makes a program from a trained network, and weights.safetensors keeps it in the bundle. Torch
(`qcn.export.backends.torch`), the ONNX writer (`qcn.export.backends.onnx`) and libqcn (deploy/src/program.h) interpret
the operations and derive nothing about the network again. docs/bundle.md has the form on disk. No torch here.

Shapes are without the batch, which comes first. An operation reads the values that are named in it (the image, or the
outputs of operations before it) and arrays, which hold what was learnt:

    operation     what it computes
    affine        y = ending(x · scale + shift), per channel of a map [C, H, W]
    convolution   y = ending(Σ conv(x, weight) + bias), over one or two inputs, each with its weight, stride and padding
    sum           y = a + b, of two maps
    pool          the maximum or the average of each kernel × kernel window of a map
    linear        y = ending(weight · x + bias), of all numbers of its input in order
    route         a capsule layer: routing by agreement (`qcn.routing`) in each window of a map of capsules

An operation's `precision` is what it computes in. A half-precision `route` makes its votes in that precision; its
statistics (masses, means, variances) are always float32. Its rotations may be rotors in float16: see `Route`.

A `convolution` or `linear` in int8 multiplies integers. Of each input x with its scale s, and of its weight with the
scales w, one per output channel:

    q   = clamp(round(x / s), -128, 127)       a float32 division; halves round to even
    acc = conv(q, weight)                      int32, exact; the first input's with the bias added
    y   = ending(Σ float(acc) · (s · w))       float32, the first input first

so that every backend gives the same bits. Values between operations are float32.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from qcn.errors import UsageError, unknown_name
from qcn.export.program.operations import (
    OPERATIONS,
    POSE_PRODUCTS,
    Affine,
    Array,
    Convolution,
    Ending,
    Linear,
    Operation,
    Pool,
    Product,
    Route,
    Shape,
    Sum,
    Value,
    slide,
)
from qcn.names import PRECISIONS, OperationPrecision
from qcn.storage import records
from qcn.terminal.text import readable

__all__ = [
    "OPERATIONS", "POSE_PRODUCTS", "Affine", "Array", "Convolution", "Ending", "Linear", "Operation",
    "Output", "Pool", "Product", "Program", "Route", "Shape", "Sum", "Value", "slide",
]  # fmt: skip
LOWEST_FIRST: tuple[OperationPrecision, ...] = ("int8", "fp16", "bf16", "fp32")


@dataclass(frozen=True)
class Output:
    """An answer of the program: a value, under the name and in the shape in which it is given out."""

    name: str
    value: str
    shape: Shape


@dataclass(frozen=True)
class Program:
    """A network for images of one size: operations in the order in which they run, and the arrays.

    Arrays are float32, but for those of operations in int8 and for rotors.
    """

    input: Value
    operations: tuple[Operation, ...]
    outputs: tuple[Output, ...]
    arrays: dict[str, Array] = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse what does not fit together: it may come from a file."""
        shapes = {self.input.name: self.input.shape}
        used: set[str] = set()
        named = [operation.name for operation in self.operations]
        if twice := sorted({name for name in named if named.count(name) > 1}):
            raise UsageError(f"two operations of the program are named '{twice[0]}'")
        if odd := [name for name in named if name != readable(name)]:
            raise UsageError(f"the operation '{odd[0]}' of the program has control characters in its name")
        for operation in self.operations:
            for kind, names, defined in (("value", operation.reads, shapes), ("array", operation.arrays, self.arrays)):
                if unknown := [name for name in names if name not in defined]:
                    raise UsageError(
                        f"the operation '{operation.name}' reads the {kind} '{unknown[0]}', which is not there"
                    )
            used |= set(operation.arrays)
            arrays = [self.arrays[name].shape for name in operation.arrays]
            inputs = [shapes[name] for name in operation.reads]
            if min(operation.shape, default=0) < 1 or not operation.fits(inputs, arrays):
                description = f"inputs {_listed(inputs)} and arrays {_listed(arrays)}"
                raise UsageError(
                    f"{description} do not make the operation '{operation.name}' of {list(operation.shape)} in "
                    f"{operation.precision}"
                )
            self._check_numbers(operation)
            for value in operation.outputs:
                if value.name in shapes:
                    raise UsageError(f"two values of the program are named '{value.name}'")
                shapes[value.name] = value.shape
        for output in self.outputs:
            if output.value not in shapes or math.prod(shapes[output.value]) != math.prod(output.shape):
                raise UsageError(
                    f"the output '{output.name}' of {list(output.shape)} has no such value '{output.value}'"
                )
        answers = [(output.name, output.shape) for output in self.outputs]
        count = self.outputs[0].shape[:1] if self.outputs else ()
        logit, pose = ("logit", count), ("pose", (*count, 3))
        if len(count) != 1 or count[0] < 1 or answers not in ([logit], [logit, pose]):
            description = ", ".join(f"{name} {list(shape)}" for name, shape in answers) or "none"
            raise UsageError(f"a program's outputs are logit [K] and, of capsules, pose [K, 3], not {description}")
        last = self.operations[-1].outputs if self.operations else ()
        due = [value.name for value in reversed(last)]  # of capsules: the logits, then the poses
        if (values := [output.value for output in self.outputs]) != due:
            description = f"{', '.join(due) or 'nothing'}, not {', '.join(values)}"
            raise UsageError(f"a program's outputs are all values of its last operation: {description}")
        if surplus := sorted(self.arrays.keys() - used):
            raise UsageError(f"no operation reads the array '{surplus[0]}'")

    def _check_numbers(self, operation: Operation) -> None:
        """Refuse arrays of other types than the operation's, and numbers that no plan has."""
        for name in operation.arrays:
            if self.arrays[name].dtype != (due := operation.types.get(name, "float32")):
                raise UsageError(f"the array '{name}' must be {due}, not {self.arrays[name].dtype}")
        if operation.precision == "int8" and not isinstance(operation, Product):
            raise UsageError(
                f"the operation '{operation.name}' is not a convolution or linear layer: it cannot be int8"
            )
        scales = [operation.scale] if isinstance(operation, Route) and operation.scale is not None else []
        if isinstance(operation, Product):
            scales = [*operation.input_scales, *(s for n in operation.weight_scales for s in self.arrays[n].tolist())]
        with np.errstate(over="ignore"):
            odd = [scale for scale in scales if not (0 < scale < math.inf and scale == float(np.float32(scale)))]
        if odd:
            raise UsageError(f"a scale of '{operation.name}' must be a positive float32, not {odd[0]!r}")
        if isinstance(operation, Product) and operation.precision == "int8":
            self._check_sums(operation)

    def _check_sums(self, operation: Product) -> None:
        """Refuse integers that the kernels do not take, or whose sums may leave int32."""
        weights = [self.arrays[name].reshape(operation.shape[0], -1).astype(np.int64) for name in operation.factors]
        if min(weight.min() for weight in weights) < -127:
            raise UsageError(f"a weight of '{operation.name}' is -128: they go from -127 to 127")
        most = np.maximum.reduce([128 * np.abs(weight).sum(1) for weight in weights])
        if (most + np.abs(self.arrays[operation.bias].astype(np.int64))).max() > np.iinfo(np.int32).max:
            raise UsageError(f"the sums of '{operation.name}' may be too large for int32")

    def rotation(self, route: Route) -> Array:
        """The rotations of a capsule layer as matrices, float32 [h, w, C, J, 3, 3]; the formula of `qcn.quaternion`."""
        result = self.arrays[route.rotation]
        if route.scale is None:
            return result
        rotor = result.astype(np.float32)
        w, x, y, z = np.moveaxis(rotor / np.sqrt((rotor * rotor).sum(-1, keepdims=True)), -1, 0)
        rows = [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
        return np.stack([np.stack(row, -1) for row in rows], -2) * np.float32(route.scale)

    @property
    def shapes(self) -> dict[str, Shape]:
        """The shape of every value, by its name."""
        values = [value for operation in self.operations for value in operation.outputs]
        return {value.name: value.shape for value in (self.input, *values)}

    @property
    def routes(self) -> list[Route]:
        """The capsule layers, first to last; a CNN has none."""
        return [operation for operation in self.operations if isinstance(operation, Route)]

    @property
    def poses(self) -> bool:
        """Whether its answers have poses; those of a CNN do not."""
        return len(self.outputs) > 1

    @property
    def calibrated(self) -> bool:
        """Whether its arrays were made for the precisions of its operations (`qcn.export.program.quantise`)."""
        return any(operation.types for operation in self.operations)

    @property
    def precision(self) -> OperationPrecision:
        """The lowest that an operation of a calibrated program computes in, by which its files are named; else fp32."""
        used = {operation.precision for operation in self.operations if self.calibrated}
        return next((name for name in LOWEST_FIRST if name in used), "fp32")

    @property
    def classes(self) -> int:
        return next(output.shape[0] for output in self.outputs if output.name == "logit")

    def outputs_with(self, every_layer: bool) -> tuple[Output, ...]:
        """The outputs, and with `every_layer` the pose and activation of each capsule layer that is not one of them."""
        names = {output.value for output in self.outputs}
        layers = [value for route in self.routes for value in route.outputs if value.name not in names]
        return (*self.outputs, *(Output(value.name, value.name, value.shape) for value in layers if every_layer))

    def at(self, precision: OperationPrecision, rest: OperationPrecision = "fp32") -> "Program":
        """The same program with its products in another precision; the rest is affine operations and votes."""
        for name in (precision, rest):
            if name not in PRECISIONS:
                raise unknown_name("precision", name, PRECISIONS)
        if self.calibrated:
            raise UsageError("the network is calibrated: each operation already has its precision")
        operations = (
            replace(operation, precision=rest if isinstance(operation, Affine | Route) else precision)
            for operation in self.operations
        )
        return replace(self, operations=tuple(operations))

    def to_json(self) -> str:
        """The program without its arrays."""
        record = {
            "input": asdict(self.input),
            "operations": [_record(operation) for operation in self.operations],
            "outputs": [asdict(output) for output in self.outputs],
        }
        return json.dumps(record)

    @staticmethod
    def from_json(text: str, arrays: dict[str, Array]) -> "Program":
        """The inverse of `to_json`, for a text that may have been altered."""
        record = records.read(_Written, records.parse(text), "the program")
        return Program(record.input, tuple(map(_operation, record.operations)), record.outputs, arrays)


@dataclass(frozen=True)
class _Written:
    """A program in JSON; which operation an entry is, its `op` says."""

    input: Value
    operations: tuple[dict[str, Any], ...]
    outputs: tuple[Output, ...]


def _operation(record: dict[str, Any]) -> Operation:
    op = record.get("op")
    if not isinstance(op, str) or op not in OPERATIONS:
        raise UsageError(f"the program has an unknown operation {op!r}: known are {', '.join(OPERATIONS)}")
    of = f"the operation '{record.get('name')}'"
    operation = records.read(OPERATIONS[op], {**OPERATIONS[op].OPTIONAL, **record}, of)
    if odd := sorted(record.keys() - _record(operation).keys()):
        raise UsageError(f"{of} has '{odd[0]}', and nothing in it")
    return operation


def _record(operation: Operation) -> dict[str, Any]:
    """An operation in JSON, without those of its `OPTIONAL` fields that say nothing."""
    result = json.loads(json.dumps(asdict(operation)))
    optional = operation.OPTIONAL
    return {name: value for name, value in result.items() if name not in optional or value != optional[name]}


def _listed(shapes: Sequence[Shape]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes) or "none"
