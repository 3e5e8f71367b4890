"""What `qcn benchmark` found: as a table, as a JSON file (`Benchmark`), and against an earlier one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.table import Table

from qcn.errors import CheckFailed, UsageError
from qcn.export.backends import find, parts_of
from qcn.export.backends.triton.batching import BatchTime, FileTimes, Latencies
from qcn.export.bundle import Bundle
from qcn.storage import records
from qcn.terminal.tables import table_of
from qcn.terminal.text import command_line
from qcn.verify.machine import Environment, environment
from qcn.verify.network import NetworkId
from qcn.verify.speed.latency import Speed
from qcn.verify.speed.turns import TimingPlan
from qcn.verify.words import amount, milliseconds

SCHEMA: Literal[4] = 4
# A figure of what was measured, its heading in the terminal and on the page, and its unit there.
FIGURES: tuple[tuple[str, str, str, Callable[[Speed], float | None]], ...] = (
    ("open", "load", "ms", lambda one: one.cold.open_ms if one.cold else None),
    ("first", "first answer", "ms", lambda one: one.cold.first_answer_ms if one.cold else None),
    ("p50", "p50", "ms", lambda one: one.latency_ms.p50 if one.latency_ms else None),
    ("p90", "p90", "ms", lambda one: one.latency_ms.p90 if one.latency_ms else None),
    ("p95", "p95", "ms", lambda one: one.latency_ms.p95 if one.latency_ms else None),
    ("p99", "p99", "ms", lambda one: one.latency_ms.p99 if one.latency_ms else None),
    ("compute", "without transfers", "ms", lambda one: one.compute_ms.p50 if one.compute_ms else None),
    ("images/s", "images/s", "", lambda one: one.images_per_second),
    ("MiB", "memory", "MiB", lambda one: one.cold.host_mib if one.cold else None),
    ("GPU MiB", "GPU memory", "MiB", lambda one: one.cold.device_mib if one.cold else None),
    ("mJ", "energy", "mJ", lambda one: one.energy_mj),
)


@dataclass(frozen=True)
class Benchmark:
    """The file: how long was measured, what it was measured on, and by `Speed.key` what was measured.

    network_sha256   see `Manifest.network_sha256`
    files            the sha256 of each file that was timed
    """

    schema: Literal[4]
    bundle: str
    network_sha256: str
    files: dict[str, str]
    command: str
    plan: TimingPlan
    machine: Environment
    results: dict[str, Speed]

    def __post_init__(self) -> None:
        if unmeasured := [key for key, one in self.results.items() if not one.missing and one.latency_ms is None]:
            raise ValueError(f"'{unmeasured[0]}' has no latency, and does not say why")
        if strange := [one.file for one in self.results.values() if one.latency_ms and one.file not in self.files]:
            raise ValueError(f"'{strange[0]}' was timed, and its sha256 is missing")

    @property
    def network(self) -> NetworkId:
        return NetworkId(self.bundle, self.network_sha256)

    def not_of(self, network: NetworkId, files: Mapping[str, str]) -> str:
        """What else it measured than this network and these files (the sha256 of each), in words; empty if nothing."""
        if self.network_sha256 != network.sha256:
            return f"of another network: {self.network}, not {network}"
        changed = [file for file, sha256 in self.files.items() if files.get(file) != sha256]
        return f"of another {changed[0]} than the bundle has" if changed else ""


def table(speeds: Iterable[Speed], batch: int) -> Table:
    """Those of one batch that were measured; a column that would be empty is left out."""
    measured = [speed for speed in speeds if speed.batch == batch and not speed.missing]
    columns: dict[str, list[str]] = {
        "backend": [speed.backend for speed in measured],
        "file": [speed.file for speed in measured],
        "precision": [speed.precision for speed in measured],
    }
    for heading, _, _, figure in FIGURES:
        values = [figure(speed) for speed in measured]
        columns[heading] = ["" if value is None else amount(value) for value in values]
    columns[""] = [", ".join(filter(None, (speed.variant, "unstable" if speed.unstable else ""))) for speed in measured]
    filled = {heading: cells for heading, cells in columns.items() if any(cells)}
    numbers = [heading for heading, *_ in FIGURES]
    result = table_of(*filled, right=numbers, whole=numbers, title=f"batch {batch}")
    result.title_style = "bold"
    for row in zip(*filled.values(), strict=True):
        result.add_row(*row)
    return result


def fastest(speeds: Iterable[Speed], batch: int) -> str:
    """Which is the quickest at this batch, in words; empty where nothing was measured at it."""
    best = min((speed for speed in speeds if speed.batch == batch and speed.median), key=_median, default=None)
    if best is None:
        return ""
    doubt = ", but unstable: something else runs here" if best.unstable else ""
    return f"fastest: {best.key}: {milliseconds(_median(best))} (p50){doubt}"


def _median(speed: Speed) -> float:
    return speed.median or 0.0


def benchmark_record(bundle: Bundle, plan: TimingPlan, speeds: Sequence[Speed], command: str) -> Benchmark:
    """The whole, for a file."""
    manifest, timed = bundle.manifest, {speed.file for speed in speeds if speed.latency_ms}
    timed |= {part for one in manifest.files if one.file in timed for part in parts_of(one.format, one.precision)}
    return Benchmark(
        schema=SCHEMA,
        bundle=manifest.name,
        network_sha256=manifest.network_sha256,
        files={one.file: one.sha256 for one in manifest.files if one.file in timed},
        command=command,
        plan=plan,
        machine=environment(),
        results={speed.key: speed for speed in speeds},
    )


def read_benchmark(path: Path) -> Benchmark:
    """The record that `qcn benchmark --json` wrote."""
    return records.load(Benchmark, path, "qcn benchmark --json")


def read_benchmark_of(path: Path, bundle: Bundle) -> Benchmark:
    """The same, if it is of the network and of the files in this bundle."""
    result = read_benchmark(path)
    if why := result.not_of(NetworkId.of(bundle.manifest), {one.file: one.sha256 for one in bundle.manifest.files}):
        again = command_line("qcn", "benchmark", bundle.folder, "--json", path)
        raise UsageError(f"{path} is {why}; measure this bundle with: {again}")
    return result


def for_serving(path: Path) -> Latencies:
    """What a server's batches are chosen by, from what `qcn benchmark --json` wrote.

    Each file in ONNX Runtime and TensorRT, launched as a server does it.
    """
    record = read_benchmark(path)
    timed: dict[tuple[str, Literal["cpu", "cuda"]], dict[int, BatchTime]] = {}
    for speed in sorted(record.results.values(), key=lambda one: one.variant):  # one by one comes last, and counts
        if speed.backend in ("onnxruntime", "onnxruntime-cuda", "tensorrt") and speed.latency_ms:
            compute = speed.compute_ms.p50 if speed.compute_ms else None
            device = find(speed.backend).device
            batches = timed.setdefault((speed.file, device), {})
            batches[speed.batch] = BatchTime(speed.batch, speed.latency_ms.p50, compute)
    result = (
        FileTimes(record.network_sha256, record.files[file], file, device, tuple(of.values()))
        for (file, device), of in timed.items()
    )
    return Latencies(path, tuple(result))


def check_regression(path: Path, before: Benchmark, speeds: Sequence[Speed], allowed: float) -> None:
    """Refuse medians that are more than `allowed` (0.1: ten per cent) over those of `before`, read from `path`."""
    then = {key: speed.median for key, speed in before.results.items()}
    now = {speed.key: speed.median for speed in speeds if speed.median is not None}
    if not any(old is not None and key in now for key, old in then.items()):
        raise UsageError(f"{path} has none of what was measured now: {', '.join(now) or 'nothing was'}")
    if late := increases(then, now, allowed):
        words = "; ".join(f"{key} is {100 * by:.0f} % slower" for key, by in late.items())
        raise CheckFailed(f"{words} than in {path}, but only {100 * allowed:.0f} % is allowed")


def increases(then: Mapping[str, float | None], now: Mapping[str, float | None], allowed: float) -> dict[str, float]:
    """By how much what is known of both became more, as a share; only what is more than `allowed`."""
    both = {key: (old, new) for key, old in then.items() if old is not None and (new := now.get(key)) is not None}
    return {key: new / old - 1 for key, (old, new) in both.items() if new / old - 1 > allowed}
