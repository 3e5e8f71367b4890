"""How a data set is split into training, validation and test images, the same on every machine.

Every random split is a function of the data set's name and labels alone. Validation images are always taken from the
training images, never from a test, so that choosing a network by them leaves the tests untouched.

For novel viewpoints on smallNORB there are two protocols, and their numbers must not be compared with each other:

plain    Train on the five training instances of each class at the familiar viewpoints. "familiar" tests the five test
         instances at the familiar viewpoints, "novel" the same test instances at the other viewpoints. So "novel" asks
         for new objects from new sides. (Hinton et al. 2018 and most who followed.)
pooled   All ten instances are in training and in the tests. Images at the familiar viewpoints are split at random,
         80 / 10 / 10, into training, validation and the "familiar" test; "novel" is every image at the other
         viewpoints. So "novel" asks for the objects that were trained on, from new sides. (The code of the Quaternion
         Capsule Networks paper.)
"""

import hashlib
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qcn.data.imageset import ImageSet, Ints, Splits, Views
from qcn.errors import UsageError

Axis = Literal["azimuth", "elevation"]

TRAIN_INSTANCES = (4, 6, 7, 8, 9)
FAMILIAR: dict[Axis, tuple[int, ...]] = {"azimuth": (300, 320, 340, 0, 20, 40), "elevation": (30, 35, 40)}  # degrees


def hold_out(train: ImageSet, name: str, fraction: float = 0.1) -> tuple[ImageSet, ImageSet]:
    """Hold out a random `fraction` of every class: (what is left to train on, validation)."""
    rest, validation = _deal(train, name, fraction)
    return rest, validation


def at_random(images: ImageSet, name: str) -> Splits:
    """80 / 10 / 10 of every class for training, validation and "test"."""
    train, validation, test = _deal(images, name, 0.1, 0.1)
    return Splits(train, validation, {"test": test})


def by_instance(images: ImageSet, name: str, validation: ImageSet | None = None) -> Splits:
    """smallNORB's official split: train on instances 4, 6, 7, 8, 9 of each class, and test on the rest.

    Without `validation` images, a tenth of the training images is held out.
    """
    known = np.isin(_views(images, name).instance, TRAIN_INSTANCES)
    train = _where(images, known, name, "training instances")
    if validation is None:
        train, validation = hold_out(train, name)
    return Splits(train, validation, {"test": _where(images, ~known, name, "test instances")})


def by_viewpoint(
    images: ImageSet, name: str, axis: Axis, pooled: bool, familiar: tuple[int, ...] | None = None
) -> Splits:
    """The split by azimuth or elevation, in one of the two protocols that the head of this module describes.

    `familiar` are the angles to train on, in degrees; smallNORB's if not given.
    """
    views = _views(images, name)
    known = np.isin(views.instance, TRAIN_INSTANCES)
    seen_from = np.isin(getattr(views, axis), familiar or FAMILIAR[axis])
    if pooled:
        seen = _where(images, seen_from, name, f"familiar {axis}s")
        train, validation, familiar_test = _deal(seen, name, 0.1, 0.1)
        novel_test = _where(images, ~seen_from, name, f"novel {axis}s")
    else:
        train, validation = hold_out(_where(images, known & seen_from, name, "training instances"), name)
        familiar_test = _where(images, ~known & seen_from, name, f"test instances at familiar {axis}s")
        novel_test = _where(images, ~known & ~seen_from, name, f"test instances at novel {axis}s")
    return Splits(train, validation, {"familiar": familiar_test, "novel": novel_test})


def deal(labels: Ints, classes: int, name: str, *shares: float) -> Ints:
    """Deal every class out at random: for each image 0, what is left over, or the number of one of `shares`, from 1."""
    order, hand = _order(len(labels), name), np.zeros(len(labels), int)
    for label in range(classes):
        members = order[labels[order] == label]
        start = 0
        for owner, share in enumerate(shares, 1):
            count = max(1, round(share * len(members)))  # every class needs a validation image
            hand[members[start : start + count]] = owner
            start += count
    return hand


def deal_groups(labels: Ints, sizes: Ints, classes: int, name: str, *shares: float) -> Ints:
    """As `deal`, for groups of so many images that stay together; of each class the largest is left over.

    A share takes the groups that fit into it, or the smallest one if none does.
    """
    order, hand = _order(len(labels), name), np.zeros(len(labels), int)
    for label in range(classes):
        members = list(order[labels[order] == label])
        if not members:
            continue
        images = sizes[members].sum()
        members.remove(max(reversed(members), key=lambda group: sizes[group]))
        for owner, share in enumerate(shares, 1):
            room, taken = max(1, round(share * images)), []
            for group in members:
                if sizes[group] <= room:
                    taken.append(group)
                    room -= sizes[group]
            taken = taken or sorted(members, key=lambda group: sizes[group])[:1]
            hand[taken] = owner
            members = [group for group in members if not hand[group]]
    return hand


def _order(count: int, name: str) -> Ints:
    """A random order, the same every time.

    It comes from the raw output of the bit generator, which NumPy promises never to change; it does not promise that of
    its shuffles.
    """
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "big")
    return np.argsort(np.random.PCG64(seed).random_raw(count), kind="stable")


def _deal(images: ImageSet, name: str, *shares: float) -> list[ImageSet]:
    """What is left over, then one set for each of `shares`, in file order."""
    hand = deal(images.labels, len(images.classes), name, *shares)
    return [images[np.flatnonzero(hand == owner)] for owner in range(len(shares) + 1)]


def _views(images: ImageSet, name: str) -> Views:
    if images.views is None:
        raise UsageError(f"{name} has no viewpoints to split by")
    return images.views


def _where(images: ImageSet, mask: NDArray[np.bool_], name: str, what: str) -> ImageSet:
    if not mask.any():
        raise UsageError(f"{name}: there is no image of {what}")
    return images[np.flatnonzero(mask)]
