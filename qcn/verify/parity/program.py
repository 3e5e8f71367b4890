"""Two programs, operation by operation: is a bundle's what its training run's network lowers to? No torch here."""

import math
from collections.abc import Iterator
from dataclasses import fields
from itertools import zip_longest
from typing import Any

import numpy as np

from qcn.export.backends.format import ULPS, alike
from qcn.export.program.operations import Array, Operation
from qcn.export.program.program import Program
from qcn.terminal.text import readable

ODD = 1e-3  # share of the integers and halves of a plan that another machine may have rounded the other way


def differences(program: Program, expected: Program) -> Iterator[str]:
    """How a program differs from the expected one, in words."""
    for what in ("input", "outputs"):
        if getattr(program, what) != getattr(expected, what):
            yield f"the program's {what} {'is' if what == 'input' else 'are'} not the network's"
    for place, (a, b) in enumerate(zip_longest(program.operations, expected.operations)):
        if a is None or b is None or type(a) is not type(b) or a.name != b.name:
            yield f"operation {place + 1} of the program is {_description(a)}, where the network has {_description(b)}"
            return
        for name in _other_settings(a, b):
            stored, own = getattr(a, name), getattr(b, name)
            yield f"'{name}' of the operation '{readable(a.name)}' is {stored!r}, where the network's is {own!r}"
    for name in expected.arrays:
        if name not in program.arrays or not _same(program.arrays[name], expected.arrays[name]):
            yield f"the numbers of '{name}' are not the network's"


def _description(operation: Operation | None) -> str:
    return "none" if operation is None else f"{operation.op} '{readable(operation.name)}'"


def _other_settings(a: Operation, b: Operation) -> list[str]:
    return [one.name for one in fields(b) if not _equal(getattr(a, one.name), getattr(b, one.name))]


def _equal(a: Any, b: Any) -> bool:
    """Equal, floats up to the last digits: a scale may have been computed on another machine."""
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=ULPS)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)


def _same(array: Array, expected: Array) -> bool:
    """Floats up to the last digits; integers and halves up to a few that were rounded the other way."""
    if alike(array, expected):
        return True
    if array.dtype != expected.dtype or array.shape != expected.shape or array.dtype == np.float32:
        return False
    step = np.spacing(np.abs(expected)) if array.dtype == np.float16 else np.ones((), np.float64)
    apart = np.abs(array.astype(np.float64) - expected.astype(np.float64))
    return bool((apart <= step).all()) and int((apart > 0).sum()) <= max(1.0, ODD * array.size)
