"""COIL-20: photographs of 20 objects on a turntable, each from 72 azimuths, grey on black, 128×128 pixels.

1,440 files, objN__M.png: object N, 1 to 20, turned by 5·M degrees. Each object is a class. They are kept as 32×32, by
`qcn.data.fit`, which smooths as it makes pictures smaller.

Both splits are in the pooled protocol of `qcn.data.splits`. "coil20-azimuth": the views within 60° of the first one are
familiar (25 of 72), and "novel" is the same objects from all other sides. "coil20-between": every other view is
familiar, and "novel" is the views between.

The camera stands level, so only azimuths are known, each counted from its object's first view. Some objects are nearly
round; which ones is not on record, so all of them count.
"""

from pathlib import Path

import numpy as np

from qcn.data.fit import fit, read_picture
from qcn.data.imageset import ImageSet, Views
from qcn.data.spec import Augmentation, Dataset
from qcn.data.splits import by_viewpoint
from qcn.errors import MissingError, UsageError

OBJECTS, VIEWS, STEP = 20, 72, 5
FILE_SIDE, SIDE = 128, 32
CLASSES = tuple(f"object {number}" for number in range(1, OBJECTS + 1))
FAMILIAR = tuple(azimuth for azimuth in range(0, 360, STEP) if min(azimuth, 360 - azimuth) <= 60)
UNPACKED = "coil-20-proc"  # the folder in Columbia's archive
BY_HAND = (
    "Columbia University gives it out for non-commercial research: get coil-20-proc.zip from "
    "https://www.cs.columbia.edu/CAVE/software/softlib/coil-20.php and unpack it into DATA/coil20, DATA being what "
    f"--data-dir names, so that {UNPACKED}/obj1__0.png to obj{OBJECTS}__{VIEWS - 1}.png are in it"
)


def read(folder: Path) -> ImageSet:
    """All 1,440 photographs by object and azimuth: images [1440, 1, 32, 32]."""
    place = folder / UNPACKED if (folder / UNPACKED).is_dir() else folder
    numbers = [(item, view) for item in range(OBJECTS) for view in range(VIEWS)]
    paths = [place / f"obj{item + 1}__{view}.png" for item, view in numbers]
    if missing := [path for path in paths if not path.is_file()]:
        raise MissingError(f"{len(missing):,} of {len(paths):,} files are missing, such as {missing[0]}. {BY_HAND}")
    objects, views = np.array(numbers).T
    same = np.zeros(len(paths), np.int64)  # one camera, one light
    return ImageSet(
        np.stack([_photograph(path) for path in paths]), objects, CLASSES, Views(objects, same, STEP * views, same)
    )


def _photograph(path: Path) -> np.ndarray:
    pixels = read_picture(path)
    if pixels.shape != (FILE_SIDE, FILE_SIDE, 1):
        height, width, channels = pixels.shape
        raise UsageError(
            f"{path}: {width}×{height} pixels in {channels} channels, not {FILE_SIDE}×{FILE_SIDE} grey ones; "
            f"the unprocessed photographs of COIL-20 have another size: use coil-20-proc"
        )
    return fit(pixels, (1, SIDE, SIDE), "stretch")


def _dataset(name: str, summary: str, familiar: tuple[int, ...]) -> Dataset:
    return Dataset(
        name=name,
        summary=f"photographs of 20 objects, 32×32 grey; test on known objects {summary}",
        classes=CLASSES,
        channels=1,
        size=SIDE,
        folder="coil20",
        load=lambda folder: by_viewpoint(read(folder), name, "azimuth", pooled=True, familiar=familiar),
        augmentation=dict.fromkeys(("paper", "best"), Augmentation(shift=2)),
        terms="for non-commercial research; S. A. Nene, S. K. Nayar and H. Murase, Columbia University",
        by_hand=BY_HAND,
    )


DATASETS = (
    _dataset("coil20-azimuth", "from new azimuths", FAMILIAR),
    _dataset("coil20-between", "between the azimuths of training", tuple(range(0, 360, 2 * STEP))),
)
