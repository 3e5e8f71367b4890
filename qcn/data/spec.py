"""The description of a data set: what it is, how it is read, split and augmented, and where its files come from.

`Preprocessing` is part of a trained network: it is written into the checkpoint, and what runs the network later must
repeat it exactly. `Augmentation` is for training only. `qcn.data.preprocess` carries both out. No torch here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from qcn.data.imageset import ImageSet, Splits
from qcn.errors import UsageError

STD_FLOOR = 1 / 255  # one grey level: a constant image stays finite


@dataclass(frozen=True)
class Preprocessing:
    """Resize, centre crop, standardise, in this order, on pixels scaled to [0, 1].

    resize       side in pixels after a bilinear resize with half-pixel centres (halving it is the mean of 2×2 pixels)
    crop         side in pixels of the centre crop
    standardise  "dataset": by the `mean` and `std` of the training images, one pair per channel
                 "image": each channel of each image by its own mean and standard deviation
    """

    resize: int | None = None
    crop: int | None = None
    standardise: Literal["dataset", "image"] = "dataset"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values that cannot be right: a specification may come from a file."""
        for name, side in (("resize", self.resize), ("crop", self.crop)):
            if side is not None and (type(side) is not int or side < 1):
                raise UsageError(f"preprocessing: {name} must be a number of pixels, not {side!r}")
        if self.standardise not in ("dataset", "image"):
            raise UsageError(f"preprocessing: standardise must be 'dataset' or 'image', not {self.standardise!r}")
        numbers = (*self.mean, *self.std)
        if not all(type(number) is float for number in numbers) or len(self.mean) != len(self.std):
            raise UsageError("preprocessing: mean and std must each have one number per channel")
        if not all(std > 0 for std in self.std):
            raise UsageError(f"preprocessing: std must be positive, not {list(self.std)}")

    def fitted(self, train: ImageSet) -> "Preprocessing":
        """The same, with the mean and standard deviation of the training images."""
        if self.standardise == "image":
            return self
        pixels = train.images.astype("float32").transpose(1, 0, 2, 3).reshape(train.images.shape[1], -1) / 255
        mean, std = pixels.mean(1, dtype="float64"), pixels.std(1, dtype="float64")
        return replace(self, mean=tuple(map(float, mean)), std=tuple(max(float(s), STD_FLOOR) for s in std))

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """The height and width that the network sees for stored images of this height and width."""
        side = self.crop or self.resize
        return (side, side) if side else (height, width)


@dataclass(frozen=True)
class Augmentation:
    """Random variations of training images: where the crop lies, shifts by up to `shift` pixels, mirror images."""

    random_crop: bool = False
    shift: int = 0
    flip: bool = False


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
    """One entry of the registry in `qcn.data`.

    load          reads the folder `data_dir / folder` and returns the splits
    augmentation  by training preset, "paper" or "best"
    files         what `qcn datasets fetch` downloads; empty for a set that is rendered on this machine
    contents      the md5 of each file that `load` reads, by its name, unpacked
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
    files: tuple[RemoteFile, ...] = ()
    contents: Mapping[str, str] = field(default_factory=dict)
