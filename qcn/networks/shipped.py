"""The networks that ship with the product, by name; and where any model is that a user names. No torch here.

A network that ships is named by its folder in models/, DATASET-MODEL, and `-qcn` may be left out: `fashion-mnist` is
`fashion-mnist-qcn`. The folder is a bundle with a card, which runs without torch. The training run that it was made of
is in models/runs/, under the same name: in a clone and in the source distribution, but not in a wheel. One on a
pretrained backbone is too large: such a network ships as a calibrated bundle alone.
"""

import json
from pathlib import Path

from qcn.errors import MissingError, UsageError, unknown_name
from qcn.names import CARD, MANIFEST, RUN
from qcn.terminal.text import command_line

# In a clone beside the package, and inside of it where it was installed.
PACKAGE = Path(__file__).resolve().parents[1]
SHIPPED = PACKAGE / "models" if (PACKAGE / "models").is_dir() else PACKAGE.parent / "models"
RUNS = SHIPPED / "runs"
DEFAULT = "-qcn"


def networks() -> dict[str, Path]:
    """The folder of every network that ships, by its name."""
    return {path.name: path for path in sorted(SHIPPED.glob("*")) if (path / CARD).is_file()}


def find_network(name: str) -> Path:
    """The folder of the network that ships under this name, or under this name and `-qcn`."""
    names = networks()
    for full in (name, name + DEFAULT):
        if full in names:
            return names[full]
    raise unknown_name("model", name, {short for one in names for short in (one, one.removesuffix(DEFAULT))})


def place(name: str) -> Path:
    """The folder of a bundle, a run or a network that ships, which is a bundle."""
    folder = bundle_of(name)
    if not (folder / MANIFEST).is_file() and not (folder / RUN).is_file():
        raise UsageError(f"{name} is neither a training run (no {RUN}) nor a bundle (no {MANIFEST})")
    return folder


def bundle_of(name: str) -> Path:
    """The same, but what is neither is for the reader of bundles to refuse."""
    folder = Path(name)
    ships = not {name, name + DEFAULT}.isdisjoint(networks())
    if (folder / MANIFEST).is_file() or (folder / RUN).is_file() or "/" in name or (folder.exists() and not ships):
        return folder
    return find_network(name)


def run_of(name: str) -> Path:
    """The same for what needs a training run: of a network that ships, the run that its bundle was made of."""
    folder = place(name)
    if folder.resolve().parent != SHIPPED:
        return folder
    run = RUNS / folder.resolve().name
    if not (run / RUN).is_file():
        where = f"a clone of the repository has it, in models/runs/{run.name}"
        if not json.loads((folder / CARD).read_text(encoding="utf-8"))["weights"]:
            where = f"it is too large to ship; `qcn models {run.name}` shows the command that trains it"
        copy = command_line("cp", "-r", folder, f"my-{run.name}")
        raise MissingError(
            f"{name} is installed as a bundle, without its training run: {where}. To add files to a copy of the "
            f"bundle: {copy}"
        )
    return run


def is_shipped_run(folder: Path) -> bool:
    """Whether it is the training run of a network that ships."""
    return folder.resolve().parent == RUNS
