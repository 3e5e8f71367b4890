"""benchmarks/robustness.py and corruptions.py: what they do to pictures, and what they count."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from qcn.data.spec import Preprocessing
from qcn.evaluate.rates import Answers
from qcn.networks.model import Prediction

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
CPU = torch.device("cpu")


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import corruptions
    import robustness

    return SimpleNamespace(corruptions=corruptions, robustness=robustness)


def pictures(count: int = 8, size: int = 32) -> np.ndarray:
    """A grey square off the middle, on black."""
    images = np.zeros((count, 1, size, size), np.uint8)
    images[:, :, 8:16, 10:18] = 200
    return images


def test_every_corruption_changes_pictures_and_more_so_each_time(benchmarks: SimpleNamespace) -> None:
    images = pictures()
    for kind in benchmarks.corruptions.CORRUPTIONS:
        far = []
        for severity in range(1, 6):
            worse = benchmarks.corruptions.corrupted(images, kind, severity, CPU)
            assert worse.dtype == np.uint8
            assert worse.shape == images.shape
            far.append(float(np.abs(worse.astype(int) - images).mean()))
        assert far[0] > 0, kind
        assert far == sorted(far), kind


def test_a_shift_goes_into_each_corner_whole(benchmarks: SimpleNamespace) -> None:
    moved = benchmarks.corruptions.corrupted(pictures(4), "shift", 3, CPU)
    corners = [tuple(np.argwhere(one[0])[0]) for one in moved]
    assert corners == [(11, 13), (5, 13), (11, 7), (5, 7)]
    assert (moved.sum((1, 2, 3)) == 64 * 200).all()


def test_noise_is_the_same_every_time_and_another_for_each_batch(benchmarks: SimpleNamespace) -> None:
    images = np.full((benchmarks.corruptions.BATCH + 1, 1, 4, 4), 128, np.uint8)
    one, two = (benchmarks.corruptions.corrupted(images, "noise", 5, CPU) for _ in range(2))
    assert (one == two).all()
    assert (one[0] != one[-1]).any()


class Linear(nn.Module):
    """Two classes: is the left half lighter than the right?"""

    def forward(self, images: torch.Tensor) -> Prediction:
        left, right = images[..., :2].mean((1, 2, 3)), images[..., 2:].mean((1, 2, 3))
        logit = torch.stack([left, right], 1)
        return Prediction(logit[:, :, None], logit)


@pytest.mark.parametrize("steps", [1, 20])
def test_an_attack_stays_within_reach_and_turns_the_answer(benchmarks: SimpleNamespace, steps: int) -> None:
    images = torch.full((3, 1, 4, 4), 0.5)
    images[..., :2] += 0.04  # in favour of class 0, by 0.04 / std
    plain = Preprocessing(mean=(0.0,), std=(1.0,))
    labels = torch.zeros(3, dtype=torch.long)
    for epsilon, fooled in ((0.015, False), (0.025, True)):
        changed = benchmarks.corruptions.attacked(Linear(), images, labels, plain, epsilon, steps)
        assert (changed - images).abs().max() <= epsilon + 1e-6
        assert (Linear()(changed).activation.argmax(1) == 1).all() == fooled


def test_what_was_wrong_before_counts_as_wrong_under_any_attack(benchmarks: SimpleNamespace) -> None:
    images = np.full((2, 1, 4, 4), 128, np.uint8)
    images[..., 2:] += 100
    found = list(
        benchmarks.corruptions.fooled(Linear(), images, np.array([0, 1]), Preprocessing(mean=(0.0,), std=(1.0,)), CPU)
    )
    assert len(found) == 2 * len(benchmarks.corruptions.EPSILONS)
    assert all(wrong[0] for _, _, wrong in found)
    assert not found[0][2][1]


def answers(probability: list[float], right: list[bool]) -> tuple[Answers, np.ndarray]:
    both = np.array([[p, 1 - p] for p in probability])
    return Answers(both.astype(np.float32), both), np.where(right, 0, 1)


def test_rejection_and_calibration_are_what_they_say(benchmarks: SimpleNamespace) -> None:
    sample = answers([0.99, 0.9, 0.8, 0.6], [True, True, False, False])
    found = benchmarks.robustness.rejection(*sample)
    assert found["error"][0] == 0.5
    assert found["error"][-1] == 0.0  # half of them kept
    assert found["aurc"] == pytest.approx((0 + 0 + 1 / 3 + 1 / 2) / 4)
    bins = benchmarks.robustness.calibration(*sample)["bins"]
    assert [one["images"] for one in bins] == [1, 1, 1, 1]
    assert [one["right"] for one in bins] == [0, 0, 1, 1]


def test_results_with_other_settings_are_not_overwritten(
    benchmarks: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "robustness.json"
    file.write_text(json.dumps({"dataset": "mnist", "split": None, "limit": None, "attacked": 1000, "results": []}))
    before = file.read_bytes()
    monkeypatch.setattr(
        sys, "argv", ["robustness.py", "mnist", "--dataset", "mnist", "--limit", "9", "--json", str(file)]
    )
    with pytest.raises(SystemExit) as ended:
        benchmarks.robustness.main()
    assert ended.value.code == 2 and "name another --json" in capsys.readouterr().err and file.read_bytes() == before
