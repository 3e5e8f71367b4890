"""Rotors and their rotations against quaternion products, in float32 and float64."""

import pytest
import torch
from quaternions import conjugate, hamilton_product, turned
from torch import Tensor

from qcn.quaternion import rotation_matrix, rotor


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=2e-5 if a.dtype == torch.float32 else 1e-12)


def test_the_basis_multiplies_as_hamilton_says() -> None:
    one, i, j, k = torch.eye(4)
    for a, b, c in ((i, j, k), (j, k, i), (k, i, j)):
        close(hamilton_product(a, b), c)
        close(hamilton_product(b, a), -c)
        close(hamilton_product(a, a), -one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_matrix_of_a_rotor_is_the_rotation_that_its_sandwich_product_is(dtype: torch.dtype) -> None:
    theta, axis, v = (torch.randn(50, *shape, dtype=dtype) for shape in ((), (3,), (3,)))
    q = rotor(theta, axis)
    close(q.norm(dim=-1), torch.ones_like(theta))
    matrix = rotation_matrix(q)
    close((matrix @ v[..., None])[..., 0], turned(q, v))
    close(matrix @ matrix.mT, torch.eye(3, dtype=dtype).expand_as(matrix))
    close(torch.linalg.det(matrix), torch.ones_like(theta))
    close(rotation_matrix(conjugate(q)), matrix.mT)


def test_a_rotor_turns_by_twice_theta() -> None:
    quarter = rotation_matrix(rotor(torch.tensor(torch.pi / 4), torch.tensor([0.0, 0.0, 5.0])))
    close(quarter @ torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0]))


def test_an_axis_of_length_zero_stays_finite() -> None:
    axis = torch.zeros(3, requires_grad=True)
    q = rotor(torch.tensor(0.3), axis)
    q.sum().backward()
    assert q.isfinite().all() and axis.grad is not None and axis.grad.isfinite().all()
