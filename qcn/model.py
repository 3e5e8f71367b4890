"""The Quaternion Capsule Network, whole: an image goes in at the top of `QCN.forward`, class capsules come out.

B. Özcan, F. Kınlı, F. Kıraç, "Quaternion Capsule Networks", ICPR 2020. Two convolutional branches make poses and
activations of the primary capsules; three convolutional capsule layers and a class capsule layer route them. Each
difference from the paper is explained where it occurs.

Shapes: B images, C capsule types, J parent types, H×W positions, k×k kernel.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qcn.distributed import BatchNorm, mean_over_processes
from qcn.errors import UsageError
from qcn.kernels import obstacle, rotation
from qcn.names import Mode
from qcn.quaternion import rotation_matrix, rotor
from qcn.routing import Kernels, fused, route


class Prediction(NamedTuple):
    """What every network of the product returns."""

    pose: Tensor  # [B, classes, 3]; other networks have poses of other sizes
    activation: Tensor  # [B, classes], in (0, 1); a CNN's are probabilities, whose sum is 1
    logit: Tensor  # [B, classes], the scores that the activations come from, for cross-entropy


@dataclass(frozen=True)
class CapsuleLayer:
    """Size of a convolutional capsule layer: kernel side, stride, parent types."""

    kernel: int
    stride: int
    capsules: int


@dataclass(frozen=True)
class QCNConfig:
    """A QCN's shape. The defaults are the paper's network."""

    in_channels: int
    classes: int
    branched: bool = True
    pose_widths: tuple[int, int] = (32, 64)
    pose_strides: tuple[int, int] = (1, 2)
    activation_width: int = 32
    primary_capsules: int = 32  # the paper says 96; only 32 (96 pose channels) gives its parameter counts
    layers: tuple[CapsuleLayer, ...] = (CapsuleLayer(5, 1, 16),) * 3
    iterations: int = 2
    mode: Mode = "logistic"


class ResidualBlock(nn.Module):
    """Pre-activation residual block: BN, ReLU, 3×3 conv, BN, ReLU, 3×3 conv, plus a 1×1 conv of the activated input."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.norm1 = BatchNorm(in_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm2 = BatchNorm(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.skip = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
        nn.init.kaiming_uniform_(self.conv1.weight, nonlinearity="relu")
        nn.init.kaiming_uniform_(self.conv2.weight, nonlinearity="relu")
        nn.init.xavier_uniform_(self.skip.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[B, in, H, W] -> [B, out, ⌈H/stride⌉, ⌈W/stride⌉]."""
        x = F.relu(self.norm1(x))
        y = self.conv1(x)
        y = self.conv2(F.relu(self.norm2(y)))
        return y + self.skip(x)


class Projection(nn.Sequential):
    """ReLU, 1×1 conv with bias, BN: from features to the channels of the primary capsules."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        conv = nn.Conv2d(in_channels, out_channels, 1)
        nn.init.xavier_uniform_(conv.weight)
        super().__init__(nn.ReLU(), conv, BatchNorm(out_channels))


class BranchedExtractor(nn.Module):
    """Primary capsules from two branches: how a thing is turned and whether it is there are two questions."""

    def __init__(
        self,
        in_channels: int,
        capsules: int,
        pose_size: int,
        pose_widths: tuple[int, int] = (32, 64),
        pose_strides: tuple[int, int] = (1, 2),
        activation_width: int = 32,
    ) -> None:
        super().__init__()
        self.pose_size = pose_size
        self.pose = nn.Sequential(
            ResidualBlock(in_channels, pose_widths[0], pose_strides[0]),
            ResidualBlock(pose_widths[0], pose_widths[1], pose_strides[1]),
            Projection(pose_widths[1], capsules * pose_size),
        )
        self.activation = nn.Sequential(
            ResidualBlock(in_channels, activation_width, stride=2),
            Projection(activation_width, capsules),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, in, H, W] -> pose [B, C, pose_size, ⌈H/2⌉, ⌈W/2⌉], activation [B, C, ⌈H/2⌉, ⌈W/2⌉]."""
        pose = self.pose(x).unflatten(1, (-1, self.pose_size))
        return pose, torch.sigmoid(self.activation(x))


def unbranched_stem(in_channels: int) -> nn.Sequential:
    """The two residual blocks of the paper's ablation, 64 and 96 channels: [B, in, H, W] -> [B, 96, ⌈H/2⌉, ⌈W/2⌉]."""
    return nn.Sequential(ResidualBlock(in_channels, 64, stride=1), ResidualBlock(64, 96, stride=2))


class UnbranchedExtractor(nn.Module):
    """The paper's ablation: poses and activations from one stack of residual blocks."""

    def __init__(self, in_channels: int, capsules: int, pose_size: int) -> None:
        super().__init__()
        self.pose_size = pose_size
        self.stem = unbranched_stem(in_channels)
        self.pose = Projection(96, capsules * pose_size)
        self.activation = Projection(96, capsules)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, in, H, W] -> pose [B, C, pose_size, ⌈H/2⌉, ⌈W/2⌉], activation [B, C, ⌈H/2⌉, ⌈W/2⌉]."""
        x = self.stem(x)
        pose = self.pose(x).unflatten(1, (-1, self.pose_size))
        return pose, torch.sigmoid(self.activation(x))


class RunningRMS(nn.Module):
    """Divides poses by their root mean square: of the batch in training, a running one (a constant) at inference.

    Not in the paper. Averaging votes shrinks poses at every layer; without this the variances of the third layer are
    near 1e-5 and a logistic activation is saturated from the start. It has no parameters.
    """

    running_square: Tensor

    def __init__(self, momentum: float = 0.1) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("running_square", torch.ones(()))

    def forward(self, pose: Tensor) -> Tensor:
        """Any shape, the same shape."""
        if not self.training:
            return pose * self.running_square.rsqrt()
        square = mean_over_processes(pose.square().mean()).clamp_min(1e-12)
        with torch.no_grad():
            self.running_square.lerp_(square.to(self.running_square.dtype), self.momentum)
        return pose * square.rsqrt()


class Rotors(nn.Module):
    """A learnt rotor for each of `shape` (child, parent) pairs, and the two biases of each parent's activation."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.empty(shape).uniform_(-math.pi, math.pi))
        self.axis = nn.Parameter(torch.empty(*shape, 3).uniform_(-1, 1))
        self.beta_u = nn.Parameter(torch.zeros(shape[-1]))
        self.beta_a = nn.Parameter(torch.zeros(shape[-1]))

    def forward(self, kernels: Kernels) -> Tensor:
        """Their rotation matrices [*shape, 3, 3]."""
        if fused(kernels, self.theta, self.theta.shape[-1]):
            return rotation(self.theta, self.axis)
        return rotation_matrix(rotor(self.theta, self.axis))


