"""The spread loss, and distillation."""

import pytest
import torch

from qcn.errors import UsageError
from qcn.networks.model import Prediction
from qcn.train.losses import TAUGHT, TEMPERATURE, check_prediction, distillation, loss_of, spread_loss


def test_spread_loss_is_the_papers_sum() -> None:
    activation = torch.tensor([[0.9, 0.5, 0.1], [0.2, 0.3, 0.8]])
    # Image 0 (class 0): 0.7-0.4=0.3, 0.7-0.8<0. Image 1 (class 0): 0.7+0.1=0.8, 0.7+0.6=1.3.
    expected = (0.3**2 + 0 + 0.8**2 + 1.3**2) / 2
    got = spread_loss(activation, torch.tensor([0, 0]), 0.7).mean()
    torch.testing.assert_close(got, torch.tensor(expected))


def test_spread_loss_is_zero_when_the_margin_is_met() -> None:
    activation = torch.tensor([[0.95, 0.05]])
    assert spread_loss(activation, torch.tensor([0]), 0.9).abs() < 1e-6


def test_distillation_is_hintons() -> None:
    logit, teacher = torch.tensor([[1.0, -2.0, 0.5]]), torch.tensor([[3.0, 0.0, -1.0]])
    p, q = ((scores / TEMPERATURE).softmax(1) for scores in (teacher, logit))
    expected = (1 - TAUGHT) * 2.0 + TAUGHT * TEMPERATURE**2 * (p * (p / q).log()).sum()
    got = distillation(torch.tensor(2.0), Prediction(logit[..., None], logit), p)
    torch.testing.assert_close(got, expected)


def test_distillation_of_a_network_that_is_sure_is_finite() -> None:
    logit = torch.tensor([[5000.0, 0.0]], requires_grad=True)
    loss = distillation(torch.tensor(2.0), Prediction(logit[..., None], logit), torch.full((1, 2), 0.5))
    loss.backward()
    assert loss.isfinite() and logit.grad is not None and logit.grad.isfinite().all()


def test_a_network_that_returns_something_else_is_told_what_to_return() -> None:
    logit = torch.randn(2, 3)
    check_prediction(Prediction(logit[..., None], logit), 3)
    with pytest.raises(UsageError, match=r"returns a qcn\.networks\.model\.Prediction, not a Tensor: docs/ideas\.md"):
        check_prediction(logit, 3)  # type: ignore[arg-type]
    for wrong in (logit[:, :2], logit[:, 0], logit[..., None]):
        with pytest.raises(UsageError, match=r"one logit per image and class, here \[B, 3\], not \[2"):
            check_prediction(Prediction(logit[..., None], wrong), 3)


def test_a_confident_mistake_still_teaches() -> None:
    """Beyond a logit of 13.8 the activation was clipped, and no gradient flowed."""
    logit = torch.tensor([[25.0, 30.0]], requires_grad=True)
    loss_of(Prediction(logit[..., None], logit), torch.tensor([0]), "ce", 0.9).backward()
    assert logit.grad is not None and logit.grad[0, 0] < -0.99 and logit.grad[0, 1] > 0.99
