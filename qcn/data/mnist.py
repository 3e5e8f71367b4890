"""MNIST and Fashion-MNIST: 60,000 training and 10,000 test images of 28×28 grey pixels, ten classes.

Their files are in the idx format: two zero bytes, the type, the number of dimensions, the dimensions, the data; big
endian.
"""

from functools import partial
from pathlib import Path

import numpy as np

from qcn.data.binary import Bytes, body, find_file, header, image_set, read_bytes
from qcn.data.imageset import ImageSet, Splits
from qcn.data.spec import Augmentation, Dataset, RemoteFile
from qcn.data.splits import hold_out
from qcn.errors import UsageError

SIZE = 28
UNSIGNED_BYTE = 0x08  # the type
DIGITS = tuple("0123456789")
GARMENTS = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def load(folder: Path, name: str, classes: tuple[str, ...]) -> Splits:
    train, validation = hold_out(_read(folder, "train", classes), name)
    return Splits(train, validation, {"test": _read(folder, "t10k", classes)})


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


def _read(folder: Path, part: str, classes: tuple[str, ...]) -> ImageSet:
    image_file = find_file(folder, f"{part}-images-idx3-ubyte")
    label_file = find_file(folder, f"{part}-labels-idx1-ubyte")
    images = read_idx(image_file, ndim=3)
    if images.shape[1:] != (SIZE, SIZE):
        raise UsageError(f"{image_file}: images of {images.shape[1]}×{images.shape[2]} pixels, not {SIZE}×{SIZE}")
    return image_set(label_file, images[:, None], read_idx(label_file, ndim=1), classes)


FILES = tuple(
    f"{part}-ubyte" for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
)


def _dataset(
    name: str,
    summary: str,
    classes: tuple[str, ...],
    best: Augmentation,
    server: str,
    checksums: tuple[tuple[str, str], ...],
    terms: str,
) -> Dataset:
    """`checksums` are of FILES: each as served, and unpacked."""
    served, unpacked = zip(*checksums, strict=True)
    return Dataset(
        name=name,
        summary=summary,
        classes=classes,
        channels=1,
        size=SIZE,
        folder=name,
        load=partial(load, name=name, classes=classes),
        augmentation={"paper": Augmentation(), "best": best},
        files=tuple(RemoteFile(f"{server}/{file}.gz", md5) for file, md5 in zip(FILES, served, strict=True)),
        contents=dict(zip(FILES, unpacked, strict=True)),
        terms=terms,
    )


# Checksums: of the files as served, torchvision/datasets/mnist.py; of their contents, worked out from those files.
# LeCun's own server has refused downloads for years; the mirror that torchvision falls back on serves the same files.
DATASETS = (
    _dataset(
        "mnist",
        "handwritten digits, 28×28 grey",
        DIGITS,
        Augmentation(shift=2),
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        (
            ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
            ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
            ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
            ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
        ),
        "CC BY-SA 3.0; Y. LeCun and C. Cortes",
    ),
    _dataset(
        "fashion-mnist",
        "garments, 28×28 grey",
        GARMENTS,
        Augmentation(shift=2, flip=True),
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        (
            ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
            ("25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
            ("bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
            ("bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
        ),
        "MIT licence; Zalando SE",
    ),
)
