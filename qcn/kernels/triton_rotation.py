"""Rotation matrices from angles and axes on CUDA, and their gradients: one kernel each instead of dozens.

With n the unit axis, R = cos 2θ · 1 + sin 2θ · [n]× + (1 − cos 2θ) n nᵀ: what q v q* does for q = (cos θ, sin θ · n).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from qcn.kernels.shapes import check_rotors

BLOCK = 128
SHORTEST = tl.constexpr(1e-12)  # an axis below this length is not divided by it


@triton.jit
def _unit(axis, at, live):
    x = tl.load(axis + at * 3, mask=live, other=1.0)
    y = tl.load(axis + at * 3 + 1, mask=live, other=0.0)
    z = tl.load(axis + at * 3 + 2, mask=live, other=0.0)
    length = tl.sqrt_rn(x * x + y * y + z * z)
    inverse = tl.div_rn(1.0, tl.maximum(length, SHORTEST))
    return x * inverse, y * inverse, z * inverse, inverse, length


@triton.jit
def _rotation_kernel(theta, axis, out, total, PARENTS: tl.constexpr, BLOCK: tl.constexpr):
    """`out` has the parents last: [total / PARENTS, 9, PARENTS], as the routing kernels read it."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = at < total
    x, y, z, _, _ = _unit(axis, at, live)
    angle = tl.load(theta + at, mask=live, other=0.0)
    sine, cosine = tl.sin(angle), tl.cos(angle)
    s, k = 2 * sine * cosine, 2 * sine * sine
    p = out + at // PARENTS * (9 * PARENTS) + at % PARENTS
    tl.store(p, 1 - k * (y * y + z * z), mask=live)
    tl.store(p + PARENTS, k * x * y - s * z, mask=live)
    tl.store(p + 2 * PARENTS, k * x * z + s * y, mask=live)
    tl.store(p + 3 * PARENTS, k * x * y + s * z, mask=live)
    tl.store(p + 4 * PARENTS, 1 - k * (x * x + z * z), mask=live)
    tl.store(p + 5 * PARENTS, k * y * z - s * x, mask=live)
    tl.store(p + 6 * PARENTS, k * x * z - s * y, mask=live)
    tl.store(p + 7 * PARENTS, k * y * z + s * x, mask=live)
    tl.store(p + 8 * PARENTS, 1 - k * (x * x + y * y), mask=live)


@triton.jit
def _gradient_kernel(theta, axis, grad, grad_theta, grad_axis, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = at < total
    x, y, z, inverse, length = _unit(axis, at, live)
    angle = tl.load(theta + at, mask=live, other=0.0)
    sine, cosine = tl.sin(angle), tl.cos(angle)
    s, c, k = 2 * sine * cosine, 1 - 2 * sine * sine, 2 * sine * sine
    p = grad + at * 9
    xx = tl.load(p, mask=live, other=0.0)
    xy = tl.load(p + 1, mask=live, other=0.0)
    xz = tl.load(p + 2, mask=live, other=0.0)
    yx = tl.load(p + 3, mask=live, other=0.0)
    yy = tl.load(p + 4, mask=live, other=0.0)
    yz = tl.load(p + 5, mask=live, other=0.0)
    zx = tl.load(p + 6, mask=live, other=0.0)
    zy = tl.load(p + 7, mask=live, other=0.0)
    zz = tl.load(p + 8, mask=live, other=0.0)
    # The antisymmetric and the symmetric part of the gradient, the latter on the axis.
    ax, ay, az = zy - yz, xz - zx, yx - xy
    bx = 2 * xx * x + (xy + yx) * y + (xz + zx) * z
    by = (xy + yx) * x + 2 * yy * y + (yz + zy) * z
    bz = (xz + zx) * x + (yz + zy) * y + 2 * zz * z
    along = x * ax + y * ay + z * az
    within = 0.5 * (x * bx + y * by + z * bz)
    trace = (x * x + y * y + z * z) * (xx + yy + zz)
    tl.store(grad_theta + at, 2 * (s * (within - trace) + c * along), mask=live)
    gx, gy, gz = s * ax + k * bx, s * ay + k * by, s * az + k * bz
    radial = tl.where(length > SHORTEST, x * gx + y * gy + z * gz, 0.0)
    tl.store(grad_axis + at * 3, (gx - radial * x) * inverse, mask=live)
    tl.store(grad_axis + at * 3 + 1, (gy - radial * y) * inverse, mask=live)
    tl.store(grad_axis + at * 3 + 2, (gz - radial * z) * inverse, mask=live)


def forward(theta: Tensor, axis: Tensor) -> Tensor:
    """theta [..., J], axis [..., J, 3] -> [..., J, 3, 3], parents last in memory."""
    check_rotors(theta, axis)
    out = theta.new_empty(*theta.shape[:-1], 3, 3, theta.shape[-1])
    with torch.cuda.device_of(theta):
        _rotation_kernel[(triton.cdiv(theta.numel(), BLOCK),)](
            theta.contiguous(), axis.contiguous(), out, theta.numel(), PARENTS=theta.shape[-1], BLOCK=BLOCK
        )
    return out.movedim(-1, -3)


def backward(theta: Tensor, axis: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of theta and axis from that of the rotations."""
    check_rotors(theta, axis, grad)
    theta, axis = theta.contiguous(), axis.contiguous()
    grad_theta, grad_axis = torch.empty_like(theta), torch.empty_like(axis)
    with torch.cuda.device_of(theta):
        _gradient_kernel[(triton.cdiv(theta.numel(), BLOCK),)](
            theta, axis, grad.contiguous(), grad_theta, grad_axis, theta.numel(), BLOCK=BLOCK
        )
    return grad_theta, grad_axis
