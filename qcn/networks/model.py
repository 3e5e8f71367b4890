"""The Quaternion Capsule Network, whole: an image goes in at the top of `QCN.forward`, class capsules come out.

B. Özcan, F. Kınlı, F. Kıraç, "Quaternion Capsule Networks", ICPR 2020. Two convolutional branches make poses and
activations of the primary capsules; three convolutional capsule layers and a class capsule layer route them. Each
difference from the paper is explained where it occurs.

Shapes: B images, C capsule types, J parent types, H×W positions, k×k kernel.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qcn.errors import UsageError
from qcn.kernels import obstacle, rotation
from qcn.names import Kernels, Mode
from qcn.networks.distributed import BatchNorm, mean_over_processes
from qcn.quaternion import rotation_matrix, rotor
from qcn.routing import Rule, fused, route


class Prediction(NamedTuple):
    """What every network of the product returns."""

    pose: Tensor  # [B, classes, 3]; other networks have poses of other sizes
    logit: Tensor  # [B, classes], unclipped: whatever is asked of an answer is worked out from it

    @property
    def activation(self) -> Tensor:
        """[B, classes], in (0, 1): how well the parts of an object of this class agree."""
        return torch.sigmoid(self.logit)


@dataclass(frozen=True)
class CapsuleLayer:
    """Size of a convolutional capsule layer: kernel side, stride, parent types."""

    kernel: int
    stride: int
    capsules: int


@dataclass(frozen=True)
class QCNConfig:
    """A QCN's shape. The defaults are the paper's network, for images of about 32×32; `for_size` adapts it to others.

    Widths and strides are those of a branch's residual blocks, from the image on. Without branches there is one stack
    of blocks, which has the pose's, and those of the activation have no meaning.
    """

    in_channels: int
    classes: int
    branched: bool = True
    pose_widths: tuple[int, ...] = (32, 64)
    pose_strides: tuple[int, ...] = (1, 2)
    activation_widths: tuple[int, ...] = (32,)
    activation_strides: tuple[int, ...] = (2,)
    primary_capsules: int = 32  # the paper says 96; only 32 (96 pose channels) gives its parameter counts
    layers: tuple[CapsuleLayer, ...] = (CapsuleLayer(5, 1, 16),) * 3
    iterations: int = 2
    mode: Mode = "logistic"


class ResidualBlock(nn.Module):
    """Pre-activation residual block: BN, ReLU, 3×3 conv, BN, ReLU, 3×3 conv, plus a 1×1 conv of the activated input.

    With a stride of 3 the first conv is 5×5: the windows of a 3×3 one would leave out the last of 3·n rows and columns.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.norm1 = BatchNorm(in_channels)
        kernel = max(3, 2 * stride - 1)
        self.conv1 = nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)
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


def residual_blocks(in_channels: int, widths: tuple[int, ...], strides: tuple[int, ...]) -> list[ResidualBlock]:
    """One block after the other: [B, in, H, W] -> [B, last width, ⌈H/r⌉, ⌈W/r⌉], r being the product of the strides."""
    pairs = zip((in_channels, *widths), zip(widths, strides, strict=True), strict=False)
    return [ResidualBlock(before, width, stride) for before, (width, stride) in pairs]


class Projection(nn.Sequential):
    """ReLU, 1×1 conv with bias, BN: from features to the channels of the primary capsules."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        conv = nn.Conv2d(in_channels, out_channels, 1)
        nn.init.xavier_uniform_(conv.weight)
        super().__init__(nn.ReLU(), conv, BatchNorm(out_channels))


class BranchedExtractor(nn.Module):
    """Primary capsules from two branches: how a thing is turned and whether it is there are two questions."""

    def __init__(self, config: QCNConfig, pose_size: int = 3) -> None:
        super().__init__()
        self.pose_size = pose_size
        self.pose = nn.Sequential(
            *residual_blocks(config.in_channels, config.pose_widths, config.pose_strides),
            Projection(config.pose_widths[-1], config.primary_capsules * pose_size),
        )
        self.activation = nn.Sequential(
            *residual_blocks(config.in_channels, config.activation_widths, config.activation_strides),
            Projection(config.activation_widths[-1], config.primary_capsules),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, in, H, W] -> pose [B, C, pose_size, ⌈H/r⌉, ⌈W/r⌉], activation [B, C, ⌈H/r⌉, ⌈W/r⌉]; r: all strides."""
        pose = self.pose(x).unflatten(1, (-1, self.pose_size))
        return pose, torch.sigmoid(self.activation(x))


