"""The program: the one definition of a network on the device side. A flat list of operations, and their arrays.

`qcn.export.lower` makes a program from a trained network, and weights.safetensors keeps it in the bundle. Torch
(`qcn.export.torch`), the ONNX writer (`qcn.export.onnx`) and libqcn (deploy/src/program.h) interpret the operations and
derive nothing about the network again. docs/bundle.md has the form on disk. No torch here.

Shapes are without the batch, which comes first. An operation reads the values that are named in it (the image, or the
outputs of operations before it) and arrays, which hold what was learnt:

    operation     what it computes
    affine        y = ending(x · scale + shift), per channel of a map [C, H, W]
    convolution   y = ending(Σ conv(x, weight) + bias), over one or two inputs, each with its weight, stride and padding
    pool          the maximum or the average of each kernel × kernel window of a map
    linear        y = ending(weight · x + bias), of all numbers of its input in order
    route         a capsule layer: routing by agreement (`qcn.routing`) in each window of a map of capsules

An operation's `precision` is what it computes in. A half-precision `route` makes its votes in that precision; its
statistics (masses, means, variances) are always float32.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from qcn import records
from qcn.errors import UsageError, unknown_name
from qcn.limits import MAX_ITERATIONS
from qcn.names import PRECISIONS, Mode, Precision
from qcn.text import readable

Array = NDArray[Any]
Shape = tuple[int, ...]
MapEnding = Literal["none", "relu", "sigmoid"]  # of what makes a map [C, H, W]
Ending = Literal[MapEnding, "softmax"]  # softmax is over all units

# For routing in standard operators: the products u_p·u_q of a pose, and how often each stands in (Σ_p R_p·u_p)².
POSE_PRODUCTS = ((0, 0, 1), (1, 1, 1), (2, 2, 1), (0, 1, 2), (0, 2, 2), (1, 2, 2))


@dataclass(frozen=True)
class Value:
    """What flows between operations: a name and a shape."""

    name: str
    shape: Shape


@dataclass(frozen=True)
class Output:
    """An answer of the program: a value, under the name and in the shape in which it is given out."""

    name: str
    value: str
    shape: Shape


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What all operations have. `shape` is that of the output; a `route` has two, see there.

    READS and ARRAYS are the fields that name the values it reads and its arrays, one or several each.
    """

    READS: ClassVar[tuple[str, ...]] = ("input",)
    ARRAYS: ClassVar[tuple[str, ...]] = ()

    op: str
    name: str
    shape: Shape
    precision: Precision = "fp32"

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the values that it reads."""
        return self._named(self.READS)

    @property
    def arrays(self) -> tuple[str, ...]:
        """The names of its arrays."""
        return self._named(self.ARRAYS)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values that it makes."""
        return (Value(self.name, self.shape),)

    def fits(self, inputs: Sequence[Shape], arrays: Sequence[Shape]) -> bool:
        """Whether inputs and arrays of these shapes make an output of `shape`."""
        raise NotImplementedError

    def _named(self, fields: tuple[str, ...]) -> tuple[str, ...]:
        given = (getattr(self, name) for name in fields)
        return tuple(name for one in given for name in ((one,) if isinstance(one, str) else one))


@dataclass(frozen=True, kw_only=True)
class Affine(Operation):
    """y = ending(x · scale + shift); scale and shift are [C]."""

    ARRAYS: ClassVar[tuple[str, ...]] = ("scale", "shift")

    op: Literal["affine"] = "affine"
    input: str
    scale: str
    shift: str
    ending: MapEnding

    def fits(self, inputs: Sequence[Shape], arrays: Sequence[Shape]) -> bool:
        return len(self.shape) == 3 and inputs[0] == self.shape and set(arrays) == {self.shape[:1]}


