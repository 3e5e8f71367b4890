"""What a network must do to be shipped, from the options of `qcn ship-check`. What cannot be meant is refused."""

import math
import re
from dataclasses import dataclass
from typing import Literal

from qcn.errors import UsageError

Percentile = Literal["p50", "p90", "p95", "p99"]
PERCENTILES: tuple[Percentile, ...] = ("p50", "p90", "p95", "p99")
MILLISECONDS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}
MIB = {"KiB": 2**-10, "MiB": 1.0, "GiB": 2.0**10, "kB": 1e3 / 2**20, "MB": 1e6 / 2**20, "GB": 1e9 / 2**20}
DEGREES = {"deg": 1.0, "°": 1.0}
MILLIJOULES = {"uJ": 1e-3, "µJ": 1e-3, "mJ": 1.0, "J": 1e3}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"


@dataclass(frozen=True)
class LatencyLimit:
    """Milliseconds that one inference may take, at a percentile of the runs."""

    milliseconds: float
    percentile: Percentile


@dataclass(frozen=True)
class Angle:
    """Degrees that told directions may be off, at a percentile of the images."""

    degrees: float
    percentile: Percentile


@dataclass(frozen=True)
class Limits:
    """The limits; None where there is none.

    accuracy, calibration_error   shares, from 0 to 1
    memory                        MiB
    energy                        millijoules of one inference
    """

    accuracy: float | None = None
    calibration_error: float | None = None
    latency: LatencyLimit | None = None
    memory: float | None = None
    energy: float | None = None
    direction_error: Angle | None = None

    @staticmethod
    def parse(
        accuracy: str | None,
        calibration_error: str | None,
        latency: str | None,
        memory: str | None,
        energy: str | None,
        direction_error: str | None = None,
    ) -> "Limits":
        """From the texts of the options, of which one at least must be given."""
        if (accuracy, calibration_error, latency, memory, energy, direction_error) == (None,) * 6:
            raise UsageError(
                "no limit was given: give at least one, such as --min-accuracy 0.94 or --max-latency 5ms@p99"
            )
        return Limits(
            _share("--min-accuracy", accuracy, "0.94 or 94%"),
            _share("--set max_calibration_error", calibration_error, "0.05 or 5%"),
            None if latency is None else parse_latency(latency),
            None if memory is None else _amount("--max-memory", memory, MIB, "200MiB"),
            None if energy is None else _amount("--set max_energy", energy, MILLIJOULES, "30mJ"),
            None if direction_error is None else parse_angle(direction_error),
        )


def parse_latency(text: str) -> LatencyLimit:
    """5ms@p99; without a percentile it is the 99th."""
    return LatencyLimit(*_at_percentile("--max-latency", text, "a time", MILLISECONDS, "5ms@p99", "p99"))


def parse_angle(text: str) -> Angle:
    """20deg@p50; without a percentile it is the median."""
    return Angle(*_at_percentile("--max-direction-error", text, "an angle", DEGREES, "20deg@p50", "p50"))


def _at_percentile(
    option: str, text: str, what: str, units: dict[str, float], example: str, default: Percentile
) -> tuple[float, Percentile]:
    value, at, percentile = text.partition("@")
    if at and percentile.strip() not in PERCENTILES:
        names = ", ".join(PERCENTILES)
        raise UsageError(f"{option} takes {what} at one of {names}, such as {example}, not '{text}'")
    result = next((one for one in PERCENTILES if one == percentile.strip()), default)
    return _amount(option, value, units, example, text), result


def _share(option: str, text: str | None, example: str) -> float | None:
    """A share between 0 and 1: neither can be shown with any number of images."""
    if text is None:
        return None
    match = re.fullmatch(rf"({_NUMBER}) ?(%?)", text.strip())
    value = float(match[1]) / (100 if match[2] else 1) if match else math.nan
    if not 0 < value < 1:
        raise UsageError(f"{option} takes a share between 0 and 1, such as {example}, not '{text}'")
    return value


def _amount(option: str, text: str, units: dict[str, float], example: str, whole: str | None = None) -> float:
    """A number with its unit, in the unit that counts 1."""
    match = re.fullmatch(rf"({_NUMBER}) ?([A-Za-zµ°]+)", text.strip())
    value = float(match[1]) * units.get(match[2], math.nan) if match else math.nan
    if not 0 < value < math.inf:
        raise UsageError(
            f"{option} takes a number over 0 with a unit ({', '.join(units)}), such as {example}, not '{whole or text}'"
        )
    return value