class UnbranchedExtractor(nn.Module):
    """The paper's ablation: poses and activations from one stack of residual blocks."""

    def __init__(self, config: QCNConfig) -> None:
        super().__init__()
        width, capsules = config.pose_widths[-1], config.primary_capsules
        self.stem = nn.Sequential(*residual_blocks(config.in_channels, config.pose_widths, config.pose_strides))
        self.pose = Projection(width, capsules * 3)
        self.activation = Projection(width, capsules)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, in, H, W] -> pose [B, C, 3, ⌈H/r⌉, ⌈W/r⌉], activation [B, C, ⌈H/r⌉, ⌈W/r⌉]; r: all strides."""
        x = self.stem(x)
        return self.pose(x).unflatten(1, (-1, 3)), torch.sigmoid(self.activation(x))


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


class Capsules(nn.Module):
    """What capsule layers have in common: how they route. A `rule` of your own is set on each layer (docs/ideas.md)."""

    kernels: Kernels = "auto"

    def __init__(self, rotors: Rotors, iterations: int, mode: Mode) -> None:
        super().__init__()
        self.rotors, self.iterations, self.mode = rotors, iterations, mode
        self.rule: Rule | None = None

    def route(
        self,
        pose: Tensor,
        activation: Tensor,
        rotation: Tensor,
        window: tuple[int, int],
        stride: int = 1,
        logit: bool = False,
    ) -> tuple[Tensor, Tensor]:
        return route(
            pose,
            activation,
            rotation,
            self.rotors.beta_u,
            self.rotors.beta_a,
            window=window,
            stride=stride,
            iterations=self.iterations,
            mode=self.mode,
            logit=logit,
            kernels=self.kernels,
            rule=self.rule,
        )


class ConvCapsules(Capsules):
    """A capsule layer whose parents each see a k×k window of children; no padding."""

    def __init__(self, capsules_in: int, layer: CapsuleLayer, iterations: int, mode: Mode) -> None:
        super().__init__(Rotors(layer.kernel, layer.kernel, capsules_in, layer.capsules), iterations, mode)
        self.kernel, self.stride = layer.kernel, layer.stride

    def forward(self, pose: Tensor, activation: Tensor) -> tuple[Tensor, Tensor]:
        """pose [B, C, 3, H, W], activation [B, C, H, W] -> pose [B, J, 3, H', W'], activation [B, J, H', W']."""
        return self.route(pose, activation, self.rotors(self.kernels), (self.kernel, self.kernel), self.stride)


class ClassCapsules(Capsules):
    """The last layer: one parent per class, children from all positions, one rotor per (child type, class) pair."""

    def __init__(self, capsules_in: int, classes: int, iterations: int, mode: Mode) -> None:
        super().__init__(Rotors(capsules_in, classes), iterations, mode)

    def forward(self, pose: Tensor, activation: Tensor) -> tuple[Tensor, Tensor]:
        """pose [B, C, 3, H, W], activation [B, C, H, W] -> pose [B, classes, 3], logit [B, classes]."""
        window = (pose.shape[-2], pose.shape[-1])
        pose, z = self.route(pose, activation, self.rotors(self.kernels)[None, None], window, logit=True)
        return pose.flatten(2), z.flatten(1)


def capsule_layers(network: nn.Module) -> Iterator[Capsules]:
    """The capsule layers of a network, in order; none for other networks."""
    return (module for module in network.modules() if isinstance(module, Capsules))


def choose_kernels(network: nn.Module, kernels: Kernels) -> None:
    """Have the capsule layers of a network route by these kernels from now on. Other layers are left alone."""
    for layer in capsule_layers(network):
        layer.kernels = kernels


def routed_by(network: nn.Module) -> str:
    """What routes in the capsule layers of this network, in words; empty where it has none of these layers."""
    body = ""
    for layer in capsule_layers(network):
        beta = layer.rotors.beta_u
        if layer.rule is not None:
            return (
                f"by a rule of your own, {getattr(layer.rule, '__name__', type(layer.rule).__name__)}, in plain torch"
            )
        reason = "kernels=reference was asked for" if layer.kernels == "reference" else ""
        if why := reason or obstacle(beta.device.type, beta.dtype, len(beta)):
            return f"in plain torch, which is slow: {why}"
        body = f"by fused kernels ({'Triton' if beta.device.type == 'cuda' else 'libqcn'})"
    return body


class QCN(nn.Module):
    """The Quaternion Capsule Network of `config`, on an extractor of your own if you give one."""

    def __init__(self, config: QCNConfig, extractor: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        self.in_channels, self.classes = config.in_channels, config.classes
        if extractor is None:
            extractor = BranchedExtractor(config) if config.branched else UnbranchedExtractor(config)
        self.extractor = extractor
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
        # The extractor divides, rounding up: as a convolution of all its strides with a kernel of 1 does.
        extractor = (1, math.prod(self.config.pose_strides))
        return smallest_input([extractor, *((layer.kernel, layer.stride) for layer in self.config.layers)])

    def forward(self, image: Tensor) -> Prediction:
        """[B, in_channels, H, W] -> class poses [B, classes, 3] and logits [B, classes]."""
        check_input(image, self.in_channels, self.smallest_input)
        return self.routed(*self.extractor(image))

    def routed(self, pose: Tensor, activation: Tensor) -> Prediction:
        """From primary capsules, pose [B, C, 3, H, W] and activation [B, C, H, W], to class capsules."""
        pose, activation = at_least_single(pose), at_least_single(activation)
        with torch.autocast(pose.device.type, enabled=False):
            for layer, scale in zip(self.layers, self.scales, strict=True):
                pose, activation = layer(pose, activation)
                pose = scale(pose)
            return Prediction(*self.class_capsules(pose, activation))


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
    check_sides(image.shape[2], image.shape[3], smallest)


def check_sides(height: int, width: int, smallest: int) -> None:
    """Refuse images that are too small for a network."""
    if min(height, width) < smallest:
        raise UsageError(f"images of {height}×{width} are too small for this network: at least {smallest}×{smallest}")


# ---- the networks of the product -------------------------------------------------------------------------------------

GRID = 14  # positions of primary capsules per side, at least: as many as images of 28×28 give with a stride of 2


def strides_for(size: int) -> tuple[int, ...]:
    """The strides by which a branch goes from images of size × size to the grid of its primary capsules.

    Each position costs routing the same, so larger images get larger strides, not more positions: 14 to 16 per side for
    images of 28 to 32, 40 to 48, 53 to 64, 79 to 96, 105 to 128, …, and at most 20 for those between. Strides are 2,
    the first one 2 or 3, and as large as leaves 14 positions. Images of less than 27 have fewer.
    """
    room = max(2, (size - 1) // (GRID - 1))  # the largest r of ⌈size/r⌉ ≥ 14
    halvings = room.bit_length() - 1
    first = 3 if 3 << (halvings - 1) <= room else 2
    return (first, *[2] * (halvings - 1))


def for_size(config: QCNConfig, size: int | None) -> QCNConfig:
    """The network of `config` for images of size × size. Below 40×40, and for None, it is `config` itself.

    A branch has a block for each stride, instead of the one or two that halve the image; what follows them stays as it
    is. Blocks that are added come first and are narrow: half of what follows, in eights. So every pixel is seen, and a
    network for 64×64 or 96×96 has at most a tenth more parameters than the one for 32×32; a `qcn` takes up to a quarter
    more time.
    """
    if size is None or (strides := strides_for(size)) == (2,):
        return config

    def block_widths(widths: tuple[int, ...]) -> tuple[int, ...]:
        while len(widths) < len(strides):
            widths = (max(8, widths[0] // 16 * 8), *widths)
        return widths

    halving, deeper = config.pose_widths[:2], config.pose_widths[2:]
    pose, activation = block_widths(halving), block_widths(config.activation_widths)
    return replace(
        config,
        pose_widths=(*pose, *deeper),
        pose_strides=(*strides, *[1] * (len(pose) - len(strides)), *config.pose_strides[2:]),
        activation_widths=activation,
        activation_strides=strides,
    )


def _network(config: QCNConfig, size: int | None) -> QCN:
    network = QCN(for_size(config, size))
    if size is not None:
        check_sides(size, size, network.smallest_input)
    return network


def qcn(in_channels: int, classes: int, mode: Mode = "logistic", iterations: int = 2, size: int | None = None) -> QCN:
    """The paper's network; for images whose side, `size`, is 40 pixels or more, with larger strides: see `for_size`."""
    return _network(QCNConfig(in_channels, classes, mode=mode, iterations=iterations), size)


