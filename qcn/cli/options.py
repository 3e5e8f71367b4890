"""Options that several commands take."""

import math
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from qcn.cli import complete
from qcn.errors import UsageError
from qcn.export.backends import BACKENDS, LOADED


def by_commas(given: list[str] | None) -> list[str]:
    return [name for names in given or () for name in names.split(",")]


def _time_limit(seconds: float) -> float:
    if not 0 < seconds <= 86_400:  # the system cannot wait for months
        raise UsageError(f"--time-limit must be a number of seconds over 0, up to a day (86400), not {seconds:g}")
    return seconds


def _max_regression(share: float) -> float:
    if not 0 <= share < math.inf:
        raise UsageError(f"--max-regression must be 0 or more, not {share}")
    return share


def _bundle(folder: Path | None) -> Path | None:
    from qcn.shipped import bundle_of

    return bundle_of(str(folder)) if folder else None


# Of an argument or option that names a model.
MODEL: dict[str, Any] = {
    "autocompletion": complete.or_folder(complete.shipped),
    "help": "A bundle, a training run, or the name of a shipped network.",
}
BUNDLE: dict[str, Any] = {"autocompletion": complete.or_folder(complete.shipped), "callback": _bundle}
BundleFolder = Annotated[
    Path, typer.Argument(**BUNDLE, help="A bundle made by `qcn export`, or the name of a shipped network.")
]
JsonFile = Annotated[Path | None, typer.Option(help="Write the results to this JSON file. Default: none.")]
DataDir = Annotated[Path, typer.Option(envvar="QCN_DATA", help="Folder that holds the data sets.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N; auto uses a GPU if there is one.")]
Backends = Annotated[
    list[str] | None,
    typer.Option(
        callback=by_commas,
        autocompletion=complete.several(complete.backends),
        help=f"{', '.join(BACKENDS)}; separate several by commas, or repeat the option. Default: all that run here.",
    ),
]
PublicKey = Annotated[
    Path | None,
    typer.Option(
        help="Refuse a bundle that was not signed (`qcn sign`) with the key of this public key, a PEM file. "
        "Default: no check."
    ),
]
Size = Annotated[
    int | None,
    typer.Option(help="For a folder: resize pictures to this side, in pixels. Default: chosen from the pictures."),
]
Fit = Annotated[
    str | None,
    typer.Option(
        autocompletion=complete.one_of(complete.fits),
        help="For a folder: crop (to the centre), letterbox (the whole picture, on black) or stretch. Default: crop.",
    ),
]
Channels = Annotated[
    int | None, typer.Option(help="For a folder: 1 (grey) or 3 (colour). Default: chosen from the pictures.")
]
Backend = Annotated[
    str,
    typer.Option(
        autocompletion=complete.one_of(complete.runtimes),
        help=f"For a bundle: auto (the fastest that runs here), {', '.join(LOADED[:-1])} or {LOADED[-1]}.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        show_default="off",
        help="Also run files that can carry code (TorchScript, pt2). Use it only if you trust their author.",
    ),
]
Run = Annotated[
    str | None,
    typer.Option(help="Require that the bundle is built from this training run's network; needs torch. Default: none."),
]
TimeLimit = Annotated[
    float,
    typer.Option(
        callback=_time_limit,
        help="Seconds per answer for a file that runs in a separate process; five times that to load it.",
    ),
]
MaxRegression = Annotated[
    float, typer.Option(callback=_max_regression, help="How much worse than the baseline it may get; 0.1 is 10 %.")
]
OtherNetwork = Annotated[
    bool,
    typer.Option(
        "--other-network",
        show_default="off",
        help="Accept a --baseline of another network, such as an earlier training.",
    ),
]
DATA = Path("data")
KERNELS = "Routing kernels: auto (fused if available), fused, or reference (plain torch, slow)."


def data_dir_option(data_dir: Path) -> tuple[object, ...]:
    """The option that a suggested command needs for this folder; none if it is the default or in QCN_DATA."""
    return () if str(data_dir) == os.environ.get("QCN_DATA", str(DATA)) else ("--data-dir", data_dir)


def check_file(option: str, path: Path | None) -> None:
    """Refuse a folder where an option names a file to write."""
    if path and path.is_dir():
        raise UsageError(f"{path} is a folder; {option} names a file")


def check_folder(option: str, path: Path | None) -> None:
    """Refuse a file where an option names a folder to write."""
    if path and path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file; {option} names a folder")
