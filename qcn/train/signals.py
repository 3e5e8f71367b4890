"""Ctrl-C and SIGTERM in a training run: a request to stop, which the run follows once its step is done and saved."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def on_stop_signal(ask: Callable[[], None]) -> Iterator[None]:
    """While the block runs, Ctrl-C and SIGTERM call `ask` instead of ending the process."""

    def handle(signum: int, frame: FrameType | None) -> None:
        ask()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
