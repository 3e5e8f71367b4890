"""Contact sheets: the right image in the right cell."""

import numpy as np
import pytest

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


def levels(sheet: np.ndarray) -> list[int]:
    """The levels of the flat images, row by row from left to right, by the middle line of each row of cells."""
    found: list[int] = []
    for y in range(32, len(sheet), 4):
        line = sheet[y, :, 0]
        changes = np.flatnonzero(np.diff(line.astype(int))) + 1
        runs = [int(run[0]) for run in np.split(line, changes) if len(run) >= 60 and run[0] < 250]
        if runs and runs != found[-len(runs) :]:
            found += runs
    return found


def test_a_row_for_each_class_with_images_spread_over_it(tmp_path):
    labels = np.arange(60) % 3
    contact_sheet(ImageSet(flat(np.arange(60) * 4), labels, CLASSES), tmp_path / "new" / "sheet.png", columns=4)
    expected = [4 * (3 * member + label) for label in range(3) for member in (0, 5, 10, 15)]
    assert levels(pixels(tmp_path / "new" / "sheet.png")) == expected


def test_a_walk_around_one_object(tmp_path):
    azimuth = np.tile([0, 20, 40, 60], 6)
    instance = np.repeat([0, 1], 12)
    label = np.repeat([0, 1, 2, 0, 1, 2], 4)
    zero = np.zeros(24, int)
    images = ImageSet(flat(np.arange(24) * 10, 2), label, CLASSES, Views(instance, zero + 30, azimuth, zero))
    without = np.delete(np.arange(24), 6)  # class 1 lacks its first object at 40°: another stands in
    contact_sheet(images[without], tmp_path / "sheet.png", title="walk")
    assert levels(pixels(tmp_path / "sheet.png")) == [0, 10, 20, 30, 40, 50, 180, 70, 80, 90, 100, 110]


def test_random_azimuths_stand_near_their_column(tmp_path):
    azimuth = np.array([3, 88, 181, 272, 100, 350])
    zero = np.zeros(6, int)
    images = ImageSet(flat(np.arange(6) * 10), zero, ("a",), Views(zero, zero, azimuth, zero))
    contact_sheet(images, tmp_path / "sheet.png", columns=4)  # of 3°, 88°, 181° and 272°, within 45°
    assert levels(pixels(tmp_path / "sheet.png")) == [0, 10, 20, 30]
    other = ImageSet(flat(np.arange(6) * 10), np.array([0, 0, 0, 0, 1, 1]), ("a", "b"), images.views)
    contact_sheet(other, tmp_path / "sheet.png", columns=4)
    assert levels(pixels(tmp_path / "sheet.png")) == [0, 10, 20, 30, 50, 40, 240, 240]


def test_an_empty_cell_is_faint(tmp_path):
    zero = np.zeros(3, int)
    views = Views(zero, zero, np.array([0, 20, 0]), zero)
    contact_sheet(ImageSet(flat(np.array([50, 60, 70])), np.array([0, 0, 1]), CLASSES, views), tmp_path / "s.png")
    assert levels(pixels(tmp_path / "s.png")) == [50, 60, 70, 240, 240, 240]


@pytest.mark.parametrize(("channels", "side"), [(1, 28), (2, 96), (3, 32)])
def test_every_kind_of_image(tmp_path, channels, side):
    images = np.random.default_rng(0).integers(0, 256, (9, channels, side, side)).astype(np.uint8)
    contact_sheet(ImageSet(images, np.arange(9) % 3, CLASSES), tmp_path / "s.png", title="noise")
    sheet = pixels(tmp_path / "s.png")
    assert sheet.ndim == 3
    if channels == 3:
        cell = images[0].transpose(1, 2, 0).repeat(2, 0).repeat(2, 1)
        windows = np.lib.stride_tricks.sliding_window_view(sheet, (64, 64, 3))[58, :, 0]
        assert (windows == cell).all((1, 2, 3)).any()


def test_what_cannot_be_shown_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no images"):
        contact_sheet(ImageSet(flat(np.array([])), np.zeros(0, np.int64), CLASSES), tmp_path / "s.png")
    with pytest.raises(UsageError, match="1, 2 or 3 channels, not 4"):
        contact_sheet(ImageSet(flat(np.arange(3), 4), np.arange(3), CLASSES), tmp_path / "s.png")
    assert not (tmp_path / "s.png").exists()
