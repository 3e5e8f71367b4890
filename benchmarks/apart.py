"""Each variant of a benchmark in a process of its own: one that crashes what it runs in takes only its own row with it.

torch's Inductor, for one, corrupts the heap on x86_64 in the backward of the reference's routing.
"""

import multiprocessing
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

T = TypeVar("T")


class Died(Exception):
    """The process ended without an answer; says how."""


def apart(measure: Callable[..., T], *arguments: Any) -> T:
    """What `measure`, a function of a module, returns for these arguments in a new process; raises Died."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(there, measure, arguments))
    child.start()
    there.close()
    try:
        answered, found = here.recv()
    except EOFError:
        answered, found = False, ""
    child.join()
    if not answered:
        raise Died(found or _ending(child.exitcode or 0))
    result: T = found
    return result


def _answer(there: Connection, measure: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        there.send((True, measure(*arguments)))
    except Exception as error:  # of any kind: it is this variant's, and the others go on
        traceback.print_exc()
        there.send((False, f"{type(error).__name__}: {error}".splitlines()[0]))


def _ending(code: int) -> str:
    """How a process ended, in words."""
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
