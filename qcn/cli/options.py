"""Options that several commands take."""

import math
from pathlib import Path
from typing import Annotated

import typer

from qcn.errors import UsageError


def by_commas(given: list[str] | None) -> list[str]:
    return [name for names in given or () for name in names.split(",")]


DataDir = Annotated[Path, typer.Option(envvar="QCN_DATA", help="Folder that holds the data sets.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N; auto takes a GPU where there is one.")]
Backends = Annotated[
    list[str] | None,
    typer.Option(
        callback=by_commas,
        help="native, torch, torch-fused, torch-cuda, torchscript, torchscript-cuda, pt2, "
        "onnxruntime, onnxruntime-cuda, tensorrt; several by commas, or given several times; else all "
        "that run here.",
    ),
]
PublicKey = Annotated[
    Path | None,
    typer.Option(
        help="Public key, a PEM file: refuse a bundle that its owner did not sign (`qcn sign`); else not checked."
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Run files that can carry code too (TorchScript, pt2): only if you trust whoever made them."
    ),
]
TimeLimit = Annotated[
    float, typer.Option(help="Seconds that a file in a process of its own has for one answer; to load, five times.")
]
DATA = Path("data")
KERNELS = "Kernels of routing: auto (fused where there are any), fused, or reference (plain torch, slow)."


def check_file(option: str, path: Path | None) -> None:
    """Refuse a folder where an option names a file to write."""
    if path and path.is_dir():
        raise UsageError(f"{path} is a folder; {option} names a file")


def check_time_limit(seconds: float) -> None:
    if not 0 < seconds < math.inf:
        raise UsageError(f"--time-limit must be a number of seconds over 0, not {seconds:g}")
