"""`qcn train`."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qcn.cli import complete
from qcn.cli.options import DATA, KERNELS, Channels, DataDir, Device, Fit, Size, data_dir_option
from qcn.cli.say import say, say_next, show
from qcn.errors import UsageError, unknown_name
from qcn.progress import doing, shown
from qcn.tables import table_of
from qcn.text import command_line

if TYPE_CHECKING:
    from qcn.train.record import Epoch, Quantised, Run


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
    chosen = {
        "dataset": dataset,
        "model": model,
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
        "teachers": tuple(teachers) if teachers else None,
        "init": init,
        "seed": seed,
        "keep": keep,
        "size": size,
        "fit": fit,
        "channels": channels,
    }
    others = {"preset": preset, "out": out, "quantise": quantise}
    given = [name for name, value in {**chosen, **others}.items() if value is not None]
    if resume and (given := [name for name in given if name != "epochs"]):
        raise UsageError(f"--resume continues a run with its own settings: leave out --{given[0].replace('_', '-')}")
    if not resume and not dataset:
        raise UsageError("name a data set with --dataset; `qcn datasets list` shows all of them")
    if quantise and not init:
        raise UsageError("--quantise needs the network that was calibrated: name it with --init")

    from qcn.data import dataset_name
    from qcn.shipped import run_of
    from qcn.train.settings import settings_from

    if resume:
        if epochs is not None and epochs < 1:
            raise UsageError(f"epochs must be positive, not {epochs}")
    else:
        _check(preset, **chosen | {"model": model or "qcn"})
    with shown():
        doing("loading torch")
        from qcn import train as training
        from qcn.distributed import first_process
        from qcn.files import new_folder
        from qcn.train.record import load_run

        if resume:
            folder = resume
            run = training.resume(folder, data_dir, device, epochs)
        else:
            begun = load_run(run_of(init)).model if init else None
            chosen["model"] = model or (begun.name if begun else "qcn")
            if begun and begun.name == chosen["model"]:  # the same kind of network, to its routing
                chosen |= {"mode": begun.mode, "iterations": begun.iterations if iterations is None else iterations}
            settings = settings_from(preset or "best", **chosen)
            quantised = _quantised(quantise, init) if quantise and init else None
            named = out or Path("runs/train") / f"{dataset_name(settings.dataset)}-{settings.model}"
            with nullcontext(named) if out or not first_process() else new_folder(named) as folder:
                run = training.train(settings, data_dir, folder, device, quantised)
    if not first_process():
        return
    last = run.history[-1]
    best = next((row for row in run.history if run.best and row.epoch == run.best.epoch), last)
    numbers = ("epoch", "training error", "validation error")
    table = table_of("", *numbers, right=numbers, framed=True, title=f"{run.model.name} on {run.data.name}")
    for name, row in (("best", best), ("last", last)):
        table.add_row(name, str(row.epoch), f"{100 * row.train_error:.2f} %", f"{100 * row.validation_error:.2f} %")
    show(table)
    if line := why_best(run.history, best):
        say(line)
    for name in ("run.json", "metrics.csv", "curves.png", "tensorboard"):
        say(folder / name)
    say_next("qcn", "evaluate", folder, *data_dir_option(data_dir))
    if exportable(run):
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


def _check(preset: str | None, **chosen: Any) -> None:
    """Refuse wrong arguments before torch is imported, which takes seconds."""
    from qcn.data import find
    from qcn.data.folder import is_source
    from qcn.names import NETWORKS
    from qcn.shipped import run_of
    from qcn.train.settings import settings_from

    settings = settings_from(preset or "best", **chosen)
    zoo = sys.modules.get("qcn.zoo")  # imported where a user's file added a network to it
    known = zoo.MODELS if zoo else NETWORKS
    if settings.model not in known:
        raise unknown_name("model", settings.model, known)
    if not is_source(settings.dataset):  # a folder is looked through when it is read
        find(settings.dataset, settings.stored)
    for name in filter(None, (settings.init, *settings.teachers)):
        run_of(name)


def exportable(run: "Run") -> bool:
    """Whether `qcn export` takes this network. Matrix capsules and other routing rules are for training only."""
    from qcn.export.lower import lower

    try:
        lower(run.model.create(), *run.preprocessing.output_size(*run.data.image[1:]))
    except UsageError:
        return False
    return True


def _quantised(plan: Path, init: str) -> "Quantised":
    """The scales of the calibrated bundle `plan`, by layer of the network that training starts from."""
    from qcn.export.bundle import Bundle
    from qcn.export.lower import layer_scales
    from qcn.shipped import run_of
    from qcn.train.checkpoint import load_network
    from qcn.train.record import Quantised

    program = Bundle.open(plan).program()
    if program.precision != "int8":
        make = command_line("qcn", "calibrate", init, "--out", plan)
        raise UsageError(f"{plan} has no int8 layers: `{make}` makes a bundle that has")
    return Quantised(str(plan), layer_scales(load_network(run_of(init))[0], program))
