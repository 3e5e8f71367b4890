"""The true directions of images (`qcn.direction`), to train towards and to measure by. NumPy only, no torch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qcn.data.imageset import ImageSet
from qcn.direction import ROUND, Degrees, angle_between, direction_vector


@dataclass(frozen=True)
class TrueDirections:
    """From where each image of a set is seen: angles in degrees [N], and the symmetry of its class [N].

    An image without a direction, because its class is round or its view unknown, has symmetry ROUND, and both angles 0.
    `elevations`: whether they count; else all are 0, and so is the third number of a pose.
    """

    azimuth: Degrees
    elevation: Degrees
    symmetry: NDArray[np.int64]
    elevations: bool

    def __getitem__(self, rows: slice) -> "TrueDirections":
        return TrueDirections(self.azimuth[rows], self.elevation[rows], self.symmetry[rows], self.elevations)

    def measure(self, pose: NDArray[np.floating]) -> tuple[NDArray[np.float64], Degrees]:
        """The lengths [N] of poses [N, 3], and the degrees [N] that they are off; NaN for those without a direction.

        Of the directions that are equivalent by symmetry, the nearest one counts.
        """
        counted = pose.astype(np.float64) * np.array([1, 1, float(self.elevations)])
        errors = np.full(len(pose), np.nan)
        for fold in np.unique(self.symmetry[self.symmetry != ROUND]):
            rows = self.symmetry == fold
            equivalent = (self.azimuth[rows] + 360 * turn / fold for turn in range(fold))
            true = (direction_vector(azimuth, self.elevation[rows]) for azimuth in equivalent)
            errors[rows] = np.min([angle_between(counted[rows], one) for one in true], axis=0)
        return np.linalg.norm(counted, axis=1), errors


def true_directions(images: ImageSet, elevations: bool) -> TrueDirections | None:
    """The directions of images; None if no image has one."""
    if images.views is None:
        return None
    azimuth = images.views.azimuth.astype(np.float64)
    elevation = images.views.elevation.astype(np.float64) if elevations else np.zeros(len(images))
    has_one = np.isfinite(azimuth) & np.isfinite(elevation)
    symmetry = np.where(has_one, np.array(symmetries(images), np.int64)[images.labels], ROUND)
    if not (symmetry != ROUND).any():
        return None
    return TrueDirections(
        np.where(symmetry == ROUND, 0, azimuth), np.where(symmetry == ROUND, 0, elevation), symmetry, elevations
    )


def has_directions(images: ImageSet) -> bool:
    return true_directions(images, has_elevations(images)) is not None


def symmetries(images: ImageSet) -> tuple[int, ...]:
    """Of each class."""
    return images.symmetry or (1,) * len(images.classes)


def has_elevations(images: ImageSet) -> bool:
    """Whether images differ in elevation. Those of a turntable do not: of them only azimuths are learnt."""
    if images.views is None:
        return False
    known = images.views.elevation[np.isfinite(images.views.elevation)]
    return len(known) > 0 and bool(known.min() < known.max())
