"""Options that several commands take."""

import math
from pathlib import Path
from typing import Annotated

import typer

from qcn.cli import complete
from qcn.errors import UsageError


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


DataDir = Annotated[Path, typer.Option(envvar="QCN_DATA", help="Folder that holds the data sets.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N; auto takes a GPU where there is one.")]
Backends = Annotated[
    list[str] | None,
    typer.Option(
        callback=by_commas,
        autocompletion=complete.several(complete.backends),
        help="native, torch, torch-fused, torch-cuda, torchscript, torchscript-cuda, pt2, "
        "onnxruntime, onnxruntime-cuda, tensorrt, web, openvino, executorch, triton; several by commas, or given "
        "several times; all that run here if not given.",
    ),
]
PublicKey = Annotated[
    Path | None,
    typer.Option(
        help="Public key, a PEM file: refuse a bundle that its owner did not sign (`qcn sign`); none if not given."
    ),
]
Size = Annotated[
    int | None, typer.Option(help="Of a folder: side in pixels to bring pictures to; chosen from them if not given.")
]
Fit = Annotated[
    str | None,
    typer.Option(
        autocompletion=complete.one_of(complete.fits),
        help="Of a folder: crop (the middle; if not given), letterbox (all, on black) or stretch.",
    ),
]
Channels = Annotated[
    int | None, typer.Option(help="Of a folder: 1 (grey) or 3 (colour); chosen from the pictures if not given.")
]
Backend = Annotated[
    str,
    typer.Option(
        autocompletion=complete.one_of(complete.runtimes),
        help="Of a bundle: auto (the fastest that runs here), native, tensorrt, onnxruntime, openvino, executorch or "
        "web (a page).",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        show_default="off",
        help="Run files that can carry code too (TorchScript, pt2): only if you trust whoever made them.",
    ),
]
TimeLimit = Annotated[
    float,
    typer.Option(
        callback=_time_limit,
        help="Seconds that a file in a process of its own has for one answer; to load, five times.",
    ),
]
MaxRegression = Annotated[
    float, typer.Option(callback=_max_regression, help="How much slower it may be than the baseline; 0.1 is 10 %.")
]
DATA = Path("data")
KERNELS = "Kernels of routing: auto (fused where there are any), fused, or reference (plain torch, slow)."


def check_file(option: str, path: Path | None) -> None:
    """Refuse a folder where an option names a file to write."""
    if path and path.is_dir():
        raise UsageError(f"{path} is a folder; {option} names a file")


def check_folder(option: str, path: Path | None) -> None:
    """Refuse a file where an option names a folder to write."""
    if path and path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file; {option} names a folder")
