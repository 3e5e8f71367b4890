"""The commands `qcn-run` and `qcn-bench`: this process becomes the C++ program (deploy/programs/). No torch here."""

import os
import sys

from qcn.errors import MissingError
from qcn.libqcn.location import find_program


def run() -> None:
    _become("qcn-run")


def bench() -> None:
    _become("qcn-bench")


def _become(name: str) -> None:
    try:
        program = find_program(name)
    except MissingError as error:
        print(f"{name}: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    os.execv(program, [name, *sys.argv[1:]])
