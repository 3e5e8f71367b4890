"""Backends timed in turns of a fraction of a second: whatever else the machine does hits all of them alike.

`qcn benchmark` and `qcn calibrate` time by this.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from qcn.errors import UsageError
from qcn.export.backends.candidates import Candidate
from qcn.export.backends.runner import Runner
from qcn.export.bundle.manifest import MOST_IMAGES
from qcn.terminal.progress import doing, undisturbed
from qcn.verify.speed.cold import Cold
from qcn.verify.speed.energy import Meter, energy_of_one

# Before a turn is timed: a graph is captured, caches become this backend's, the threads of the one before go to sleep.
SETTLE_S = 0.05


@dataclass(frozen=True)
class TimingPlan:
    """How long to measure, as trtexec's options of the same names; `fps` paces the runs instead of back to back."""

    batches: tuple[int, ...] = (1,)
    warmup_ms: float = 200.0
    duration_s: float = 3.0
    iterations: int = 10
    fps: float | None = None
    turn_s: float = 0.25

    def __post_init__(self) -> None:
        limits = {
            f"--batch must be from 1 to {MOST_IMAGES}": bool(self.batches)
            and 1 <= min(self.batches) <= max(self.batches) <= MOST_IMAGES,
            "warmup must be a number from 0 on": 0 <= self.warmup_ms < math.inf,
            "--duration must be a number from 0 on": 0 <= self.duration_s < math.inf,
            "runs must be 1 or more": self.iterations >= 1,
            "fps must be a number over 0": self.fps is None or 0 < self.fps < math.inf,
        }
        if wrong := [rule for rule, holds in limits.items() if not holds]:
            raise UsageError("; ".join(wrong))


@dataclass
class Timing:
    """One artefact in one backend, as CUDA graph or not: times in milliseconds, one list per turn."""

    candidate: Candidate
    runner: Runner
    images: NDArray[np.float32]
    cold: Cold | None = None
    graph: bool | None = None
    turns: list[list[float]] = field(default_factory=list)
    compute: list[list[float]] = field(default_factory=list)
    energy_mj: float | None = None

    @property
    def runs(self) -> int:
        return sum(map(len, self.turns))

    @property
    def seconds(self) -> float:
        return sum(map(sum, self.turns)) / 1e3

    def done(self, plan: TimingPlan) -> float:
        """The share of what the plan asks for, at most 1."""
        seconds = self.seconds / plan.duration_s if plan.duration_s else 1.0
        return min(seconds, self.runs / plan.iterations, 1.0)

    def infer(self) -> None:
        self.runner.infer(self.images)

    def turn(self, plan: TimingPlan) -> None:
        """Run for the length of a turn, with transfers; and again without them, where there are any."""
        self.runner.graph = self.graph
        _repeat(self.infer, SETTLE_S, None)
        self.turns.append(_repeat(self.infer, plan.turn_s, plan.fps))
        if self.runner.transfers:
            self.runner.upload(self.images)
            self.runner.synchronize()
            self.compute.append(_repeat(self._compute_once, plan.turn_s, plan.fps))

    def meter(self, plan: TimingPlan, energy: Meter) -> None:
        """Run for as long as it takes to tell the energy of one inference, with transfers."""
        if self.runner.transfers or not energy.gpu_only:
            self.runner.graph = self.graph
            self.energy_mj = energy_of_one(energy, _runs(self.infer, plan.fps))

    def _compute_once(self) -> None:
        self.runner.enqueue()
        self.runner.synchronize()


def take_turns(timings: list[Timing], plan: TimingPlan, energy: Meter | None = None) -> None:
    """Warm each up, let them run in turn until every one has run long and often enough, then meter their energy."""
    for timing in timings:
        doing(f"warming up {timing.candidate.key}, batch {len(timing.images)}")
        timing.runner.graph = timing.graph
        _repeat(timing.infer, plan.warmup_ms / 1e3, None)
    while any(timing.done(plan) < 1 for timing in timings):
        for timing in timings:
            share = sum(one.done(plan) for one in timings)
            doing(f"timing {timing.candidate.key}, batch {len(timing.images)}", share, of=len(timings))
            with undisturbed():
                timing.turn(plan)
    if energy:
        for timing in timings:
            doing(f"metering {timing.candidate.key}, batch {len(timing.images)}", 1)
            timing.meter(plan, energy)


def _repeat(once: Callable[[], object], seconds: float, fps: float | None) -> list[float]:
    """Milliseconds of each call, at least one."""
    began = time.perf_counter()
    times: list[float] = []
    for milliseconds in _runs(once, fps):
        times.append(milliseconds)
        if time.perf_counter() - began >= seconds:
            break
    return times


def _runs(once: Callable[[], object], fps: float | None) -> Iterator[float]:
    """Call it for ever, back to back or at a pace: the milliseconds of each."""
    due = time.perf_counter()
    while True:
        if fps:
            time.sleep(max(0.0, due - time.perf_counter()))
            due += 1 / fps
        start = time.perf_counter()
        once()
        yield 1e3 * (time.perf_counter() - start)
