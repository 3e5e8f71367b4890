"""Escape untrusted text before printing; and words that several messages share."""

import csv
import io
import re
import shlex
import unicodedata
from collections.abc import Iterable
from pathlib import Path

HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # of Unicode's categories: control characters, and what shows nothing
# What a spreadsheet takes for the start of a formula; the last four are = + - @ of twice the width. Also after a ',
# which `csv_cell` would take away.
FORMULA = re.compile(r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
NUMBER = re.compile(r"[+-]?[0-9]+([.][0-9]*)?(e[+-]?[0-9]+)?")


def readable(text: str, keep: str = "") -> str:
    """Escape invisible characters, such as control characters and bytes that are not text.

    ESC becomes \\x1b, a line break \\n. Those in `keep` stay as they are.
    """
    return "".join(repr(c)[1:-1] if c not in keep and unicodedata.category(c) in HIDDEN else c for c in text)


def csv_line(cells: Iterable[object]) -> str:
    """A line of a CSV file. Text that a spreadsheet would take for a formula gets a ' before it, as OWASP advises."""
    line = io.StringIO(newline="")
    csv.writer(line).writerow(f"'{cell}" if isinstance(cell, str) and _is_formula(cell) else cell for cell in cells)
    return line.getvalue()


def csv_cell(cell: str) -> str:
    """Undo what `csv_line` did to a cell."""
    return cell[1:] if cell.startswith("'") and _is_formula(cell) else cell


def _is_formula(text: str) -> bool:
    return bool(FORMULA.match(text)) and not NUMBER.fullmatch(text)


def one_line(text: str, longest: int = 2000) -> str:
    """A message of a backend as a part of ours: one readable line, cut where it is too long."""
    line = readable(" ".join(text.split()))
    return line if len(line) <= longest else f"{line[:longest]} …"


def probability_text(value: float) -> str:
    """0.4 %, 97.1 %; nothing is certain or impossible."""
    return "> 99.9 %" if value > 0.9995 else "< 0.1 %" if value < 0.0005 else f"{100 * value:.1f} %"


def counted(number: int, noun: str) -> str:
    """1 picture, 1,000 pictures. The noun takes an s."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


started = ["qcn"]  # the command that runs: in `qcn.cli.main` maybe a user's file that adds a network (docs/ideas.md)


def command_line(*words: object) -> str:
    """A command to copy into a shell, also where a folder has spaces in its name, or begins with a dash."""
    return shlex.join(
        f"./{word}" if isinstance(word, Path) and str(word).startswith("-") else str(word) for word in words
    )
