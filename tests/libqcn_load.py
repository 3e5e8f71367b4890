"""libqcn's verdict on a bundle, by its C interface, as a program on a device gets it."""

import ctypes
import os
from pathlib import Path

import pytest

from qcn.libqcn.binding import File, ModelParams

ROOT = Path(__file__).parents[1]
OK, BAD_ARGUMENT, NO_FILE, BAD_BUNDLE, WRONG_ANSWER, BAD_SIGNATURE = 0, 1, 2, 3, 5, 9  # of qcn_status
NATIVE = 1  # of qcn_backend


def load(
    folder: Path, self_test: int = 1, threads: int = 0, public_key: str | None = None, memory: bool = False
) -> tuple[int, str]:
    """The status of qcn_model_load, or of qcn_model_load_memory with the folder's files, and what it says."""
    path = ROOT / "build" / "libqcn.so"
    if not path.exists():
        pytest.skip("there is no build/libqcn.so: make build/libqcn.so")
    library = ctypes.CDLL(str(path))
    library.qcn_last_error.restype = ctypes.c_char_p
    library.qcn_model_free.argtypes = (ctypes.c_void_p,)
    model = ctypes.c_void_p()
    key = None if public_key is None else public_key.encode()
    params = ModelParams(ctypes.sizeof(ModelParams), NATIVE, None, self_test, threads, 0, None, None, key)
    if memory:
        paths = [path for path in folder.rglob("*") if path.is_file()]
        content = [(os.fsencode(path.relative_to(folder)), path.read_bytes()) for path in paths]
        files = (File * len(content))(*(File(name, data, len(data)) for name, data in content))
        count = ctypes.c_size_t(len(content))
        status = library.qcn_model_load_memory(files, count, ctypes.byref(params), ctypes.byref(model))
    else:
        status = library.qcn_model_load(os.fsencode(folder), ctypes.byref(params), ctypes.byref(model))
    library.qcn_model_free(model)
    return status, library.qcn_last_error().decode() if status else ""
