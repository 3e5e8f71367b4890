"""Pictures that belong together and must share a split: frames of one video, photographs of one object. No torch here.

A table or the setting `group_by` says which. Without either, two habits are recognised, in each class by itself:

tracks  names with two numbers, of the track and of the picture: 00012_00029.ppm, video7/frame-0003.jpg
runs    neighbours in name order that look alike, far more often than pictures that are far apart in it

Either must explain most of a class. So plain numbers (IMG_1234.jpg) are no tracks, and a class whose pictures all look
alike has no runs.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from math import gcd

import numpy as np
from numpy.typing import NDArray

from qcn.data.duplicates import apart
from qcn.errors import UsageError

OFF = "off"  # of `group_by`: nothing is recognised
SEVERAL = 3  # pictures of a track, and tracks or runs of a class
GAPS = 4  # numbers per picture of a track, at most: the time of day is no such number
OFTEN = 10  # how many times as often neighbours are alike
TRACK = re.compile(r"(.*\d.*\D)(\d+)(\.\w+)?")  # the track, whose name has a number, and the picture's number


def check_pattern(pattern: str) -> None:
    """Refuse what is no regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(f"group_by='{pattern}' is not a regular expression: {error}") from None


def matches(names: Sequence[str], pattern: str) -> list[str | None]:
    """What the pattern, or its first group, matches in each name; None for nothing. Refused if no two have the same."""
    found = [re.search(pattern, name) for name in names]
    groups = [match[min(1, match.re.groups)] or None if match else None for match in found]
    if max(Counter(filter(None, groups)).values(), default=0) < 2:
        result = f"'{groups[0]}'" if groups[0] else "nothing"
        raise UsageError(
            f"group_by='{pattern}' groups no two pictures: it matches {result} in {names[0]}. It must match what the "
            f"paths of a group share, such as group_by='.*_' for cup/video7_0001.jpg"
        )
    return groups


def recognise(
    names: Sequence[str], labels: Sequence[int], thumbnails: NDArray[np.float32]
) -> tuple[list[list[int]], str]:
    """Tracks, or else runs, as places; and how they were recognised, in words."""
    classes = defaultdict(list)
    for place in sorted(range(len(names)), key=lambda place: _in_order(names[place])):
        classes[labels[place]].append(place)
    if tracks := [track for places in classes.values() for track in _tracks(places, names)]:
        return tracks, f"the numbers in their names, such as {names[tracks[0][0]]}"
    runs = [run for places in classes.values() for run in _runs(places, thumbnails)]
    return runs, "neighbours in name order that look alike"


def _in_order(name: str) -> list[str | int]:
    """Names are sorted as people do it: 2 before 10."""
    return [int(part) if number % 2 else part for number, part in enumerate(re.split(r"(\d+)", name))]


def _tracks(places: Sequence[int], names: Sequence[str]) -> list[list[int]]:
    """The tracks of a class."""
    tracks: dict[str, dict[int, int]] = defaultdict(dict)
    for place in places:
        if match := TRACK.fullmatch(names[place]):
            tracks[match[1]][place] = int(match[2])
    counted = [list(track) for track in tracks.values() if len(track) > 1 and _counts(sorted(track.values()))]
    return counted if _explain([track for track in counted if len(track) >= SEVERAL], places) else []


def _counts(numbers: Sequence[int]) -> bool:
    """Whether these number the pictures of a track, be it by tens."""
    step = gcd(*(after - before for before, after in pairwise(numbers)))
    return numbers[-1] - numbers[0] <= GAPS * step * len(numbers)


def _runs(places: Sequence[int], thumbnails: NDArray[np.float32]) -> list[list[int]]:
    """The runs of a class: neighbours differ by less than a quarter of what pictures far apart usually do."""
    own = thumbnails[np.array(places)]
    far = apart(own, np.roll(own, len(own) // 3, axis=0))
    alike = apart(own[:-1], own[1:]) <= np.median(far) / 4
    if alike.sum() < OFTEN * (1 + (far <= np.median(far) / 4).sum()):  # 1: few pictures may be alike by chance
        return []
    stretches = np.split(np.array(places), np.flatnonzero(~alike) + 1)
    runs = [stretch.tolist() for stretch in stretches if len(stretch) > 1]
    return runs if _explain(runs, places) else []


def _explain(groups: Sequence[Sequence[int]], places: Sequence[int]) -> bool:
    """Whether there are several groups, and most of a class is in them."""
    return len(groups) >= SEVERAL and 2 * sum(map(len, groups)) >= len(places)
