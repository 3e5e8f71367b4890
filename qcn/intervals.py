"""How far a share that was counted can be trusted. Without scipy, which a device does not have."""

import math
from statistics import NormalDist

NORMAL = NormalDist().inv_cdf(0.975)  # a normal deviate is within this many standard deviations, 95 times of 100


def wilson(count: int, total: int) -> tuple[float, float]:
    """The 95 % interval of count / total, by Wilson's formula."""
    share, square = count / total, NORMAL**2 / total
    centre = (share + square / 2) / (1 + square)
    half = NORMAL / (1 + square) * math.sqrt(share * (1 - share) / total + square / (4 * total))
    return max(0.0, centre - half), min(1.0, centre + half)
