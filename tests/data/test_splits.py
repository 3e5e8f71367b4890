"""The cuts: complete, disjoint, the same everywhere, and by the protocols that they are named for."""

import hashlib

import numpy as np
import official
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qcn.data.imageset import ImageSet, Splits, Views
from qcn.data.splits import FAMILIAR, TRAIN_INSTANCES, by_instance, by_viewpoint, deal, deal_groups, hold_out
from qcn.errors import UsageError


def numbered(labels: np.ndarray, views: Views | None = None) -> ImageSet:
    """A set whose image i is the number i, in four pixels."""
    images = np.arange(len(labels), dtype=">u4").view(np.uint8).reshape(-1, 1, 2, 2)
    return ImageSet(images, labels.astype(np.int64), tuple("abcdefghij"), views)


def numbers(images: ImageSet) -> list[int]:
    return images.images.reshape(-1, 4).copy().view(">u4").ravel().tolist()


def norb() -> ImageSet:
    sides = [official.norb_tables(side) for side in (official.NORB_TRAIN, official.NORB_TEST)]
    labels, info = (np.concatenate(tables) for tables in zip(*sides, strict=True))
    return numbered(labels, Views(info[:, 0], 30 + 5 * info[:, 1], 10 * info[:, 2], info[:, 3]))


def parts(splits: Splits) -> list[ImageSet]:
    return [splits.train, splits.validation, *splits.tests.values()]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=100), st.text(max_size=8), st.floats(0.05, 0.5))
@settings(max_examples=40, deadline=None)
def test_hold_out_is_a_partition_and_keeps_the_classes_in_proportion(labels, name, fraction):
    images = numbered(np.array(labels))
    train, validation = hold_out(images, name, fraction)
    assert sorted(numbers(train) + numbers(validation)) == list(range(len(labels)))
    assert numbers(train) == sorted(numbers(train))
    for label in set(labels):
        expected = max(1, round(fraction * labels.count(label)))
        assert np.count_nonzero(validation.labels == label) == expected


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_groups_are_dealt_whole_and_the_largest_stays(groups):
    labels, sizes = (np.array(part) for part in zip(*groups, strict=True))
    hands = deal_groups(labels, sizes, 3, "name", 0.1, 0.1)
    for label in set(labels):
        mine = labels == label
        assert sizes[mine & (hands == 0)].max() == sizes[mine].max()
        for owner in (1, 2)[: mine.sum() - 1]:
            taken = sizes[mine & (hands == owner)]
            assert taken.sum() <= max(1, round(0.1 * sizes[mine].sum())) or len(taken) == 1


def test_groups_of_one_are_dealt_as_images_are():
    labels = np.repeat([0, 1, 2], [5, 40, 333])
    assert (deal_groups(labels, np.ones_like(labels), 4, "name", 0.1, 0.1) == deal(labels, 4, "name", 0.1, 0.1)).all()


def test_hold_out_depends_on_the_name_and_on_nothing_else():
    images = numbered(np.arange(1000) % 10)
    first, again, other = (numbers(hold_out(images, name)[1]) for name in ("mnist", "mnist", "svhn"))
    assert first == again != other
    # Written down, so that no version of NumPy and no machine moves an image from one side to the other unseen.
    assert hashlib.sha256(str(first).encode()).hexdigest()[:16] == "f3b04afa6a7f45ed"


def test_by_instance():
    splits = by_instance(norb(), "smallnorb")
    assert set(splits.train.views.instance) == set(splits.validation.views.instance) == set(TRAIN_INSTANCES)
    assert set(splits.tests["test"].views.instance) == {0, 1, 2, 3, 5}
    assert sorted(number for part in parts(splits) for number in numbers(part)) == list(range(8100))
    assert len(splits.validation) == 405
    assert len(splits.tests["test"]) == 4050


@pytest.mark.parametrize("axis", ["azimuth", "elevation"])
def test_plain_viewpoints_test_new_instances(axis):
    splits = by_viewpoint(norb(), f"smallnorb-{axis}", axis, pooled=False)
    assert list(splits.tests) == ["familiar", "novel"]
    for images in (splits.train, splits.validation):
        assert set(images.views.instance) == set(TRAIN_INSTANCES)
        assert set(getattr(images.views, axis)) == set(FAMILIAR[axis])
    for images in splits.tests.values():
        assert set(images.views.instance) == {0, 1, 2, 3, 5}
    assert set(getattr(splits.tests["familiar"].views, axis)) == set(FAMILIAR[axis])
    assert not set(getattr(splits.tests["novel"].views, axis)) & set(FAMILIAR[axis])
    assert [len(part) for part in parts(splits)] == [1215, 135, 1350, 2700]


@pytest.mark.parametrize("axis", ["azimuth", "elevation"])
def test_pooled_viewpoints_have_every_instance_on_both_sides(axis):
    splits = by_viewpoint(norb(), f"smallnorb-{axis}-pooled", axis, pooled=True)
    for images in parts(splits):
        assert set(images.views.instance) == set(range(10))
        assert set(images.labels) == set(range(5))
    for images in (splits.train, splits.validation, splits.tests["familiar"]):
        assert set(getattr(images.views, axis)) == set(FAMILIAR[axis])
    assert not set(getattr(splits.tests["novel"].views, axis)) & set(FAMILIAR[axis])
    assert [len(part) for part in parts(splits)] == [2160, 270, 270, 5400]
    assert sorted(number for part in parts(splits) for number in numbers(part)) == list(range(8100))


def test_a_set_without_views_or_with_an_empty_side_is_refused():
    with pytest.raises(UsageError, match="mnist has no viewpoints"):
        by_instance(numbered(np.arange(10)), "mnist")
    whole = norb()
    familiar = whole[np.flatnonzero(np.isin(whole.views.azimuth, FAMILIAR["azimuth"]))]
    for pooled in (False, True):
        with pytest.raises(UsageError, match=r"no image of .*novel azimuths"):
            by_viewpoint(familiar, "smallnorb-azimuth", "azimuth", pooled)
