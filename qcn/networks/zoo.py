"""Every network of the product, by name."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from qcn.data.spec import Preprocessing
from qcn.errors import UsageError, unknown_name
from qcn.names import PRETRAINED
from qcn.networks import baselines, lite0, model, vb

MODELS: dict[str, Callable[..., nn.Module]] = {
    "qcn": model.qcn,
    "qcn-unbranched": model.qcn_unbranched,
    "qcn-deep": model.qcn_deep,
    "qcn-tiny": model.qcn_tiny,
    "qcn-lite0": lite0.qcn_lite0,
    "em": baselines.em,
    "em-branched": baselines.em_branched,
    "em-unbranched": baselines.em_unbranched,
    "vb": vb.VBCapsuleNetwork,
    "cnn": baselines.CNN,
    "cnn-small": baselines.cnn_small,
    "cnn-wide": baselines.cnn_wide,
    "cnn-lite0": lite0.Lite0CNN,
}


def create(name: str, *, in_channels: int, classes: int, **options: Any) -> nn.Module:
    """A freshly initialised network. Options: `mode` and `iterations` of routing; `size`, for QCNs and CNNs."""
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    if in_channels < 1 or classes < 2:
        raise UsageError(f"a network needs at least 1 channel and 2 classes, not {in_channels} and {classes}")
    return MODELS[name](in_channels, classes, **options)


def for_model(name: str, preprocessing: Preprocessing) -> Preprocessing:
    """The pre-processing of a data set as this network takes it: a pretrained one sees pixels as it did before."""
    if name not in PRETRAINED:
        return preprocessing
    channels = len(preprocessing.mean) or 1
    mean, std = (lite0.MEAN,) * channels, (lite0.STD,) * channels
    return replace(preprocessing, standardise="dataset", mean=mean, std=std)


def parameter_count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())
