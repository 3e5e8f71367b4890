"""The Triton kernels run by Triton's interpreter, on a CPU. test_interpreted.py starts this with TRITON_INTERPRET=1.

The interpreter is slow, so maps are small: 18 windows are enough for two tiles of windows, the second of them not full.
"""

from dataclasses import replace

import pytest
import torch
from problems import Problem, check, check_rotations, extreme, problem
from torch import Tensor

from qcn.errors import UsageError
from qcn.kernels import cuda


def fused(p: Problem) -> list[Tensor]:
    *out, statistics = cuda.forward(*p.inputs, **p.options, save=True)
    return [*out, *cuda.backward(*p.inputs, statistics, *p.upstream, **p.options)]


def first_image(p: Problem) -> Problem:
    upstream = (p.upstream[0][:1], p.upstream[1][:1])
    return replace(p, pose=p.pose[:1], activation=p.activation[:1], upstream=upstream)


def larger(options: dict) -> object:
    """The same at the size that the kernels for the CPU are tested at."""
    return pytest.param(options, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "options",
    [
        {"size": (5, 5), "iterations": 1},
        {"size": (5, 5), "iterations": 3, "unit": True},
        {"stride": 2, "window": (2, 3)},
        {"size": (5, 5), "parents": 5, "channels": 5},
        {"size": (4, 4), "parents": 1, "window": (1, 2)},
        larger({"iterations": 1}),
        larger({"iterations": 3, "unit": True}),
        larger({"parents": 5, "channels": 5}),
        larger({"parents": 1, "window": (1, 2)}),
        {"parents": 20, "size": (3, 4), "batch": 1},
        {"batch": 7, "size": (4, 4), "window": (4, 4), "shared": True},
    ],
    ids=str,
)
def test_it_is_the_reference(options: dict) -> None:
    check(fused, problem(**options), floor=3e-6)


@pytest.mark.parametrize("size", [(4, 4), pytest.param((7, 6), marks=pytest.mark.slow)])
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


def test_an_empty_batch() -> None:
    p = problem(batch=1)
    mean, active, *gradients = fused(
        replace(p, pose=p.pose[:0], activation=p.activation[:0], upstream=tuple(x[:0] for x in p.upstream))
    )
    assert mean.shape == (0, 4, 3, 5, 4) and active.shape == (0, 4, 5, 4)
    assert not any(x.any() for x in gradients)


def test_rotations() -> None:
    check_rotations(cuda.rotation, cuda.rotation_backward)
    parents_last = (36, 1, 12, 4)  # what torch.compile relies on, see test_operator.py
    assert cuda.rotation(torch.randn(5, 4), torch.randn(5, 4, 3)).stride() == parents_last


def test_wrong_shapes_are_refused() -> None:
    p = problem((3, 3))
    *_, statistics = cuda.forward(*p.inputs, **p.options, save=True)
    with pytest.raises(UsageError, match="activation must be"):
        cuda.forward(p.pose, p.activation[:, :1], *p.inputs[2:], **p.options, save=False)
    with pytest.raises(UsageError, match="grad_pose must be"):
        cuda.backward(*p.inputs, statistics, p.upstream[0][:, :1], p.upstream[1], **p.options)
    with pytest.raises(UsageError, match="theta"):
        cuda.rotation(torch.zeros(2), torch.zeros(3, 3))
