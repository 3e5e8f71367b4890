"""How fast the backends of a bundle are, each in its turn (`qcn.verify.speed.turns`).

In trtexec's words: *latency* is the time of one inference with the transfers to and from the device; *compute* is
without them, from launch to answer by the host's clock, where a backend has such transfers; percentiles are taken over
all runs after the warm-up. A backend whose turns disagree by more than a tenth is called unstable.
"""

import statistics
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from qcn.errors import MissingError, QcnError, UsageError
from qcn.export.backends import find
from qcn.export.backends.candidates import Candidate, candidates, key
from qcn.export.backends.runner import TIME_LIMIT
from qcn.export.bundle import Bundle
from qcn.export.bundle.golden import Golden
from qcn.terminal.progress import doing, part, shown
from qcn.verify.speed.cold import Cold, cold_start, first_images
from qcn.verify.speed.energy import Meter, meter
from qcn.verify.speed.turns import Timing, TimingPlan, take_turns
from qcn.verify.words import Histogram

BINS = 32  # of a histogram, from the fastest run to the 99th percentile; fewer where there are few runs
UNSTABLE = 0.1  # spread of the turns' medians, over their median
LAUNCHED_ONE_BY_ONE = "without CUDA graph"


@dataclass(frozen=True)
class Latency:
    """Of many runs, in milliseconds; percentiles as trtexec takes them."""

    mean: float
    min: float
    max: float
    p50: float
    p90: float
    p95: float
    p99: float

    def __post_init__(self) -> None:
        if not 0 < self.min <= self.p50 <= self.p90 <= self.p95 <= self.p99 <= self.max:
            raise ValueError("percentiles must rise, from more than 0")


@dataclass(frozen=True)
class Speed:
    """What was measured of an artefact in a backend; times in milliseconds. `missing` says why there is nothing.

    failed              whether that is a fault of the file, and not what this machine lacks or was not asked to run
    variant             "", or how it differs from the backend's own way
    latency, compute    with transfers to and from a GPU, and without; compute is None where there are none
    histogram           of the latency in milliseconds, up to the 99th percentile
    images_per_second   with transfers, one inference after the other
    energy_mj           of one inference, as `energy_of` says, with what the machine draws when idle; None: not known
    """

    backend: str
    file: str
    precision: str
    batch: int
    missing: str = ""
    failed: bool = False
    variant: str = ""
    runner: str = ""
    runs: int = 0
    cold: Cold | None = None
    latency_ms: Latency | None = None
    compute_ms: Latency | None = None
    histogram: Histogram | None = None
    images_per_second: float = 0.0
    unstable: bool = False
    energy_mj: float | None = None
    energy_of: str = ""

    @property
    def key(self) -> str:
        variant = f", {self.variant}" if self.variant else ""
        return f"{key(self.backend, self.file, self.precision)}{variant}, batch {self.batch}"

    @property
    def median(self) -> float | None:
        """Milliseconds of latency; None where it was not measured."""
        return self.latency_ms.p50 if self.latency_ms else None


def benchmark(
    bundle: Bundle,
    backends: Iterable[str] | None,
    plan: TimingPlan,
    trust: bool = False,
    time_limit: float = TIME_LIMIT,
    file: str | None = None,
) -> list[Speed]:
    """Time every artefact in every backend that was asked for, or that this machine can run, at every batch.

    `file` names one of them. What can carry code runs only with `trust`, and is timed through the pipe to its process.
    """
    names = list(backends) if backends else None
    golden = bundle.golden()
    if untimed := [name for name in names or () if not find(name).timed]:
        raise UsageError(f"{untimed[0]} is a server's model repository: time it with perf_analyzer (docs/serve.md)")
    result = [one for one in candidates(bundle, names, trust, file) if one.backend.timed]
    speeds: list[Speed] = []
    with ExitStack() as stack:
        stack.enter_context(shown())
        counter = meter()
        energy = stack.enter_context(counter) if counter else None
        for place, batch in enumerate(plan.batches):
            with part(place, len(plan.batches)):
                speeds += _one_batch(bundle, golden, result, plan, batch, energy, time_limit)
    return speeds


