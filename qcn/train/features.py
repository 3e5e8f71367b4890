"""The features of a frozen backbone: of every training image in several variations, and of the validation images.

They are computed once and kept below the folder of the data sets, so that another run on the same images, with other
settings of the head or another seed, starts at once. The newest features of a data set and network replace older ones.
"""

import hashlib
import time
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
from qcn.networks.backbone import Features
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
    network = Features(network).to(device).eval()
    key = hashlib.sha256(repr((FORM, copies, preprocessing, augmentation, splits.train.sha256)).encode())
    key.update(splits.validation.sha256.encode())
    for weight in backbone.state_dict().values():
        key.update(weight.cpu().numpy().tobytes())
    path = data_dir / "features" / f"{plain(name)}-{key.hexdigest()[:12]}.npy"
    if rank() > 0:
        barrier()  # the first process computes them
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        _compute(path, network, splits, draws, preprocessing, augmentation, device)
        for older in path.parent.glob(f"{plain(name)}-{'?' * 12}.npy"):
            if older != path:
                older.unlink()
    if rank() == 0:
        barrier()
    try:
        kept: NDArray[np.float16] = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, EOFError, ValueError):
        kept = np.empty(0, np.float16)
    if kept.dtype != np.float16 or len(kept) != len(draws) + len(splits.validation):
        raise UsageError(f"{path} is damaged: delete it, and it is made again")
    train, validation = torch.from_numpy(kept).split([len(draws), len(splits.validation)])
    return FrozenFeatures(train, draws, validation, copies)


def _compute(
    path: Path,
    network: nn.Module,
    splits: Splits,
    draws: Tensor,
    preprocessing: Preprocessing,
    augmentation: Augmentation,
    device: torch.device,
) -> None:
    started = time.monotonic()
    train, validation = (torch.from_numpy(part.images) for part in (splits.train, splits.validation))
    total = len(draws) + len(validation)

    def prepared(rows: range) -> Tensor:
        if rows.start >= len(draws):
            return preprocess(validation[rows.start - len(draws) : rows.stop - len(draws)].to(device), preprocessing)
        chosen = torch.arange(rows.start, rows.stop) % len(train)
        return augmented(
            train[chosen].to(device), preprocessing, augmentation, draws[rows.start : rows.stop].to(device)
        )

    with torch.inference_mode(), atomic_write(path) as aside:
        shape = network(prepared(range(1))).shape[1:]
        kept = np.lib.format.open_memmap(aside, mode="w+", dtype=np.float16, shape=(total, *shape))
        for end, first in ((len(draws), 0), (total, len(draws))):
            for start in range(first, end, BATCH):
                doing("computing features with the pretrained backbone", start, of=total)
                rows = range(start, min(start + BATCH, end))
                kept[rows.start : rows.stop] = network(prepared(rows)).half().cpu().numpy()
        kept.flush()
    copies = len(draws) // len(train)
    say(
        f"computed the backbone's features of {len(train):,} training images in {counted(copies, 'variation')} and of "
        f"{counted(len(validation), 'validation image')}: {time.monotonic() - started:.0f} s"
    )
