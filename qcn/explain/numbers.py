"""The numbers behind the page, for programs: `qcn explain --json`.

Stages are: before routing, after iteration 1, …; the answer was made from the last but one. `votes_won`, `parts` and
what ends at the class are by that one; with one iteration, where it is even, by the last.
"""

from typing import Any

import numpy as np

from qcn.explain.evidence import Evidence, evidence, loudest
from qcn.explain.picture import Picture
from qcn.explain.routing import Inside
from qcn.explain.source import Source
from qcn.export.program.program import Array

SCHEMA = 3
DIGITS = 6
PARTS = 64


def record(source: Source, picture: Picture, inside: Inside, chosen: int, command: str) -> dict[str, Any]:
    """All that the page of this class shows.

    classes    of each its logit, its pose, its logit after each iteration, and the share of votes it won
    parts      those with the largest weights (`qcn.explain.evidence.Part`)
    direction  from where the pose of the shown class says that it is seen
    """
    last, won, result = inside.routings[-1], inside.votes_won, evidence(inside, chosen)
    classes = {
        name: {
            "logit": float(inside.logit[k]),
            "pose": inside.pose[k].tolist(),
            "iterations": [float(x[0, 0, k]) for x in last.logits],
            "votes_won": float(won[k]),
        }
        for k, name in enumerate(source.classes)
    }
    return {
        "schema": SCHEMA,
        "network": source.name,
        "image": picture.name,
        "label": picture.label,
        "answer": source.classes[inside.winner],
        "shown": source.classes[chosen],
        "classes": classes,
        "layers": [_layer(one) for one in reversed(result)],
        "parts": loudest(result[0], chosen, PARTS),
        "direction": source.directions.of(inside.pose[chosen], chosen) if source.directions else None,
        "command": command,
    }


def _layer(one: Evidence) -> dict[str, Any]:
    """Activations [J][h][w] of a layer, and of its places [h][w] how much ends at the class at each stage.

    A place sees the rows `rows[0]` + i · `rows[2]` to `rows[1]` + i · `rows[2]` (not included) of what the network
    sees, and the columns likewise.
    """
    capsules = one.routing.children
    rows, columns = ((field.low, field.high, field.step) for field in capsules.fields)
    return {
        "name": capsules.name,
        "activation": _rounded(capsules.activation),
        "ending": [_rounded(one.by_place(stage)) for stage in one.stages],
        "rows": rows,
        "columns": columns,
    }


def _rounded(values: Array) -> list[Any]:
    rounded: list[Any] = np.round(values, DIGITS).tolist()
    return rounded
