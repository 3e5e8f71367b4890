"""The routing operator, fused: `native` (libqcn) on a CPU, `cuda` (Triton) on a GPU. qcn/routing.py calls them."""

import torch

from qcn.kernels import native
from qcn.kernels.operator import rotation, route
from qcn.limits import MAX_PARENTS
from qcn.packages import installed

__all__ = ["obstacle", "rotation", "route"]

TRITON = (3, 6)  # the first whose Gluon has what the kernels use


def obstacle(device: str, dtype: torch.dtype, parents: int) -> str:
    """Why no fused kernel routes such tensors; empty if one does."""
    if parents > MAX_PARENTS:
        return f"a fused kernel takes at most {MAX_PARENTS} parents, not {parents}"
    if device == "cuda":
        if dtype not in (torch.float32, torch.float16, torch.bfloat16):
            return f"there is no fused kernel for {dtype} on a GPU"
        return _without_triton()
    if device == "cpu":
        if dtype != torch.float32:
            return f"there is no fused kernel for {dtype} on a CPU"
        return "" if native.available() else native.why_not()
    return f"there is no fused kernel for the device '{device}'"


# For torch.compile the answer is a constant. torch.compiler.assume_constant_result does the same, but would import all
# of the compiler: five seconds at the start of every command.
obstacle._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _without_triton() -> str:
    if not installed("triton"):
        return "triton is not installed: pip install 'qcn-toolkit[gpu]'"
    import triton

    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < TRITON:
        needed = ".".join(map(str, TRITON))
        return f"triton {triton.__version__} is too old: pip install 'qcn-toolkit[gpu]' brings {needed} or newer"
    return ""
