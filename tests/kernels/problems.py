"""Routing problems for the fused kernels, and the rule they are held to.

No further from the float64 reference than four times what the float32 reference is.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from qcn.errors import UsageError
from qcn.kernels.shapes import Layer
from qcn.networks.shipped import run_of
from qcn.quaternion import rotation_matrix, rotor
from qcn.routing import em_routing, in_windows
from qcn.train.checkpoint import load_network

NAMES = ("pose", "activation", "rotation", "beta_u", "beta_a")


@dataclass(frozen=True)
class Problem:
    """Inputs in float32, and the settings of one call."""

    pose: Tensor
    activation: Tensor
    rotation: Tensor
    beta_u: Tensor
    beta_a: Tensor
    window: tuple[int, int] = (3, 3)
    stride: int = 1
    iterations: int = 2
    unit: bool = False
    logit: bool = False
    upstream: tuple[Tensor, Tensor] = field(default=(torch.empty(0), torch.empty(0)))

    @property
    def inputs(self) -> list[Tensor]:
        return [getattr(self, name) for name in NAMES]

    @property
    def layer(self) -> Layer:
        return Layer(self.window, self.stride, self.iterations, self.unit, self.logit)


def problem(
    size: tuple[int, int] = (7, 6),
    *,
    batch: int = 2,
    channels: int = 3,
    parents: int = 4,
    window: tuple[int, int] = (3, 3),
    stride: int = 1,
    iterations: int = 2,
    unit: bool = False,
    logit: bool = False,
    shared: bool = False,
    seed: int = 0,
) -> Problem:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    places = (1, 1) if shared else window
    links = (*places, channels, parents)
    grid = tuple((s - w) // stride + 1 for s, w in zip(size, window, strict=True))
    return Problem(
        normal(batch, channels, 3, *size),
        torch.sigmoid(2 * normal(batch, channels, *size)),
        rotation_matrix(rotor(3 * normal(*links), normal(*links, 3))),
        0.3 * normal(parents),
        0.3 * normal(parents),
        window,
        stride,
        iterations,
        unit,
        logit,
        (normal(batch, parents, 3, *grid), normal(batch, parents, *grid)),
    )


def unfolded(p: Problem, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor], tuple[int, ...]]:
    """The inputs in `dtype`, to differentiate by; what `em_routing` takes of all windows; their grid."""
    leaves = [x.to(dtype).requires_grad_() for x in p.inputs]
    size = zip(p.pose.shape[-2:], p.window, strict=True)
    grid = (len(p.pose), *((side - window) // p.stride + 1 for side, window in size))
    return leaves, [*in_windows(*leaves[:3], p.window, p.stride), *leaves[3:]], grid


def as_maps(mean: Tensor, active: Tensor, grid: tuple[int, ...]) -> list[Tensor]:
    """[N, J, 3] and [N, J] of all windows as [B, J, 3, H', W'] and [B, J, H', W']."""
    return [mean.unflatten(0, grid).permute(0, 3, 4, 1, 2), active.unflatten(0, grid).movedim(3, 1)]


def reference(p: Problem, dtype: torch.dtype, shuffle: int = 0) -> list[Tensor]:
    """Outputs and gradients of em_routing on the unfolded windows, as ConvCapsules unfolds them.

    `shuffle`, unless 0, puts the children in another order, which changes nothing but the rounding.
    """
    leaves, (pose, activation, rotation, *betas), grid = unfolded(p, dtype)
    if shuffle:
        order = torch.randperm(len(rotation), generator=torch.Generator().manual_seed(shuffle))
        pose, activation, rotation = pose[:, order], activation[:, order], rotation[order]
    mode = "unit" if p.unit else "logistic"
    mean, z = em_routing(pose, activation, rotation, *betas, iterations=p.iterations, mode=mode)
    out = as_maps(mean, z if p.logit else torch.sigmoid(z), grid)
    grads = torch.autograd.grad(out, leaves, [x.to(dtype) for x in p.upstream])
    return [*(x.detach() for x in out), *grads]


def worst(got: Tensor, exact: Tensor) -> float:
    return (got.double() - exact).abs().max().item()


def nudged(p: Problem, seed: int) -> Problem:
    """The same problem, each input number up or down by half a unit in float32's last place."""
    generator = torch.Generator().manual_seed(seed)

    def nudge(x: Tensor) -> Tensor:
        return x.double() * (1 + 2.0**-24 * (2 * torch.randint(2, x.shape, generator=generator) - 1))

    return replace(p, **{name: nudge(getattr(p, name)) for name in NAMES})


