"""The cost of lowering one operation alone: in logits, answers and the angle of poses. By torch."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from qcn.calibrate.assignments import apply, lowest
from qcn.calibrate.record import Calibration
from qcn.calibrate.simulation import ProgramOutputs, answers
from qcn.data.imageset import ImageSet
from qcn.data.spec import Preprocessing
from qcn.direction import ROUND, Directions, angle_between
from qcn.export.program.program import Program
from qcn.intervals import lost_and_won
from qcn.names import OperationPrecision
from qcn.pages import plots
from qcn.terminal.progress import doing
from qcn.terminal.tables import table_of

IMAGES = 128  # at most
TURNED = 0.95  # the share of images whose directions must not turn by more than is allowed


@dataclass(frozen=True)
class Sensitivity:
    """One operation in one precision, all others float32, on so many images.

    logit        by how much a logit changes, on average
    changed      images that get another class; `lost` of them were right before, `won` are right now
    degrees      by which the pose of the answer turns, on average; None for a CNN
    """

    operation: str
    precision: OperationPrecision
    images: int
    logit: float
    changed: int
    lost: int
    won: int
    degrees: float | None


def lowered_alone(program: Program) -> list[tuple[str, OperationPrecision]]:
    """Every operation and precision that is tried: int8, and for capsule layers fp16 and bf16."""
    routes = {route.name for route in program.routes}
    result = []
    for name, precision in lowest(program).items():
        result += [(name, precision), *([(name, "bf16")] if name in routes else [])]
    return result  # type: ignore[return-value]  # of literals


def measure(
    program: Program,
    calibration: Calibration,
    images: ImageSet,
    spec: Preprocessing,
    done: Iterable[Sensitivity] = (),
) -> Iterable[list[Sensitivity]]:
    """The results so far, after each operation; `done` are those of an interrupted measurement."""
    result = list(done)
    before, tried = {(one.operation, one.precision) for one in result}, lowered_alone(program)
    missing = [one for one in tried if one not in before]
    if not missing:
        return
    exact = answers(program, images.images, spec)
    for name, precision in missing:
        doing(f"sensitivity: {name} in {precision}", len(result), of=len(tried))
        lowered = answers(apply(program, {name: precision}, calibration), images.images, spec)
        result.append(compare(name, precision, exact, lowered, images.labels))
        yield result


def compare(
    name: str, precision: OperationPrecision, exact: ProgramOutputs, lowered: ProgramOutputs, labels: NDArray[np.int64]
) -> Sensitivity:
    """Compare answers in lower precision with exact ones."""
    return Sensitivity(
        name,
        precision,
        len(labels),
        float(np.abs(lowered.logit - exact.logit).mean()),
        int((lowered.predicted != exact.predicted).sum()),
        *lost_and_won(exact.predicted == labels, lowered.predicted == labels),
        _degrees(exact, lowered),
    )


def _degrees(exact: ProgramOutputs, lowered: ProgramOutputs) -> float | None:
    """The mean angle between the two poses of the class that float32 answers."""
    if exact.pose is None or lowered.pose is None:
        return None
    rows = np.arange(len(exact.pose))
    trained, changed = exact.pose[rows, exact.predicted], lowered.pose[rows, exact.predicted]
    lengths = np.linalg.norm(trained, axis=1) * np.linalg.norm(changed, axis=1)
    return float(angle_between(trained, changed)[lengths > 0].mean())


def turn(exact: ProgramOutputs, lowered: ProgramOutputs, directions: Directions | None) -> float | None:
    """The degrees that directions of float32 turn by at most, for 95 of 100 images; None if it tells none."""
    if directions is None or exact.pose is None or lowered.pose is None:
        return None
    trained, changed = (directions.pointing(pose, exact.predicted) for pose in (exact.pose, lowered.pose))
    directed = (directions.symmetry_of(exact.predicted) != ROUND) & trained.any(1)
    return float(np.quantile(angle_between(trained[directed], changed[directed]), TURNED)) if directed.any() else None


def table(sensitivities: list[Sensitivity]) -> Table:
    """One row per operation and precision, the most sensitive first."""
    numbers = ("logit changes by", "pose turns by", "answers changed", "now wrong", "now right")
    title = f"sensitivity: each operation lowered alone, {sensitivities[0].images:,} images"
    result = table_of("operation", "precision", *numbers, right=numbers, title=title)
    for row in ordered(sensitivities):
        turned = "" if row.degrees is None else f"{row.degrees:.2g}°"
        changes = (f"{row.changed:,}", f"{row.lost:,}", f"{row.won:,}")
        result.add_row(row.operation, row.precision, f"{row.logit:.2g}", turned, *changes)
    return result


def ordered(sensitivities: Iterable[Sensitivity]) -> list[Sensitivity]:
    """The most sensitive first."""
    return sorted(sensitivities, key=lambda row: -row.logit)


def chart(path: Path, sensitivities: list[Sensitivity]) -> None:
    """A bar per operation and precision, by how much a logit changes."""
    rows = ordered(sensitivities)[::-1]
    colours = dict(zip(("int8", "fp16", "bf16"), plots.COLOURS, strict=False))
    with plots.figure(path, 1, 7.5, 1.0 + 0.24 * len(rows)) as (ax,):
        for precision in dict.fromkeys(row.precision for row in reversed(rows)):
            places = [i for i, row in enumerate(rows) if row.precision == precision]
            sizes = [rows[i].logit for i in places]
            ax.barh(places, sizes, color=colours[precision], label=precision)
        for place, row in enumerate(rows):
            note = f" {row.changed} of {row.images} answers change" if row.changed else ""
            ax.text(max(row.logit, 1e-12), place, note, va="center", fontsize=7)
        ax.set_yticks(range(len(rows)), [row.operation for row in rows], fontsize=8)
        ax.set(
            xscale="log",
            xlabel="mean change of a logit",
            title="Sensitivity of each operation, lowered alone",
        )
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False)
