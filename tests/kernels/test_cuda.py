"""The Triton kernels against the reference, on a GPU; tests/kernels/test_interpreted.py runs them without one."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from half_problems import check_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import EXTREMES, Problem, check, check_an_odd_shape, extreme, problem, worst
from torch import Tensor

from qcn import create, kernels
from qcn.export.backends.torch.interpreter import Interpreter
from qcn.export.bundle.tolerance import FLOORS
from qcn.export.program.lower import lower
from qcn.export.program.quantise import halved
from qcn.networks.model import choose_kernels, qcn, qcn_tiny
from qcn.routing import route

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def on_gpu(p: Problem) -> Problem:
    changes = {name: getattr(p, name).cuda() for name in ("pose", "activation", "rotation", "beta_u", "beta_a")}
    return replace(p, **changes, upstream=tuple(x.cuda() for x in p.upstream))


def fused(p: Problem) -> list[Tensor]:
    """Outputs and gradients through the torch operator."""
    p = on_gpu(p)
    leaves = [x.clone().requires_grad_() for x in p.inputs]
    *out, _ = kernels.route(*leaves, list(p.window), p.stride, p.iterations, p.unit, p.logit, True)
    gradients = torch.autograd.grad(out, leaves, p.upstream)
    return [x.detach().cpu() for x in (*out, *gradients)]


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
def test_it_is_the_reference(iterations: int, stride: int, unit: bool) -> None:
    check(fused, problem(iterations=iterations, stride=stride, unit=unit))


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_odd_shapes(data: st.DataObject) -> None:
    check_an_odd_shape(fused, data, strides=2)


@pytest.mark.parametrize(("batch", "parents"), [(1, 16), (64, 16), (1000, 16), (3, 64), (3, 5), (2, 1)])
def test_many_images_and_many_parents(batch: int, parents: int) -> None:
    check(fused, problem((6, 7), batch=batch, channels=8, parents=parents))


def test_the_class_layer() -> None:
    check(fused, problem((4, 4), batch=6, channels=16, parents=5, window=(4, 4), shared=True, logit=True))


@pytest.mark.parametrize("case", EXTREMES)
def test_extremes(case: str) -> None:
    p = extreme(case, unit=False)
    assert all(x.isfinite().all() for x in fused(p))
    check(fused, p, grad_floor=1e-3 if case in ("one loud child", "one child") else None)


def test_a_child_far_from_every_parent() -> None:
    p = problem(channels=8, window=(5, 5), size=(6, 6))
    pose, activation = p.pose.clone(), p.activation.clone()
    pose[:, 3, :, 2, 2], activation[:, 3, 2, 2] = 1e3, 1e-9
    check(fused, replace(p, pose=pose, activation=activation))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_that_of_the_inputs_alone(dtype: torch.dtype) -> None:
    p = on_gpu(problem(channels=8))
    pose, activation = p.pose.to(dtype), p.activation.to(dtype)
    options = (list(p.window), p.stride, p.iterations, p.unit, p.logit, False)
    got = kernels.route(pose, activation, *p.inputs[2:], *options)
    wide = kernels.route(pose.float(), activation.float(), *p.inputs[2:], *options)
    for narrow, want in zip(got[:2], wide[:2], strict=True):
        assert narrow.dtype == dtype
        torch.testing.assert_close(narrow, want.to(dtype), rtol=0, atol=0)


def in_half(p: Problem, split: int, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    from qcn.kernels import launch

    monkeypatch.setattr(launch, "_half_split", lambda *_: split)
    return list(launch.forward(on_gpu(p).inputs, p.layer, save=False, half=True)[:2])


@pytest.mark.parametrize("split", [1, 2, 4])
@pytest.mark.parametrize(
    "options",
    [
        {"iterations": 1},
        {"iterations": 3, "unit": True},
        {"stride": 2, "window": (2, 3)},
        {"size": (16, 16), "batch": 8, "channels": 32, "parents": 16, "window": (5, 5)},
        {"size": (9, 8), "batch": 16, "channels": 6, "parents": 10},
        {"size": (4, 4), "batch": 6, "channels": 16, "parents": 5, "window": (4, 4), "shared": True, "logit": True},
    ],
    ids=str,
)
def test_half_precision_is_as_near_as_the_plan_allows(
    options: dict, split: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = problem(**options)
    got = in_half(p, split, monkeypatch)
    check_plan(p, got)
    again, single = in_half(p, split, monkeypatch), fused(p)[:2]
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
    assert not torch.equal(got[0].cpu(), single[0])


@pytest.mark.parametrize("case", EXTREMES)
def test_extremes_in_half_precision(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = extreme(case, unit=False)
    got = in_half(p, 2, monkeypatch)
    assert all(x.isfinite().all() for x in got)
    check_plan(p, got)


def test_a_calibrated_network_is_routed_in_half_precision_also_in_a_cuda_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    from qcn.kernels import launch

    chosen, splits = launch._half_split, []

    def noted(*arguments: Any) -> int:
        splits.append(chosen(*arguments))
        return splits[-1]

    monkeypatch.setattr(launch, "_half_split", noted)
    torch.manual_seed(0)
    program = lower(create("qcn", in_channels=1, classes=10), 32, 32)
    for op in program.routes:
        program = halved(program, op.name)
    image = torch.randn(64, 1, 32, 32, device="cuda")
    model, plan = (Interpreter(program, kernels=kernels).cuda() for kernels in ("fused", "reference"))
    with torch.inference_mode():
        got = model(image)
        assert len(splits) == len(program.routes) and any(splits)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = model(image)
        graph.replay()
        few = image[:16]
        planned, exact = plan(few), plan.double()(few.double())
    for a, b, p, e in zip(got, captured, planned, exact, strict=True):
        assert torch.equal(a, b)
        assert worst(a[:16], e) <= FLOORS["plan"] * worst(p, e)  # after all layers: verify-parity's rule


def test_the_same_bits_twice() -> None:
    p = problem((9, 8), batch=16, channels=16, parents=16)
    for a, b in zip(fused(p), fused(p), strict=True):
        assert torch.equal(a, b)


def test_torch_agrees_that_it_is_an_operator() -> None:
    p = on_gpu(problem())
    inputs = [x.clone().requires_grad_() for x in p.inputs]
    arguments = (*inputs, list(p.window), p.stride, p.iterations, p.unit, p.logit, True)
    torch.library.opcheck(kernels.route, arguments)
    angles, axes = torch.randn(5, 4, device="cuda"), torch.randn(5, 4, 3, device="cuda")
    torch.library.opcheck(kernels.rotation, (angles.requires_grad_(), axes.requires_grad_()))


def test_it_compiles_without_a_graph_break() -> None:
    network = qcn_tiny(2, 5).cuda()
    image = torch.randn(4, 2, 32, 32, device="cuda")
    want = network(image).activation
    want.sum().backward()
    gradient = network.layers[0].rotors.theta.grad.clone()
    network.zero_grad()
    got = torch.compile(network, fullgraph=True)(image).activation
    got.sum().backward()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(network.layers[0].rotors.theta.grad, gradient, rtol=1e-3, atol=1e-5)


def test_it_runs_in_a_cuda_graph() -> None:
    network = qcn(2, 5).cuda().eval()
    image = torch.randn(3, 2, 32, 32, device="cuda")
    with torch.inference_mode():
        want = network(image).activation
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            network(image)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = network(image).activation
        graph.replay()
    assert torch.equal(got, want)


def test_the_whole_network_answers_as_with_the_reference() -> None:
    network = qcn(2, 5).cuda().eval()
    image = torch.randn(3, 2, 32, 32, device="cuda")
    with torch.inference_mode():
        got = network(image)
        choose_kernels(network, "reference")
        want = network(image)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_no_vote_is_written() -> None:
    p = on_gpu(problem((16, 16), batch=64, channels=32, parents=16, window=(5, 5)))
    leaves = [x.clone().requires_grad_() for x in p.inputs]
    votes = 64 * 12 * 12 * 800 * 16 * 3 * 4

    def both() -> None:
        out = route(*leaves, window=p.window, kernels="fused")
        torch.autograd.grad(out, leaves, [torch.ones_like(x) for x in out])

    both()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    both()
    assert torch.cuda.max_memory_allocated() - before < votes / 4
