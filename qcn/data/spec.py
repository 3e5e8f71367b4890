"""The description of a data set: what it is, how it is read, split and augmented, and where its files come from.

`Preprocessing` is part of a trained network: it is written into the checkpoint, and what runs the network later must
repeat it exactly. `Augmentation` is for training only. `qcn.data.preprocess` carries both out. No torch here.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from qcn.data.fit import Fit
from qcn.data.groups import check_pattern
from qcn.data.imageset import ImageSet, Splits
from qcn.errors import UsageError, unknown_name

Augment = Literal["none", "light", "photo", "turned", "mirrored", "elastic", "cutout", "strong"]
BENDS = 5  # points per side of the grid whose shifts bend an image
STD_FLOOR = 1 / 255  # one grey level: a constant image stays finite


@dataclass(frozen=True)
class Preprocessing:
    """Resize, centre crop, standardise, in this order, on pixels scaled to [0, 1].

    fit          how a picture of any size first becomes an image as the data set stores them (`qcn.data.fit`)
    resize       side in pixels after a bilinear resize with half-pixel centres (halving it is the mean of 2×2 pixels)
    crop         side in pixels of the centre crop
    standardise  "dataset": by the `mean` and `std` of the training images, one pair per channel
                 "image": each channel of each image by its own mean and standard deviation
    """

    fit: Fit = "crop"
    resize: int | None = None
    crop: int | None = None
    standardise: Literal["dataset", "image"] = "dataset"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values that cannot be right: a specification may come from a file. (`records` looks at its types.)"""
        for name, side in (("resize", self.resize), ("crop", self.crop)):
            if side is not None and side < 1:
                raise UsageError(f"preprocessing: {name} must be a number of pixels, not {side!r}")
        if len(self.mean) != len(self.std):
            raise UsageError("preprocessing: mean and std must each have one number per channel")
        if not all(std > 0 for std in self.std):
            raise UsageError(f"preprocessing: std must be positive, not {list(self.std)}")

    def fitted(self, train: ImageSet) -> "Preprocessing":
        """The same, with the mean and standard deviation of the training images."""
        if self.standardise == "image":
            return self
        moments = [_moments(train.images[:, channel]) for channel in range(train.images.shape[1])]
        return replace(
            self, mean=tuple(mean for mean, _ in moments), std=tuple(max(std, STD_FLOOR) for _, std in moments)
        )

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """The height and width that the network sees for stored images of this height and width."""
        side = self.crop or self.resize
        return (side, side) if side else (height, width)


def _moments(pixels: NDArray[np.uint8], chunk: int = 4096) -> tuple[float, float]:
    """The mean and standard deviation of pixels in [0, 1], from whole numbers: the same on every machine."""
    counts = np.zeros(256, np.int64)
    for start in range(0, len(pixels), chunk):  # they may be larger than memory
        counts += np.bincount(pixels[start : start + chunk].ravel(), minlength=256)
    number, total, squares = (sum(int(n) * level**power for level, n in enumerate(counts)) for power in range(3))
    return total / (255 * number), math.sqrt(number * squares - total**2) / (255 * number)


@dataclass(frozen=True)
class Stored:
    """How the pictures of a folder are kept: side in pixels, how they are brought to it, 1 (grey) or 3 channels.

    None: to be chosen from the pictures. `group_by` says which share a split (`qcn.data.groups`).
    """

    size: int | None = None
    fit: Fit | None = None
    channels: int | None = None
    group_by: str | None = None

    def __post_init__(self) -> None:
        if self.size is not None and not 8 <= self.size <= 1024:
            raise UsageError(f"--size must be 8 to 1024 pixels, not {self.size}")
        if self.fit is not None and self.fit not in get_args(Fit):
            raise unknown_name("fit", self.fit, get_args(Fit))
        if self.channels not in (None, 1, 3):
            raise UsageError(f"channels must be 1 (grey) or 3 (colour), not {self.channels}")
        if self.group_by is not None:
            check_pattern(self.group_by)

    @property
    def shape(self) -> tuple[int, int, int]:
        """[C, H, W] of an image."""
        if self.size is None or self.channels is None:
            raise UsageError("the size and channels of the pictures have not been chosen")
        return self.channels, self.size, self.size


