"""A trained network in deployment form: plain convolutions and rotations, as arrays with names. No torch here.

From this form everything on the device is made: the ONNX graphs, and what libqcn reads. An image goes through

    stem, pose branch and activation branch: stacks of residual blocks, all batch norms folded into the convolutions
        a stack begins with     x = relu(x · scale + shift)         where the image itself enters it
        a block is              x = relu(conv2(relu(conv1(x))) + skip(x))
    projections                 1×1 convolutions to primary poses and (through a sigmoid) activations
    capsule layers              routing in windows of kernel × kernel places, the last one in a window of all places

    arrays                      shape
    STACK.scale, STACK.shift    [channels]                          the first stack or stacks only
    STACK.B.conv1.weight, .bias [out, in, 3, 3], [out]              stride of the block
    STACK.B.conv2.weight, .bias [out, out, 3, 3], [out]
    STACK.B.skip.weight         [out, in, 1, 1]                     stride of the block
    pose.projection.weight, …   [3C, in, 1, 1], [3C]                activation.projection likewise, with C
    LAYER.rotation              [k, k, C, J, 3, 3]                  [1, 1, …] in the last layer: all places share
    LAYER.beta_u, .beta_a       [J]

Between capsule layers poses are divided by a running RMS: a constant by now, folded into the next layer's rotations.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from qcn.errors import UsageError
from qcn.limits import MAX_ITERATIONS

Array = NDArray[Any]


@dataclass(frozen=True)
class Capsules:
    """A capsule layer: its name (the prefix of its arrays), kernel side (None: the whole map) and stride."""

    name: str
    kernel: int | None
    stride: int = 1


@dataclass(frozen=True)
class Structure:
    """How the arrays make a network; see the top of this file. Stacks are given by the strides of their blocks."""

    channels: int
    height: int
    width: int
    classes: int
    stem: tuple[int, ...]
    pose: tuple[int, ...]
    activation: tuple[int, ...]
    capsules: tuple[Capsules, ...]
    iterations: int
    mode: Literal["logistic", "unit"]
    variance_floor: float
    mass_floor: float

    def __post_init__(self) -> None:
        """Refuse what is no structure: it may come from a file."""
        counts = (self.channels, self.height, self.width, self.classes, self.iterations)
        strides = (*self.stem, *self.pose, *self.activation, *(layer.stride for layer in self.capsules))
        kernels = [layer.kernel for layer in self.capsules]
        right = (
            all(type(count) is int and count > 0 for count in (*counts, *strides))
            and all(type(layer.name) is str for layer in self.capsules)
            and all(type(kernel) is int and kernel > 0 for kernel in kernels[:-1])
            and kernels[-1:] == [None]
            and self.iterations <= MAX_ITERATIONS
            and math.prod(self.pose) == math.prod(self.activation)  # both branches end on the same map
            and self.mode in ("logistic", "unit")
            and all(type(floor) is float and floor > 0 for floor in (self.variance_floor, self.mass_floor))
        )
        if not right:
            raise UsageError(f"this is not the structure of a capsule network: {self}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(record: Any) -> "Structure":
        """The inverse of `to_json`, for a record that may have been altered."""
        try:
            known = {field.name: record[field.name] for field in fields(Structure)}
            for stack in ("stem", "pose", "activation"):
                known[stack] = tuple(known[stack])
            known["capsules"] = tuple(Capsules(**layer) for layer in known["capsules"])
            return Structure(**known)
        except (KeyError, TypeError) as error:
            raise UsageError(f"this is not the structure of a capsule network: {error!r} in {record}") from error


@dataclass(frozen=True)
class Site:
    """A capsule layer where it stands in the network: C types of children on a map, J types of parents on theirs."""

    name: str
    children: int
    height: int
    width: int
    window: tuple[int, int]
    stride: int
    parents: int
    rows: int
    columns: int

    @property
    def window_children(self) -> int:
        """I: how many children a window has."""
        return self.children * self.window[0] * self.window[1]


@dataclass(frozen=True)
class Network:
    """The structure and its arrays, float32."""

    structure: Structure
    arrays: dict[str, Array]

    def __post_init__(self) -> None:
        """Refuse arrays that do not make the network: they may come from a file."""
        expected = dict(_shapes(self.structure, self.arrays))
        if unknown := sorted(self.arrays.keys() ^ expected.keys()):
            raise UsageError(f"the weights are of another network: '{unknown[0]}' is in one and not in the other")
        for name, shape in expected.items():
            if self.arrays[name].shape != shape or self.arrays[name].dtype != np.float32:
                found = f"{self.arrays[name].dtype} {list(self.arrays[name].shape)}"
                raise UsageError(f"the weights do not fit: '{name}' must be float32 {list(shape)}, not {found}")
        if any(site.rows < 1 or site.columns < 1 for site in self.sites()):
            size = f"{self.structure.height}×{self.structure.width}"
            raise UsageError(f"images of {size} are too small for this network: a capsule layer is left no place")

    def sites(self) -> Iterator[Site]:
        """The capsule layers, first to last."""
        height, width = self.structure.height, self.structure.width
        for stride in (*self.structure.stem, *self.structure.pose):
            height, width = -(-height // stride), -(-width // stride)
        for layer in self.structure.capsules:
            _, _, children, parents, _, _ = self.arrays[f"{layer.name}.rotation"].shape
            window = (layer.kernel, layer.kernel) if layer.kernel else (height, width)
            rows, columns = (height - window[0]) // layer.stride + 1, (width - window[1]) // layer.stride + 1
            yield Site(layer.name, children, height, width, window, layer.stride, parents, rows, columns)
            height, width = rows, columns


def _shapes(structure: Structure, arrays: dict[str, Array]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every array that the structure needs, by name, with the shape that it must have next to its neighbours."""

    def width_of(name: str) -> int:
        """How many channels a weight makes: its own choice, where it is there at all."""
        return arrays[name].shape[0] if name in arrays and arrays[name].ndim else 0

    def stack(name: str, strides: tuple[int, ...], channels: int, raw: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
        if strides and raw:
            yield f"{name}.scale", (channels,)
            yield f"{name}.shift", (channels,)
        for block in range(len(strides)):
            out = width_of(f"{name}.{block}.conv1.weight")
            yield f"{name}.{block}.conv1.weight", (out, channels, 3, 3)
            yield f"{name}.{block}.conv1.bias", (out,)
            yield f"{name}.{block}.conv2.weight", (out, out, 3, 3)
            yield f"{name}.{block}.conv2.bias", (out,)
            yield f"{name}.{block}.skip.weight", (out, channels, 1, 1)
            channels = out

    def out_of(name: str, strides: tuple[int, ...], channels: int) -> int:
        return width_of(f"{name}.{len(strides) - 1}.conv1.weight") if strides else channels

    yield from stack("stem", structure.stem, structure.channels, raw=True)
    trunk = out_of("stem", structure.stem, structure.channels)
    capsules = width_of("activation.projection.weight")
    for name, strides, out in (("pose", structure.pose, 3 * capsules), ("activation", structure.activation, capsules)):
        yield from stack(name, strides, trunk, raw=not structure.stem)
        yield f"{name}.projection.weight", (out, out_of(name, strides, trunk), 1, 1)
        yield f"{name}.projection.bias", (out,)
    for layer in structure.capsules:
        name = f"{layer.name}.rotation"
        places = layer.kernel or 1
        given = arrays[name].shape if name in arrays and arrays[name].ndim == 6 else (0,) * 6
        parents = given[3] if layer.kernel else structure.classes
        yield name, (places, places, capsules, parents, 3, 3)
        yield f"{layer.name}.beta_u", (parents,)
        yield f"{layer.name}.beta_a", (parents,)
        capsules = parents
