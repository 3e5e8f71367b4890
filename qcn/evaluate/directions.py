"""How far the directions that a network tells are off, on images of known views that it classifies right."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qcn.data.directions import true_directions
from qcn.data.imageset import ImageSet
from qcn.direction import ROUND, Degrees, DirectionErrors, Directions

MOST = 36  # azimuths that are listed one by one; more are put together by tens of degrees


@dataclass(frozen=True)
class DirectionResult:
    """The directions of one split. By class None for a round class, and for one without a right answer."""

    overall: DirectionErrors
    by_class: dict[str, DirectionErrors | None]
    by_azimuth: dict[int, DirectionErrors]


def errors_of_right_answers(
    images: ImageSet, predicted: NDArray[np.int64], pose: NDArray[np.floating], directions: Directions
) -> Degrees | None:
    """Degrees [N] that directions are off, from poses [N, classes, 3]; None if no image has a direction.

    NaN where it does not count: the answer is wrong, or there is no direction. Symmetries are those that the network
    was trained with.
    """
    truth = true_directions(images, directions.elevation)
    if truth is None:
        return None
    counts = (predicted == images.labels) & (truth.symmetry != ROUND)
    symmetry = np.where(counts, directions.symmetry_of(images.labels), ROUND)
    return replace(truth, symmetry=symmetry).measure(pose[np.arange(len(images)), images.labels])[1]


def measure_directions(
    images: ImageSet,
    predicted: NDArray[np.int64],
    pose: NDArray[np.floating] | None,
    directions: Directions | None,
) -> DirectionResult | None:
    """From poses [N, classes, 3]; None without them, or if no image with a direction is classified right."""
    if pose is None or directions is None or images.views is None:
        return None
    errors = errors_of_right_answers(images, predicted, pose, directions)
    if errors is None:
        return None
    counted = np.isfinite(errors)
    lengths = np.linalg.norm(directions.pointing(pose, images.labels), axis=1)
    spreads = np.array(directions.spreads)[np.searchsorted(directions.lengths, lengths, side="right")]
    azimuth = np.rint(np.nan_to_num(images.views.azimuth)).astype(np.int64) % 360
    if len(np.unique(azimuth[counted])) > MOST:
        azimuth = azimuth // 10 * 10

    def at(rows: NDArray[np.bool_]) -> DirectionErrors | None:
        return DirectionErrors.of(errors[rows & counted], spreads[rows & counted])

    overall = at(counted)
    if overall is None:
        return None
    by_azimuth = {int(value): at(azimuth == value) for value in np.unique(azimuth[counted])}
    return DirectionResult(
        overall,
        {name: at(images.labels == label) for label, name in enumerate(images.classes)},
        {value: result for value, result in by_azimuth.items() if result},
    )
