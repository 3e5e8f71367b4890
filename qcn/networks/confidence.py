"""From logits to an answer: how likely each class is, and whether the network knows such pictures. No torch here.

A logit says how well the parts of an object agree, not how often the answer is right. The probability of a class is the
softmax of z / T, and the temperature T is what makes the validation images most likely, found when a run ends. The
expected calibration error says how far such probabilities are from how often the answers are right, on average.

A softmax always prefers some class, whatever it is shown. A score that falls on pictures unlike those of training, and
a threshold that most right answers on validation images reach, tell such pictures: an answer below it is "unknown".

libqcn (deploy/src/answer.cpp) and the page (its answers.js) do the same; tests/answers.json holds all to it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from qcn.errors import CheckFailed, UsageError

BINS = 15  # of confidence, for the calibration error
COLDEST, HOTTEST = 0.05, 20.0
KEEP = 0.95  # of right answers, unless asked otherwise
FEWEST = 20  # right answers on validation images, to take a threshold from

Logits = NDArray[np.floating]  # [B, classes]
ScoreName = Literal["probability", "logit", "energy"]


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


@dataclass(frozen=True)
class Known:
    """When an answer counts as known: its `score` is at least `threshold`.

    keep              the share of right answers on validation images that the threshold keeps
    auroc             how well the score separates validation images from the unlike pictures that it was chosen on:
                      the share of pairs in which the validation image has the larger one
    false_positives   the share of those unlike pictures that count as known
    """

    score: ScoreName
    threshold: float
    keep: float
    auroc: float
    false_positives: float

    def __post_init__(self) -> None:
        if self.score not in get_args(ScoreName):
            raise UsageError(f"a score is one of {', '.join(get_args(ScoreName))}, not '{self.score}'")
        if not math.isfinite(self.threshold):
            raise UsageError(f"the threshold of a score must be finite, not {self.threshold}")
        if not 0 < self.keep < 1:
            raise UsageError(f"the share of right answers to keep lies between 0 and 1, not {self.keep}")
        for name in ("auroc", "false_positives"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} is from 0 to 1, not {getattr(self, name)}")


def temperature_of(confidence: Confidence | None) -> float:
    """1 where it was not measured."""
    return confidence.temperature if confidence else 1.0


def check_finite(logit: Logits, of: str) -> None:
    """Refuse NaN and infinite answers."""
    if not np.isfinite(logit).all():
        raise CheckFailed(f"{of} returned NaN or an infinite number, not an answer")


def order(logit: Logits) -> NDArray[np.int64]:
    """The classes [B, classes] by their logits, largest first; of equal ones the first in the list comes first."""
    return np.argsort(-logit, axis=1, kind="stable")


def probabilities(logit: Logits, temperature: float) -> NDArray[np.float64]:
    """[B, classes]."""
    powers = np.exp(_above_largest(logit) / temperature)
    shares: NDArray[np.float64] = powers / powers.sum(1, keepdims=True)
    return shares


def _above_largest(logit: Logits) -> NDArray[np.float64]:
    wide = logit.astype(np.float64)
    return wide - wide.max(1, keepdims=True)


def energy(logit: Logits) -> NDArray[np.float64]:
    """ln Σ exp z, [B] (Liu et al. 2020, "Energy-based Out-of-distribution Detection", with the sign turned)."""
    result: NDArray[np.float64] = logit.max(1).astype(np.float64) + np.log(np.exp(_above_largest(logit)).sum(1))
    return result


# Of logits [B, classes] and a temperature, [B]; the larger, the more like the pictures of training.
SCORES: dict[ScoreName, Callable[[Logits, float], NDArray[np.float64]]] = {
    "probability": lambda logit, temperature: probabilities(logit, temperature).max(1),
    "logit": lambda logit, temperature: logit.max(1).astype(np.float64),
    "energy": lambda logit, temperature: energy(logit),
}


def is_known(logit: Logits, temperature: float, known: Known | None) -> NDArray[np.bool_]:
    """[B]; a network without a threshold knows everything."""
    if known is None:
        return np.ones(len(logit), np.bool_)
    return SCORES[known.score](logit, temperature) >= known.threshold


def fit_confidence(logit: Logits, labels: NDArray[np.integer]) -> Confidence:
    """The temperature at which these labels are most likely, by golden-section search over its logarithm.

    As Platt does, one label in N + 2 counts as wrong. Otherwise a network that errs on none of N images would be
    certain of everything.
    """
    above = _above_largest(logit)
    wrong = 1 / (len(labels) + 2)

    def surprise(heat: float) -> float:
        scaled = above / np.exp(heat)
        likely = scaled - np.log(np.exp(scaled).sum(1, keepdims=True))
        true = likely[np.arange(len(labels)), labels]
        others = (likely.sum(1) - true) / (likely.shape[1] - 1)
        return float(-((1 - wrong) * true + wrong * others).mean())

    low, high, ratio = np.log(COLDEST), np.log(HOTTEST), (5**0.5 - 1) / 2
    for _ in range(60):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if surprise(left) <= surprise(right) else (left, high)
    temperature = float(np.exp((low + high) / 2))
    return Confidence(temperature, calibration_error(probabilities(logit, temperature), labels))


def fit_known(
    logit: Logits, labels: NDArray[np.integer], unlike: Mapping[str, Logits], temperature: float, keep: float = KEEP
) -> Known | None:
    """The score that best tells validation images from `unlike` pictures, and the threshold that keeps right answers.

    `unlike` has the logits of pictures of other things, by kind; every kind counts the same. None where there are fewer
    than FEWEST right answers.
    """
    right = logit.argmax(1) == labels
    if right.sum() < FEWEST:
        return None
    separation = {
        name: float(np.mean([auroc(score(logit, temperature), score(one, temperature)) for one in unlike.values()]))
        for name, score in SCORES.items()
    }
    best = max(separation, key=lambda name: separation[name])  # of equal ones the first
    score = SCORES[best]
    threshold = keeping(score(logit[right], temperature), keep)
    false_positives = float(np.mean([(score(one, temperature) >= threshold).mean() for one in unlike.values()]))
    return Known(best, threshold, keep, separation[best], false_positives)


def keeping(scores: NDArray[np.float64], keep: float) -> float:
    """The largest threshold that a share `keep` of these scores reaches.

    It lies midway between the smallest score that is kept and the next one below, as far as can be from both: another
    backend, which rounds differently, comes to the same answer.
    """
    values, counts = np.unique(scores, return_counts=True)
    at_least = counts[::-1].cumsum()[::-1]  # scores that are not below each value
    place = int(np.flatnonzero(at_least >= keep * len(scores) - 1e-9)[-1])
    threshold = float(values[place])
    if place:
        return (float(values[place - 1]) + threshold) / 2
    gap = float(values[1]) - threshold if len(values) > 1 else 0.0  # all are kept: as far below as the next is above
    return threshold - max(gap, 1e-6 * max(1.0, abs(threshold))) / 2


def auroc(inside: NDArray[np.floating], outside: NDArray[np.floating]) -> float:
    """The share of pairs of one of each in which the one from `inside` is larger; equal ones count half."""
    _, index, counts = np.unique(np.concatenate([inside, outside]), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[index]
    above = ranks[: len(inside)].sum() - len(inside) * (len(inside) + 1) / 2
    return float(above / (len(inside) * len(outside)))


def calibration_error(probability: NDArray[np.floating], labels: NDArray[np.integer]) -> float:
    """The distance between confidence and accuracy, averaged over fifteen equal bins of confidence."""
    sure, right = probability.max(1), probability.argmax(1) == labels
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    off = [abs(float(sure[bins == one].sum() - right[bins == one].sum())) for one in range(BINS)]
    return sum(off) / max(1, len(labels))
