"""Quaternion algebra: what rotors, rotations and routing are compared with."""

import torch
from torch import Tensor


def hamilton_product(p: Tensor, q: Tensor) -> Tensor:
    """The product p q of two quaternions, [..., 4]."""
    pw, px, py, pz = p.unbind(-1)
    qw, qx, qy, qz = q.unbind(-1)
    return torch.stack(
        [
            pw * qw - px * qx - py * qy - pz * qz,
            pw * qx + px * qw + py * qz - pz * qy,
            pw * qy - px * qz + py * qw + pz * qx,
            pw * qz + px * qy - py * qx + pz * qw,
        ],
        dim=-1,
    )


def conjugate(q: Tensor) -> Tensor:
    """q* = (w, -x, -y, -z), [..., 4]; the inverse of a rotor."""
    return torch.cat([q[..., :1], -q[..., 1:]], dim=-1)


def turned(q: Tensor, v: Tensor) -> Tensor:
    """The imaginary part of q v q* for a rotor q [..., 4] and vectors v [..., 3]."""
    pure = torch.cat([torch.zeros_like(v[..., :1]), v], -1)
    return hamilton_product(hamilton_product(q, pure), conjugate(q))[..., 1:]
