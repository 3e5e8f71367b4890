"""What training minimises, and the margin of the spread loss over a run."""

import math
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from qcn.model import Prediction

Loss = Literal["spread", "ce"]
MarginSchedule = Literal["paper", "scaled"]


def spread_loss(activation: Tensor, label: Tensor, margin: float) -> Tensor:
    """Σ over wrong classes i of max(0, m − (a_t − a_i))², averaged over the batch: activation [B, J], label [B]."""
    target = activation.gather(1, label[:, None])
    shortfall = F.relu(margin - (target - activation)).square()
    # The target's own term is m², a constant: leave it out by subtracting it.
    return (shortfall.sum(1) - margin**2).mean()


def margin_at(schedule: MarginSchedule, step: int, total_steps: int) -> float:
    """The margin m at a step: the paper's, which needs 303,000 steps to reach 0.9, or linear over 60 % of this run."""
    if schedule == "paper":
        m = 0.2 + 0.79 / (1 + math.exp(-min(10.0, step / 50_000 - 4)))
        return min(m, 0.9)
    return 0.2 + 0.7 * min(1.0, step / max(1, 0.6 * total_steps))


def loss_of(prediction: Prediction, label: Tensor, loss: Loss, margin: float) -> Tensor:
    """The training loss of a batch, a scalar."""
    if loss == "spread":
        return spread_loss(prediction.activation, label, margin)
    return F.cross_entropy(prediction.logit, label)
