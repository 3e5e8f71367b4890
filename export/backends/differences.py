"""What counts as the same, of arrays and of bytes."""

from typing import Any

import numpy as np

ULPS = 2.0**-21  # of itself that a float32 number may differ by: arrays are folded in float64 on another machine


def alike(array: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays are the same, floats but for the last digits."""
    if array.dtype != expected.dtype or array.shape != expected.shape:
        return False
    if array.dtype not in (np.float32, np.float64):
        return array.tobytes() == expected.tobytes()
    left, right = array.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(left - right) <= ULPS * np.abs(right) + 2.0**-40 * np.abs(right).max(initial=0.0)
    return bool((apart | (array == expected)).all())


def bytes_difference(content: bytes, built: bytes) -> str:
    """From where on two files differ, in words; empty if they do not."""
    if content == built:
        return ""
    short = min(len(content), len(built))
    same = np.frombuffer(content[:short], np.uint8) == np.frombuffer(built[:short], np.uint8)
    place = short if same.all() else int(same.argmin())
    return f"it is not the file that its program builds here: they differ from byte {place:,} on"
