"""From logits to an answer: probabilities, temperatures, calibration errors, and what counts as known."""

import json
from pathlib import Path

import numpy as np
import pytest

from qcn.confidence import (
    Confidence,
    Known,
    calibration_error,
    check_finite,
    fit_confidence,
    is_known,
    order,
    probabilities,
)
from qcn.errors import CheckFailed, UsageError

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
