"""From the histogram of a value to the scale of its int8 numbers: q = round(x / scale), -128 … 127.

minmax       nothing is cut off
percentile   one number in ten thousand is
mse          where the mean squared error of rounding and cutting off together is least
entropy      where the histogram of the rounded numbers is nearest to that of the numbers (Kullback-Leibler), as
             TensorRT's calibrator did it
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from qcn.calibrate.observers import BINS, Observer
from qcn.calibrate.request import Method

LEVELS = 127  # the largest int8 number
KEPT = 0.9999  # by `percentile`
TRIED = 128  # thresholds, by `mse` and `entropy`


def scale_of(observer: Observer, method: Method) -> float:
    """The scale, exactly a float32; 1/127 for a value that is always 0."""
    result = np.float32((min(_THRESHOLDS[method](observer), observer.largest) or 1.0) / LEVELS)
    return float(max(result, np.finfo(np.float32).tiny))


def _percentile(observer: Observer) -> float:
    below = np.cumsum(observer.counts)
    return float((np.searchsorted(below, KEPT * below[-1]) + 1) * observer.top / BINS)


def _mse(observer: Observer) -> float:
    centres, counts = (np.arange(BINS) + 0.5) * observer.top / BINS, np.array(observer.counts, np.float64)
    tried = observer.largest * np.arange(1, TRIED + 1) / TRIED
    steps = tried[:, None] / LEVELS
    off = np.minimum(np.rint(centres / np.maximum(steps, 1e-30)), LEVELS) * steps - centres
    # A bin is narrower than a step, or nearly: what lies beside its centre adds to every threshold alike.
    return float(tried[(counts * off**2).sum(1).argmin()])


def _entropy(observer: Observer) -> float:
    counts = np.array(observer.counts, np.float64)
    counts[0] = 0  # zeros of ReLU are exact at every scale, and would outweigh all the rest
    used = int(np.flatnonzero(counts).max(initial=0)) + 1
    if used <= LEVELS + 1:
        return observer.largest
    tried = np.unique(np.linspace(LEVELS + 1, used, TRIED).astype(int))
    return float(min(tried, key=lambda bins: _divergence(counts[:used], bins)) * observer.top / BINS)


def _divergence(counts: NDArray[np.float64], bins: int) -> float:
    """How far the first `bins`, the rest cut off onto the last, are from the same in LEVELS + 1 levels."""
    cut = counts[:bins].copy()
    level = np.arange(bins) * (LEVELS + 1) // bins
    filled = cut > 0
    sums = np.bincount(level, cut, LEVELS + 1) / np.maximum(np.bincount(level, filled, LEVELS + 1), 1)
    rounded = np.where(filled, sums[level], 0.0)
    cut[-1] += counts[bins:].sum()
    p, q = cut / max(cut.sum(), 1.0), rounded / max(rounded.sum(), 1.0)
    both = (p > 0) & (q > 0)
    missed = p[(p > 0) & (q == 0)].sum()  # where the rounded have none: as if they had next to none
    return float((p[both] * np.log(p[both] / q[both])).sum() + missed * np.log(1e6))


_THRESHOLDS: dict[Method, Callable[[Observer], float]] = {
    "minmax": lambda observer: observer.largest,
    "entropy": _entropy,
    "percentile": _percentile,
    "mse": _mse,
}
