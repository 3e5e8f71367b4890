"""QCN's rivals, to be trained and tested by the same code: matrix capsules with EM routing, and two CNNs.

G. Hinton, S. Sabour, N. Frosst, "Matrix Capsules with EM Routing", ICLR 2018: network and routing; also the CNN.
A. Gritzman, "Avoiding Implementation Pitfalls of Matrix Capsules with EM Routing", 2019: the three remedies below.
B. Özcan, F. Kınlı, F. Kıraç, "Quaternion Capsule Networks", ICPR 2020: sizes, and the two ablations of the extractor.
Capsules with variational-Bayes routing have a file of their own, `vb.py`, and share the votes with this one.

A capsule here has a 4×4 pose matrix M_i and an activation a_i; a learnt 4×4 matrix W_ij turns it into a vote
V_ij = M_i W_ij for the pose of parent j. Parents are Gaussians in the 16-dimensional space of poses:

    r_ij = 1 / (number of parents that see i)
    repeat T times:
        S_j  = Σ_i a_i r_ij         μ_j = Σ_i a_i r_ij V_ij / S_j         σ²_j = Σ_i a_i r_ij (V_ij − μ_j)² / S_j + ε
        z_j  = β_a,j − λ Σ_h (β_u,j + ½ ln σ²_jh) · S_j / S̄              a_j = sigmoid(z_j)
        r_ij = softmax_j( ln a_j + ln N(V_ij; μ_j, σ²_j) )                (not after the last M-step)

Gritzman's remedies: the softmax is over all parents of a child, also those at other positions; the cost is per unit of
the expected mass S̄ (children half active, shared evenly), so that z does not grow with the window; ε under the variance
and logarithms throughout keep parents with a single child finite.

Shapes: B images, C child types, J parent types, k×k kernel, P parent positions; a window has I = k·k·C children, and
there are N = B·P windows. Votes are [I, N, 16, J]: parents innermost, where the softmax is; children outermost.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qcn.errors import UsageError
from qcn.limits import MASS_FLOOR, VARIANCE_FLOOR
from qcn.networks.distributed import BatchNorm
from qcn.networks.model import (
    BranchedExtractor,
    Prediction,
    QCNConfig,
    RunningRMS,
    at_least_single,
    check_input,
    residual_blocks,
    smallest_input,
    strides_for,
)

POSE = 16  # numbers in a 4×4 pose matrix
# λ. Hinton lets it grow to 0.01, for costs that grow with the window. Here they are per unit of expected mass, and the
# mean over the 16 dimensions, not their sum, decides: with λ = ¼ the logits of the second layer reach 40 at start.
INVERSE_TEMPERATURE = 1 / POSE


@dataclass(frozen=True)
class Windows:
    """Which children each parent position sees."""

    cell: Tensor  # [k·k, P] int64: for each tap of each window, its position in the flattened child map
    cells: int  # positions in the child map, H·W
    seen: int  # of those, how many lie in some window (a stride can leave the last row and column out)
    shape: tuple[int, int]  # H', W': P = H'·W'

    @staticmethod
    def over(height: int, width: int, kernel: int | None, stride: int, device: torch.device) -> "Windows":
        """The windows of a k×k kernel without padding on a height × width map; without a kernel, one window of all."""
        if kernel is None:
            every = torch.arange(height * width, device=device)[:, None]
            return Windows(every, height * width, height * width, (1, 1))
        shape = ((height - kernel) // stride + 1, (width - kernel) // stride + 1)
        tap = torch.arange(kernel, device=device)
        row = tap[:, None] + stride * torch.arange(shape[0], device=device)  # [k, H']
        column = tap[:, None] + stride * torch.arange(shape[1], device=device)  # [k, W']
        cell = row[:, None, :, None] * width + column[None, :, None, :]  # [k, k, H', W']
        extent = [(length - 1) * stride + kernel for length in shape]
        return Windows(cell.flatten(2).flatten(0, 1), height * width, extent[0] * extent[1], shape)

    def share_out(self, score: Tensor) -> Tensor:
        """Softmax over all parents of a child, of every type and at every position: [I, N, J] -> [I, N, J].

        A child under several windows appears once in each, so the sum over types is followed by one over the windows,
        gathered by the child's cell.
        """
        taps, positions = self.cell.shape
        child_types, batch = score.shape[0] // taps, score.shape[1] // positions
        window = score.logsumexp(2).view(taps, child_types, batch, positions)
        window = window.permute(0, 3, 1, 2).flatten(2).flatten(0, 1)  # [k·k·P, C·B]
        cell = self.cell.flatten()  # [k·k·P]
        with torch.no_grad():  # the largest score of a child, so that no exponential overflows
            peak = window.new_full((self.cells, window.shape[1]), -torch.inf)
            peak = peak.scatter_reduce(0, cell[:, None].expand_as(window), window, "amax")[cell]  # [k·k·P, C·B]
        total = window.new_zeros(self.cells, window.shape[1]).index_add(0, cell, (window - peak).exp())
        log_total = (total[cell].log() + peak).view(taps, positions, child_types, batch)
        log_total = log_total.permute(0, 2, 3, 1).reshape(score.shape[0], score.shape[1], 1)  # [I, N, 1]
        return (score - log_total).exp()


class Votes(nn.Module):
    """The learnt 4×4 matrices of a capsule layer, and the votes they make.

    With a kernel: one matrix per (tap, child type, parent type), the same at every position. Without a kernel: class
    capsules, which see the whole map through one matrix per (child type, class). So that they can tell positions apart,
    each child's coordinates are added to the last column of its vote (Hinton's coordinate addition). `scale` multiplies
    all votes.
    """

    def __init__(
        self, child_types: int, parent_types: int, kernel: int | None, stride: int = 1, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.kernel, self.stride, self.scale = kernel, stride, scale
        taps = 1 if kernel is None else kernel * kernel
        # A standard deviation of ½ keeps the scale of poses: each number of a vote is a sum of four.
        self.weight = nn.Parameter(0.5 * torch.randn(taps, child_types, 4, 4, parent_types))

    def forward(self, pose: Tensor, activation: Tensor) -> tuple[Tensor, Tensor, Windows]:
        """pose [B, C, 16, H, W], activation [B, C, H, W] -> votes [I, N, 16, J], child activations [I, N], windows."""
        height, width = pose.shape[-2:]
        windows = Windows.over(height, width, self.kernel, self.stride, pose.device)
        taps, positions = windows.cell.shape
        batch, child_types = activation.shape[:2]
        parent_types = self.weight.shape[-1]

        children = pose.flatten(3)[..., windows.cell]  # [B, C, 16, k·k, P]
        children = children.permute(3, 1, 0, 4, 2)  # [k·k, C, B, P, 16]
        matrices = children.reshape(taps * child_types, batch * positions * 4, 4)  # rows of all windows' matrices
        weight = (
            (self.scale * self.weight).expand(taps, -1, -1, -1, -1).reshape(taps * child_types, 4, 4 * parent_types)
        )
        votes = torch.bmm(matrices, weight)  # [I, N·4, 4·J]: M W, all parents at once
        votes = votes.view(taps * child_types, batch * positions, POSE, parent_types)  # no copy
        if self.kernel is None:
            votes = votes + self.scale * self._coordinates(height, width, votes)

        active = activation.flatten(2)[..., windows.cell]  # [B, C, k·k, P]
        return votes, active.permute(2, 1, 0, 3).reshape(votes.shape[:2]), windows

    def _coordinates(self, height: int, width: int, votes: Tensor) -> Tensor:
        """Row and column of each child, in (0, 1), at the top of the right-hand column of a 4×4 zero: [I, 1, 16, 1]."""
        row = (torch.arange(height, dtype=votes.dtype, device=votes.device) + 0.5) / height
        column = (torch.arange(width, dtype=votes.dtype, device=votes.device) + 0.5) / width
        offset = votes.new_zeros(height, width, 4, 4)
        offset[:, :, 0, 3] = row[:, None]
        offset[:, :, 1, 3] = column
        return offset.view(height * width, 1, 1, POSE, 1).expand(-1, self.weight.shape[1], -1, -1, -1).flatten(0, 1)


def em_routing(
    votes: Tensor, activation: Tensor, windows: Windows, beta_u: Tensor, beta_a: Tensor, iterations: int
) -> tuple[Tensor, Tensor]:
    """Fit the parents to the votes, as in the header.

    votes [I, N, 16, J], activation [I, N], beta_u [J], beta_a [J] -> mean [N, 16, J], z [N, J]
    """
    children, count, _, parent_types = votes.shape
    child_types, positions = children // windows.cell.shape[0], windows.cell.shape[1]
    expected_mass = 0.5 * child_types * windows.seen / (positions * parent_types)
    share = windows.share_out(votes.new_zeros(children, count, parent_types))  # [I, N, J], even
    for iteration in range(iterations):
        weight = (share * activation[..., None])[:, :, None]  # [I, N, 1, J]
        mass = weight.sum(0) + MASS_FLOOR  # [N, 1, J]
        mean = (weight * votes).sum(0) / mass  # [N, 16, J]
        squared = (votes - mean).square()  # [I, N, 16, J]
        variance = (weight * squared).sum(0) / mass + VARIANCE_FLOOR  # [N, 16, J]
        log_spread = 0.5 * variance.log().sum(1)  # [N, J]
        cost = (POSE * beta_u + log_spread) * (mass[:, 0] / expected_mass)
        z = beta_a - INVERSE_TEMPERATURE * cost  # [N, J]
        if iteration < iterations - 1:
            distance = (squared * (0.5 / variance)).sum(2)  # [I, N, J]
            share = windows.share_out(F.logsigmoid(z) - log_spread - distance)
    return mean, z


class EMCapsules(nn.Module):
    """A layer of matrix capsules: convolutional with a kernel, class capsules without."""

    def __init__(
        self, child_types: int, parent_types: int, kernel: int | None, stride: int = 1, iterations: int = 2
    ) -> None:
        super().__init__()
        self.iterations = iterations
        self.votes = Votes(child_types, parent_types, kernel, stride)
        self.beta_u = nn.Parameter(torch.zeros(parent_types))
        self.beta_a = nn.Parameter(torch.zeros(parent_types))

    def forward(self, pose: Tensor, activation: Tensor) -> tuple[Tensor, Tensor]:
        """pose [B, C, 16, H, W], activation [B, C, H, W] -> pose [B, J, 16, H', W'], logit [B, J, H', W']."""
        votes, active, windows = self.votes(pose, activation)
        mean, z = em_routing(votes, active, windows, self.beta_u, self.beta_a, self.iterations)
        grid = (pose.shape[0], *windows.shape)
        return mean.unflatten(0, grid).permute(0, 4, 3, 1, 2), z.unflatten(0, grid).permute(0, 3, 1, 2)


class PrimaryCapsules(nn.Module):
    """A stem, ReLU, and one 1×1 convolution with bias (no batch norm) to all poses and activations."""

    def __init__(self, stem: nn.Module, channels: int, capsules: int) -> None:
        super().__init__()
        self.stem = stem
        self.capsules = capsules
        self.project = nn.Conv2d(channels, capsules * (POSE + 1), 1)
        nn.init.xavier_uniform_(self.project.weight)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """[B, in, H, W] -> pose [B, C, 16, H', W'], activation [B, C, H', W']."""
        x = self.project(F.relu(self.stem(image)))
        pose, activation = x.split([self.capsules * POSE, self.capsules], dim=1)
        return pose.unflatten(1, (self.capsules, POSE)), torch.sigmoid(activation)


class MatrixCapsules(nn.Module):
    """An extractor of primary capsules, two convolutional capsule layers (3×3; stride 2, then 1), class capsules."""

    def __init__(
        self, extractor: nn.Module, halving: int, in_channels: int, classes: int, capsules: int, iterations: int
    ) -> None:
        """`halving`: the extractor's kernel, seen as one convolution of stride 2 without padding."""
        super().__init__()
        if iterations < 1:
            raise UsageError(f"routing needs at least 1 iteration, not {iterations}")
        self.in_channels, self.classes = in_channels, classes
        self.smallest_input = smallest_input([(halving, 2), (3, 2), (3, 1)])
        self.extractor = extractor
        self.layers = nn.ModuleList(
            [
                EMCapsules(capsules, capsules, kernel=3, stride=2, iterations=iterations),
                EMCapsules(capsules, capsules, kernel=3, stride=1, iterations=iterations),
            ]
        )
        self.class_capsules = EMCapsules(capsules, classes, kernel=None, iterations=iterations)
        # Hinton's poses are unscaled. With them, at start, all activations are 0 or 1: see RunningRMS.
        self.scales = nn.ModuleList(RunningRMS() for _ in range(3))

    def forward(self, image: Tensor) -> Prediction:
        """[B, in_channels, H, W] -> class poses [B, classes, 16] and logits [B, classes]."""
        check_input(image, self.in_channels, self.smallest_input)
        pose, activation = self.extractor(image)
        pose, activation = at_least_single(pose), at_least_single(activation)
        with torch.autocast(image.device.type, enabled=False):
            pose = self.scales[0](pose)
            for layer, scale in zip(self.layers, self.scales[1:], strict=True):
                pose, logit = layer(pose, activation)
                pose, activation = scale(pose), torch.sigmoid(logit)
            pose, logit = self.class_capsules(pose, activation)
        logit = logit.flatten(1)  # [B, classes]: one position
        return Prediction(pose.flatten(2), logit)


