"""Routing by agreement: THE operator of the network, its formula, and its reference implementation.

A window has I children and J parents. Child i has a pose u_i ∈ R³ (the imaginary part of a pure quaternion) and an
activation a_i ∈ (0, 1); the rotor q_ij turns its pose into a vote for the pose of parent j. Parents are Gaussians in
pose space, fitted to the votes by T rounds of expectation-maximisation (Hinton et al. 2018):

    v_ij = q_ij u_i q_ij* = R(q_ij) u_i                                     votes
    r_ij = a_i / J                                                          each child is shared out evenly at first
    repeat T times:
        S_j  = Σ_i r_ij                                                     M-step: mass, mean, variance per axis h
        μ_j  = Σ_i r_ij v_ij / S_j
        σ²_j = Σ_i r_ij (v_ij − μ_j)² / S_j + ε
        z_j  = β_a,j − Σ_h (β_u,j + ½ ln σ²_jh) · S_j · 2J/I                low spread, large mass: an active parent
        a_j  = sigmoid(z_j)
        r_ij = a_i · softmax_j( ln a_j + ln N(v_ij; μ_j, σ²_j) )            E-step (not after the last M-step)
    out: μ_j, a_j

The factor 2J/I measures the cost per unit of expected mass (children half active, shared evenly), so that z does not
grow with the window (Gritzman 2019). `mode="unit"` is the authors' activation: sigmoid(z/‖z‖), the norm taken over the
parents of a window; it keeps every activation within sigmoid(±1).

This file is the oracle: any floating dtype, differentiable, plain torch. Every faster body is tested against it.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from qcn.errors import UsageError
from qcn.quaternion import rotation_matrix

Mode = Literal["logistic", "unit"]

VARIANCE_FLOOR = 1e-4  # ε: poses are scaled to an RMS of 1, so this is a spread of one percent
MASS_FLOOR = 1e-6  # under S: a parent that nobody votes for stays finite
MAX_ITERATIONS = 5


def em_routing(
    pose: Tensor,
    activation: Tensor,
    rotor: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    iterations: int = 2,
    mode: Mode = "logistic",
) -> tuple[Tensor, Tensor]:
    """Route children to parents in N independent windows that share their rotors.

    pose [N, I, 3], activation [N, I], rotor [I, J, 4] (unit), beta_u [J], beta_a [J]
    -> pose [N, J, 3], activation [N, J]
    """
    _check(pose, activation, rotor, beta_u, beta_a, iterations, mode)
    children, parents = rotor.shape[:2]
    # The three axes outermost and the children innermost: every sum over children runs along memory.
    votes = torch.einsum("ijhk,nik->hnji", rotation_matrix(rotor), pose).contiguous()  # [3, N, J, I]
    child = activation[:, None, :]  # [N, 1, I]
    r = (child / parents).expand(-1, parents, -1)  # [N, J, I]
    for iteration in range(iterations):
        mass = r.sum(-1)  # [N, J]
        mean = (r * votes).sum(-1) / (mass + MASS_FLOOR)  # [3, N, J]
        squared = (votes - mean[..., None]).square()  # [3, N, J, I]
        variance = (r * squared).sum(-1) / (mass + MASS_FLOOR) + VARIANCE_FLOOR  # [3, N, J]
        log_spread = 0.5 * variance.log().sum(0)  # [N, J]
        z = beta_a - (3 * beta_u + log_spread) * mass * (2 * parents / children)
        if mode == "unit":
            z = F.normalize(z, dim=-1)
        if iteration < iterations - 1:
            prior = F.logsigmoid(z) - log_spread  # [N, J]
            distance = (squared * (0.5 / variance)[..., None]).sum(0)  # [N, J, I]
            r = child * torch.softmax(prior[..., None] - distance, dim=1)
    return mean.permute(1, 2, 0), torch.sigmoid(z)


def _check(
    pose: Tensor, activation: Tensor, rotor: Tensor, beta_u: Tensor, beta_a: Tensor, iterations: int, mode: str
) -> None:
    if not 1 <= iterations <= MAX_ITERATIONS:
        raise UsageError(f"routing iterations must be from 1 to {MAX_ITERATIONS}, not {iterations}")
    if mode not in ("logistic", "unit"):
        raise UsageError(f"routing mode must be 'logistic' or 'unit', not '{mode}'")
    if pose.ndim != 3 or rotor.ndim != 3:
        raise UsageError(f"expected pose [N, I, 3] and rotor [I, J, 4], got {list(pose.shape)} and {list(rotor.shape)}")
    (windows, children), parents = pose.shape[:2], rotor.shape[1]
    expected = {
        "pose": (pose, (windows, children, 3)),
        "activation": (activation, (windows, children)),
        "rotor": (rotor, (children, parents, 4)),
        "beta_u": (beta_u, (parents,)),
        "beta_a": (beta_a, (parents,)),
    }
    for name, (tensor, shape) in expected.items():
        if tensor.shape != shape:
            raise UsageError(f"routing: {name} must be {list(shape)}, not {list(tensor.shape)}")
