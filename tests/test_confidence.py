"""From logits to an answer: probabilities, temperatures, calibration errors, and what counts as known."""

import json
from pathlib import Path

import numpy as np
import pytest

from qcn.errors import CheckFailed, UsageError
from qcn.networks.confidence import (
    FEWEST,
    SCORES,
    Confidence,
    Known,
    auroc,
    calibration_error,
    check_finite,
    fit_confidence,
    fit_known,
    is_known,
    keeping,
    order,
    probabilities,
)

RNG = np.random.default_rng(0)
CASES = json.loads((Path(__file__).parent / "answers.json").read_text(encoding="utf-8"))["cases"]


def sample(temperature: float, count: int = 20000) -> tuple[np.ndarray, np.ndarray]:
    """Logits whose labels are drawn with the probabilities that this temperature gives them."""
    logit = RNG.normal(0, 2, (count, 5))
    labels = (probabilities(logit, temperature).cumsum(1) < RNG.random((count, 1))).sum(1)
    return logit, labels


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_shared_cases(case: dict) -> None:
    """libqcn (deploy/tests) and the page (tests/export/test_web.py) are tested on the same ones."""
    logit = np.array([case["logit"]], np.float32)
    assert order(logit)[0].tolist() == case["order"]
    np.testing.assert_allclose(probabilities(logit, case["temperature"])[0], case["probability"], rtol=0, atol=1e-6)
    known = Known(**case["known"]) if case["known"] else None
    assert is_known(logit, case["temperature"], known)[0] == case["is_known"]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_the_temperature_that_the_labels_were_drawn_with_is_found(temperature: float) -> None:
    found = fit_confidence(*sample(temperature))
    assert found.temperature == pytest.approx(temperature, rel=0.05) and found.error < 0.02


def test_a_wrong_temperature_has_a_larger_calibration_error() -> None:
    logit, labels = sample(4.0)
    right, wrong = (calibration_error(probabilities(logit, t), labels) for t in (4.0, 0.5))
    assert wrong > 5 * right


def test_saturated_logits_stay_apart() -> None:
    """Their activations are all 1 in float32; by these, classes would tie."""
    logit = np.array([[30.0, 40.0, 35.0]], np.float32)
    assert (1 / (1 + np.exp(-logit)) == 1).all()
    assert order(logit)[0].tolist() == [1, 2, 0]
    assert probabilities(logit, 1.0)[0, 1] == pytest.approx(1 / (1 + np.exp(-5.0) + np.exp(-10.0)))


def test_certain_answers_stay_finite() -> None:
    certain = np.array([[5000.0, 0.0, 0.0], [0.0, 0.0, -5000.0]], np.float32)
    assert np.allclose(probabilities(certain, 1.0).sum(1), 1)
    assert 0 < fit_confidence(certain, np.array([1, 1])).temperature < np.inf


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_no_answer(odd: float) -> None:
    with pytest.raises(CheckFailed, match="libqcn returned NaN or an infinite number, not an answer"):
        check_finite(np.array([[1.0, odd]], np.float32), "libqcn")


def test_a_network_that_was_never_wrong_is_not_certain_of_everything() -> None:
    """No error among 200 images says that there may be one in 200, and not that there is none."""
    labels = np.arange(200) % 5
    logit = np.full((200, 5), -1.5)
    logit[np.arange(200), labels] = 1.5
    sure = probabilities(logit, fit_confidence(logit, labels).temperature).max(1)
    assert sure.max() < 0.999
    assert sure.min() > 0.98


def test_what_makes_no_sense_is_refused() -> None:
    for temperature, error in ((0.0, 0.1), (-1.0, 0.1), (1.0, 1.5)):
        with pytest.raises(UsageError):
            Confidence(temperature, error)
    for change in ({"score": "loudness"}, {"threshold": np.nan}, {"keep": 1.0}, {"auroc": -0.1}):
        with pytest.raises(UsageError):
            Known(**{"score": "energy", "threshold": 1.0, "keep": 0.95, "auroc": 0.9, "false_positives": 0.2, **change})


