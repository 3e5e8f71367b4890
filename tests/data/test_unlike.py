"""Made-up pictures of no class."""

import numpy as np
import pytest

from qcn.data.unlike import BLOCKS, MOST, unlike_pictures
from qcn.data.viewpoints.toys import CATEGORIES

RNG = np.random.default_rng(0)


def images(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize("shape", [(1, 28, 28), (2, 20, 33), (3, 8, 8)])
def test_they_have_the_form_of_the_images(shape: tuple[int, int, int]) -> None:
    found = unlike_pictures(images(10, *shape), ("a", "b"))
    assert set(found) == {"noise", "patterns", "jumbled", "toys"}
    for kind, pictures in found.items():
        assert pictures.dtype == np.uint8 and pictures.shape == (20, *shape), kind
        assert len({one.tobytes() for one in pictures}) >= 18, kind
    if shape[0] == 3:
        assert any((one[0] != one[1]).any() for one in found["toys"])
        assert any((one[0] == one[1]).all() for one in found["toys"])


def test_the_same_seed_makes_the_same_pictures() -> None:
    given = images(5, 1, 16, 16)
    once, again, other = (unlike_pictures(given, ("a", "b"), seed) for seed in (0, 0, 1))
    assert all(np.array_equal(once[kind], again[kind]) for kind in once)
    assert not np.array_equal(once["noise"], other["noise"])


def test_jumbled_pictures_keep_their_pixels_and_lose_their_places() -> None:
    given = images(1, 3, 16, 16)
    for picture in unlike_pictures(given, CATEGORIES)["jumbled"]:
        assert np.array_equal(np.sort(picture.reshape(3, -1)), np.sort(given[0].reshape(3, -1)))
        moved = (picture != given[0]).reshape(3, BLOCKS, 4, BLOCKS, 4).any((0, 2, 4))
        assert moved.sum() > BLOCKS**2 / 2


def test_toys_are_left_out_where_the_network_knows_them() -> None:
    assert "toys" not in unlike_pictures(images(4, 2, 32, 32), CATEGORIES)


def test_there_are_not_more_than_needed() -> None:
    assert {len(one) for one in unlike_pictures(images(MOST, 1, 8, 8), CATEGORIES).values()} == {MOST}
