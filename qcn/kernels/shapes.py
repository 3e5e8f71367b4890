"""The check of shapes before every kernel: a kernel would read past the end of a tensor that is too small."""

from torch import Tensor

from qcn.errors import UsageError
from qcn.limits import STATISTICS

Grid = tuple[int, int]


def check_map(
    pose: Tensor,
    activation: Tensor,
    rotation: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    window: tuple[int, int],
    stride: int,
) -> Grid:
    """The rows and columns of the parents' map, once pose [B, C, 3, H, W] and the rest are seen to fit together."""
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


def check_upstream(
    statistics: Tensor,
    grad_pose: Tensor,
    grad_activation: Tensor,
    *,
    batch: int,
    parents: int,
    grid: Grid,
    iterations: int,
) -> None:
    """What a backward is given beside the inputs: what the forward kept, and the gradients of what it returned."""
    rows, columns = grid
    check_shapes(
        {
            "statistics": (statistics, (iterations, STATISTICS, batch * rows * columns, parents)),
            "grad_pose": (grad_pose, (batch, parents, 3, rows, columns)),
            "grad_activation": (grad_activation, (batch, parents, rows, columns)),
        }
    )


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
