"""What training minimises."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from qcn.model import Prediction

Loss = Literal["spread", "ce"]


def spread_loss(activation: Tensor, label: Tensor, margin: float) -> Tensor:
    """Σ over wrong classes i of max(0, m − (a_t − a_i))², averaged over the batch: activation [B, J], label [B]."""
    target = activation.gather(1, label[:, None])
    shortfall = F.relu(margin - (target - activation)).square()
    # The target's own term is m², a constant: leave it out by subtracting it.
    return (shortfall.sum(1) - margin**2).mean()


def loss_of(prediction: Prediction, label: Tensor, loss: Loss, margin: float) -> Tensor:
    """The training loss of a batch, a scalar."""
    if loss == "spread":
        return spread_loss(prediction.activation, label, margin)
    return F.cross_entropy(prediction.logit, label)
