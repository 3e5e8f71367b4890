"""What `qcn benchmark` is asked for. Light: the shell makes its options of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qcn.errors import UsageError
from qcn.settings import setting
from qcn.verify.request import OTHER_NETWORK, TRUST, backends, check_time_limit, time_limit


@dataclass(frozen=True)
class BenchmarkRequest:
    """The settings of `qcn benchmark`. `command` is what was typed."""

    backends: Sequence[str] = backends()
    batch: Sequence[int] = setting((1,), "Batch size; may be repeated.", unset="1")
    duration: float = setting(3.0, "Seconds to measure each backend, at least.")
    fps: float | None = setting(None, "Runs per second, paced like a camera.", unset="back to back", rare=True)
    json: Path | None = setting(None, "Write the results to this JSON file.", unset="none")
    baseline: Path | None = setting(None, "Compare with this JSON file of an earlier benchmark.", unset="none")
    max_regression: float = setting(0.1, "How much worse than the baseline it may get; 0.1 is 10 %.")
    trust: bool = setting(False, TRUST)
    warmup: float = setting(200.0, "Milliseconds of warm-up before measuring.", rare=True)
    runs: int = setting(10, "Runs of each backend, at least.", rare=True)
    other_network: bool = setting(False, OTHER_NETWORK, rare=True)
    time_limit: float = time_limit()
    command: str = "bundle.benchmark()"

    def __post_init__(self) -> None:
        if self.json and self.json.is_dir():
            raise UsageError(f"{self.json} is a folder; --json names a file")
        if not 0 <= self.max_regression < math.inf:
            raise UsageError(f"--max-regression must be 0 or more, not {self.max_regression}")
        check_time_limit(self.time_limit)
