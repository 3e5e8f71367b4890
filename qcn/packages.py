"""Which Python modules and packages are installed: they are looked for, not imported."""

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
    return package_version(distribution(module))


def package_version(package: str) -> str:
    """Of a package by the name that pip knows it by; empty where it is not installed."""
    try:
        return importlib.metadata.version(package) if package else ""
    except importlib.metadata.PackageNotFoundError:
        return ""
