"""The networks that ship with the product, by name; and where any model is that a user names. No torch here."""

from pathlib import Path

from qcn.errors import UsageError, unknown_name
from qcn.export.bundle.manifest import MANIFEST

# Inside the package where it is installed, beside it in a clone.
SHIPPED = next(
    (at / "models" for at in Path(__file__).resolve().parents[:2] if (at / "models").is_dir()), Path("models")
)
RUN = "run.json"  # what a training run has, as a bundle has its manifest


def place(name: str) -> Path:
    """The folder of a bundle, a run or a network that ships."""
    folder = Path(name)
    if (folder / MANIFEST).is_file() or (folder / RUN).is_file():
        return folder
    shipped = {path.name: path for path in sorted(SHIPPED.glob("*")) if (path / RUN).is_file()}
    for known in (name, f"{name}-qcn"):
        if known in shipped:
            return shipped[known]
    if folder.exists() or "/" in name:
        raise UsageError(f"{name} is neither a bundle nor a training run")
    raise unknown_name("model", name, shipped)
