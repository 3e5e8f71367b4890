"""Printing for the commands. Text may quote a bundle or a backend, so control characters are escaped."""

import os
import sys
import textwrap
from typing import TYPE_CHECKING

import typer

from qcn.terminal.text import command_line, readable, started

if TYPE_CHECKING:  # rich is imported once a table is shown
    from rich.table import Table

STATUS = 9  # characters of the longest status, `untrusted`
IN_A_PIPE = 130  # columns where nobody says how many there are
WIDEST = 10_000  # columns of what a table may want


def say(text: object, status: str | None = None, colour: str | None = None) -> None:
    """Print text with control characters escaped, but for line breaks.

    With a status, which may be empty and coloured, the text stands in a column behind it.
    """
    message = readable(str(text), keep="\n")
    typer.echo(message if status is None else f"{typer.style(f'{status:{STATUS}}', fg=colour)} {message}")


def command() -> str:
    """The command as typed, for records."""
    return readable(command_line(*started, *sys.argv[1:]))


def say_next(program: str, *arguments: object) -> None:
    """Print the command to type next, as a command's last line."""
    say(f"next: {command_line(*(started if program == 'qcn' else [program]), *arguments)}")


def show(table: "Table") -> None:
    """Print a table; as a list where its words, and cells that do not wrap, are wider than the terminal."""
    from rich.cells import cell_len
    from rich.console import Console

    console = Console(markup=False, emoji=False, highlight=False)
    if not (console.is_terminal or "COLUMNS" in os.environ):
        console = Console(markup=False, emoji=False, highlight=False, width=IN_A_PIPE)
    width = max(console.width, 1)  # 0 in terminals that do not know theirs
    headings = [_plain(column.header) for column in table.columns]
    rows = list(zip(*([_plain(cell) for cell in column.cells] for column in table.columns), strict=True))
    for column, *cells in zip(table.columns, *rows, strict=True):
        if column.no_wrap:
            column.min_width = max(map(cell_len, (_plain(column.header), *cells)))
    unlimited = console.options.update(max_width=WIDEST)
    if console.measure(table, options=unlimited).minimum <= width:
        console.print(table)
        return
    if table.title:
        typer.echo(_wrapped(_plain(table.title), width))
    for first, *others in rows:
        typer.echo(first)
        for heading, cell in zip(headings[1:], others, strict=True):
            if cell:
                line = f"{heading}: {cell}" if heading else cell
                typer.echo(_wrapped(line, width, "  "))


def _wrapped(line: str, width: int, indent: str = "") -> str:
    """Wrapped between words, so that names can be copied."""
    wrap = textwrap.TextWrapper(width, indent, f"{indent}  ", break_long_words=False, break_on_hyphens=False)
    return wrap.fill(line)


def _plain(cell: object) -> str:
    return readable(str(cell))  # of rich's Text: what it says, without its style
