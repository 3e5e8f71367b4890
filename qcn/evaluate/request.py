"""What `qcn evaluate` is asked for. Light: the shell makes its options of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qcn.errors import UsageError
from qcn.export.backends import LOADED
from qcn.names import Kernels
from qcn.settings import PUBLIC_KEY, check_choices, setting

TOP = 5


@dataclass(frozen=True)
class Request:
    """What `qcn evaluate` is asked for: see `evaluate` below."""

    dataset: str | None = setting(
        None, "Data set, or folder of pictures.", unset="the one that it was trained on", complete="data"
    )
    split: str | None = setting(None, "One split, such as novel or validation.", unset="all test splits")
    unknown: Sequence[str] = setting(
        (),
        "Folder or data set of other things: how many does it call known? May be repeated.",
        unset="none",
        complete="data",
    )
    backend: str = setting(
        "auto",
        "For a bundle: {choices}; auto is the fastest that runs here.",
        choices=("auto", *LOADED),
    )
    checkpoint: str = setting("best", "For a run: best (chosen on validation) or last.", rare=True)
    top: int = setting(TOP, "The k of the top-k error, shown if there are more than k classes.", rare=True)
    kernels: Kernels = setting(
        "auto",
        "For a run: routing kernels: auto (fused if available), fused, or reference (plain torch, slow).",
        rare=True,
    )
    device: str = setting("auto", "For a run: auto (a GPU if there is one), cpu, cuda or cuda:N.")
    data_dir: Path = setting(Path("data"), "Folder that holds the data sets.")
    out: Path | None = setting(
        None,
        "Folder to write.",
        unset="runs/evaluate/RUN[-last][-DATASET], and SPLIT below it with --split",
    )
    public_key: Path | None = setting(None, PUBLIC_KEY, unset="no check")

    def __post_init__(self) -> None:
        check_choices(self)
        if self.top < 1:
            raise UsageError(f"top must be 1 or more, not {self.top}")
