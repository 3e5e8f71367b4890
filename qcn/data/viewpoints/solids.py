"""Convex solids, the pieces that toys are made of, and the axes along which they are seen. NumPy only."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Point = Sequence[float] | Floats


@dataclass(frozen=True)
class Solid:
    """The points x with |matrix (x − centre)| ≤ 1 and n·x ≤ h for every plane (n, h): a quadric cut by planes.

    matrix [3, 3]  of an ellipsoid or an endless cylinder; all zero where there are only planes
    centre [3]
    planes [K, 4]  rows (n, h) with n of length one; K may be 0
    hull   [P, 3]  points whose convex hull holds the solid, closely: its bounds
    albedo         the part of the light that the surface gives back
    """

    matrix: Floats
    centre: Floats
    planes: Floats
    hull: Floats
    albedo: float

    def moved(self, shift: Floats, scale: float) -> "Solid":
        """The solid after x → scale · (x + shift)."""
        normals, offsets = self.planes[:, :3], self.planes[:, 3]
        planes = np.column_stack([normals, scale * (offsets + normals @ shift)])
        return Solid(
            self.matrix / scale, scale * (self.centre + shift), planes, scale * (self.hull + shift), self.albedo
        )


def view_axes(azimuth: ArrayLike, elevation: ArrayLike) -> Floats:
    """Right, up and towards the viewer, as rows [..., 3, 3], for one who stands at these angles (in degrees)."""
    azimuth, elevation = np.broadcast_arrays(np.radians(azimuth), np.radians(elevation))
    ca, sa, ce, se = np.cos(azimuth), np.sin(azimuth), np.cos(elevation), np.sin(elevation)
    rows = [[-sa, ca, 0 * ca], [-se * ca, -se * sa, ce], [ce * ca, ce * sa, se]]
    return np.stack([np.stack(row, -1) for row in rows], -2)


def _sphere_points(count: int = 48) -> Floats:
    """Points spread over a sphere by the golden angle, a little outside it so that their hull holds it. [count, 3]"""
    z = 1 - (2 * np.arange(count) + 1) / count
    turn = np.arange(count) * np.pi * (3 - 5**0.5)
    radius = np.sqrt(1 - z * z)
    return 1.06 * np.column_stack([radius * np.cos(turn), radius * np.sin(turn), z])


def ellipsoid(centre: Point, radii: Point, albedo: float, pitch: float = 0.0) -> Solid:
    """An ellipsoid with its own x axis raised by `pitch` degrees."""
    c, s = np.cos(np.radians(pitch)), np.sin(np.radians(pitch))
    turn = np.array([[c, 0, -s], [0, 1, 0], [s, 0, c]])
    middle, r = np.asarray(centre, float), np.asarray(radii, float)
    return Solid((turn / r).T, middle, np.zeros((0, 4)), middle + (_sphere_points() * r) @ turn.T, albedo)


def rod(start: Point, end: Point, radius: float, albedo: float) -> Solid:
    """A cylinder from `start` to `end`: a limb, a wheel, a tank."""
    a, b = np.asarray(start, float), np.asarray(end, float)
    axis = (b - a) / np.linalg.norm(b - a)
    across = np.linalg.svd(axis[None])[2][1:]  # [2, 3] two directions at right angles to the axis
    turn = np.arange(16) * np.pi / 8
    rim = 1.02 * radius * (np.cos(turn)[:, None] * across[0] + np.sin(turn)[:, None] * across[1])
    planes = np.array([[*axis, axis @ b], [*-axis, -axis @ a]])
    return Solid((np.eye(3) - np.outer(axis, axis)) / radius, a, planes, np.concatenate([a + rim, b + rim]), albedo)


def prism(outline: ArrayLike, axis: int, low: float, high: float, albedo: float, *, taper: float = 1.0) -> Solid:
    """A convex outline [K, 2] carried along an axis (0, 1, 2 for x, y, z) from `low` to `high`.

    The outline is in the two other coordinates, in order; at `high` it has shrunk about its middle by `taper`.
    """
    base = np.asarray(outline, float)
    middle = (base.min(0) + base.max(0)) / 2
    ends = [np.insert(middle + k * (base - middle), axis, at, axis=1) for k, at in ((1.0, low), (taper, high))]
    inside = np.concatenate(ends).mean(0)
    along = np.eye(3)[axis]
    planes = [[*-along, -low], [*along, high]]
    for a, b, c in zip(ends[0], np.roll(ends[0], -1, 0), ends[1], strict=True):
        normal = np.cross(b - a, c - a)
        normal /= np.linalg.norm(normal) * np.sign(normal @ (a - inside))
        planes.append([*normal, normal @ a])
    return Solid(np.zeros((3, 3)), np.zeros(3), np.array(planes), np.concatenate(ends), albedo)


def box(x: tuple[float, float], half: float, z: tuple[float, float], albedo: float) -> Solid:
    """A box from x[0] to x[1], from −half to half across, and from z[0] to z[1]."""
    return prism([(x[0], -half), (x[1], -half), (x[1], half), (x[0], half)], 2, *z, albedo)
