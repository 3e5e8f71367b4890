"""From where an object is seen: what the pose of its class capsule says. No torch here.

    object frame: +x is the object's front, +y its left, +z up
    a camera at azimuth α and elevation ε sees it from d = (cos ε cos α, cos ε sin α, sin ε)

Training turns the pose of the true class towards d (qcn/train/losses.py). The pose of the answer, divided by its
length, is the predicted direction. Rotation of the picture in its own plane is not predicted.

A class has a symmetry: 1 for none; n if it looks the same from azimuths α and α + 360°/n; ROUND, 0, if it looks the
same from every azimuth. A round class has no direction. Of equivalent directions, errors count from the nearest one.

libqcn (deploy/src/answer.cpp) and the page (its answers.js) do the same; tests/directions.json holds all to it.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qcn.errors import UsageError

ROUND = 0
COVERAGE = 0.9  # the share of validation images whose true direction lies within the spread
BINS, FEWEST = 4, 50  # of pose length, each with its own spread; and the images that a bin needs

Degrees = NDArray[np.float64]


@dataclass(frozen=True)
class Direction:
    """From where an object is seen, in degrees.

    azimuth     from 0 to 360; of a class with n-fold symmetry from 0 to 360/n
    elevation   from -90 to 90; None if the network was trained on azimuths only
    vector      the same as a unit vector in the object's frame
    spread      the truth lies within this angle 90 times out of 100, as far as validation images can tell
    """

    azimuth: float
    elevation: float | None
    vector: tuple[float, float, float]
    spread: float

    def angles(self) -> str:
        """For people: azimuth 120°, elevation 30°."""
        up = "" if self.elevation is None else f", elevation {_whole(self.elevation)}°"
        return f"azimuth {_whole(self.azimuth) % 360}°{up}"

    def words(self) -> str:
        """For people: azimuth 120°, elevation 30° (± 12°)."""
        return f"{self.angles()} (± {_whole(self.spread)}°)"


@dataclass(frozen=True)
class Directions:
    """What makes directions of a network's poses, fitted on validation images.

    symmetry    of each class
    elevation   whether elevations were trained; False: azimuths only, as from a turntable
    lengths     rising limits between bins of pose length
    spreads     of each bin, in degrees: one more than there are limits
    """

    symmetry: tuple[int, ...]
    elevation: bool
    lengths: tuple[float, ...]
    spreads: tuple[float, ...]

    def __post_init__(self) -> None:
        if odd := [one for one in self.symmetry if not 0 <= one <= 360]:
            raise UsageError(f"a symmetry is 0 (round), 1 (none) or up to 360 (n-fold), not {odd[0]}")
        if len(self.spreads) != len(self.lengths) + 1:
            raise UsageError(f"{len(self.lengths)} limits of pose length need one spread more, not {len(self.spreads)}")
        if not all(low < high for low, high in zip((0.0, *self.lengths), (*self.lengths, math.inf), strict=True)):
            raise UsageError(f"the limits of pose length must be positive and rise, not {list(self.lengths)}")
        if odd_spreads := [one for one in self.spreads if not 0 <= one <= 180]:
            raise UsageError(f"a spread is from 0 to 180 degrees, not {odd_spreads[0]}")

    def pointing(self, pose: NDArray[np.floating], label: NDArray[np.integer]) -> NDArray[np.float64]:
        """The poses [N, 3] of classes `label` [N] among poses [N, classes, 3]; without elevations z is 0."""
        own: NDArray[np.float64] = pose[np.arange(len(label)), label] * np.array([1, 1, float(self.elevation)])
        return own

    def symmetry_of(self, label: NDArray[np.integer]) -> NDArray[np.int64]:
        """Of each of these classes, [N]."""
        return np.array(self.symmetry, np.int64)[label]

    def of(self, pose: NDArray[np.floating], label: int) -> Direction | None:
        """The direction that the pose [3] of an answer says; None for a round class, or a pose of length 0."""
        x, y, z = (float(number) for number in pose)
        if not self.elevation:
            z = 0.0
        length = math.sqrt(x * x + y * y + z * z)
        symmetry = self.symmetry[label]
        if symmetry == ROUND or not 0 < length < math.inf:
            return None
        azimuth = math.degrees(math.atan2(y, x)) % (360 / symmetry)
        if azimuth == 360 / symmetry:  # just below 0, and rounded up
            azimuth = 0.0
        elevation = math.degrees(math.atan2(z, math.hypot(x, y)))
        place = sum(length >= limit for limit in self.lengths)
        level = math.cos(math.radians(elevation))
        vector = (level * math.cos(math.radians(azimuth)), level * math.sin(math.radians(azimuth)), z / length)
        return Direction(azimuth, elevation if self.elevation else None, vector, self.spreads[place])


def _whole(degrees: float) -> int:
    return math.floor(degrees + 0.5)  # as libqcn and the page round halves


def direction_vector(azimuth: ArrayLike, elevation: ArrayLike) -> NDArray[np.float64]:
    """Unit vectors [..., 3] from angles in degrees [...]."""
    around, up = np.radians(np.asarray(azimuth, np.float64)), np.radians(np.asarray(elevation, np.float64))
    return np.stack([np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up) + 0 * around], axis=-1)


def angle_between(one: NDArray[np.floating], other: NDArray[np.floating]) -> Degrees:
    """Degrees [...] between vectors [..., 3] of any length; exact for small angles too."""
    across = np.linalg.norm(np.cross(one, other), axis=-1)
    angle: Degrees = np.degrees(np.arctan2(across, (one * other).sum(-1)))
    return angle


@dataclass(frozen=True)
class DirectionErrors:
    """Angles between predicted and true directions, in degrees, of so many images.

    within_15, within_30   shares of images that are off by no more than that
    coverage               the share whose true direction lies within the spread of the answer: 0.9 is expected
    """

    images: int
    median: float
    mean: float
    within_15: float
    within_30: float
    coverage: float

    @classmethod
    def of(cls, errors: Degrees, spreads: Degrees) -> "DirectionErrors | None":
        """None without images."""
        if not len(errors):
            return None
        shares = (float((errors <= limit).mean()) for limit in (15, 30, spreads))
        return cls(len(errors), float(np.median(errors)), float(errors.mean()), *shares)


def fit_directions(
    symmetry: tuple[int, ...], elevation: bool, length: NDArray[np.floating], error: Degrees
) -> Directions:
    """Spreads from validation images: `length` [N] of the true class's pose, and `error` [N]; NaN ones are left out.

    Images are sorted into bins of pose length. The spread of a bin is its conformal quantile: of n errors the
    ⌈(n + 1) · COVERAGE⌉-th smallest (Vovk et al. 2005), 180° if there are too few.
    """
    counted = np.isfinite(error)
    length, error = length[counted].astype(np.float64), error[counted]
    bins = max(1, min(BINS, len(error) // FEWEST))
    limits = np.unique(np.quantile(length, np.arange(1, bins) / bins)) if bins > 1 else np.empty(0)
    limits = limits[limits > 0]
    place = np.searchsorted(limits, length, side="right")
    spreads = tuple(_conformal(np.sort(error[place == one])) for one in range(len(limits) + 1))
    return Directions(symmetry, elevation, tuple(map(float, limits)), spreads)


def _conformal(errors: Degrees) -> float:
    rank = math.ceil((len(errors) + 1) * COVERAGE)
    return float(errors[rank - 1]) if rank <= len(errors) else 180.0
