"""Arrays and texts in a safetensors file, whose layout has a version. No torch here.

The texts, and the version as `schema`, are one JSON object under "qcn" in the file's metadata.
"""

import json
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from qcn.errors import UsageError
from qcn.export.program.program import Array
from qcn.storage import records


def write_arrays(path: Path, arrays: dict[str, Array], schema: str, **texts: str) -> None:
    """Write the file `path`."""
    # safetensors takes the bytes of an array as they lie in memory: those of a transposed one would come out in the
    # wrong order. And its own writer reports a full disk as a broken file.
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    # One text in the metadata: the library writes several in an order that changes from one time to the next.
    path.write_bytes(save(whole, {"qcn": json.dumps({"schema": schema, **texts}, ensure_ascii=False)}))


def read_arrays(content: bytes, schema: str) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays, in the order of their names, and the texts of a file; a broken one or another schema is refused."""
    size = int.from_bytes(content[:8], "little")
    if size > records.LARGEST:  # which the library would read, and libqcn does not; as a name with two entries
        raise UsageError(f"its header has {size:,} bytes, but at most {records.LARGEST:,} are allowed")
    header = records.parse(content[8 : 8 + size], "its header")
    try:
        arrays = load(content)
    except (SafetensorError, KeyError, TypeError, AttributeError, ValueError) as error:  # Key-: no such numpy type
        raise UsageError(f"it is not a file of arrays: {error}") from error
    texts = records.parse(header.get("__metadata__", {}).get("qcn", "{}"), "its metadata")
    if not isinstance(texts, dict) or not all(type(text) is str for text in texts.values()):
        raise UsageError(f"its metadata is not an object of texts: {texts!r}")
    if texts.get("schema") != schema:
        raise UsageError(f"it has schema {texts.get('schema')!r}; this version of qcn reads {schema!r}")
    return dict(sorted(arrays.items())), texts
