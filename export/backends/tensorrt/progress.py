"""A TensorRT build in progress: its log, how far it is, and ending it on Ctrl-C.

TensorRT 10 and later report phases and steps to a progress monitor, which can also end the build. TensorRT 8 has none:
there the log's lines are counted, and a build can only be left behind.
"""

import atexit
import os
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from qcn.terminal.progress import doing

T = TypeVar("T")


@dataclass
class _Phase:
    parent: str | None
    steps: int
    done: int = 0


@dataclass
class BuildLog:
    """The log of a build so far. TensorRT calls in from threads of its own; `now` is asked from the main one."""

    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    layers: str = ""  # the table of the engine's layers, which newer builders log when they are done
    cancelled: bool = False
    _phases: dict[str, _Phase] = field(default_factory=dict)
    _monitored: bool = False
    _layers_in_all: int = 0
    _layers_timed: int = 0
    _furthest: float = 0.0
    _phase: str = "starting"
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, severity: str, message: str) -> None:
        """One line of TensorRT's log; `severity` is the enum's name."""
        if severity in ("ERROR", "INTERNAL_ERROR"):
            self.errors.append(message)
        elif severity == "WARNING":
            self.warnings.append(message)
        elif message.startswith("Layers:\n"):
            self.layers = message
        elif result := re.match(r"After .*: (\d+) layers", message):
            self._layers_in_all = int(result[1])
        elif "Computing costs for" in message:
            self._layers_timed += 1
            self._phase = "timing kernels"

    def start(self, name: str, parent: str | None, steps: int) -> None:
        with self._lock:
            self._monitored = True
            self._phases[name] = _Phase(parent, max(steps, 1))
            self._phase = name

    def step(self, name: str, index: int) -> bool:
        """One step of a phase is done. False asks TensorRT to end the build."""
        with self._lock:
            if name in self._phases:
                self._phases[name].done = index + 1
            for root in [name for name, phase in self._phases.items() if phase.parent not in self._phases]:
                self._reach(self._share(root))
        return not self.cancelled

    def finish(self, name: str) -> None:
        with self._lock:
            self._phases.pop(name, None)

    def show(self, title: str) -> None:
        """Say how far the build is, as `qcn.terminal.progress` shows it."""
        fraction, phase = self.now()
        doing(f"{title}: {phase.lower()}", fraction)

    def now(self) -> tuple[float | None, str]:
        """The fraction that is done, None where TensorRT does not say, and its phase."""
        with self._lock:
            if not self._monitored and self._layers_in_all:  # the last one announced is still being timed
                self._reach((self._layers_timed - 1) / self._layers_in_all)
            return self._furthest or None, self._phase

    def _reach(self, fraction: float) -> None:
        self._furthest = min(max(fraction, self._furthest), 1.0)

    def _share(self, name: str) -> float:
        """The fraction of a phase that is done, its open sub-phases counted as parts of its current step."""
        phase = self._phases[name]
        inner = [self._share(child) for child, nested in self._phases.items() if nested.parent == name]
        current = sum(inner) / len(inner) if inner else 0.0
        return min(1.0, (phase.done + current) / phase.steps)

    def summary(self, most: int = 8) -> str:
        """The errors, then the warnings, as indented lines for an error message."""
        lines = [f"error: {text}" for text in self.errors] + [f"warning: {text}" for text in self.warnings]
        errors = [f"\n  {line.strip()}" for line in lines[:most]]
        return "".join(errors) + (f"\n  … and {len(lines) - most} more" if len(lines) > most else "")


def logger(trt: Any, log: BuildLog) -> Any:
    """A TensorRT logger that writes to `log`. Keep it alive as long as anything made with it."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            log.add(severity.name, message)

    return Logger()


def monitor(trt: Any, log: BuildLog) -> Any | None:
    """A progress monitor that writes to `log`; None where this TensorRT has none."""
    if not hasattr(trt, "IProgressMonitor"):
        return None

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, name: str, parent: str | None, steps: int) -> None:
            log.start(name, parent, steps)

        def step_complete(self, name: str, step: int) -> bool:
            return log.step(name, step)

        def phase_finish(self, name: str) -> None:
            log.finish(name)

    return Monitor()


def run_interruptibly(work: Callable[[], T], log: BuildLog, show: Callable[[], None], *, can_cancel: bool) -> T:
    """Run `work` in a thread while this one shows how far it is and can be interrupted.

    A build holds its thread inside TensorRT for minutes, so Ctrl-C would not be heard there. Where TensorRT cannot be
    told to stop, the exception goes up and cleans up as it should, and the process then leaves without waiting for it.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []
    done = threading.Event()  # not Thread.join: where that is interrupted, Python 3.11 takes the thread for ended

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # handed to the caller's thread, which raises it
            failure.append(error)
        finally:
            done.set()

    threading.Thread(target=run, name="tensorrt-build", daemon=True).start()
    try:
        ended = False
        while not ended:
            ended = done.wait(0.1)
            show()
    except BaseException:
        log.cancelled = True
        if not done.wait(30 if can_cancel else 0.2):
            atexit.register(_leave)
        raise
    if failure:
        raise failure[0]
    return outcome[0]


def _leave() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(130)
