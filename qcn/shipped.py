"""The networks that ship with the product, by name; and where any model is that a user names. No torch here.

A network that ships is named by its folder in models/, DATASET-MODEL, and `-qcn` may be left out: `fashion-mnist` is
`fashion-mnist-qcn`.
"""

from pathlib import Path

from qcn.errors import UsageError, unknown_name
from qcn.names import MANIFEST, RUN

# In a clone beside the package, and inside of it where it was installed.
PACKAGE = Path(__file__).resolve().parent
SHIPPED = PACKAGE / "models" if (PACKAGE / "models").is_dir() else PACKAGE.parent / "models"
DEFAULT = "-qcn"


def networks() -> dict[str, Path]:
    """The folder of every network that ships, by its name."""
    return {path.name: path for path in sorted(SHIPPED.glob("*")) if (path / RUN).is_file()}


def find_network(name: str) -> Path:
    """The folder of the network that ships under this name, or under this name and `-qcn`."""
    known = networks()
    for full in (name, name + DEFAULT):
        if full in known:
            return known[full]
    raise unknown_name("model", name, {short for one in known for short in (one, one.removesuffix(DEFAULT))})


def place(name: str) -> Path:
    """The folder of a bundle, a run or a network that ships."""
    folder = Path(name)
    if (folder / MANIFEST).is_file() or (folder / RUN).is_file():
        return folder
    if not {name, name + DEFAULT} & networks().keys() and (folder.exists() or "/" in name):
        raise UsageError(f"{name} is neither a training run (no {RUN}) nor a bundle (no {MANIFEST})")
    return find_network(name)
