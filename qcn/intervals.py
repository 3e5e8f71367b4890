"""The uncertainty of a counted share. Without scipy, which a device does not have."""

import math
from dataclasses import dataclass
from statistics import NormalDist

NORMAL = NormalDist().inv_cdf(0.975)  # a normal deviate is within this many standard deviations 95 times out of 100


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
