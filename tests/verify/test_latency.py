"""`qcn benchmark`: percentiles as trtexec takes them, turns that are taken, paces that are kept, regressions found."""

import itertools
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Command

from qcn.errors import CheckFailed, MissingError, UsageError
from qcn.export.backends.candidates import Candidate, candidates
from qcn.export.backends.model_file import ModelFile
from qcn.export.backends.runner import Options, Runner
from qcn.export.bundle import Bundle
from qcn.storage import records
from qcn.verify.speed import cold, energy, latency, timings, turns
from qcn.verify.speed.cold import Cold
from qcn.verify.speed.energy import Meter, energy_of_one
from qcn.verify.speed.latency import Speed, percentile, summarise
from qcn.verify.speed.turns import Timing, TimingPlan, take_turns


class Clock:
    """Time that passes by what is slept, so that a busy machine changes none of it.

    Where there is a counter, a sleep ends when it was looked at, or nobody does: a thread that looks can keep up.
    """

    def __init__(self) -> None:
        self.now, self.looked, self.patience = 0.0, threading.Event(), 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.looked.clear()
        self.now += seconds
        self.looked.wait(self.patience)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    for module in (turns, energy):
        monkeypatch.setattr(module, "time", found)
    return found


class Sleeper(Runner):
    """Takes a given time, and writes down who ran."""

    def __init__(self, name: str, seconds: float, log: list[str], clock: Clock, options: Options | None = None) -> None:
        super().__init__(ModelFile(Path(name), b""), options or Options())
        self.name, self.seconds, self.log, self.clock = name, seconds, log, clock

    def open(self) -> None:
        pass

    def infer(self, images: Any) -> dict[str, Any]:
        self.log.append(self.name)
        self.clock.sleep(self.seconds)
        return {}

    def close(self) -> None:
        pass


@pytest.fixture
def candidate(bundle: Bundle) -> Candidate:
    (found,) = candidates(bundle, ["torch"])
    return found


def timing(candidate: Candidate, runner: Runner) -> Timing:
    return Timing(candidate, runner, np.zeros((1, 1, 1, 1), np.float32), Cold(0.0, 0.0, None, None))


@pytest.mark.parametrize(
    ("count", "percent", "index"),
    [(100, 50, 49), (100, 90, 89), (100, 99, 98), (100, 100, 99), (10, 99, 9), (10, 50, 4), (1, 99, 0), (3, 0, 0)],
)
def test_percentiles_are_trtexecs(count: int, percent: float, index: int) -> None:
    times = [float(i) for i in reversed(range(count))]
    assert percentile(times, percent) == index


def test_backends_take_turns_until_each_has_run_enough(candidate: Candidate, clock: Clock) -> None:
    log: list[str] = []
    quick, slow = (timing(candidate, Sleeper(name, s, log, clock)) for name, s in (("quick", 0.001), ("slow", 0.02)))
    take_turns([quick, slow], TimingPlan(warmup_ms=0, duration_s=0.1, iterations=10, turn_s=0.03))
    assert quick.runs >= 10 and slow.runs >= 10 and quick.seconds >= 0.1 and slow.seconds >= 0.1
    changes = sum(one != other for one, other in itertools.pairwise(log))
    assert changes >= 8  # and not one after the other
    assert len(quick.turns) == len(slow.turns) and not quick.compute


def test_a_pace_is_kept(candidate: Candidate, clock: Clock) -> None:
    runner = timing(candidate, Sleeper("camera", 0.001, [], clock))
    take_turns([runner], TimingPlan(warmup_ms=0, duration_s=0, iterations=10, fps=50, turn_s=0.1))
    assert clock.now >= 0.18  # ten images at 50 per second
    assert max(map(max, runner.turns)) == pytest.approx(1)  # the waiting is not counted


class Gpu(Sleeper):
    """Ten milliseconds to and from the device, one of computing; three if it is not launched as a graph."""

    graph = True

    def __init__(self, clock: Clock) -> None:
        super().__init__("gpu", 0.0, [], clock, Options("cuda"))

    def infer(self, images: Any) -> dict[str, Any]:
        self.clock.sleep(0.01)
        self.enqueue()
        return {}

    def upload(self, images: Any) -> None:
        self.log.append("upload")

    def enqueue(self) -> None:
        self.clock.sleep(0.001 if self.graph else 0.003)

    def synchronize(self) -> None:
        self.log.append("synchronize")


