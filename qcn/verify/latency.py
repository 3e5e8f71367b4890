"""`qcn benchmark`: how fast the backends of a bundle are, side by side on this machine. Works without torch.

In trtexec's words: *latency* is the time of one inference with the transfers to and from the device; *compute* is
without them, where a backend can be asked for that; percentiles are taken over all runs after the warm-up. Backends
take turns of a fraction of a second, so that whatever else the machine does hits all of them alike; one whose turns
disagree by more than a tenth is called unstable.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.errors import CheckFailed, MissingError, UsageError
from qcn.export.bundle import Bundle
from qcn.files import write_text
from qcn.verify import Runner
from qcn.verify.backends import Candidate, candidates
from qcn.verify.machine import environment

PERCENTILES = (50, 90, 95, 99)
UNSTABLE = 0.1  # spread of the turns' medians, over their median


@dataclass(frozen=True)
class Plan:
    """How long to measure, as trtexec's options of the same names; `fps` paces the runs instead of back to back."""

    batch: int = 1
    warmup_ms: float = 200.0
    duration_s: float = 3.0
    iterations: int = 10
    fps: float | None = None
    turn_s: float = 0.25

    def __post_init__(self) -> None:
        wrong = self.batch < 1 or self.warmup_ms < 0 or self.duration_s < 0 or self.iterations < 1
        if wrong or (self.fps is not None and self.fps <= 0):
            raise UsageError(f"a benchmark cannot be of {self}")


@dataclass
class Timing:
    """One artefact in one backend: times in milliseconds, a list a turn."""

    candidate: Candidate
    runner: Runner
    images: NDArray[np.float32]
    cold_ms: float
    turns: list[list[float]] = field(default_factory=list)
    compute: list[list[float]] = field(default_factory=list)

    @property
    def runs(self) -> int:
        return sum(map(len, self.turns))

    @property
    def seconds(self) -> float:
        return sum(map(sum, self.turns)) / 1e3

    def infer(self) -> None:
        self.runner.infer(self.images)

    def upload(self) -> bool:
        """Bring the images to the device, if the runner can be asked for what follows alone."""
        device: Any = self.runner
        if not all(hasattr(device, method) for method in ("upload", "enqueue", "synchronize")):
            return False
        device.upload(self.images)
        device.synchronize()
        return True

    def compute_once(self) -> None:
        device: Any = self.runner
        device.enqueue()
        device.synchronize()


@dataclass(frozen=True)
class Speed:
    """What was measured of an artefact in a backend; times in milliseconds. `missing` says why there is nothing."""

    backend: str
    file: str
    precision: str
    batch: int
    missing: str = ""
    runner: str = ""
    runs: int = 0
    cold_ms: float = 0.0
    latency_ms: dict[str, float] = field(default_factory=dict)
    compute_ms: dict[str, float] = field(default_factory=dict)
    images_per_second: float = 0.0
    unstable: bool = False

    @property
    def key(self) -> str:
        return f"{self.backend}: {self.file}, batch {self.batch}"


def benchmark(bundle: Bundle, backends: Iterable[str] | None, plan: Plan) -> list[Speed]:
    """Time every artefact in every backend that was asked for, or that this machine can run."""
    inputs = bundle.golden().input
    images = np.concatenate([inputs] * -(-plan.batch // len(inputs)))[: plan.batch]
    speeds: list[Speed] = []
    timings: list[Timing] = []
    with ExitStack() as opened:
        for candidate in candidates(bundle, backends):
            about = (candidate.backend, candidate.artefact.file, candidate.artefact.precision, plan.batch)
            limits = candidate.artefact.batch
            if limits and not limits.min <= plan.batch <= limits.max:
                speeds.append(Speed(*about, missing=f"it takes batches of {limits}"))
                continue
            began = time.perf_counter()
            try:
                runner = opened.enter_context(candidate.runner(bundle))
            except MissingError as error:
                speeds.append(Speed(*about, missing=str(error)))
                continue
            runner.infer(images)
            timings.append(Timing(candidate, runner, images, 1e3 * (time.perf_counter() - began)))
        take_turns(timings, plan)
        speeds += [_speed(timing, plan) for timing in timings]
    return speeds


def take_turns(timings: list[Timing], plan: Plan) -> None:
    """Warm each up, then let them run in turn until every one has run long and often enough."""
    for timing in timings:
        _repeat(timing.infer, plan.warmup_ms / 1e3, None)
    while any(timing.seconds < plan.duration_s or timing.runs < plan.iterations for timing in timings):
        for timing in timings:
            timing.turns.append(_repeat(timing.infer, plan.turn_s, plan.fps))
            if timing.upload():
                timing.compute.append(_repeat(timing.compute_once, plan.turn_s, None))


def _repeat(once: Callable[[], Any], seconds: float, fps: float | None) -> list[float]:
    """Milliseconds of each call, at least one, back to back or at a pace."""
    times: list[float] = []
    began = due = time.perf_counter()
    while not times or time.perf_counter() - began < seconds:
        if fps:
            time.sleep(max(0.0, due - time.perf_counter()))
            due += 1 / fps
        start = time.perf_counter()
        once()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def percentile(times: list[float], percent: float) -> float:
    """As trtexec takes it: of the sorted times the last that is not among the largest (100 − percent) %."""
    ordered = sorted(times)
    return ordered[max(len(ordered) - 1 - int((100 - percent) * len(ordered) / 100), 0)]


def _percentiles(turns: list[list[float]]) -> dict[str, float]:
    times = [time for turn in turns for time in turn]
    named = {f"p{percent}": percentile(times, percent) for percent in PERCENTILES} if times else {}
    return {"mean": statistics.fmean(times), "min": min(times), "max": max(times), **named} if times else {}


def _speed(timing: Timing, plan: Plan) -> Speed:
    artefact = timing.candidate.artefact
    medians = [statistics.median(turn) for turn in timing.turns]
    return Speed(
        timing.candidate.backend,
        artefact.file,
        artefact.precision,
        plan.batch,
        "",
        timing.runner.name,
        timing.runs,
        timing.cold_ms,
        _percentiles(timing.turns),
        _percentiles(timing.compute),
        plan.batch * timing.runs / timing.seconds,
        max(medians) - min(medians) > UNSTABLE * statistics.median(medians),
    )


def write_json(path: Path, bundle: Bundle, plan: Plan, speeds: list[Speed]) -> None:
    """Everything that was measured, and where."""
    record = {
        "bundle": bundle.manifest.name,
        "plan": asdict(plan),
        "machine": environment(),
        "results": {speed.key: asdict(speed) for speed in speeds},
    }
    write_text(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def check_regression(path: Path, speeds: list[Speed], allowed: float) -> None:
    """Refuse medians that are more than `allowed` (0.1: ten per cent) over those of an earlier JSON file."""
    try:
        before = json.loads(path.read_text(encoding="utf-8"))["results"]
        medians = {key: float(speed["latency_ms"]["p50"]) for key, speed in before.items() if not speed["missing"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a result of `qcn benchmark`: {error!r}") from error
    now = {speed.key: speed.latency_ms["p50"] for speed in speeds if not speed.missing}
    if not medians.keys() & now.keys():
        raise UsageError(f"{path} has nothing that was measured now: {', '.join(now) or 'nothing was'}")
    slower = {key: now[key] / medians[key] - 1 for key in now if key in medians}
    if late := {key: by for key, by in slower.items() if by > allowed}:
        said = "; ".join(f"{key} is {by:.0%} slower" for key, by in late.items())
        raise CheckFailed(f"{said} than in {path}, and {allowed:.0%} is allowed")
