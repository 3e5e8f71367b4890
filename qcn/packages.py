"""Which Python modules are installed: they are looked for, not imported."""

import importlib.metadata
import importlib.util


def installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # ValueError: a module without a spec, such as a stand-in
        return False


def distribution(module: str) -> str:
    """The package that a module came with; empty where none is recorded, as in NVIDIA's archives."""
    return next(iter(importlib.metadata.packages_distributions().get(module, [])), "")


def version(module: str) -> str:
    """Of that package; empty where none is recorded."""
    name = distribution(module)
    return importlib.metadata.version(name) if name else ""
