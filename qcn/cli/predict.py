"""`qcn predict`."""

import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qcn.cli.options import MODEL, Backend, PublicKey, check_file
from qcn.cli.say import command, say, show
from qcn.errors import CheckFailed, UsageError
from qcn.names import Engine
from qcn.terminal.progress import doing, shown
from qcn.terminal.progress import say as say_above
from qcn.terminal.tables import table_of
from qcn.terminal.text import counted, readable

if TYPE_CHECKING:
    from qcn.predict.reading import Row
    from qcn.predict.rows import Tally
    from qcn.runtime import Model

TABLE = 20  # pictures in the terminal's table, and unreadable ones that are named
DEFAULT = "cifar10-qcn-deep"  # animals and vehicles: what a first photograph may show
ROWS = "- is standard output. Default: none."


def predict(
    sources: Annotated[
        list[str], typer.Argument(help="Pictures, folders, patterns, videos, or camera (camera1 for the second).")
    ],
    model: Annotated[str, typer.Option(**MODEL)] = DEFAULT,
    backend: Backend = "auto",
    top: Annotated[int, typer.Option(min=1, help="Number of classes to show per picture.")] = 1,
    batch: Annotated[int, typer.Option(min=1, max=65_536, help="Batch size.")] = 16,
    frames: Annotated[
        int | None, typer.Option(min=1, help="Most frames to take from a video or camera. Default: all.")
    ] = None,
    jsonl: Annotated[
        Path | None, typer.Option(help=f"Write every answer to this file as a line of JSON, when it is there; {ROWS}")
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            help="The same as a table: file, label, probability, known, azimuth, elevation, spread, one logit per "
            f"class, model; {ROWS}"
        ),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(help=f"The same as one JSON document, which is whole when the command has ended; {ROWS}"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", show_default="off", help="Go on after the answers in --jsonl and --csv.")
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Write each picture with its answer, and a sheet of the first 60, into this folder. Default: none."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write every answer into this folder, a file per thousand pictures: JSON lines, or Parquet if its "
            "name ends in .parquet. Files that are finished are skipped. Default: none."
        ),
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="With --out: this process, or ray: several, on this machine or a cluster.")
    ] = "process",
    public_key: PublicKey = None,
) -> None:
    """Classify pictures, videos or camera frames."""
    if out or engine == "ray":
        others = [("--jsonl", jsonl), ("--csv", csv), ("--json", json), ("--save", save), ("--frames", frames)]
        if named := [option for option, value in others if value is not None]:
            raise UsageError(f"--out is a folder of all answers; it does not go with {' and '.join(named)}")
        _predict_shards(sources, out, engine, model, backend, batch, public_key)
        return
    from qcn.predict import draw, rows
    from qcn.predict.open import open_model
    from qcn.predict.reading import answered, pictures_of
    from qcn.predict.sources import count, items

    forms = {"--jsonl": (jsonl, rows.JsonLines), "--csv": (csv, rows.Csv), "--json": (json, rows.JsonArray)}
    paths = {option: path for option, (path, _) in forms.items() if path}
    _check_files(paths, resume)
    to_stdout = rows.STDOUT in paths.values()
    sheet = draw.Sheet(save) if save else None
    with shown():
        doing("counting pictures")
        total = count(sources)
        doing(f"loading {model}")
        answering = open_model(model, backend, public_key)
        table = _Table(top, to_stdout, answering.directions is not None)
        waiting = items(sources, frames)
        files = [
            rows.RowFile(path, form(answering.classes, answering.identity)) for path, form in forms.values() if path
        ]
        with rows.writing(files, answering.identity, waiting if resume else None) as before:
            tally, began = before, time.perf_counter()
            try:
                with closing(pictures_of(waiting, sources)) as pictures:
                    for row in answered(answering, pictures, batch):
                        for file in files:
                            file.write(row)
                        tally = tally.plus(1, int(row.answer is None))
                        if tally.rows % batch == 0 or tally.rows == total:
                            _show(answering, tally, before, total, began)
                        if sheet:
                            sheet.add(row, tally.rows)
                        table.add(row)
            except KeyboardInterrupt:
                for file in files:
                    file.end_after(tally.rows)
                if files and all(file.resumable for file in files):
                    _say_stopped(tally, " --resume" * (not resume))
                raise
    seconds = time.perf_counter() - began
    table.end(tally.read - before.read, bool(files))
    if sheet and sheet.write():
        say(sheet.words())
    for path in paths.values():
        if path != rows.STDOUT:
            say(path)
    _end(answering, tally, before, seconds, to_stdout)


