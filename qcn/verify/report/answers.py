"""What the trained network says of the pictures of a report: the class, and from where the object is seen."""

from dataclasses import dataclass
from math import cos, radians, sin

from qcn.direction import Direction
from qcn.export.bundle.golden import Golden
from qcn.export.bundle.manifest import Manifest
from qcn.networks.confidence import is_known, order, probabilities, temperature_of
from qcn.terminal.text import probability_text, readable
from qcn.verify.report.pictures import data_uri

SHOWN = 24  # pictures with their answers
RADIUS = 62  # of a compass


@dataclass(frozen=True)
class Compass:
    """An object from above, its front at the top: where the camera is on the rim, and the sector of the spread."""

    x: float
    y: float
    sector: str  # a path of SVG


@dataclass(frozen=True)
class Answer:
    """Of one picture; `right` is None where the answer counts as unknown."""

    picture: str
    answer: str
    label: str
    right: bool | None
    direction: str = ""
    compass: Compass | None = None


def answers(manifest: Manifest, golden: Golden) -> list[Answer]:
    """The first pictures that have a label."""
    logit, pose = golden.reference.logit, golden.reference.pose
    temperature = temperature_of(manifest.confidence)
    known, probability = is_known(logit, temperature, manifest.known), probabilities(logit, temperature)
    result = []
    for row in [int(row) for row in (golden.label >= 0).nonzero()[0]][:SHOWN]:
        best = int(order(logit[row : row + 1])[0, 0])
        name = ("" if known[row] else "unknown; most like ") + readable(manifest.classes[best])
        direction = manifest.direction.of(pose[row, best], best) if manifest.direction and known[row] else None
        result.append(
            Answer(
                data_uri(golden.image[row]),
                f"{name}, {probability_text(float(probability[row, best]))}",
                readable(manifest.classes[golden.label[row]]),
                bool(best == golden.label[row]) if known[row] else None,
                direction.words() if direction else "",
                _compass(direction) if direction else None,
            )
        )
    return result


def _compass(direction: Direction) -> Compass:
    spread = min(direction.spread, 179.0)  # an arc of 360° would be none

    def rim(azimuth: float) -> tuple[float, float]:
        return round(-RADIUS * sin(radians(azimuth)), 1), round(-RADIUS * cos(radians(azimuth)), 1)

    (left, top), (right, bottom) = rim(direction.azimuth + spread), rim(direction.azimuth - spread)
    large = int(spread > 90)
    return Compass(*rim(direction.azimuth), f"M0 0L{left} {top}A{RADIUS} {RADIUS} 0 {large} 1 {right} {bottom}Z")
