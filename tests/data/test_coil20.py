"""COIL-20, from small files in its own form: every photograph is one grey, which says what it shows."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from qcn.cli import app
from qcn.data import coil20
from qcn.data.directions import has_directions, has_elevations
from qcn.data.registry import load
from qcn.errors import MissingError, UsageError

WIDE = {"COLUMNS": "160"}  # else the table may be shown as a list
NAME = "coil20-azimuth"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Object N has the grey level 10·N, and its view M a white pixel in row M."""
    folder = tmp_path_factory.mktemp("data")
    place = folder / "coil20" / "coil-20-proc"
    place.mkdir(parents=True)
    for number in range(1, 21):
        for view in range(72):
            pixels = np.full((128, 128), 10 * number, np.uint8)
            pixels[view] = 255
            Image.fromarray(pixels).save(place / f"obj{number}__{view}.png")
    return folder


def test_photographs_have_their_object_and_azimuth(data_dir: Path) -> None:
    found = coil20.read(data_dir / "coil20")
    assert found.images.shape == (1440, 1, 32, 32)
    assert found.views is not None
    assert (np.median(found.images, (1, 2, 3)) == 10 * (found.labels + 1)).all()
    assert (found.images[:, 0, :, 0].argmax(1) * 4 - found.views.azimuth / 5 <= 0).all()
    assert set(found.views.azimuth) == set(range(0, 360, 5))


def test_novel_views_are_those_that_training_never_comes_near(data_dir: Path) -> None:
    splits = load(NAME, data_dir)
    assert (len(splits.train), len(splits.validation)) == (420, 40)
    assert {name: len(images) for name, images in splits.tests.items()} == {"familiar": 40, "novel": 940}
    for images in (splits.train, splits.validation, splits.tests["familiar"]):
        assert images.views is not None
        assert np.minimum(images.views.azimuth, 360 - images.views.azimuth).max() <= 60
        assert len(np.unique(images.labels)) == 20
    novel = splits.tests["novel"].views
    assert novel is not None
    assert np.minimum(novel.azimuth, 360 - novel.azimuth).min() == 65


def test_where_it_is_missing_the_way_to_get_it_is_said(tmp_path: Path, data_dir: Path) -> None:
    with pytest.raises(MissingError, match=r"1,440 of 1,440 files are missing, such as .*obj1__0\.png.*coil-20-proc"):
        load(NAME, tmp_path)
    asked = CliRunner().invoke(app, ["datasets", "fetch", NAME, "--data-dir", str(tmp_path)])
    assert isinstance(asked.exception, MissingError)
    assert "non-commercial research" in str(asked.exception)
    there = CliRunner().invoke(app, ["datasets", "fetch", NAME, "--data-dir", str(data_dir)])
    assert there.exit_code == 0, there.output
    assert "all files are in" in there.output
    listed = {
        folder: next(line for line in listing.splitlines() if NAME in line)
        for folder in (tmp_path, data_dir)
        if (listing := CliRunner(env=WIDE).invoke(app, ["datasets", "list", "--data-dir", str(folder)]).output)
    }
    assert " no " in listed[tmp_path]
    assert " yes " in listed[data_dir]


def test_photographs_of_another_size_are_refused(tmp_path: Path, data_dir: Path) -> None:
    place = tmp_path / "coil20"
    place.mkdir()
    for path in (data_dir / "coil20" / "coil-20-proc").iterdir():
        (place / path.name).hardlink_to(path)
    (place / "obj3__7.png").unlink()
    Image.new("L", (448, 416)).save(place / "obj3__7.png")
    with pytest.raises(UsageError, match=r"obj3__7\.png: 448×416 pixels in 1 channels, not 128×128"):
        load(NAME, tmp_path)


def test_only_azimuths_are_known_and_every_other_one_is_trained(data_dir: Path) -> None:
    splits = load("coil20-between", data_dir)
    assert not has_elevations(splits.train) and has_directions(splits.train)
    assert splits.train.views is not None and set(splits.train.views.azimuth) == set(range(0, 360, 10))
    assert set(splits.tests["novel"].views.azimuth) == set(range(5, 360, 10))  # type: ignore[union-attr]
