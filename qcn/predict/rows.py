"""Files of answers, a row per picture: JSON with everything, CSV for a spreadsheet; and resuming such a file.

Each row is written whole as soon as there is an answer.
A file that ends in half a row was left by a killed process: that row is cut off, and its picture is answered again.
Nothing here grows with the number of rows.
"""

import csv
import fcntl
import json
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from qcn.errors import UsageError
from qcn.predict.reading import Row
from qcn.predict.sources import Item
from qcn.terminal.text import csv_cell, csv_line

STDOUT = Path("-")


class StoredRow(NamedTuple):
    """A row of a file: the picture, whether it was answered, by which model, and where the row ends in the file."""

    file: str
    answered: bool
    model: str
    end: int


class Tally(NamedTuple):
    """How many pictures have a row, and how many of these could not be read."""

    rows: int = 0
    unreadable: int = 0

    @property
    def read(self) -> int:
        return self.rows - self.unreadable

    def plus(self, rows: int, unreadable: int) -> "Tally":
        return Tally(self.rows + rows, self.unreadable + unreadable)


def header(classes: tuple[str, ...]) -> list[str]:
    """The headings of a CSV table."""
    return ["file", "label", "probability", "known", "azimuth", "elevation", "spread", *classes, "model"]


def columns(row: Row, classes: tuple[str, ...], model: str) -> list[str | float]:
    """A row of that table; a picture that could not be read has empty columns."""
    if not row.answer:
        return [row.file, *[""] * (len(header(classes)) - 2), model]
    answer = (row.answer.label, row.answer.probability, str(row.answer.known).lower())
    direction = row.answer.direction
    angles = (direction.azimuth, direction.elevation, direction.spread) if direction else ("", "", "")
    return [row.file, *answer, *("" if one is None else one for one in angles), *map(float, row.answer.logit), model]


def entry(row: Row, model: str) -> dict[str, Any]:
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


class Form(ABC):
    """How rows are written: what comes before the first, between two, and after the last."""

    begin = between = end = ""

    def __init__(self, classes: tuple[str, ...], model: str) -> None:
        self.classes, self.model = classes, model

    @abstractmethod
    def text(self, row: Row) -> str: ...

    def stored(self, file: BufferedReader, path: Path) -> Iterator[StoredRow]:
        """The whole rows of a file of this form. UsageError if it is another file."""
        raise NotImplementedError(type(self).__name__)


def json_line(entry: dict[str, Any]) -> str:
    return json.dumps(entry, ensure_ascii=False) + "\n"


class JsonLines(Form):
    def text(self, row: Row) -> str:
        return json_line(entry(row, self.model))

    def stored(self, file: BufferedReader, path: Path) -> Iterator[StoredRow]:
        end = 0
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            end += len(line)
            try:
                row = json.loads(line)
                yield StoredRow(row["file"], "label" in row, row["model"], end)
            except (ValueError, KeyError, TypeError):
                raise _foreign(path, number) from None


class JsonArray(Form):
    begin, between, end = "[\n", ",\n", "\n]\n"

    def text(self, row: Row) -> str:
        return json.dumps(entry(row, self.model), ensure_ascii=False)


class Csv(Form):
    def __init__(self, classes: tuple[str, ...], model: str) -> None:
        super().__init__(classes, model)
        self.begin = csv_line(header(classes))

    def text(self, row: Row) -> str:
        return csv_line(columns(row, self.classes, self.model))

    def stored(self, file: BufferedReader, path: Path) -> Iterator[StoredRow]:
        headings, last, end = plain(self.begin), "", 0

        def lines() -> Iterator[str]:
            """The lines of the file; a row may have several."""
            nonlocal last, end
            for line in iter(file.readline, b""):
                last, end = line.decode("utf-8", "replace"), end + len(line)
                yield last

        for number, cells in enumerate(csv.reader(lines())):
            row, ended = [csv_cell(cell) for cell in cells], not file.peek(1)
            if number == 0 and csv_line(row) != headings:
                if ended and headings.startswith(last):
                    return
                raise UsageError(f"{path} has other columns than this model's: {', '.join(row)}")
            whole = last.endswith("\r\n") and len(row) == len(header(self.classes))
            if not whole and ended:
                return
            if not whole:
                raise _foreign(path, number + 1)
            if number:
                yield StoredRow(row[0], row[1] != "", row[-1], end)


