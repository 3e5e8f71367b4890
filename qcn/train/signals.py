"""Ctrl-C and SIGTERM in a training run: a request to stop, which the run follows once its step is done and saved."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def on_stop_signal(ask: Callable[[], None]) -> Iterator[None]:
    """While the block runs, Ctrl-C and SIGTERM call `ask` instead of ending the process.

    Signals are the main thread's: a run in another thread leaves them to whoever has them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(signum: int, frame: FrameType | None) -> None:
        ask()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
