"""`qcn benchmark`: percentiles as trtexec takes them, turns that are taken, paces that are kept, regressions found."""

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qcn.errors import CheckFailed, UsageError
from qcn.export.bundle import WEIGHTS, Bundle
from qcn.verify import Runner, latency
from qcn.verify.backends import Candidate
from qcn.verify.latency import Plan, Speed, Timing, percentile


class Sleeper(Runner):
    """Takes a given time, and writes down who ran."""

    def __init__(self, name: str, seconds: float, log: list[str]) -> None:
        self.name, self.seconds, self.log = name, seconds, log

    def open(self) -> None:
        pass

    def infer(self, images: Any) -> dict[str, Any]:
        self.log.append(self.name)
        time.sleep(self.seconds)
        return {}

    def close(self) -> None:
        pass


@pytest.fixture
def candidate(bundle: Bundle) -> Candidate:
    return Candidate("torch", bundle.find(WEIGHTS))


def timing(candidate: Candidate, runner: Runner) -> Timing:
    return Timing(candidate, runner, np.zeros((1, 1, 1, 1), np.float32), 0.0)


@pytest.mark.parametrize(
    ("count", "percent", "index"),
    [(100, 50, 49), (100, 90, 89), (100, 99, 98), (100, 100, 99), (10, 99, 9), (10, 50, 4), (1, 99, 0), (3, 0, 0)],
)
def test_percentiles_are_trtexecs(count: int, percent: float, index: int) -> None:
    times = [float(i) for i in reversed(range(count))]
    assert percentile(times, percent) == index


def test_backends_take_turns_until_each_has_run_enough(candidate: Candidate) -> None:
    log: list[str] = []
    quick, slow = (timing(candidate, Sleeper(name, s, log)) for name, s in (("quick", 0.001), ("slow", 0.02)))
    latency.take_turns([quick, slow], Plan(warmup_ms=0, duration_s=0.1, iterations=10, turn_s=0.03))
    assert quick.runs >= 10 and slow.runs >= 10 and quick.seconds >= 0.1 and slow.seconds >= 0.1
    changes = sum(one != other for one, other in itertools.pairwise(log))
    assert changes >= 8  # and not one after the other
    assert len(quick.turns) == len(slow.turns) and not quick.compute


def test_a_pace_is_kept(candidate: Candidate) -> None:
    runner = timing(candidate, Sleeper("camera", 0.001, []))
    began = time.perf_counter()
    latency.take_turns([runner], Plan(warmup_ms=0, duration_s=0, iterations=10, fps=50, turn_s=0.1))
    assert time.perf_counter() - began >= 0.18  # ten images at 50 a second
    assert max(map(max, runner.turns)) < 20  # the waiting is not counted


def speed(milliseconds: float, missing: str = "") -> Speed:
    return Speed("torch", "model.ts", "fp32", 1, missing, latency_ms={"p50": milliseconds})


def test_a_regression_is_found(bundle: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    latency.write_json(path, bundle, Plan(), [speed(10.0)])
    latency.check_regression(path, [speed(10.9)], 0.1)
    with pytest.raises(CheckFailed, match=r"torch: model\.ts, batch 1 is 12% slower"):
        latency.check_regression(path, [speed(11.2)], 0.1)
    with pytest.raises(UsageError, match="has nothing that was measured now"):
        latency.check_regression(path, [speed(0.0, missing="gone")], 0.1)
    path.write_text("{}")
    with pytest.raises(UsageError, match="is not a result"):
        latency.check_regression(path, [speed(1.0)], 0.1)


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"fps": 0.0}, {"iterations": 0}, {"duration_s": -1.0}])
def test_plans_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="cannot be"):
        Plan(**wrong)


def test_from_the_command_line(bundle: Bundle, tmp_path: Path) -> None:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "qcn", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run("export", bundle.folder, "--batch", 4).returncode == 0
    short = ("--duration", 0.1, "--warmup", 10)
    result = run(
        "benchmark", bundle.folder, "--backends", "onnxruntime", "--batch", 4, *short, "--json", tmp_path / "j"
    )
    assert result.returncode == 0, result.stderr
    (found,) = json.loads((tmp_path / "j").read_text())["results"].values()
    assert found["runs"] >= 10 and found["cold_ms"] > 0 and found["images_per_second"] > 0
    assert found["latency_ms"]["min"] <= found["latency_ms"]["p50"] <= found["latency_ms"]["p99"]
    assert "onnxruntime  model.onnx" in result.stdout
    result = run("benchmark", bundle.folder, "--backends", "onnxruntime", *short)
    assert result.returncode == 3 and "it takes batches of 4" in result.stderr
    result = run("benchmark", bundle.folder, "--backends", "torch", "--backends", "onnxruntime-cuda", *short)
    assert result.returncode == 3
