"""What was found against what was asked: one row each. Nothing is measured here.

An accuracy is judged by its 95 % interval (Wilson's), since another sample of images would give another share:

    passed      the whole interval is at or above the limit: its lower bound is
    failed      the whole interval is below it: its upper bound is
    not shown   the limit is inside; that is not passed, and the row says how many images would settle it

The limit L is inside Wilson's interval of a share p of n images exactly if |p - L| <= z sqrt(L (1 - L) / n), so
n = z² L (1 - L) / (p - L)² images, with the same share of right answers, would have it outside.

A calibration error, an angle, a time, memory and energy are judged by what was measured. What could not be measured, or
not on the machine that it is asked of, is not tested, and never passed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qcn.intervals import NORMAL
from qcn.verify.parity.compare import Share
from qcn.verify.parity.verdict import Verdict
from qcn.verify.ship.limits import Angle, LatencyLimit
from qcn.verify.speed.latency import Speed
from qcn.verify.words import amount, milliseconds, share_of_allowed

Words = Callable[[float], str]  # an amount with its unit
Status = Literal["passed", "failed", "not shown", "not tested", "no limit"]
NO_METER = "nothing here tells the energy: that needs an NVIDIA GPU with NVML (pip install nvidia-ml-py), or a Jetson"


@dataclass(frozen=True)
class LimitRow:
    """One limit: its name, limit and value in words, the verdict, and a note.

    `limit` and `value` are the same as numbers: shares, milliseconds, MiB, millijoules; None where there is none.
    """

    name: str
    asked: str
    found: str
    status: Status
    note: str = ""
    limit: float | None = None
    value: float | None = None


def percent(value: float) -> str:
    """94 %, 93.08 %, 0.039 %."""
    return f"{100 * value:.4g} %" if value >= 0.1 else f"{100 * value:.2g} %"


def interval(share: Share) -> str:
    """91.5 to 94.3 %."""
    return f"{100 * share.low:.2f} to {100 * share.high:.2f} %"


def at_least(limit: float | None) -> str:
    """A lower limit in words."""
    return "" if limit is None else f"at least {percent(limit)}"


def accuracy(split: str, share: Share, limit: float | None) -> LimitRow:
    """The share of right answers on a split, against the least that is asked."""
    value = share.right / share.of
    result = f"{percent(value)} ({interval(share)}) of {share.of:,} images"
    name, limit_words = f"accuracy on {split}", at_least(limit)
    if limit is None:
        return LimitRow(name, limit_words, result, "no limit", value=value)
    if share.low >= limit:
        status: Status = "passed"
        note = f"the lower bound of the 95 % interval, {percent(share.low)}, is not below the limit"
    elif share.high < limit:
        status = "failed"
        note = f"the upper bound of the 95 % interval, {percent(share.high)}, is below the limit"
    else:
        status, note = "not shown", f"the limit lies inside the 95 % interval; {_settled(value, limit)}"
    return LimitRow(name, limit_words, result, status, note, limit, value)


def _settled(value: float, limit: float) -> str:
    """How many images would decide it, at the same accuracy."""
    if value == limit:
        return "no number of images tells a share from a limit that it equals"
    needed = math.floor(NORMAL**2 * limit * (1 - limit) / (value - limit) ** 2) + 1
    way = "show that it is met" if value > limit else "show that it is not met"
    return f"about {needed:,} images, answered as well as these, would {way}"


def calibration(split: str, error: float, calibrated: bool, limit: float | None) -> LimitRow:
    """The expected calibration error on a split, against the most that is allowed."""
    result = percent(error) if calibrated else f"{percent(error)}, not calibrated"
    note = "" if calibrated else "the bundle has no temperature for its probabilities"
    return _below(f"calibration error on {split}", error, limit, result, at_most(percent, limit), note)


def direction(split: str, errors: NDArray[np.float64] | None, limit: Angle | None) -> LimitRow:
    """How far told directions are off on a split, in degrees, of images that are answered right; None: no views."""
    percentile = limit.percentile if limit else "p50"
    name, number = f"{percentile} direction error on {split}", limit.degrees if limit else None
    limit_words = at_most(degrees, number)
    if errors is None or not len(errors):
        why = "the images have no views" if errors is None else "no image that is answered right has a direction"
        return not_tested(name, limit_words, number, why)
    value = float(np.percentile(errors, int(percentile[1:])))
    result = f"{degrees(value)}, of {len(errors):,} images that are answered right"
    return _below(name, value, number, result, limit_words, "")


def parity(verdict: Verdict, preprocessing: Verdict, of_run: Verdict | None = None, run: str | None = None) -> LimitRow:
    """Whether the file answers as the trained network, on the golden images, behind the pre-processing of training.

    `of_run` is what the training run `run` says of the bundle, where one was named.
    """
    name, limit_words = "answers as the trained network", f"deviation within what is allowed in {verdict.precision}"
    for one in filter(None, (of_run, verdict, preprocessing)):
        if one.status == "failed":
            return LimitRow(name, limit_words, f"{one.backend} does not", "failed", one.reasons[0])
    if not verdict.ran:
        return not_tested(name, limit_words, None, verdict.reasons[0])
    result = f"{share_of_allowed(verdict.share or 0.0)}, on {verdict.images} golden images"
    result += f"; the same network as {run}" if run else ""
    note = "" if preprocessing.ran else f"pre-processing was not tested: {preprocessing.reasons[0]}"
    return LimitRow(name, limit_words, result, "passed" if preprocessing.ran else "not tested", note)


def latency(speed: Speed, limit: LatencyLimit | None, elsewhere: str) -> LimitRow:
    """The time of one image at a percentile. `elsewhere` says why it is not that of the target; empty if it is."""
    percentile = limit.percentile if limit else "p99"
    name = f"{percentile} latency"
    limit_words = f"at most {milliseconds(limit.milliseconds)}" if limit else ""
    number = limit.milliseconds if limit else None
    if speed.latency_ms is None:
        return not_tested(name, limit_words, number, speed.missing)
    value = float(getattr(speed.latency_ms, percentile))
    unstable = ", unstable" if speed.unstable else ""
    note = (
        "its median changed by more than 10 % while it was measured: close other programs and repeat"
        if speed.unstable
        else ""
    )
    return _here(_below(name, value, number, f"{milliseconds(value)}{unstable}", limit_words, note), elsewhere)


def memory(speed: Speed, limit: float | None, elsewhere: str) -> LimitRow:
    """What loading and one answer took at most, on host and GPU together, in MiB."""
    limit_words = at_most(_mib, limit)
    parts = _memory_parts(speed)
    if speed.cold is None or None in parts:
        return not_tested("memory", limit_words, limit, speed.missing or "this system does not tell it")
    value = sum(part for part in parts if part is not None)
    return _here(_below("memory", value, limit, _mib(value), limit_words, ""), elsewhere)


def _memory_parts(speed: Speed) -> list[float | None]:
    """Of the host and, where a GPU is used, of that."""
    if speed.cold is None:
        return [None]
    return [speed.cold.host_mib, *([speed.cold.device_mib] if speed.compute_ms else [])]


def energy(speed: Speed, limit: float | None, elsewhere: str) -> LimitRow:
    """That of one inference, idle power included, in millijoules."""
    limit_words = at_most(_millijoules, limit)
    if speed.energy_mj is None:
        return not_tested("energy", limit_words, limit, speed.missing or NO_METER)
    result = f"{_millijoules(speed.energy_mj)}, {speed.energy_of}"
    return _here(_below("energy", speed.energy_mj, limit, result, limit_words, ""), elsewhere)


def not_tested(name: str, limit_words: str, limit: float | None, why: str) -> LimitRow:
    """A row of what could not be measured."""
    return LimitRow(name, limit_words, "–", "not tested", why, limit)


def at_most(words: Words, limit: float | None) -> str:
    """An upper limit in words."""
    return "" if limit is None else f"at most {words(limit)}"


def _below(name: str, value: float, limit: float | None, value_words: str, limit_words: str, note: str) -> LimitRow:
    if limit is None:
        return LimitRow(name, "", value_words, "no limit", note, None, value)
    return LimitRow(name, limit_words, value_words, "passed" if value <= limit else "failed", note, limit, value)


def _here(row: LimitRow, elsewhere: str) -> LimitRow:
    """The row, or the same not tested where the figure is of another machine than the one that it is asked of."""
    if not elsewhere:
        return row
    status: Status = "no limit" if row.status == "no limit" else "not tested"
    return LimitRow(row.name, row.asked, f"{row.found}, on this machine", status, elsewhere, row.limit, row.value)


def degrees(value: float) -> str:
    return f"{amount(value)}°"


def _mib(value: float) -> str:
    return f"{amount(value)} MiB"


def _millijoules(value: float) -> str:
    return f"{amount(value)} mJ"
