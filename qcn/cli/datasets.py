"""`qcn datasets list`, `fetch`, `show`, `check` and `add`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from qcn.cli import Group, complete
from qcn.cli.options import DATA, DataDir, data_dir_option, takes
from qcn.cli.say import say, say_next
from qcn.cli.say import show as show_table
from qcn.settings import values
from qcn.terminal.progress import doing, shown
from qcn.terminal.tables import table_of
from qcn.terminal.text import counted, readable
from qcn.train.settings import Settings

SHOWN = 10  # of a kind

Name = Annotated[
    str, typer.Argument(autocompletion=complete.one_of(complete.datasets), help="Data set: see `qcn datasets list`.")
]
NameOrFolder = Annotated[
    str,
    typer.Argument(
        autocompletion=complete.or_folder(complete.datasets), help="Data set by name, or a folder of pictures."
    ),
]

app = typer.Typer(
    help="List, download, view and check data sets.",
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list")
def list_datasets(data_dir: DataDir = DATA) -> None:
    """List all data sets, and which of them are on this machine."""
    from qcn.data.fetch import is_here
    from qcn.data.registry import DATASETS

    facts = ("name", "image", "classes", "here")
    table = table_of(*facts, "what it is", whole=facts)
    for name, entry in DATASETS.items():
        rendered = not entry.files and not entry.by_hand
        here = "rendered" if rendered else "yes" if is_here(entry, data_dir) else "no"
        table.add_row(name, f"{entry.channels}×{entry.size}×{entry.size}", str(len(entry.classes)), here, entry.summary)
    show_table(table)
    say("rendered data sets are made on first use; to download another:")
    say_next("qcn", "datasets", "fetch", "NAME")


@app.command()
def fetch(name: Name, data_dir: DataDir = DATA) -> None:
    """Download a data set's official files and check them. Resumes an interrupted download."""
    from qcn.data.fetch import fetch as bring
    from qcn.data.registry import find, read

    dataset = find(name)
    if dataset.by_hand:
        read(dataset, data_dir)  # which says what is missing, and where to get it
        print(f"{name}: all files are in {data_dir / dataset.folder}")
        return
    if not dataset.files:
        say(f"{name} is rendered on first use: there is nothing to download")
    else:
        for path in bring(dataset, data_dir):
            say(path)
        say(f"{name}: all files are in {data_dir / dataset.folder}")
    say_next("qcn", "train", "--dataset", name, *data_dir_option(data_dir))


@app.command()
def show(
    name: NameOrFolder,
    data_dir: DataDir = DATA,
    out: Annotated[Path | None, typer.Option(help="PNG to write. Default: runs/datasets/NAME.png.")] = None,
) -> None:
    """Draw a contact sheet of a data set's training images as a PNG."""
    with shown():
        doing(f"reading {name}")
        from qcn.data.registry import dataset_name, load
        from qcn.data.sheet import contact_sheet

        called = dataset_name(name)
        path = out or Path("runs/datasets") / f"{called}.png"
        contact_sheet(load(name, data_dir).train, path, f"{called}, training split")
    say(path)
    say_next("qcn", "train", "--dataset", name, *data_dir_option(data_dir))


@app.command()
@takes(Settings, only=("size", "fit", "channels", "group_by"))
def check(
    folder: Annotated[str, typer.Argument(help="A folder or table of pictures.")],
    settings: dict[str, Any],
    data_dir: DataDir = DATA,
) -> None:
    """Check a folder of pictures: sizes, classes, duplicates, unreadable files."""
    from qcn.data import folder as folders
    from qcn.data.cache import SPLITS, crossing, read_index
    from qcn.data.registry import find, read
    from qcn.data.spec import Stored
    from qcn.errors import UsageError

    if not folders.is_source(folder):
        raise UsageError(f"{folder} is not a folder or table of pictures")
    with shown():
        doing(f"listing {folder}")
        dataset = find(folder, Stored(**values(Settings, **settings)))
        splits = read(dataset, data_dir)
    index = read_index(data_dir / dataset.folder)
    table = table_of("class", *SPLITS, right=SPLITS)
    for label, name in enumerate(dataset.classes):
        parts = (splits.train, splits.validation, *splits.tests.values())
        table.add_row(readable(name), *(f"{int((part.labels == label).sum()):,}" for part in parts))
    show_table(table)
    for line in splits.remarks:
        say(line)
    widths, heights = zip(*index.sizes, strict=True)
    say(f"pictures are {_span(widths)} pixels wide and {_span(heights)} high")
    if index.duplicates:
        across = counted(len(crossing(index)), "pair")
        say(f"{counted(len(index.duplicates), 'group')} of near duplicates, {across} of them across splits")
    else:
        say("no near duplicates")
    for group in index.duplicates[:SHOWN]:
        say(f"  {', '.join(index.files[place] for place in group)}")
    for pair in index.conflicts[:SHOWN]:
        say(f"label conflict: {' and '.join(index.files[place] for place in pair)}")
    for file, why in list(index.skipped.items())[:SHOWN]:
        say(f"left out: {file}: {why}")
    splits.refuse_no_validation(folder)
    size = settings.pop("size", None)
    rare = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    options = [*(("--size", size) if size else ()), *rare]
    say_next("qcn", "train", "--dataset", folder, *options, *data_dir_option(data_dir))


@app.command("add")
def add_labelled(
    folder: Annotated[Path, typer.Argument(help="Folder with one subfolder per class.")],
    table: Annotated[Path, typer.Argument(help="CSV with path and label, such as that of `qcn report field`.")],
) -> None:
    """Copy the pictures that have a label in a table into a folder of pictures."""
    from qcn.data.labelled import add

    added = add(folder, table)
    for name, count in added.classes.items():
        say(f"{name}: {counted(count, 'picture')}{' (a new class)' if name in added.new else ''}")
    if added.already_there:
        say(f"{counted(added.already_there, 'picture')} were there already")
    if added.unlabelled:
        say(f"{counted(added.unlabelled, 'line')} without a label: left out")
    say_next("qcn", "train", "--dataset", folder)


def _span(numbers: Sequence[int]) -> str:
    """Such as `40 to 160`, or `256` where all are the same."""
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least} to {most}"
