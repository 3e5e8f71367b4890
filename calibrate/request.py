"""The settings of `qcn calibrate`. No torch here."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from qcn.errors import UsageError
from qcn.export.backends import CALIBRATED
from qcn.settings import PUBLIC_KEY, check_choices, setting

Method = Literal["mse", "minmax", "entropy", "percentile"]  # how ranges are chosen, see `qcn.calibrate.ranges`
METHODS: tuple[Method, ...] = get_args(Method)
Goal = Literal["latency", "size"]


@dataclass(frozen=True)
class CalibrationRequest:
    """The settings of `qcn calibrate`. `command` is what was typed."""

    dataset: str | None = setting(
        None,
        "Data set, or folder of pictures, whose validation split is used.",
        unset="the one that it was trained on",
        complete="data",
    )
    max_drop: float = setting(
        0.2, "Percentage points of accuracy it may lose, by the upper end of the confidence interval."
    )
    backend: str = setting("native", "Backend to optimise for: {choices}.", choices=tuple(CALIBRATED))
    images: int | None = setting(None, "Use at most this many validation images.", unset="all")
    max_turn: float | None = setting(
        None,
        "Degrees by which the directions of 95 of 100 images may turn, for a network that tells them.",
        unset="no limit",
        rare=True,
    )
    method: Method = setting("mse", "How ranges are chosen: {choices}.", rare=True)
    goal: Goal = setting(
        "latency", "What to win: latency, or size (a smaller bundle, even if it is not faster).", rare=True
    )
    report: Path | None = setting(
        None,
        "Folder for records, charts and a page; an interrupted calibration resumes from it.",
        unset="runs/calibrate/MODEL",
        rare=True,
    )
    data_dir: Path = setting(Path("data"), "Folder that holds the data sets.")
    out: Path | None = setting(None, "Bundle to write.", unset="runs/calibrate/MODEL/bundle")
    public_key: Path | None = setting(None, PUBLIC_KEY, unset="no check")
    command: str = "qcn calibrate"

    def __post_init__(self) -> None:
        check_choices(self)
        if not 0 < self.max_drop <= 100:
            raise UsageError(
                f"--max-drop is in percentage points of accuracy, above 0 and up to 100, not {self.max_drop:g}"
            )
        if self.max_turn is not None and not 0 < self.max_turn <= 180:
            raise UsageError(f"max_turn is in degrees, above 0 and up to 180, not {self.max_turn:g}")
        if self.images is not None and self.images < 1:
            raise UsageError(f"--images must be 1 or more, not {self.images}")

    @property
    def rebuild(self) -> str:
        """The command that makes the bundle again, as a manifest has it: {bundle} stands for the bundle's folder."""
        options: dict[str, object] = {
            "--max-drop": self.max_drop,
            "--backend": self.backend,
        }
        options |= {"--dataset": self.dataset} if self.dataset else {}
        options |= {"--images": self.images} if self.images else {}
        arguments = " ".join(f"{option} {shlex.quote(str(value))}" for option, value in options.items())
        rare = ("method", "goal", *(("max_turn",) if self.max_turn is not None else ()))
        arguments += "".join(f" --set {name}={getattr(self, name)}" for name in rare)
        return f"qcn calibrate MODEL {arguments} --out {{bundle}}"
