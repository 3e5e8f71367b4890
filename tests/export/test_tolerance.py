"""What the manifest allows: a number of noise floors by precision, never nothing, never most of the answer."""

import numpy as np
import pytest

from qcn.export.bundle.tolerance import FLOORS, last_place, noise_floor, tolerance

EXACT = np.array([[0.25, -1.5], [0.5, 1.0]])
EPSILON = float(np.finfo(np.float32).eps)


def test_the_noise_floor_is_what_float32_did_or_a_unit_in_the_last_place() -> None:
    assert noise_floor(EXACT, EXACT + [[0, 1e-5], [-3e-5, 0]]) == pytest.approx(3e-5)
    assert noise_floor(EXACT, EXACT.astype(np.float32)) == last_place(EXACT) == 1.5 * EPSILON


@pytest.mark.parametrize(("precision", "floors"), [("fp32", 16), ("fp16", 8), ("bf16", 8)])
def test_each_precision_is_allowed_its_share(precision: str, floors: float) -> None:
    assert tolerance(EXACT, 1e-3, precision) == pytest.approx(floors * 1e-3)
    assert set(FLOORS) == {"fp64", "fp32", "fp16", "bf16", "plan"}


def test_no_more_than_a_quarter_of_the_largest_answer_is_allowed() -> None:
    """Whatever float32 did: a network that is all noise cannot be compared."""
    for precision in FLOORS:
        assert tolerance(EXACT, 1.0, precision) == 1.5 / 4


def test_an_output_of_zeros_is_allowed_something() -> None:
    """A manifest has positive tolerances alone."""
    zeros = np.zeros((2, 3))
    for precision in FLOORS:
        assert 0 < tolerance(zeros, noise_floor(zeros, zeros), precision) <= np.finfo(np.float32).smallest_normal
