"""The operator against its formula, written out once more in loops, and against what must hold of it."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quaternions import conjugate, hamilton_product, turned
from torch import Tensor

from qcn import routing
from qcn.errors import MissingError, UsageError
from qcn.names import Kernels, Mode
from qcn.networks.model import choose_kernels, qcn_tiny
from qcn.quaternion import rotation_matrix, rotor

MODES: tuple[Mode, Mode] = ("logistic", "unit")


def problem(n: int, i: int, j: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """pose, activation, rotor, beta_u, beta_a."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    activation = torch.sigmoid(2 * normal(n, i))
    return [normal(n, i, 3), activation, rotor(normal(i, j), normal(i, j, 3)), 0.3 * normal(j), 0.3 * normal(j)]


def em_routing(pose: Tensor, activation: Tensor, q: Tensor, *rest: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """The operator, given rotors instead of rotations."""
    return routing.em_routing(pose, activation, rotation_matrix(q), *rest, **options)


def by_the_book(
    pose: np.ndarray, active: np.ndarray, q: np.ndarray, *betas: np.ndarray, iterations: int, mode: str
) -> tuple[np.ndarray, np.ndarray]:
    """The formula for one window, in Python loops and quaternion products."""
    (children, parents), (beta_u, beta_a) = q.shape[:2], betas
    votes = np.empty((children, parents, 3))
    for i in range(children):
        for j in range(parents):
            votes[i, j] = turned(torch.tensor(q[i, j]), torch.tensor(pose[i])).numpy()
    r = np.repeat(active[:, None] / parents, parents, axis=1)
    for _ in range(iterations):
        mass = r.sum(0)
        mean = np.einsum("ij,ijh->jh", r, votes) / (mass + 1e-6)[:, None]
        variance = np.einsum("ij,ijh->jh", r, (votes - mean) ** 2) / (mass + 1e-6)[:, None] + 1e-4
        z = np.empty(parents)
        for j in range(parents):
            cost = sum(beta_u[j] + 0.5 * math.log(variance[j, h]) for h in range(3))
            z[j] = beta_a[j] - cost * mass[j] * 2 * parents / children
        if mode == "unit":
            z /= np.sqrt((z**2).sum())
        a = 1 / (1 + np.exp(-z))
        for i in range(children):
            density = [
                a[j] * np.prod(np.exp(-((votes[i, j] - mean[j]) ** 2) / (2 * variance[j])) / np.sqrt(variance[j]))
                for j in range(parents)
            ]
            r[i] = active[i] * np.array(density) / sum(density)
    return mean, z


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
def test_it_is_the_formula(mode: Mode, iterations: int) -> None:
    inputs = problem(2, 6, 4)
    pose, logit = em_routing(*inputs, iterations=iterations, mode=mode)
    for window in range(2):
        book = [inputs[0][window], inputs[1][window], *inputs[2:]]
        mean, z = by_the_book(*(x.numpy() for x in book), iterations=iterations, mode=mode)
        np.testing.assert_allclose(pose[window].numpy(), mean, rtol=0, atol=1e-12)
        np.testing.assert_allclose(logit[window].numpy(), z, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_gradients(mode: Mode) -> None:
    inputs = [x.requires_grad_() for x in problem(2, 5, 3)]
    assert torch.autograd.gradcheck(lambda *x: em_routing(*x, iterations=3, mode=mode), inputs)


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 5), i=st.integers(1, 40), j=st.integers(1, 20), t=st.integers(1, 5), mode=st.sampled_from(MODES)
)
def test_float32_agrees_with_float64(n: int, i: int, j: int, t: int, mode: Mode) -> None:
    wide = problem(n, i, j)
    # From the same float32 inputs: what differs is the arithmetic alone.
    narrow = [x.float() for x in wide]
    exact = em_routing(*(x.double() for x in narrow), iterations=t, mode=mode)
    for got, want in zip(em_routing(*narrow, iterations=t, mode=mode), exact, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-3, atol=1e-3)
        assert (got.double() - want).abs().median() < 1e-5 * max(1.0, want.abs().max().item())  # a logit may be 30


@pytest.mark.parametrize("mode", MODES)
def test_the_order_of_children_and_of_parents_does_not_matter(mode: Mode) -> None:
    pose, activation, q, beta_u, beta_a = problem(3, 12, 6)
    want = em_routing(pose, activation, q, beta_u, beta_a, iterations=3, mode=mode)
    i, j = torch.randperm(12), torch.randperm(6)
    got = em_routing(pose[:, i], activation[:, i], q[i][:, j], beta_u[j], beta_a[j], iterations=3, mode=mode)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b[:, j])


