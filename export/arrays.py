"""Arrays and text in a safetensors file, whose layout has a version. No torch here."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from qcn.errors import UsageError
from qcn.export.network import Array


def write_arrays(path: Path, arrays: dict[str, Array], schema: str, **texts: str) -> None:
    """Write the file `path`."""
    # safetensors takes the bytes of an array as they lie in memory: those of a transposed one would come out in the
    # wrong order. And its own writer reports a full disk as a broken file.
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    path.write_bytes(save(whole, {"schema": schema, **texts}))


def read_arrays(path: Path, schema: str) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays and the texts of the file `path`; a broken file or another schema is refused."""
    try:
        with safe_open(path, framework="numpy") as file:
            texts = file.metadata() or {}
            if texts.get("schema") != schema:
                raise UsageError(f"it has schema {texts.get('schema')!r}; this version of qcn reads {schema!r}")
            return {name: file.get_tensor(name) for name in file.keys()}, texts  # noqa: SIM118
    except (SafetensorError, TypeError, AttributeError) as error:  # the latter two: a type that numpy does not have
        raise UsageError(f"it is not a file of arrays: {error}") from error
