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
statistics (masses, means, variances) are always float32. Its rotations may be rotors in float16: see `Route`.

A `convolution` or `linear` in int8 multiplies integers. Of each input x with its scale s, and of its weight with the
scales w, one per output channel:

    q   = clamp(round(x / s), -128, 127)       a float32 division; halves round to even
    acc = conv(q, weight)                      int32, exact; the first input's with the bias added
    y   = ending(Σ float(acc) · (s · w))       float32, the first input first

so that every body gives the same bits. Values between operations are float32 (`qcn.export.integers`).
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
from qcn.names import PRECISIONS, Mode, OperationPrecision
from qcn.text import readable

Array = NDArray[Any]
Shape = tuple[int, ...]
MapEnding = Literal["none", "relu", "sigmoid"]  # of what makes a map [C, H, W]
Ending = Literal[MapEnding, "softmax"]  # softmax is over all units

LOWEST_FIRST: tuple[OperationPrecision, ...] = ("int8", "fp16", "bf16", "fp32")
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

    READS and ARRAYS are the fields that name the values it reads and its arrays, one or several each. OPTIONAL are
    those that only a calibrated program writes, with what they are without.
    """

    READS: ClassVar[tuple[str, ...]] = ("input",)
    ARRAYS: ClassVar[tuple[str, ...]] = ()
    OPTIONAL: ClassVar[dict[str, Any]] = {}

    op: str
    name: str
    shape: Shape
    precision: OperationPrecision = "fp32"

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

    @property
    def types(self) -> dict[str, str]:
        """The element types of its arrays that are not float32, by the arrays' names."""
        return {}

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
class Product(Operation):
    """What can be in int8. `weight_scales` name an array [out] per weight, `input_scales` are a number per input.

    Both are empty unless it is in int8. Then its weights are int8 from -127 to 127, and its bias is int32, in units of
    the first input's scale times its weight's.
    """

    OPTIONAL: ClassVar[dict[str, Any]] = {"weight_scales": [], "input_scales": []}

    bias: str
    weight_scales: tuple[str, ...] = ()
    input_scales: tuple[float, ...] = ()

    @property
    def factors(self) -> tuple[str, ...]:
        """The names of its weights."""
        raise NotImplementedError

    @property
    def types(self) -> dict[str, str]:
        return {**dict.fromkeys(self.factors, "int8"), self.bias: "int32"} if self.precision == "int8" else {}

    def scaled(self, scales: Sequence[Shape]) -> bool:
        """Whether it has the scales, of these shapes, that its precision asks for."""
        count = len(self.factors) if self.precision == "int8" else 0
        return len(self.input_scales) == count and list(scales) == [self.shape[:1]] * count


