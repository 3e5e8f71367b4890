"""Energy while something runs: NVML's counter of a GPU, or tegrastats of a Jetson.

What the meter shows is what is said: the power drawn by an idle machine is in it and is not subtracted.

    with meter() as found:
        energy_of_one(found, runs)      # millijoules of one of the runs
"""

import io
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator

from qcn.verify.speed import nvml

SECONDS = 1.0  # that runs are metered for, at least
PATIENCE_S = 1.0  # that a counter is waited for, beside
LOOK_S = 0.002  # between two looks at it
_RAILS = ("VDD_IN", "VIN_SYS_5V0", "POM_5V_IN")  # a Jetson's whole board, by generation


class Meter:
    """Millijoules since some moment, or None if they are not known.

    `of` says of what they are; with `gpu_only` a backend that does not use the GPU has none.
    """

    of = ""
    gpu_only = False

    def read(self) -> float | None:
        return None

    def __enter__(self) -> "Meter":
        return self

    def __exit__(self, *error: object) -> None:
        pass


class NvmlMeter(Meter):
    """The counter of a GPU: the whole board of it, but not the machine around."""

    of = "the GPU, by NVML's counter"
    gpu_only = True

    def __init__(self, gpu: nvml.Nvml) -> None:
        self._gpu = gpu

    def read(self) -> float | None:
        return self._gpu.energy_mj()


class TegrastatsMeter(Meter):
    """Power as tegrastats prints it every `interval` milliseconds, added up over the time that each reading stood."""

    of = "the whole board, by tegrastats"

    def __init__(self, program: str, interval: int = 50) -> None:
        self._command = [program, "--interval", str(interval)]
        self._lock = threading.Lock()
        self._joules, self._since = 0.0, 0.0
        self._watts: float | None = None

    def __enter__(self) -> "TegrastatsMeter":
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        self._lines = self._process.stdout or io.StringIO()
        self._watts, self._since = board_watts(self._lines.readline()), time.monotonic()
        self._reader = threading.Thread(target=self._follow, daemon=True)
        self._reader.start()
        return self

    def _follow(self) -> None:
        for line in self._lines:
            watts = board_watts(line)
            with self._lock:
                self._settle()
                self._watts = self._watts if watts is None else watts

    def _settle(self) -> None:
        now = time.monotonic()
        self._joules += (self._watts or 0.0) * (now - self._since)
        self._since = now

    def read(self) -> float | None:
        with self._lock:
            self._settle()
            return None if self._watts is None else 1e3 * self._joules

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()
        self._lines.close()


def energy_of_one(meter: Meter, runs: Iterator[object]) -> float | None:
    """Millijoules of one run, where each step of the iterator is one; None if the meter does not count.

    NVML's counter of an H200 moves every 100 ms, and a look at it takes 4. So a thread of its own looks, while the runs
    go on, and they are counted from one of its moves to another.
    """
    moves: list[tuple[float, float]] = []  # when, and to how much
    done = threading.Event()

    def follow() -> None:
        reading = meter.read()
        while not done.wait(LOOK_S):
            next_reading = meter.read()
            if next_reading is not None and next_reading != reading:
                moves.append((time.perf_counter(), next_reading))
            reading = next_reading

    looking = threading.Thread(target=follow, daemon=True)
    looking.start()
    began, ended = time.perf_counter(), []
    try:
        for _ in runs:
            ended.append(time.perf_counter())
            if ended[-1] - began > SECONDS + PATIENCE_S or (moves and moves[-1][0] - moves[0][0] >= SECONDS):
                break
    finally:
        done.set()
        looking.join()
    if len(moves) < 2:
        return None
    (since, before), (until, after) = moves[0], moves[-1]
    count = sum(since < end <= until for end in ended)
    return (after - before) / count if count else None


def board_watts(line: str) -> float | None:
    """The board's power now, from a line of tegrastats: "… VDD_IN 4893mW/4801mW …" is 4.893 W; older: "… 4893/4801"."""
    for rail in _RAILS:
        if result := re.search(rf"\b{rail} (\d+)(?:mW)?/", line):
            return int(result[1]) / 1e3
    return None


def meter() -> Meter | None:
    """What this machine has; None where nothing tells its energy."""
    gpu = nvml.find()
    if gpu is not None and gpu.energy_mj() is not None:
        return NvmlMeter(gpu)
    program = shutil.which("tegrastats")
    return TegrastatsMeter(program) if program else None
