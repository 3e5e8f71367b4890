"""ETH-80: photographs of 80 objects of 8 kinds, each from 41 directions of the upper half, colour on blue, 256×256.

3,280 files, K/N/NAME-PPP-AAA.png: kind K, 1 to 8; object N, 1 to 10; PPP is the angle from straight above and AAA goes
around, in degrees: objects look at the camera at 090 and show their left side at 180. So the azimuth of `qcn.direction`
is AAA − 90 and the elevation 90 − PPP. Photographs are kept in one file of each size, beside the folders. Where that
file is, the photographs are not needed.

"eth80-fold0" to "eth80-fold4" each test on two objects of every kind, and validate on a third, so that validation too
shows objects that training does not; all five together test on every object once. They have 64×64 pixels;
"eth80-128-fold0" and "eth80-192-fold0", and so on, have more, for pretrained backbones.
"eth80-azimuth" is in the pooled protocol of `qcn.data.splits`: familiar are azimuths within 60° of the front.
(Leibe and Schiele 2003, "Analyzing Appearance and Contour Based Methods for Object Categorization".)
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qcn.data.fit import fit, read_picture
from qcn.data.imageset import ImageSet, Splits, Views
from qcn.data.spec import Augmentation, Dataset
from qcn.data.splits import by_viewpoint
from qcn.direction import ROUND
from qcn.errors import MissingError, UsageError
from qcn.storage.files import atomic_write
from qcn.terminal.progress import doing, shown

CLASSES = ("apple", "car", "cow", "cup", "dog", "horse", "pear", "tomato")
SYMMETRY = tuple(ROUND if name in ("apple", "pear", "tomato") else 1 for name in CLASSES)
OBJECTS, FOLDS = 10, 5
SIDE, LARGE, LARGEST = 64, 128, 192  # pixels that photographs are kept with
# The angle from above, and those around at it.
AROUND = {
    0: (0,),
    22: (0, 90, 180, 270),
    35: (45, 135, 225, 315),
    45: (0, 90, 180, 270),
    66: (27, 63, 117, 153, 207, 243, 297, 333),
    68: (0, 90, 180, 270),
    90: (0, 22, 45, 68, 90, 112, 135, 158, 180, 202, 225, 248, 270, 292, 315, 338),
}
PLACES = [(polar, around) for polar, every in AROUND.items() for around in every]
BY_HAND = (
    "It has no official address any more. github.com/Kai-Xuan/ETH-80 has the photographs: clone it to DATA/eth80, DATA "
    "being what --data-dir names, so that 1/1/apple1-000-000.png is in it"
)


def read(folder: Path, side: int = SIDE) -> ImageSet:
    """All 3,280 photographs by kind, object and view: images [3280, 3, side, side]."""
    shape = (len(CLASSES), OBJECTS, len(PLACES))
    labels, objects, views = (index.reshape(-1) for index in np.indices(shape))
    polar, around = np.array(PLACES)[views].T
    azimuth = np.where(polar == 0, 0, (around - 90) % 360)  # from straight above all azimuths are one
    kept = folder / f"photographs-{side}.npy"
    images = _kept(kept, (len(labels), 3, side, side)) if kept.is_file() else _photographs(folder, kept, side)
    return ImageSet(
        images, labels, CLASSES, Views(objects, 90 - polar, azimuth, np.zeros_like(labels)), symmetry=SYMMETRY
    )


def _kept(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    try:
        images: NDArray[np.uint8] = np.load(path, allow_pickle=False)
    except (OSError, EOFError, ValueError):
        images = np.empty(0, np.uint8)
    if images.dtype != np.uint8 or images.shape != shape:
        raise UsageError(f"{path} is damaged: delete it, and it is made again from the photographs")
    return images


def _photographs(folder: Path, kept: Path, side: int) -> NDArray[np.uint8]:
    """Read every photograph, and keep them small."""
    paths = [
        _path(folder / str(kind) / str(number), f"{polar:03d}-{around:03d}.png")
        for kind in range(1, len(CLASSES) + 1)
        for number in range(1, OBJECTS + 1)
        for polar, around in PLACES
    ]
    if missing := [path for path in paths if not path.is_file()]:
        raise MissingError(f"{len(missing):,} of {len(paths):,} files are missing, such as {missing[0]}. {BY_HAND}")
    images = np.empty((len(paths), 3, side, side), np.uint8)

    def take(place: int) -> None:
        images[place] = fit(read_picture(paths[place]), (3, side, side), "stretch")

    with shown(), ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, _ in enumerate(pool.map(take, range(len(paths)))):
            doing("reading ETH-80", done + 1, of=len(paths))
    with atomic_write(kept) as aside, aside.open("wb") as file:
        np.save(file, images)
    return images


def _path(folder: Path, ending: str) -> Path:
    """The photograph of this view; its name begins with a number that is not the folder's."""
    return next(iter(sorted(folder.glob(f"*-{ending}"))), folder / f"NAME-{ending}")


def by_object(images: ImageSet, fold: int) -> Splits:
    """Test on two objects of every kind, validate on the one after them, train on the other seven."""
    assert images.views is not None
    place = (images.views.instance - OBJECTS // FOLDS * fold) % OBJECTS
    train, validation, test = (images[np.flatnonzero(rows)] for rows in (place > 2, place == 2, place < 2))
    return Splits(train, validation, {"test": test})


def _load_azimuth(folder: Path) -> Splits:
    familiar = tuple(azimuth for azimuth in range(360) if min(azimuth, 360 - azimuth) <= 60)
    return by_viewpoint(read(folder), "eth80-azimuth", "azimuth", pooled=True, familiar=familiar)


def _dataset(name: str, summary: str, fold: int | None, side: int = SIDE) -> Dataset:
    return Dataset(
        name=name,
        summary=f"photographs of 80 objects, {side}×{side} colour; test on {summary}",
        classes=CLASSES,
        channels=3,
        size=side,
        folder="eth80",
        load=_load_azimuth if fold is None else lambda folder: by_object(read(folder, side), fold),
        augmentation=dict.fromkeys(("paper", "best"), Augmentation(shift=side // 16)),
        augment="turned",
        terms="none stated; B. Leibe and B. Schiele, ETH Zurich: cite them",
        by_hand=BY_HAND,
    )


DATASETS = (
    *(
        _dataset(f"{name}-fold{fold}", f"new objects, {2 * fold + 1} and {2 * fold + 2}", fold, side)
        for name, side in (("eth80", SIDE), ("eth80-128", LARGE), ("eth80-192", LARGEST))
        for fold in range(FOLDS)
    ),
    _dataset("eth80-azimuth", "known objects from new azimuths", None),
)
