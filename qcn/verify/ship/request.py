"""What `qcn ship-check` is asked for. Light: the shell makes its options of it."""

from dataclasses import dataclass
from pathlib import Path

from qcn.settings import setting
from qcn.verify.request import TRUST, check_time_limit, time_limit

NO_LIMIT = "no limit"


@dataclass(frozen=True)
class ShipRequest:
    """The limits as text (`qcn.verify.ship.limits`), what is measured, and where the report goes."""

    min_accuracy: str | None = setting(
        None, "Smallest accuracy on each test split, 0.94 or 94%, judged by its 95 % interval.", unset=NO_LIMIT
    )
    max_latency: str | None = setting(
        None, "Largest time per image at a percentile: 5ms@p99, 800us@p50 (also p90, p95).", unset=NO_LIMIT
    )
    max_memory: str | None = setting(
        None, "Most memory to load and answer once, host and GPU together: 200MiB, 1GB.", unset=NO_LIMIT
    )
    max_energy: str | None = setting(None, "Most energy per image: 30mJ, 0.1J.", unset=NO_LIMIT, rare=True)
    max_calibration_error: str | None = setting(
        None, "Largest expected calibration error: 0.05 or 5%.", unset=NO_LIMIT, rare=True
    )
    max_direction_error: str | None = setting(
        None, "Largest angle between predicted and true direction of view, at a percentile: 20deg@p50.", unset=NO_LIMIT
    )
    dataset: str | None = setting(
        None,
        "Test images: a data set or a folder of pictures.",
        unset="the data set it was trained on",
        complete="data",
    )
    split: str | None = setting(None, "One split of them, such as novel.", unset="all test splits", rare=True)
    backend: str = setting(
        "auto", "Backend that will ship, one of `qcn verify-parity --backends`; auto is what `qcn.load` takes."
    )
    run: str | None = setting(
        None, "Require that the bundle is built from this training run's network; needs torch.", unset="none"
    )
    target: str = setting(
        "this", "Machine it will run on: this, jetson-orin, jetson-thor, or a GPU such as sm89.", complete="target"
    )
    report: Path | None = setting(
        None, "Write a report into this folder, with ship.json and junit.xml for CI.", unset="none"
    )
    trust: bool = setting(False, TRUST)
    file: str | None = setting(
        None, "File of the bundle that will ship, if the backend can run several.", unset="its first", rare=True
    )
    duration: float = setting(3.0, "Seconds to measure its speed, at least.", rare=True)
    time_limit: float = time_limit()
    data_dir: Path = setting(Path("data"), "Folder that holds the data sets.")

    def __post_init__(self) -> None:
        check_time_limit(self.time_limit)
