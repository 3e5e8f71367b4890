"""Options that several commands take."""

from pathlib import Path
from typing import Annotated

import typer


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
DATA = Path("data")