def test_auroc_counts_pairs() -> None:
    inside, outside = np.array([0.9, 0.5, 0.5]), np.array([0.5, 0.1])
    pairs = [(a > b) + 0.5 * (a == b) for a in inside for b in outside]
    assert auroc(inside, outside) == pytest.approx(float(np.mean(pairs)))


@pytest.mark.parametrize("keep", [0.5, 0.55, 0.95, 0.99, 0.999])
@pytest.mark.parametrize("count", [1, 2, 20, 100, 1000])
@pytest.mark.parametrize("step", [0.0, 0.25, 1e-6])
def test_a_threshold_keeps_as_many_as_it_is_asked_to_and_no_more(keep: float, count: int, step: float) -> None:
    """`step` makes ties. The next larger score as a threshold would keep too few."""
    scores = RNG.normal(5, 3, count)
    scores = np.round(scores / step) * step if step else scores
    threshold = keeping(scores, keep)
    kept = np.sort(scores[scores >= threshold])
    assert len(kept) >= keep * count - 1e-9
    assert (scores > kept[0]).sum() < keep * count - 1e-9
    # A score that another backend rounds differently stays on its side.
    assert np.abs(scores - threshold).min() >= 1e-7


def test_equal_scores_are_all_kept() -> None:
    assert keeping(np.ones(30), 0.95) < 1 - 1e-7


def overlapping(largest: float, others: float, count: int = 500) -> np.ndarray:
    """Logits of three classes: the first has about `largest`, the others about `others`."""
    return RNG.normal([largest, others, others], 0.5, (count, 3)).astype(np.float32)


@pytest.mark.parametrize(
    ("unlike", "score"),
    [
        ((8.0, 6.0), "probability"),  # as large a logit, but another class has nearly as much
        ((1.0, -7.0), "logit"),  # as far apart as those of known images, but small
    ],
)
def test_the_score_that_separates_best_is_chosen(unlike: tuple[float, float], score: str) -> None:
    known, labels = overlapping(8.0, 0.0), np.zeros(500, np.int64)
    found = fit_known(known, labels, {"one": overlapping(*unlike), "two": overlapping(*unlike)}, 2.0, 0.9)
    assert found is not None and found.score == score
    assert found.auroc > 0.95 and found.false_positives < 0.1 and found.keep == 0.9
    assert is_known(known, 2.0, found).mean() == pytest.approx(0.9, abs=0.002)


def test_every_kind_of_unlike_pictures_counts_the_same() -> None:
    known, labels = overlapping(8.0, 0.0), np.zeros(500, np.int64)
    unlike = {"many": overlapping(8.0, 0.0, 1000), "few": overlapping(-20.0, -21.0, 10)}
    found = fit_known(known, labels, unlike, 1.0)
    assert found is not None and found.auroc == pytest.approx(0.75, abs=0.02)
    assert found.false_positives == pytest.approx(0.95 / 2, abs=0.02)


def test_equal_separation_takes_the_first_score() -> None:
    known, labels = overlapping(8.0, 0.0), np.zeros(500, np.int64)
    found = fit_known(known, labels, {"one": overlapping(-30.0, -30.0)}, 1.0)
    assert found is not None and found.auroc == 1.0 and found.score == next(iter(SCORES))


def test_wrong_answers_neither_move_the_threshold_nor_count_as_right() -> None:
    known, labels = overlapping(8.0, 0.0), np.zeros(500, np.int64)
    unlike = {"one": overlapping(2.0, 0.0)}
    found = fit_known(known, labels, unlike, 1.0)
    wrong = np.tile(np.array([[-9.0, 1.0, -9.0]], np.float32), (50, 1))
    more = fit_known(np.concatenate([known, wrong]), np.zeros(550, np.int64), unlike, 1.0)
    assert found and more and (found.score, found.threshold) == (more.score, more.threshold)
    few = FEWEST - 1
    assert fit_known(known, np.where(np.arange(500) < few, 0, 1), unlike, 1.0) is None
    assert fit_known(known, np.where(np.arange(500) < FEWEST, 0, 1), unlike, 1.0) is not None
