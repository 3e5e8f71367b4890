"""The answers of a backend against the float64 reference: how far apart, and which part of what is allowed that is.

What is allowed is said in `qcn.export.bundle.tolerance`, in noise floors: the errors that the trained network itself
makes in that precision. An error is shown as a share of that.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.direction import ROUND, Directions, angle_between
from qcn.export.bundle.golden import Golden
from qcn.export.bundle.tolerance import floor_of, last_place, tie_band, tolerance
from qcn.intervals import wilson
from qcn.verify.words import Histogram, share_of_allowed

Array = NDArray[Any]
EDGES = tuple(np.arange(-6, 3.5, 0.5).tolist())  # of the histogram: log10 of an error as a share of what is allowed


@dataclass(frozen=True)
class Allowed:
    """A tolerance that a user gave instead of ours: absolute, and relative to the output's largest value; their sum."""

    atol: float = 0.0
    rtol: float = 0.0


@dataclass(frozen=True)
class Errors:
    """Errors of one output's finite values: absolute, relative to the largest, and in units of the last place.

    not_finite   how many values are NaN or infinite; one is too many
    histogram    of log10 of the errors as shares of what is allowed; what lies beyond its ends is counted with the
                 ends, and so is what is not finite. None where nothing was counted
    """

    max_abs: float
    mean_abs: float
    rms: float
    max_rel: float
    cosine: float
    ulps: float
    noise_floor: float
    tolerance: float
    not_finite: int
    histogram: Histogram | None = None

    def __post_init__(self) -> None:
        if min(self.max_abs, self.mean_abs, self.rms, self.noise_floor, self.tolerance, self.not_finite) < 0:
            raise ValueError("errors, noise floors and tolerances must be 0 or more")

    @property
    def passed(self) -> bool:
        return not self.not_finite and self.max_abs <= self.tolerance

    @property
    def share(self) -> float:
        """The largest error as a share of what is allowed; infinite for what is not finite."""
        if self.not_finite:
            return math.inf
        if not self.max_abs:
            return 0.0
        return self.max_abs / self.tolerance if self.tolerance else math.inf

    @property
    def noise_floors(self) -> float:
        """The largest error in noise floors; infinite for what is not finite."""
        if self.not_finite or not self.noise_floor:
            return math.inf if self.not_finite or self.max_abs else 0.0
        return self.max_abs / self.noise_floor

    def contradiction(self) -> str:
        """Figures that contradict each other, in words."""
        if max(self.mean_abs, self.rms) > self.max_abs * (1 + 1e-6):
            return f"is off by {max(self.mean_abs, self.rms):.2g} on average, but by {self.max_abs:.2g} at most"
        bars = zip(self.histogram.edges, self.histogram.counts, strict=False) if self.histogram else ()
        if self.passed and (beyond := sum(count for edge, count in bars if edge > 0)):
            return f"has {beyond} values beyond what is allowed in its histogram, but none by its largest error"
        return ""

    def words(self) -> str:
        if self.not_finite:
            return f"not finite in {self.not_finite} places"
        if not self.tolerance:
            return f"off by {self.max_abs:.2g}, where no error is allowed"
        return f"off by {self.max_abs:.2g}: {share_of_allowed(self.share)} ({self.tolerance:.2g})"


def compare(
    outputs: Mapping[str, Array], golden: Golden, precision: str, allowed: Mapping[str, Allowed]
) -> dict[str, Errors]:
    """Compare each output of the network; `allowed` replaces tolerances by output."""
    judge = golden.judged_by(precision)
    return {
        name: errors(
            outputs[name], golden.reference.arrays[name], floor_of(golden, name, judge), judge, allowed.get(name)
        )
        for name in golden.outputs
    }


def errors(output: Array, exact: Array, floor: float, precision: str, allowed: Allowed | None = None) -> Errors:
    """Compare an output with the exact values; `floor` is their noise floor in this precision."""
    scale = float(np.abs(exact).max())
    limit = allowed.atol + allowed.rtol * scale if allowed else tolerance(exact, floor, precision)
    wide = output.astype(np.float64)
    finite = np.isfinite(wide)
    apart = np.abs(wide[finite] - exact[finite])
    norms = float(np.linalg.norm(wide[finite]) * np.linalg.norm(exact[finite]))
    worst = float(apart.max(initial=0.0))
    with np.errstate(divide="ignore", invalid="ignore"):  # no error, or none allowed
        shares = np.log10(apart) - (math.log10(limit) if limit else -math.inf)
    beyond = np.full(int(np.sum(~finite)), np.inf)
    placed = np.clip(np.nan_to_num(np.concatenate([shares, beyond]), nan=-np.inf), EDGES[0], EDGES[-1])
    counts, _ = np.histogram(placed, EDGES)
    return Errors(
        max_abs=worst,
        mean_abs=float(apart.mean()) if len(apart) else 0.0,
        rms=float(np.sqrt(np.mean(apart**2))) if len(apart) else 0.0,
        max_rel=worst / scale if scale else worst,
        cosine=float(np.sum(wide[finite] * exact[finite])) / norms if norms else 1.0,
        ulps=worst / last_place(exact),
        noise_floor=floor,
        tolerance=limit,
        not_finite=int(np.sum(~finite)),
        histogram=Histogram(EDGES, tuple(counts.tolist())),
    )


@dataclass(frozen=True)
class Flip:
    """An image whose class is another than the reference's: `row` names it, `index` is its place among the images.

    `margin` is by how much the reference preferred its own class; a `tie` is within what rounding may turn round.
    """

    row: str
    index: int
    expected: str
    found: str
    margin: float
    tie: bool