@dataclass(frozen=True, kw_only=True)
class Convolution(Product):
    """y = ending(Σ conv(input, weight) + bias); a weight is [out, in, k, k], the bias [out]. Padding is with zeros.

    Two inputs are a residual block's sum: its last convolution, and the skip beside it.
    """

    READS: ClassVar[tuple[str, ...]] = ("inputs",)
    ARRAYS: ClassVar[tuple[str, ...]] = ("weights", "bias", "weight_scales")

    op: Literal["convolution"] = "convolution"
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    strides: tuple[int, ...]
    paddings: tuple[int, ...]
    ending: MapEnding

    @property
    def factors(self) -> tuple[str, ...]:
        return self.weights

    def fits(self, inputs: Sequence[Shape], arrays: Sequence[Shape]) -> bool:
        count = len(self.weights)
        weights, bias, scales = arrays[:count], arrays[count], arrays[count + 1 :]
        parts = list(zip(inputs, weights, self.strides, self.paddings, strict=False))
        return (
            self.scaled(scales)
            and len({len(parts), len(self.inputs), len(self.weights), len(self.strides), len(self.paddings)}) == 1
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
class Linear(Product):
    """y = ending(weight · x + bias), of all numbers of the input in order; the weight is [units, inputs]."""

    ARRAYS: ClassVar[tuple[str, ...]] = ("weight", "bias", "weight_scales")

    op: Literal["linear"] = "linear"
    input: str
    weight: str
    ending: Ending

    @property
    def factors(self) -> tuple[str, ...]:
        return (self.weight,)

    def fits(self, inputs: Sequence[Shape], arrays: Sequence[Shape]) -> bool:
        weight, bias, *scales = arrays
        whole = (*self.shape, math.prod(inputs[0]))
        return len(self.shape) == 1 and bias == self.shape and weight == whole and self.scaled(scales)


@dataclass(frozen=True, kw_only=True)
class Route(Operation):
    """A capsule layer: pose [C, 3, H, W] and activation [C, H, W] -> NAME.pose [J, 3, H', W'], NAME.activation `shape`.

    The pose may come as [3C, H, W], which is the same numbers in the same order. rotation is [h, w, C, J, 3, 3] for a
    window of h × w places, or [1, 1, C, J, 3, 3] where all places share their rotations; beta_u and beta_a are [J].

    In fp16 it may instead be rotors in float16, [h, w, C, J, 4] or [1, 1, C, J, 4], in the order (w, x, y, z). A
    rotation is then `scale` times that of its rotor, normalised: see `Program.rotation`. Of matrices `scale` is None.
    """

    READS: ClassVar[tuple[str, ...]] = ("pose", "activation")
    ARRAYS: ClassVar[tuple[str, ...]] = ("rotation", "beta_u", "beta_a")
    OPTIONAL: ClassVar[dict[str, Any]] = {"scale": None}

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
    scale: float | None = None

    @property
    def types(self) -> dict[str, str]:
        return {} if self.scale is None else {self.rotation: "float16"}

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
        one = (3, 3) if self.scale is None else (4,)
        return (
            len(activation) == 3
            and pose in ((3 * activation[0], *activation[1:]), (activation[0], 3, *activation[1:]))
            and min(*self.window, self.stride) > 0
            and 1 <= self.iterations <= MAX_ITERATIONS
            and (self.shape[:1], *[slide(activation[1:], self.window, self.stride)]) == (beta_u, self.shape[1:])
            and beta_a == beta_u
            and (self.scale is None or self.precision == "fp16")
            and rotation in [(*places, activation[0], self.parents, *one) for places in (self.window, (1, 1))]
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
                raise UsageError(
                    f"{given} do not make the operation '{operation.name}' of {list(operation.shape)} in "
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
        activation, pose = ("activation", count), ("pose", (*count, 3))
        if len(count) != 1 or count[0] < 1 or answers not in ([activation], [activation, pose]):
            given = ", ".join(f"{name} {list(shape)}" for name, shape in answers) or "none"
            raise UsageError(f"a program's outputs are activation [K] and, of capsules, pose [K, 3], not {given}")
        if surplus := sorted(self.arrays.keys() - used):
            raise UsageError(f"no operation reads the array '{surplus[0]}'")

    def _check_numbers(self, operation: Operation) -> None:
        """Refuse arrays of other types than the operation's, and numbers that no plan has."""
        for name in operation.arrays:
            if self.arrays[name].dtype != (due := operation.types.get(name, "float32")):
                raise UsageError(f"the array '{name}' must be {due}, not {self.arrays[name].dtype}")
        if operation.precision == "int8" and not isinstance(operation, Product):
            raise UsageError(f"the operation '{operation.name}' is not a convolution or linear: it is not made in int8")
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
        found = self.arrays[route.rotation]
        if route.scale is None:
            return found
        rotor = found.astype(np.float32)
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
    def calibrated(self) -> bool:
        """Whether its arrays were made for the precisions of its operations (`qcn.export.quantise`)."""
        return any(operation.types for operation in self.operations)

    @property
    def precision(self) -> OperationPrecision:
        """The lowest that an operation of a calibrated program computes in, by which its files are named; else fp32."""
        used = {operation.precision for operation in self.operations if self.calibrated}
        return next((name for name in LOWEST_FIRST if name in used), "fp32")

    @property
    def classes(self) -> int:
        return next(output.shape[0] for output in self.outputs if output.name == "activation")

    def outputs_with(self, every_layer: bool) -> tuple[Output, ...]:
        """The outputs, and with `every_layer` the pose and activation of each capsule layer that is not one of them."""
        given = {output.value for output in self.outputs}
        layers = [value for route in self.routes for value in route.outputs if value.name not in given]
        return (*self.outputs, *(Output(value.name, value.name, value.shape) for value in layers if every_layer))

    def at(self, precision: OperationPrecision, rest: OperationPrecision = "fp32") -> "Program":
        """The same program with its products in another precision; the rest is affine operations and votes."""
        for name in (precision, rest):
            if name not in PRECISIONS:
                raise unknown_name("precision", name, PRECISIONS)
        if self.calibrated:
            raise UsageError("the network is calibrated: it says of each operation what that computes in")
        operations = (
            replace(operation, precision=rest if isinstance(operation, Affine | Route) else precision)
            for operation in self.operations
        )
        return replace(self, operations=tuple(operations))

    def to_json(self) -> str:
        """The program without its arrays."""
        record = {
            "input": asdict(self.input),
            "operations": [_written(operation) for operation in self.operations],
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
    if odd := sorted(record.keys() - _written(operation).keys()):
        raise UsageError(f"{of} has '{odd[0]}', and nothing in it")
    return operation


def _written(operation: Operation) -> dict[str, Any]:
    """An operation in JSON, without those of its `OPTIONAL` fields that have nothing in them."""
    found = asdict(operation)
    return {name: found[name] for name in found if name not in operation.OPTIONAL or found[name] not in ((), None)}


def _listed(shapes: Sequence[Shape]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes) or "none"
