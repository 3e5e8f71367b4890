"""The answers of a backend against the float64 reference: how far apart, in which units, and whether that is too far.

The **noise floor** of an output is the largest error that the trained network itself makes in float32, on the same
images. A backend is another way of rounding, so its error is measured in noise floors, and so is what is allowed:

    fp32    16 noise floors. The floor is one float32 evaluation, which may be lucky: honest exports were seen at up
            to 6. The least of the planted faults, TF32, is at hundreds, one rotor at thousands (benchmarks/faults.py)
    fp16    4 · 2¹³ noise floors: float16 has 13 bits less than float32
    bf16    4 · 2¹⁶ noise floors, likewise; int8, which has no such bound, is taken as bf16

The floor is at least one unit in the last place of the output's largest value: on few images float32 may be lucky. And
no tolerance exceeds a quarter of that value: a network that is all noise in float32 is not fit to be compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.export.golden import Golden
from qcn.intervals import wilson

Array = NDArray[Any]
# Allowed, by precision.
FLOORS = {"fp64": 16.0, "fp32": 16.0, "fp16": 4 * 2.0**13, "bf16": 4 * 2.0**16, "int8": 4 * 2.0**16}
OUTPUTS = ("activation", "pose")
EDGES = tuple(np.arange(-3, 6.5, 0.5).tolist())  # of the histogram: log10 of an error in noise floors


@dataclass(frozen=True)
class Allowed:
    """A tolerance that a user gave instead of ours: absolute, and relative to the output's largest value; their sum."""

    atol: float = 0.0
    rtol: float = 0.0


@dataclass(frozen=True)
class Errors:
    """Of one output: absolute, relative to the largest value, in units of the last place and of the noise floor.

    histogram   how many errors lie between one of `EDGES` and the next; smaller ones are counted with the first,
                larger ones and what is not finite with the last
    """

    max_abs: float
    mean_abs: float
    rms: float
    max_rel: float
    cosine: float
    ulps: float
    noise_floor: float
    noise_floor_multiple: float
    tolerance: float
    not_finite: int = 0
    histogram: tuple[int, ...] = field(default=(), repr=False)

    @property
    def passed(self) -> bool:
        """False also for what is not a number."""
        return self.max_abs <= self.tolerance

    @property
    def of_allowed(self) -> float:
        """The largest error as part of what is allowed; infinite for what is not a number."""
        if not self.max_abs:
            return 0.0
        part = self.max_abs / self.tolerance if self.tolerance else np.inf
        return np.inf if np.isnan(part) else part

    def words(self) -> str:
        if self.not_finite:
            return f"not finite in {self.not_finite} places"
        multiple = f"{self.noise_floor_multiple:.3g} noise floors"
        return f"off by {self.max_abs:.2g}, {multiple}; {self.tolerance:.2g} is allowed"


def compare(
    found: Mapping[str, Array], golden: Golden, precision: str, allowed: Mapping[str, Allowed]
) -> dict[str, Errors]:
    """Each of the network's outputs; of those that `allowed` names, by that tolerance."""
    return {
        name: errors(
            found[name],
            getattr(golden.reference, name),
            getattr(golden.float32, name),
            precision,
            allowed.get(name),
        )
        for name in OUTPUTS
    }


def errors(found: Array, exact: Array, single: Array, precision: str, allowed: Allowed | None = None) -> Errors:
    """Of what was found against the exact values, with `single` for what float32 makes of them."""
    scale = float(np.abs(exact).max())
    unit = scale * float(np.finfo(np.float32).eps) or float(np.finfo(np.float32).smallest_normal)
    floor = max(float(np.abs(single - exact).max()), unit)
    wide = found.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):  # what is not finite comes out as such, and fails
        apart = np.abs(wide - exact)
        norms = np.linalg.norm(wide) * np.linalg.norm(exact)
        cosine = np.sum(wide * exact) / norms if norms else 1.0
        magnitude = np.nan_to_num(np.log10(apart / floor), nan=np.inf)
    worst = float(apart.max())
    counts, _ = np.histogram(np.clip(magnitude, EDGES[0], EDGES[-1]), EDGES)
    return Errors(
        max_abs=worst,
        mean_abs=float(apart.mean()),
        rms=float(np.sqrt(np.mean(apart**2))),
        max_rel=worst / scale if scale else worst,
        cosine=float(cosine),
        ulps=worst / unit,
        noise_floor=floor,
        noise_floor_multiple=worst / floor,
        tolerance=allowed.atol + allowed.rtol * scale if allowed else min(FLOORS[precision] * floor, scale / 4),
        not_finite=int(np.sum(~np.isfinite(wide))),
        histogram=tuple(counts.tolist()),
    )


@dataclass(frozen=True)
class Flip:
    """An image whose class is another than the reference's.

    `margin` is by how much the reference preferred its own; a `tie` is within what float32 may turn round.
    """

    row: str
    index: int
    expected: int
    found: int
    margin: float
    tie: bool


def flips(found: Array, golden: Golden) -> list[Flip]:
    """The decisions that differ."""
    exact = golden.reference.activation
    noise = 2 * float(np.abs(golden.float32.activation - exact).max())
    turned = []
    for index, (row, right, answer) in enumerate(zip(golden.rows, exact, found, strict=True)):
        margin = float(right.max() - right[answer.argmax()])
        if right.argmax() != answer.argmax():
            turned.append(Flip(row, index, int(right.argmax()), int(answer.argmax()), margin, margin <= noise))
    return turned


@dataclass(frozen=True)
class Share:
    """`right` of so many, and the 95 % interval of that share by Wilson's formula."""

    right: int
    of: int
    low: float
    high: float

    @staticmethod
    def count(right: int, of: int) -> "Share":
        return Share(right, of, *wilson(right, of))

    def words(self) -> str:
        return f"{self.right}/{self.of} ({100 * self.low:.0f} to {100 * self.high:.0f} %)"


def accuracy(activation: Array, golden: Golden) -> Share | None:
    """How many of the images that have a label get it; None if none has one."""
    labelled = golden.label >= 0
    if not labelled.any():
        return None
    right = activation[labelled].argmax(1) == golden.label[labelled]
    return Share.count(int(right.sum()), len(right))


def pose_degrees(found: Array, golden: Golden) -> float:
    """The largest angle between the poses of the reference's class, in degrees."""
    best = golden.reference.activation.argmax(1)[:, None, None]
    one, other = (np.take_along_axis(x.astype(np.float64), best, 1)[:, 0] for x in (found, golden.reference.pose))
    with np.errstate(invalid="ignore"):
        # By the tangent: the arc cosine has no digits left for small angles.
        angles = np.arctan2(np.linalg.norm(np.cross(one, other), axis=1), np.sum(one * other, axis=1))
    return float(np.degrees(angles).max())
