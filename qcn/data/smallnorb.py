"""smallNORB: 50 toys of 5 classes, from 9 elevations × 18 azimuths under 6 lights, in stereo pairs of 96×96 pixels.

24,300 pairs show the training instances 4, 6, 7, 8, 9 of each class, 24,300 the test instances 0, 1, 2, 3, 5. Each half
has three files: `dat` holds the pairs, `cat` the classes, `info` the instance, the elevation (0 to 8, for 30° to 70°),
the azimuth (0 to 34, in tens of degrees) and the lighting (0 to 5). All are "binary matrices", little endian: a magic
number for the element type, the number of dimensions, the dimensions (three at least, however few count), the data.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qcn.data.binary import body, find_file, header, image_set, read_bytes
from qcn.data.imageset import ImageSet, Views
from qcn.data.spec import Augmentation, Dataset, Preprocessing, RemoteFile
from qcn.data.splits import Axis, by_instance, by_viewpoint
from qcn.errors import UsageError

CLASSES = ("animal", "human", "airplane", "truck", "car")
SIDES = ("smallnorb-5x46789x9x18x6x2x96x96-training", "smallnorb-5x01235x9x18x6x2x96x96-testing")
SIZE = 96
BYTES, INTEGERS = 0x1E3D4C55, 0x1E3D4C54  # magic numbers
ELEMENT = {BYTES: "u1", INTEGERS: "<i4"}
INFO = {"instance": range(10), "elevation": range(9), "azimuth": range(0, 36, 2), "lighting": range(6)}


def read_matrix(path: Path, magic: int, ndim: int) -> NDArray[np.generic]:
    """A binary matrix with this magic number and this many dimensions, gzip or not."""
    data = read_bytes(path)
    seen, dims = header(path, data, 0, 2, "<u4")
    if seen != magic:
        raise UsageError(
            f"{path}: not the expected kind of smallNORB matrix: magic number 0x{seen:08X}, not 0x{magic:08X}"
        )
    if dims != ndim:
        raise UsageError(f"{path}: a matrix of {dims} dimensions, not {ndim}")
    stored = max(3, ndim)
    shape = header(path, data, 8, stored, "<u4")[:ndim]
    return body(path, data, 8 + 4 * stored, shape, ELEMENT[magic])


def read(folder: Path) -> ImageSet:
    """All 48,600 pairs, training instances first, with their viewpoints; images [N, 2, 96, 96], the left eye first."""
    train, test = (_read_side(folder, side) for side in SIDES)
    views = (np.concatenate([getattr(side.views, name) for side in (train, test)]) for name in INFO)
    images, labels = (np.concatenate([getattr(side, name) for side in (train, test)]) for name in ("images", "labels"))
    return ImageSet(images, labels, CLASSES, Views(*views))


def _read_side(folder: Path, side: str) -> ImageSet:
    dat, cat, info = (find_file(folder, f"{side}-{kind}.mat") for kind in ("dat", "cat", "info"))
    images = read_matrix(dat, BYTES, ndim=4)
    if images.shape[1:] != (2, SIZE, SIZE):
        raise UsageError(f"{dat}: pairs of {list(images.shape[1:])}, not [2, {SIZE}, {SIZE}]")
    return image_set(cat, images.view(np.uint8), read_matrix(cat, INTEGERS, ndim=1), CLASSES, _views(info, len(images)))


def _views(info: Path, count: int) -> Views:
    table = read_matrix(info, INTEGERS, ndim=2).astype(np.int64)
    if table.shape != (count, len(INFO)):
        raise UsageError(f"{info}: a table of {list(table.shape)}, not [{count}, {len(INFO)}], one row per pair")
    for (name, allowed), column in zip(INFO.items(), table.T, strict=True):
        if not np.isin(column, allowed).all():
            wrong = column[~np.isin(column, allowed)][0]
            raise UsageError(f"{info}: {name} must be one of {', '.join(map(str, allowed))}, not {wrong}")
    instance, elevation, azimuth, lighting = table.T
    return Views(instance, 30 + 5 * elevation, 10 * azimuth, lighting)


# Checksums of the .gz files as served: disent/dataset/data/_groundtruth__norb.py of github.com/nmichlo/disent,
# and torch readers written apart from it, which also give those of the contents. (Both halves have the same classes.)
SERVER = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small"
FILES = tuple(
    RemoteFile(f"{SERVER}/{name}.mat.gz", md5)
    for name, md5 in {
        f"{SIDES[0]}-dat": "66054832f9accfe74a0f4c36a75bc0a2",
        f"{SIDES[0]}-cat": "23c8b86101fbf0904a000b43d3ed2fd9",
        f"{SIDES[0]}-info": "51dee1210a742582ff607dfd94e332e3",
        f"{SIDES[1]}-dat": "e4ad715691ed5a3a5f138751a4ceb071",
        f"{SIDES[1]}-cat": "5aa791cd7e6016cf957ce9bdb93b8603",
        f"{SIDES[1]}-info": "a9454f3864d7fd4bb3ea7fc3eb84924e",
    }.items()
)

CONTENTS = {
    f"{SIDES[0]}-dat.mat": "8138a0902307b32dfa0025a36dfa45ec",
    f"{SIDES[0]}-cat.mat": "fd5120d3f770ad57ebe620eb61a0b633",
    f"{SIDES[0]}-info.mat": "19faee774120001fc7e17980d6960451",
    f"{SIDES[1]}-dat.mat": "e9920b7f7b2869a8f1a12e945b2c166c",
    f"{SIDES[1]}-cat.mat": "fd5120d3f770ad57ebe620eb61a0b633",
    f"{SIDES[1]}-info.mat": "7c5b871cc69dcadec1bf6a18141f5edc",
}


def _dataset(name: str, summary: str, axis: Axis | None = None, pooled: bool = False) -> Dataset:
    return Dataset(
        name=name,
        summary=summary,
        classes=CLASSES,
        channels=2,
        size=SIZE,
        folder="smallnorb",
        load=lambda folder: by_viewpoint(read(folder), name, axis, pooled) if axis else by_instance(read(folder), name),
        preprocessing=Preprocessing(resize=48, crop=32, standardise="image"),
        augmentation=dict.fromkeys(("paper", "best"), Augmentation(random_crop=True)),
        files=FILES,
        contents=CONTENTS,
        terms="for research, not to be sold; Y. LeCun, F. J. Huang and L. Bottou",
    )


DATASETS = (
    _dataset("smallnorb", "toys in stereo, 96×96 grey; test on new instances"),
    _dataset("smallnorb-azimuth", "smallNORB, test on new instances from new azimuths", "azimuth"),
    _dataset("smallnorb-azimuth-pooled", "smallNORB, test on known instances from new azimuths", "azimuth", True),
    _dataset("smallnorb-elevation", "smallNORB, test on new instances from new elevations", "elevation"),
    _dataset("smallnorb-elevation-pooled", "smallNORB, test on known instances from new elevations", "elevation", True),
)
