"""`qcn evaluate`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from qcn.cli import complete
from qcn.cli.options import data_dir_option, takes
from qcn.cli.say import say, say_next, show
from qcn.evaluate.request import Request
from qcn.settings import make
from qcn.terminal.progress import doing, shown
from qcn.terminal.tables import table_of
from qcn.terminal.text import readable

if TYPE_CHECKING:
    from rich.table import Table

    from qcn.direction import DirectionErrors
    from qcn.evaluate.directions import DirectionResult
    from qcn.evaluate.rates import Result
    from qcn.intervals import ErrorRate


@takes(Request)
def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            autocompletion=complete.or_folder(complete.shipped),
            help="A training run, a bundle, or the name of a shipped network.",
        ),
    ],
    settings: dict[str, Any],
) -> None:
    """Measure a network's error with its 95 % interval, overall, by class and by viewpoint; show the worst mistakes."""
    request = make(Request, **settings)
    with shown():
        doing(f"loading {model}")
        from qcn.evaluate import evaluation
        from qcn.names import RUN
        from qcn.packages import installed

        done = evaluation.evaluate(model, request)
    show(overall(done.results, f"{model}: error on {request.dataset or 'its own data set'}"))
    if any(result.direction for result in done.results):
        show(directions(done.results))
    for result in done.results:
        show(by_class(result))
        if result.direction:
            show(direction_by_class(result, result.direction))
        if request.unknown:
            show(by_known(result))
    for path in done.files:
        say(path)
    if not installed("matplotlib"):
        print("confusion.png was not drawn, because matplotlib is not installed: pip install matplotlib")
    if not (done.model / RUN).is_file():
        say_next("qcn", "verify-parity", done.model)
        return
    from qcn.api import Run

    if Run(done.model).exportable:
        say_next("qcn", "export", done.model, *data_dir_option(request.data_dir))


def overall(results: list["Result"], title: str) -> "Table":
    """One row per split."""
    tops = [f"top-{k} error" for k in {result.top.k for result in results if result.top}]
    numbers = ("images", "error", "95 % interval", *tops, "calibration error")
    whole = ("split", "images", "95 % interval")
    table = table_of("split", *numbers, right=numbers, whole=whole, framed=True, title=readable(title))
    for result in results:
        most = [f"{100 * result.top.rate.error:.2f} %"] if result.top else []
        off = f"{100 * result.calibration_error:.2f} %"
        table.add_row(result.split, f"{result.overall.total:,}", *_shown(result.overall), *most, off)
    return table


def by_class(result: "Result") -> "Table":
    """One row per class of a split."""
    numbers = ("images", "error", "95 % interval")
    title = f"{result.split}, by class"
    table = table_of("class", *numbers, "most often taken for", right=numbers, whole=numbers, framed=True, title=title)
    for row in result.by_class:
        confusion = f"{readable(row.taken_for)} ({row.times:,})" if row.taken_for else ""
        cells = (f"{row.rate.total:,}", *_shown(row.rate)) if row.rate else ("0", "", "")
        table.add_row(readable(row.name), *cells, confusion)
    return table


ANGLES = ("right answers", "median angle off", "mean", "within 15°", "within 30°", "within the spread")


def directions(results: list["Result"]) -> "Table":
    """How far directions are off, one row per split, beside the error."""
    title = "direction of view, of images classified right"
    table = table_of("split", "error", *ANGLES, right=("error", *ANGLES), whole=("split",), framed=True, title=title)
    for result in results:
        if result.direction:
            table.add_row(result.split, f"{100 * result.overall.error:.2f} %", *_angles(result.direction.overall))
    return table


def direction_by_class(result: "Result", direction: "DirectionResult") -> "Table":
    """One row per class of a split."""
    title = f"{result.split}, direction of view by class"
    table = table_of("class", "error", *ANGLES, right=("error", *ANGLES), framed=True, title=title)
    for row in result.by_class:
        rate = f"{100 * row.rate.error:.2f} %" if row.rate else ""
        errors = direction.by_class[row.name]
        table.add_row(readable(row.name), rate, *(_angles(errors) if errors else [""] * len(ANGLES)))
    return table


def _angles(errors: "DirectionErrors") -> list[str]:
    shares = (errors.within_15, errors.within_30, errors.coverage)
    degrees = (errors.median, errors.mean)
    return [f"{errors.images:,}", *(f"{one:.1f}°" for one in degrees), *(f"{100 * one:.1f} %" for one in shares)]


def by_known(result: "Result") -> "Table":
    """How often right answers on the split, and pictures of other things, are called known."""
    numbers = ("pictures", "called known", "95 % interval", "told from test images")
    title = f"{result.split}: what it calls known"
    table = table_of("", *numbers, right=numbers, whole=numbers, framed=True, title=title)
    if result.called_unknown:
        table.add_row("right answers (should be known)", *_known(result.called_unknown.complement), "")
    for row in result.unknown:
        pairs = f"{100 * row.auroc:.1f} % of pairs"
        table.add_row(f"{readable(row.name)} (should be unknown)", *_known(row.called_known), pairs)
    return table


def _known(rate: "ErrorRate") -> tuple[str, str, str]:
    return f"{rate.total:,}", *_shown(rate)


def _shown(rate: "ErrorRate") -> tuple[str, str]:
    return f"{100 * rate.error:.2f} %", f"{100 * rate.low:.2f} to {100 * rate.high:.2f} %"
