"""Where a deployment goes wrong: the errors of every capsule layer and routing iteration, as a map to look at."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qcn.verify.records import listed, number, text
from qcn.verify.report import charts

SHADES = 6  # within the tolerance, each for a factor of four; one more beyond
NOTES = 3  # that are told; more of them say the same again


@dataclass(frozen=True)
class Cell:
    """One stage: a shade from 0 to SHADES, SHADES + 1 where it is beyond its tolerance, and what it is in words."""

    shade: int
    label: str
    title: str


@dataclass(frozen=True)
class HeatMap:
    """Rows are layers, columns are what an iteration computes; None where a backend does not show it."""

    key: str
    groups: list[tuple[str, int]]  # "iteration 1" and how many columns it has
    columns: list[str]
    rows: list[tuple[str, list[Cell | None]]]
    first_wrong: str
    notes: list[str]


def heat_map(key: str, verdict: Mapping[str, Any]) -> HeatMap | None:
    stages = listed(verdict.get("stages"))
    if not stages:
        return None
    cells = {(str(one.get("layer")), one.get("iteration"), str(one.get("quantity"))): one for one in stages}
    layers = list(dict.fromkeys(layer for layer, _, _ in cells))
    iterations = sorted({i for _, i, _ in cells if isinstance(i, int)})
    columns = [
        (iteration, quantity)
        for iteration in [*iterations, None]
        for quantity in dict.fromkeys(quantity for _, i, quantity in cells if i == iteration)
    ]
    heads = list(dict.fromkeys(iteration for iteration, _ in columns))
    return HeatMap(
        key,
        [(f"iteration {i}" if i is not None else "output", sum(one == i for one, _ in columns)) for i in heads],
        [quantity for _, quantity in columns],
        [(layer, [_cell(cells.get((layer, *column))) for column in columns]) for layer in layers],
        str(verdict.get("first_wrong") or ""),
        list(dict.fromkeys(filter(None, (_note(stage) for stage in stages))))[:NOTES],
    )


def _cell(stage: Mapping[str, Any] | None) -> Cell | None:
    if stage is None:
        return None
    worst, allowed = number(stage.get("max_abs")), number(stage.get("tolerance"))
    multiple = number(stage.get("noise_floor_multiple"))
    label = "∞" if multiple is None else charts.count(multiple)
    passed = stage.get("passed") is not False
    title = f"off by {text(stage.get('max_abs'))}, {charts.floors(multiple)}; {text(stage.get('tolerance'))} is allowed"
    if not passed or worst is None or not allowed:
        return Cell(SHADES if passed else SHADES + 1, label, title)
    share = number(worst / allowed) or 0.0
    return Cell(min(SHADES, max(0, SHADES + math.ceil(math.log(share, 4)))) if share > 0 else 0, label, title)


def _note(stage: Mapping[str, Any]) -> str:
    """What is said of a stage's range, where it left its tolerance."""
    values = stage.get("range")
    if stage.get("passed") is not False or not isinstance(values, dict) or not values.get("note"):
        return ""
    iteration = f", iteration {stage['iteration']}" if stage.get("iteration") is not None else ""
    return f"{stage.get('layer')}{iteration}, {stage.get('quantity')}: {values['note']}"
