"""What changes over a run: the learning rate, and the margin of the spread loss. Functions of the step alone."""

import math
from typing import Literal

LearningRateSchedule = Literal["one-cycle", "exponential"]
MarginSchedule = Literal["paper", "scaled"]

WARM_UP = 0.15  # the part of the run in which one cycle's learning rate rises


def learning_rate(schedule: LearningRateSchedule, peak: float, step: int, total_steps: int) -> float:
    """One cycle: up in a line, down along a cosine. Exponential: the paper's decay by 0.96 every 20,000 steps."""
    if schedule == "exponential":
        return float(peak * 0.96 ** (step / 20_000))
    warm_up = WARM_UP * total_steps
    if step < warm_up:
        return peak * (0.04 + 0.96 * step / warm_up)
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1.0, total_steps - warm_up)))


def spread_margin(schedule: MarginSchedule, step: int, total_steps: int) -> float:
    """The paper's margin, which needs 303,000 steps to reach 0.9, or from 0.2 to 0.9 over 60 % of this run."""
    if schedule == "paper":
        return min(0.9, 0.2 + 0.79 / (1 + math.exp(-min(10.0, step / 50_000 - 4))))
    return 0.2 + 0.7 * min(1.0, step / max(1.0, 0.6 * total_steps))
