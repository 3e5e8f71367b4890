"""Small files in the official formats, written from the formats' descriptions and not from the readers."""

import gzip
import json
import struct
from pathlib import Path

import numpy as np

from qcn.data import checksums
from qcn.data.registry import find

NORB_TRAIN = "smallnorb-5x46789x9x18x6x2x96x96-training"
NORB_TEST = "smallnorb-5x01235x9x18x6x2x96x96-testing"
NORB_INSTANCES = {NORB_TRAIN: (4, 6, 7, 8, 9), NORB_TEST: (0, 1, 2, 3, 5)}


def accept(name: str, folder: Path) -> None:
    """Have these files pass for the official ones of a data set, as if their checksums had been compared before."""
    record = {}
    for file, md5 in find(name).contents.items():
        path = next(path for path in (folder / file, folder / f"{file}.gz") if path.is_file())
        record[file] = checksums.state(path, md5)
    (folder / checksums.RECORD).write_text(json.dumps(record))


def idx(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


def norb(array: np.ndarray) -> bytes:
    """A binary matrix: bytes for uint8, integers for anything else."""
    magic, data = (0x1E3D4C55, array) if array.dtype == np.uint8 else (0x1E3D4C54, array.astype("<i4"))
    dims = (*array.shape, *[1] * (3 - array.ndim))
    return struct.pack(f"<2I{len(dims)}I", magic, array.ndim, *dims) + data.tobytes()


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)


def write_mnist(folder: Path, suffix: str = "", train: int = 40, test: int = 20) -> dict[str, np.ndarray]:
    """Random images; label i % 10 for image i. Returns what was written, by "train" and "t10k"."""
    written = {}
    for part, count in (("train", train), ("t10k", test)):
        written[part] = np.random.default_rng(count).integers(0, 256, (count, 28, 28)).astype(np.uint8)
        write(folder / f"{part}-images-idx3-ubyte{suffix}", idx(written[part]))
        write(folder / f"{part}-labels-idx1-ubyte{suffix}", idx(np.arange(count) % 10))
    accept("mnist", folder)
    return written


def write_cifar10(folder: Path, records: int) -> None:
    """Record i of file f has label i % 10, and in channel c the constant pixel 10 c + f."""
    for file, name in enumerate([*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]):
        rows = [bytes([i % 10]) + b"".join(bytes([10 * c + file]) * 1024 for c in range(3)) for i in range(records)]
        write(folder / name, b"".join(rows))
    accept("cifar10", folder)


def write_svhn(folder: Path, count: int = 40, **replaced: np.ndarray) -> None:
    """Image i has red = i, green = row, blue = column, and the label i % 10 + 1."""
    from scipy.io import savemat

    pixels = np.zeros((32, 32, 3, count), np.uint8)
    pixels[:, :, 0] = np.arange(count)
    pixels[:, :, 1] = np.arange(32)[:, None, None]
    pixels[:, :, 2] = np.arange(32)[None, :, None]
    labels = (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train_32x32.mat", "test_32x32.mat"):
        savemat(folder / name, {"X": pixels, "y": labels} | replaced, do_compression=True)
    accept("svhn", folder)


def norb_tables(side: str) -> tuple[np.ndarray, np.ndarray]:
    """Classes and info of a side with every class, instance, elevation and azimuth, under one light."""
    axes = np.meshgrid(range(5), NORB_INSTANCES[side], range(9), range(0, 36, 2), [3], indexing="ij")
    category, *info = (axis.ravel() for axis in axes)
    return category, np.stack(info, 1)


def write_smallnorb(folder: Path, suffix: str = "", every: int = 9) -> None:
    """Every ninth pair of such a side; its left eye is class + 10 × instance, its right eye the azimuth index."""
    for side in (NORB_TRAIN, NORB_TEST):
        category, info = (table[::every] for table in norb_tables(side))
        left, right = category + 10 * info[:, 0], info[:, 2]
        pairs = np.stack([left, right], 1).astype(np.uint8)[:, :, None, None]
        write(folder / f"{side}-dat.mat{suffix}", norb(np.tile(pairs, (1, 1, 96, 96))))
        write(folder / f"{side}-cat.mat{suffix}", norb(category))
        write(folder / f"{side}-info.mat{suffix}", norb(info))
    accept("smallnorb", folder)
