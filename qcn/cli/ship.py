"""`qcn ship-check`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from qcn.cli.options import DATA, DataDir, PublicKey, TimeLimit, Trust, check_file, check_folder
from qcn.cli.say import command, say, show
from qcn.progress import shown


def ship_check(
    bundle: Annotated[Path, typer.Argument(help="A bundle that `qcn export` wrote.")],
    min_accuracy: Annotated[
        str | None,
        typer.Option(
            help="Right answers on each test split: 0.94 or 94%, by the 95 % interval; no limit if not given."
        ),
    ] = None,
    max_latency: Annotated[
        str | None,
        typer.Option(help="Time of one image at a percentile: 5ms@p99, 800us@p50 (p90, p95); no limit if not given."),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(help="Memory to load and answer once, host and GPU together: 200MiB, 1GB; none if not given."),
    ] = None,
    max_energy: Annotated[
        str | None, typer.Option(help="Energy of one image: 30mJ, 0.1J; no limit if not given.")
    ] = None,
    max_calibration_error: Annotated[
        str | None,
        typer.Option(help="Distance of probabilities from how often they are right: 0.05 or 5%; none if not given."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Test images: a data set or a folder of pictures; that of its training if not given."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="One split of them, such as novel; all test splits if not given.")
    ] = None,
    data_dir: DataDir = DATA,
    backend: Annotated[
        str,
        typer.Option(help="What will ship, as `qcn verify-parity --backends` names it; auto: what `qcn.load` takes."),
    ] = "auto",
    file: Annotated[
        str | None,
        typer.Option(help="The bundle's file that will ship, where the backend runs several; its first if not given."),
    ] = None,
    target: Annotated[
        str, typer.Option(help="The machine it will run on: this, jetson-orin, jetson-thor, or a GPU as sm89.")
    ] = "this",
    duration: Annotated[float, typer.Option(help="Seconds to time it for, at least.")] = 3.0,
    report: Annotated[Path | None, typer.Option(help="Folder to write the report to; none if not given.")] = None,
    json: Annotated[Path | None, typer.Option(help="JSON file to write; none if not given.")] = None,
    junit: Annotated[Path | None, typer.Option(help="JUnit XML file to write, for CI; none if not given.")] = None,
    trust: Trust = False,
    time_limit: TimeLimit = 60.0,
    public_key: PublicKey = None,
) -> None:
    """Say whether a bundle may be shipped: accuracy, parity, latency, memory and energy against limits."""
    from qcn.export.bundle import Bundle
    from qcn.files import write_text
    from qcn.verify import json_files
    from qcn.verify.report import files
    from qcn.verify.report.junit import junit as junit_xml
    from qcn.verify.ship import results
    from qcn.verify.ship.check import PLAN, Asked, check, choose
    from qcn.verify.ship.limits import Limits

    limits = Limits.parse(min_accuracy, max_calibration_error, max_latency, max_memory, max_energy)
    check_file("--json", json)
    check_file("--junit", junit)
    check_folder("--report", report)
    plan = replace(PLAN, duration_s=duration)
    asked = Asked(limits, target, data, split, data_dir, plan, report is not None, time_limit)
    opened = Bundle.open(bundle, public_key)
    candidate = choose(opened, backend, file, trust)
    with shown():
        ship, parity = check(opened, candidate, asked, command())
    show(results.table(ship))
    for line in results.notes(ship):
        say(line)
    if report:
        golden = opened.golden()
        images = dict(zip(golden.rows, golden.image, strict=True))
        for path in files.write(report, parity, images, ship):
            say(path)
    if json:
        json_files.write(json, ship)
    if junit:
        write_text(junit, junit_xml(parity, ship))
    results.conclude(ship)
    say(ship.headline, "passed", "green")
