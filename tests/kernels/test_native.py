"""libqcn's routing against the reference: no further from float64 than four times what float32 torch is."""

import os
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import EXTREMES, NAMES, Problem, check, check_an_odd_shape, check_rotations, extreme, problem
from torch import Tensor

from qcn.errors import UsageError
from qcn.kernels import native


def fused(p: Problem) -> list[Tensor]:
    *out, statistics = native.forward(*p.inputs, **p.options, save=True)
    return [*out, *native.backward(*p.inputs, statistics, *p.upstream, **p.options)]


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
def test_a_layer_of_the_network(unit: bool) -> None:
    check(fused, problem((10, 9), batch=2, channels=32, parents=16, window=(5, 5), unit=unit))


def test_many_parents() -> None:
    check(fused, problem((6, 6), parents=64, channels=5, iterations=3))


@pytest.mark.parametrize("unit", [False, True])
def test_the_class_layer(unit: bool) -> None:
    check(fused, problem((4, 4), batch=6, channels=16, parents=5, window=(4, 4), shared=True, unit=unit, logit=True))


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


def test_rotations() -> None:
    check_rotations(native.rotation, native.rotation_backward)
    with pytest.raises(UsageError, match="theta"):
        native.rotation(torch.zeros(2), torch.zeros(3, 3))
    with pytest.raises(UsageError, match="theta"):
        native.rotation(torch.zeros(2), torch.zeros(2))


def test_an_empty_batch() -> None:
    p = problem()
    p = replace(p, pose=p.pose[:0], activation=p.activation[:0], upstream=tuple(x[:0] for x in p.upstream))
    mean, active, by_pose, _, by_rotation, *_ = fused(p)
    assert mean.shape == (0, 4, 3, 5, 4) and active.shape == (0, 4, 5, 4) and by_pose.shape == p.pose.shape
    assert not by_rotation.any()


def test_nothing_is_saved_unless_asked_for() -> None:
    p = problem()
    assert native.forward(*p.inputs, **p.options, save=False)[2].numel() == 0


def test_tensors_need_not_be_contiguous() -> None:
    p = problem((6, 6))
    turned = replace(p, pose=p.pose.mT.contiguous().mT, activation=p.activation.mT.contiguous().mT)
    assert not turned.pose.is_contiguous()
    assert torch.equal(fused(p)[0], fused(turned)[0])


def test_gradients_of_another_shape_are_refused() -> None:
    p = problem()
    *_, statistics = native.forward(*p.inputs, **p.options, save=True)
    with pytest.raises(UsageError, match="grad_pose must be"):
        native.backward(*p.inputs, statistics, p.upstream[0][:, :1], p.upstream[1], **p.options)
    with pytest.raises(UsageError, match="statistics must be"):
        native.backward(*p.inputs, statistics[:1], *p.upstream, **p.options)


def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QCN_LIBRARY", "/nowhere/libqcn.so")
    native._load.cache_clear()
    try:
        assert not native.available()
        assert "/nowhere/libqcn.so" in native.why_not() and "make build/libqcn.so" in native.why_not()
    finally:
        native._load.cache_clear()
