"""The answers of a backend against the float64 reference: how far apart, in which units, and whether that is too far.

The **noise floor** of an output is the largest error that the trained network itself makes in float32, on the same
images. A backend is another way of rounding, so its error is measured in noise floors, and so is what is allowed:

    fp32    16 noise floors. Honest exports stay below 8 (tests/export); a fault in a weight or a formula is thousands.
    fp16    4 · 2¹³ noise floors: float16 has 13 bits less than float32
    bf16    4 · 2¹⁶ noise floors, likewise

The floor is at least one unit in the last place of the output's largest value: on few images float32 may be lucky.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.export.golden import Golden

Array = NDArray[Any]
FLOORS = {"fp32": 16.0, "fp16": 4 * 2.0**13, "bf16": 4 * 2.0**16}  # allowed, by precision
OUTPUTS = ("activation", "pose")


@dataclass(frozen=True)
class Errors:
    """Of one output: absolute, relative to the largest value, in units of the last place and of the noise floor."""

    max_abs: float
    mean_abs: float
    rms: float
    max_rel: float
    cosine: float
    ulps: float
    noise_floor: float
    noise_floor_multiple: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """False also for what is not a number."""
        return self.max_abs <= self.tolerance

    def words(self) -> str:
        multiple = f"{self.noise_floor_multiple:.3g} noise floors"
        return f"off by {self.max_abs:.2g}, {multiple}; {self.tolerance:.2g} is allowed"

    def as_json(self) -> dict[str, float]:
        return asdict(self)


def compare(found: Mapping[str, Array], golden: Golden, precision: str, atol: Mapping[str, float]) -> dict[str, Errors]:
    """Each output of the golden images, and of the capsule layers where they are given out too, first to last.

    `atol` overrides tolerances: by output, or under "" for all.
    """
    known = {
        f"{layer}.{output}": (getattr(exact, output), getattr(golden.layers_float32[layer], output))
        for layer, exact in golden.layers.items()
        for output in OUTPUTS
    }
    known |= {output: (getattr(golden.reference, output), getattr(golden.float32, output)) for output in OUTPUTS}
    return {
        name: _errors(found[name], exact, single, FLOORS[precision], atol.get(name, atol.get("")))
        for name, (exact, single) in known.items()
        if name in found
    }


def _errors(found: Array, exact: Array, single: Array, floors: float, atol: float | None) -> Errors:
    scale = float(np.abs(exact).max())
    unit = scale * float(np.finfo(np.float32).eps)
    floor = max(float(np.abs(single - exact).max()), unit)
    wide = found.astype(np.float64)
    with np.errstate(invalid="ignore"):  # what is infinite or not a number comes out as not a number, and fails
        apart = np.abs(wide - exact)
        cosine = np.sum(wide * exact) / (np.linalg.norm(wide) * np.linalg.norm(exact))
    worst = float(apart.max())
    return Errors(
        max_abs=worst,
        mean_abs=float(apart.mean()),
        rms=float(np.sqrt(np.mean(apart**2))),
        max_rel=worst / scale,
        cosine=float(cosine),
        ulps=worst / unit,
        noise_floor=floor,
        noise_floor_multiple=worst / floor,
        tolerance=floors * floor if atol is None else atol,
    )


@dataclass(frozen=True)
class Flip:
    """An image whose class is another than the reference's.

    `margin` is by how much the reference preferred its own; a `tie` is within what float32 may turn round.
    """

    row: str
    expected: int
    found: int
    margin: float
    tie: bool


def flips(found: Array, golden: Golden) -> list[Flip]:
    """The decisions that differ, of the golden images."""
    exact = golden.reference.activation
    noise = 2 * float(np.abs(golden.float32.activation - exact).max())
    turned = []
    for row, right, answer in zip(golden.rows, exact, found, strict=True):
        margin = float(right.max() - right[answer.argmax()])
        if right.argmax() != answer.argmax():
            turned.append(Flip(row, int(right.argmax()), int(answer.argmax()), margin, margin <= noise))
    return turned


def pose_degrees(found: Array, golden: Golden) -> float:
    """The largest angle between the poses of the reference's class, in degrees."""
    best = golden.reference.activation.argmax(1)[:, None, None]
    one, other = (np.take_along_axis(x.astype(np.float64), best, 1)[:, 0] for x in (found, golden.reference.pose))
    # By the tangent: the arc cosine has no digits left for small angles.
    angles = np.arctan2(np.linalg.norm(np.cross(one, other), axis=1), np.sum(one * other, axis=1))
    return float(np.degrees(angles).max())
