"""What every reader returns: images with labels and, where the data set has them, viewpoints. NumPy only, no torch."""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qcn.errors import UsageError

Ints = NDArray[np.integer]
Angles = NDArray[np.integer] | NDArray[np.floating]


@dataclass(frozen=True)
class Views:
    """From where and under which light each image was taken. Angles in degrees, all arrays [N]; NaN: unknown.

    Azimuth and elevation are those of `qcn.direction`.
    """

    instance: Ints
    elevation: Angles
    azimuth: Angles
    lighting: Ints

    def __getitem__(self, index: Ints) -> "Views":
        return Views(self.instance[index], self.elevation[index], self.azimuth[index], self.lighting[index])


@dataclass(frozen=True)
class ImageSet:
    """Images uint8 [N, C, H, W], labels int64 [N] into `classes`, and the viewpoint of each where it is known.

    `files` are the names of the pictures below their folder, where each image is a file of a user's. `symmetry` is that
    of each class, as `qcn.direction` has it; None: no class has one.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    views: Views | None = None
    files: tuple[str, ...] | None = None
    symmetry: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4:
            raise UsageError(f"images must be uint8 [N, C, H, W], not {self.images.dtype} {list(self.images.shape)}")
        if self.labels.shape != self.images.shape[:1]:
            raise UsageError(f"{len(self.images)} images but labels of shape {list(self.labels.shape)}")
        if self.files is not None and len(self.files) != len(self.images):
            raise UsageError(f"{len(self.images)} images but {len(self.files)} names of files")
        if self.symmetry is not None and len(self.symmetry) != len(self.classes):
            raise UsageError(f"{len(self.classes)} classes but {len(self.symmetry)} symmetries")
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < len(self.classes):
            wrong = self.labels[(self.labels < 0) | (self.labels >= len(self.classes))][0]
            raise UsageError(f"label {wrong} is out of range: there are {len(self.classes)} classes")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Ints) -> "ImageSet":
        """The images at `index` (an integer array), in that order."""
        views = None if self.views is None else self.views[index]
        files = None if self.files is None else tuple(self.files[place] for place in index)
        return ImageSet(self.images[index], self.labels[index], self.classes, views, files, self.symmetry)

    def name(self, place: int) -> str:
        """What a user knows an image by: its file, or its number in the split."""
        return str(place) if self.files is None else self.files[place]

    @property
    def sha256(self) -> str:
        """Of the images and their labels."""
        digest = hashlib.sha256(self.images.data)
        digest.update(self.labels.data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Splits:
    """A data set ready for training. `tests` has one entry, "test", or, by viewpoint, "familiar" and "novel".

    `remarks` is what whoever trains on it should know, in words. `dealt`: the test split was dealt out of the pictures
    that there are, so that it is another one when they change.
    """

    train: ImageSet
    validation: ImageSet
    tests: dict[str, ImageSet]
    remarks: tuple[str, ...] = ()
    dealt: bool = False

    def refuse_no_validation(self, name: str) -> None:
        """Training chooses its weights on validation images."""
        if not len(self.validation):
            raise UsageError(
                f"{name} has no validation images: every class has only near duplicates, such as the frames of one "
                f"video, or pictures of one object or group, which must share a split. Put some pictures into a folder "
                f"'val' (docs/data.md)"
            )