def test_turning_the_children_and_turning_the_rotors_back_cancels() -> None:
    pose, activation, q, *betas = problem(3, 12, 6)
    g = rotor(torch.tensor(0.7, dtype=torch.float64), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    back = em_routing(turned(g.expand(3, 12, 4), pose), activation, hamilton_product(q, conjugate(g)), *betas)
    for a, b in zip(back, em_routing(pose, activation, q, *betas), strict=True):
        torch.testing.assert_close(a, b)


def test_children_that_agree_make_a_sure_parent() -> None:
    pose, activation, q, *betas = problem(1, 20, 2)
    goal = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    pose[0] = turned(
        conjugate(q[:, 0]), goal.expand(20, 3)
    )  # every child votes `goal` for parent 0, anything for parent 1
    parents, logit = em_routing(pose, activation, q, *betas)
    torch.testing.assert_close(parents[0, 0], goal)
    assert torch.sigmoid(logit[0, 0]) > 0.99
    # Nobody is left for parent 1: without mass its logit is its bias.
    torch.testing.assert_close(logit[0, 1], betas[1][1], rtol=0, atol=0.2)


def test_a_child_that_is_not_there_has_no_say() -> None:
    pose, activation, q, *betas = problem(2, 10, 4)
    activation[:, 3] = 0
    want = em_routing(pose, activation, q, *betas)
    pose[:, 3] = 100.0
    for a, b in zip(em_routing(pose, activation, q, *betas), want, strict=True):
        torch.testing.assert_close(a, b)


def test_the_logits_of_unit_mode_have_a_norm_of_one() -> None:
    _, z = em_routing(*problem(50, 30, 5), mode="unit")
    torch.testing.assert_close(z.norm(dim=1), torch.ones(50, dtype=z.dtype))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", ["zeros", "equal poses", "large poses", "silent", "one loud child"])
def test_extreme_inputs_stay_finite(case: str, mode: Mode) -> None:
    pose, activation, *others = problem(3, 16, 4, dtype=torch.float32)
    loud = torch.full_like(activation, 1e-6)
    loud[:, 0] = 1.0
    pose, activation = {
        "zeros": (torch.zeros_like(pose), torch.zeros_like(activation)),
        "equal poses": (torch.ones_like(pose), activation),
        "large poses": (1e4 * pose, activation),
        "silent": (pose, torch.full_like(activation, 1e-30)),
        "one loud child": (pose, loud),
    }[case]
    inputs = [x.requires_grad_() for x in (pose, activation, *others)]
    out = em_routing(*inputs, iterations=3, mode=mode)
    (out[0].sum() + out[1].sum()).backward()
    assert all(x.isfinite().all() for x in out)
    assert all(x.grad is not None and x.grad.isfinite().all() for x in inputs)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"iterations": 0}, "from 1 to 5"),
        ({"iterations": 6}, "from 1 to 5"),
        ({"mode": "softmax"}, "'logistic' or 'unit'"),
        ({"activation": torch.zeros(2, 7)}, "activation must be"),
        ({"rotation": torch.zeros(6, 4, 3, 4)}, "rotation must be"),
        ({"beta_a": torch.zeros(5)}, "beta_a must be"),
        ({"pose": torch.zeros(6, 3)}, "expected pose"),
    ],
)
def test_wrong_arguments_are_refused(change: dict, says: str) -> None:
    pose, activation, q, *betas = problem(2, 6, 4, dtype=torch.float32)
    names = ("pose", "activation", "rotation", "beta_u", "beta_a")
    arguments = dict(zip(names, (pose, activation, rotation_matrix(q), *betas), strict=True))
    with pytest.raises(UsageError, match=says):
        routing.em_routing(**{**arguments, **change})


