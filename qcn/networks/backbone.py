"""A network on a pretrained backbone, as two parts: the features of an image, and what is made of them.

The backbone is `network.backbone` or, of a QCN, `network.extractor.backbone`; such an extractor has `capsules`, and any
other such network `features` and `answer` (`qcn.networks.lite0` has one of each).
"""

from typing import Any

from torch import Tensor, nn

from qcn.networks.model import Prediction


def backbone_of(network: nn.Module) -> nn.Module | None:
    """The pretrained part of a network; None if it has none."""
    backbone = getattr(getattr(network, "extractor", network), "backbone", None)
    return backbone if isinstance(backbone, nn.Module) else None


def features_of(network: Any, image: Tensor) -> Tensor:
    """What the backbone of a network makes of images: [B, in, H, W] -> [B, …]."""
    features: Tensor = network.extractor.backbone(image) if hasattr(network, "extractor") else network.features(image)
    return features


class Head(nn.Module):
    """The rest of a network: features [B, …] -> the answer."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network: Any = network

    def forward(self, features: Tensor) -> Prediction:
        network = self.network
        if hasattr(network, "extractor"):
            return network.routed(*network.extractor.capsules(features))
        answer: Prediction = network.answer(features)
        return answer
