"""Answers as they are written down, a row per picture: JSON with everything, CSV for a spreadsheet."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.data.folder import plain
from qcn.predict.sources import Found
from qcn.runtime import Answer, Model


@dataclass(frozen=True)
class ResultRow:
    """A picture's name, and the answer or why there is none."""

    file: str
    answer: Answer | None
    error: str = ""


def answered(
    model: Model, sources: Iterable[Found], batch: int
) -> Iterator[tuple[ResultRow, NDArray[np.uint8] | None]]:
    """Each picture with its answer, in their order; `batch` of them are worked on at once."""
    waiting = iter(sources)
    while several := list(islice(waiting, batch)):
        answers = iter(model.predict([source.pixels for source in several if source.pixels is not None]))
        for source in several:
            yield (
                ResultRow(source.name, None if source.pixels is None else next(answers), source.error),
                source.pixels,
            )


def header(classes: tuple[str, ...]) -> list[str]:
    """The headings of a CSV table."""
    return ["file", "label", "probability", "known", "azimuth", "elevation", "spread", *classes, "model"]


def columns(row: ResultRow, classes: tuple[str, ...], model: str) -> list[str | float]:
    """A row of that table; a picture that could not be read has empty columns."""
    if not row.answer:
        return [row.file, *[""] * (len(header(classes)) - 2), model]
    answer = (row.answer.label, row.answer.probability, str(row.answer.known).lower())
    direction = row.answer.direction
    angles = (direction.azimuth, direction.elevation, direction.spread) if direction else ("", "", "")
    return [row.file, *answer, *("" if one is None else one for one in angles), *map(float, row.answer.logit), model]


def entry(row: ResultRow, model: str) -> dict[str, Any]:
    """Everything, for JSON."""
    answer = row.answer
    if answer is None:
        return {"file": row.file, "error": row.error, "model": model}
    return {
        "file": row.file,
        "label": answer.label,
        "probability": answer.probability,
        "known": answer.known,
        "direction": None if answer.direction is None else asdict(answer.direction),
        "logit": dict(zip(answer.classes, map(float, answer.logit), strict=True)),
        "pose": None if answer.pose is None else dict(zip(answer.classes, answer.pose.tolist(), strict=True)),
        "model": model,
    }


def file_name(picture: str, number: int) -> str:
    """A PNG's name for the drawing of a picture; no two are alike."""
    return f"{number:04}-{plain(Path(picture).stem, 'picture')}.png"
