"""Whether answers in the field are distributed as those that they are compared with.

Pictures of one camera follow each other and are alike, so a thousand of them say less than a thousand independent ones.
Pearson's X² of the two histograms is therefore divided by how much more the periods of the field differ among
themselves than chance explains (the dispersion φ of quasi-likelihood; McCullagh & Nelder 1989, 4.5). X² / φ over its
degrees of freedom then has an F distribution if nothing drifted; the p value is that share of drawn F values which are
as large. A difference that is certain and small is no drift: the distance must be LEAST too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qcn.field.recorded import Counts

FEWEST_PERIODS, FEWEST_ANSWERS = 3, 100  # to say anything
LEVEL = 0.01  # of all tests of a report together
LEAST = 0.1  # of the distance
EXPECTED = 1  # answers in a bin of both histograms, at least: smaller bins are joined with their neighbour
DRAWS = 100_000  # at least, and for many tests so many that the smallest p is a thousandth of one test's share

Bins = NDArray[np.int64]


@dataclass(frozen=True)
class Drift:
    """One histogram of a device against the reference.

    distance   the share of answers that would have to fall into another bin (total variation), from 0 to 1
    p          how often chance alone would differ so much; None: too few answers or periods to say
    """

    what: str
    distance: float
    p: float | None
    drifted: bool


def compare(reference: Counts, periods: Sequence[Counts], tests: int, mix: bool) -> list[Drift]:
    """A device's periods against the reference; `tests` of the report are made in all.

    `mix` compares the shares of the classes too: those of a data set are not those that a device meets.
    """
    histograms = {"probability": (reference.confidence, [one.confidence for one in periods])}
    if reference.unknown or any(one.unknown for one in periods):
        histograms["unknown answers"] = (_two_bins(reference), [_two_bins(one) for one in periods])
    if mix:
        histograms["classes"] = (reference.classes, [one.classes for one in periods])
    return [_drift(what, *pair, tests) for what, pair in histograms.items()]


def _two_bins(counts: Counts) -> Bins:
    return np.array([counts.answers - counts.unknown, counts.unknown])


def _drift(what: str, reference: Bins, periods: list[Bins], tests: int) -> Drift:
    field = sum(periods, np.zeros_like(reference))
    distance = float(np.abs(reference / max(1, reference.sum()) - field / max(1, field.sum())).sum() / 2)
    joined = _joined(reference, field)
    p = p_value(joined(reference), [joined(one) for one in periods], tests)
    return Drift(what, distance, p, p is not None and p * tests < LEVEL and distance >= LEAST)


def _joined(first: Bins, second: Bins) -> Callable[[Bins], Bins]:
    """A function that joins neighbouring bins until each has EXPECTED answers in both, by their shares."""
    total = first.sum() + second.sum()
    expected = (first + second) * min(first.sum(), second.sum()) / max(1, total)
    groups, filled = [0], 0.0
    for place, share in enumerate(expected):
        if filled >= EXPECTED:
            groups.append(place)
            filled = 0.0
        filled += share
    if filled < EXPECTED and len(groups) > 1:
        groups.pop()
    return lambda bins: np.add.reduceat(bins, groups)


def p_value(reference: Bins, periods: Sequence[Bins], tests: int = 1) -> float | None:
    """How often the field would differ so much from the reference by chance; None: too few answers or periods."""
    field = sum(periods, np.zeros_like(reference))
    free = len(reference) - 1
    if len(periods) < FEWEST_PERIODS or min(field.sum(), reference.sum()) < FEWEST_ANSWERS:
        return None
    if free == 0:  # all answers of both are in one bin
        return 1.0
    within = (len(periods) - 1) * free
    dispersion = max(1.0, pearson(periods) / within)
    ratio = pearson([reference, field]) / free / dispersion
    drawn = np.random.default_rng(0).f(free, within, max(DRAWS, 1000 * tests))
    return float((1 + (drawn >= ratio).sum()) / (1 + len(drawn)))


def pearson(histograms: Sequence[Bins]) -> float:
    """X² of the hypothesis that all histograms are samples of one distribution."""
    table = np.stack(histograms).astype(np.float64)
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / table.sum()
    return float(((table - expected) ** 2 / np.where(expected > 0, expected, 1)).sum())
