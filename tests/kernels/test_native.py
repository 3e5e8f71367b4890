"""libqcn's routing against the reference: no further from float64 than four times what float32 torch is."""

import os
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import (
    EXTREMES,
    NAMES,
    by,
    check,
    check_an_empty_batch,
    check_an_odd_shape,
    check_refusals,
    check_rotations,
    extreme,
    problem,
)

from qcn.kernels import native

fused = by(native)


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("iterations", [1, 2, 3, 4, 5])
def test_it_is_the_reference(iterations: int, stride: int, unit: bool) -> None:
    check(fused, problem(iterations=iterations, stride=stride, unit=unit))


# The same shapes each time: what float32 may lose is estimated by samples, and one shape in thousands exceeds it.
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_odd_shapes(data: st.DataObject) -> None:
    check_an_odd_shape(fused, data, strides=3)


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"size": (10, 9), "channels": 32, "parents": 16, "window": (5, 5)},
        {"size": (6, 6), "channels": 5, "parents": 64, "iterations": 3},
        {"size": (4, 4), "batch": 6, "channels": 16, "parents": 5, "window": (4, 4), "shared": True, "logit": True},
    ],
    ids=["a layer of the network", "many parents", "the class layer"],
)
def test_layers(options: dict, unit: bool) -> None:
    check(fused, problem(**options, unit=unit))


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("case", EXTREMES)
def test_extremes(case: str, unit: bool) -> None:
    p = extreme(case, unit)
    assert all(x.isfinite().all() for x in fused(p))
    # Where all of a parent's votes agree, its variance is the floor, 1e-4. A gradient divides by it the rounding of
    # the votes, 1e-7 of them, and each pass turns the poses anew and rounds anew.
    check(fused, p, grad_floor=1e-3 if case in ("one loud child", "one child") else None)


@pytest.mark.parametrize("name", NAMES)
def test_nan_comes_out_as_nan(name: str) -> None:
    p = problem((3, 3), batch=1)
    p = replace(p, **{name: getattr(p, name).clone()})
    getattr(p, name).view(-1)[0] = torch.nan
    mean, active, *grads = fused(p)
    assert mean.isnan().any() or active.isnan().any()
    assert any(x.isnan().any() for x in grads)


def test_the_same_bits_for_any_number_of_threads() -> None:
    p = problem((9, 8), channels=5, parents=7, iterations=3)
    want = None
    try:
        for threads in (1, 1, 2, 3, 0):
            native.set_threads(threads)
            got = fused(p)
            want = want or got
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    finally:
        native.set_threads(0)


def test_it_works_after_a_fork() -> None:
    p = problem((9, 8), channels=5)
    want = fused(p)[0]
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(fused(p)[0], want) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_rotations_refusals_and_an_empty_batch() -> None:
    check_rotations(native.rotation, native.rotation_backward)
    check_refusals(native)
    check_an_empty_batch(native)


def test_tensors_need_not_be_contiguous() -> None:
    p = problem((6, 6))
    turned = replace(p, pose=p.pose.mT.contiguous().mT, activation=p.activation.mT.contiguous().mT)
    assert not turned.pose.is_contiguous()
    assert torch.equal(fused(p)[0], fused(turned)[0])


def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QCN_LIBRARY", "/nowhere/libqcn.so")
    native._load.cache_clear()
    try:
        assert not native.available()
        assert "/nowhere/libqcn.so" in native.why_not() and "make build/libqcn.so" in native.why_not()
    finally:
        native._load.cache_clear()
