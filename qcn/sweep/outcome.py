"""What came of a sweep: a table, a CSV, a picture of the curves, and a sweep of the best with fresh seeds."""

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

from qcn.pages.plots import COLOURS, figure
from qcn.storage.files import write_text
from qcn.sweep.plan import Sweep
from qcn.sweep.run import Outcome, run_settings
from qcn.terminal.tables import table_of

if TYPE_CHECKING:
    from rich.table import Table

BEST = "best.toml"
FRESH = 3  # seeds
TABLE = 20  # trials in the terminal's table


def write(out: Path, plan: Sweep, outcomes: list[Outcome]) -> list[Path]:
    """The files of a finished sweep; the last is the sweep of the best, if all trials have the same data set."""
    files = [out / "sweep.csv", out / "sweep.png"]
    write_text(files[0], _csv(outcomes))
    _draw(files[1], outcomes)
    if len({plan.settings(one.trial, 0)["dataset"] for one in outcomes}) == 1:
        files.append(out / BEST)
        write_text(out / BEST, best_again(plan, out, outcomes[0]))
    return files


def table(outcomes: list[Outcome]) -> "Table":
    """The best trials, and how sure that is."""
    names = _changed(outcomes)
    numbers = ("epochs", "validation error", "95 %")
    result = table_of("trial", *names, *numbers, right=numbers, framed=True)
    for one in outcomes[:TABLE]:
        low, high = one.interval
        values = (str(one.trial.changed.get(name, "")) for name in names)
        result.add_row(
            one.trial.name, *values, str(one.epochs), f"{100 * one.error:.2f} %", f"{100 * low:.2f} to {100 * high:.2f}"
        )
    return result


def best_again(plan: Sweep, out: Path, best: Outcome) -> str:
    """A sweep file that trains the best settings to the end with seeds that it was not chosen by."""
    first = max(best.trial.seeds) + 1
    settings = run_settings(plan, out, best.trial, first) | {"seed": list(range(first, first + FRESH))}
    # Text, numbers, switches and lists of them are written in TOML as in JSON.
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in settings.items()]
    return "\n".join([f"# {best.trial.name}, with fresh seeds", *lines, "", "[sweep]", "keep = 1", ""])


def _changed(outcomes: list[Outcome]) -> list[str]:
    """The settings that differ between trials, other than epochs, which every table has."""
    return list(dict.fromkeys(name for one in outcomes for name in one.trial.changed if name != "epochs"))


def _csv(outcomes: list[Outcome]) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    names = _changed(outcomes)
    rows.writerow(["trial", *names, "epochs", "validation_error", "low", "high", "runs"])
    for one in outcomes:
        values = [one.trial.changed.get(name, "") for name in names]
        folders = " ".join(folder.name for folder in one.folders)
        rows.writerow([one.trial.name, *values, one.epochs, one.error, *one.interval, folders])
    return text.getvalue()


def _draw(path: Path, outcomes: list[Outcome]) -> None:
    """The validation error of each run by epoch: of the trials that trained to the end in colour."""
    last = max(one.epochs for one in outcomes)
    with figure(path, 1, 7, 4) as (axes,):
        for place, one in reversed(list(enumerate(outcomes))):
            stopped = one.epochs < last
            colour = "0.75" if stopped else COLOURS[place % len(COLOURS)]
            for number, curve in enumerate(one.curves):
                name = one.trial.name if not stopped and not number else None
                axes.plot(range(1, len(curve) + 1), [100 * error for error in curve], color=colour, label=name)
        axes.set(title="Validation error, %", xlabel="epoch", ylim=(0, None))
        axes.legend(frameon=False)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
