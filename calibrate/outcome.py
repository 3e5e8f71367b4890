"""What `qcn calibrate` found: tables for the terminal, report.json, charts, and a page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from qcn.calibrate import digits, sensitivity
from qcn.calibrate.assignments import in_words
from qcn.calibrate.images import Audit
from qcn.calibrate.pipeline import Calibrated
from qcn.calibrate.record import Calibration
from qcn.calibrate.search import Search, Trial, pareto
from qcn.export.backends.receipts import Receipt
from qcn.packages import installed
from qcn.pages import plots
from qcn.pages.html import render
from qcn.storage import records
from qcn.storage.files import write_text
from qcn.terminal.tables import table_of
from qcn.verify import words
from qcn.verify.machine import Environment as Machine
from qcn.verify.machine import environment

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Row:
    """A trial in words. `x` and `y` are its place in the Pareto chart, in per cent."""

    what: str
    error: str
    interval: str
    drop: str
    bound: str
    time: str
    size: str
    verdict: str
    front: bool
    x: float = 0.0
    y: float = 0.0
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True)
class Report:
    """report.json: everything, for programs."""

    bundle: str
    command: str
    machine: Machine
    audit: Audit
    calibration: Calibration
    digits: tuple[digits.Digits, ...]
    sensitivities: tuple[sensitivity.Sensitivity, ...]
    search: Search
    pareto: tuple[Trial, ...]
    receipts: tuple[Receipt, ...]


def write(folder: Path, found: Calibrated, receipts: Sequence[Receipt], command: str) -> list[Path]:
    """report.json, report.html and, where there is matplotlib, a PNG of each chart; gives their paths."""
    front = pareto(found.search.trials)
    record = Report(
        found.base.manifest.name,
        command,
        environment(),
        found.audit,
        found.calibration.shown(),
        tuple(found.digits),
        tuple(found.sensitivities),
        found.search,
        tuple(front),
        tuple(receipts),
    )
    written = [folder / "report.json", folder / "report.html"]
    records.write(written[0], record)
    write_text(written[1], page(found, receipts, command))
    if installed("matplotlib"):
        written += [folder / "pareto.png", folder / "sensitivity.png"]
        pareto_chart(written[2], found.search)
        sensitivity.chart(written[3], found.sensitivities)
    return written


def trials_table(found: Calibrated) -> Table:
    """One row per assignment that was tried."""
    numbers = ("error", "points lost", "at most", "time per image", "weights")
    title = f"tried, on {found.audit.images:,} validation images"
    made = table_of("precisions", *numbers, "", right=numbers, whole=numbers, title=title)
    for row in rows(found):
        made.add_row(row.what, row.error, row.drop, row.bound, row.time, row.size, row.verdict)
    return made


def receipts_table(receipts: Sequence[Receipt]) -> Table:
    """What was asked for, and what libqcn or ONNX Runtime was seen to run."""
    whole = ("asked for", "ran in")
    made = table_of("operation", *whole, "kernels", whole=whole, title="asked for, and run")
    for one in receipts:
        made.add_row(one.operation, one.asked, one.ran, one.by)
    return made


def verdict(found: Calibrated) -> str:
    """One line: what was chosen, what it saves, what it costs."""
    chosen, base = found.chosen, _base(found)
    parts = [
        f"{headline(found)}: {in_words(found.program, chosen.assignment)}",
        accuracy(found),
        *([chosen.timed.words()] if chosen.timed else []),
        f"weights {_megabytes(chosen)}, {_percent(chosen.bytes / base.bytes)} of {_megabytes(base)}",
    ]
    return "; ".join(parts)


def headline(found: Calibrated) -> str:
    """What calibrating was for: how much faster, or smaller, and that the accuracy is kept."""
    chosen, base, timed = found.chosen, _base(found), found.chosen.timed
    if timed and (timed.share < 1 or found.search.goal == "latency"):
        estimated = "by an estimate " * (timed.milliseconds is None)
        gain = f"{estimated}{1 / timed.share:.2f} times as fast as float32"
    else:
        gain = f"{_percent(chosen.bytes / base.bytes)} of the size of float32"
    return f"{gain[0].upper()}{gain[1:]}, accuracy within {found.search.max_drop:g} points"


def accuracy(found: Calibrated) -> str:
    chosen = found.chosen
    turned, most = chosen.turn, found.search.max_turn
    allowed = "" if most is None else f" ({most:g}° allowed)"
    return (
        f"accuracy drops by {chosen.drop:.2f} points, and by less than {max(chosen.bound, 0.0):.2f} with 95 % "
        f"confidence ({found.search.max_drop:g} allowed)"
    ) + ("" if turned is None else f"; directions turn by less than {turned:.2g}°, for 95 of 100 images{allowed}")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _megabytes(trial: Trial) -> str:
    return f"{trial.bytes / 1e6:.2f} MB"


def rows(found: Calibrated) -> list[Row]:
    """The trials, float32 first, then the fastest first."""
    trials = sorted(found.search.trials, key=lambda one: (bool(one.assignment), one.timed.share if one.timed else 1.0))
    front = pareto(trials)
    shares = [one.timed.share for one in trials if one.timed]
    ends = [100 * end for one in trials for end in (one.rate.low, one.rate.high)]
    return [
        Row(
            in_words(found.program, one.assignment),
            f"{100 * one.rate.error:.2f} %",
            f"{100 * one.rate.low:.2f} to {100 * one.rate.high:.2f} %",
            f"{one.drop:+.2f}" if one.assignment else "",
            f"{one.bound:+.2f}" if one.assignment else "",
            _time(one),
            _megabytes(one),
            _word(found.search, one),
            one in front,
            _along(one.timed.share, shares) if one.timed else -1.0,
            *(100 - _along(100 * error, ends) for error in (one.rate.error, one.rate.low, one.rate.high)),
        )
        for one in trials
    ]


def _along(value: float, values: Sequence[float]) -> float:
    """Where a value lies between the least and the largest, in per cent, with room at the ends, also for the marks."""
    low, high = min(values), max(values)
    return 16 + 78 * (value - low) / (high - low) if high > low else 50.0


def _word(search: Search, trial: Trial) -> str:
    if not trial.assignment:
        return "as trained"
    if search.chosen and trial.assignment == search.chosen.assignment:
        return "chosen"
    if trial.bound > search.max_drop:
        return "loses too much"
    return "turns directions too far" if search.turns_too_far(trial) else ""


def _time(trial: Trial) -> str:
    if trial.timed is None:
        return ""
    if trial.timed.milliseconds is None:
        return f"≈ {_percent(trial.timed.share)}"
    return f"{words.milliseconds(trial.timed.milliseconds)}, {_percent(trial.timed.share)}"


def _base(found: Calibrated) -> Trial:
    base = found.search.known({})
    if base is None:
        raise ValueError("float32 was not measured")
    return base


def pareto_chart(path: Path, search: Search) -> None:
    """Error with its 95 % interval against time, larger dots for larger weights; the front is joined."""
    timed = sorted((one.timed.share, place) for place, one in enumerate(search.trials) if one.timed)
    points = [(100 * share, search.trials[place]) for share, place in timed]
    best = pareto(search.trials)
    front = [(share, one) for share, one in points if one in best]
    with plots.figure(path, 1, 7, 3.8) as (ax,):
        for chosen, colour, label in ((points, plots.COLOURS[0], "tried"), (front, plots.COLOURS[2], "Pareto front")):
            x, y = [share for share, _ in chosen], [100 * one.rate.error for _, one in chosen]
            below = [100 * (one.rate.error - one.rate.low) for _, one in chosen]
            above = [100 * (one.rate.high - one.rate.error) for _, one in chosen]
            ax.errorbar(x, y, [below, above], fmt="none", color=colour, alpha=0.35, capsize=2)
            ax.scatter(x, y, [one.bytes / 1e4 for _, one in chosen], color=colour, label=label, zorder=3)
        ax.plot([share for share, _ in front], [100 * one.rate.error for _, one in front], color=plots.COLOURS[2])
        for place, (share, one) in enumerate(points):
            counts = {p: list(one.assignment.values()).count(p) for p in dict.fromkeys(one.assignment.values())}
            said = ", ".join(f"{count} {precision}" for precision, count in counts.items()) or "float32"
            room = one.rate.low < one.rate.error  # below it; an error of 0 lies on the axis
            beside = (8, (7, -22 if room else 27)[place % 2])  # in turn, so that neighbours do not meet
            text = f"{said}\n{one.bytes / 1e6:.2f} MB"
            ax.annotate(text, (share, 100 * one.rate.error), beside, textcoords="offset points", fontsize=7)
        ax.set_title(f"Error, time and size ({search.target})", loc="left")
        ax.set(xlabel="time per image, % of float32", ylabel="validation error, %")
        ax.margins(x=0.15)
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
        for handle in ax.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2).legend_handles:
            handle.set_sizes([30])  # those of the dots are the weights'


def page(found: Calibrated, receipts: Sequence[Receipt], command: str) -> str:
    """The HTML; one file that asks nothing of any network and runs no script."""
    lowerable = {one.operation for one in found.sensitivities}
    smallest = min((one.logit for one in found.sensitivities if one.logit), default=1e-9)
    largest = max((one.logit for one in found.sensitivities), default=1.0)

    def bar(value: float) -> float:
        """The length of a bar, in per cent: a power of ten is a step."""
        return 4 + 96 * math.log(max(value, smallest) / smallest) / max(math.log(largest / smallest), 1e-9)

    return render(
        HERE / "page.html.jinja",
        HERE / "page.css",
        filters={"share": words.share, "tiny": words.tiny},
        name=found.base.manifest.name,
        headline=headline(found),
        chosen=in_words(found.program, found.chosen.assignment),
        accuracy=accuracy(found),
        tiles=_tiles(found),
        body=found.search.body,
        refused=found.search.refused,
        rows=rows(found),
        chart=_axes(found.search.trials),
        sensitivities=[(one, bar(one.logit)) for one in sensitivity.ordered(found.sensitivities)],
        digits=found.digits,
        digit_words=[text for one in digits.worst(found.digits) if (text := one.words())],
        values=found.calibration.values,
        method=found.calibration.method,
        audit=found.audit,
        images=found.audit.words(),
        receipts=receipts,
        assignment=found.chosen.assignment,
        operations=[one for one in found.program.operations if one.name in lowerable],
        command=command,
    )


def _tiles(found: Calibrated) -> list[tuple[str, str, str]]:
    """Of each a name, a value, a word on it."""
    chosen, base, timed = found.chosen, _base(found), found.chosen.timed
    bound = f"less than {max(chosen.bound, 0.0):.2f} with 95 % confidence; {found.search.max_drop:g} allowed"
    tiles = [("accuracy lost", f"{chosen.drop:.2f} points", bound)]
    if timed and timed.milliseconds is not None and timed.float32 is not None:
        took, before = words.milliseconds(timed.milliseconds), words.milliseconds(timed.float32)
        tiles.append(("time per image", took, f"{_percent(timed.share)} of {before} in float32"))
    elif timed:
        tiles.append(("time per image", f"≈ {_percent(timed.share)}", "of float32’s: an estimate"))
    size = f"{_percent(chosen.bytes / base.bytes)} of {_megabytes(base)} in float32"
    of = f"of {found.calibration.data}; {found.calibration.images:,} of them for the ranges"
    return [*tiles, ("weights", _megabytes(chosen), size), ("validation images", f"{found.audit.images:,}", of)]


def _axes(trials: Sequence[Trial]) -> dict[str, list[tuple[float, str]]]:
    """The marks of the chart's axes: time over that of float32, and error, each at its place in per cent."""
    shares = [one.timed.share for one in trials if one.timed]
    ends = [100 * end for one in trials for end in (one.rate.low, one.rate.high)]
    return {
        "x": [(_along(mark, shares), _percent(mark)) for mark in axis_marks(shares)],
        "y": [(100 - _along(mark, ends), f"{mark:g} %") for mark in axis_marks(ends)],
    }


def axis_marks(values: Sequence[float]) -> list[float]:
    """Three to six round numbers between the least and the largest."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if high <= low:
        return [low] * bool(values)
    rough = 10.0 ** math.floor(math.log10((high - low) / 3))
    step = max(one * rough for one in (1, 2, 5) if one * rough <= (high - low) / 3)
    return [round(place * step, 10) for place in range(math.ceil(low / step), math.floor(high / step) + 1)]
