"""Routing by agreement: THE operator of the network, its formula, and its reference implementation.

A window has I children and J parents. Child i has a pose u_i ∈ R³ (the imaginary part of a pure quaternion) and an
activation a_i ∈ (0, 1); the rotor q_ij turns its pose into a vote for the pose of parent j. Parents are Gaussians in
pose space, fitted to the votes by T rounds of expectation-maximisation (Hinton et al. 2018):

    v_ij = q_ij u_i q_ij* = R(q_ij) u_i                                     votes
    r_ij = a_i / J                                                          each child is shared evenly at first
    repeat T times:
        S_j  = Σ_i r_ij                                                     M-step: mass, mean, variance per axis h
        μ_j  = Σ_i r_ij v_ij / S_j
        σ²_j = Σ_i r_ij (v_ij − μ_j)² / S_j + ε
        z_j  = β_a,j − Σ_h (β_u,j + ½ ln σ²_jh) · S_j · 2J/I                low spread, large mass: an active parent
        a_j  = sigmoid(z_j)
        r_ij = a_i · softmax_j( ln a_j + ln N(v_ij; μ_j, σ²_j) )            E-step (not after the last M-step)
    out: μ_j, z_j

The logit z_j is the result, and a_j = sigmoid(z_j) the activation of the next layer's child: the logit of a class goes
from here to the loss and to the answer, since float32 cannot hold what a sigmoid throws away.

The factor 2J/I measures the cost per unit of expected mass (children half active, shared evenly), so that z does not
grow with the window (Gritzman 2019). `mode="unit"` is the authors' activation: sigmoid(z/‖z‖), the norm taken over the
parents of a window; it keeps every activation within sigmoid(±1).

`em_routing` is the oracle: any floating dtype, differentiable, plain torch. `route` is what the network calls: it does
the same in every window of a map of capsules, by a fused kernel that keeps no votes (qcn/kernels) where there is one;
or by another rule, to try it (docs/ideas.md). `watched` shows the reference's iterations, to find the one where a
deployed network goes wrong.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor

import qcn.kernels
from qcn.errors import MissingError, UsageError
from qcn.kernels.shapes import check_map, check_shapes
from qcn.limits import MASS_FLOOR, MAX_ITERATIONS, VARIANCE_FLOOR
from qcn.names import Kernels, Mode
from qcn.rounding import rounded

Rule = Callable[..., tuple[Tensor, Tensor]]  # called as `em_routing`, with iterations and mode by name
Watcher = Callable[[Tensor, Tensor, Tensor], None]  # mean, variance and logit of the parents after an M-step
_watchers: list[Watcher] = []
PIECE = 1 << 22  # bytes of votes that the reference holds at a time where it can: more do not stay in a cache


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """While the block runs, `route` by the reference shows each M-step to `watcher`, layer after layer.

    With n positions in the map, it is given mean and variance [B, J, 3, n] and logit [B, J, n]. This is for one
    thread at a time. A fused kernel has nothing to show.
    """
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def route(
    pose: Tensor,
    activation: Tensor,
    rotation: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    window: tuple[int, int],
    stride: int = 1,
    iterations: int = 2,
    mode: Mode = "logistic",
    logit: bool = False,
    kernels: Kernels = "auto",
    half: torch.dtype | None = None,
    rule: Rule | None = None,
) -> tuple[Tensor, Tensor]:
    """Route the children of every window of a map to that window's parents; no padding.

    With a `rule` of your own it routes in place of `em_routing`, in plain torch; then `kernels` has no meaning.
    With `half` the reference rounds as in `em_routing`. If it is float16 and no gradient is wanted, the fused kernels
    for CUDA route in it where that should be faster. All other fused kernels are float32, which is no less precise.

    pose [B, C, 3, H, W], activation [B, C, H, W], beta_u [J], beta_a [J], and rotation [kh, kw, C, J, 3, 3] for windows
    of kh × kw places, or [1, 1, C, J, 3, 3] when all places share their rotations
    -> pose [B, J, 3, H', W'], activation [B, J, H', W']; with `logit`, as in the class layer, z in its place
    """
    _check_options(iterations, mode)
    if rule is None and (half is None or kernels == "fused") and fused(kernels, pose, beta_u.numel()):
        # The kernels check the shapes themselves.
        save = torch.is_grad_enabled() and any(x.requires_grad for x in (pose, activation, rotation, beta_u, beta_a))
        narrow = half == torch.float16 and not save
        options = (list(window), stride, iterations, mode == "unit", logit, save, narrow)
        out = qcn.kernels.route(pose, activation, rotation, beta_u, beta_a, *options)
        return out[0], out[1]
    grid = (len(pose), *check_map((pose, activation, rotation, beta_u, beta_a), window, stride))

    def by_image(mean: Tensor, variance: Tensor, z: Tensor) -> None:
        """Show the parents of all windows [B·H'·W', J, …] to the watchers."""
        mean, variance, z = (x.unflatten(0, (grid[0], -1)).movedim(1, -1) for x in (mean, variance, z))
        for watcher in _watchers:
            watcher(mean, variance, z)

    routing = rule or partial(em_routing, watcher=by_image if _watchers else None, half=half)
    if rule is None and not _watchers and _keeps_nothing(pose):
        routing = partial(_in_pieces, routing)
    parents, z = routing(
        *in_windows(pose, activation, rotation, window, stride), beta_u, beta_a, iterations=iterations, mode=mode
    )
    windows, count = math.prod(grid), beta_u.numel()
    check_shapes({"a rule's pose": (parents, (windows, count, 3)), "a rule's logit": (z, (windows, count))})
    z = z.unflatten(0, grid).movedim(3, 1)
    return parents.unflatten(0, grid).permute(0, 3, 4, 1, 2), z if logit else torch.sigmoid(z)


def _keeps_nothing(pose: Tensor) -> bool:
    """Whether this is an answer on a CPU: no gradient needs the votes, and no graph is made of the operations."""
    tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    graph = tracing or torch.compiler.is_compiling()
    return pose.device.type == "cpu" and not torch.is_grad_enabled() and not graph


def _in_pieces(
    routing: Rule, pose: Tensor, activation: Tensor, rotation: Tensor, *betas: Tensor, **options: object
) -> tuple[Tensor, Tensor]:
    """The same, with the votes of some windows at a time: twice as fast, and a batch needs no more memory."""
    count = max(1, PIECE // (3 * pose.element_size() * math.prod(rotation.shape[:2])))
    pieces = zip(pose.split(count), activation.split(count), strict=True)
    parents, logits = zip(*(routing(*piece, rotation, *betas, **options) for piece in pieces), strict=True)
    return torch.cat(parents), torch.cat(logits)


def in_windows(
    pose: Tensor, activation: Tensor, rotation: Tensor, window: tuple[int, int], stride: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The children of every window, and their rotations: from what `route` takes to what `em_routing` does."""
    kh, kw = window
    poses = pose.unfold(3, kh, stride).unfold(4, kw, stride)  # [B, C, 3, H', W', kh, kw]
    activations = activation.unfold(2, kh, stride).unfold(3, kw, stride)  # [B, C, H', W', kh, kw]
    return (
        poses.permute(0, 3, 4, 5, 6, 1, 2).flatten(3, 5).flatten(0, 2),  # [B·H'·W', kh·kw·C, 3]
        activations.permute(0, 2, 3, 4, 5, 1).flatten(3, 5).flatten(0, 2),  # [B·H'·W', kh·kw·C]
        rotation.expand(kh, kw, -1, -1, -1, -1).flatten(0, 2),  # [kh·kw·C, J, 3, 3]
    )


