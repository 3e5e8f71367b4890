"""calibration.json: the ranges and scales of a network's values, and what they were taken from.

They hold for these weights, this pre-processing and these images alone (`Key`): a record of any other is refused. While
ranges are being observed the record has the whole histograms and how many images are `done`, so that an interrupted
calibration resumes there; the copy in a bundle has histograms of few bins, for people.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np

from qcn.calibrate.images import data_sha256
from qcn.calibrate.observers import Observer, observe
from qcn.calibrate.ranges import scale_of
from qcn.calibrate.request import Method
from qcn.data.imageset import ImageSet
from qcn.data.spec import Preprocessing
from qcn.errors import UsageError
from qcn.export.program.program import Program
from qcn.storage import records

SHOWN_BINS = 32
SAVE_EVERY = 8  # batches


@dataclass(frozen=True)
class Key:
    """The sha256 of all that ranges depend on."""

    weights: str
    preprocessing: str
    data: str

    @staticmethod
    def of(program: Program, spec: Preprocessing, images: ImageSet) -> "Key":
        weights = hashlib.sha256(program.to_json().encode())
        for name in sorted(program.arrays):
            weights.update(name.encode() + np.ascontiguousarray(program.arrays[name]).tobytes())
        text = json.dumps(asdict(spec), sort_keys=True).encode()
        return Key(weights.hexdigest(), hashlib.sha256(text).hexdigest(), data_sha256(images))

    def changed(self, before: "Key") -> list[str]:
        return [part.name for part in fields(self) if getattr(self, part.name) != getattr(before, part.name)]


@dataclass(frozen=True)
class ValueRange:
    """A value: its range, its int8 scale, the share of numbers that the scale cuts off, and its histogram.

    `counts` are of magnitudes from 0 to `top`, in bins of one width; `means` are by channel.
    """

    low: float
    high: float
    scale: float
    saturated: float
    top: float
    counts: tuple[int, ...]
    means: tuple[float, ...]


@dataclass(frozen=True)
class Calibration:
    """The file. `images` are those that the ranges are from, of which `done` have been seen."""

    key: Key
    data: str
    images: int
    done: int
    method: Method
    values: dict[str, ValueRange]

    @property
    def scales(self) -> dict[str, float]:
        return {name: value.scale for name, value in self.values.items()}

    def shown(self) -> "Calibration":
        """The same with histograms in few bins, for a bundle."""
        few = {name: np.reshape(value.counts, (SHOWN_BINS, -1)).sum(1) for name, value in self.values.items()}
        values = {name: replace(value, counts=tuple(few[name].tolist())) for name, value in self.values.items()}
        return replace(self, values=values)


def read(path: Path, expected: Key, command: str) -> Calibration:
    """The record at `path`, of this key; another is refused. `command` is what makes a new one."""
    result = records.load(Calibration, path, "qcn calibrate")
    if changed := result.key.changed(expected):
        differences = "; ".join(
            f"{what} were {getattr(result.key, what)[:12]}…, and are {getattr(expected, what)[:12]}…"
            for what in changed
        )
        raise UsageError(f"{path} is of other {' and '.join(changed)}: {differences}; make a new one: {command}")
    return result


def calibrate(
    path: Path, program: Program, spec: Preprocessing, images: ImageSet, data: str, method: Method, key: Key, again: str
) -> Calibration:
    """The ranges of every value of a program on these images; observation resumes from the record at `path`."""
    done, observers = 0, dict[str, Observer]()
    if path.exists():
        before = read(path, key, again)
        done, observers = before.done, {name: _observer(value, before.done) for name, value in before.values.items()}
    for batch, ready in enumerate(observe(program, images.images, spec, observers, done), 1):
        done = ready
        if batch % SAVE_EVERY == 0:
            records.write(path, _record(key, data, len(images), done, method, observers))
    result = _record(key, data, len(images), done, method, observers)
    records.write(path, result)
    return result


def _record(key: Key, data: str, images: int, done: int, method: Method, observers: dict[str, Observer]) -> Calibration:
    values = {}
    for name, observer in observers.items():
        scale = scale_of(observer, method)
        saturated = observer.saturated(127.5 * scale)
        whole = (tuple(observer.counts), tuple(observer.means))
        values[name] = ValueRange(observer.low, observer.high, scale, saturated, observer.top, *whole)
    return Calibration(key, data, images, done, method, values)


def _observer(value: ValueRange, images: int) -> Observer:
    return Observer(value.low, value.high, value.top, list(value.counts), images, list(value.means))
