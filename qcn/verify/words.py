"""Figures in words, the same in terminal lines, tables, junit.xml and the page."""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Histogram:
    """`counts` between one of `edges` and the next, and how many lie `above` the last edge."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    above: int = 0

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.counts) + 1 or sorted(set(self.edges)) != list(self.edges):
            raise ValueError(f"a histogram of {len(self.counts)} counts needs as many edges and one, all rising")
        if min(self.counts, default=0) < 0 or self.above < 0:
            raise ValueError("counts must be 0 or more")


def share(value: float) -> str:
    """A share of what is allowed, short: 6.2 %, 41 %, 9.5×, ∞."""
    if value <= 1:
        return f"{100 * value:.2g} %" if value < 0.995 else "100 %"
    return f"{count(value)}×" if math.isfinite(value) else "∞"


def share_of_allowed(value: float) -> str:
    """41 % of what is allowed, 9.5 times what is allowed."""
    if value <= 1:
        return f"{share(value)} of what is allowed"
    return f"{count(value)} times what is allowed" if math.isfinite(value) else "beyond what is allowed"


def count(value: float) -> str:
    """Two digits if it is small, a power of ten if it is large: 0.62, 59, 4,200, 3.1·10⁵."""
    if value < 10:
        return f"{value:.2g}"
    exponent = math.floor(math.log10(value))
    return f"{value:,.0f}" if value < 1e4 else f"{value / 10**exponent:.2g}·{power(exponent)}"


def power(exponent: int) -> str:
    """A power of ten: 0.1, 1, 10, 10³."""
    digits = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return {-1: "0.1", 0: "1", 1: "10"}.get(exponent, f"10{digits}")


def tiny(value: float, least: float = 1e-5) -> str:
    """Two digits, written out, and no smaller number than anyone needs: 0.00038, < 0.00001."""
    if 0 < value < least:
        return f"< {least:f}".rstrip("0")
    return f"{value:.5f}" if 0 < value < 1e-4 else f"{value:.2g}"


def milliseconds(value: float) -> str:
    """With its unit, three digits: 0.172 ms, 23.6 ms, 2.76 s."""
    return f"{value / 1e3:.3g} s" if value >= 1e3 else f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"


def amount(value: float) -> str:
    """Three digits, and whole numbers from a hundred on: 0.172, 23.6, 1,234."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def by_reason(reasons: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """What cannot be done with these backends, put together where it is the same."""
    result: dict[str, list[str]] = {}
    for key, reason in reasons.items():
        result.setdefault(reason, []).append(key)
    return list(result.items())
