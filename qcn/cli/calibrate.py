"""`qcn calibrate`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qcn.cli import complete
from qcn.cli.options import DATA, MODEL, DataDir, PublicKey, check_folder
from qcn.cli.say import command, say, say_next, show
from qcn.errors import UsageError
from qcn.export.backends import CALIBRATED
from qcn.progress import doing, shown

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
        public_key=public_key,
        command=command(),
    )
    source = run_of(model)
    folder = report or Path("runs/calibrate") / Path(os.path.realpath(source)).name
    bundle = out or folder / "bundle"
    check_folder("--report", folder)
    check_folder("--out", bundle)
    if bundle.is_dir() and any(bundle.iterdir()):
        raise UsageError(f"{bundle} exists: remove it, or name another bundle with --out")
    with shown():
        doing("loading torch")
        import torch  # noqa: F401 (first, so that its absence is what is reported)

        from qcn.calibrate import pipeline, results, sensitivity

        found = pipeline.calibrate(source, folder, request, _tell)
        doing(f"writing {bundle}")
        written, receipts = pipeline.write(found, bundle, request)
        paths = results.write(folder, found, receipts, request.command)
    show(sensitivity.table(found.sensitivities))
    show(results.trials_table(found))
    if receipts:
        show(results.receipts_table(receipts))
    say(f"answers and times are by {found.search.body}")
    for text in found.search.refused:
        say(f"refused: {text}")
    for path in (written.folder, *paths):
        say(path)
    say(results.verdict(found))
    say_next("qcn", "verify-parity", written.folder)


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
