"""Routing in plain torch operators, arranged for speed: what TorchScript and pt2 files hold. See `qcn.routing`.

The arrangement is that of the ONNX graph (`backends.onnx.unrolled`): votes lie as [B, I, 3, J, n], with n positions
innermost, the first M-step is three convolutions (in the class layer, whose votes agree to many digits, the variance is
made of the votes), and later ones are sums about the means of the iteration before. Children are taken some at a time,
so that on a CPU their votes stay in the cache.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qcn.export.program.program import POSE_PRODUCTS, Route
from qcn.limits import MASS_FLOOR, VARIANCE_FLOOR

# Numbers of votes that are made at once: 2 MiB per image on a CPU; on a GPU, where each part costs a dozen launches,
# 512 MiB for the whole batch.
CPU_AT_ONCE, GPU_AT_ONCE = 1 << 19, 1 << 27


class _Parents(NamedTuple):
    """After an M-step: mean and variance [B, 3, J, n], ½ Σ ln σ² and the score z [B, 1, J, n]."""

    mean: Tensor
    variance: Tensor
    log_spread: Tensor
    z: Tensor


class UnrolledRoute(nn.Module):
    """A capsule layer: pose [B, C, 3, H, W] and activation [B, C, H, W] -> those of its parents, J for C, on their map.

    `rotation` [h, w, C, J, 3, 3] or [1, 1, …], `beta_u` and `beta_a` [J] are the operation's arrays. Votes are made in
    `votes`, whatever the type of the poses; None: in that.
    """

    rotation: Tensor  # [I, 3J, 3]
    mass_kernel: Tensor  # kernels of the first M-step, where each child is shared out evenly among the parents
    mean_kernel: Tensor
    square_kernel: Tensor
    cost: Tensor  # [J, 1]
    beta_a: Tensor

    def __init__(self, op: Route, rotation: Tensor, beta_u: Tensor, beta_a: Tensor, votes: torch.dtype | None) -> None:
        super().__init__()
        self.op, self.votes = op, votes
        self.parents, self.rows, self.columns = op.shape
        rotation = rotation.expand(*op.window, -1, -1, -1, -1)
        self.child_count = rotation.shape[0] * rotation.shape[1] * rotation.shape[2]
        elements = rotation.permute(4, 3, 2, 5, 0, 1)  # [3, J, C, 3, h, w]
        squares = torch.stack([elements[:, :, :, p] * elements[:, :, :, q] * times for p, q, times in POSE_PRODUCTS], 3)
        by_child = rotation.permute(2, 0, 1, 4, 3, 5).reshape(self.child_count, 3 * self.parents, 3)
        self.register_buffer("rotation", by_child.contiguous())
        self.register_buffer("mass_kernel", torch.ones(1, 1, *op.window) / self.parents)
        self.register_buffer("mean_kernel", elements.flatten(2, 3).flatten(0, 1) / self.parents)
        self.register_buffer("square_kernel", squares.flatten(2, 3).flatten(0, 1) / self.parents)
        self.register_buffer("cost", 3 * beta_u[:, None])
        self.register_buffer("beta_a", beta_a[:, None].clone())

    def forward(self, pose: Tensor, activation: Tensor) -> tuple[Tensor, Tensor]:
        parents = self.first_m_step(pose, activation)
        if self.op.iterations > 1:
            child, active = self.windows(pose).to(self.votes or pose.dtype), self.windows(activation[:, :, None])
            for _ in range(1, self.op.iterations):
                parents = self.iteration(parents, child, active)
        places = (self.rows, self.columns)
        active = torch.sigmoid(parents.z) if self.op.ending == "sigmoid" else parents.z
        return parents.mean.transpose(1, 2).unflatten(3, places), active.squeeze(1).unflatten(2, places)

    def first_m_step(self, pose: Tensor, activation: Tensor) -> _Parents:
        """Sums over the children of all windows are convolutions, as long as each is shared out evenly."""
        weighted = pose * activation[:, :, None]
        mass = self._convolution(activation.sum(1, keepdim=True), self.mass_kernel).unflatten(1, (1, 1))  # [B, 1, 1, n]
        sums = self._convolution(weighted.flatten(1, 2), self.mean_kernel).unflatten(1, (3, -1))  # [B, 3, J, n]
        safe = mass + MASS_FLOOR
        mean = sums / safe
        if self.rows * self.columns == 1:
            votes = torch.matmul(self.rotation, self.windows(pose)).unflatten(2, (3, self.parents))  # [B, I, 3, J, 1]
            even = self.windows(activation[:, :, None])[:, :, None] / self.parents
            return self._parents(mass, safe, mean, ((votes - mean[:, None]).square() * even).sum(1))
        products = torch.stack([pose[:, :, p] * weighted[:, :, q] for p, q, _ in POSE_PRODUCTS], 2)
        squares = self._convolution(products.flatten(1, 2), self.square_kernel).unflatten(1, (3, -1))
        # Σ r·(v − μ)² = Σ r·v² − μ²·(S + 2·floor), since μ is Σ r·v over S + floor.
        return self._parents(mass, safe, mean, squares - mean * mean * (safe + MASS_FLOOR))

    def _convolution(self, maps: Tensor, kernel: Tensor) -> Tensor:
        return F.conv2d(maps, kernel, stride=self.op.stride).flatten(2)

    def windows(self, maps: Tensor) -> Tensor:
        """Maps [B, C, x, H, W] -> the children of all windows [B, I, x, n]."""
        height, width = self.op.window
        x = maps.flatten(0, 1).unfold(2, height, self.op.stride).unfold(3, width, self.op.stride)
        x = x.permute(0, 4, 5, 1, 2, 3).flatten(4)  # [B·C, h, w, x, n], by way of six sides: XNNPACK takes no more
        return x.flatten(0, 2).unflatten(0, (-1, self.child_count))

    def iteration(self, old: _Parents, child: Tensor, active: Tensor) -> _Parents:
        """An E-step with the parents as they were, and an M-step by sums about the means that they had.

        child [B, I, 3, n] and active [B, I, 1, n] are the poses and activations of the windows' children.
        """
        prior, weight = F.logsigmoid(old.z) - old.log_spread, 0.5 / old.variance
        rotation = self.rotation.to(child.dtype)
        tracing = torch._C._get_tracing_state() is not None  # what torch.jit.is_tracing asks
        sums = _compiled_sums() if tracing else sums_over_children
        mass, first, second = sums(old.mean, prior, weight, rotation, child, active)
        safe = mass + MASS_FLOOR
        # Σ r·v = Σ r·d + μ·S; and with δ = new μ − μ, Σ r·(d − δ)² = Σ r·d² + δ·(δ·S − 2·Σ r·d).
        mean = (first + old.mean * mass) / safe
        moved = mean - old.mean
        return self._parents(mass, safe, mean, second + moved * (moved * mass - 2 * first))

    def _parents(self, mass: Tensor, safe: Tensor, mean: Tensor, spread: Tensor) -> _Parents:
        """The variance from Σ r·(v − μ)², and from it the score behind the activation."""
        variance = spread.clamp_min(0) / safe + VARIANCE_FLOOR  # rounding may leave a little less than nothing
        log_spread = 0.5 * variance.log().sum(1, keepdim=True)
        z = self.beta_a - (self.cost + log_spread) * mass * (2 * self.parents / self.child_count)
        return _Parents(mean, variance, log_spread, F.normalize(z, dim=2) if self.op.mode == "unit" else z)


def sums_over_children(
    mean: Tensor,
    prior: Tensor,
    weight: Tensor,
    rotation: Tensor,
    child: Tensor,
    active: Tensor,
    cpu_at_once: int = CPU_AT_ONCE,
    gpu_at_once: int = GPU_AT_ONCE,
) -> tuple[Tensor, Tensor, Tensor]:
    """Σ r, Σ r·d and Σ r·d² over the children, with d = v − μ; weight is 1 / 2σ². Compiled in a TorchScript file.

    mean and weight [B, 3, J, n], prior [B, 1, J, n], rotation [I, 3J, 3], child [B, I, 3, n], active [B, I, 1, n]
    """
    children, parents, places = rotation.size(0), mean.size(2), mean.size(3)
    at_once = gpu_at_once // mean.size(0) if child.is_cuda else cpu_at_once
    some = max(1, at_once // (3 * parents * places))
    mass, first, second = torch.zeros_like(prior), torch.zeros_like(mean), torch.zeros_like(mean)
    centre, weights = mean.unsqueeze(1), weight.unsqueeze(1).unbind(2)
    for i in range(0, children, some):
        count = min(some, children - i)
        votes = torch.matmul(rotation.narrow(0, i, count), child.narrow(1, i, count))
        if votes.dtype != active.dtype:
            votes = votes.to(active.dtype)
        apart = votes.view(-1, count, 3, parents, places).sub_(centre)
        squared = apart * apart
        axes = squared.unbind(2)
        logit = prior - axes[0] * weights[0]
        logit.addcmul_(axes[1], weights[1], value=-1.0).addcmul_(axes[2], weights[2], value=-1.0)
        r = torch.softmax(logit, 2).mul_(active.narrow(1, i, count)).unsqueeze(2)  # [B, count, 1, J, n]
        mass += r.sum(1)
        first += apart.mul_(r).sum(1)
        second += squared.mul_(r).sum(1)
    return mass, first, second


@functools.cache
def _compiled_sums() -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """In a TorchScript file, how many children are taken at once is decided where it runs, not where it is traced."""
    return torch.jit.script(sums_over_children)
