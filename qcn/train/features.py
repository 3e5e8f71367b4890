"""The features of a frozen backbone: of every training image in several variations, and of the validation images.

They are computed once and kept below the folder of the data sets, so that another run on the same images, with other
settings of the head or another seed, starts at once. The newest features of a data set and network replace older ones.
"""

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qcn.data.augment import augmented
from qcn.data.folder import plain
from qcn.data.imageset import Splits
from qcn.data.preprocess import preprocess
from qcn.data.spec import Augmentation, Preprocessing
from qcn.errors import UsageError
from qcn.networks.backbone import features_of
from qcn.networks.distributed import barrier, rank
from qcn.storage.files import atomic_write
from qcn.terminal.progress import doing, say
from qcn.terminal.text import counted

FORM = 1  # of the file; another one is made again
MOST_COPIES, PASSES = 12, 3000  # variations of an image; images that the backbone is shown for all of them, about
BATCH = 32


@dataclass(frozen=True)
class FrozenFeatures:
    """Features as float16: train [copies · N, …], copy after copy; validation [M, …]. `draws` varied the images."""

    train: Tensor
    draws: Tensor
    validation: Tensor
    copies: int

    def rows(self, images: Tensor, epoch: int) -> Tensor:
        """Where the features of these images are in this epoch: each shows another variation than in the last."""
        return (images + epoch) % self.copies * (len(self.train) // self.copies) + images


def frozen_features(
    network: nn.Module,
    backbone: nn.Module,
    splits: Splits,
    name: str,
    preprocessing: Preprocessing,
    augmentation: Augmentation,
    device: torch.device,
    data_dir: Path,
) -> FrozenFeatures:
    """Of the backbone of this network, from `data_dir` or computed; `name` is that of data set and network."""
    images = len(splits.train)
    copies = 1 if augmentation == Augmentation() else max(2, min(MOST_COPIES, PASSES // images))
    draws = torch.rand(copies * images, augmentation.draws, generator=torch.Generator().manual_seed(copies))
    network = network.to(device).eval()
    total = len(draws) + len(splits.validation)
    key = hashlib.sha256(repr((FORM, copies, preprocessing, augmentation, splits.train.sha256)).encode())
    key.update(splits.validation.sha256.encode())
    for weight in backbone.state_dict().values():
        key.update(weight.cpu().numpy().tobytes())
    path = data_dir / "features" / f"{plain(name)}-{key.hexdigest()[:12]}.npy"
    if rank() > 0:
        barrier()  # the first process computes them
    if not path.is_file():
        started = time.monotonic()
        _write(path, network, _batches(splits, draws.to(device), preprocessing, augmentation), total)
        say(
            f"computed the backbone's features of {images:,} training images in {counted(copies, 'variation')} and of "
            f"{counted(len(splits.validation), 'validation image')}: {time.monotonic() - started:.0f} s"
        )
        for older in path.parent.glob(f"{plain(name)}-{'?' * 12}.npy"):
            if older != path:
                older.unlink()
    if rank() == 0:
        barrier()
    try:
        kept: NDArray[np.float16] = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, EOFError, ValueError):
        kept = np.empty(0, np.float16)
    if kept.dtype != np.float16 or len(kept) != total:
        raise UsageError(f"{path} is damaged: delete it, and it is made again")
    train, validation = torch.from_numpy(kept).split([len(draws), len(splits.validation)])
    return FrozenFeatures(train, draws, validation, copies)


def _batches(
    splits: Splits, draws: Tensor, preprocessing: Preprocessing, augmentation: Augmentation
) -> Iterator[Tensor]:
    """The images as the network sees them, where `draws` are: of training copy after copy, then of validation."""
    train, validation = (torch.from_numpy(part.images) for part in (splits.train, splits.validation))
    for rows in torch.arange(len(draws)).split(BATCH):
        images = train[rows % len(train)].to(draws.device)
        yield augmented(images, preprocessing, augmentation, draws[rows.to(draws.device)])
    for images in validation.split(BATCH):
        yield preprocess(images.to(draws.device), preprocessing)


def _write(path: Path, network: nn.Module, batches: Iterator[Tensor], total: int) -> None:
    """The features of these batches, of so many images in all."""
    with torch.inference_mode(), atomic_write(path) as aside:
        kept, done = np.empty(0, np.float16), 0
        for images in batches:
            doing("computing features with the pretrained backbone", done, of=total)
            features = features_of(network, images).half().cpu().numpy()
            if not done:  # now their shape is known
                shape = (total, *features.shape[1:])
                kept = np.lib.format.open_memmap(aside, mode="w+", dtype=np.float16, shape=shape)
            kept[done : done + len(features)] = features
            done += len(features)
        assert isinstance(kept, np.memmap)
        kept.flush()