@dataclass(frozen=True)
class Augmentation:
    """Random variations of training images.

    random_crop  where the crop lies
    shift        by up to so many pixels, black coming in
    flip         mirror images, for data sets whose classes stay what they are in a mirror; of a stereo pair, which has
                 two channels, the eyes change places
    rotation     by up to so many degrees
    scale        by up to this factor more or less: 0.2 is from 1/1.2 to 1.2
    elastic      points of a 5×5 grid by up to so many pixels, and smoothly, at times by more, what lies between
    light        brightness and contrast by up to this share
    cutout       side of a black square, as a share of the image's
    mixup        share of images that another one is laid over
    """

    random_crop: bool = False
    shift: int = 0
    flip: bool = False
    rotation: float = 0.0
    scale: float = 0.0
    elastic: float = 0.0
    light: float = 0.0
    cutout: float = 0.0
    mixup: float = 0.0

    @property
    def warps(self) -> bool:
        return bool(self.rotation or self.scale or self.elastic)

    @property
    def draws(self) -> int:
        """How many random numbers vary an image: row, column and mirroring; seven more, and a grid's, where needed."""
        if self.elastic:
            return 10 + 2 * BENDS**2
        return 10 if self.warps or self.light or self.cutout or self.mixup else 3

    def varied(self, how: Augment) -> "Augmentation":
        """No variations, these (light), or these and more: turned, bent, with a part cut out, or much at once."""
        shift = max(self.shift, 4)
        return {
            "none": Augmentation(),
            "light": self,
            "photo": replace(self, rotation=15.0, scale=0.18, light=0.2),
            "turned": replace(self, rotation=30.0, scale=0.15),
            "mirrored": replace(self, rotation=30.0, scale=0.15, flip=True),
            "elastic": replace(self, rotation=10.0, scale=0.1, elastic=1.5),
            "cutout": replace(self, cutout=0.3),
            "strong": replace(self, shift=shift, rotation=15.0, scale=0.15, light=0.2, cutout=0.4, mixup=0.2),
        }[how]


@dataclass(frozen=True)
class RemoteFile:
    """A file on a data set's official server. `md5` is of the file as served."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class RemoteArchive(RemoteFile):
    """A tar archive, of which only `members` are kept in the data set's folder. It is deleted once unpacked."""

    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dataset:
    """One entry of `qcn.data.registry`.

    load          reads the folder `data_dir / folder` and returns the splits
    augmentation  by training preset, "paper" or "best"
    augment       how much more than that the preset "best" varies images: see `varied`
    files         what `qcn datasets fetch` downloads; empty for a set that is rendered here, or brought by hand
    contents      the md5 of each file that `load` reads, by its name, unpacked
    stored        of a folder of pictures: how they are kept
    terms         what whoever made the images allows, in words
    by_hand       of a set that `qcn datasets fetch` cannot download: how to get it, in words
    """

    name: str
    summary: str
    classes: tuple[str, ...]
    channels: int
    size: int
    folder: str
    load: Callable[[Path], Splits]
    preprocessing: Preprocessing = Preprocessing()
    augmentation: dict[str, Augmentation] = field(default_factory=dict)
    augment: Augment = "light"
    files: tuple[RemoteFile, ...] = ()
    contents: Mapping[str, str] = field(default_factory=dict)
    stored: Stored | None = None
    terms: str = "those of whoever made the pictures"
    by_hand: str | None = None

    def check_fits(self, classes: tuple[str, ...], image: tuple[int, int, int]) -> None:
        """Refuse a network of other classes, or of stored images of another shape [C, H, W]."""
        if self.classes != classes:
            theirs, ours = ", ".join(self.classes), ", ".join(classes)
            raise UsageError(f"'{self.name}' has the classes {theirs}; the network knows {ours}")
        if self.channels != image[0]:
            raise UsageError(f"'{self.name}' has {self.channels} channels; the network takes {image[0]}")
        if self.size != (side := image[-1]):
            raise UsageError(f"'{self.name}' has images of {self.size} pixels; the network was trained on {side}")
