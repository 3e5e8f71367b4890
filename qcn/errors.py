"""Errors for users, with their exit codes. A message says what was wrong and what fixes it."""

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from qcn.terminal.text import readable


class QcnError(Exception):
    """A failure the user can act on: printed as one line, no traceback."""

    exit_code = 1

    def __str__(self) -> str:
        """Escape control characters but line breaks: a message may quote an untrusted file or a backend."""
        return readable(super().__str__(), keep="\n")


class CheckFailed(QcnError):
    """Everything ran, and the answer is no (NaN in training, parity out of tolerance)."""

    exit_code = 1


class UsageError(QcnError):
    """Wrong arguments, or input files that are not what they should be."""

    exit_code = 2


class MissingError(QcnError):
    """The environment lacks something: a data set, a package, disk space, a network."""

    exit_code = 3


class FellBack(MissingError):
    """A backend runs here, but not in the precision asked for."""


class BuildError(QcnError):
    """An artefact could not be built as asked."""

    exit_code = 4


class Stopped(QcnError):
    """The user asked for it, by Ctrl-C or SIGTERM."""

    exit_code = 130


def unknown_name(
    kind: str, name: str, known: Iterable[str], instead: Mapping[str, str] = MappingProxyType({})
) -> UsageError:
    """The error for an unknown name, with the hint in `instead`, the nearest known name, or all of them."""
    if name.lower() in instead:
        return UsageError(f"no {kind} named '{name}': {instead[name.lower()]}")
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
    return UsageError(f"no {kind} named '{name}'; {hint}")
