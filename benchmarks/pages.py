"""What the pages that benchmarks write are made of."""

from typing import Any


def table(headings: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, the first column to the left and the others to the right."""
    lines = [headings, [":--", *["--:"] * (len(headings) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def source(record: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    how = f"; {record['how']}" if "how" in record else ""
    return f"{record['date']}, {record['machine']}, {versions}, commit {record['commit']}{how}"


def percent(rate: dict[str, float]) -> str:
    return f"{100 * rate['error']:.1f} ({100 * rate['low']:.1f} to {100 * rate['high']:.1f})"


def hundredths(rate: dict[str, float]) -> str:
    return f"{100 * rate['error']:.2f} ({100 * rate['low']:.2f} to {100 * rate['high']:.2f})"
