"""Answers as they are written down: JSON with everything, CSV for a spreadsheet."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.data.folder import plain
from qcn.files import write_text
from qcn.predict.sources import Found
from qcn.runtime import Answer, Model


@dataclass(frozen=True)
class Row:
    """A picture's name, and the answer or why there is none."""

    file: str
    answer: Answer | None
    error: str = ""


def answered(model: Model, found: Iterable[Found], batch: int) -> Iterator[tuple[Row, NDArray[np.uint8] | None]]:
    """Each picture with its answer, in their order; `batch` of them are worked on at once."""
    waiting = iter(found)
    while several := list(islice(waiting, batch)):
        answers = iter(model.predict([one.pixels for one in several if one.pixels is not None]))
        for one in several:
            yield Row(one.name, None if one.pixels is None else next(answers), one.error), one.pixels


def write_json(path: Path, rows: list[Row]) -> None:
    write_text(path, json.dumps([_entry(row) for row in rows], indent=1, ensure_ascii=False) + "\n")


def write_csv(path: Path, rows: list[Row], classes: tuple[str, ...]) -> None:
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(["file", "label", "probability", "known", *classes])
    for row in rows:
        if row.answer:
            said = (row.answer.label, row.answer.probability, str(row.answer.known).lower())
            table.writerow([row.file, *said, *map(float, row.answer.logit)])
        else:
            table.writerow([row.file, "", "", ""])
    write_text(path, text.getvalue())


def file_name(picture: str, number: int) -> str:
    """A PNG's name for the drawing of a picture; no two are alike."""
    return f"{number:04}-{plain(Path(picture).stem, 'picture')}.png"


def _entry(row: Row) -> dict[str, Any]:
    answer = row.answer
    if answer is None:
        return {"file": row.file, "error": row.error}
    return {
        "file": row.file,
        "label": answer.label,
        "probability": answer.probability,
        "known": answer.known,
        "logit": dict(zip(answer.classes, map(float, answer.logit), strict=True)),
        "pose": None if answer.pose is None else dict(zip(answer.classes, answer.pose.tolist(), strict=True)),
    }
