"""What the commands print. It may quote a bundle or a backend, so nothing in it gives the terminal orders."""

import shlex
import sys

import typer

from qcn.text import readable


def say(text: object, status: str | None = None, colour: str | None = None) -> None:
    """Print text with its control characters written out; line breaks stay.

    With a status the text stands in a column behind it, in colour if that is asked for; an empty one leaves it blank.
    """
    shown = readable(str(text), keep="\n")
    typer.echo(shown if status is None else f"{typer.style(f'{status:8}', fg=colour)} {shown}")


def command() -> str:
    """What was typed, for a record that is to be repeated."""
    return readable(shlex.join(["qcn", *sys.argv[1:]]))