class ConvCapsules(nn.Module):
    """A capsule layer whose parents each see a k×k window of children; no padding."""

    kernels: Kernels = "auto"

    def __init__(self, capsules_in: int, layer: CapsuleLayer, iterations: int, mode: Mode) -> None:
        super().__init__()
        self.kernel, self.stride = layer.kernel, layer.stride
        self.iterations, self.mode = iterations, mode
        self.rotors = Rotors(layer.kernel, layer.kernel, capsules_in, layer.capsules)

    def forward(self, pose: Tensor, activation: Tensor) -> tuple[Tensor, Tensor]:
        """pose [B, C, 3, H, W], activation [B, C, H, W] -> pose [B, J, 3, H', W'], activation [B, J, H', W']."""
        return route(
            pose,
            activation,
            self.rotors(self.kernels),
            self.rotors.beta_u,
            self.rotors.beta_a,
            window=(self.kernel, self.kernel),
            stride=self.stride,
            iterations=self.iterations,
            mode=self.mode,
            kernels=self.kernels,
        )


class ClassCapsules(nn.Module):
    """The last layer: one parent per class, children from all positions, one rotor per (child type, class) pair."""

    kernels: Kernels = "auto"

    def __init__(self, capsules_in: int, classes: int, iterations: int, mode: Mode) -> None:
        super().__init__()
        self.iterations, self.mode = iterations, mode
        self.rotors = Rotors(capsules_in, classes)

    def forward(self, pose: Tensor, activation: Tensor) -> tuple[Tensor, Tensor]:
        """pose [B, C, 3, H, W], activation [B, C, H, W] -> pose [B, classes, 3], activation [B, classes]."""
        pose, activation = route(
            pose,
            activation,
            self.rotors(self.kernels)[None, None],
            self.rotors.beta_u,
            self.rotors.beta_a,
            window=(pose.shape[-2], pose.shape[-1]),
            iterations=self.iterations,
            mode=self.mode,
            kernels=self.kernels,
        )
        return pose.flatten(2), activation.flatten(1)


def choose_kernels(network: nn.Module, kernels: Kernels) -> None:
    """Have the capsule layers of a network route by these kernels from now on. Other layers are left alone."""
    for module in network.modules():
        if isinstance(module, (ConvCapsules, ClassCapsules)):
            module.kernels = kernels


