"""What is counted on one split: errors, overall, by class and by viewpoint, and how good the probabilities are."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qcn.data.imageset import Angles, ImageSet
from qcn.evaluate.directions import DirectionResult
from qcn.evaluate.request import TOP
from qcn.intervals import ErrorRate
from qcn.networks.confidence import calibration_error, check_finite, order


@dataclass(frozen=True)
class Answers:
    """What a network says of a split's images: logits and probabilities, both [images, classes].

    known   which images [images] it calls known; None where it has no threshold, and calls all of them so
    pose    [images, classes, 3]; None where the network tells no directions
    """

    logit: NDArray[np.float32]
    probability: NDArray[np.float64]
    known: NDArray[np.bool_] | None = None
    pose: NDArray[np.floating] | None = None

    def __post_init__(self) -> None:
        check_finite(self.logit, "the network")

    @property
    def predicted(self) -> NDArray[np.int64]:
        """The class of the largest logit."""
        return self.logit.argmax(1)


@dataclass(frozen=True)
class ClassError:
    """The errors on images of one class. `rate` is None where the split has none of it.

    `taken_for` is the class that they are most often mistaken for, so many `times`; None where no image is.
    """

    name: str
    rate: ErrorRate | None
    taken_for: str | None
    times: int


@dataclass(frozen=True)
class TopError:
    """How often the true class is not among the `k` classes of the largest logits."""

    k: int
    rate: ErrorRate


@dataclass(frozen=True)
class Unknown:
    """Pictures of other things, of a folder or data set of this name.

    called_known   how many of them the network calls known: false positives
    auroc          the share of pairs, of an image of the split and one of them, in which the first has the larger score
    """

    name: str
    called_known: ErrorRate
    auroc: float


@dataclass(frozen=True)
class Result:
    """What `qcn evaluate` finds on one split. `confusion[t][p]` counts images of class t predicted as class p.

    top                None where there are no more than k classes
    calibration_error  the expected one, of `qcn.networks.confidence`
    called_unknown     right answers that the network calls unknown; None without a threshold, or where none is right
    unknown            what it says of pictures of other things
    direction          how far directions are off; None where the network tells none, or the images have none
    """

    split: str
    overall: ErrorRate
    confusion: list[list[int]]
    by_azimuth: dict[int, ErrorRate] | None
    by_elevation: dict[int, ErrorRate] | None
    by_class: list[ClassError]
    top: TopError | None
    calibration_error: float
    called_unknown: ErrorRate | None
    unknown: tuple[Unknown, ...] = ()
    direction: DirectionResult | None = None


def measure_answers(split: str, images: ImageSet, answers: Answers, top: int = TOP) -> Result:
    """Everything that can be counted on the split alone. `top` is the k of the top-k error."""
    confusion = np.zeros((len(images.classes),) * 2, dtype=np.int64)
    np.add.at(confusion, (images.labels, answers.predicted), 1)
    wrong = answers.predicted != images.labels
    known = None if answers.known is None else answers.known[~wrong]

    def by(angles: Angles) -> dict[int, ErrorRate] | None:
        whole = np.rint(angles)
        values = np.unique(whole[np.isfinite(angles)])
        if len(values) < 2:  # a set of one elevation does not vary in it
            return None
        return {
            int(value): ErrorRate.of(int(wrong[whole == value].sum()), int((whole == value).sum())) for value in values
        }

    return Result(
        split,
        ErrorRate.of(int(wrong.sum()), len(wrong)),
        confusion.tolist(),
        by(images.views.azimuth) if images.views else None,
        by(images.views.elevation) if images.views else None,
        [_class_error(images.classes, label, row) for label, row in enumerate(confusion)],
        _top_error(answers.logit, images.labels, top),
        calibration_error(answers.probability, images.labels),
        None if known is None or not len(known) else ErrorRate.of(int((~known).sum()), len(known)),
    )


def _class_error(classes: tuple[str, ...], label: int, counts: NDArray[np.int64]) -> ClassError:
    """From the class's row of the confusion matrix."""
    others = counts.copy()
    others[label] = 0
    total, most = int(counts.sum()), int(others.argmax())
    times = int(others[most])
    return ClassError(
        classes[label],
        ErrorRate.of(int(others.sum()), total) if total else None,
        classes[most] if times else None,
        times,
    )


def _top_error(logit: NDArray[np.float32], labels: NDArray[np.int64], k: int) -> TopError | None:
    if k >= logit.shape[1]:
        return None
    best = order(logit)[:, :k]
    return TopError(k, ErrorRate.of(int((best != labels[:, None]).all(1).sum()), len(labels)))