class Counter(Meter):
    """Of five watts, in steps of a twentieth of a second."""

    of = "a test"
    gpu_only = True

    def __init__(self, clock: Clock) -> None:
        self.clock, clock.patience = clock, 0.02

    def read(self) -> float:
        shown = 5.0 * 50.0 * (self.clock.now // 0.05)
        self.clock.looked.set()
        return shown


def test_energy_is_counted_from_change_to_change_of_the_counter(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two readings at any moments it would be off by up to a step at either end: a quarter of all, here."""
    monkeypatch.setattr(energy, "SECONDS", 0.2)

    def runs() -> Iterator[None]:
        while True:
            clock.sleep(0.002)
            yield

    for later in (0.0, 0.01, 0.02, 0.03, 0.04):
        clock.now = later
        assert energy_of_one(Counter(clock), runs()) == pytest.approx(5.0 * 2.0, rel=0.15)
    monkeypatch.setattr(energy, "PATIENCE_S", 0.05)
    stopped, clock.patience = Counter(clock), 0.0
    assert energy_of_one(Meter(), runs()) is None
    monkeypatch.setattr(stopped, "read", lambda: 7.0)
    assert energy_of_one(stopped, runs()) is None


def test_a_look_at_the_counter_does_not_hold_the_runs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes long, as NVML's does: here until three more runs have ended. After the last run there are none."""
    monkeypatch.setattr(energy, "SECONDS", 0.05)
    ended, more = 0, threading.Condition()
    seen_running: list[bool] = []

    class Slow(Meter):
        def read(self) -> float:
            with more:
                due = ended + 3
                seen_running.append(more.wait_for(lambda: ended >= due, 10))
                return float(ended)

    def runs() -> Iterator[None]:
        nonlocal ended
        while True:
            time.sleep(0.001)
            with more:
                ended += 1
                more.notify()
            yield

    assert energy_of_one(Slow(), runs()) is not None
    assert len(seen_running) > 2 and all(seen_running[:-1]), "runs wait for the look"


def test_with_and_without_transfers_graph_and_energy(
    bundle: Bundle, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qcn.export.backends.candidates._create", lambda backend, path, options: Gpu(clock))
    monkeypatch.setattr(latency, "cold_start", lambda *_: Cold(1.0, 2.0, None, None))
    monkeypatch.setattr(latency, "meter", lambda: Counter(clock))
    plan = TimingPlan(batches=(1, 4), warmup_ms=0, duration_s=0, iterations=3, turn_s=0.02)
    found = latency.benchmark(bundle, ["torch"], plan)
    name = "torch: weights.safetensors (fp32)"
    variants = [f"{name}{variant}, batch {batch}" for batch in (1, 4) for variant in ("", ", without CUDA graph")]
    assert [speed.key for speed in found] == variants
    graph, plain, *_ = found
    assert graph.latency_ms and graph.compute_ms and plain.compute_ms
    found_ms = [graph.latency_ms.p50, graph.compute_ms.p50, plain.compute_ms.p50]
    assert found_ms == pytest.approx([11, 1, 3])
    assert graph.energy_of == "a test" and graph.cold == Cold(1.0, 2.0, None, None)
    assert graph.energy_mj == pytest.approx(5.0 * graph.latency_ms.mean, rel=0.3)
    assert {speed.batch for speed in found} == {1, 4}


def test_a_gpus_energy_is_not_the_processors(candidate: Candidate, clock: Clock) -> None:
    runner = timing(candidate, Sleeper("cpu", 0.001, [], clock))
    take_turns([runner], TimingPlan(warmup_ms=0, duration_s=0, iterations=1, turn_s=0.01), Counter(clock))
    assert runner.energy_mj is None and runner.compute == []


def test_a_histogram_counts_every_run() -> None:
    times = [1.0 + i / 100 for i in range(200)] + [50.0]
    found = latency.histogram([times[:50], times[50:]])
    assert sum(found.counts) + found.above == len(times) and found.above >= 1
    assert found.edges[0] == 1.0 and found.edges[-1] == percentile(times, 99)
    assert latency.histogram([[2.0]]).counts[0] == 1


@pytest.mark.isolated
def test_a_cold_start_is_measured_in_a_process_of_its_own(
    bundle: Bundle, candidate: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this one torch is loaded already; there it costs time and memory."""
    images = cold.first_images(bundle.golden(), 2)
    found = cold.cold_start(bundle, candidate, images)
    assert found.open_ms > 100 and found.first_answer_ms > 0
    assert found.host_mib is not None and found.host_mib > 20 and found.device_mib is None
    began = time.perf_counter()
    candidate.runner(bundle).open()
    assert 1e3 * (time.perf_counter() - began) < found.open_ms
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(MissingError, match="finds no CUDA device"):
        cold.cold_start(bundle, candidates(bundle, ["torch-cuda"])[0], images)


def test_what_is_timed_are_real_images(bundle: Bundle) -> None:
    golden = bundle.golden()
    real = golden.input[golden.label >= 0]
    assert 0 < len(real) < len(golden.input)
    found = cold.first_images(golden, 2 * len(real) + 1)
    np.testing.assert_array_equal(found, np.concatenate([real, real, real[:1]]))


def speed(milliseconds: float, missing: str = "") -> Speed:
    measured = None if missing else summarise([[milliseconds]])
    return Speed("torch", "weights.safetensors", "fp32", 1, missing, latency_ms=measured)


def test_a_regression_is_found(bundle: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    records.write(path, timings.benchmark_record(bundle, TimingPlan(), [speed(10.0)], "qcn benchmark"))
    before = timings.read_benchmark(path)
    timings.check_regression(path, before, [speed(10.9)], 0.1)
    with pytest.raises(CheckFailed, match=r"torch: weights\.safetensors \(fp32\), batch 1 is 12 % slower"):
        timings.check_regression(path, before, [speed(11.2)], 0.1)
    with pytest.raises(UsageError, match="has none of what was measured now"):
        timings.check_regression(path, before, [speed(0.0, missing="gone")], 0.1)


def test_only_what_a_benchmark_wrote_is_read(bundle: Bundle, tmp_path: Path) -> None:
    """Another's file is refused with the place that is wrong; what was written comes back the same."""
    path = tmp_path / "before.json"
    written = timings.benchmark_record(bundle, TimingPlan(), [speed(10.0)], "qcn benchmark")
    records.write(path, written)
    assert timings.read_benchmark(path) == written
    whole = path.read_text(encoding="utf-8")
    for text in ("{}", "[", "[]", "[" * 100_000, whole.replace('"schema": 4', '"schema": 3'), ""):
        path.write_text(text)
        with pytest.raises(UsageError, match="this is not what `qcn benchmark --json` writes"):
            timings.read_benchmark(path)
    for median in ("NaN", "Infinity", "0", "-1", "null", '"1"', "true", "[]", "1" * 400):
        path.write_text(whole.replace('"p50": 10.0', f'"p50": {median}'))
        with pytest.raises(UsageError, match=r"latency_ms|NaN|Infinity|too large a number"):
            timings.read_benchmark(path)
    path.write_text(whole.replace('"missing": ""', '"missing": "torch is not installed"'))
    assert timings.read_benchmark(path) != written


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("batch", {"batches": (1, 0)}),
        ("batch", {"batches": ()}),
        ("batch", {"batches": (1, 10**6)}),
        ("fps", {"fps": 0.0}),
        ("fps", {"fps": float("inf")}),
        ("duration", {"duration_s": float("inf")}),
        ("runs", {"iterations": 0}),
        ("duration", {"duration_s": -1.0}),
        ("warmup", {"warmup_ms": float("nan")}),
    ],
)
def test_plans_that_cannot_be_are_refused(option: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^(--)?{option} must be"):
        TimingPlan(**wrong)


def test_from_the_command_line(bundle: Bundle, tmp_path: Path, qcn: Command) -> None:
    assert qcn("export", bundle.folder, "--batch", 4)[0] == 0
    short = ("--duration", 0.1, "--set", "warmup=10")
    wanted = ("--backends", "onnxruntime,torch", "--batch", 4, "--batch", 4)
    code, said = qcn("benchmark", bundle.folder, *wanted, *short, "--json", tmp_path / "j")
    assert code == 0, said
    record = timings.read_benchmark(tmp_path / "j")
    assert record.command.startswith("qcn benchmark ") and record.plan.batches == (4,)
    assert record.machine.processor and record.machine.cores >= 1
    found, _ = record.results.values()
    assert found.runs >= 10 and found.cold and found.cold.open_ms > 0 and found.images_per_second > 0
    assert found.histogram and sum(found.histogram.counts) + found.histogram.above == found.runs
    assert re.search(r"onnxruntime +model.onnx +fp32", said)
    assert len(re.findall(r"^batch 4 *$", said, re.MULTILINE)) == 1
    code, said = qcn("benchmark", bundle.folder, "--backends", "onnxruntime", *short)
    assert code == 3 and "it takes batches of 4" in said
    assert qcn("export", bundle.folder, "--batch", 1, "--routing", "fused")[0] == 0
    code, said = qcn("benchmark", bundle.folder, "--backends", "onnxruntime", *short)  # the graph for 4 stands back
    assert code == 0 and "model.fused.onnx" in said and "model.onnx" not in said
    code, _ = qcn("benchmark", bundle.folder, "--backends", "torch", "--backends", "onnxruntime-cuda", *short)
    assert code == 3
