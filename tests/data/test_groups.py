"""Which pictures belong together: as a pattern says, by numbers in their names, or by looking alike in name order."""

import re

import numpy as np
import pytest
from numpy.typing import NDArray

from qcn.data.duplicates import SIDE
from qcn.data.groups import matches, recognise
from qcn.errors import UsageError


def noise(count: int, seed: int = 0) -> NDArray[np.float32]:
    """Thumbnails of unlike pictures."""
    return np.random.default_rng(seed).uniform(0, 255, (count, SIDE, SIDE)).astype(np.float32)


def film(scenes: int, frames: int) -> NDArray[np.float32]:
    """Scenes that change by more than near duplicates do from each frame to the next, and wholly in the end."""
    result = []
    for scene in range(scenes):
        ends, share = noise(2, scene), np.linspace(0, 1, frames, dtype=np.float32)[:, None, None]
        result.append((1 - share) * ends[0] + share * ends[1])
    return np.concatenate(result)


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        ([f"a/{track:05}_{frame:05}.ppm" for track in range(4) for frame in range(5)], 4),
        ([f"a/video{track}/frame-{10 * frame}.jpg" for track in range(3) for frame in range(5)], 3),
        (
            [f"00014/{track:05}_{frame:05}.ppm" for track in range(4) for frame in range(5)]
            + [f"00014/{number:05}.ppm" for number in (7, 31, 88, 170)],  # GTSRB's test pictures are no track
            4,
        ),
        ([f"{patient:08}_{visit:03}.png" for patient in range(9) for visit in range(1 + patient % 4)], 6),
        ([f"a/{number:04}.png" for number in range(20)], 0),
        ([f"a/IMG_{number}.jpg" for number in range(10)] + [f"a/DSC{number}.jpg" for number in range(10)], 0),
        ([f"a/n0144_{number}.jpg" for number in range(20)], 0),  # the number of the class
        ([f"a/IMG_202301{day:02}_{time}.jpg" for day in range(4) for time in (81502, 120733, 201159)], 0),
        ([f"a/{number:03}_{copy}.png" for number in range(3) for copy in range(4)] + ["a/b.png"] * 13, 0),
    ],
    ids=["GTSRB", "videos", "GTSRB and others", "patients", "plain", "cameras", "class", "times", "few"],
)
def test_tracks_are_recognised_by_their_names(names: list[str], groups: int) -> None:
    result, by = recognise(names, [0] * len(names), noise(len(names)))
    assert len(result) == groups
    for group in result:
        assert len({re.sub(r"\d+\.\w+$", "", names[place]) for place in group}) == 1
    assert not groups or by == f"the numbers in their names, such as {names[result[0][0]]}"


def test_tracks_are_those_of_a_class() -> None:
    """One video per class is no reason to leave a class without validation pictures."""
    names = [f"video{label}_{frame}.jpg" for label in range(5) for frame in range(8)]
    assert not recognise(names, [label for label in range(5) for _ in range(8)], noise(40))[0]
    assert len(recognise(names, [0] * 40, noise(40))[0]) == 5


def test_runs_are_recognised_by_neighbours_that_look_alike() -> None:
    names = [f"a/{number}.png" for number in range(60)]  # unpadded: 2 comes before 10
    groups, by = recognise(names, [0] * 60, film(6, 10))
    assert groups == [list(range(10 * scene, 10 * scene + 10)) for scene in range(6)]
    assert by == "neighbours in name order that look alike"
    for pictures in (noise(60), noise(1) + 5 * noise(60) / 255, film(2, 30)):  # unlike, all alike, only two
        assert recognise(names, [0] * 60, pictures)[0] == []


def test_a_pattern_groups_what_it_matches_alike() -> None:
    names = ["cup/video7_1.jpg", "cup/video7_2.jpg", "pen/video8_1.jpg", "pen/photo.jpg"]
    assert matches(names, r"video\d+") == ["video7", "video7", "video8", None]
    assert matches(names, r"(video)?\d*_") == ["video", "video", "video", None]
    with pytest.raises(UsageError, match=r"group_by='_\(9\)' groups no two pictures: .* nothing in cup/video7_1.jpg"):
        matches(names, "_(9)")
    with pytest.raises(UsageError, match=r"it matches 'cup/video7_1.jpg' in cup/video7_1.jpg"):
        matches(names, ".*")
