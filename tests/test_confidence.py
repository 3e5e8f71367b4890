"""Temperatures and calibration errors."""

import numpy as np
import pytest

from qcn.confidence import Confidence, calibration_error, fit_confidence, probabilities, scores
from qcn.errors import UsageError

RNG = np.random.default_rng(0)


def sample(temperature: float, count: int = 20000) -> tuple[np.ndarray, np.ndarray]:
    """Activations whose labels are drawn with the probabilities that this temperature gives them."""
    activation = 1 / (1 + np.exp(-RNG.normal(0, 2, (count, 5))))
    likely = probabilities(activation, temperature, poses=True)
    labels = (likely.cumsum(1) < RNG.random((count, 1))).sum(1)
    return activation, labels


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_the_temperature_that_the_labels_were_drawn_with_is_found(temperature: float) -> None:
    found = fit_confidence(*sample(temperature), poses=True)
    assert found.temperature == pytest.approx(temperature, rel=0.05) and found.error < 0.02


def test_a_wrong_temperature_has_a_larger_calibration_error() -> None:
    activation, labels = sample(4.0)
    right, wrong = (calibration_error(probabilities(activation, t, poses=True), labels) for t in (4.0, 0.5))
    assert wrong > 5 * right


def test_a_cnns_activations_are_probabilities_at_temperature_one() -> None:
    likely = RNG.dirichlet(np.ones(4), 10)
    assert np.allclose(probabilities(likely, 1.0, poses=False), likely, atol=1e-4)


def test_certain_answers_stay_finite() -> None:
    certain = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert np.isfinite(scores(certain, poses=True)).all()
    assert np.allclose(probabilities(certain, 1.0, poses=True).sum(1), 1)
    assert 0 < fit_confidence(certain, np.array([0, 1]), poses=True).temperature < np.inf


def test_a_network_that_was_never_wrong_is_not_certain_of_everything() -> None:
    """No error among 200 images says that there may be one in 200, and not that there is none."""
    labels = np.arange(200) % 5
    activation = np.full((200, 5), 0.2)
    activation[np.arange(200), labels] = 0.8
    found = fit_confidence(activation, labels, poses=True)
    sure = probabilities(activation, found.temperature, poses=True).max(1)
    assert sure.max() < 0.999
    assert sure.min() > 0.98


def test_what_makes_no_sense_is_refused() -> None:
    for temperature, error in ((0.0, 0.1), (-1.0, 0.1), (1.0, 1.5)):
        with pytest.raises(UsageError):
            Confidence(temperature, error)
