"""Pictures that are nearly the same: the same photo saved twice, resized, or the next frame of a film.

Two images are taken for near duplicates if thumbnails of them differ by less than a hundredth of their own variation.
Candidates are found by a hash of 64 bits (which of two neighbours in a thumbnail is brighter): those that share one of
its four quarters are compared. No torch here.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

SIDE = 16  # of a thumbnail
UNLIKE = 0.01  # of the variation of the two
CHUNK = 4096  # pairs that are compared at once
NEIGHBOURS = 64  # at most so many are compared with each in a quarter that very many share


class Groups:
    """Places that belong together. Each one is alone until it is joined with another."""

    def __init__(self, count: int, together: Iterable[Sequence[int]] = ()) -> None:
        self._leader = list(range(count))
        for first, *others in together:
            for other in others:
                self.join(first, other)

    def first(self, place: int) -> int:
        """The first of its group."""
        leader = self._leader
        while leader[place] != place:
            leader[place] = place = leader[leader[place]]
        return place

    def join(self, one: int, other: int) -> None:
        low, high = sorted((self.first(one), self.first(other)))
        self._leader[high] = low

    def lists(self) -> list[list[int]]:
        """The places of each group, in order."""
        groups = defaultdict(list)
        for place in range(len(self._leader)):
            groups[self.first(place)].append(place)
        return list(groups.values())


def near_duplicates(thumbnails: NDArray[np.float32]) -> list[tuple[int, int]]:
    """Pairs of nearly the same of these [N, SIDE, SIDE], by their places; as few as connect each group of them."""
    pairs, groups = [], Groups(len(thumbnails))
    for quarter in _hash(thumbnails).T:
        order = np.argsort(quarter, kind="stable")
        for step in range(1, min(NEIGHBOURS, len(order) - 1) + 1):
            one, other = order[:-step], order[step:]
            shared = quarter[one] == quarter[other]
            if not shared.any():
                break
            one, other = one[shared], other[shared]
            for start in range(0, len(one), CHUNK):
                some, others = one[start : start + CHUNK], other[start : start + CHUNK]
                alike = apart(thumbnails[some], thumbnails[others]) <= UNLIKE
                for a, b in zip(some[alike].tolist(), others[alike].tolist(), strict=True):
                    if groups.first(a) != groups.first(b):
                        groups.join(a, b)
                        pairs.append((a, b))
    return pairs


def thumbnail(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The mean grey value of each of SIDE × SIDE parts of an image [C, H, W]."""
    grey = image.mean(axis=0, dtype=np.float32)
    for _ in range(2):  # down, then across
        starts = np.arange(SIDE) * len(grey) // SIDE
        counts = np.diff(np.append(starts, len(grey))).clip(1).astype(np.float32)
        grey = (np.add.reduceat(grey, starts, axis=0) / counts[:, None]).T
    return grey


def _hash(thumbnails: NDArray[np.float32]) -> NDArray[np.uint16]:
    """[N, 4] quarters of 64 bits: 8 × 8 comparisons of neighbours."""
    small = thumbnails.reshape(-1, 8, 2, 8, 2).mean((2, 4))
    brighter = np.roll(small, -1, axis=2) > small
    return np.packbits(brighter.reshape(-1, 64), axis=1).view(np.uint16)


def apart(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """How much thumbnails [..., SIDE, SIDE] differ, as a share of their variation (of 5 at least, for plain ones)."""
    variation = (a.var((-2, -1)) + b.var((-2, -1))) / 2
    result: NDArray[np.float32] = ((a - b) ** 2).mean((-2, -1)) / np.maximum(variation, 5)
    return result
