"""Where things lie in the charts of a report; charts.html.jinja draws them.

Along the page everything is in per cent of the chart's width, so that a chart fits a phone and its words keep their
size; heights are in pixels.
"""

import math
from dataclasses import dataclass
from typing import Any

from qcn.verify.records import number, numbers, part

HEIGHT = 72.0  # pixels of a histogram's tallest bar
FURTHEST = 15  # powers of ten of the noise floor that are drawn, either way


@dataclass(frozen=True)
class Bar:
    x: float
    width: float
    height: float


@dataclass(frozen=True)
class Tick:
    x: float
    label: str


@dataclass(frozen=True)
class Histogram:
    """Bars, marks that stand for a value each, and words for those who cannot see it."""

    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]
    spoken: str
    limit: float | None = None  # where what is allowed ends
    beyond: int = 0  # how many are further right than the chart


@dataclass(frozen=True)
class Strip:
    """One backend's latencies on an axis that all share: from the fastest to the 99th percentile, and the median."""

    low: float
    median: float
    ninety: float
    high: float
    spoken: str


def bars(edges: list[float], counts: list[float], low: float, high: float) -> tuple[Bar, ...]:
    """Those that count anything; `low` and `high` are the ends of the axis."""
    if len(edges) != len(counts) + 1 or not counts or high <= low:
        return ()
    tallest, scale = max(*counts, 1.0), 100 / (high - low)
    found = []
    for left, right, count in zip(edges, edges[1:], counts, strict=False):
        start, end = max(left, low), min(right, high)
        if count > 0 and end > start:
            # The smallest bar must be seen: one error far off is the one that matters.
            found.append(Bar(scale * (start - low), scale * (end - start), max(HEIGHT * count / tallest, 2.0)))
    return tuple(found)


def latency_histogram(speed: dict[str, Any]) -> Histogram | None:
    """How many runs took how long, up to the 99th percentile, on an axis of its own."""
    counted = speed.get("histogram")
    edges, counts = numbers(part(counted, "edges")), numbers(part(counted, "counts"))
    found = bars(edges, counts, edges[0], edges[-1]) if len(edges) > 1 else ()
    if not found:
        return None
    longer = int(number(part(counted, "longer")) or 0)
    spoken = f"{sum(counts):.0f} runs from {milliseconds(edges[0])} to {milliseconds(edges[-1])}, {longer} longer"
    return Histogram(found, (Tick(0, milliseconds(edges[0])), Tick(100, milliseconds(edges[-1]))), spoken, None, longer)


def error_axis(outputs: list[dict[str, Any]]) -> tuple[float, float]:
    """One axis for all histograms of errors, in powers of ten of the noise floor.

    It holds every bar that counts anything, the floor itself, and what is allowed.
    """
    filled = [0.0]
    for errors in outputs:
        counted, allowed = errors.get("histogram"), allowed_floors(errors)
        edges, counts = numbers(part(counted, "edges")), numbers(part(counted, "counts"))
        if len(edges) == len(counts) + 1:
            filled += [edge for i, edge in enumerate(edges) if any(counts[max(i - 1, 0) : i + 1])]
            filled += [math.log10(allowed)] if allowed else []
    return max(math.floor(min(filled)), -FURTHEST), min(max(math.ceil(max(filled)), 1), FURTHEST)


def error_histogram(errors: dict[str, Any], axis: tuple[float, float]) -> Histogram | None:
    """How many values are off by how many noise floors, and where the tolerance ends."""
    low, high = axis
    counted = errors.get("histogram")
    edges, counts = numbers(part(counted, "edges")), numbers(part(counted, "counts"))
    found = bars(edges, counts, low, high)
    if not found:
        return None
    worst, allowed = number(errors.get("noise_floor_multiple")), allowed_floors(errors)
    limit = 100 * (math.log10(allowed) - low) / (high - low) if allowed else None
    spoken = f"{sum(counts):.0f} values, the worst off by {floors(worst)}, {floors(allowed)} allowed"
    ticks = tuple(Tick(100 * (power - low) / (high - low), _power(power)) for power in _ticks(low, high))
    return Histogram(found, ticks, spoken, limit if limit is not None and 0 <= limit <= 100 else None)


def allowed_floors(errors: dict[str, Any]) -> float | None:
    """The tolerance in noise floors."""
    values = [number(errors.get(name)) for name in ("tolerance", "noise_floor_multiple", "max_abs", "noise_floor")]
    tolerance, multiple, worst, floor = values
    if not floor and multiple and worst:
        floor = worst / multiple
    return number(tolerance / floor) if tolerance and floor and tolerance / floor > 0 else None


def _ticks(low: float, high: float) -> list[int]:
    step = max(1, math.ceil((high - low) / 4))  # few: two charts stand side by side on a phone
    return [power for power in range(int(low), int(high) + 1) if power % step == 0]


def _power(power: int) -> str:
    return {-1: "0.1", 0: "1", 1: "10"}.get(
        power, "10" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    )


def latency_strips(speeds: list[dict[str, Any]]) -> tuple[list[Strip | None], tuple[Tick, ...]]:
    """All of one batch on one axis of milliseconds, in powers, with the axis' marks."""
    rows = [_four(speed) for speed in speeds]
    values = [value for row in rows if row for value in row]
    if not values:
        return [None] * len(speeds), ()
    left, right = math.log10(min(values)), math.log10(max(values))
    if right - left < 0.3:  # all much the same: leave room on both sides
        left, right = (left + right) / 2 - 0.15, (left + right) / 2 + 0.15
    left, right = left - 0.02 * (right - left), right + 0.02 * (right - left)

    def place(value: float) -> float:
        return 100 * (math.log10(value) - left) / (right - left)

    def strip(low: float, median: float, ninety: float, high: float) -> Strip:
        spoken = f"median {milliseconds(median)}, 99 % within {milliseconds(high)}"
        return Strip(place(low), place(median), place(ninety), place(high), spoken)

    powers = range(max(math.floor(left), -9), min(math.ceil(right), 9) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):  # as many marks as there is room for
        marks = [10.0**power * digit for power in powers for digit in digits]
        ticks = tuple(Tick(place(mark), milliseconds(mark)) for mark in marks if 3 < place(mark) < 97)
        if len(ticks) <= 6:
            break
    return [strip(*row) if row else None for row in rows], ticks


def _four(speed: dict[str, Any]) -> tuple[float, float, float, float] | None:
    """The fastest, the median, the 90th and the 99th percentile, if all are known."""
    low, median, ninety, high = (number(part(speed.get("latency_ms"), name)) for name in ("min", "p50", "p90", "p99"))
    if low is None or median is None or ninety is None or high is None or not 0 < low <= median <= ninety <= high:
        return None
    return low, median, ninety, high


def milliseconds(value: float | None) -> str:
    """With its unit, three digits: 0.172 ms, 23.6 ms, 2.76 s."""
    if value is None:
        return "–"
    return f"{value / 1e3:.3g} s" if value >= 1e3 else f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"


def floors(value: float | None) -> str:
    """A number of noise floors."""
    said = count(value)
    return f"{said} noise floor{'' if said == '1' else 's'}" if value is not None else said


def count(value: float | None) -> str:
    """Two digits if it is small, a power of ten if it is large: 0.62, 59, 4,200, 3.1·10⁵."""
    if value is None:
        return "not finite"
    if value < 10:
        return f"{value:.2g}"
    power = math.floor(math.log10(value))
    return f"{value:,.0f}" if value < 1e4 else f"{value / 10**power:.2g}·{_power(power)}"
