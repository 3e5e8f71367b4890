"""The folder that libqcn records into (deploy/src/field.cpp): counts of answers, and uncertain pictures."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qcn.errors import UsageError
from qcn.evaluate.rates import Answers
from qcn.storage import records

BINS = 20  # of confidence, from 0 to 1
LATENCY_BINS = 100  # the i-th begins at 2^(i/4) microseconds
PICTURE = re.compile(r"uncertain-(\d{8}T\d{9})-\d+-\d+-(\d+)-(\d+)-(known|unknown)\.p[gp]m")


@dataclass(frozen=True)
class Period:
    """Counts from `start` to `end`, in seconds since 1970.

    uncertain   answers below the limit of uncertain pictures
    lost        pictures that should have been kept, but came too fast, or are too large
    confidence  answers by probability, in BINS bins
    latency     answers by time per image, by bin (LATENCY_BINS)
    classes     answers by class
    """

    start: int
    end: int
    answers: int
    unknown: int
    uncertain: int
    lost: int
    confidence: list[int]
    latency: dict[str, int]
    classes: dict[str, int]

    def __post_init__(self) -> None:
        sparse = (*self.latency.values(), *self.classes.values())
        if min(self.answers, self.unknown, self.uncertain, self.lost, *self.confidence, *sparse) < 0:
            raise UsageError("a count is negative")
        if len(self.confidence) != BINS:
            raise UsageError(f"{len(self.confidence)} bins of confidence, not {BINS}")
        if any(not (bin.isdecimal() and int(bin) < LATENCY_BINS) for bin in self.latency):
            raise UsageError(f"a bin of latency is a number below {LATENCY_BINS}")


@dataclass(frozen=True)
class CountsFile:
    """The counts of one model in one program. `weights` is the sha256 of the weights that its bundle was made of."""

    schema: Literal[1]
    libqcn: str
    name: str
    manifest: str
    weights: str
    backend: str
    precision: str
    classes: tuple[str, ...]
    below: float
    periods: list[Period]

    def __post_init__(self) -> None:
        known = {str(index) for index in range(len(self.classes))}
        if odd := [index for one in self.periods for index in one.classes if index not in known]:
            raise UsageError(f"there is no class {odd[0]} of {len(self.classes)}")


@dataclass(frozen=True)
class Counts:
    """Counts of answers: in all, unknown, by probability [BINS], and by class [classes]."""

    answers: int
    unknown: int
    confidence: NDArray[np.int64]
    classes: NDArray[np.int64]

    @staticmethod
    def of_period(period: Period, classes: int) -> "Counts":
        by_class = np.array([period.classes.get(str(index), 0) for index in range(classes)], np.int64)
        return Counts(period.answers, period.unknown, np.array(period.confidence, np.int64), by_class)

    @staticmethod
    def of_answers(answers: Answers, classes: int) -> "Counts":
        """Count answers as libqcn does."""
        sure = answers.probability.max(1)
        bins = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
        unknown = 0 if answers.known is None else int((~answers.known).sum())
        by_class = np.bincount(answers.predicted, minlength=classes)
        return Counts(len(sure), unknown, np.bincount(bins, minlength=BINS), by_class)

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


@dataclass(frozen=True)
class UncertainPicture:
    """A picture that was kept, and the answer to it; times are UTC."""

    path: Path
    time: datetime
    index: int
    probability: float
    known: bool


@dataclass(frozen=True)
class Device:
    """A folder, named after the device. `others` says how many of its files are of another network."""

    name: str
    folder: Path
    files: tuple[CountsFile, ...]
    pictures: tuple[UncertainPicture, ...]
    others: int

    @property
    def classes(self) -> tuple[str, ...]:
        return self.files[0].classes

    @property
    def periods(self) -> list[Period]:
        """Periods with answers, in order."""
        return sorted((one for file in self.files for one in file.periods if one.answers), key=lambda one: one.start)

    @property
    def by_period(self) -> list[Counts]:
        return [Counts.of_period(one, len(self.classes)) for one in self.periods]

    @property
    def counts(self) -> Counts:
        """Of all periods."""
        none = Counts(0, 0, np.zeros(BINS, np.int64), np.zeros(len(self.classes), np.int64))
        return sum(self.by_period, none)

    @property
    def lost(self) -> int:
        return sum(one.lost for one in self.periods)

    def latency(self, share: float) -> float | None:
        """The milliseconds within which this share of the answers came, to the end of their bin; None: no answers."""
        bins = Counter[int]()
        for period in self.periods:
            bins.update({int(bin): count for bin, count in period.latency.items()})
        reached, total = 0, sum(bins.values())
        for place in sorted(bins):
            reached += bins[place]
            if reached >= share * total:
                return float(2 ** ((place + 1) / 4) / 1000)
        return None


def is_recording(folder: Path) -> bool:
    """Whether libqcn recorded into this folder."""
    return next(folder.glob("counts-*.json"), None) is not None


def read_devices(folders: Iterable[Path], weights: str | None) -> list[Device]:
    """The folders' contents, of one network: of these `weights`, or of the file that was written last."""
    files: dict[Path, list[CountsFile]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder that libqcn records into")
        paths = sorted(folder.glob("counts-*.json"))
        if not paths:
            raise UsageError(f"{folder} has no counts-….json: record there with `qcn-camera BUNDLE --field {folder}`")
        files[folder] = [records.load(CountsFile, path, "libqcn") for path in paths]
    names = [folder.absolute().name for folder in files]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"the device {twice[0]} is named twice: name each folder after its device")
    latest = max((one for every in files.values() for one in every), key=_end)
    chosen = latest.weights if weights is None else weights
    devices = []
    for name, (folder, every) in zip(names, files.items(), strict=True):
        own = tuple(one for one in every if one.weights == chosen)
        if not own:
            raise UsageError(f"{folder} has counts of another network only: {', '.join({one.name for one in every})}")
        if len({one.classes for one in own}) > 1:
            raise UsageError(f"{folder}: files of one network name different classes")
        pictures = tuple(_pictures(folder, len(own[0].classes)))
        devices.append(Device(name, folder, own, pictures, len(every) - len(own)))
    return devices


def _end(file: CountsFile) -> int:
    return max((period.end for period in file.periods), default=0)


def _pictures(folder: Path, classes: int) -> Iterator[UncertainPicture]:
    """Pictures in the folder with names that libqcn writes, the newest first."""
    for path in sorted(folder.glob("uncertain-*"), reverse=True):
        if (parts := PICTURE.fullmatch(path.name)) and int(parts[2]) < classes:
            time = datetime.strptime(f"{parts[1]}000", "%Y%m%dT%H%M%S%f").replace(tzinfo=timezone.utc)
            yield UncertainPicture(path, time, int(parts[2]), int(parts[3]) / 1000, parts[4] == "known")
