"""`qcn datasets list`, `fetch` and `show`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from qcn.cli.options import DATA, DataDir

app = typer.Typer(help="List, fetch and look at data sets.", no_args_is_help=True)


@app.command("list")
def list_datasets(data_dir: DataDir = DATA) -> None:
    """List every data set, and say which are on this machine."""
    from qcn.data import DATASETS
    from qcn.data.fetch import is_here

    table = Table(box=None)
    for heading in ("name", "image", "classes", "here", "what it is"):
        table.add_column(heading, no_wrap=heading != "what it is", overflow="fold")
    for name, entry in DATASETS.items():
        here = "rendered" if not entry.files else "yes" if is_here(entry, data_dir) else "no"
        table.add_row(name, f"{entry.channels}×{entry.size}×{entry.size}", str(len(entry.classes)), here, entry.summary)
    console = Console()
    console.print(table)
    console.print(
        "Download one that is not here: qcn datasets fetch NAME. Rendered ones are made when they are first used."
    )


@app.command()
def fetch(name: str, data_dir: DataDir = DATA) -> None:
    """Download a data set's official files and check them; continues where an earlier try stopped."""
    from qcn.data import find
    from qcn.data.fetch import fetch as bring

    dataset = find(name)
    if not dataset.files:
        print(f"{name} is rendered on this machine when it is first used: there is nothing to fetch")
        return
    for path in bring(dataset, data_dir):
        print(path)
    print(f"{name}: all files are in {data_dir / dataset.folder}")


@app.command()
def show(
    name: str,
    data_dir: DataDir = DATA,
    out: Annotated[Path | None, typer.Option(help="PNG to write; runs/datasets/NAME.png if not given.")] = None,
) -> None:
    """Draw a contact sheet of a data set's training images as a PNG."""
    from qcn.data import load
    from qcn.data.sheet import contact_sheet

    path = out or Path("runs/datasets") / f"{name}.png"
    contact_sheet(load(name, data_dir).train, path, title=name)
    print(path)