def check(
    fused: Callable[[Problem], list[Tensor]], p: Problem, floor: float = 1e-6, grad_floor: float | None = None
) -> None:
    """The worst error of each output and gradient: at most four times float32's own, plus floor·scale.

    Float32's own: what torch is off by in four orders of the children (one alone is sometimes exact by luck), or what
    the exact result moves by when the inputs are rounded, whichever is more. With few children and many iterations the
    latter can be a lot.
    """
    exact, got = reference(p, torch.float64), fused(p)
    single = [reference(p, torch.float32, shuffle) for shuffle in range(4)]
    single += [reference(nudged(p, seed), torch.float64) for seed in range(4)]
    for name, e, g, *samples in zip(("mean", "active", *NAMES), exact, got, *single, strict=True):
        assert g.shape == e.shape
        share = floor if grad_floor is None or name in ("mean", "active") else grad_floor
        bound = 4 * max(worst(s, e) for s in samples) + share * e.abs().max().item() + 1e-30
        assert worst(g, e) <= bound, f"{name}: off by {worst(g, e):.3g}, allowed {bound:.3g}"


def check_an_odd_shape(fused: Callable[[Problem], list[Tensor]], data: st.DataObject, strides: int) -> None:
    """A problem of a size that nobody would think of."""

    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    window, channels = (draw(1, 5), draw(1, 5)), draw(1, 7)
    # With few children each round of routing makes more of the rounding of the one before, and a parent ends up with
    # one of them: see `test_extremes`. After four rounds of two children float32 is a matter of luck.
    few = window[0] * window[1] * channels < 8
    p = problem(
        (draw(window[0], 9), draw(window[1], 9)),
        batch=draw(1, 5),
        channels=channels,
        parents=draw(1, 20),
        window=window,
        stride=draw(1, strides),
        iterations=draw(1, 3 if few else 5),
        unit=data.draw(st.booleans()),
        logit=data.draw(st.booleans()),
        shared=data.draw(st.booleans()),
        seed=draw(0, 99),
    )
    check(fused, p, floor=3e-5 if few else 3e-6, grad_floor=1e-3 if few else None)


def changed(p: Problem) -> dict[str, dict]:
    """What makes a problem an extreme one, by case."""
    silent = torch.full_like(p.activation, 1e-6)
    silent[:, 0, ::3, ::3] = 1.0
    turned = torch.linalg.inv(p.rotation[:, :, :, 0]) @ torch.tensor([0.5, -1.0, 2.0])
    one, size = {"pose": p.pose[:, :1], "activation": p.activation[:, :1]}, p.pose.shape[-2:]
    return {
        "zeros": {"pose": torch.zeros_like(p.pose), "activation": torch.zeros_like(p.activation)},
        "equal poses": {"pose": torch.ones_like(p.pose)},
        "large poses": {"pose": 1e4 * p.pose},
        "far from zero": {"pose": 1e3 + p.pose, "rotation": torch.eye(3).expand_as(p.rotation).contiguous()},
        "silent": {"activation": torch.full_like(p.activation, 1e-30)},
        "sure and off": {"activation": (p.activation > 0.5).float()},
        "one loud child": {"activation": silent},
        "one child": {
            **one,
            "rotation": p.rotation[:1, :1, :1],
            "window": (1, 1),
            "upstream": (torch.ones(2, 4, 3, *size), torch.ones(2, 4, *size)),
        },
        "all agree": {
            "pose": turned.permute(2, 3, 0, 1)[None].contiguous(),
            "activation": p.activation[:1, :, :3, :3],
            "upstream": (torch.ones(1, 4, 3, 1, 1), torch.ones(1, 4, 1, 1)),
        },
        "far betas": {"beta_u": 1e3 * p.beta_u, "beta_a": 1e3 * p.beta_a},
    }


