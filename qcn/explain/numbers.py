"""The numbers behind the page, for programs: `qcn explain --json`."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from qcn.direction import Direction
from qcn.explain.evidence import Part, evidence, loudest
from qcn.explain.picture import Picture
from qcn.explain.routing import Inside
from qcn.explain.source import Source
from qcn.export.program.program import Array

SCHEMA = 3
DIGITS = 6
PARTS = 64


@dataclass(frozen=True)
class ClassCapsule:
    """A class: its logit, its pose, its logit after each iteration, and the share of votes it won."""

    logit: float
    pose: list[float]
    iterations: list[float]
    votes_won: float


@dataclass(frozen=True)
class LayerCapsules:
    """Activations [J][h][w] of a layer, and of its places [h][w] how much ends at the class at each stage.

    A place sees the rows `rows[0]` + i · `rows[2]` to `rows[1]` + i · `rows[2]` (not included) of what the network
    sees, and the columns likewise.
    """

    name: str
    activation: list[Any]
    ending: list[Any]
    rows: tuple[int, int, int]
    columns: tuple[int, int, int]


@dataclass(frozen=True)
class Record:
    """Stages are: before routing, after iteration 1, …; the answer was made from the last but one.

    `votes_won`, `parts` and what ends at the class are by that one; with one iteration, where it is even, by the last.
    `direction` is from where the pose of the shown class says that it is seen.
    """

    schema: int
    network: str
    image: str
    label: str | None
    answer: str
    shown: str
    classes: dict[str, ClassCapsule]
    layers: list[LayerCapsules]
    parts: list[Part]
    direction: Direction | None
    command: str


def record(source: Source, picture: Picture, inside: Inside, chosen: int, command: str) -> Record:
    """All that the page of this class shows."""
    last, won, result = inside.routings[-1], inside.votes_won, evidence(inside, chosen)
    classes = {
        name: ClassCapsule(
            float(inside.logit[k]),
            inside.pose[k].tolist(),
            [float(x[0, 0, k]) for x in last.logits],
            float(won[k]),
        )
        for k, name in enumerate(source.classes)
    }
    layers = []
    for one in reversed(result):
        capsules = one.routing.children
        sides = [(field.low, field.high, field.step) for field in capsules.fields]
        ending = [_rounded(one.by_place(stage)) for stage in range(len(one.ending))]
        layers.append(LayerCapsules(capsules.name, _rounded(capsules.activation), ending, sides[0], sides[1]))
    return Record(
        SCHEMA,
        source.name,
        picture.name,
        picture.label,
        source.classes[inside.winner],
        source.classes[chosen],
        classes,
        layers,
        loudest(result[0], chosen, PARTS),
        source.directions.of(inside.pose[chosen], chosen) if source.directions else None,
        command,
    )


def _rounded(values: Array) -> list[Any]:
    rounded: list[Any] = np.round(values, DIGITS).tolist()
    return rounded
