"""How far a backend's answers may be from the float64 reference, by precision. The manifest says it of each file.

The **noise floor** of an output is the largest error that the trained network itself makes in float32, on the golden
images, and at least one unit in the last place of the output's largest value: on few images float32 may be lucky. A
backend is another way of rounding, so what is allowed is a number of noise floors:

    fp32    16. The floor is one float32 evaluation: honest exports were seen at up to 6. The least of the planted
            faults, TF32, is at hundreds, one rotor at thousands (benchmarks/faults.py)
    fp16    4 · 2¹³: float16 has 13 bits less than float32
    bf16    4 · 2¹⁶, likewise
    plan    8, for a calibrated network (`qcn.export.quantise`). Its expected answers are those of its own program in
            float64, rounded to int8 where that is. The noise floor is what the rest of its rounding does to these:
            float32, half precision in the layers that have it, and numbers that lie so near the middle between two
            steps of int8 that rounding in float32 may turn them to either. Honest bodies were seen at up to 4.5

No tolerance exceeds a quarter of the output's largest value: a network that is all noise cannot be compared.

A decision may change only within the **tie band**: where the trained network prefers its own class by so little that
rounding turns it round. That is 2 noise floors in fp32 (each of two activations may be off by one), and one noise floor
times the ratio of unit roundoffs in half precision, 2¹³ in fp16 and 2¹⁶ in bf16: a quarter of the tolerance. In
correct half-precision networks the difference between two activations was seen to be off by half of that at most.
No torch here.
"""

import numpy as np

from qcn.export.bundle.golden import Golden
from qcn.export.program import Array

FLOORS = {"fp64": 16.0, "fp32": 16.0, "fp16": 4 * 2.0**13, "bf16": 4 * 2.0**16, "plan": 8.0}
# The tie band as a share of the tolerance.
TIES = {"fp64": 1 / 8, "fp32": 1 / 8, "fp16": 1 / 4, "bf16": 1 / 4, "plan": 1 / 4}


def last_place(exact: Array) -> float:
    """One unit in the last place of the largest of these values, in float32."""
    return float(np.abs(exact).max()) * float(np.finfo(np.float32).eps) or float(np.finfo(np.float32).smallest_normal)


def noise_floor(exact: Array, single: Array) -> float:
    """What rounding in float32 does to these values; `single` is the same computed in float32."""
    return max(float(np.abs(single - exact).max()), last_place(exact))


def tolerance(exact: Array, single: Array, precision: str) -> float:
    """The largest absolute error that is allowed in this precision."""
    allowed = min(FLOORS[precision] * noise_floor(exact, single), float(np.abs(exact).max()) / 4)
    return max(allowed, float(np.finfo(np.float32).smallest_normal))


def tie_band(exact: Array, single: Array, precision: str) -> float:
    """By how much the reference may have preferred its own class for a change of it to be a tie, in this precision."""
    return TIES[precision] * tolerance(exact, single, precision)


def tolerances(golden: Golden, precision: str) -> dict[str, float]:
    """That of each output of the network."""
    held = golden.judged_by(precision)
    return {
        name: tolerance(getattr(golden.reference, name), getattr(golden.float32, name), held) for name in golden.outputs
    }
