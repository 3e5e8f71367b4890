"""Where a deployment goes wrong: the errors of every capsule layer and routing iteration, as a map to look at."""

from bisect import bisect_left
from dataclasses import dataclass

from qcn.verify.parity.stages import ComparedStage
from qcn.verify.parity.verdict import Verdict
from qcn.verify.words import share

# The largest share of what is allowed that each shade stands for: the dark ones are for what is near it.
UP_TO = (0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1.0)
SHADES = len(UP_TO) - 1  # one more beyond
NOTES = 3  # that are shown; more of them say the same again


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
    worst: str
    first_wrong: str
    notes: list[str]


def heat_map(verdict: Verdict) -> HeatMap | None:
    """None where the backend showed nothing of its inside."""
    if not verdict.stages:
        return None
    cells = {(stage.layer, stage.iteration, stage.quantity): stage for stage in verdict.stages}
    layers = list(dict.fromkeys(stage.layer for stage in verdict.stages))
    iterations = sorted({stage.iteration for stage in verdict.stages if stage.iteration is not None})
    columns = [
        (iteration, quantity)
        for iteration in [*iterations, None]
        for quantity in dict.fromkeys(quantity for _, i, quantity in cells if i == iteration)
    ]
    heads = list(dict.fromkeys(iteration for iteration, _ in columns))
    notes = [f"{stage.name}: {stage.words()}" for stage in verdict.stages if not stage.passed]
    return HeatMap(
        verdict.key,
        [(f"iteration {i}" if i is not None else "output", sum(one == i for one, _ in columns)) for i in heads],
        [quantity for _, quantity in columns],
        [(layer, [_cell(cells.get((layer, *column))) for column in columns]) for layer in layers],
        share(max(stage.share for stage in verdict.stages)),
        verdict.first_wrong or "",
        notes[:NOTES],
    )


def _cell(stage: ComparedStage | None) -> Cell | None:
    if stage is None:
        return None
    if not stage.passed:
        return Cell(SHADES + 1, share(stage.share), stage.words())
    return Cell(min(SHADES, bisect_left(UP_TO, stage.share)), share(stage.share), stage.words())
