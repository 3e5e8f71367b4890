"""`qcn ship-check`."""

from dataclasses import replace
from typing import Any

from qcn.cli.options import BundleFolder, PublicKey, check_folder, takes
from qcn.cli.say import command, say, show
from qcn.settings import make
from qcn.terminal.progress import shown
from qcn.verify.ship.request import ShipRequest


@takes(ShipRequest)
def ship_check(bundle: BundleFolder, settings: dict[str, Any], public_key: PublicKey = None) -> None:
    """Check a bundle against your limits on accuracy, latency, memory and energy, and against the trained network."""
    from qcn.export.bundle import Bundle
    from qcn.verify.report import files
    from qcn.verify.report.answers import answers
    from qcn.verify.ship import outcome
    from qcn.verify.ship.check import PLAN, ShipTerms, check, choose
    from qcn.verify.ship.limits import Limits

    request = make(ShipRequest, **settings)
    limits = Limits.parse(
        request.min_accuracy,
        request.max_calibration_error,
        request.max_latency,
        request.max_memory,
        request.max_energy,
        request.max_direction_error,
    )
    check_folder("--report", request.report)
    terms = ShipTerms(
        limits,
        request.target,
        request.dataset,
        request.split,
        request.data_dir,
        replace(PLAN, duration_s=request.duration),
        request.report is not None,
        request.time_limit,
        request.run,
    )
    opened = Bundle.open(bundle, public_key)
    candidate = choose(opened, request.backend, request.file, request.trust)
    with shown():
        ship, parity = check(opened, candidate, terms, command())
    show(outcome.table(ship))
    for line in outcome.notes(ship):
        say(line)
    if request.report:
        golden = opened.golden()
        images = dict(zip(golden.rows, golden.image, strict=True))
        for path in files.write(request.report, parity, images, ship, answers(opened.manifest, golden)):
            say(path)
    outcome.conclude(ship)
    say(ship.headline, "passed", "green")
