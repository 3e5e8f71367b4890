"""TOML files that users write."""

import importlib
from pathlib import Path
from typing import Any

from qcn.errors import MissingError, UsageError
from qcn.packages import installed


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The values of a file; UsageError if it is not `what` it should be, such as "a list of devices"."""
    for module in ("tomllib", "tomli"):  # of Python 3.11 and newer; before that, of PyPI
        if installed(module):
            break
    else:
        raise MissingError("reading TOML in Python 3.10 needs tomli: pip install tomli")
    try:
        values: dict[str, Any] = importlib.import_module(module).loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # not there, not UTF-8, not TOML
        raise UsageError(f"{path} is not {what}: {error}") from error
    return values
