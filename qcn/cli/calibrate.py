"""`qcn calibrate`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from qcn.calibrate.request import CalibrationRequest
from qcn.cli.options import MODEL, takes
from qcn.cli.say import command, say, say_next, show
from qcn.settings import make

if TYPE_CHECKING:
    from qcn.calibrate.digits import Digits
    from qcn.calibrate.images import Audit


@takes(CalibrationRequest)
def calibrate(model: Annotated[str, typer.Argument(**MODEL)], settings: dict[str, Any]) -> None:
    """Find the fastest mix of int8, fp16 and fp32 that keeps the accuracy, and write it as a bundle. Needs torch."""
    from qcn.networks.shipped import run_of

    run = run_of(model)  # before torch is needed: a network that was installed without its run is refused for that
    from qcn.calibrate import command as calibrating
    from qcn.calibrate import outcome, sensitivity

    request = make(CalibrationRequest, **settings, command=command())
    done = calibrating.calibrate(run, request, _tell)

    search = done.calibrated.search
    show(sensitivity.table(done.calibrated.sensitivities))
    show(outcome.trials_table(done.calibrated))
    if done.receipts:
        show(outcome.receipts_table(done.receipts))
    say(f"answers and times are by {search.body}")
    for text in search.refused:
        say(f"refused: {text}")
    for path in (done.bundle.folder, *done.files):
        say(path)
    say(outcome.verdict(done.calibrated))
    say_next("qcn", "verify-parity", done.bundle.folder)


def _tell(audit: "Audit", digits: "list[Digits]") -> None:
    """Print the audit of the images and of routing's numbers, before anything is built."""
    from qcn.calibrate.digits import table, worst

    for text in audit.warnings:
        say(f"note: {text}")
    if digits:
        show(table(worst(digits)))
        for entry in worst(digits):
            if text := entry.words():
                say(text)
