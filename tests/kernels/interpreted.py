"""The Triton kernels run by Triton's interpreter, on a CPU. test_interpreted.py starts this with TRITON_INTERPRET=1.

The interpreter is slow, so maps are small: 18 windows are enough for two tiles of windows, the second of them not full.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from half_problems import check_plan, check_rounding
from problems import (
    Problem,
    by,
    check,
    check_an_empty_batch,
    check_refusals,
    check_rotations,
    extreme,
    problem,
    trained_layers,
)
from torch import Tensor

from qcn.kernels import launch, triton_half
from qcn.kernels.shapes import Layer

fused = by(launch)


def first_image(p: Problem) -> Problem:
    upstream = (p.upstream[0][:1], p.upstream[1][:1])
    return replace(p, pose=p.pose[:1], activation=p.activation[:1], upstream=upstream)


@pytest.mark.parametrize(
    "options",
    [
        {"size": (5, 5), "iterations": 1, "logit": True},
        {"size": (5, 5), "iterations": 3, "unit": True},
        {"stride": 2, "window": (2, 3)},
        {"size": (5, 5), "parents": 5, "channels": 5},
        {"size": (4, 4), "parents": 1, "window": (1, 2)},
        {"iterations": 1},
        {"iterations": 3, "unit": True, "logit": True},
        {"parents": 5, "channels": 5},
        {"parents": 1, "window": (1, 2)},
        {"parents": 20, "size": (3, 4), "batch": 1},
        {"batch": 3, "size": (4, 4), "window": (4, 4), "shared": True, "logit": True},
    ],
    ids=str,
)
def test_it_is_the_reference(options: dict) -> None:
    check(fused, problem(**options), floor=3e-6)


@pytest.mark.parametrize("size", [(4, 4), (7, 6)])
@pytest.mark.parametrize("case", ["far from zero", "one loud child", "all agree"])
def test_extremes(case: str, size: tuple[int, int]) -> None:
    p = first_image(extreme(case, unit=False, size=size))
    found = fused(p)
    assert all(x.isfinite().all() for x in found)
    check(lambda _: found, p, grad_floor=1e-3 if case == "one loud child" else None)


def test_a_child_far_from_every_parent() -> None:
    p = problem((4, 4))
    p.pose[:, 1, :, 1, 1], p.activation[:, 1, 1, 1] = 1e3, 1e-9
    check(fused, p)


def test_rotations_refusals_and_an_empty_batch() -> None:
    check_rotations(launch.rotation, launch.rotation_backward)
    parents_last = (36, 1, 12, 4)  # what torch.compile relies on, see test_operator.py
    assert launch.rotation(torch.randn(5, 4), torch.randn(5, 4, 3)).stride() == parents_last
    check_refusals(launch)
    check_an_empty_batch(launch)


class NoRepair:
    """In place of `repair_kernel`: what the half-precision kernel leaves is the answer."""

    def __getitem__(self, grid: Any) -> Any:
        return lambda *tensors, **constants: None


def in_half(p: Problem, split: int, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    monkeypatch.setattr(launch, "_half_split", lambda *_: split)
    return list(launch.forward(p.inputs, p.layer, save=False, half=True)[:2])


@pytest.mark.parametrize(
    ("split", "options"),
    [
        (4, {"size": (5, 5), "iterations": 1}),
        (1, {}),
        (2, {"size": (4, 4), "iterations": 3, "unit": True}),
        (4, {"stride": 2, "window": (2, 3)}),
        (2, {"size": (4, 4), "parents": 16, "channels": 5}),
        (4, {"size": (4, 4), "parents": 1, "window": (1, 2), "channels": 8}),
        (1, {"batch": 7, "size": (4, 4), "window": (4, 4), "shared": True, "channels": 6, "logit": True}),
    ],
    ids=str,
)
def test_half_precision_rounds_where_it_says(split: int, options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "repair_kernel", NoRepair())
    p = problem(**options)
    got = in_half(p, split, monkeypatch)
    check_rounding(p, got)
    check_plan(p, got)


@torch.no_grad()
def test_half_precision_routes_trained_layers_as_the_plan_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last two capsule layers of a network that ships, on what an image gives them; no window needs repair."""
    monkeypatch.setattr(launch, "repair_kernel", NoRepair())
    for p in trained_layers():
        check_plan(p, in_half(p, 2, monkeypatch))


@pytest.mark.parametrize("iterations", [1, 2])
def test_a_variance_in_float16_is_found(iterations: int, monkeypatch: pytest.MonkeyPatch) -> None:
    right = triton_half.m_step

    def faulty(*arguments: Any) -> Any:
        mass, mean, variance, bad = right(*arguments)
        short = [x.to(triton_half.tl.float16).to(triton_half.tl.float32) for x in variance]
        return mass, mean, tuple(short), bad

    p = problem((5, 5), iterations=iterations)
    monkeypatch.setattr(triton_half, "m_step", faulty)
    got = in_half(p, 4, monkeypatch)
    check_plan(p, got)  # which does not see it
    with pytest.raises(AssertionError, match="from its own rounding"):
        check_rounding(p, got)


@pytest.mark.parametrize("case", ["far from zero", "one loud child", "all agree", "a child far from every parent"])
def test_what_float16_cannot_do_is_done_in_float32(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if case == "a child far from every parent":
        p = problem((3, 3))
        p.pose[:, 1, :, 1, 1], p.activation[:, 1, 1, 1] = 1e5, 1e-9
    else:
        p = first_image(extreme(case, unit=False, size=(4, 4)))
    found = fused(p)
    found[:2] = in_half(p, 2, monkeypatch)
    check(lambda _: found, p, grad_floor=1e-3 if case == "one loud child" else None)


def test_nan_in_nan_out_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem((4, 4), batch=1)
    p.pose[0, 1, 2, 0, 0] = float("nan")
    pose, activation = in_half(p, 2, monkeypatch)
    assert pose[0, :, :, 0, 0].isnan().any() and activation[0, :, 1, 1].isfinite().all()


def test_with_gradients_it_is_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem((4, 4))
    monkeypatch.setattr(launch, "_half_split", lambda *_: 2)
    half, single = (launch.forward(p.inputs, p.layer, save=True, half=half) for half in (True, False))
    assert all(torch.equal(got, want) for got, want in zip(half, single, strict=True))


@pytest.mark.parametrize(
    ("channels", "size", "window", "parents", "batch", "split"),
    [
        (32, 16, 5, 16, 64, 4),
        (32, 16, 5, 16, 1, 0),  # few windows: float32 shares their children out over more threads
        (16, 12, 5, 16, 64, 0),  # too few children to be worth its start
        (16, 4, 4, 10, 256, 0),
        (32, 16, 5, 17, 64, 0),  # more parents than a tile has
    ],
)
def test_where_half_precision_runs(
    channels: int, size: int, window: int, parents: int, batch: int, split: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU of 132 multiprocessors, as was timed on one."""
    monkeypatch.setattr(launch, "_multiprocessors", lambda _: 132)
    pose, rotation = torch.empty(1, channels, 3, size, size), torch.empty(window, window, channels, parents, 3, 3)
    side = size - window + 1
    layer = Layer((window, window), 1, 2, False, False)
    geometry = launch._geometry((pose, pose, rotation), layer, (1, parents, side, side))
    assert launch._half_split(geometry, batch * side * side, pose.device) == split
