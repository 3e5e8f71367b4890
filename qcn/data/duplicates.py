"""Pictures that are nearly the same: the same photo saved twice, resized, or the next frame of a film.

Two images are taken for near duplicates if thumbnails of them differ by less than a hundredth of their own variation.
Candidates are found by a hash of 64 bits (which of two neighbours in a thumbnail is brighter): those that share one of
its four quarters are compared. No torch here.
"""

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

SIDE = 16  # of a thumbnail
UNLIKE = 0.01  # of the variation of the two
NEIGHBOURS = 64  # at most so many are compared with each in a quarter that very many share


def near_duplicates(thumbnails: NDArray[np.float32]) -> list[list[int]]:
    """Groups of two or more of these [N, SIDE, SIDE], by their places, in order; each is in one group at most."""
    leader = list(range(len(thumbnails)))

    def first(place: int) -> int:
        while leader[place] != place:
            leader[place] = place = leader[leader[place]]
        return place

    for quarter in _hash(thumbnails).T:
        order = np.argsort(quarter, kind="stable")
        for step in range(1, min(NEIGHBOURS, len(order) - 1) + 1):
            one, other = order[:-step], order[step:]
            shared = quarter[one] == quarter[other]
            if not shared.any():
                break
            for a, b in zip(one[shared], other[shared], strict=True):
                if first(a) != first(b) and _alike(thumbnails[a], thumbnails[b]):
                    low, high = sorted((first(a), first(b)))
                    leader[high] = low
    groups = defaultdict(list)
    for place in range(len(thumbnails)):
        groups[first(place)].append(place)
    return [group for group in groups.values() if len(group) > 1]


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


def _alike(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    variation = float(((a - a.mean()) ** 2).mean() + ((b - b.mean()) ** 2).mean()) / 2
    return float(((a - b) ** 2).mean()) <= max(UNLIKE * variation, 0.05)
