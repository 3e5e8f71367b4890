"""The uncertainty of a counted share, and of a difference of two. Without scipy, which a device does not have."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

NORMAL = NormalDist().inv_cdf(0.975)  # a normal deviate is within this many standard deviations 95 times out of 100
ONE_SIDED = NormalDist().inv_cdf(0.95)  # and below this many above the mean


def wilson(count: int, total: int) -> tuple[float, float]:
    """The 95 % interval of count / total, by Wilson's formula. It begins at 0 for none, and ends at 1 for all."""
    share, square = count / total, NORMAL**2 / total
    centre = (share + square / 2) / (1 + square)
    half = NORMAL / (1 + square) * math.sqrt(share * (1 - share) / total + square / (4 * total))
    # Rounding would leave 1e-18 where nothing is wrong, and an error bar from there to 0 would be negative.
    return 0.0 if count == 0 else max(0.0, centre - half), 1.0 if count == total else min(1.0, centre + half)


@dataclass(frozen=True)
class ErrorRate:
    """A share of wrong answers with its 95 % interval (Wilson's)."""

    wrong: int
    total: int
    error: float
    low: float
    high: float

    @staticmethod
    def of(wrong: int, total: int) -> "ErrorRate":
        return ErrorRate(wrong, total, wrong / total, *wilson(wrong, total))

    @property
    def complement(self) -> "ErrorRate":
        """The share of the others."""
        return ErrorRate.of(self.total - self.wrong, self.total)


def lost_and_won(right: NDArray[np.bool_], still: NDArray[np.bool_]) -> tuple[int, int]:
    """Of answers that were `right` before a change and those that are so after it: how many are lost, and won."""
    return int((right & ~still).sum()), int((still & ~right).sum())


def paired_drop(lost: int, won: int, total: int) -> tuple[float, float]:
    """The 90 % interval of (lost - won) / total, of answers to the same images before and after a change.

    `lost` were right before and are wrong now, `won` the other way round. The true drop is above the upper end in 5 of
    100 cases. It is the score interval of Tango (1998), which stays honest where next to no answer changes: with none
    of 1,000 it ends at 0.27 points.
    """
    return -_drop_above(won, lost, total), _drop_above(lost, won, total)


def _drop_above(lost: int, won: int, total: int) -> float:
    """The upper end, by bisection: the drop so large that what was seen is ONE_SIDED standard errors below it."""

    def seen_below(drop: float) -> float:
        b = (2 * total - lost + won) * drop - lost - won
        likely_won = (math.sqrt(b * b + 8 * total * won * drop * (1 - drop)) - b) / (4 * total)
        error = math.sqrt(total * (2 * likely_won + drop * (1 - drop)))
        return (total * drop - (lost - won)) / error if error else 0.0

    low, high = max((lost - won) / total, -1.0), 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if seen_below(middle) < ONE_SIDED else (low, middle)
    return high
