"""What reports are read and written by. A record may be of another version, or have come with a bundle of unknown
origin: whatever is not as it should be is taken as not known."""

import math
from collections.abc import Mapping
from typing import Any


def number(value: object) -> float | None:
    """A finite number, or None: for null, for words such as "nan", for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number of hundreds of digits, which JSON may have
        return None


def text(value: object) -> str:
    """A value in words; numbers with three digits."""
    if value is None:
        return "not known"
    found = number(value)
    return f"{found:.3g}" if found is not None else str(value)


def texts(value: object) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list | tuple) else []


def numbers(value: object) -> list[float]:
    """A list of finite numbers; empty if any is not."""
    found = [number(one) for one in value] if isinstance(value, list | tuple) else []
    return [one for one in found if one is not None] if None not in found else []


def entries(value: object) -> dict[str, dict[str, Any]]:
    """Those of a JSON object that are objects themselves."""
    return {str(key): one for key, one in value.items() if isinstance(one, dict)} if isinstance(value, dict) else {}


def part(value: object, name: str) -> Any:
    """An entry of what should be a JSON object."""
    return value.get(name) if isinstance(value, dict) else None


def listed(value: object) -> list[dict[str, Any]]:
    """Those of a JSON list that are objects."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list | tuple) else []


def strict(value: Any) -> Any:
    """The same without what JSON in UTF-8 does not have: numbers that are not finite become their names, "nan" or
    "inf", and halves of characters are written out."""
    if isinstance(value, dict):
        return {strict(str(key)): strict(one) for key, one in value.items()}
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list | tuple):
        return [strict(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def by_reason(reasons: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """What cannot be done with these backends, put together where it is the same."""
    found: dict[str, list[str]] = {}
    for key, reason in reasons.items():
        found.setdefault(reason, []).append(key)
    return list(found.items())
