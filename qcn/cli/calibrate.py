"""`qcn calibrate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qcn.cli import complete
from qcn.cli.options import DATA, MODEL, DataDir, PublicKey
from qcn.cli.say import command, say, say_next, show
from qcn.export.backends import CALIBRATED

if TYPE_CHECKING:
    from qcn.calibrate.digits import Digits
    from qcn.calibrate.images import Audit


def calibrate(
    model: Annotated[str, typer.Argument(**MODEL)],
    data: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete.or_folder(complete.datasets),
            help="Data set, or folder of pictures, whose validation split is used. Default: the one that it was "
            "trained on.",
        ),
    ] = None,
    max_drop: Annotated[
        float,
        typer.Option(help="Percentage points of accuracy it may lose, by the upper end of the confidence interval."),
    ] = 0.2,
    target: Annotated[
        str,
        typer.Option(
            autocompletion=complete.one_of(complete.calibration_targets),
            help=f"Backend to optimise for: {', '.join(CALIBRATED[:-1])} or {CALIBRATED[-1]}.",
        ),
    ] = "native",
    method: Annotated[
        str,
        typer.Option(
            autocompletion=complete.one_of(complete.methods),
            help="How ranges are chosen: mse, minmax, entropy or percentile.",
        ),
    ] = "mse",
    goal: Annotated[
        str, typer.Option("--for", help="latency, or size (a smaller bundle, even if it is not faster).")
    ] = "latency",
    images: Annotated[int | None, typer.Option(help="Use at most this many validation images. Default: all.")] = None,
    data_dir: DataDir = DATA,
    out: Annotated[Path | None, typer.Option(help="Bundle to write. Default: runs/calibrate/MODEL/bundle.")] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            help="Folder for records, charts and a page; an interrupted calibration resumes from it. Default: "
            "runs/calibrate/MODEL."
        ),
    ] = None,
    public_key: PublicKey = None,
) -> None:
    """Find the fastest mix of int8, fp16 and fp32 that keeps the accuracy, and write it as a bundle. Needs torch."""
    from qcn.calibrate import command as calibrating
    from qcn.calibrate.request import Request
    from qcn.shipped import run_of

    request = Request(
        data=data,
        max_drop=max_drop,
        target=target,
        method=method,  # type: ignore[arg-type]  # checked by Request
        goal=goal,  # type: ignore[arg-type]
        images=images,
        data_dir=data_dir,
        out=out,
        report=report,
        public_key=public_key,
        command=command(),
    )
    done = calibrating.calibrate(run_of(model), request, _tell)
    from qcn.calibrate import results, sensitivity

    search = done.calibrated.search
    show(sensitivity.table(done.calibrated.sensitivities))
    show(results.trials_table(done.calibrated))
    if done.receipts:
        show(results.receipts_table(done.receipts))
    say(f"answers and times are by {search.body}")
    for text in search.refused:
        say(f"refused: {text}")
    for path in (done.bundle.folder, *done.files):
        say(path)
    say(done.summary)
    say_next("qcn", "verify-parity", done.bundle.folder)


def _tell(audit: "Audit", digits: "list[Digits]") -> None:
    """What is known of the images and of routing's numbers, before anything is built."""
    from qcn.calibrate.digits import table, worst

    for text in audit.warnings:
        say(f"note: {text}")
    if digits:
        show(table(worst(digits)))
        for one in worst(digits):
            if text := one.words():
                say(text)
