"""What `qcn calibrate` is asked for. No torch here."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from qcn.errors import UsageError, unknown_name
from qcn.export.backends import CALIBRATED

Method = Literal["mse", "minmax", "entropy", "percentile"]  # how ranges are chosen, see `qcn.calibrate.ranges`
METHODS: tuple[Method, ...] = get_args(Method)
Goal = Literal["latency", "size"]
GOALS: tuple[Goal, ...] = get_args(Goal)


@dataclass(frozen=True)
class Request:
    """What to do; the fields are the options of `qcn calibrate`.

    out      the bundle to write; None: runs/calibrate/MODEL/bundle
    report   folder of the records, where an interrupted calibration goes on; None: runs/calibrate/MODEL
    command  what was typed
    """

    data: str | None = None
    max_drop: float = 0.2
    target: str = "native"
    method: Method = "mse"
    goal: Goal = "latency"
    images: int | None = None
    data_dir: Path = Path("data")
    out: Path | None = None
    report: Path | None = None
    public_key: Path | None = None
    command: str = "qcn calibrate"

    def __post_init__(self) -> None:
        for kind, name, known in (
            ("target", self.target, CALIBRATED),
            ("method", self.method, METHODS),
            ("goal (--for)", self.goal, GOALS),
        ):
            if name not in known:
                raise unknown_name(kind, name, known)
        if not 0 < self.max_drop <= 100:
            raise UsageError(
                f"--max-drop is in percentage points of accuracy, above 0 and up to 100, not {self.max_drop:g}"
            )
        if self.images is not None and self.images < 1:
            raise UsageError(f"--images must be 1 or more, not {self.images}")

    @property
    def rebuild(self) -> str:
        """The command that makes the bundle again, as a manifest has it: {bundle} stands for the bundle's folder."""
        options: dict[str, object] = {
            "--max-drop": self.max_drop,
            "--target": self.target,
            "--method": self.method,
            "--for": self.goal,
        }
        options |= {"--data": self.data} if self.data else {}
        options |= {"--images": self.images} if self.images else {}
        given = " ".join(f"{option} {shlex.quote(str(value))}" for option, value in options.items())
        return f"qcn calibrate MODEL {given} --out {{bundle}}"