@dataclass(frozen=True, kw_only=True)
class Convolution(Operation):
    """y = ending(Σ conv(input, weight) + bias); a weight is [out, in, k, k], the bias [out]. Padding is with zeros.

    Two inputs are a residual block's sum: its last convolution, and the skip beside it.
    """

    READS: ClassVar[tuple[str, ...]] = ("inputs",)
    ARRAYS: ClassVar[tuple[str, ...]] = ("weights", "bias")

    op: Literal["convolution"] = "convolution"
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    bias: str
    strides: tuple[int, ...]
    paddings: tuple[int, ...]
    ending: MapEnding

    def fits(self, inputs: Sequence[Shape], arrays: Sequence[Shape]) -> bool:
        *weights, bias = arrays
        parts = list(zip(inputs, weights, self.strides, self.paddings, strict=False))
        return (
            len({len(parts), len(self.inputs), len(self.weights), len(self.strides), len(self.paddings)}) == 1
            and len(parts) in (1, 2)
            and len(self.shape) == 3
            and bias == self.shape[:1]
            and all(
                len(source) == 3
                and len(weight) == 4
                and weight == (self.shape[0], source[0], weight[3], weight[3])
                and min(stride, padding + 1) > 0
                and slide(source[1:], weight[2:], stride, padding) == self.shape[1:]
                for source, weight, stride, padding in parts
            )
        )


@dataclass(frozen=True, kw_only=True)
class Pool(Operation):
    """The maximum or the average of each kernel × kernel window of a map, per channel. No padding."""

    op: Literal["pool"] = "pool"
    input: str
    kind: Literal["max", "average"]
    kernel: int
    stride: int

    def fits(self, inputs: Sequence[Shape], arrays: Sequence[Shape]) -> bool:
        (source,) = inputs
        return (
            len(source) == 3
            and min(self.kernel, self.stride) > 0
            and (source[0], *slide(source[1:], (self.kernel, self.kernel), self.stride)) == self.shape
        )


@dataclass(frozen=True, kw_only=True)
class Linear(Operation):
    """y = ending(weight · x + bias), of all numbers of the input in order; the weight is [units, inputs]."""

    ARRAYS: ClassVar[tuple[str, ...]] = ("weight", "bias")

    op: Literal["linear"] = "linear"
    input: str
    weight: str
    bias: str
    ending: Ending

    def fits(self, inputs: Sequence[Shape], arrays: Sequence[Shape]) -> bool:
        weight, bias = arrays
        return len(self.shape) == 1 and bias == self.shape and weight == (*self.shape, math.prod(inputs[0]))


@dataclass(frozen=True, kw_only=True)
class Route(Operation):
    """A capsule layer: pose [C, 3, H, W] and activation [C, H, W] -> NAME.pose [J, 3, H', W'], NAME.activation `shape`.

    The pose may come as [3C, H, W], which is the same numbers in the same order. rotation is [h, w, C, J, 3, 3] for a
    window of h × w places, or [1, 1, C, J, 3, 3] where all places share their rotations; beta_u and beta_a are [J].
    """

    READS: ClassVar[tuple[str, ...]] = ("pose", "activation")
    ARRAYS: ClassVar[tuple[str, ...]] = ("rotation", "beta_u", "beta_a")

    op: Literal["route"] = "route"
    pose: str
    activation: str
    rotation: str
    beta_u: str
    beta_a: str
    window: tuple[int, int]
    stride: int
    iterations: int
    mode: Mode

    @property
    def outputs(self) -> tuple[Value, ...]:
        parents, *places = self.shape
        return (Value(f"{self.name}.pose", (parents, 3, *places)), Value(f"{self.name}.activation", self.shape))

    @property
    def parents(self) -> int:
        """J, the types of capsules that it makes."""
        return self.shape[0]

    def fits(self, inputs: Sequence[Shape], arrays: Sequence[Shape]) -> bool:
        pose, activation = inputs
        rotation, beta_u, beta_a = arrays
        return (
            len(activation) == 3
            and pose in ((3 * activation[0], *activation[1:]), (activation[0], 3, *activation[1:]))
            and min(*self.window, self.stride) > 0
            and 1 <= self.iterations <= MAX_ITERATIONS
            and (self.shape[:1], *[slide(activation[1:], self.window, self.stride)]) == (beta_u, self.shape[1:])
            and beta_a == beta_u
            and rotation in [(*places, activation[0], self.parents, 3, 3) for places in (self.window, (1, 1))]
        )