def voted(rotation: Tensor, pose: Tensor) -> Tensor:
    """The votes [3, N, J, I], with the children innermost: every sum over them runs along memory."""
    # The product leaves the children outermost: one transposed matrix, which torch is quick at, puts them innermost.
    votes = torch.einsum("ijhk,nik->ihjn", rotation, pose).flatten(1)
    return votes.t().contiguous().unflatten(0, (3, rotation.shape[1], len(pose))).transpose(1, 2)


def fused(kernels: Kernels, pose: Tensor, parents: int) -> bool:
    """Whether a fused kernel routes these poses; an error where one was asked for and there is none."""
    if kernels == "reference":
        return False
    obstacle = qcn.kernels.obstacle(pose.device.type, pose.dtype, parents)
    if kernels == "fused" and obstacle:
        raise MissingError(f"fused kernels were requested, but {obstacle}")
    return not obstacle


def em_routing(
    pose: Tensor,
    activation: Tensor,
    rotation: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    iterations: int = 2,
    mode: Mode = "logistic",
    watcher: Watcher | None = None,
    half: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Route children to parents in N independent windows that share their rotors.

    pose [N, I, 3], activation [N, I], rotation [I, J, 3, 3], beta_u [J], beta_a [J]
    -> pose [N, J, 3], logit [N, J]

    `watcher` is given the mean and variance [N, J, 3] and the logit [N, J] after each M-step. With `half`,
    float16 or bfloat16, votes and distances are rounded to it wherever a deployed layer does; the statistics are not.
    """
    _check(pose, activation, rotation, beta_u, beta_a, iterations, mode)
    children, parents = rotation.shape[:2]

    def short(x: Tensor) -> Tensor:
        return x if half is None else rounded(x, half)

    votes = short(voted(short(rotation), short(pose)))  # [3, N, J, I]
    child = activation[:, None, :]  # [N, 1, I]
    r = (child / parents).expand(-1, parents, -1)  # [N, J, I]
    for iteration in range(iterations):
        mass = r.sum(-1)  # [N, J]
        mean = (r * votes).sum(-1) / (mass + MASS_FLOOR)  # [3, N, J]
        squared = short(votes - mean[..., None]).square()  # [3, N, J, I]
        variance = (r * squared).sum(-1) / (mass + MASS_FLOOR) + VARIANCE_FLOOR  # [3, N, J]
        log_spread = 0.5 * variance.log().sum(0)  # [N, J]
        z = beta_a - (3 * beta_u + log_spread) * mass * (2 * parents / children)
        if mode == "unit":
            z = F.normalize(z, dim=-1)
        if watcher:
            watcher(mean.permute(1, 2, 0), variance.permute(1, 2, 0), z)
        if iteration < iterations - 1:
            prior = F.logsigmoid(z) - log_spread  # [N, J]
            if half is not None:  # whitened before it is squared: 1/σ is at most 100, 1/σ² may leave float16's range
                apart = short(votes - short(mean)[..., None])
                distance = 0.5 * short(apart * variance.rsqrt()[..., None]).square().sum(0)
            else:
                distance = (squared * (0.5 / variance)[..., None]).sum(0)  # [N, J, I]
            r = child * torch.softmax(prior[..., None] - distance, dim=1)
    return mean.permute(1, 2, 0), z


def _check(
    pose: Tensor, activation: Tensor, rotation: Tensor, beta_u: Tensor, beta_a: Tensor, iterations: int, mode: str
) -> None:
    _check_options(iterations, mode)
    if pose.ndim != 3 or rotation.ndim != 4:
        shapes = f"{list(pose.shape)} and {list(rotation.shape)}"
        raise UsageError(f"expected pose [N, I, 3] and rotation [I, J, 3, 3], got {shapes}")
    (windows, children), parents = pose.shape[:2], rotation.shape[1]
    check_shapes(
        {
            "pose": (pose, (windows, children, 3)),
            "activation": (activation, (windows, children)),
            "rotation": (rotation, (children, parents, 3, 3)),
            "beta_u": (beta_u, (parents,)),
            "beta_a": (beta_a, (parents,)),
        }
    )


def _check_options(iterations: int, mode: str) -> None:
    if not 1 <= iterations <= MAX_ITERATIONS:
        raise UsageError(f"routing iterations must be from 1 to {MAX_ITERATIONS}, not {iterations}")
    if mode not in get_args(Mode):
        raise UsageError(f"routing mode must be 'logistic' or 'unit', not '{mode}'")
