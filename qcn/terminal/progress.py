"""Progress of a command: the current task, the share done, and the time left.

    with shown():                                  # around a command, or whatever else takes long
        doing("reading my-toys", 120, of=3000)     # anywhere inside

On a terminal that is one live line. In a pipe or a file it is a plain line whenever nothing was said for a while. It
goes to standard error. Outside of `shown`, `doing` says nothing. No torch here.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # rich is imported once something is shown: reading data stays light
    from rich.console import Console
    from rich.text import Text

from qcn.terminal.text import readable

QUIET_S = 1.5  # silence in a pipe, in the first 45 seconds
PACE = 30  # after that a thirtieth of the time gone by: a run of hours leaves hundreds of lines, not thousands
DRAW_S = 0.2  # between two drawings on a terminal
BAR = 20  # characters
LEAST = (0.02, 1.0)  # of the work, and seconds, to tell from how long the rest takes


@dataclass
class ProgressLine:
    """The current task, the fraction of the work that is done, and when it began."""

    what: str = "starting"
    fraction: float | None = None
    began: float = field(default_factory=time.monotonic)
    ends: float | None = None
    _first: tuple[float, float] | None = None  # when a fraction was first given, and which

    def move(self, what: str, fraction: float | None) -> None:
        """Update the task and the fraction done. The end is estimated from the pace since it last fell."""
        self.what, now = readable(what), time.monotonic()  # it may quote an untrusted file
        if fraction is None or fraction < (self.fraction or 0.0):
            self._first = self.ends = None
        self.fraction = fraction
        if fraction is None:
            return
        self._first = self._first or (now, fraction)
        took, done = now - self._first[0], fraction - self._first[1]
        if done > LEAST[0] and took > LEAST[1]:
            self.ends = now + took / done * (1 - fraction)

    @property
    def gone(self) -> float:
        return time.monotonic() - self.began

    def words(self) -> str:
        """For example `12 s  reading my-toys  40 %, about 18 s left`."""
        far = "" if self.fraction is None else f"  {100 * self.fraction:.0f} %"
        left = 0.0 if self.ends is None else self.ends - time.monotonic()
        return f"{duration(self.gone)}  {self.what}{far}" + (f", about {duration(left)} left" if left >= 1 else "")

    def drawn(self) -> "Text":
        """The same for a terminal, with a bar before it: one row, cut short where it must be."""
        from rich.text import Text

        done = round(BAR * (self.fraction or 0.0))
        line = Text(no_wrap=True, overflow="ellipsis")
        if self.fraction is not None:
            line.append("━" * done, "green").append("━" * (BAR - done) + " ", "bright_black")
        return line.append(self.words())


class Shown:
    """A live line, or lines in a pipe, between `start` and `stop`, kept up to date by a thread."""

    def __init__(self, console: "Console") -> None:
        from rich.live import Live

        self.line, self.console = ProgressLine(), console
        self.quiet = False
        self._last = time.monotonic()
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._live = (
            Live(
                console=console,
                transient=True,
                auto_refresh=False,
                get_renderable=self.line.drawn,
                redirect_stdout=sys.stdout.isatty(),  # else what is printed would not reach the pipe
            )
            if console.is_terminal
            else None
        )
        self._thread = threading.Thread(target=self._keep_going, name="progress", daemon=True)

    def start(self) -> None:
        if self._live:
            self._live.start()
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._last = time.monotonic()
        self.console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def tick(self) -> None:
        """Redraw or print the line, if that is due."""
        with self._lock:
            silent = time.monotonic() - self._last
            if self._live:
                if silent >= DRAW_S:
                    self._last = time.monotonic()
                    self._live.refresh()
            elif silent >= max(QUIET_S, self.line.gone / PACE):
                self.say(self.line.words())

    def _keep_going(self) -> None:
        while not self._ended.wait(0.1):
            if not self.quiet:
                self.tick()


_SHOWN: ContextVar[Shown | None] = ContextVar("shown", default=None)
_MUTED: ContextVar[bool] = ContextVar("muted", default=False)
# Of all the work: where the part begins that is being done, and how much it is.
_PART: ContextVar[tuple[float, float]] = ContextVar("part", default=(0.0, 1.0))


def _console() -> "Console":
    from rich.console import Console

    return Console(stderr=True)


@contextmanager
def shown() -> Iterator[None]:
    """Show progress inside. Nested uses, and torchrun's other processes, show nothing more."""
    if _SHOWN.get() or int(os.environ.get("RANK", "0")):
        yield
        return
    display = Shown(_console())
    display.start()
    token = _SHOWN.set(display)
    try:
        yield
    finally:
        _SHOWN.reset(token)
        display.stop()


@contextmanager
def part(number: int, of: int) -> Iterator[None]:
    """Inside, the progress that `doing` reports is that of one of `of` equal parts; `number` counts from 0."""
    start, size = _PART.get()
    token = _PART.set((start + size * number / of, size / of))
    try:
        yield
    finally:
        _PART.reset(token)


def doing(what: str, done: float | None = None, *, of: float = 1.0) -> None:
    """Report the current task, and how much of it (or of the current part) is done, if known."""
    if display := _SHOWN.get():
        start, size = _PART.get()
        unknown = done is None and size == 1
        display.line.move(what, None if unknown else start + size * min((done or 0.0) / of, 1.0))
        display.tick()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Show nothing inside, where time is measured."""
    display = _SHOWN.get()
    if display:
        display.quiet = True
    try:
        yield
    finally:
        if display:
            display.quiet = False


@contextmanager
def muted() -> Iterator[None]:
    """Print no lasting lines inside, as for one of many runs."""
    token = _MUTED.set(True)
    try:
        yield
    finally:
        _MUTED.reset(token)


def say(text: str) -> None:
    """Print a lasting line on standard error, above the live one."""
    if not _MUTED.get():
        (_SHOWN.get() or Shown(_console())).say(text)


def duration(seconds: float) -> str:
    """45 s, 12 min, 3.5 h."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.1f} h"
