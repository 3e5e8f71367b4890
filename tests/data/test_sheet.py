"""Contact sheets: the right image in the right cell."""

import numpy as np
import pytest

from qcn.data import sheet
from qcn.data.imageset import ImageSet, Views
from qcn.data.sheet import contact_sheet
from qcn.errors import UsageError

CLASSES = ("cat", "a dog of a long name", "bird")


def flat(grey: np.ndarray, channels: int = 1, side: int = 8) -> np.ndarray:
    """Images of one grey level each."""
    return np.tile(grey.astype(np.uint8)[:, None, None, None], (1, channels, side, side))


def pixels(path) -> np.ndarray:
    from PIL import Image

    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image)


def levels(image: np.ndarray) -> list[int]:
    """The levels of the flat images, row by row from left to right, by the middle line of each row of cells."""
    found: list[int] = []
    for y in range(66, len(image), 4):
        line = image[y, :, 0]
        changes = np.flatnonzero(np.diff(line.astype(int))) + 1
        runs = [int(run[0]) for run in np.split(line, changes) if len(run) >= 60 and run[0] < 250]
        if runs and runs != found[-len(runs) :]:
            found += runs
    return found


def test_a_row_for_each_class_with_images_spread_over_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sheet, "COLUMNS", 4)
    contact_sheet(ImageSet(flat(np.arange(60) * 4), np.arange(60) % 3, CLASSES), tmp_path / "new" / "sheet.png", "")
    expected = [4 * (3 * member + label) for label in range(3) for member in (0, 5, 10, 15)]
    assert levels(pixels(tmp_path / "new" / "sheet.png")) == expected


def test_a_walk_around_one_object(tmp_path):
    azimuth = np.tile([0, 20, 40, 60], 6)
    instance = np.repeat([0, 1], 12)
    label = np.repeat([0, 1, 2, 0, 1, 2], 4)
    zero = np.zeros(24, int)
    images = ImageSet(flat(np.arange(24) * 10, 2), label, CLASSES, Views(instance, zero + 30, azimuth, zero))
    without = np.delete(np.arange(24), 6)  # class 1 lacks its first object at 40°: another stands in
    contact_sheet(images[without], tmp_path / "sheet.png", "walk")
    assert levels(pixels(tmp_path / "sheet.png")) == [0, 10, 20, 30, 40, 50, 180, 70, 80, 90, 100, 110]
    few = images[np.array([5, 6, 8])]  # empty cells are faint
    contact_sheet(few, tmp_path / "sheet.png", "few")
    assert levels(pixels(tmp_path / "sheet.png")) == [240, 240, 240, 240, 50, 60, 80, 240, 240]


def test_random_azimuths_stand_near_their_column(tmp_path, monkeypatch):
    monkeypatch.setattr(sheet, "AZIMUTHS", 4)
    azimuth = np.array([3, 88, 181, 272, 100, 350])
    zero = np.zeros(6, int)
    for labels, expected in (
        (zero, [0, 10, 20, 30]),  # of 3°, 88°, 181° and 272°, within 45°
        (np.array([0, 0, 0, 0, 1, 1]), [0, 10, 20, 30, 50, 40, 240, 240]),
    ):
        images = ImageSet(flat(np.arange(6) * 10), labels, ("a", "b"), Views(zero, zero, azimuth, zero))
        contact_sheet(images, tmp_path / "sheet.png", "")
        assert levels(pixels(tmp_path / "sheet.png"))[: len(expected)] == expected


@pytest.mark.parametrize(("channels", "side"), [(1, 28), (2, 96), (3, 32)])
def test_every_kind_of_image(tmp_path, channels, side):
    images = np.random.default_rng(0).integers(0, 256, (9, channels, side, side)).astype(np.uint8)
    contact_sheet(ImageSet(images, np.arange(9) % 3, CLASSES), tmp_path / "s.png", "noise")
    drawn = pixels(tmp_path / "s.png")
    assert drawn.ndim == 3
    if channels == 3:
        cell = images[0].transpose(1, 2, 0).repeat(2, 0).repeat(2, 1)
        windows = np.lib.stride_tricks.sliding_window_view(drawn, (64, 64, 3))[58, :, 0]
        assert (windows == cell).all((1, 2, 3)).any()


def test_what_cannot_be_shown_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no images"):
        contact_sheet(ImageSet(flat(np.array([])), np.zeros(0, np.int64), CLASSES), tmp_path / "s.png", "")
    with pytest.raises(UsageError, match="1, 2 or 3 channels, not 4"):
        contact_sheet(ImageSet(flat(np.arange(3), 4), np.arange(3), CLASSES), tmp_path / "s.png", "")
    assert not (tmp_path / "s.png").exists()
