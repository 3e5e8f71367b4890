"""What every reader of an official file shares: find it, read it (gzip or not), and say what is wrong with it.

A file is read whole before its header is used, so a header that promises more than the file has costs no memory.
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from qcn.data.imageset import ImageSet, Views
from qcn.errors import MissingError, UsageError

Bytes = NDArray[np.uint8]

GZIP_MAGIC = b"\x1f\x8b"
CHUNK = 1 << 20


def find_file(folder: Path, name: str) -> Path:
    """The file `name` of a data set, unpacked or as `name`.gz."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise MissingError(f"{folder / name} is missing, and so is {name}.gz")


def read_bytes(path: Path) -> Bytes:
    """The content of a file, unpacked where it is gzip, whatever its name says. Writable, as torch likes its arrays."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == GZIP_MAGIC
        data = _gunzip(path) if packed else np.fromfile(path, np.uint8)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path}: truncated or damaged gzip file ({error})") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    if data[:256].tobytes().lstrip().lower().startswith((b"<!doctype", b"<html")):
        raise UsageError(f"{path}: is a web page, not data: the server sent a page instead of the file")
    return data


def _gunzip(path: Path) -> Bytes:
    content = bytearray()
    with gzip.open(path) as file:
        while chunk := file.read(CHUNK):
            content += chunk
    return np.frombuffer(content, np.uint8)


def header(path: Path, data: Bytes, offset: int, count: int, dtype: str) -> tuple[int, ...]:
    """`count` numbers at `offset`, such as a magic number or the dimensions."""
    end = offset + count * np.dtype(dtype).itemsize
    if len(data) < end:
        raise UsageError(f"{path}: truncated: {len(data)} bytes are too few for its header")
    return tuple(int(number) for number in data[offset:end].view(dtype))


def body(path: Path, data: Bytes, offset: int, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[np.generic]:
    """The array of `shape` that the header promises after `offset`, to the exact byte."""
    promised = offset + math.prod(shape) * np.dtype(dtype).itemsize
    if len(data) != promised:
        what = "truncated" if len(data) < promised else "too long"
        dims = "×".join(map(str, shape))
        raise UsageError(f"{path}: {what}: {len(data):,} bytes, but by its header it has {dims}, {promised:,} bytes")
    return data[offset:].view(dtype).reshape(shape)


def image_set(
    path: Path, images: Bytes, labels: NDArray[np.generic], classes: tuple[str, ...], views: Views | None = None
) -> ImageSet:
    """An ImageSet whose errors name `path`, the file that the labels came from."""
    try:
        if not len(images):
            raise UsageError("no images")
        return ImageSet(images, labels.astype(np.int64), classes, views)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
