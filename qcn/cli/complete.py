"""What a shell completes (`qcn --install-completion`): names of the product, and folders. No torch here."""

import ast
import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path

Complete = Callable[[str], list[str]]


def one_of(names: Callable[[], Iterable[str]]) -> Complete:
    """One of these names."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def several(names: Callable[[], Iterable[str]]) -> Complete:
    """Some of these names, by commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name.startswith(last)]

    return complete


def or_folder(names: Callable[[], Iterable[str]]) -> Complete:
    """One of these names, or a folder."""

    def complete(incomplete: str) -> list[str]:
        parent = Path(incomplete).parent if incomplete and not incomplete.endswith("/") else Path(incomplete or ".")
        folders = [f"{path}/" for path in sorted(parent.glob("*")) if path.is_dir()] if parent.is_dir() else []
        return [name for name in (*names(), *folders) if name.startswith(incomplete)]

    return complete


def models() -> list[str]:
    """Networks to train. Read and not imported: that would import torch, which takes seconds."""
    zoo = importlib.util.find_spec("qcn.zoo")
    tree = ast.parse(Path(zoo.origin).read_text(encoding="utf-8")) if zoo and zoo.origin else ast.Module([], [])
    known = (one.value for one in tree.body if isinstance(one, ast.AnnAssign) and ast.unparse(one.target) == "MODELS")
    return [ast.literal_eval(key) for value in known if isinstance(value, ast.Dict) for key in value.keys if key]


def datasets() -> Iterable[str]:
    from qcn.data import DATASETS

    return DATASETS


def shipped() -> Iterable[str]:
    from qcn.names import RUN
    from qcn.shipped import SHIPPED

    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{RUN}"))


def formats() -> Iterable[str]:
    from qcn.export.pipeline import FORMATS

    return (*FORMATS, "all")


def precisions() -> Iterable[str]:
    from qcn.names import PRECISIONS

    return PRECISIONS


def routings() -> Iterable[str]:
    from qcn.export.pipeline import ROUTINGS

    return ROUTINGS


def targets() -> Iterable[str]:
    from qcn.export.targets import ALIASES, TARGETS

    return (*TARGETS, *ALIASES)


def calibration_targets() -> Iterable[str]:
    from qcn.calibrate.request import TARGETS

    return TARGETS


def methods() -> Iterable[str]:
    from qcn.calibrate.request import METHODS

    return METHODS


def backends() -> Iterable[str]:
    from qcn.verify.runners import BACKENDS

    return BACKENDS


def runtimes() -> Iterable[str]:
    """What `qcn.load` takes for a backend."""
    from qcn.runtime.model import BACKENDS

    return BACKENDS


def fits() -> Iterable[str]:
    from typing import get_args

    from qcn.data.fit import Fit

    return get_args(Fit)