OPERATIONS: dict[str, type[Operation]] = {
    "affine": Affine,
    "convolution": Convolution,
    "pool": Pool,
    "linear": Linear,
    "route": Route,
}


def slide(sides: Sequence[int], window: Sequence[int], stride: int, padding: int = 0) -> Shape:
    """How many places a window has on a map, per side; 0 where it does not fit."""
    return tuple(max(0, (side + 2 * padding - width) // stride + 1) for side, width in zip(sides, window, strict=True))


@dataclass(frozen=True)
class Program:
    """A network for images of one size: operations in the order in which they run, and the arrays, float32."""

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
            for kind, names, known in (("value", operation.reads, shapes), ("array", operation.arrays, self.arrays)):
                if unknown := [name for name in names if name not in known]:
                    raise UsageError(
                        f"the operation '{operation.name}' reads the {kind} '{unknown[0]}', which is not there"
                    )
            used |= set(operation.arrays)
            arrays = [self.arrays[name].shape for name in operation.arrays]
            inputs = [shapes[name] for name in operation.reads]
            if min(operation.shape, default=0) < 1 or not operation.fits(inputs, arrays):
                given = f"inputs {_listed(inputs)} and arrays {_listed(arrays)}"
                raise UsageError(f"{given} do not make the operation '{operation.name}' of {list(operation.shape)}")
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
        activation, pose = ("activation", count), ("pose", (*count, 3))
        if len(count) != 1 or count[0] < 1 or answers not in ([activation], [activation, pose]):
            given = ", ".join(f"{name} {list(shape)}" for name, shape in answers) or "none"
            raise UsageError(f"a program's outputs are activation [K] and, of capsules, pose [K, 3], not {given}")
        if surplus := sorted(self.arrays.keys() - used):
            raise UsageError(f"no operation reads the array '{surplus[0]}'")
        for name, array in self.arrays.items():
            if array.dtype != np.float32:
                raise UsageError(f"the array '{name}' must be float32, not {array.dtype}")

    @property
    def shapes(self) -> dict[str, Shape]:
        """The shape of every value, by its name."""
        made = [value for operation in self.operations for value in operation.outputs]
        return {value.name: value.shape for value in (self.input, *made)}

    @property
    def routes(self) -> list[Route]:
        """The capsule layers, first to last; a CNN has none."""
        return [operation for operation in self.operations if isinstance(operation, Route)]

    @property
    def poses(self) -> bool:
        """Whether its answers have poses; those of a CNN do not."""
        return len(self.outputs) > 1

    @property
    def classes(self) -> int:
        return next(output.shape[0] for output in self.outputs if output.name == "activation")

    def outputs_with(self, every_layer: bool) -> tuple[Output, ...]:
        """The outputs, and with `every_layer` the pose and activation of each capsule layer that is not one of them."""
        given = {output.value for output in self.outputs}
        layers = [value for route in self.routes for value in route.outputs if value.name not in given]
        return (*self.outputs, *(Output(value.name, value.name, value.shape) for value in layers if every_layer))

    def at(self, precision: Precision, rest: Precision = "fp32") -> "Program":
        """The same program with its products in another precision; the rest is affine operations and votes."""
        for name in (precision, rest):
            if name not in PRECISIONS:
                raise unknown_name("precision", name, PRECISIONS)
        operations = (
            replace(operation, precision=rest if isinstance(operation, Affine | Route) else precision)
            for operation in self.operations
        )
        return replace(self, operations=tuple(operations))

    def to_json(self) -> str:
        """The program without its arrays."""
        record = {
            "input": asdict(self.input),
            "operations": [asdict(operation) for operation in self.operations],
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
    return records.read(OPERATIONS[op], record, f"the operation '{record.get('name')}'")


def _listed(shapes: Sequence[Shape]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes) or "none"
