"""Are the files of a data set the official ones? The md5 of their contents says so.

It is worked out once per file. A record beside the files, `.checked.json`, remembers it for as long as the size, the
times and the inode of a file stay what they were. Where that record cannot be written, every load checks again.
"""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from qcn.data.binary import find_file, read_bytes
from qcn.data.spec import Dataset
from qcn.errors import UsageError
from qcn.storage.files import write_text

RECORD = ".checked.json"


def check(dataset: Dataset, folder: Path) -> None:
    """Refuse files of other contents than the official ones."""
    remembered = _remembered(folder)
    checked = dict(remembered)
    for name, md5 in dataset.contents.items():
        path = find_file(folder, name)
        before = state(path, md5)
        if remembered.get(name) != before:
            seen = hashlib.md5(read_bytes(path).data, usedforsecurity=False).hexdigest()
            if seen != md5:
                raise UsageError(f"{path}: was altered: its contents have md5 {seen}, the official file's {md5}")
            checked[name] = before
    if checked != remembered:
        with suppress(OSError):  # a folder that is for reading only
            write_text(folder / RECORD, json.dumps(checked, indent=1) + "\n")


def state(path: Path, md5: str) -> list[Any]:
    """What the record says of a file that was found to have this md5: whoever alters the file alters this."""
    result = path.stat()
    return [md5, path.name, result.st_size, result.st_mtime_ns, result.st_ctime_ns, result.st_ino]


def _remembered(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # none yet, or not ours: then all is checked again
        return {}
    return record if isinstance(record, dict) else {}
