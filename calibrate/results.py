"""What `qcn calibrate` found: tables for the terminal, report.json, charts, and a page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from qcn import plots, records
from qcn.calibrate import digits, sensitivity
from qcn.calibrate.assignments import in_words
from qcn.calibrate.images import Audit
from qcn.calibrate.pipeline import Calibrated
from qcn.calibrate.record import Calibration
from qcn.calibrate.search import Search, Trial, pareto
from qcn.files import write_text
from qcn.html import render
from qcn.packages import installed
from qcn.tables import table_of
from qcn.verify import report, words
from qcn.verify.machine import Environment as Machine
from qcn.verify.machine import environment
from qcn.verify.receipts import Receipt

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
    numbers = ("error", "drop", "up to", "time", "weights")
    title = f"tried, on {found.audit.images:,} validation images"
    made = table_of("assignment", *numbers, "", right=numbers, whole=numbers, title=title)
    for row in rows(found):
        made.add_row(row.what, row.error, row.drop, row.bound, row.time, row.size, row.verdict)
    return made


def receipts_table(receipts: Sequence[Receipt]) -> Table:
    """What was asked for, and what libqcn or ONNX Runtime was seen to run."""
    whole = ("asked", "ran")
    made = table_of("operation", *whole, "by", whole=whole, title="asked for, and run")
    for one in receipts:
        made.add_row(one.operation, one.asked, one.ran, one.by)
    return made


def verdict(found: Calibrated) -> str:
    """One line: what was chosen, what it costs, what it saves."""
    chosen, base = found.chosen, _base(found)
    sizes = f"weights {chosen.bytes / 1e6:.2f} MB, {chosen.bytes / base.bytes:.0%} of {base.bytes / 1e6:.2f} MB"
    return (
        f"{in_words(found.program, chosen.assignment)}: accuracy drops by {chosen.drop:.2f} points, and by less than "
        f"{max(chosen.bound, 0.0):.2f} with 95 % confidence ({found.search.max_drop:g} allowed); "
        f"{_in_time(chosen)}; {sizes}"
    )


def _in_time(trial: Trial) -> str:
    if trial.timed is None:
        return "not timed"
    if trial.timed.milliseconds is None or trial.timed.float32 is None:
        return trial.timed.words()
    took, before = words.milliseconds(trial.timed.milliseconds), words.milliseconds(trial.timed.float32)
    return f"{took} per image, {1 / trial.timed.share:.2f} times as fast as float32 ({before})"


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
            f"{one.bytes / 1e6:.2f} MB",
            _word(found.search, one),
            one in front,
            _along(one.timed.share, shares) if one.timed else -1.0,
            *(100 - _along(100 * error, ends) for error in (one.rate.error, one.rate.low, one.rate.high)),
        )
        for one in trials
    ]


def _along(value: float, values: Sequence[float]) -> float:
    """Where a value lies between the least and the largest, in per cent, with room at the ends."""
    low, high = min(values), max(values)
    return 6 + 88 * (value - low) / (high - low) if high > low else 50.0


def _word(search: Search, trial: Trial) -> str:
    if not trial.assignment:
        return "float32"
    if search.chosen and trial.assignment == search.chosen.assignment:
        return "chosen"
    return "drops too much" if trial.bound > search.max_drop else ""


def _time(trial: Trial) -> str:
    if trial.timed is None:
        return ""
    if trial.timed.milliseconds is None:
        return f"≈ {trial.timed.share:.0%}"
    return f"{words.milliseconds(trial.timed.milliseconds)}, {trial.timed.share:.0%}"


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
            beside = (7, (8, -22)[place % 2])  # above and below in turn, so that neighbours do not meet
            text = f"{said}\n{one.bytes / 1e6:.2f} MB"
            ax.annotate(text, (share, 100 * one.rate.error), beside, textcoords="offset points", fontsize=7)
        ax.set(title=f"Error, time and size ({search.target})", xlabel="time, % of float32")
        ax.set(ylabel="validation error, %")
        ax.margins(x=0.15)
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False)


def page(found: Calibrated, receipts: Sequence[Receipt], command: str) -> str:
    """The HTML; one file that asks nothing of any network and runs no script."""
    chosen, base = found.chosen, _base(found)
    lowerable = {one.operation for one in found.sensitivities}
    smallest = min((one.activation for one in found.sensitivities if one.activation), default=1e-9)
    largest = max((one.activation for one in found.sensitivities), default=1.0)

    def bar(value: float) -> float:
        """The length of a bar, in per cent: a power of ten is a step."""
        return 4 + 96 * math.log(max(value, smallest) / smallest) / max(math.log(largest / smallest), 1e-9)

    return render(
        HERE / "page.html.jinja",
        [report.CSS],
        {"share": words.share},
        name=found.base.manifest.name,
        chosen=in_words(found.program, chosen.assignment),
        verdict=verdict(found),
        tiles=(
            (
                "accuracy drops by",
                f"{chosen.drop:.2f} points",
                f"up to {chosen.bound:.2f}, {found.search.max_drop:g} allowed",
            ),
            ("time", f"{chosen.timed.share:.0%}" if chosen.timed else "–", f"of float32; {_time(chosen)}"),
            ("weights", f"{chosen.bytes / base.bytes:.0%}", f"{chosen.bytes / 1e6:.2f} of {base.bytes / 1e6:.2f} MB"),
            (
                "validation images",
                f"{found.audit.images:,}",
                f"of {found.calibration.data}; ranges from {found.calibration.images:,}",
            ),
        ),
        body=found.search.body,
        refused=found.search.refused,
        rows=rows(found),
        sensitivities=[(one, bar(one.activation)) for one in sensitivity.ordered(found.sensitivities)],
        digits=found.digits,
        digit_words=[text for one in digits.worst(found.digits) if (text := one.words())],
        values=found.calibration.values,
        method=found.calibration.method,
        audit=found.audit,
        receipts=receipts,
        assignment=chosen.assignment,
        operations=[one for one in found.program.operations if one.name in lowerable],
        command=command,
    )
