"""The images that ranges and accuracy are measured on: a validation split, never a test split; and what is wrong there.

`audit` refuses images that a calibration cannot rely on (`Audit.refusals`), and warns of those that it can rely on less
than it seems (`Audit.warnings`), always with the numbers seen.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qcn.data.imageset import ImageSet
from qcn.errors import UsageError
from qcn.intervals import ONE_SIDED, paired_drop
from qcn.terminal.text import counted

LEAST = 16  # images: fewer are refused
FEW = 256  # fewer give a warning
OBSERVED = 512  # images at most that ranges are taken from: more were seen to change scales by a few per cent at most
HALF, SOME = 0.5, 0.01  # shares of odd images that are refused, and that give a warning
NOISE = 0.25  # neighbouring pixels of noise are correlated less than this


@dataclass(frozen=True)
class Audit:
    """Counts of the images; `known_tests` names the test images that they were compared with."""

    images: int
    different: int
    classes_seen: int
    classes: int
    constant: int
    noise: int
    in_tests: int
    known_tests: tuple[str, ...]
    max_drop: float
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def words(self) -> str:
        """The counts as sentences, for the page."""
        different = "all different" if self.different == self.images else f"{self.different:,} of them different"
        share = "all" if self.classes_seen == self.classes else f"{self.classes_seen} of"
        result = [f"{counted(self.images, 'image')}, {different}, of {share} {self.classes} classes."]
        result.append(f"{_none(self.constant)} of one colour, {_none(self.noise).lower()} noise.")
        if self.known_tests:
            result.append(f"{_none(self.in_tests)} also in {' or '.join(self.known_tests)}.")
        return " ".join(result)

    def require(self) -> None:
        """Refuse images that a calibration cannot be trusted with."""
        if self.refusals:
            raise UsageError(f"these images cannot be used for calibration: {'; '.join(self.refusals)}")


def _none(count: int) -> str:
    return f"{count:,} {'is' if count == 1 else 'are'}" if count else "None is"


def audit(images: ImageSet, tests: Mapping[str, NDArray[np.uint8]], max_drop: float) -> Audit:
    """Audit calibration images, which must not be among the images of `tests`. `max_drop` is in points."""
    contents = [content(image) for image in images.images]
    forbidden = {content(image) for others in tests.values() for image in others}
    result = Audit(
        images=len(images),
        different=len(set(contents)),
        classes_seen=len(np.unique(images.labels)),
        classes=len(images.classes),
        constant=sum(int(image.min() == image.max()) for image in images.images),
        noise=sum(map(is_noise, images.images)),
        in_tests=sum(one in forbidden for one in contents),
        known_tests=tuple(tests),
        max_drop=max_drop,
    )
    return replace(result, refusals=tuple(_refusals(result)), warnings=tuple(_warnings(result)))


def _refusals(audit: Audit) -> Iterable[str]:
    if audit.images < LEAST:
        yield f"at least {LEAST} images are needed, not {audit.images}"
        return
    if audit.classes_seen < 2 <= audit.classes:
        yield f"all {audit.images:,} are of one class; the network has {audit.classes}"
    noise = "noise: neighbouring pixels have no relation"
    for count, what in ((audit.constant, "of one colour"), (audit.noise, noise)):
        if count > HALF * audit.images:
            yield f"{count:,} of {audit.images:,} are {what}"
    if audit.different < HALF * audit.images:
        yield f"only {audit.different:,} of {audit.images:,} images are different"
    if audit.in_tests > SOME * audit.images:
        yield (
            f"{audit.in_tests:,} of {audit.images:,} are also in {' and '.join(audit.known_tests)}: test "
            "images must not be used to choose settings; use the validation split (leave out --dataset)"
        )
    least_drop = 100 * paired_drop(0, 0, audit.images)[1]
    if least_drop > audit.max_drop:
        yield (
            f"{audit.images:,} images cannot show a drop of less than {least_drop:.2g} points, even if no answer "
            f"changes: for --max-drop {audit.max_drop:g} use at least {images_for(audit.max_drop):,} images, or allow "
            f"--max-drop {tenths(least_drop)}"
        )


def _warnings(audit: Audit) -> Iterable[str]:
    if LEAST <= audit.images < FEW:
        yield f"there are only {audit.images} images: ranges may be too narrow; {FEW} or more are better"
    if 1 < audit.classes_seen < audit.classes:
        yield f"{audit.classes - audit.classes_seen} of {audit.classes} classes have no image"
    for count, what in ((audit.constant, "of one colour"), (audit.noise, "noise")):
        if SOME * audit.images < count <= HALF * audit.images:
            yield f"{count:,} of {audit.images:,} images are {what}"
    if HALF * audit.images <= audit.different < (1 - SOME) * audit.images:
        yield f"only {audit.different:,} of {audit.images:,} images are different"
    if 0 < audit.in_tests <= SOME * audit.images:
        yield f"{audit.in_tests:,} of {audit.images:,} images are also in {' and '.join(audit.known_tests)}"


def images_for(max_drop: float) -> int:
    """How many images it takes to show a drop of less than `max_drop` points, if no answer changes."""
    return math.ceil(ONE_SIDED**2 * (100 / max_drop - 1))  # what `paired_drop` says of no change, solved for the images


def tenths(points: float) -> str:
    """Rounded up: what --max-drop must be to allow so many points."""
    return f"{math.ceil(10 * points) / 10:.1f}"


def content(image: NDArray[np.uint8]) -> bytes:
    """A key for an image: its pixels and shape."""
    return hashlib.sha256(str(image.shape).encode() + image.tobytes()).digest()


def is_noise(image: NDArray[np.uint8]) -> bool:
    """Whether the pixels of an image [C, H, W] say nothing of their neighbours, across and down."""
    grey = image.mean(0, dtype=np.float64)
    grey -= grey.mean()
    power = float((grey**2).mean())
    if not power:
        return False
    along = [float((grey[:, 1:] * grey[:, :-1]).mean()), float((grey[1:] * grey[:-1]).mean())]
    return sum(along) / 2 < NOISE * power


def data_sha256(images: ImageSet) -> str:
    """The hash of the images and their labels, in order."""
    digest = hashlib.sha256(str(images.images.shape).encode())
    digest.update(np.ascontiguousarray(images.images).data)
    digest.update(np.ascontiguousarray(images.labels).data)
    return digest.hexdigest()


def spread(images: ImageSet, count: int) -> ImageSet:
    """At most `count` of them, evenly spread over their order."""
    rows = np.unique(np.linspace(0, len(images) - 1, min(count, len(images))).round().astype(int))
    return images[rows]
