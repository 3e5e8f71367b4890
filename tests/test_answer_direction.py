"""From poses to directions of view: the shared cases, `Answer.direction`, and what `qcn predict` says of it."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import with_directions
from command import Command
from PIL import Image

from qcn.direction import Direction, Directions
from qcn.export.bundle import Bundle
from qcn.networks.confidence import Known
from qcn.predict.draw import SIDE, drawn
from qcn.runtime import Answer, load

CASES = json.loads((Path(__file__).parent / "directions.json").read_text(encoding="utf-8"))["cases"]
NEVER = Known("logit", 1e9, 0.95, 0.5, 0.5)  # knows nothing


def directions(**record: Any) -> Directions:
    return Directions(*(record[name] if name == "elevation" else tuple(record[name]) for name in record))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_shared_cases(case: dict[str, Any]) -> None:
    """libqcn (deploy/tests) and the page (tests/export/test_web.py) are tested on the same ones."""
    told = directions(**case["direction"]).of(np.array(case["pose"], np.float32), case["label"])
    if case["expected"] is None:
        assert told is None
        return
    assert told is not None and (told.elevation is None) == (case["expected"]["elevation"] is None)
    for name, expected in case["expected"].items():
        if expected is not None:
            np.testing.assert_allclose(getattr(told, name), expected, rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_a_pose_that_is_not_finite_has_no_direction(odd: float) -> None:
    assert Directions((1,), True, (), (9.0,)).of(np.array([1, odd, 0], np.float32), 0) is None


def test_words_round_to_whole_degrees() -> None:
    assert Direction(120.5, 29.6, (0, 0, 0), 11.9).words() == "azimuth 121°, elevation 30° (± 12°)"
    assert Direction(359.7, -0.4, (0, 0, 0), 8.0).words() == "azimuth 0°, elevation 0° (± 8°)"
    assert Direction(90.0, None, (0, 0, 0), 8.0).words() == "azimuth 90° (± 8°)"


def test_an_answer_has_the_direction_of_its_own_class() -> None:
    pose = np.array([[1, 0, 0], [0, 2, 0]], np.float32)
    answer = Answer(np.array([0, 1], np.float32), pose, ("cup", "horse"), directions=Directions((1, 1), True, (), (9,)))
    assert answer.direction is not None and answer.direction.azimuth == 90
    assert replace(answer, threshold=NEVER).direction is None, "an unknown thing has no front"
    assert replace(answer, pose=None).direction is None and replace(answer, directions=None).direction is None
    assert replace(answer, directions=Directions((1, 0), True, (), (9,))).direction is None


def test_predict_says_directions(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    qcn = Command(monkeypatch, capsys)
    picture, out = tmp_path / "a.png", tmp_path / "out"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (28, 28), np.uint8)).save(picture)
    asked = (picture, "--json", out / "a.json", "--csv", out / "a.csv", "--save", out / "drawn")
    assert "seen from" not in qcn("predict", *asked, "--model", bundle.folder)[1]
    assert json.loads((out / "a.json").read_text())[0]["direction"] is None

    with_directions(bundle)
    code, said = qcn("predict", *asked, "--model", bundle.folder)
    entry = json.loads((out / "a.json").read_text())[0]
    told = Directions((1,) * 10, True, (), (12.0,)).of(np.array(entry["pose"][entry["label"]]), 0)
    assert told is not None and code == 0 and told.words() in said
    vector = entry["direction"].pop("vector")
    assert [*entry["direction"].values(), *vector] == pytest.approx([told.azimuth, told.elevation, 12, *told.vector])
    (row,) = csv.DictReader((out / "a.csv").read_text().splitlines())
    assert [float(row[name]) for name in ("azimuth", "elevation", "spread")] == [told.azimuth, told.elevation, 12]

    with_directions(bundle, elevation=False)
    qcn("predict", *asked, "--model", bundle.folder)
    (row,) = csv.DictReader((out / "a.csv").read_text().splitlines())
    assert row["azimuth"] and row["elevation"] == "" and json.loads((out / "a.json").read_text())[0]["direction"]


def test_another_record_makes_another_model(bundle: Bundle) -> None:
    """Files of answers are gone on with only if the same model answers."""
    names = [load(bundle.folder).identity]
    names += [load(with_directions(bundle, spreads=(spread,)).folder).identity for spread in (12.0, 13.0)]
    assert len(set(names)) == 3


@pytest.mark.parametrize(("azimuth", "right", "down"), [(0, 0, -26), (90, -26, 0), (180, 0, 26), (270, 26, 0)])
def test_the_compass_points_to_the_camera(azimuth: float, right: int, down: int) -> None:
    """Seen from above, the object's front at the top: its left side is on the left."""
    x, y, z = np.cos(np.radians(azimuth)), np.sin(np.radians(azimuth)), 0
    answer = Answer(np.ones(1, np.float32), np.array([[x, y, z]], np.float32), ("car",))
    card = drawn(np.zeros((32, 32, 3), np.uint8), replace(answer, directions=Directions((1,), True, (), (9.0,))))
    dots = {
        place: card.getpixel((SIDE - 32 + place[0], SIDE - 16 + place[1]))
        for place in ((0, -26), (-26, 0), (0, 26), (26, 0))
    }
    assert [place for place, colour in dots.items() if colour == (42, 111, 219)] == [(right, down)], dots
