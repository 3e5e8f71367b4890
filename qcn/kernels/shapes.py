"""How a layer routes, and the check of shapes before every kernel: it would read past the end of too small a tensor."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from qcn.errors import UsageError
from qcn.limits import STATISTICS

Inputs = Sequence[Tensor]  # pose, activation, rotation, beta_u, beta_a: see `qcn.routing.route`
Shape = tuple[int, ...]


class Layer(NamedTuple):
    """How a layer routes its inputs. With `logit`, z comes out in place of the activation."""

    window: tuple[int, int]
    stride: int
    iterations: int
    unit: bool
    logit: bool


def check_map(inputs: Inputs, window: tuple[int, int], stride: int) -> tuple[int, int]:
    """The rows and columns of the parents' map, once pose [B, C, 3, H, W] and the rest are seen to fit together."""
    pose, activation, rotation, beta_u, beta_a = inputs
    if pose.ndim != 5 or rotation.ndim != 6:
        shapes = f"{list(pose.shape)} and {list(rotation.shape)}"
        raise UsageError(f"routing: expected pose [B, C, 3, H, W] and rotation [kh, kw, C, J, 3, 3], got {shapes}")
    batch, channels, _, height, width = pose.shape
    parents, shared = rotation.shape[3], rotation.shape[:2] == (1, 1)
    if stride < 1 or not (1 <= window[0] <= height and 1 <= window[1] <= width):
        raise UsageError(
            f"routing: windows of {window[0]}×{window[1]}, stride {stride}, do not fit a map of {height}×{width}"
        )
    check_shapes(
        {
            "pose": (pose, (batch, channels, 3, height, width)),
            "activation": (activation, (batch, channels, height, width)),
            "rotation": (rotation, (*((1, 1) if shared else window), channels, parents, 3, 3)),
            "beta_u": (beta_u, (parents,)),
            "beta_a": (beta_a, (parents,)),
        }
    )
    return (height - window[0]) // stride + 1, (width - window[1]) // stride + 1


def output_shapes(inputs: Inputs, layer: Layer) -> tuple[Shape, Shape, Shape]:
    """The shapes of the parents' pose and activation, and of the statistics that the backward pass needs.

    It is called before every kernel, since it refuses inputs that do not fit together.
    """
    rows, columns = check_map(inputs, layer.window, layer.stride)
    batch, parents = inputs[0].shape[0], inputs[2].shape[3]
    saved = (layer.iterations, STATISTICS, batch * rows * columns, parents)
    return (batch, parents, 3, rows, columns), (batch, parents, rows, columns), saved


def check_upstream(
    shapes: tuple[Shape, Shape, Shape], statistics: Tensor, grad_pose: Tensor, grad_activation: Tensor
) -> None:
    """What a backward pass is given beside the inputs: what the forward pass kept, and the gradients of its outputs."""
    names, tensors = ("grad_pose", "grad_activation", "statistics"), (grad_pose, grad_activation, statistics)
    check_shapes(dict(zip(names, zip(tensors, shapes, strict=True), strict=True)))


def check_rotors(theta: Tensor, axis: Tensor, grad: Tensor | None = None) -> None:
    """Angles [...], axes [..., 3], and the gradient of their rotations [..., 3, 3]."""
    expected = {"axis of theta": (axis, (*theta.shape, 3))}
    if grad is not None:
        expected["grad of theta"] = (grad, (*theta.shape, 3, 3))
    check_shapes(expected)


def check_shapes(expected: dict[str, tuple[Tensor, tuple[int, ...]]]) -> None:
    """Tensors by name, each with the shape that it must have."""
    for name, (tensor, shape) in expected.items():
        if tensor.shape != shape:
            raise UsageError(f"routing: {name} must be {list(shape)}, not {list(tensor.shape)}")
