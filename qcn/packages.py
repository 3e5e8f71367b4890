"""Which Python modules and packages are installed: they are looked for, not imported."""

import importlib.metadata
import importlib.util


def installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # ValueError: a module without a spec, such as a stand-in
        return False


def distribution(module: str) -> str:
    """The package of a module; empty if none is recorded, as in NVIDIA's archives."""
    return next(iter(importlib.metadata.packages_distributions().get(module, [])), "")


def version(module: str) -> str:
    """The version of a module's package; empty if none is recorded."""
    return package_version(distribution(module))


def package_version(package: str) -> str:
    """The version of a package by its name on PyPI; empty if it is not installed."""
    try:
        return importlib.metadata.version(package) if package else ""
    except importlib.metadata.PackageNotFoundError:
        return ""
