"""`qcn train`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qcn.cli import complete
from qcn.cli.options import DATA, KERNELS, Channels, DataDir, Device, Fit, Size, data_dir_option
from qcn.cli.say import say, say_next, show
from qcn.errors import UsageError
from qcn.tables import table_of

if TYPE_CHECKING:
    from qcn.train.record import Epoch


def train(
    dataset: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete.or_folder(complete.datasets),
            help="Data set (see `qcn datasets list`) or folder of pictures. Default: that of --resume.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete.one_of(complete.models),
            help=f"{', '.join(complete.models())}. Default: that of --init, or qcn.",
        ),
    ] = None,
    size: Size = None,
    fit: Fit = None,
    channels: Channels = None,
    data_dir: DataDir = DATA,
    preset: Annotated[
        str | None, typer.Option(help="Preset that the settings below start from: best or paper. Default: best.")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="Passes over the training images. Default: 16 (paper: 300); more if there are few images."),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Images per step, over all processes. Default: 128 (paper: 64); fewer if there are few images."
        ),
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Largest learning rate. Default: 0.01 (paper: 0.003).")] = None,
    loss: Annotated[str | None, typer.Option(help="ce (cross-entropy) or spread. Default: ce (paper: spread).")] = None,
    device: Device = "auto",
    precision: Annotated[
        str | None, typer.Option(help="fp32 or bf16 (convolutions only; routing stays fp32). Default: fp32.")
    ] = None,
    compile: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="Use torch.compile. Default: no.")
    ] = None,
    kernels: Annotated[str | None, typer.Option(help=f"{KERNELS} Default: auto.")] = None,
    augment: Annotated[
        str | None,
        typer.Option(
            help="Augmentation of training images: none, light, turned, elastic, cutout or strong. Default: the set's."
        ),
    ] = None,
    label_smoothing: Annotated[
        float | None, typer.Option(help="Share of a label that is spread over all classes. Default: 0.")
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay. Default: 0.0001.")] = None,
    iterations: Annotated[
        int | None,
        typer.Option(help="Iterations of routing. Default: those of --init, or the network's own; 2 for qcn."),
    ] = None,
    teachers: Annotated[
        list[str] | None,
        typer.Option(
            "--teacher",
            autocompletion=complete.or_folder(complete.shipped),
            help="Also learn from the answers of this run (distillation). If repeated, from their mean. Default: none.",
        ),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete.or_folder(complete.shipped),
            help="Start from the weights of this run or shipped network. Default: random weights.",
        ),
    ] = None,
    quantise: Annotated[
        Path | None,
        typer.Option(
            help="Train with the int8 rounding of this calibrated bundle, to win back accuracy. Default: none."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random choice in the run. Default: 0.")] = None,
    keep: Annotated[
        float | None,
        typer.Option(
            help="Share of right answers that must stay known: it decides which answers are unknown. Default: 0.95."
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Continue the run in this folder with its settings (--epochs may extend it). Default: a new run."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write. Default: runs/train/DATASET-MODEL.")] = None,
) -> None:
    """Train a network. Several GPUs or machines: `torchrun … -m qcn train …`."""
    chosen: dict[str, Any] = {
        "model": model,
        "preset": preset,
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "loss": loss,
        "precision": precision,
        "compile": compile,
        "kernels": kernels,
        "augment": augment,
        "label_smoothing": label_smoothing,
        "weight_decay": weight_decay,
        "iterations": iterations,
        "teachers": teachers or None,
        "init": init,
        "quantise": quantise,
        "seed": seed,
        "keep": keep,
        "size": size,
        "fit": fit,
        "channels": channels,
        "out": out,
    }
    settings = {name: value for name, value in chosen.items() if value is not None}
    others = [name for name in (*(["dataset"] if dataset else ()), *settings) if name != "epochs"]
    if resume and others:
        raise UsageError(f"--resume continues a run with its own settings: leave out --{others[0].replace('_', '-')}")
    if not resume and not dataset:
        raise UsageError("name a data set with --dataset; `qcn datasets list` shows all of them")

    from qcn import api

    if resume:
        run = api.resume(resume, epochs=epochs, data_dir=data_dir, device=device)
    else:
        run = api.train(str(dataset), data_dir=data_dir, device=device, **settings)
    from qcn.distributed import first_process

    if not first_process():
        return
    record, folder = run.record, run.folder
    last = record.history[-1]
    best = next((row for row in record.history if record.best and row.epoch == record.best.epoch), last)
    numbers = ("epoch", "training error", "validation error")
    table = table_of("", *numbers, right=numbers, framed=True, title=f"{record.model.name} on {record.data.name}")
    for name, row in (("best", best), ("last", last)):
        table.add_row(name, str(row.epoch), f"{100 * row.train_error:.2f} %", f"{100 * row.validation_error:.2f} %")
    show(table)
    if line := why_best(record.history, best):
        say(line)
    for name in ("run.json", "metrics.csv", "curves.png", "tensorboard"):
        say(folder / name)
    say_next("qcn", "evaluate", folder, *data_dir_option(data_dir))
    if run.exportable:
        say_next("qcn", "export", folder, *data_dir_option(data_dir))


def why_best(history: Sequence["Epoch"], best: "Epoch") -> str:
    """Why another epoch, with a smaller validation error, is not the best; nothing if there is none."""
    least = min(history, key=lambda row: row.validation_error)
    if best.validation_error <= least.validation_error:
        return ""
    return (
        "best is the last epoch whose validation error is within the 95 % interval of the least, "
        f"{100 * least.validation_error:.2f} % at epoch {least.epoch}"
    )
