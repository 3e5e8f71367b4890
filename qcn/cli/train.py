"""`qcn train`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qcn.cli import complete
from qcn.cli.options import DATA, DataDir, by_commas, data_dir_option, takes
from qcn.cli.say import say, say_next, show
from qcn.errors import UsageError
from qcn.terminal.tables import table_of
from qcn.train.settings import Settings
from qcn.train.trackers import TRACKERS

if TYPE_CHECKING:
    from qcn.train.record import Epoch


@takes(Settings, by_preset=True)
def train(
    settings: dict[str, Any],
    data_dir: DataDir = DATA,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N; auto uses a GPU if there is one.")] = "auto",
    quantise: Annotated[
        Path | None,
        typer.Option(
            help="Train with the int8 rounding of this calibrated bundle, to win back accuracy. Default: none."
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Continue the run in this folder with its settings (--epochs may extend it). Default: a new run."
        ),
    ] = None,
    tracker: Annotated[
        list[str] | None,
        typer.Option(
            callback=by_commas,
            autocompletion=complete.several(lambda: TRACKERS),
            help=f"Also keep the run in {' or '.join(TRACKERS)}; may be repeated. Default: TensorBoard's events only.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write. Default: runs/train/DATASET-MODEL.")] = None,
) -> None:
    """Train a network. Several GPUs or machines: `torchrun … -m qcn train …`."""
    others: dict[str, Any] = {"quantise": quantise, "tracker": tracker, "out": out}
    others = {name: value for name, value in others.items() if value}
    if resume and (wrong := {**settings, **others}.keys() - {"epochs"}):
        first = next(name for name in (*settings, *others) if name in wrong)
        raise UsageError(f"--resume continues a run with its own settings: leave out --{first.replace('_', '-')}")
    if not resume and "dataset" not in settings:
        raise UsageError("name a data set with --dataset; `qcn datasets list` shows all of them")

    from qcn import api

    if resume:
        run = api.Run(resume).resume(epochs=settings.get("epochs"), data_dir=data_dir, device=device)
    else:
        run = api.train(**settings, **others, data_dir=data_dir, device=device)
    from qcn.networks.distributed import first_process

    if not first_process():
        return
    record, folder = run.record, run.folder
    last = record.history[-1]
    best = next((row for row in record.history if record.best and row.epoch == record.best.epoch), last)
    angle = () if best.direction_error is last.direction_error is None else ("median angle off",)
    numbers = ("epoch", "training error", "validation error", *angle)
    table = table_of("", *numbers, right=numbers, framed=True, title=f"{record.model.name} on {record.data.name}")
    for name, row in (("best", best), ("last", last)):
        off = () if row.direction_error is None else (f"{row.direction_error:.1f}°",)
        errors = f"{100 * row.train_error:.2f} %", f"{100 * row.validation_error:.2f} %"
        table.add_row(name, str(row.epoch), *errors, *off)
    show(table)
    if line := why_best(record.history, best):
        say(line)
    for name in ("run.json", "metrics.csv", "curves.png", "tensorboard"):
        say(folder / name)
    say_next("qcn", "evaluate", folder, *data_dir_option(data_dir))
    if run.exportable:
        say_next("qcn", "export", folder, *data_dir_option(data_dir))


def why_best(history: Sequence["Epoch"], best: "Epoch") -> str:
    """Explain why an epoch with a smaller validation error is not the best; empty if there is none."""
    least = min(history, key=lambda row: row.validation_error)
    if best.validation_error <= least.validation_error:
        return ""
    return (
        "best is the last epoch whose validation error is within the 95 % interval of the least, "
        f"{100 * least.validation_error:.2f} % at epoch {least.epoch}"
    )