def slow_because(network: nn.Module) -> str:
    """Why `auto` finds no fused kernel for a capsule layer of this network; empty if it finds one for each."""
    for module in network.modules():
        if isinstance(module, (ConvCapsules, ClassCapsules)) and module.kernels == "auto":
            beta = module.rotors.beta_u
            if why := obstacle(beta.device.type, beta.dtype, len(beta)):
                return why
    return ""


class QCN(nn.Module):
    """The Quaternion Capsule Network of `config`."""

    def __init__(self, config: QCNConfig) -> None:
        super().__init__()
        self.config = config
        self.in_channels, self.classes = config.in_channels, config.classes
        self.extractor: nn.Module
        if config.branched:
            self.extractor = BranchedExtractor(
                config.in_channels,
                config.primary_capsules,
                3,
                config.pose_widths,
                config.pose_strides,
                config.activation_width,
            )
        else:
            self.extractor = UnbranchedExtractor(config.in_channels, config.primary_capsules, 3)
        capsules = [config.primary_capsules, *(layer.capsules for layer in config.layers)]
        self.layers = nn.ModuleList(
            ConvCapsules(capsules_in, layer, config.iterations, config.mode)
            for capsules_in, layer in zip(capsules, config.layers, strict=False)
        )
        self.scales = nn.ModuleList(RunningRMS() for _ in config.layers)
        self.class_capsules = ClassCapsules(capsules[-1], config.classes, config.iterations, config.mode)

    @property
    def smallest_input(self) -> int:
        """The smallest image side that leaves one position after the last convolutional capsule layer."""
        # The extractor halves, rounding up: as a convolution of stride 2 with a kernel of 1 does.
        return smallest_input([(1, 2), *((layer.kernel, layer.stride) for layer in self.config.layers)])

    def forward(self, image: Tensor) -> Prediction:
        """[B, in_channels, H, W] -> class poses [B, classes, 3], activations and logits [B, classes]."""
        check_input(image, self.in_channels, self.smallest_input)
        pose, activation = self.extractor(image)
        pose, activation = at_least_single(pose), at_least_single(activation)
        with torch.autocast(image.device.type, enabled=False):
            for layer, scale in zip(self.layers, self.scales, strict=True):
                pose, activation = layer(pose, activation)
                pose = scale(pose)
            pose, activation = self.class_capsules(pose, activation)
            return Prediction(pose, activation, torch.logit(activation, eps=1e-6))


def at_least_single(x: Tensor) -> Tensor:
    """Half precision to float32, for routing: it takes logarithms of variances. Wider types stay as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def smallest_input(layers: list[tuple[int, int]]) -> int:
    """The smallest image side that leaves one position after unpadded layers of these (kernel, stride), in order."""
    side = 1
    for kernel, stride in reversed(layers):
        side = (side - 1) * stride + kernel
    return side


def check_input(image: Tensor, channels: int, smallest: int) -> None:
    """Refuse an image batch that does not fit the network, and say what would fit."""
    if image.ndim != 4 or image.shape[1] != channels:
        raise UsageError(f"the network takes images [B, {channels}, H, W], not {list(image.shape)}")
    if min(image.shape[2:]) < smallest:
        height, width = image.shape[2:]
        raise UsageError(f"images of {height}×{width} are too small for this network: at least {smallest}×{smallest}")


def qcn(in_channels: int, classes: int, mode: Mode = "logistic", iterations: int = 2) -> QCN:
    """The paper's network."""
    return QCN(QCNConfig(in_channels, classes, mode=mode, iterations=iterations))


def qcn_unbranched(in_channels: int, classes: int, mode: Mode = "logistic", iterations: int = 2) -> QCN:
    """The paper's ablation: one stack of residual blocks instead of two branches."""
    return QCN(QCNConfig(in_channels, classes, branched=False, mode=mode, iterations=iterations))


def qcn_tiny(in_channels: int, classes: int, mode: Mode = "logistic", iterations: int = 2) -> QCN:
    """The same operator, small enough to train on two CPU cores in two or three minutes."""
    return QCN(
        QCNConfig(
            in_channels,
            classes,
            pose_widths=(24, 48),
            pose_strides=(2, 1),  # halved first: most of the convolutions then cost a quarter
            activation_width=24,
            primary_capsules=8,
            layers=(CapsuleLayer(3, 2, 8), CapsuleLayer(3, 2, 8)),
            mode=mode,
            iterations=iterations,
        )
    )
