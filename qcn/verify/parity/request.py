"""What `qcn verify-parity` is asked for. Light: the shell makes its options of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qcn.errors import UsageError
from qcn.settings import setting
from qcn.verify.request import OTHER_NETWORK, TRUST, backends, check_time_limit, time_limit


@dataclass(frozen=True)
class ParityRequest:
    """The settings of `qcn verify-parity`. `file` is one file of the bundle; `command` is what was typed."""

    backends: Sequence[str] = backends()
    dataset: str = setting(
        "golden",
        "Images: golden (the bundle's own, no torch needed), a data set, or a folder or table of pictures.",
        complete="golden_or_data",
    )
    images: int | None = setting(None, "Number of images to take from a data set, folder or table.", unset="64")
    atol: Sequence[str] = setting(
        (), "Absolute tolerance: 1e-4, or logit:1e-4 for one output.", unset="the bundle's", rare=True
    )
    rtol: Sequence[str] = setting(
        (), "Tolerance relative to the output's largest value, added to atol.", unset="0", rare=True
    )
    run: str | None = setting(
        None, "Require that the bundle is built from this training run's network; needs torch.", unset="none"
    )
    soak: str | None = setting(
        None,
        "Ask the backends that passed for random images in every batch size, for so long in all: 60s, 10min, 2h.",
        unset="off",
        rare=True,
    )
    report: Path | None = setting(None, "Write a report into this folder; implies bisect.", unset="none")
    benchmark: Path | None = setting(None, "File from `qcn benchmark --json`, to show in the report.", unset="none")
    baseline: Path | None = setting(None, "An earlier report.json: fail if anything got worse.", unset="none")
    trust: bool = setting(False, TRUST)
    track: bool = setting(
        False, "Keep the bundle and its report in the trackers (MLflow, W&B) that --run has.", rare=True
    )
    bisect: bool = setting(False, "Compare every layer and iteration, even if the answers are right.", rare=True)
    seed: int | None = setting(None, "Seed of a soak, to repeat it.", unset="a new one", rare=True)
    other_network: bool = setting(False, OTHER_NETWORK, rare=True)
    time_limit: float = time_limit()
    data_dir: Path = setting(Path("data"), "Folder that holds the data sets.")
    file: str | None = None
    command: str = "bundle.verify()"

    def __post_init__(self) -> None:
        if self.benchmark and not self.report:
            raise UsageError("--benchmark is for the report: name its folder with --report")
        if self.report and self.report.exists() and not self.report.is_dir():
            raise UsageError(f"{self.report} is a file; --report names a folder")
        if self.track and not (self.run and self.report):
            raise UsageError("track keeps the bundle and its report with its run: name both with --run and --report")
        check_time_limit(self.time_limit)
