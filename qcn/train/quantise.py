"""Quantisation-aware training: layers that round as an int8 plan does, so that their weights learn to bear it.

Inputs are rounded with the plan's scale, weights with 127 steps for the largest of each output channel. Batch norms
stay where they are: they multiply an output channel, and so the weight and its step alike, which leaves the integers
that folding (export/program/lower.py) and quantise.py there make of it as they are here. A gradient goes straight
through the rounding (Bengio et al. 2013), and is nothing where a number is beyond the range.

run.json has the scales: the name of each layer and the scale of its input. Networks are saved and loaded without any of
this.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qcn.errors import UsageError


class QuantisedConv2d(nn.Conv2d):
    """A convolution whose input and weight are rounded to int8."""

    input_scale: float

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(rounded(input, self.input_scale), by_channel(self.weight), self.bias)


class QuantisedLinear(nn.Linear):
    """A linear layer whose input and weight are rounded to int8."""

    input_scale: float

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(rounded(input, self.input_scale), by_channel(self.weight), self.bias)


ROUNDED: dict[type[nn.Module], type[nn.Module]] = {nn.Conv2d: QuantisedConv2d, nn.Linear: QuantisedLinear}


def rounded(x: Tensor, scale: Tensor | float) -> Tensor:
    """The nearest multiple of the scale, from -128 to 127 of them; the gradient is that of the clamping alone."""
    steps = (x / scale).clamp(-128, 127)
    return (steps + (steps.round() - steps).detach()) * scale


def by_channel(weight: Tensor) -> Tensor:
    """A weight [out, …] with 127 steps for the largest number of each output channel."""
    largest = weight.detach().flatten(1).abs().amax(1).view(-1, *[1] * (weight.ndim - 1))
    return rounded(weight, torch.where(largest > 0, largest / 127, torch.ones_like(largest)))


def apply(network: nn.Module, scales: Mapping[str, float]) -> None:
    """Make the layers of these names round, each with the scale of its input."""
    modules = dict(network.named_modules())
    for name, scale in scales.items():
        layer = modules.get(name)
        if layer is None or type(layer) not in ROUNDED:
            raise UsageError(f"the network has no convolution or linear layer '{name}' to quantise")
        layer.__class__ = ROUNDED[type(layer)]
        layer.input_scale = scale
