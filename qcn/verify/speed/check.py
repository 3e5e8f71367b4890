"""A benchmark of a bundle in one call, for the shell and for Python: measured, recorded, compared with a baseline."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from qcn.errors import MissingError, QcnError, UsageError
from qcn.export.bundle import Bundle
from qcn.storage import records
from qcn.terminal.progress import shown
from qcn.verify.network import NetworkId, check_baseline_network
from qcn.verify.speed import latency
from qcn.verify.speed.latency import Speed
from qcn.verify.speed.request import BenchmarkRequest
from qcn.verify.speed.timings import Benchmark, benchmark_record, check_regression, fastest, read_benchmark, table
from qcn.verify.speed.turns import TimingPlan

WIDTH = 130  # columns of the tables as text


@dataclass(frozen=True)
class Benchmarked:
    """What was measured.

    record    all of it, for programs: what `qcn benchmark --json` writes
    problem   what is slower than the baseline or could not be measured, as the error that the shell ends with
    """

    record: Benchmark
    problem: QcnError | None = None

    @property
    def speeds(self) -> list[Speed]:
        """What was measured."""
        return [speed for speed in self.record.results.values() if not speed.missing]

    @property
    def missing(self) -> list[Speed]:
        """What was not measured, with the reasons."""
        return [speed for speed in self.record.results.values() if speed.missing]

    @property
    def fastest(self) -> list[str]:
        """The fastest at each batch size, in words."""
        return [line for size in self.record.plan.batches if (line := fastest(self.speeds, size))]

    def require(self) -> None:
        """Raise what is wrong, if anything is."""
        if self.problem:
            raise self.problem

    def __str__(self) -> str:
        """A table for each batch size, and what was the fastest."""
        text = io.StringIO()
        console = Console(file=text, width=WIDTH, markup=False, emoji=False, highlight=False)
        for size in self.record.plan.batches:
            if any(speed.batch == size for speed in self.speeds):
                console.print(table(self.speeds, size))
        return text.getvalue() + "\n".join(self.fastest)


def benchmark(bundle: Bundle, request: BenchmarkRequest) -> Benchmarked:
    """Time each backend of a bundle; write the record where a file is named for it."""
    batches = tuple(dict.fromkeys(request.batch))
    plan = TimingPlan(batches, request.warmup, request.duration, request.runs, request.fps)
    before = read_benchmark(request.baseline) if request.baseline else None  # now: the new file may take its place
    if request.baseline and before:
        check_baseline_network(request.baseline, before.network, NetworkId.of(bundle.manifest), request.other_network)
    with shown():
        speeds = latency.benchmark(bundle, request.backends or None, plan, request.trust, request.time_limit)
    record = benchmark_record(bundle, plan, speeds, request.command)
    if request.json:
        records.write(request.json, record)
    try:
        _conclude(speeds, bool(request.backends))
        if request.baseline and before:
            check_regression(request.baseline, before, speeds, request.max_regression)
    except QcnError as error:
        return Benchmarked(record, error)
    return Benchmarked(record)


def _conclude(speeds: Sequence[Speed], by_name: bool) -> None:
    """Refuse a file that failed, and a backend asked for by name, or all of them, that could not be measured."""
    missing = [speed for speed in speeds if speed.missing]
    if failed := next((speed for speed in missing if speed.failed), None):
        raise UsageError(f"{failed.key}: {failed.missing}")
    if missing and (by_name or len(missing) == len(speeds)):
        raise MissingError(f"{missing[0].key}: {missing[0].missing}")
