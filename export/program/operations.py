"""The operations of a program, each a dataclass: what it reads, its arrays, and whether these fit together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from numpy.typing import NDArray

from qcn.limits import MAX_ITERATIONS
from qcn.names import Mode, OperationPrecision

Array = NDArray[Any]
Shape = tuple[int, ...]
Ending = Literal["none", "relu", "relu6", "sigmoid"]  # the function that an operation applies last

# For routing in standard operators: the products u_p·u_q of a pose, and how often each stands in (Σ_p R_p·u_p)².
POSE_PRODUCTS = ((0, 0, 1), (1, 1, 1), (2, 2, 1), (0, 1, 2), (0, 2, 2), (1, 2, 2))


@dataclass(frozen=True)
class Value:
    """A tensor between operations: its name and shape."""

    name: str
    shape: Shape


@dataclass(frozen=True, kw_only=True)
class Operation:
    """The base of all operations. `shape` is that of the output; a `route` has two, see there.

    READS and ARRAYS are the fields that name the values it reads and its arrays, one or several each. OPTIONAL are
    those that are not written where they have these values.
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
        values = (getattr(self, name) for name in fields)
        return tuple(name for one in values for name in ((one,) if isinstance(one, str) else one))


@dataclass(frozen=True, kw_only=True)
class Affine(Operation):
    """y = ending(x · scale + shift); scale and shift are [C]."""

    ARRAYS: ClassVar[tuple[str, ...]] = ("scale", "shift")

    op: Literal["affine"] = "affine"
    input: str
    scale: str
    shift: str
    ending: Ending

    def fits(self, inputs: Sequence[Shape], arrays: Sequence[Shape]) -> bool:
        return len(self.shape) == 3 and inputs[0] == self.shape and set(arrays) == {self.shape[:1]}


@dataclass(frozen=True, kw_only=True)
class Product(Operation):
    """An operation that can be in int8.

    `weight_scales` name an array [out] per weight, `input_scales` are a number per input. Both are empty unless it is
    in int8. Then its weights are int8 from -127 to 127, and its bias is int32, in units of the first input's scale
    times its weight's.
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

    Two inputs are a residual block's sum: its last convolution, and the skip beside it. A `depthwise` convolution has
    one input, and a kernel [out, 1, k, k] for each of its channels, which stay apart.
    """

    READS: ClassVar[tuple[str, ...]] = ("inputs",)
    ARRAYS: ClassVar[tuple[str, ...]] = ("weights", "bias", "weight_scales")
    OPTIONAL: ClassVar[dict[str, Any]] = {**Product.OPTIONAL, "depthwise": False}

    op: Literal["convolution"] = "convolution"
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    strides: tuple[int, ...]
    paddings: tuple[int, ...]
    ending: Ending
    depthwise: bool = False

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
            and len(parts) in ((1,) if self.depthwise else (1, 2))
            and len(self.shape) == 3
            and bias == self.shape[:1]
            and all(
                len(source) == 3
                and len(weight) == 4
                and weight == (self.shape[0], 1 if self.depthwise else source[0], weight[3], weight[3])
                and (not self.depthwise or source[0] == self.shape[0])
                and min(stride, padding + 1) > 0
                and slide(source[1:], weight[2:], stride, padding) == self.shape[1:]
                for source, weight, stride, padding in parts
            )
        )


@dataclass(frozen=True, kw_only=True)
class Sum(Operation):
    """y = a + b, of two maps of the same shape: the skip of a block that ends without an activation function."""

    READS: ClassVar[tuple[str, ...]] = ("inputs",)

    op: Literal["sum"] = "sum"
    inputs: tuple[str, str]

    def fits(self, inputs: Sequence[Shape], arrays: Sequence[Shape]) -> bool:
        return len(self.shape) == 3 and len(inputs) == 2 and set(inputs) == {self.shape}


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

    With the ending none, as in the class layer, it gives out NAME.logit, from which the activation would be made.

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
    ending: Literal["none", "sigmoid"]
    scale: float | None = None

    @property
    def types(self) -> dict[str, str]:
        return {} if self.scale is None else {self.rotation: "float16"}

    @property
    def outputs(self) -> tuple[Value, ...]:
        parents, *places = self.shape
        second = "activation" if self.ending == "sigmoid" else "logit"
        return (Value(f"{self.name}.pose", (parents, 3, *places)), Value(f"{self.name}.{second}", self.shape))

    @property
    def parents(self) -> int:
        """J, the types of capsules that it makes."""
        return self.shape[0]

    def fits(self, inputs: Sequence[Shape], arrays: Sequence[Shape]) -> bool:
        pose, activation = inputs
        rotation, beta_u, beta_a = arrays
        rotor = (3, 3) if self.scale is None else (4,)
        return (
            len(activation) == 3
            and pose in ((3 * activation[0], *activation[1:]), (activation[0], 3, *activation[1:]))
            and min(*self.window, self.stride) > 0
            and 1 <= self.iterations <= MAX_ITERATIONS
            and (self.shape[:1], *[slide(activation[1:], self.window, self.stride)]) == (beta_u, self.shape[1:])
            and beta_a == beta_u
            and (self.scale is None or self.precision == "fp16")
            and rotation in [(*places, activation[0], self.parents, *rotor) for places in (self.window, (1, 1))]
        )


OPERATIONS: dict[str, type[Operation]] = {one.op: one for one in (Affine, Convolution, Sum, Pool, Linear, Route)}


def slide(sides: Sequence[int], window: Sequence[int], stride: int, padding: int = 0) -> Shape:
    """How many places a window has on a map, per side; 0 where it does not fit."""
    return tuple(max(0, (side + 2 * padding - width) // stride + 1) for side, width in zip(sides, window, strict=True))
