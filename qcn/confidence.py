"""Probabilities from activations. No torch here.

An activation says how well the parts of an object agree, not how often the answer is right. The probability of a class
is the softmax of logit(a) / T (of ln(a) / T for a CNN, whose activations are probabilities already), and the
temperature T is what makes the validation images most likely, found when a run ends. The expected calibration error
says how far such probabilities are from how often the answers are right, on the average.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qcn.errors import UsageError

LEAST = 1e-6  # an activation is kept this far from 0 and 1
BINS = 15  # of confidence, for the calibration error
COLDEST, HOTTEST = 0.05, 20.0


@dataclass(frozen=True)
class Confidence:
    """The temperature of a network, and the expected calibration error with it, both on its validation images."""

    temperature: float
    error: float

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise UsageError(f"temperature must be positive, not {self.temperature}")
        if not 0 <= self.error <= 1:
            raise UsageError(f"a calibration error is from 0 to 1, not {self.error}")


def temperature_of(confidence: Confidence | None) -> float:
    """1 where it was not measured."""
    return confidence.temperature if confidence else 1.0


def probabilities(activation: NDArray[np.floating], temperature: float, poses: bool) -> NDArray[np.float64]:
    """[B, classes] of activations [B, classes]; `poses` says whether they are of capsules, and not a CNN's."""
    return _softmax(scores(activation, poses) / temperature)


def scores(activation: NDArray[np.floating], poses: bool) -> NDArray[np.float64]:
    """What the temperature divides."""
    kept = activation.astype(np.float64).clip(LEAST, 1 - LEAST)
    found: NDArray[np.float64] = np.log(kept) - (np.log1p(-kept) if poses else 0.0)
    return found


def fit_confidence(activation: NDArray[np.floating], labels: NDArray[np.integer], poses: bool) -> Confidence:
    """The temperature at which these labels are most likely, by golden-section search over its logarithm.

    As Platt does, one label in N + 2 counts as wrong. Otherwise a network that errs on none of N images would be
    certain of everything.
    """
    given = scores(activation, poses)
    wrong = 1 / (len(labels) + 2)

    def surprise(heat: float) -> float:
        likely = np.log(_softmax(given / np.exp(heat)).clip(1e-300))
        true = likely[np.arange(len(labels)), labels]
        others = (likely.sum(1) - true) / (likely.shape[1] - 1)
        return float(-((1 - wrong) * true + wrong * others).mean())

    low, high, ratio = np.log(COLDEST), np.log(HOTTEST), (5**0.5 - 1) / 2
    for _ in range(60):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if surprise(left) <= surprise(right) else (left, high)
    temperature = float(np.exp((low + high) / 2))
    return Confidence(temperature, calibration_error(_softmax(given / temperature), labels))


def calibration_error(probability: NDArray[np.floating], labels: NDArray[np.integer]) -> float:
    """The distance between confidence and accuracy, averaged over fifteen equal bins of confidence."""
    sure, right = probability.max(1), probability.argmax(1) == labels
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    off = [abs(float(sure[bins == one].sum() - right[bins == one].sum())) for one in range(BINS)]
    return sum(off) / max(1, len(labels))


def _softmax(given: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(given - given.max(1, keepdims=True))
    shares: NDArray[np.float64] = powers / powers.sum(1, keepdims=True)
    return shares
