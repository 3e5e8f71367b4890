"""CIFAR-10, the binary version: 50,000 training and 10,000 test images of 32×32 colour pixels, ten classes.

Six files of 10,000 records; a record is one label byte, then 1,024 red, 1,024 green and 1,024 blue bytes. (The Python
version of the same data is a pickle. It is not read here, because a pickle can run code.)
"""

from pathlib import Path

import numpy as np

from qcn.data.binary import find_file, image_set, read_bytes
from qcn.data.imageset import ImageSet, Splits
from qcn.data.spec import Augmentation, Dataset, RemoteArchive
from qcn.data.splits import hold_out
from qcn.errors import UsageError

FOLDER = "cifar-10-batches-bin"
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILE = "test_batch.bin"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
RECORD = 1 + 3 * 32 * 32
RECORDS = 10_000  # per file: the format has no header, so only this shows that a file was cut off


def load(folder: Path) -> Splits:
    parts = [_read(folder, name) for name in TRAIN_FILES]
    images = np.concatenate([part.images for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    train, validation = hold_out(ImageSet(images, labels, CLASSES), "cifar10")
    return Splits(train, validation, {"test": _read(folder, TEST_FILE)})


def _read(folder: Path, name: str) -> ImageSet:
    path = find_file(folder, name)
    data = read_bytes(path)
    if len(data) != RECORDS * RECORD:
        raise UsageError(f"{path}: {len(data):,} bytes, not {RECORDS * RECORD:,} ({RECORDS:,} records of {RECORD:,})")
    records = data.reshape(RECORDS, RECORD)
    images = np.ascontiguousarray(records[:, 1:]).reshape(RECORDS, 3, 32, 32)
    return image_set(path, images, records[:, 0], CLASSES)


# Checksum: published beside the file, https://www.cs.toronto.edu/~kriz/cifar.html; of its members, worked out from it.
DATASETS = (
    Dataset(
        name="cifar10",
        summary="photographs of animals and vehicles, 32×32 colour",
        classes=CLASSES,
        channels=3,
        size=32,
        folder=FOLDER,
        load=load,
        augmentation=dict.fromkeys(("paper", "best"), Augmentation(shift=4, flip=True)),
        files=(
            RemoteArchive(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "c32a1d4ab5d03f1284b67883e8d87530",
                members=tuple(f"{FOLDER}/{name}" for name in (*TRAIN_FILES, TEST_FILE)),
            ),
        ),
        contents={
            "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
            "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
        },
        terms="no licence is stated; its author asks to be cited: A. Krizhevsky, 2009",
    ),
)
