"""Where things lie in the charts of a report; charts.html.jinja draws them.

Along the page everything is in per cent of the chart's width, so that a chart fits a phone and its words keep their
size; heights are in pixels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qcn.verify.parity.compare import Errors
from qcn.verify.speed.latency import Latency
from qcn.verify.words import Histogram, milliseconds, share, share_of_allowed

HEIGHT = 72.0  # pixels of a histogram's tallest bar


@dataclass(frozen=True)
class HistogramBar:
    x: float
    width: float
    height: float


@dataclass(frozen=True)
class Tick:
    x: float
    label: str


@dataclass(frozen=True)
class Chart:
    """A histogram: bars, marks that stand for a value each, and words for those who cannot see it."""

    bars: tuple[HistogramBar, ...]
    ticks: tuple[Tick, ...]
    spoken: str
    limit: float | None = None  # where what is allowed ends
    above: int = 0  # how many are further right than the chart


@dataclass(frozen=True)
class Strip:
    """One backend's latencies on an axis that all share: from the fastest to the 99th percentile, and the median."""

    low: float
    median: float
    ninety: float
    high: float
    spoken: str


def bars(histogram: Histogram, low: float, high: float) -> tuple[HistogramBar, ...]:
    """Those that count anything; `low` and `high` are the ends of the axis."""
    edges, counts = histogram.edges, histogram.counts
    if not counts or high <= low:
        return ()
    tallest, scale = max(*counts, 1.0), 100 / (high - low)
    result = []
    for left, right, count in zip(edges, edges[1:], counts, strict=False):
        start, end = max(left, low), min(right, high)
        if count > 0 and end > start:
            # The smallest bar must be seen: one error far off is the one that matters.
            height = max(HEIGHT * count / tallest, 2.0)
            result.append(HistogramBar(scale * (start - low), scale * (end - start), height))
    return tuple(result)


def latency_chart(histogram: Histogram) -> Chart:
    """How many runs took how long, up to the 99th percentile, on an axis of its own."""
    first, last = histogram.edges[0], histogram.edges[-1]
    spoken = f"{sum(histogram.counts)} runs from {milliseconds(first)} to {milliseconds(last)}"
    spoken += f", {histogram.above} longer"
    ticks = (Tick(0, milliseconds(first)), Tick(100, milliseconds(last)))
    return Chart(bars(histogram, first, last), ticks, spoken, None, histogram.above)


def error_axis(errors: Sequence[Errors]) -> tuple[int, int]:
    """One axis for all charts of errors, in powers of ten of what is allowed: every bar, and what is allowed itself."""
    filled = [0.0]
    for histogram in (one.histogram for one in errors if one.histogram):
        counts = histogram.counts
        filled += [edge for i, edge in enumerate(histogram.edges) if any(counts[max(i - 1, 0) : i + 1])]
    return math.floor(min(filled)), max(math.ceil(max(filled)), 1)


def error_chart(errors: Errors, axis: tuple[int, int]) -> Chart | None:
    """How many values are off by which share of what is allowed."""
    result = bars(errors.histogram, *axis) if errors.histogram else ()
    if not result or not errors.histogram:
        return None
    low, high = axis
    spoken = f"{sum(errors.histogram.counts)} values, the worst at {share_of_allowed(errors.share)}"
    step = max(1, math.ceil((high - low) / 2))  # few: labels must not touch, also on a phone
    powers = [power for power in range(low, high + 1) if power % step == 0]
    ticks = tuple(Tick(100 * (power - low) / (high - low), share(10.0**power)) for power in powers)
    return Chart(result, ticks, spoken, 100 * (0 - low) / (high - low))


def latency_strips(latencies: Sequence[Latency]) -> tuple[list[Strip], tuple[Tick, ...]]:
    """All of one batch on one axis of milliseconds, in powers, with the axis' marks."""
    values = [value for latency in latencies for value in (latency.min, latency.p99)]
    if not values:
        return [], ()
    left, right = math.log10(min(values)), math.log10(max(values))
    if right - left < 0.3:  # all much the same: leave room on both sides
        left, right = (left + right) / 2 - 0.15, (left + right) / 2 + 0.15
    left, right = left - 0.02 * (right - left), right + 0.02 * (right - left)

    def place(value: float) -> float:
        return 100 * (math.log10(value) - left) / (right - left)

    def strip(latency: Latency) -> Strip:
        spoken = f"median {milliseconds(latency.p50)}, 99 % within {milliseconds(latency.p99)}"
        return Strip(place(latency.min), place(latency.p50), place(latency.p90), place(latency.p99), spoken)

    powers = range(max(math.floor(left), -9), min(math.ceil(right), 9) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):  # as many marks as there is room for
        marks = [10.0**power * digit for power in powers for digit in digits]
        ticks = tuple(Tick(place(mark), milliseconds(mark)) for mark in marks if 3 < place(mark) < 97)
        if len(ticks) <= 6:
            break
    return [strip(latency) for latency in latencies], ticks
