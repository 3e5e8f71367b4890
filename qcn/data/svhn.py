"""SVHN, the cropped digits: 73,257 training and 26,032 test images of 32×32 colour pixels, ten classes.

Two Matlab files, each with X uint8 [32, 32, 3, N] and y [N, 1] from 1 to 10, where 10 stands for the digit 0.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np

from qcn.data.binary import find_file, image_set, read_bytes
from qcn.data.imageset import ImageSet, Splits
from qcn.data.spec import Augmentation, Dataset, RemoteFile
from qcn.data.splits import hold_out
from qcn.errors import UsageError

CLASSES = tuple("0123456789")


def load(folder: Path) -> Splits:
    train, validation = hold_out(_read(folder, "train_32x32.mat"), "svhn")
    return Splits(train, validation, {"test": _read(folder, "test_32x32.mat")})


def _read(folder: Path, name: str) -> ImageSet:
    from scipy.io import loadmat

    path = find_file(folder, name)
    stream: Any = io.BytesIO(read_bytes(path).tobytes())
    try:
        matrices = loadmat(stream, variable_names=["X", "y"])
    except Exception as error:  # on a damaged file the parser raises whatever it runs into; all of it means the same
        raise UsageError(f"{path}: damaged, or not a Matlab 5 file ({error})") from None
    for variable in ("X", "y"):
        if not isinstance(matrices.get(variable), np.ndarray):
            raise UsageError(f"{path}: has no matrix named {variable}")
    pixels, labels = matrices["X"], matrices["y"].ravel()
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3):
        raise UsageError(f"{path}: X is {pixels.dtype} {list(pixels.shape)}, not uint8 [32, 32, 3, N]")
    if labels.dtype.kind not in "ui" or not np.isin(labels, range(1, 11)).all():
        raise UsageError(f"{path}: y holds labels other than the integers 1 to 10")
    return image_set(path, np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), labels % 10, CLASSES)


# Checksums: torchvision/datasets/svhn.py
FILES = {"train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373", "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3"}
DATASETS = (
    Dataset(
        name="svhn",
        summary="digits of house numbers, 32×32 colour",
        classes=CLASSES,
        channels=3,
        size=32,
        folder="svhn",
        load=load,
        augmentation={"paper": Augmentation(), "best": Augmentation(shift=2)},
        files=tuple(RemoteFile(f"http://ufldl.stanford.edu/housenumbers/{name}", md5) for name, md5 in FILES.items()),
        contents=FILES,
        terms="for non-commercial use; Y. Netzer and others, Stanford University",
    ),
)
