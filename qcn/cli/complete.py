"""Shell completion (`qcn --install-completion`) of names and folders. No torch here."""

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path

Names = Callable[[], Iterable[str]]
Complete = Callable[[str], list[str]]


def one_of(names: Names) -> Complete:
    """Complete one of these names."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def several(names: Names) -> Complete:
    """Complete names separated by commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name.startswith(last)]

    return complete


def or_folder(names: Names) -> Complete:
    """Complete one of these names, or a folder."""

    def complete(incomplete: str) -> list[str]:
        parent = Path(incomplete).parent if incomplete and not incomplete.endswith("/") else Path(incomplete or ".")
        folders = [f"{path}/" for path in sorted(parent.glob("*")) if path.is_dir()] if parent.is_dir() else []
        return [name for name in (*names(), *folders) if name.startswith(incomplete)]

    return complete


def names_in(module: str, *tables: str) -> Names:
    """The names in these tables of a module, which is imported when a shell asks for them."""
    return lambda: [name for table in tables for name in getattr(importlib.import_module(module), table)]


def shipped() -> list[str]:
    from qcn.networks.shipped import networks

    return list(networks())


datasets = names_in("qcn.data.registry", "DATASETS")
models = names_in("qcn.names", "NETWORKS")
runtimes = names_in("qcn.runtime.model", "BACKENDS")  # what `qcn.load` takes for a backend
# What settings name as their `complete`.
data = or_folder(datasets)
golden_or_data = or_folder(lambda: ("golden", *datasets()))
model = or_folder(shipped)
target = one_of(names_in("qcn.export.targets", "TARGETS", "ALIASES"))
