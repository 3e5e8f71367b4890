"""The algebra, as properties, in float32 and float64."""

import pytest
import torch
from torch import Tensor

from qcn.quaternion import conjugate, hamilton_product, rotate, rotation_matrix, rotor

ONE, UNIT_I, UNIT_J, UNIT_K = torch.eye(4, dtype=torch.float64)


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def q(request: pytest.FixtureRequest) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 50, 4, generator=generator, dtype=torch.float64).to(request.param)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=2e-5 if a.dtype == torch.float32 else 1e-12)


def test_the_basis_multiplies_as_hamilton_says() -> None:
    for a, b, c in ((UNIT_I, UNIT_J, UNIT_K), (UNIT_J, UNIT_K, UNIT_I), (UNIT_K, UNIT_I, UNIT_J)):
        close(hamilton_product(a, b), c)
        close(hamilton_product(b, a), -c)
        close(hamilton_product(a, a), -ONE)


def test_product_is_associative_and_keeps_norms(q: Tensor) -> None:
    a, b, c = q[0], q[1], q[2]
    left = hamilton_product(hamilton_product(a, b), c)
    scale = left.abs().max()
    close(left / scale, hamilton_product(a, hamilton_product(b, c)) / scale)
    norms = a.norm(dim=-1) * b.norm(dim=-1)
    close(hamilton_product(a, b).norm(dim=-1) / norms, torch.ones_like(norms))


def test_rotation_is_the_sandwich_product(q: Tensor) -> None:
    unit = rotor(q[0, :, 0], q[0, :, 1:])
    v = q[1, :, 1:]
    pure = torch.cat([torch.zeros_like(v[:, :1]), v], dim=1)
    sandwich = hamilton_product(hamilton_product(unit, pure), conjugate(unit))
    close(sandwich[:, 0], torch.zeros_like(sandwich[:, 0]))
    close(sandwich[:, 1:], rotate(unit, v))


def test_a_rotor_turns_by_twice_theta() -> None:
    quarter = rotor(torch.tensor(torch.pi / 4), torch.tensor([0.0, 0.0, 5.0]))
    close(rotate(quarter, torch.tensor([1.0, 0.0, 0.0])), torch.tensor([0.0, 1.0, 0.0]))


def test_rotation_matrices_are_rotations(q: Tensor) -> None:
    unit = rotor(q[0, :, 0], q[0, :, 1:])
    close(unit.norm(dim=-1), torch.ones_like(unit[:, 0]))
    matrix = rotation_matrix(unit)
    close(matrix @ matrix.mT, torch.eye(3, dtype=q.dtype).expand_as(matrix))
    close(torch.linalg.det(matrix), torch.ones_like(unit[:, 0]))
    close(rotation_matrix(conjugate(unit)), matrix.mT)


def test_rotations_compose_as_rotors_multiply(q: Tensor) -> None:
    a, b = rotor(q[0, :, 0], q[0, :, 1:]), rotor(q[1, :, 0], q[1, :, 1:])
    close(rotation_matrix(hamilton_product(a, b)), rotation_matrix(a) @ rotation_matrix(b))


def test_an_axis_of_length_zero_stays_finite() -> None:
    axis = torch.zeros(3, requires_grad=True)
    q = rotor(torch.tensor(0.3), axis)
    q.sum().backward()
    assert q.isfinite().all() and axis.grad is not None and axis.grad.isfinite().all()
