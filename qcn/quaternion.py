"""Rotors. The convention of the whole product, stated once:

    a quaternion is [..., 4] in the order (w, x, y, z), w the scalar part;  ij = k, jk = i, ki = j (Hamilton);
    a rotor is a unit quaternion (cos θ, sin θ · axis), and turns a vector v into q v q*: by 2θ about the axis.

The paper drops the usual division of θ by 2 (its equation for w_ij), and so do we.
"""

import torch
from torch import Tensor


def rotor(theta: Tensor, axis: Tensor) -> Tensor:
    """The unit quaternion (cos θ, sin θ · axis/|axis|) from θ [...] and an axis of any length [..., 3]."""
    unit = axis / torch.linalg.vector_norm(axis, dim=-1, keepdim=True).clamp_min(1e-12)
    return torch.cat([theta.cos()[..., None], theta.sin()[..., None] * unit], dim=-1)


def rotation_matrix(q: Tensor) -> Tensor:
    """R(q) [..., 3, 3] with R(q) v = q v q* for a rotor q [..., 4]."""
    w, x, y, z = q.unbind(-1)
    return torch.stack(
        [
            1 - 2 * (y * y + z * z),
            2 * (x * y - w * z),
            2 * (x * z + w * y),
            2 * (x * y + w * z),
            1 - 2 * (x * x + z * z),
            2 * (y * z - w * x),
            2 * (x * z - w * y),
            2 * (y * z + w * x),
            1 - 2 * (x * x + y * y),
        ],
        dim=-1,
    ).unflatten(-1, (3, 3))
