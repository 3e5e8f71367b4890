"""What the network sees of an image."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qcn.data.augment import augmented, mixed
from qcn.data.imageset import ImageSet
from qcn.data.preprocess import preprocess
from qcn.data.spec import STD_FLOOR, Augmentation, Preprocessing
from qcn.errors import UsageError

IMAGES = torch.randint(0, 256, (6, 2, 96, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
NORB = Preprocessing(resize=48, crop=32, standardise="image")


def test_halving_is_the_mean_of_four_pixels_and_the_crop_is_central() -> None:
    seen = preprocess(IMAGES, NORB)
    halved = IMAGES.double().unflatten(3, (48, 2)).unflatten(2, (48, 2)).mean((3, 5))[:, :, 8:40, 8:40]
    mean, std = halved.mean((2, 3), keepdim=True), halved.std((2, 3), correction=0, keepdim=True)
    assert seen.shape == (6, 2, 32, 32)
    torch.testing.assert_close(seen.double(), (halved - mean) / std, rtol=0, atol=2e-6)


def test_a_constant_image_becomes_exactly_zero() -> None:
    for value in (0, 7, 255):
        for size in ((96, 96), (67, 41), (1, 1)):
            seen = preprocess(torch.full((1, 2, *size), value, dtype=torch.uint8), NORB)
            assert (seen == 0).all()


@pytest.mark.parametrize("size", [(96, 96), (144, 48), (37, 53), (480, 641), (1, 1), (2, 7), (300, 1)])
@pytest.mark.parametrize("standardise", ["image", "dataset"])
def test_a_resize_is_torchs_in_double_precision_whatever_the_batch(size: tuple[int, int], standardise: str) -> None:
    pixels = torch.randint(0, 256, (3, 2, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    numbers = {"mean": (0.4, 0.5), "std": (0.2, 0.3)} if standardise == "dataset" else {}
    spec = Preprocessing(resize=48, crop=31, standardise=standardise, **numbers)  # type: ignore[arg-type]
    seen = preprocess(pixels, spec)
    resized = F.interpolate(pixels.double() / 255, size=(48, 48), mode="bilinear", align_corners=False)[..., 8:39, 8:39]
    if standardise == "dataset":
        mean, std = (torch.tensor(numbers[name]).double()[:, None, None] for name in ("mean", "std"))
    else:
        std, mean = torch.std_mean(resized, dim=(2, 3), keepdim=True, correction=0)
        std = std.clamp_min(STD_FLOOR)
    torch.testing.assert_close(seen, ((resized - mean) / std).float(), rtol=1e-6, atol=1e-7)
    for i in range(3):
        torch.testing.assert_close(preprocess(pixels[i : i + 1], spec)[0], seen[i], rtol=2e-7, atol=0)
    torch.testing.assert_close(preprocess(pixels / 255, spec), seen, rtol=0, atol=1e-6)


def test_wide_numbers_stay_exact() -> None:
    """Whole numbers that float32 cannot hold: the same as by rational arithmetic."""
    pixels = torch.randint(0, 256, (1, 1, 5, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    seen = preprocess(pixels, Preprocessing(resize=300, mean=(0.0,), std=(1.0,)))
    for y, x in ((0, 0), (150, 151), (17, 293), (299, 299)):
        v, u = (max(Fraction((2 * i + 1) * size, 600) - Fraction(1, 2), Fraction(0)) for i, size in ((y, 5), (x, 7)))
        top, left = math.floor(v), math.floor(u)
        value = sum(
            (1 - abs(v - row)) * (1 - abs(u - column)) * int(pixels[0, 0, min(row, 4), min(column, 6)])
            for row in (top, top + 1)
            for column in (left, left + 1)
        )
        assert float(seen[0, 0, y, x]) == np.float32(float(value / 255))


def test_mean_and_std_come_from_the_training_images() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (50, 3, 8, 8)).astype(np.uint8)
    spec = Preprocessing().fitted(ImageSet(pixels, np.zeros(50, np.int64), ("a", "b")))
    seen = preprocess(torch.from_numpy(pixels), spec)
    torch.testing.assert_close(seen.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(seen.std((0, 2, 3), correction=0), torch.ones(3), rtol=0, atol=1e-5)


def test_augmentation_that_draws_the_centre_is_none() -> None:
    centre = torch.full((6, 3), 0.5)
    for spec, augmentation in (
        (NORB, Augmentation(random_crop=True)),
        (Preprocessing(standardise="image"), Augmentation(shift=2)),
        (NORB, Augmentation()),
    ):
        torch.testing.assert_close(augmented(IMAGES, spec, augmentation, centre), preprocess(IMAGES, spec))


def test_shifts_move_the_image_and_fill_with_black() -> None:
    spec = Preprocessing(mean=(0.0, 0.0), std=(1.0, 1.0))
    low = augmented(IMAGES, spec, Augmentation(shift=4), torch.zeros(6, 3))
    torch.testing.assert_close(low[..., 4:, 4:], IMAGES[..., :-4, :-4] / 255)
    assert (low[..., :4, :] == 0).all()
    high = augmented(IMAGES, spec, Augmentation(shift=4), torch.full((6, 3), 0.999))
    torch.testing.assert_close(high[..., :-4, :-4], IMAGES[..., 4:, 4:] / 255)


def test_each_image_is_mirrored_by_its_own_draw() -> None:
    spec = Preprocessing(mean=(0.0, 0.0), std=(1.0, 1.0))
    draws = torch.full((6, 3), 0.5)
    draws[::2, 2] = 0.1
    seen = augmented(IMAGES, spec, Augmentation(flip=True), draws)
    torch.testing.assert_close(seen[::2], IMAGES[::2].flip(3).flip(1) / 255)  # the eyes of a pair change places
    torch.testing.assert_close(seen[1::2], IMAGES[1::2] / 255)


def test_images_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="crop 32 pixels out of images of 28×28"):
        preprocess(IMAGES[..., :28, :28], Preprocessing(crop=32))
    with pytest.raises(UsageError, match="2 channels, but the network was trained on 1"):
        preprocess(IMAGES, Preprocessing(mean=(0.1,), std=(0.3,)))


def varied(augmentation: Augmentation, draws: torch.Tensor | None = None) -> torch.Tensor:
    """A white square on grey, varied: [16, 1, 32, 32], from 0 to 1."""
    images = torch.full((16, 1, 32, 32), 100, dtype=torch.uint8)
    images[:, :, 8:24, 8:24] = 255
    spec = Preprocessing(mean=(0.0,), std=(1.0,))
    chosen = torch.rand(16, augmentation.draws, generator=torch.Generator().manual_seed(0)) if draws is None else draws
    return augmented(images, spec, augmentation, chosen)


@pytest.mark.parametrize(
    "augmentation",
    [
        Augmentation(rotation=20),
        Augmentation(scale=0.3),
        Augmentation(elastic=2),
        Augmentation(light=0.3),
        Augmentation(cutout=0.5),
    ],
    ids=["rotation", "scale", "elastic", "light", "cutout"],
)
def test_each_variation_changes_every_image_in_its_own_way_and_stays_between_black_and_white(augmentation) -> None:
    plain, seen = varied(Augmentation()), varied(augmentation)
    assert sum(float((image - plain[0]).abs().max()) > 0.02 for image in seen) > 12
    assert seen.min() >= 0 and seen.max() < 1 + 1e-5 and len({float(image.sum()) for image in seen}) > 12


def test_draws_in_the_middle_vary_nothing() -> None:
    strong = Augmentation(rotation=20, scale=0.3, elastic=2, light=0.3)
    middle = torch.full((16, strong.draws), 0.5)
    assert torch.allclose(varied(strong, middle), varied(Augmentation()), atol=1e-5)


def test_bending_moves_each_point_of_the_grid_by_the_pixels_it_is_asked_for() -> None:
    """All points by two pixels to the right in the image: what is seen lies two pixels further left."""
    bent = Augmentation(elastic=2)
    draws = torch.full((16, bent.draws), 0.5)
    draws[:, 10:35] = 1.0
    assert torch.allclose(varied(bent, draws)[0, 0, :, :-2], varied(Augmentation())[0, 0, :, 2:], atol=1e-4)


def test_a_turn_is_about_the_middle_and_keeps_the_square_a_square() -> None:
    draws = torch.full((16, 10), 0.5)
    draws[:, 3] = 1.0
    turned = varied(Augmentation(rotation=90), draws)
    assert torch.allclose(turned[0], varied(Augmentation())[0], atol=1e-4)


def test_cutout_blackens_the_share_it_is_asked_for() -> None:
    draws = torch.full((16, 10), 0.5)
    assert int((varied(Augmentation(cutout=0.5), draws)[0] == 0).sum()) == 16 * 16


def test_mixup_leaves_most_images_alone_and_says_how_much_of_which_label_is_in_the_others() -> None:
    images, label = torch.rand(100, 1, 4, 4), torch.arange(100)
    seen, other, share = mixed(images, label, 0.2, torch.rand(100, generator=torch.Generator().manual_seed(0)))
    assert 0.05 < (share > 0).float().mean() < 0.4 and share.max() <= 0.5
    place = int(share.argmax())
    expected = (1 - share[place]) * images[place] + share[place] * images[int(other[place])]
    assert torch.allclose(seen[place], expected, atol=1e-6)
    assert torch.equal(seen[share == 0], images[share == 0])
