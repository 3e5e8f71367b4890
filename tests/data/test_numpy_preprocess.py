"""Pre-processing in numpy: the same bits as torch's."""

import numpy as np
import pytest
import torch

from qcn.data.numpy_preprocess import preprocess
from qcn.data.preprocess import preprocess as by_torch
from qcn.data.spec import Preprocessing
from qcn.errors import UsageError


@pytest.mark.parametrize("standardise", ["dataset", "image"])
@pytest.mark.parametrize(("resize", "crop"), [(None, None), (None, 20), (48, 32), (33, None), (17, 15), (96, 64)])
def test_the_same_bits_as_torch(standardise: str, resize: int | None, crop: int | None) -> None:
    rng = np.random.default_rng(0)
    for height, width in ((96, 96), (40, 28), (31, 97)):
        for channels in (1, 3):
            moments = (0.1, 0.5, 0.77)[:channels] if standardise == "dataset" else ()
            spec = Preprocessing("crop", resize, crop, standardise, moments, moments)  # type: ignore[arg-type]
            images = rng.integers(0, 256, (3, channels, height, width), dtype=np.uint8)
            images[1] = 7  # a constant image
            assert np.array_equal(preprocess(images, spec), by_torch(torch.from_numpy(images), spec).numpy())


def test_what_does_not_fit_is_refused() -> None:
    images = np.zeros((1, 1, 8, 8), np.uint8)
    with pytest.raises(UsageError, match="cannot crop 9 pixels out of images of 8×8"):
        preprocess(images, Preprocessing(crop=9, standardise="image"))
    with pytest.raises(UsageError, match="images have 1 channels, but the network was trained on 3"):
        preprocess(images, Preprocessing(mean=(0.0,) * 3, std=(1.0,) * 3))