def extreme(case: str, unit: bool, size: tuple[int, int] = (7, 6)) -> Problem:
    p = problem(size, channels=4, iterations=3, unit=unit)
    return replace(p, **changed(p)[case])


EXTREMES = tuple(changed(problem()))


def trained_layers() -> list[Problem]:
    """The last two capsule layers of a network that ships, on what an image gives them."""
    network, _ = load_network(run_of("fashion-mnist-qcn"))
    problems: list[Problem] = []

    def keep(layer: Any, children: tuple[Tensor, Tensor]) -> None:
        rotation, betas = layer.rotors("reference"), (layer.rotors.beta_u, layer.rotors.beta_a)
        window, stride, classes = tuple(children[0].shape[-2:]), 1, rotation.dim() == 4
        if classes:
            rotation = rotation[None, None]
        else:
            window, stride = (layer.kernel, layer.kernel), layer.stride
        unit = layer.mode == "unit"
        problems.append(Problem(*children, rotation, *betas, window, stride, layer.iterations, unit, classes))

    for layer in (network.layers[-1], network.class_capsules):
        layer.register_forward_pre_hook(keep)
    torch.manual_seed(0)
    network.eval()(torch.rand(1, network.in_channels, 32, 32))
    return problems


def by(kernels: ModuleType) -> Callable[[Problem], list[Tensor]]:
    """Outputs and gradients by the kernels of a module."""

    def fused(p: Problem) -> list[Tensor]:
        *out, statistics = kernels.forward(p.inputs, p.layer, save=True)
        return [*out, *kernels.backward(p.inputs, p.layer, statistics, *p.upstream)]

    return fused


def check_refusals(kernels: ModuleType) -> None:
    """Shapes that do not fit, which a kernel would read past the end of."""
    p = problem((3, 3), batch=1)
    *_, statistics = kernels.forward(p.inputs, p.layer, save=True)
    grad_pose, grad_activation = p.upstream
    with pytest.raises(UsageError, match="activation must be"):
        kernels.forward((p.pose, p.activation[:, :1], *p.inputs[2:]), p.layer, save=False)
    with pytest.raises(UsageError, match="grad_pose must be"):
        kernels.backward(p.inputs, p.layer, statistics, grad_pose[:, :1], grad_activation)
    with pytest.raises(UsageError, match="statistics must be"):
        kernels.backward(p.inputs, p.layer, statistics[:1], *p.upstream)
    for axis in (torch.zeros(3, 3), torch.zeros(2)):
        with pytest.raises(UsageError, match="theta"):
            kernels.rotation(torch.zeros(2), axis)


def check_an_empty_batch(kernels: ModuleType) -> None:
    p = problem()
    empty = replace(p, pose=p.pose[:0], activation=p.activation[:0], upstream=tuple(x[:0] for x in p.upstream))
    mean, active, *gradients = by(kernels)(empty)
    assert mean.shape == (0, 4, 3, 5, 4) and active.shape == (0, 4, 5, 4) and gradients[0].shape == empty.pose.shape
    assert not any(x.any() for x in gradients)
    assert kernels.forward(p.inputs, p.layer, save=False)[2].numel() == 0  # nothing is saved unless asked for


def check_rotations(rotation: Callable[..., Tensor], backward: Callable[..., tuple[Tensor, Tensor]]) -> None:
    """Rotations and their gradients, of an axis of no length too."""
    theta, axis, upstream = torch.randn(3, 2, 5), torch.randn(3, 2, 5, 3), torch.randn(3, 2, 5, 3, 3)
    axis[0, 0, 0] = 0
    wide = [x.double().requires_grad_() for x in (theta, axis)]
    exact = rotation_matrix(rotor(*wide))
    torch.testing.assert_close(rotation(theta, axis).double(), exact, rtol=0, atol=1e-6)
    gradients = backward(theta, axis, upstream)
    for got, want in zip(gradients, torch.autograd.grad(exact, wide, upstream.double()), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)
