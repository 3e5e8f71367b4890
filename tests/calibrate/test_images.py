"""The planted cases that the audit of calibration images refuses or tells."""

from pathlib import Path

import numpy as np
import pytest

from qcn.calibrate.images import Audit, audit, data_sha256, images_for, spread
from qcn.data.imageset import ImageSet
from qcn.data.registry import load
from qcn.errors import UsageError

GENERATOR = np.random.default_rng(0)
CLASSES = tuple("abcde")


def smooth(count: int) -> np.ndarray:
    """Images [count, 1, 16, 16] without noise, all different."""
    y, x = np.mgrid[:16, :16]
    images = (127 + 100 * np.sin(x / 3) * np.cos(y / 4)).astype(np.uint8)[None, None].repeat(count, 0)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = np.arange(count) % 256, np.arange(count) // 256
    return images


def audit_of(images: np.ndarray, labels: np.ndarray | None = None, max_drop: float = 0.5, **tests: np.ndarray) -> Audit:
    all_labels = np.arange(len(images)) % len(CLASSES) if labels is None else labels
    return audit(ImageSet(images, all_labels.astype(np.int64), CLASSES), tests, max_drop)


GOOD = smooth(2000)
NOISE = GENERATOR.integers(0, 256, (1200, 1, 16, 16), np.uint8)
PLANTED = {
    "too few": (audit_of(GOOD[:9]), "at least 16 images are needed, not 9"),
    "one class": (audit_of(GOOD, np.zeros(2000, int)), "all 2,000 are of one class; the network has 5"),
    "constant": (audit_of(np.concatenate([GOOD[:800], 0 * GOOD[:1200] + 7])), "1,200 of 2,000 are of one colour"),
    "noise": (audit_of(np.concatenate([GOOD[:800], NOISE])), "1,200 of 2,000 are noise"),
    "the same": (audit_of(np.tile(GOOD[:200], (10, 1, 1, 1))), "only 200 of 2,000 images are different"),
    "test images": (audit_of(GOOD, test=GOOD[:100]), "100 of 2,000 are also in test"),
    "too few for the bound": (audit_of(GOOD[:300]), "300 images cannot show a drop of less than 0.89 points"),
}


@pytest.mark.parametrize("case", PLANTED)
def test_what_says_nothing_is_refused_with_its_numbers(case: str) -> None:
    result, says = PLANTED[case]
    with pytest.raises(UsageError) as refused:
        result.require()
    assert says in str(refused.value)


def test_what_says_less_is_told() -> None:
    assert audit_of(GOOD).refusals == audit_of(GOOD).warnings == ()
    odd = np.concatenate([GOOD[:1800], NOISE[:60], 0 * GOOD[:140]])
    result = audit_of(odd, np.arange(2000) % 4, test=odd[:3])
    result.require()
    warnings = "\n".join(result.warnings)
    for words in (
        "1 of 5 classes have no image",
        "60 of 2,000 images are noise",
        "140 of 2,000 images are of one colour",
        "only 1,861 of 2,000 images are different",
        "3 of 2,000 images are also in test",
    ):
        assert words in warnings
    few = audit_of(GOOD[:100], max_drop=5)
    few.require()
    assert few.warnings == ("there are only 100 images: ranges may be too narrow; 256 or more are better",)


def test_enough_images_are_enough(data_dir: Path) -> None:
    for max_drop in (0.2, 1.0):
        enough = images_for(max_drop)
        audit_of(smooth(enough), max_drop=max_drop).require()
        assert audit_of(smooth(enough - 2), max_drop=max_drop).refusals
    images = load("mnist", data_dir).validation
    assert len(spread(images, 7)) == 7 and len(spread(images, 10_000)) == len(images)
    assert data_sha256(images) != data_sha256(images[np.arange(len(images))[::-1]])
