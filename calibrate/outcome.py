"""The results of `qcn calibrate`: tables for the terminal, report.json, charts, and a page."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from qcn.calibrate import digits, sensitivity
from qcn.calibrate.assignments import in_words
from qcn.calibrate.pipeline import Calibrated
from qcn.calibrate.search import Search, Trial, pareto
from qcn.export.backends.receipts import Receipt
from qcn.packages import installed
from qcn.pages import plots
from qcn.pages.html import render
from qcn.storage import records
from qcn.storage.files import write_text
from qcn.terminal.tables import table_of
from qcn.verify import words
from qcn.verify.machine import environment

HERE = Path(__file__).parent


def write(folder: Path, calibrated: Calibrated, receipts: Sequence[Receipt], command: str) -> list[Path]:
    """report.json, report.html and, where there is matplotlib, a PNG of each chart; gives their paths."""
    record = {
        "bundle": calibrated.base.manifest.name,
        "command": command,
        "machine": environment(),
        "audit": calibrated.audit,
        "calibration": calibrated.calibration.shown(),
        "digits": calibrated.digits,
        "sensitivities": calibrated.sensitivities,
        "search": calibrated.search,
        "pareto": pareto(calibrated.search.trials),
        "receipts": receipts,
    }
    files = [folder / "report.json", folder / "report.html"]
    records.write(files[0], record)
    write_text(files[1], page(calibrated, receipts, command))
    if installed("matplotlib"):
        files += [folder / "pareto.png", folder / "sensitivity.png"]
        pareto_chart(files[2], calibrated.search)
        sensitivity.chart(files[3], calibrated.sensitivities)
    return files


def trials_table(calibrated: Calibrated) -> Table:
    """One row per assignment that was tried."""
    numbers = ("error", "points lost", "at most", "time per image", "weights")
    title = f"tried, on {calibrated.audit.images:,} validation images"
    result = table_of("precisions", *numbers, "", right=numbers, whole=numbers, title=title)
    for row in rows(calibrated):
        result.add_row(*(row[name] for name in ("what", "error", "drop", "bound", "time", "size", "verdict")))
    return result


def receipts_table(receipts: Sequence[Receipt]) -> Table:
    """The requested precisions, and those that libqcn or ONNX Runtime ran."""
    whole = ("asked for", "ran in")
    result = table_of("operation", *whole, "kernels", whole=whole, title="asked for, and run")
    for receipt in receipts:
        result.add_row(receipt.operation, receipt.asked, receipt.ran, receipt.by)
    return result


def verdict(calibrated: Calibrated) -> str:
    """One line: what was chosen, what it saves, what it costs."""
    trial, base = calibrated.chosen, _base(calibrated)
    parts = [
        f"{headline(calibrated)}: {in_words(calibrated.program, trial.assignment)}",
        accuracy(calibrated),
        *([trial.timed.words()] if trial.timed else []),
        f"weights {_megabytes(trial)}, {_percent(trial.bytes / base.bytes)} of {_megabytes(base)}",
    ]
    return "; ".join(parts)


def headline(calibrated: Calibrated) -> str:
    """The gain: how much faster, or smaller, and that the accuracy is kept."""
    trial, base, timed = calibrated.chosen, _base(calibrated), calibrated.chosen.timed
    if timed and (timed.share < 1 or calibrated.search.goal == "latency"):
        estimated = "by an estimate " * (timed.milliseconds is None)
        gain = f"{estimated}{1 / timed.share:.2f} times as fast as float32"
    else:
        gain = f"{_percent(trial.bytes / base.bytes)} of the size of float32"
    return f"{gain[0].upper()}{gain[1:]}, accuracy within {calibrated.search.max_drop:g} points"


def accuracy(calibrated: Calibrated) -> str:
    trial = calibrated.chosen
    turned, most = trial.turn, calibrated.search.max_turn
    allowed = "" if most is None else f" ({most:g}° allowed)"
    return (
        f"accuracy drops by {trial.drop:.2f} points, and by less than {max(trial.bound, 0.0):.2f} with 95 % "
        f"confidence ({calibrated.search.max_drop:g} allowed)"
    ) + ("" if turned is None else f"; directions turn by less than {turned:.2g}°, for 95 of 100 images{allowed}")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _megabytes(trial: Trial) -> str:
    return f"{trial.bytes / 1e6:.2f} MB"


def rows(calibrated: Calibrated) -> list[dict[str, Any]]:
    """The trials in words, float32 first, then the fastest first; `x` and `y` are its place in the chart, in per cent.

    `low` and `high` are the ends of the interval there.
    """
    trials = sorted(calibrated.search.trials, key=lambda of: (bool(of.assignment), of.timed.share if of.timed else 1.0))
    front = pareto(trials)
    shares = [trial.timed.share for trial in trials if trial.timed]
    ends = [100 * end for trial in trials for end in (trial.rate.low, trial.rate.high)]
    return [
        {
            "what": in_words(calibrated.program, trial.assignment),
            "error": f"{100 * trial.rate.error:.2f} %",
            "interval": f"{100 * trial.rate.low:.2f} to {100 * trial.rate.high:.2f} %",
            "drop": f"{trial.drop:+.2f}" if trial.assignment else "",
            "bound": f"{trial.bound:+.2f}" if trial.assignment else "",
            "time": _time(trial),
            "size": _megabytes(trial),
            "verdict": _word(calibrated.search, trial),
            "front": trial in front,
            "x": _along(trial.timed.share, shares) if trial.timed else None,
            "y": 100 - _along(100 * trial.rate.error, ends),
            "low": 100 - _along(100 * trial.rate.low, ends),
            "high": 100 - _along(100 * trial.rate.high, ends),
        }
        for trial in trials
    ]


def _along(value: float, values: Sequence[float]) -> float:
    """The place of a value between the least and the largest, in per cent, with room for marks at the ends."""
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


def _base(calibrated: Calibrated) -> Trial:
    base = calibrated.search.find({})
    if base is None:
        raise ValueError("float32 was not measured")
    return base


def pareto_chart(path: Path, search: Search) -> None:
    """Error with its 95 % interval against time, larger dots for larger weights; the front is joined."""
    timed = sorted((trial.timed.share, place) for place, trial in enumerate(search.trials) if trial.timed)
    points = [(100 * share, search.trials[place]) for share, place in timed]
    best = pareto(search.trials)
    front = [(share, trial) for share, trial in points if trial in best]
    with plots.figure(path, 1, 7, 3.8) as (ax,):
        for group, colour, label in ((points, plots.COLOURS[0], "tried"), (front, plots.COLOURS[2], "Pareto front")):
            x, y = [share for share, _ in group], [100 * trial.rate.error for _, trial in group]
            below = [100 * (trial.rate.error - trial.rate.low) for _, trial in group]
            above = [100 * (trial.rate.high - trial.rate.error) for _, trial in group]
            ax.errorbar(x, y, [below, above], fmt="none", color=colour, alpha=0.35, capsize=2)
            ax.scatter(x, y, [trial.bytes / 1e4 for _, trial in group], color=colour, label=label, zorder=3)
        ax.plot([share for share, _ in front], [100 * trial.rate.error for _, trial in front], color=plots.COLOURS[2])
        for place, (share, trial) in enumerate(points):
            counts = {p: list(trial.assignment.values()).count(p) for p in dict.fromkeys(trial.assignment.values())}
            said = ", ".join(f"{count} {precision}" for precision, count in counts.items()) or "float32"
            room = trial.rate.low < trial.rate.error  # below it; an error of 0 lies on the axis
            beside = (8, (7, -22 if room else 27)[place % 2])  # in turn, so that neighbours do not meet
            text = f"{said}\n{trial.bytes / 1e6:.2f} MB"
            ax.annotate(text, (share, 100 * trial.rate.error), beside, textcoords="offset points", fontsize=7)
        ax.set_title(f"Error, time and size ({search.target})", loc="left")
        ax.set(xlabel="time per image, % of float32", ylabel="validation error, %")
        ax.margins(x=0.15)
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
        for handle in ax.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2).legend_handles:
            handle.set_sizes([30])  # those of the dots are the weights'


def page(calibrated: Calibrated, receipts: Sequence[Receipt], command: str) -> str:
    """The HTML; one file that asks nothing of any network and runs no script."""
    lowerable = {one.operation for one in calibrated.sensitivities}
    smallest = min((one.logit for one in calibrated.sensitivities if one.logit), default=1e-9)
    largest = max((one.logit for one in calibrated.sensitivities), default=1.0)

    def bar(value: float) -> float:
        """The length of a bar, in per cent: a power of ten is a step."""
        return 4 + 96 * math.log(max(value, smallest) / smallest) / max(math.log(largest / smallest), 1e-9)

    return render(
        HERE / "page.html.jinja",
        HERE / "page.css",
        filters={"share": words.share, "tiny": words.tiny},
        name=calibrated.base.manifest.name,
        headline=headline(calibrated),
        chosen=in_words(calibrated.program, calibrated.chosen.assignment),
        accuracy=accuracy(calibrated),
        tiles=_tiles(calibrated),
        body=calibrated.search.body,
        refused=calibrated.search.refused,
        rows=rows(calibrated),
        chart=_axes(calibrated.search.trials),
        sensitivities=[(one, bar(one.logit)) for one in sensitivity.ordered(calibrated.sensitivities)],
        digits=calibrated.digits,
        digit_words=[text for one in digits.worst(calibrated.digits) if (text := one.words())],
        values=calibrated.calibration.values,
        method=calibrated.calibration.method,
        audit=calibrated.audit,
        images=calibrated.audit.words(),
        receipts=receipts,
        assignment=calibrated.chosen.assignment,
        operations=[one for one in calibrated.program.operations if one.name in lowerable],
        command=command,
    )


def _tiles(calibrated: Calibrated) -> list[tuple[str, str, str]]:
    """Tiles: name, value, note."""
    trial, base, timed = calibrated.chosen, _base(calibrated), calibrated.chosen.timed
    bound = f"less than {max(trial.bound, 0.0):.2f} with 95 % confidence; {calibrated.search.max_drop:g} allowed"
    tiles = [("accuracy lost", f"{trial.drop:.2f} points", bound)]
    if timed and timed.milliseconds is not None and timed.float32 is not None:
        took, before = words.milliseconds(timed.milliseconds), words.milliseconds(timed.float32)
        tiles.append(("time per image", took, f"{_percent(timed.share)} of {before} in float32"))
    elif timed:
        tiles.append(("time per image", f"≈ {_percent(timed.share)}", "of float32’s: an estimate"))
    size = f"{_percent(trial.bytes / base.bytes)} of {_megabytes(base)} in float32"
    of = f"of {calibrated.calibration.data}; {calibrated.calibration.images:,} of them for the ranges"
    return [*tiles, ("weights", _megabytes(trial), size), ("validation images", f"{calibrated.audit.images:,}", of)]


def _axes(trials: Sequence[Trial]) -> dict[str, list[tuple[float, str]]]:
    """The marks of the chart's axes: time over that of float32, and error, each at its place in per cent."""
    shares = [trial.timed.share for trial in trials if trial.timed]
    ends = [100 * end for trial in trials for end in (trial.rate.low, trial.rate.high)]
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
