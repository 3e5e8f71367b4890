"""ETH-80, from small files in its own form: every photograph is of one colour, which says what it shows."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qcn.data import eth80
from qcn.data.directions import has_elevations, true_directions
from qcn.data.registry import load
from qcn.direction import ROUND
from qcn.errors import MissingError, UsageError


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Red is ten times the kind, green the object, blue half the angle around."""
    folder = tmp_path_factory.mktemp("data")
    for kind, name in enumerate(eth80.CLASSES, 1):
        for number in range(1, 11):
            place = folder / "eth80" / str(kind) / str(number)
            (place / "maps").mkdir(parents=True)
            for polar, around in eth80.PLACES:
                colour = (10 * kind, number, around // 2)
                Image.new("RGB", (16, 16), colour).save(place / f"{name}{number + 3}-{polar:03d}-{around:03d}.png")
    return folder


def test_photographs_have_their_kind_object_and_direction(data_dir: Path) -> None:
    found = eth80.read(data_dir / "eth80")
    assert found.images.shape == (3280, 3, 64, 64) and found.views is not None
    red, green, blue = found.images[:, :, 32, 32].T.astype(int)
    assert (red == 10 * (found.labels + 1)).all() and (green == found.views.instance + 1).all()
    side = found.views.elevation < 90
    assert (blue == (found.views.azimuth + 90) % 360 // 2)[side].all()
    assert found.views.elevation.min() == 0 and found.views.elevation.max() == 90
    assert has_elevations(found)
    truth = true_directions(found, elevations=True)
    assert truth is not None
    assert {found.classes[label] for label in found.labels[truth.symmetry == ROUND]} == {"apple", "pear", "tomato"}
    assert (eth80.read(data_dir / "eth80").images == found.images).all()  # now from the kept ones


def test_every_object_is_tested_in_one_fold_and_never_trained_on_there(data_dir: Path) -> None:
    tested: list[int] = []
    for fold in range(5):
        splits = load(f"eth80-fold{fold}", data_dir)
        test, train = splits.tests["test"], splits.train
        assert test.views is not None and train.views is not None and splits.validation.views is not None
        sizes = [len(images) for images in (train, splits.validation, test)]
        assert sizes == [8 * 7 * 41, 8 * 41, 8 * 2 * 41] and train.symmetry == eth80.SYMMETRY
        objects = [set(images.views.instance) for images in (train, splits.validation, test) if images.views]
        assert len(set.union(*objects)) == sum(map(len, objects)) == 10
        tested += set(test.views.instance)
    assert sorted(tested) == list(range(10))


def test_familiar_azimuths_are_near_the_front(data_dir: Path) -> None:
    splits = load("eth80-azimuth", data_dir)
    near = splits.train.views
    assert near is not None and np.minimum(near.azimuth, 360 - near.azimuth).max() <= 60
    far = splits.tests["novel"].views
    assert far is not None and np.minimum(far.azimuth, 360 - far.azimuth).min() > 60 and far.elevation.max() < 90


def test_what_is_missing_or_damaged_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"3,280 of 3,280 files are missing.*github.com/Kai-Xuan/ETH-80"):
        load("eth80-fold0", tmp_path)
    (tmp_path / "eth80").mkdir()
    (tmp_path / "eth80" / f"photographs-{eth80.SIDE}.npy").write_bytes(b"x")
    with pytest.raises(UsageError, match="is damaged: delete it"):
        load("eth80-fold0", tmp_path)
