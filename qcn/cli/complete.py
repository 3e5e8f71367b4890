"""What a shell completes (`qcn --install-completion`): names of the product, and folders. No torch here."""

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import get_args

Names = Callable[[], Iterable[str]]
Complete = Callable[[str], list[str]]


def one_of(names: Names) -> Complete:
    """One of these names."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def several(names: Names) -> Complete:
    """Some of these names, by commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name.startswith(last)]

    return complete


def or_folder(names: Names) -> Complete:
    """One of these names, or a folder."""

    def complete(incomplete: str) -> list[str]:
        parent = Path(incomplete).parent if incomplete and not incomplete.endswith("/") else Path(incomplete or ".")
        folders = [f"{path}/" for path in sorted(parent.glob("*")) if path.is_dir()] if parent.is_dir() else []
        return [name for name in (*names(), *folders) if name.startswith(incomplete)]

    return complete


def names_in(module: str, *tables: str) -> Names:
    """The names in these tables of a module, which is imported when a shell asks for them."""
    return lambda: [name for table in tables for name in getattr(importlib.import_module(module), table)]


def shipped() -> list[str]:
    from qcn.shipped import networks

    return list(networks())


def formats() -> list[str]:
    return [*names_in("qcn.export.backends", "EXPORTED")(), "all"]


def fits() -> Iterable[str]:
    from qcn.data.fit import Fit

    return get_args(Fit)


datasets = names_in("qcn.data", "DATASETS")
models = names_in("qcn.names", "NETWORKS")
precisions = names_in("qcn.names", "PRECISIONS")
routings = names_in("qcn.export.request", "ROUTINGS")
targets = names_in("qcn.export.targets", "TARGETS", "ALIASES")
calibration_targets = names_in("qcn.export.backends", "CALIBRATED")
methods = names_in("qcn.calibrate.request", "METHODS")
backends = names_in("qcn.export.backends", "BACKENDS")
runtimes = names_in("qcn.runtime.model", "BACKENDS")  # what `qcn.load` takes for a backend
