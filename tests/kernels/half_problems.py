"""What the half-precision Triton kernel is held to: two rules for what `forward(…, half=True)` gives.

`check_rounding`: it is what float64 makes of the same problem when it rounds to float16 where triton_half.py does, and
nowhere else. What may be off is float32's share: sums, and the few numbers so near the middle between two float16
numbers that float32 takes them to the other one. How much that is comes from the same arithmetic, each float32 number
nudged by a unit in its last place. Errors are means: a number that goes the other way moves one window far, a fault
moves all of them.

`check_plan`: the promise of docs/kernels.md, from the exact answer: 4 times as far as the reference that rounds what a
fp16 Route rounds, plus 1e-5.
"""

import math

import torch
from problems import Problem, as_maps, unfolded, worst
from torch import Tensor

from qcn.limits import MASS_FLOOR, VARIANCE_FLOOR
from qcn.routing import route

SCALE, MASS = 1 / 32, 4096.0  # ROOT_SCALE and MASS_SCALE of triton_half.py
NUDGES = 8


def half(x: Tensor) -> Tensor:
    return x.half().double()


@torch.no_grad()
def rounded(p: Problem, seed: int = 0) -> list[Tensor]:
    """Pose and activation in float64, but for what the kernel has in float16; `seed`, unless 0, nudges float32."""
    generator = torch.Generator().manual_seed(seed)

    def nudged(x: Tensor, of: Tensor | None = None) -> Tensor:
        """Moved by float32's rounding of it, or of `of`."""
        signs = 2 * torch.randint(2, x.shape, generator=generator) - 1
        return x + (2.0**-23 * signs * (x if of is None else of) if seed else 0)

    _, (pose, activation, rotation, beta_u, beta_a), grid = unfolded(p, torch.float64)
    children, parents = rotation.shape[:2]
    votes = torch.einsum("ijhk,nik->hnji", half(rotation), half(pose))  # exact; [3, N, J, I]
    shift = torch.zeros(*votes.shape[:3], 1, dtype=torch.float64)
    weight, prior = torch.full_like(shift, SCALE), torch.zeros(())
    even = half(MASS * activation)[:, None, :].expand(votes.shape[1:])
    for iteration in range(p.iterations):
        x = half(half(nudged(votes - shift)) * weight)
        r = even
        if iteration:
            power = torch.exp2(prior - half(x * x).sum(0) / SCALE**2)
            r = half(nudged(MASS * activation[:, None, :] * power / power.sum(1, keepdim=True)))
        share = (1 / parents if iteration == 0 else 1) / MASS
        first = half(r * x)
        s, d, q = (share * nudged(y.sum(-1), y.abs().sum(-1)) for y in (r, first, half(first * x)))
        d, q, m = d / weight[..., 0], q / weight[..., 0] ** 2, shift[..., 0]
        mean = (d + s * m) / (s + MASS_FLOOR)
        e = mean - m
        variance = nudged((q - 2 * e * d + e * e * s).clamp(min=0) / (s + MASS_FLOOR) + VARIANCE_FLOOR)
        log_spread = 0.5 * variance.log().sum(0)
        z = beta_a - (3 * beta_u + log_spread) * s * (2 * parents / children)
        if p.unit:
            z = torch.nn.functional.normalize(z, dim=-1)
        prior = (torch.nn.functional.logsigmoid(z) - log_spread) * math.log2(math.e)
        prior = (prior - prior.amax(1, keepdim=True))[..., None]
        weight = half(nudged((0.5 * math.log2(math.e) / variance).sqrt() * SCALE))[..., None]
        shift = half(nudged(mean))[..., None]
    return as_maps(mean.permute(1, 2, 0), z if p.logit else torch.sigmoid(z), grid)


def check_rounding(p: Problem, got: list[Tensor]) -> None:
    """4 times what float32's rounding moves the answer by, plus 1e-7 of the mean."""
    want = rounded(p)
    samples = [rounded(p, seed) for seed in range(1, NUDGES + 1)]
    for name, g, w, *near in zip(("pose", "activation"), got, want, *samples, strict=True):
        bound = 4 * max(apart(n, w) for n in near) + 1e-7 * w.abs().mean().item()
        assert apart(g, w) <= bound, f"{name}: {apart(g, w):.3g} from its own rounding, allowed {bound:.3g}"


def apart(got: Tensor, want: Tensor) -> float:
    return (got.double() - want).abs().mean().item()


def check_plan(p: Problem, got: list[Tensor]) -> None:
    """On any device."""
    options = {"window": p.window, "stride": p.stride, "iterations": p.iterations, "logit": p.logit}
    mode, wide = "unit" if p.unit else "logistic", [x.double().cpu() for x in p.inputs]
    exact = route(*wide, **options, mode=mode, kernels="reference")
    plan = route(*wide, **options, mode=mode, kernels="reference", half=torch.float16)
    for name, g, e, a in zip(("pose", "activation"), got, exact, plan, strict=True):
        bound = 4 * worst(a, e) + 1e-5
        assert worst(g.cpu(), e) <= bound, f"{name}: off by {worst(g.cpu(), e):.3g}, allowed {bound:.3g}"
