"""The errors of a network on test images, for a run and the manifests of its bundles. No torch here.

`qcn evaluate RUN` writes them to the run's folder, bound to the weights by their hash; `qcn export` puts it into the
manifest. A run that was trained further, or never evaluated, has none.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from qcn.errors import UsageError
from qcn.storage import records

FILE = "measured.json"
_DATE = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"


@dataclass(frozen=True)
class SplitError:
    """How many images of a test split got a wrong class, and how far probabilities were from right (`confidence`)."""

    split: str
    images: int
    wrong: int
    calibration_error: float

    def __post_init__(self) -> None:
        if not self.split or not self.split.isprintable():
            raise UsageError(f"a split needs a printable name, not {self.split!r}")
        if not 0 <= self.wrong <= self.images or self.images < 1:
            raise UsageError(f"{self.wrong} wrong answers of {self.images} images are not possible")
        if not 0 <= self.calibration_error <= 1:
            raise UsageError(f"a calibration error is from 0 to 1, not {self.calibration_error}")


@dataclass(frozen=True)
class Measured:
    """The errors on the test splits of a data set, and the day (UTC) on which they were measured."""

    data: str
    date: str
    splits: tuple[SplitError, ...]

    def __post_init__(self) -> None:
        if not self.data or not self.data.isprintable():
            raise UsageError(f"the data set needs a printable name, not {self.data!r}")
        if not re.fullmatch(_DATE, self.date):
            raise UsageError(f"a date is written as 2026-11-16, not {self.date!r}")
        if not self.splits:
            raise UsageError("at least one measured split is needed")

    @staticmethod
    def today(data: str, splits: Sequence[SplitError]) -> "Measured":
        return Measured(data, datetime.now(timezone.utc).strftime("%Y-%m-%d"), tuple(splits))


@dataclass(frozen=True)
class RunMeasured:
    """measured.json: the sha256 of the weights file, and what was measured of these weights."""

    weights_sha256: str
    measured: Measured


def write(run: Path, weights_sha256: str, measured: Measured) -> None:
    records.write(run / FILE, RunMeasured(weights_sha256, measured))


def read(run: Path, weights_sha256: str) -> Measured | None:
    """The measurements of these weights; None if there are none, or of other weights."""
    path = run / FILE
    if not path.is_file():
        return None
    result = records.load(RunMeasured, path, "qcn evaluate")
    return result.measured if result.weights_sha256 == weights_sha256 else None