class RowFile:
    """One file of rows, or standard output; call `open`, `start`, then `write`."""

    def __init__(self, path: Path, form: Form) -> None:
        self.path, self.form = path, form
        self._file: BinaryIO | None = None
        self._rows = self._whole = 0  # rows, and bytes up to the end of the last
        self._before = (-1, 0)  # the same before the last row was begun
        self._regular = self._started = False

    @property
    def resumable(self) -> bool:
        return self.path != STDOUT and not isinstance(self.form, JsonArray)

    def open(self) -> None:
        """Open and lock it for writing. Its contents stay until `start`."""
        if self.path == STDOUT:
            import typer

            self._file = typer.get_binary_stream("stdout")
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._file = os.fdopen(descriptor, "r+b", buffering=0)
        self._regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another process is writing to {self.path}: wait until it ends") from None
        except OSError:  # some disks have no locks
            pass

    def start(self, rows: int = 0, end: int = 0) -> None:
        """Write after the first `rows` rows, which are `end` bytes, and cut off the rest."""
        assert self._file
        self._rows, self._whole, self._before, self._started = rows, end, (rows - 1, end), True
        if self._regular:
            self._file.truncate(end)
            self._file.seek(end)
        if not end:
            self._put(self.form.begin)

    def write(self, row: Row) -> None:
        self._before = (self._rows, self._whole)
        self._put(self.form.between * bool(self._rows) + self.form.text(row))
        self._rows += 1

    def end_after(self, rows: int) -> None:
        """Drop the last row if the file has more than this: a signal may come before all files have it."""
        if self._before[0] >= rows:
            self._rows, self._whole = self._before

    def stored(self) -> Iterator[StoredRow]:
        """The rows that it has."""
        with self.path.open("rb") as file:
            yield from self.form.stored(file, self.path)

    def close(self) -> None:
        """Cut off half a row, which a full disk or an error may leave, and end the document."""
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            if self._started and self._regular:
                file.truncate(self._whole)
                file.seek(self._whole)
            if self._started:
                with suppress(BrokenPipeError):
                    file.write(self.form.end.encode())
                    file.flush()
            if self._regular:
                os.fsync(file.fileno())
        finally:
            if self.path != STDOUT:
                file.close()

    def _put(self, text: str) -> None:
        assert self._file
        # A file's name may be no text; in JSON what is written for its bytes is read as that name again.
        data = text.encode("utf-8", "backslashreplace")
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) or 0 :]
        self._file.flush()
        self._whole += len(data)


@contextmanager
def writing(files: list[RowFile], model: str, waiting: Iterator[Item] | None) -> Iterator[Tally]:
    """The files, ready for rows. With `waiting`, skip the pictures that have a row already."""
    with ExitStack() as opened:
        for file in files:
            opened.callback(file.close)
            file.open()
        if waiting is None:
            before, ends = Tally(), [0] * len(files)
        else:
            before, ends = _before(files, model, waiting)
        for file, end in zip(files, ends, strict=True):
            file.start(before.rows, end)
        yield before


def _before(files: list[RowFile], model: str, waiting: Iterator[Item]) -> tuple[Tally, list[int]]:
    """The rows that all files have, which must be of these pictures; and where they end in each."""
    before, ends = Tally(), [0] * len(files)
    readers = [file.stored() for file in files]
    while True:
        rows = [next(reader, None) for reader in readers]
        if any(row is None for row in rows):
            break
        item = next(waiting, None)
        for file, row in zip(files, rows, strict=True):
            assert row
            _check(file.path, before.rows + 1, row, item, model)
        ends = [row.end for row in rows if row]
        before = before.plus(1, int(rows[0] is not None and not rows[0].answered))
    for file, reader, row in zip(files, readers, rows, strict=True):
        if row and next(reader, None):  # rows go to all files in turn: one more is all that a kill can leave
            raise UsageError(f"{file.path} has more rows than the other file: resume one at a time")
    return before, ends


def _check(path: Path, number: int, row: StoredRow, item: Item | None, model: str) -> None:
    anew = "without --resume it is written anew"
    if row.model != model:
        raise UsageError(f"row {number} of {path} was answered by {row.model}, not by {model}; {anew}")
    if item is None or plain(row.file) != plain(item.name):
        there = f"picture {number} is {item.name}" if item else f"there are only {number - 1} pictures"
        raise UsageError(f"row {number} of {path} is of {row.file}, but {there}; {anew}")


def _foreign(path: Path, number: int) -> UsageError:
    return UsageError(f"line {number} of {path} was not written by `qcn predict`; without --resume it is written anew")


def plain(text: str) -> str:
    """Text as it is read back from a file."""
    return text.encode("utf-8", "backslashreplace").decode()