@pytest.mark.parametrize("half", [None, torch.float16])
@pytest.mark.parametrize("mode", MODES)
def test_an_answer_in_pieces_is_that_of_all_windows_at_once(
    mode: Mode, half: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    pose, rotation = (torch.randn(*shape, generator=generator) for shape in ((2, 5, 3, 7, 6), (3, 3, 5, 4, 3, 3)))
    layer = (pose, torch.rand(2, 5, 7, 6, generator=generator), rotation, torch.zeros(4), torch.ones(4))

    def routed() -> tuple[Tensor, Tensor]:
        return routing.route(*layer, window=(3, 3), mode=mode, logit=True, kernels="reference", half=half)

    whole = routed()
    monkeypatch.setattr(routing, "PIECE", 3 * 4 * 45 * 4 * 6)  # six of the forty windows
    sizes = list[int]()
    one = routing.em_routing
    monkeypatch.setattr(routing, "em_routing", lambda pose, *a, **b: (sizes.append(len(pose)), one(pose, *a, **b))[1])
    with torch.inference_mode():
        pieces = routed()
    assert sizes == [6] * 6 + [4]
    torch.testing.assert_close(pieces, whole, rtol=1e-5, atol=1e-5)


def test_a_map_is_routed_window_by_window() -> None:
    pose, activation = torch.randn(2, 3, 3, 6, 5).double(), torch.rand(2, 3, 6, 5).double()
    q = rotor(torch.randn(3, 2, 3, 4).double(), torch.randn(3, 2, 3, 4, 3).double())
    betas = torch.randn(4).double(), torch.randn(4).double()
    parents, active = routing.route(pose, activation, rotation_matrix(q), *betas, window=(3, 2), stride=2)
    assert parents.shape == (2, 4, 3, 2, 2) and active.shape == (2, 4, 2, 2)
    # The window at row 1, column 0 of the second image; its children in the order place by place, channel by channel.
    children = pose[1, :, :, 2:5, 0:2].permute(2, 3, 0, 1).reshape(1, 18, 3)
    weights = activation[1, :, 2:5, 0:2].permute(1, 2, 0).reshape(1, 18)
    mean, z = em_routing(children, weights, q.reshape(18, 4, 4), *betas)
    torch.testing.assert_close(parents[1, :, :, 1, 0], mean[0])
    torch.testing.assert_close(active[1, :, 1, 0], torch.sigmoid(z[0]))
    _, logit = routing.route(pose, activation, rotation_matrix(q), *betas, window=(3, 2), stride=2, logit=True)
    torch.testing.assert_close(logit[1, :, 1, 0], z[0])


@pytest.mark.parametrize(
    ("dtype", "parents", "says"),
    [(torch.float64, 4, "no fused kernel for torch.float64 on a CPU"), (torch.float32, 65, "at most 64 parents")],
)
def test_fused_routing_is_refused_where_there_is_none(dtype: torch.dtype, parents: int, says: str) -> None:
    pose, activation = torch.randn(1, 2, 3, 2, 2, dtype=dtype), torch.rand(1, 2, 2, 2, dtype=dtype)
    rotation, beta = torch.eye(3, dtype=dtype).expand(2, 2, 2, parents, 3, 3), torch.zeros(parents, dtype=dtype)
    with pytest.raises(MissingError, match=says):
        routing.route(pose, activation, rotation, beta, beta, window=(2, 2), kernels="fused")
    _, active = routing.route(pose, activation, rotation, beta, beta, window=(2, 2))
    assert active.shape == (1, parents, 1, 1)


def test_fused_and_reference_are_one_operator_in_a_network() -> None:
    network = qcn_tiny(2, 5)
    image, results = torch.randn(3, 2, 32, 32), {}
    for kernels in ("reference", "fused"):
        choose_kernels(network, kernels)
        network.zero_grad()
        prediction = network(image)
        prediction.activation.square().sum().backward()
        results[kernels] = [*prediction, *(p.grad.clone() for p in network.parameters() if p.grad is not None)]
    for got, want in zip(results["fused"], results["reference"], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"window": (3, 4)}, "do not fit a map of 3×3"),
        ({"stride": 0}, "stride 0"),
        ({"activation": torch.zeros(1, 2, 3, 2)}, "activation must be"),
        ({"rotation": torch.zeros(1, 2, 2, 4, 3, 3)}, "rotation must be"),
        ({"pose": torch.zeros(1, 2, 4, 3, 3)}, "pose must be"),
        ({"pose": torch.zeros(2, 3, 3, 3)}, "expected pose"),
        ({"beta_u": torch.zeros(3)}, "beta_u must be"),
        ({"iterations": 6}, "from 1 to 5"),
    ],
)
@pytest.mark.parametrize("kernels", ["fused", "reference"])
def test_a_map_that_does_not_fit_is_refused(kernels: Kernels, change: dict, says: str) -> None:
    arguments = {
        "pose": torch.zeros(1, 2, 3, 3, 3),
        "activation": torch.zeros(1, 2, 3, 3),
        "rotation": torch.zeros(2, 2, 2, 4, 3, 3),
        "beta_u": torch.zeros(4),
        "beta_a": torch.zeros(4),
        "window": (2, 2),
    }
    with pytest.raises(UsageError, match=says):
        routing.route(**{**arguments, **change}, kernels=kernels)


@pytest.mark.parametrize("kernels", ["fused", pytest.param("reference", marks=pytest.mark.slow)])
def test_torch_compile_finds_one_graph(kernels: Kernels) -> None:
    network = qcn_tiny(1, 3)
    choose_kernels(network, kernels)
    image = torch.randn(2, 1, 28, 28)
    want = network(image).activation
    got = torch.compile(network, backend="aot_eager", fullgraph=True)(image).activation
    got.sum().backward()
    torch.testing.assert_close(got, want)
    assert all(p.grad is not None for p in network.class_capsules.rotors.parameters())
