"""What training minimises."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from qcn.errors import UsageError
from qcn.names import Loss
from qcn.networks.model import Prediction

TEMPERATURE = 4.0  # of distillation, at which small probabilities of a teacher still say something
TAUGHT = 0.9  # the share of the teachers in the loss; the labels have the rest
Mixed = tuple[Tensor, Tensor]  # labels [B] of the images laid over a batch's, and their shares [B]


def spread_loss(activation: Tensor, label: Tensor, margin: float | Tensor) -> Tensor:
    """Σ over wrong classes i of max(0, m − (a_t − a_i))²: activation [B, J], label [B] -> [B]."""
    target = activation.gather(1, label[:, None])
    shortfall = F.relu(margin - (target - activation)).square()
    # The target's own term is m², a constant: leave it out by subtracting it.
    return shortfall.sum(1) - margin**2


def check_prediction(prediction: Prediction, classes: int) -> None:
    """Require one logit per class of a network of the user's."""
    if not isinstance(prediction, Prediction):
        raise UsageError(
            f"a network returns a qcn.networks.model.Prediction, not a {type(prediction).__name__}: docs/ideas.md"
        )
    shape = prediction.logit.shape
    if len(shape) != 2 or shape[1] != classes:
        raise UsageError(
            f"a network returns one logit per image and class, here [B, {classes}], not {list(shape)}: docs/ideas.md"
        )


def loss_of(
    prediction: Prediction,
    label: Tensor,
    loss: Loss,
    margin: float | Tensor,
    smoothing: float = 0.0,
    mixed: Mixed | None = None,
) -> Tensor:
    """The training loss of a batch, a scalar; `mixed` names other labels in its images, and how much of each."""
    if mixed:
        other, share = mixed
        parts = [_each(prediction, of, loss, margin, smoothing) for of in (label, other)]
        return (parts[0] + share * (parts[1] - parts[0])).mean()
    return _each(prediction, label, loss, margin, smoothing).mean()


def _each(prediction: Prediction, label: Tensor, loss: Loss, margin: float | Tensor, smoothing: float) -> Tensor:
    """The loss of each image, [B]."""
    if loss == "spread":
        return spread_loss(prediction.activation, label, margin)
    return F.cross_entropy(prediction.logit, label, reduction="none", label_smoothing=smoothing)


def direction_loss(pose: Tensor, label: Tensor, view: Tensor) -> Tensor:
    """1 − cos(pose of the true class, direction of view): pose [B, classes, 3], label [B], view [B, 3] -> [B].

    `view` is azimuth and elevation in radians, and the symmetry of the class: n-fold counts from the nearest equivalent
    azimuth, and 0, for an image without a direction, adds nothing (`qcn.direction`).
    """
    azimuth, elevation, symmetry = view.unbind(1)
    own = pose.float()[torch.arange(len(label), device=label.device), label]  # [B, 3]
    with torch.no_grad():
        step = 2 * math.pi / symmetry.clamp_min(1)
        azimuth = azimuth + step * ((torch.atan2(own[:, 1], own[:, 0]) - azimuth) / step).round()
        level = elevation.cos()
        target = torch.stack([level * azimuth.cos(), level * azimuth.sin(), elevation.sin()], 1)
    return (symmetry > 0) * (1 - (F.normalize(own, dim=1, eps=1e-6) * target).sum(1))


def softened(prediction: Prediction) -> Tensor:
    """The probabilities [B, classes] that distillation compares."""
    return (prediction.logit.float() / TEMPERATURE).softmax(1)


def distillation(loss: Tensor, prediction: Prediction, taught: Tensor) -> Tensor:
    """The loss by the labels, and how far the answers are from what was `taught` [B, classes] (Hinton et al. 2015)."""
    own = (prediction.logit.float() / TEMPERATURE).log_softmax(1)  # the logarithm of `softened`, for any logits
    distance = F.kl_div(own, taught, reduction="batchmean")
    return (1 - TAUGHT) * loss + TAUGHT * TEMPERATURE**2 * distance