def em(in_channels: int, classes: int, stem: int = 32, capsules: int = 32, iterations: int = 2) -> MatrixCapsules:
    """Matrix capsules with EM routing behind one 5×5 convolution, as QCN's authors ran them (256 channels on CIFAR-10).

    Parameters, with A stem channels: conv 25·in·A + A; primary 544·A + 544; two capsule layers 9·32·32·16 + 64 each;
    class capsules 32·16·J + 2·J. 317,194 for 2 channels and 5 classes.
    """
    conv = nn.Conv2d(in_channels, stem, 5, stride=2)
    nn.init.kaiming_uniform_(conv.weight, nonlinearity="relu")
    return MatrixCapsules(PrimaryCapsules(conv, stem, capsules), 5, in_channels, classes, capsules, iterations)


def em_branched(in_channels: int, classes: int, capsules: int = 32, iterations: int = 2) -> MatrixCapsules:
    """The paper's ablation: matrix capsules behind QCN's two branches."""
    extractor = BranchedExtractor(QCNConfig(in_channels, classes, primary_capsules=capsules), POSE)
    return MatrixCapsules(extractor, 1, in_channels, classes, capsules, iterations)


def em_unbranched(in_channels: int, classes: int, capsules: int = 32, iterations: int = 2) -> MatrixCapsules:
    """The paper's ablation: matrix capsules behind two residual blocks of 64 and 96 channels."""
    stem = nn.Sequential(*residual_blocks(in_channels, (64, 96), (1, 2)))
    extractor = PrimaryCapsules(stem, 96, capsules)
    return MatrixCapsules(extractor, 1, in_channels, classes, capsules, iterations)