def flips(
    rows: Sequence[int], logit: Array, golden: Golden, classes: tuple[str, ...], precision: str
) -> tuple[Flip, ...]:
    """The decisions that differ, among all answers [N, classes]; `rows` says for which image each is.

    An image that was asked for several times is named once, by the answer that the reference likes least.
    """
    exact = golden.reference.logit
    band = tie_band(golden, precision)
    differ: dict[int, Flip] = {}
    for row, answer in zip(rows, logit, strict=True):
        expected, decided = int(exact[row].argmax()), int(answer.argmax())
        margin = float(exact[row, expected] - exact[row, decided])
        if expected != decided and (row not in differ or margin > differ[row].margin):
            flip = Flip(golden.rows[row], row, classes[expected], classes[decided], margin, margin <= band)
            differ[row] = flip
    return tuple(differ[row] for row in sorted(differ))


def decisions(changed: Sequence[Flip], golden: Golden, precision: str) -> list[str]:
    """Changed classes that are no ties, in words."""
    flipped = [flip for flip in changed if not flip.tie]
    if not flipped:
        return []
    worst = max(flipped, key=lambda flip: flip.margin)
    band = tie_band(golden, precision)
    return [
        f"{len(flipped)} of {len(golden.rows)} images get another class, such as {worst.row}: {worst.found}, where the "
        f"trained network prefers {worst.expected} by {worst.margin:.2g} ({band:.2g} is a tie in {precision})"
    ]


@dataclass(frozen=True)
class Share:
    """`right` of `of`, with the 95 % interval of that share (Wilson)."""

    right: int
    of: int
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.of or not self.of:
            raise ValueError(f"{self.right} of {self.of} is not a share")

    @staticmethod
    def count(right: int, of: int) -> "Share":
        return Share(right, of, *wilson(right, of))

    def words(self) -> str:
        return f"{self.right}/{self.of} ({100 * self.low:.0f} to {100 * self.high:.0f} %)"


def accuracy(logit: Array, golden: Golden) -> Share | None:
    """The share of labelled images that are classified right; None if none has a label."""
    labelled = golden.label >= 0
    if not labelled.any():
        return None
    right = logit[labelled].argmax(1) == golden.label[labelled]
    return Share.count(int(right.sum()), len(right))


def costs(golden: Golden) -> list[str]:
    """What the plan of a calibrated network costs against the trained network, in words; nothing of any other."""
    if golden.trained is None:
        return []
    both = {of: (getattr(golden.reference, of), getattr(golden.trained, of)) for of in golden.outputs}
    apart = [f"{of} within {np.abs(planned - trained).max():.2g}" for of, (planned, trained) in both.items()]
    same = np.sum(golden.reference.logit.argmax(1) == golden.trained.logit.argmax(1))
    return [f"the plan against the trained network: {', '.join(apart)}; same class for {same} of {len(golden.rows)}"]


@dataclass(frozen=True)
class Turn:
    """By how much the told direction of an image turns, in degrees: of the image that uses the most of what is allowed.

    A pose of length L that is off by at most ε in each of its numbers turns by at most arcsin(√3 ε / L). So the noise
    floor and the tolerance of the pose say what rounding may turn this direction by, and what is allowed.

    row       the image; `largest` is the largest turn of any image
    """

    row: str
    degrees: float
    noise_floor: float
    allowed: float
    largest: float

    @property
    def passed(self) -> bool:
        return self.degrees <= self.allowed

    def words(self) -> str:
        return f"the direction of {self.row} turns by {self.degrees:.2g}°, where {self.allowed:.2g}° is allowed"


def turn(poses: Array, golden: Golden, directions: Directions, pose: Errors) -> Turn | None:
    """The turn between the directions of `poses` and the reference's, of its class; None if no class has one."""
    best = golden.reference.logit.argmax(1)
    pointing, exact = (directions.pointing(x, best) for x in (poses, golden.reference.pose))
    length = np.linalg.norm(exact, axis=1)
    directed = (directions.symmetry_of(best) != ROUND) & (length > 0)
    if not directed.any():
        return None
    pointing, exact, length = pointing[directed], exact[directed], length[directed]
    angles = np.nan_to_num(angle_between(pointing, exact), nan=180.0)
    floors, limits = (np.degrees(_turned_by(off, length)) for off in (pose.noise_floor, pose.tolerance))
    worst = int((angles / limits).argmax()) if pose.tolerance else int(angles.argmax())
    row = golden.rows[int(np.flatnonzero(directed)[worst])]
    return Turn(row, float(angles[worst]), float(floors[worst]), float(limits[worst]), float(angles.max()))


def _turned_by(off: float, length: Array) -> Array:
    """The largest angle by which a pose of this length turns if each of its three numbers is off by so much."""
    share = math.sqrt(3) * off / length
    return np.where(share < 1, np.arcsin(np.minimum(share, 1)), math.pi)


def pose_degrees(poses: Array, golden: Golden) -> float | None:
    """The largest angle between finite poses of the reference's class, in degrees; None if there is none."""
    best = golden.reference.logit.argmax(1)[:, None, None]
    pose, exact = (np.take_along_axis(x.astype(np.float64), best, 1)[:, 0] for x in (poses, golden.reference.pose))
    finite = np.isfinite(pose).all(1)
    if not finite.any():
        return None
    pose, exact = pose[finite], exact[finite]
    # By the tangent: the arc cosine has no digits left for small angles.
    angles = np.arctan2(np.linalg.norm(np.cross(pose, exact), axis=1), np.sum(pose * exact, axis=1))
    return float(np.degrees(angles).max())
