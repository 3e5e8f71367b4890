"""Records of measurements (parity, speed, limits, errors) as JSON files: one function writes, one reads and validates.

A record is a frozen dataclass; its fields are the keys. All numbers are finite and what is not known is null, so the
files are strict JSON.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from qcn import records
from qcn.errors import UsageError
from qcn.files import write_text

Record = TypeVar("Record")


def write(path: Path, record: Any) -> None:
    """Write a dataclass as JSON."""
    write_text(path, text(record))


def text(record: Any) -> str:
    """What `write` writes."""
    return json.dumps(asdict(record), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read(cls: type[Record], path: Path, command: str) -> Record:
    """The record that `command` wrote to `path`; anything else is refused, with the place where it differs."""
    try:
        return records.read(cls, records.parse(path.read_bytes(), str(path)), str(path))
    except (OSError, UsageError) as error:
        raise UsageError(f"this is not what `{command}` writes: {error}") from error
