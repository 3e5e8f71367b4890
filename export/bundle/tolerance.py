"""How far a backend's answers may be from the float64 reference, by precision. The manifest says it of each file.

The **noise floor** of an output is the largest error that the trained network itself makes in float32, on the golden
images, and at least one unit in the last place of the output's largest value: on few images float32 may be lucky. In
half precision it is what the same arithmetic does with every rounding to that precision in it, in fp16 also with sums
of convolutions in fp16 (`program.reference.half_floors`). A backend is another way of rounding, so what is allowed
is a number of noise floors:

    fp32    16. The floor is one float32 evaluation: honest exports were seen at up to 6. The least of the planted
            faults, TF32, is at hundreds, one rotor at thousands (benchmarks/faults.py)
    fp16    8. Honest graphs were seen at up to 3
    bf16    8, likewise
    plan    8, for a calibrated network (program/quantise.py). Its expected answers are those of its own program in
            float64, rounded to int8 where that is. The noise floor is what the rest of its rounding does to these:
            float32, half precision in the layers that have it, and numbers that lie so near the middle between two
            steps of int8 that rounding in float32 may turn them to either. Honest bodies were seen at up to 4.5

No tolerance exceeds a quarter of the output's largest value: a network that is all noise cannot be compared.

A decision may change only within the **tie band**: where the trained network prefers its own class by so little that
rounding turns it round. That is 2 noise floors: each of two logits may be off by one. No torch here.
"""

from typing import Literal

import numpy as np

from qcn.errors import UsageError
from qcn.export.bundle.golden import Golden
from qcn.export.program.program import Array

FLOORS = {"fp64": 16.0, "fp32": 16.0, "fp16": 8.0, "bf16": 8.0, "plan": 8.0}
HALVES: tuple[Literal["fp16", "bf16"], ...] = ("fp16", "bf16")
# The tie band as a share of the tolerance.
TIES = {"fp64": 1 / 8, "fp32": 1 / 8, "fp16": 1 / 4, "bf16": 1 / 4, "plan": 1 / 4}


def last_place(exact: Array) -> float:
    """One unit in the last place of the largest of these values, in float32."""
    return float(np.abs(exact).max()) * float(np.finfo(np.float32).eps) or float(np.finfo(np.float32).smallest_normal)


def noise_floor(exact: Array, single: Array) -> float:
    """The error of these values in float32: `single` is the same computed in float32."""
    return max(float(np.abs(single - exact).max()), last_place(exact))


def floor_of(golden: Golden, name: str, precision: str) -> float:
    """The noise floor of one of the golden arrays, such as logit, capsules1.pose or capsules1/iteration2/mean."""
    floor = noise_floor(golden.reference.arrays[name], golden.float32.arrays[name])
    if golden.plan or precision not in HALVES:
        return floor
    if name not in golden.floors.get(precision, {}):
        raise UsageError(f"the golden answers have no noise floor for {precision}: export the bundle again")
    return max(floor, golden.floors[precision][name])


def tolerance(exact: Array, floor: float, precision: str) -> float:
    """The largest absolute error that is allowed in this precision, given its noise floor."""
    allowed = min(FLOORS[precision] * floor, float(np.abs(exact).max()) / 4)
    return max(allowed, float(np.finfo(np.float32).smallest_normal))


def tie_band(golden: Golden, precision: str) -> float:
    """The largest margin between two classes of the reference that counts as a tie, in this precision."""
    judge = golden.judged_by(precision)
    return TIES[judge] * tolerance(golden.reference.logit, floor_of(golden, "logit", judge), judge)


def tolerances(golden: Golden, precision: str) -> dict[str, float]:
    """That of each output. libqcn computes the same (deploy/src/tolerance.cpp): tests/tolerances.json is for both."""
    judge = golden.judged_by(precision)
    if judge not in FLOORS:
        raise UsageError(f"its answers are not of a calibrated network, so they do not say what is allowed in {judge}")
    exact = golden.reference.arrays
    return {name: tolerance(exact[name], floor_of(golden, name, judge), judge) for name in golden.outputs}
