"""Images that are in no file, drawn when a bundle is verified. Needs torch.

An engine of TensorRT cannot be compared with what its program builds, and a forged one could know the golden images by
heart. So it also answers images of a seed that nobody knew before: noise of many scales, patterns, jumbled blocks,
toys, and the golden images varied as the training run varied its own.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from qcn.data.augment import augmented
from qcn.data.unlike import unlike_pictures
from qcn.export.bundle.golden import Golden
from qcn.export.program.reference import Inputs, with_edge_cases
from qcn.train.record import Run

EACH = 6  # images of a kind


def fresh_inputs(golden: Golden, run: Run, seed: int) -> Inputs:
    """Inputs of every kind, edge cases behind them. Varied images are inputs alone: no stored image gives them."""
    originals = golden.image[golden.with_image]
    kinds = unlike_pictures(originals[: EACH // 2], golden.classes, seed)
    rows = [f"fresh {kind} {number + 1}" for kind, images in kinds.items() for number in range(len(images))]
    varied = [f"fresh variation {number + 1}" for number in range(EACH)]
    blank = np.zeros((EACH, *originals.shape[1:]), np.uint8)
    pictures = np.concatenate([*kinds.values(), blank])
    inputs = with_edge_cases([*rows, *varied], pictures, [-1] * len(pictures), run.preprocessing)
    inputs.input[len(rows) : len(rows) + EACH] = _variations(originals, run, seed)
    return replace(inputs, inputs_only=(*varied, *inputs.inputs_only))


def _variations(images: NDArray[np.uint8], run: Run, seed: int) -> NDArray[np.float32]:
    """EACH images as the training run varied them; mixing two images is left out."""
    augmentation = run.dataset().augmentation[run.settings.preset].varied(run.settings.augment or "light")
    picks = np.random.default_rng(seed).integers(len(images), size=EACH)
    draws = torch.rand(EACH, augmentation.draws, generator=torch.Generator().manual_seed(seed))
    return augmented(torch.from_numpy(images[picks]), run.preprocessing, augmentation, draws).numpy()
