"""Capsules with variational-Bayes routing, the strongest published rival of QCN on most data sets.

F. De Sousa Ribeiro, G. Leontidis, S. Kollias, "Capsule Routing via Variational Bayes", AAAI 2020. The updates are those
of a Bayesian Gaussian mixture (C. Bishop, "Pattern Recognition and Machine Learning", section 10.2) with diagonal
precisions, each child counting as a_i of a data point.

Votes V_ij ∈ R^D (D = 16) are made as in `baselines.py`. Parent j is a Gaussian whose mean μ_j and precision Λ_j are
unknown; the prior is Dirichlet(α₀) on the mixing weights π, Gaussian(0, (κ₀Λ_j)⁻¹) on the means and Wishart(I, ν₀) on
the precisions, with α₀ = κ₀ = 1 and ν₀ = D + 1:

    r_ij = 1 / (number of parents that see i)
    repeat T times (3):
        S_j   = Σ_i a_i r_ij          α_j = α₀ + S_j          κ_j = κ₀ + S_j          ν_j = ν₀ + S_j
        m_j   = Σ_i a_i r_ij V_ij / κ_j
        Ψ_j⁻¹ = I + Σ_i a_i r_ij (V_ij − m_j)² + κ₀ m_j²       diagonal; as in Bishop, who centres on the average
        r_ij  = softmax_j( E[ln π_j] + ½ E[ln|Λ_j|] − ½ E[(V_ij − μ_j)ᵀ Λ_j (V_ij − μ_j)] )   (not after the last round)
    where, with the digamma function ψ,
        E[ln π_j]  = ψ(α_j) − ψ(Σ_j' α_j')
        E[ln|Λ_j|] = Σ_{d<D} ψ((ν_j − d)/2) + D ln 2 − Σ_h ln Ψ⁻¹_jh
        E[(V − μ_j)ᵀ Λ_j (V − μ_j)] = D/κ_j + ν_j Σ_h (V_h − m_jh)² / Ψ⁻¹_jh
    out: m_j, and the activation from the entropy of the Gaussian, weighted by how much of the data it explains:
        z_j = −exp(E[ln π_j]) · ½ (D ln 2πe − E[ln|Λ_j|])          a_j = sigmoid(batch norm of z_j)

The prior keeps Ψ⁻¹ ≥ 1 and the arguments of ψ ≥ 1: nothing comes near a singularity in float32, and what needs floors
in EM routing needs none here.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qcn.errors import UsageError
from qcn.networks.baselines import POSE, Votes, Windows
from qcn.networks.distributed import BatchNorm
from qcn.networks.model import Prediction, at_least_single, check_input, smallest_input

DIRICHLET = 1.0  # α₀
MEAN_PRECISION = 1.0  # κ₀
FREEDOM = POSE + 1.0  # ν₀, degrees of freedom; the Wishart distribution needs more than D − 1
# Poses have an RMS of 1 between layers, but for the prior above that is far too large a spread: one parent takes all
# children from the start, and training stalls. With votes of this scale E[(V − μ)ᵀΛ(V − μ)] starts near 1, and children
# are shared softly until the votes decide. (The authors start from small matrices instead; then their learning rate
# must be small too.)
VOTE_SCALE = 1 / math.sqrt(FREEDOM * POSE)


def vb_routing(votes: Tensor, activation: Tensor, windows: Windows, iterations: int) -> tuple[Tensor, Tensor]:
    """Fit the posterior of the parents to the votes, as in the header.

    votes [I, N, 16, J], activation [I, N] -> posterior mean m [N, 16, J], z [N, J]
    """
    children, count, _, parent_types = votes.shape
    share = windows.share_out(votes.new_zeros(children, count, parent_types))  # [I, N, J], even
    half_steps = 0.5 * torch.arange(POSE, dtype=votes.dtype, device=votes.device)[:, None]  # [16, 1]: d/2
    for iteration in range(iterations):
        weight = (share * activation[..., None])[:, :, None]  # [I, N, 1, J]
        mass = weight.sum(0)  # [N, 1, J]
        concentration = DIRICHLET + mass  # α
        mean_precision = MEAN_PRECISION + mass  # κ
        freedom = FREEDOM + mass  # ν

        mean = (weight * votes).sum(0) / mean_precision  # m [N, 16, J]
        squared = (votes - mean).square()  # [I, N, 16, J]
        inverse_scale = 1 + (weight * squared).sum(0) + MEAN_PRECISION * mean.square()  # Ψ⁻¹ [N, 16, J]

        log_mixing = torch.digamma(concentration) - torch.digamma(concentration.sum(2, keepdim=True))  # [N, 1, J]
        log_precision = (  # E[ln|Λ|]
            torch.digamma(0.5 * freedom - half_steps).sum(1, keepdim=True)
            + POSE * math.log(2)
            - inverse_scale.log().sum(1, keepdim=True)
        )  # [N, 1, J]
        if iteration < iterations - 1:
            distance = (squared * (0.5 * freedom / inverse_scale)).sum(2)  # [I, N, J]
            prior = log_mixing + 0.5 * log_precision - 0.5 * POSE / mean_precision  # [N, 1, J]
            share = windows.share_out(prior[:, 0] - distance)
    entropy = 0.5 * (POSE * math.log(2 * math.pi * math.e) - log_precision)  # [N, 1, J]
    return mean, -(log_mixing.exp() * entropy)[:, 0]


class VBCapsules(nn.Module):
    """A capsule layer with variational-Bayes routing: convolutional with a kernel, class capsules without."""

    def __init__(
        self, child_types: int, parent_types: int, kernel: int | None, stride: int = 1, iterations: int = 3
    ) -> None:
        super().__init__()
        self.iterations = iterations
        self.votes = Votes(child_types, parent_types, kernel, stride, VOTE_SCALE)
        self.pose_norm = BatchNorm(parent_types, affine=False)
        # The authors add two learnt numbers per parent type to z, but before a norm without parameters, which removes
        # them again. Here the two are that norm's scale and shift.
        self.activation_norm = BatchNorm(parent_types)

    def forward(self, pose: Tensor, activation: Tensor) -> tuple[Tensor, Tensor]:
        """pose [B, C, 16, H, W], activation [B, C, H, W] -> pose [B, J, 16, H', W'], logit [B, J, H', W']."""
        votes, active, windows = self.votes(pose, activation)
        mean, z = vb_routing(votes, active, windows, self.iterations)
        grid = (pose.shape[0], *windows.shape)
        mean = mean.unflatten(0, grid).permute(0, 4, 3, 1, 2)  # [B, J, 16, H', W']
        logit = z.unflatten(0, grid).permute(0, 3, 1, 2)  # [B, J, H', W']
        return normalised(self.pose_norm, mean / VOTE_SCALE), self.activation_norm(logit)


def normalised(norm: BatchNorm, pose: Tensor) -> Tensor:
    """Batch norm with one mean and variance per capsule type, over all 16 numbers of its poses: [B, C, 16, H, W]."""
    flat: Tensor = norm(pose.flatten(2, 3))  # [B, C, 16·H, W]
    return flat.unflatten(2, (POSE, -1))


class VBCapsuleNetwork(nn.Module):
    """5×5 convolution, primary capsules, two convolutional capsule layers (3×3; stride 2, then 1), class capsules.

    The default is the authors' stem of 64 channels with the widths that give the 169 K parameters reported for
    smallNORB: 169,642 for 2 channels and 5 classes. With A stem channels and capsules (P, Q, R): conv 25·in·A + 2·A
    (norm); primary 17·A·P + 4·P (two norms); capsule layers 144·P·Q + 2·Q and 144·Q·R + 2·R; classes 16·R·J + 2·J.
    """

    def __init__(
        self,
        in_channels: int,
        classes: int,
        stem: int = 64,
        capsules: tuple[int, int, int] = (16, 32, 16),
        iterations: int = 3,
    ) -> None:
        super().__init__()
        if iterations < 1:
            raise UsageError(f"routing needs at least 1 iteration, not {iterations}")
        self.in_channels, self.classes = in_channels, classes
        self.smallest_input = smallest_input([(5, 2), (3, 2), (3, 1)])
        primary, first, second = capsules
        self.conv = nn.Conv2d(in_channels, stem, 5, stride=2, bias=False)
        self.conv_norm = BatchNorm(stem)
        self.project = nn.Conv2d(stem, primary * (POSE + 1), 1, bias=False)
        self.pose_norm = BatchNorm(primary)
        self.activation_norm = BatchNorm(primary)
        nn.init.kaiming_uniform_(self.conv.weight, nonlinearity="relu")
        nn.init.xavier_uniform_(self.project.weight)
        self.layers = nn.ModuleList(
            [
                VBCapsules(primary, first, kernel=3, stride=2, iterations=iterations),
                VBCapsules(first, second, kernel=3, stride=1, iterations=iterations),
            ]
        )
        self.class_capsules = VBCapsules(second, classes, kernel=None, iterations=iterations)

    def forward(self, image: Tensor) -> Prediction:
        """[B, in_channels, H, W] -> class poses [B, classes, 16] and logits [B, classes]."""
        check_input(image, self.in_channels, self.smallest_input)
        x = at_least_single(self.project(F.relu(self.conv_norm(self.conv(image)))))
        with torch.autocast(image.device.type, enabled=False):
            primary = self.pose_norm.num_features
            pose, logit = x.split([primary * POSE, primary], dim=1)
            pose = normalised(self.pose_norm, pose.unflatten(1, (primary, POSE)))  # [B, C, 16, H, W]
            activation = torch.sigmoid(self.activation_norm(logit))
            for layer in self.layers:
                pose, logit = layer(pose, activation)
                activation = torch.sigmoid(logit)
            pose, logit = self.class_capsules(pose, activation)
        logit = logit.flatten(1)  # [B, classes]: one position
        return Prediction(pose.flatten(2), logit)