def _one_batch(
    bundle: Bundle,
    golden: Golden,
    all_of_them: list[Candidate],
    plan: TimingPlan,
    batch: int,
    energy: Meter | None,
    time_limit: float,
) -> list[Speed]:
    images = first_images(golden, batch)
    speeds: list[Speed] = []
    begun: list[tuple[Candidate, Cold]] = []
    served = {candidate.backend.name for candidate in all_of_them if candidate.takes(batch)}
    for candidate in all_of_them:  # one at a time, and before any is open: see qcn.verify.speed.cold
        about = (candidate.backend.name, candidate.artefact.file, candidate.precision, batch)
        if candidate.untrusted:
            speeds.append(Speed(*about, missing=candidate.untrusted))
            continue
        if not candidate.takes(batch):
            if candidate.backend.name not in served:
                speeds.append(Speed(*about, missing=f"it takes batches of {candidate.artefact.batch}"))
            continue
        doing(f"starting {candidate.key}")
        try:
            begun.append((candidate, cold_start(bundle, candidate, images, time_limit)))
        except MissingError as error:
            speeds.append(Speed(*about, missing=f"cannot run here: {error}"))
        except QcnError as error:  # the others are measured all the same
            speeds.append(Speed(*about, missing=str(error), failed=True))
    with ExitStack() as opened:
        timings = []
        for candidate, cold in begun:
            # In this process, as in a user's program: files without code have just answered once in time.
            runner = opened.enter_context(candidate.runner_to_time(bundle, time_limit))
            ways = (None,) if runner.graph is None else (True, False)
            timings += [Timing(candidate, runner, images, cold, graph) for graph in ways]
        take_turns(timings, plan, energy)
        return speeds + [_speed(timing, batch, energy) for timing in timings]


def percentile(times: list[float], percent: float) -> float:
    """As trtexec takes it: of the sorted times the last that is not among the largest (100 − percent) %."""
    ordered = sorted(times)
    return ordered[max(len(ordered) - 1 - int((100 - percent) * len(ordered) / 100), 0)]


def summarise(turns: list[list[float]]) -> Latency | None:
    """Of all runs; None if there were none."""
    times = [time for turn in turns for time in turn]
    if not times:
        return None
    percentiles = (percentile(times, percent) for percent in (50, 90, 95, 99))
    return Latency(statistics.fmean(times), min(times), max(times), *percentiles)


def histogram(turns: list[list[float]]) -> Histogram:
    """How many runs took how many milliseconds, up to the 99th percentile."""
    times = np.array([time for turn in turns for time in turn])
    top = percentile(times.tolist(), 99)
    counts, edges = np.histogram(
        times[times <= top], min(BINS, max(4, len(times) // 4)), (times.min(), max(top, times.min() + 1e-6))
    )
    return Histogram(tuple(edges.tolist()), tuple(counts.tolist()), int(np.sum(times > top)))


def _speed(timing: Timing, batch: int, energy: Meter | None) -> Speed:
    medians = [statistics.median(turn) for turn in timing.turns]
    return Speed(
        timing.candidate.backend.name,
        timing.candidate.artefact.file,
        timing.candidate.precision,
        batch,
        variant=LAUNCHED_ONE_BY_ONE if timing.graph is False else "",
        runner=timing.runner.name,
        runs=timing.runs,
        cold=timing.cold,
        latency_ms=summarise(timing.turns),
        compute_ms=summarise(timing.compute),
        histogram=histogram(timing.turns),
        images_per_second=batch * timing.runs / timing.seconds,
        unstable=max(medians) - min(medians) > UNSTABLE * statistics.median(medians),
        energy_mj=timing.energy_mj,
        energy_of=energy.of if energy and timing.energy_mj is not None else "",
    )