def cnn_answer(features: Tensor, classifier: nn.Linear, direction: nn.Linear | None) -> Prediction:
    """The answer of a CNN from its features [B, F]: poses [B, classes, 3] if it has a direction head, else empty."""
    logit = classifier(features)
    if direction is None:
        return Prediction(logit.new_empty(*logit.shape, 0), logit)
    return Prediction(direction(features).unflatten(1, (-1, 3)), logit)


class CNN(nn.Module):
    """The CNN that capsule papers compare with, Hinton's baseline, for images of size × size.

    Two 5×5 convolutions (32, 64 channels), each with 2×2 max pooling, 1024 units, dropout. The fully connected layer
    fixes the input size. 4.25 M parameters at 2×32×32: 8·8·64·1024 of them are that layer's.
    With `direction` a second head answers with a direction of view for each class, as the poses of a QCN do.
    """

    def __init__(
        self, in_channels: int, classes: int, size: int = 32, dropout: float = 0.5, direction: bool = False
    ) -> None:
        super().__init__()
        if size < 4:
            raise UsageError(f"the CNN pools twice: its images must be at least 4×4, not {size}×{size}")
        self.in_channels, self.classes, self.size = in_channels, classes, size
        self.conv1 = nn.Conv2d(in_channels, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.hidden = nn.Linear(64 * (size // 4) ** 2, 1024)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(1024, classes)
        self.direction = nn.Linear(1024, 3 * classes) if direction else None

    def forward(self, image: Tensor) -> Prediction:
        """[B, in_channels, size, size] -> poses [B, classes, 3] or [B, classes, 0], and logits [B, classes]."""
        if image.ndim != 4 or image.shape[1:] != (self.in_channels, self.size, self.size):
            expected = f"[B, {self.in_channels}, {self.size}, {self.size}]"
            raise UsageError(f"this CNN takes images {expected}, not {list(image.shape)}; build one with size=…")
        x = F.max_pool2d(F.relu(self.conv1(image)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        features = self.dropout(F.relu(self.hidden(x.flatten(1))))
        return cnn_answer(features, self.classifier, self.direction)


class ResidualCNN(nn.Module):
    """QCN without its capsules: four of its residual blocks, batch norm and ReLU, the mean over the map, linear.

    With `direction` a second linear layer answers with a direction of view for each class, as the poses of a QCN do.
    """

    def __init__(
        self,
        in_channels: int,
        classes: int,
        widths: tuple[int, ...],
        strides: tuple[int, ...],
        direction: bool = False,
    ) -> None:
        super().__init__()
        self.in_channels, self.classes = in_channels, classes
        self.blocks = nn.Sequential(*residual_blocks(in_channels, widths, strides))
        self.norm = BatchNorm(widths[-1])
        self.classifier = nn.Linear(widths[-1], classes)
        self.direction = nn.Linear(widths[-1], 3 * classes) if direction else None

    def forward(self, image: Tensor) -> Prediction:
        """[B, in_channels, H, W] -> poses [B, classes, 3] or [B, classes, 0], and logits [B, classes]."""
        check_input(image, self.in_channels, 1)
        features = F.relu(self.norm(self.blocks(image))).mean((2, 3))
        return cnn_answer(features, self.classifier, self.direction)


def cnn_small(in_channels: int, classes: int, size: int | None = None, direction: bool = False) -> ResidualCNN:
    """A CNN of QCN's size: 176 thousand parameters. Larger images get a larger first stride, as QCN's do."""
    first = math.prod(strides_for(size)) // 2 if size else 1
    return ResidualCNN(in_channels, classes, (32, 64, 64, 32), (first, 2, 2, 1), direction)


def cnn_wide(in_channels: int, classes: int, size: int | None = None) -> ResidualCNN:
    """A CNN of 2.8 million parameters, for teaching the small networks."""
    first = math.prod(strides_for(size)) // 2 if size else 1
    return ResidualCNN(in_channels, classes, (64, 64, 128, 128, 256, 256), (first, 1, 2, 1, 2, 1))
