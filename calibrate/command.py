"""`qcn calibrate` in one call, for the shell and for Python: calibrated, written as a bundle, reported."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qcn.calibrate import outcome, pipeline
from qcn.calibrate.digits import Digits
from qcn.calibrate.images import Audit
from qcn.calibrate.pipeline import Calibrated
from qcn.calibrate.request import CalibrationRequest
from qcn.errors import UsageError
from qcn.export.backends.receipts import Receipt
from qcn.export.bundle import Bundle
from qcn.terminal.progress import doing, shown


@dataclass(frozen=True)
class CalibratedBundle:
    """The bundle, what led to it, the precisions that its operations were seen to run in, and the report's files."""

    bundle: Bundle
    calibrated: Calibrated
    receipts: list[Receipt]
    files: list[Path]


def calibrate(
    source: Path,
    request: CalibrationRequest,
    on_audit: Callable[[Audit, list[Digits]], None] = lambda audit, digits: None,
) -> CalibratedBundle:
    """Calibrate the run or bundle in `source`. `on_audit` gets the audit and the digits before anything is built."""
    folder = request.report or Path("runs/calibrate") / Path(os.path.realpath(source)).name
    out = request.out or folder / "bundle"
    for option, path in (("--report", folder), ("--out", out)):
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} is a file; {option} names a folder")
    if out.is_dir() and any(out.iterdir()):
        raise UsageError(f"{out} exists: remove it, or name another bundle with --out")
    with shown():
        doing("loading torch")
        import torch  # noqa: F401 (first, so that its absence is what is reported)

        calibrated = pipeline.calibrate(source, folder, request, on_audit)
        doing(f"writing {out}")
        bundle, receipts = pipeline.write(calibrated, out, request)
        files = outcome.write(folder, calibrated, receipts, request.command)
    return CalibratedBundle(bundle, calibrated, receipts, files)