def qcn_unbranched(
    in_channels: int, classes: int, mode: Mode = "logistic", iterations: int = 2, size: int | None = None
) -> QCN:
    """The paper's ablation: one stack of residual blocks instead of two branches."""
    config = QCNConfig(in_channels, classes, branched=False, pose_widths=(64, 96), mode=mode, iterations=iterations)
    return _network(config, size)


def qcn_deep(
    in_channels: int, classes: int, mode: Mode = "logistic", iterations: int = 2, size: int | None = None
) -> QCN:
    """No larger than the paper's network, for photographs: more residual blocks, and smaller capsule layers.

    Of the paper's parameters more than half are rotors of 5×5 windows. Here windows are 3×3, in two layers, and four
    residual blocks have what that saves. They halve the image twice, so that a tenth of the votes are routed.
    """
    config = QCNConfig(
        in_channels,
        classes,
        branched=False,
        pose_widths=(24, 48, 48, 64),
        pose_strides=(1, 2, 1, 2),
        layers=(CapsuleLayer(3, 1, 16),) * 2,
        mode=mode,
        iterations=iterations,
    )
    return _network(config, size)


def qcn_tiny(
    in_channels: int, classes: int, mode: Mode = "logistic", iterations: int = 2, size: int | None = None
) -> QCN:
    """The same operator, small enough to train on two CPU cores in two or three minutes."""
    config = QCNConfig(
        in_channels,
        classes,
        pose_widths=(24, 48),
        pose_strides=(2, 1),  # halved first: most of the convolutions then cost a quarter
        activation_widths=(24,),
        primary_capsules=8,
        layers=(CapsuleLayer(3, 2, 8), CapsuleLayer(3, 2, 8)),
        mode=mode,
        iterations=iterations,
    )
    return _network(config, size)
