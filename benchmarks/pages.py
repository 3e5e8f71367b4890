"""What the pages that benchmarks write are made of."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]
ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def read(name: str) -> Any:
    """A file of benchmarks/results."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def table(headings: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, the first column to the left and the others to the right."""
    lines = [headings, [":--", *["--:"] * (len(headings) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def columns(rows: Iterable[Row], forms: Mapping[str, str | Callable[[Row], str]]) -> str:
    """A table with a line per row. A form is what a column has of a row: a format, or a function."""
    cells = [[form(row) if callable(form) else form.format_map(row) for form in forms.values()] for row in rows]
    return table(list(forms), cells)


def three_digits(x: float) -> str:
    """For a reader: no exponent."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def source(record: dict[str, Any]) -> str:
    """When, where and by which commits the results of a file were measured."""
    rows = record.get("results", [])
    commits = sorted({row.get("commit", record["commit"]) for row in rows}) or [record["commit"]]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    how = f"; {record['how']}" if "how" in record else ""
    return f"{record['date']}, {record['machine']}, {versions}, commit {' and '.join(commits)}{how}"


def percent(rate: dict[str, float]) -> str:
    return f"{100 * rate['error']:.1f} ({100 * rate['low']:.1f} to {100 * rate['high']:.1f})"


def hundredths(rate: dict[str, float]) -> str:
    return f"{100 * rate['error']:.2f} ({100 * rate['low']:.2f} to {100 * rate['high']:.2f})"
