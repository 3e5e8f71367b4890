"""MNIST's idx format: two zero bytes, the type, the number of dimensions, the dimensions, the data; big endian."""

from pathlib import Path

import numpy as np

from qcn.data.binary import Bytes, body, header, read_bytes
from qcn.errors import UsageError

UNSIGNED_BYTE = 0x08


def read_idx(path: Path, ndim: int) -> Bytes:
    """An idx file of unsigned bytes with `ndim` dimensions, gzip or not."""
    data = read_bytes(path)
    (magic,) = header(path, data, 0, 1, ">u4")
    expected = UNSIGNED_BYTE << 8 | ndim
    if magic != expected:
        raise UsageError(
            f"{path}: not an idx file of bytes with {ndim} dimensions: magic number 0x{magic:08X}, not 0x{expected:08X}"
        )
    shape = header(path, data, 4, ndim, ">u4")
    return body(path, data, 4 + 4 * ndim, shape, np.uint8).astype(np.uint8, copy=False)