def _predict_shards(
    sources: list[str],
    out: Path | None,
    engine: Engine,
    model: str,
    backend: str,
    batch: int,
    public_key: Path | None,
) -> None:
    """Answer into a folder of shards, in this process or with Ray."""
    from qcn.predict import shards
    from qcn.predict.open import open_model
    from qcn.storage.files import alone_in

    if out is None:
        raise UsageError("--engine ray writes a folder of answers: name it by --out")
    with shown(), alone_in(out):
        doing(f"loading {model}")
        answering = open_model(model, backend, public_key)
        doing("counting pictures")
        waiting, before = shards.plan(sources, out, answering.identity)
        tally, began = before, time.perf_counter()
        total = before.rows + sum(len(shard.pictures) for shard in waiting)
        if engine == "ray":
            results = shards.by_ray(model, backend, public_key, answering.identity, batch, waiting)
        else:
            results = map(partial(shards.answer, answering, batch), waiting)
        try:
            for finished in results:
                tally = tally.plus(*finished)
                _show(answering, tally, before, total, began)
        except KeyboardInterrupt:
            _say_stopped(tally)
            raise
    seconds = time.perf_counter() - began
    say(out)
    _end(answering, tally, before, seconds)


def _show(model: "Model", tally: "Tally", before: "Tally", total: int | None, began: float) -> None:
    """Show progress."""
    rate = (tally.rows - before.rows) / (time.perf_counter() - began)
    done = f"{counted(tally.rows, 'picture')}, {rate:,.0f}/s, by {model.backend}"
    doing(done, tally.rows if total else None, of=total or 1)


def _say_stopped(tally: "Tally", resume: str = "") -> None:
    """Print the command that resumes."""
    say_above(f"{counted(tally.rows, 'picture')} answered; go on with: {command()}{resume}")


def _end(model: "Model", tally: "Tally", before: "Tally", seconds: float, to_stderr: bool = False) -> None:
    """Print how many pictures were read, and fail if some were unreadable."""
    read = tally.read - before.read
    after = f", after {before.rows:,} that were answered before" * bool(before.rows)
    by = f"{readable(model.name)} on {model.backend}"
    text = f"{counted(read, 'picture')} in {seconds:.2f} s ({read / seconds:,.0f}/s), including reading, by {by}{after}"
    typer.echo(text, err=to_stderr)
    if tally.unreadable:
        raise CheckFailed(f"{tally.unreadable:,} of {counted(tally.rows, 'picture')} could not be read")


class _Table:
    """The first answers for the terminal, shown when they are there; and the names of what could not be read."""

    def __init__(self, top: int, hidden: bool, directions: bool) -> None:
        headings = ("file", "label", "probability", *("seen from",) * directions)
        self._table = table_of(*headings, right=("probability",), whole=("probability",))
        self._top, self._hidden, self._directions = top, hidden, directions
        self._rows = self._unreadable = 0

    def add(self, row: "Row") -> None:
        if row.answer is None:
            self._add_unreadable(row.error)
            return
        if self._rows >= TABLE:
            return
        self._rows += 1
        for place, (label, probability) in enumerate(row.answer.top(self._top)):
            named, words = ("", label) if place else (row.file, row.answer.words())
            cells = [readable(named), readable(words), f"{100 * probability:.1f} %"]
            if self._directions:
                direction = None if place else row.answer.direction
                cells.append(direction.words() if direction else "")
            self._table.add_row(*cells)
        if self._rows == TABLE:
            self._show()

    def _add_unreadable(self, why: str) -> None:
        self._unreadable += 1
        if self._unreadable <= TABLE:
            say_above(readable(why))
        elif self._unreadable == TABLE + 1:
            say_above("… and more that could not be read")

    def end(self, answers: int, written: bool) -> None:
        if self._rows < TABLE:
            self._show()
        if answers > self._rows and not self._hidden:
            say(f"… and {answers - self._rows:,} more" + "; --jsonl FILE or --csv FILE has all of them" * (not written))

    def _show(self) -> None:
        if not self._hidden and self._rows:
            show(self._table)


def _check_files(paths: dict[str, Path], resume: bool) -> None:
    """Refuse files that cannot be written to or resumed."""
    for option, path in paths.items():
        check_file(option, path)
    if len(set(paths.values())) < len(paths):
        raise UsageError(f"{' and '.join(paths)} name the same file")
    if not resume:
        return
    if not paths:
        raise UsageError("--resume goes on with a file: name it by --jsonl or --csv")
    if "--json" in paths:
        raise UsageError("--resume goes on with --jsonl or --csv, not with --json, which is one document")
    if Path("-") in paths.values():
        raise UsageError("--resume goes on with a file, not with standard output")
