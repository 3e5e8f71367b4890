"""`qcn ship-check`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from qcn.cli.options import (
    DATA,
    BundleFolder,
    DataDir,
    JsonFile,
    PublicKey,
    Run,
    TimeLimit,
    Trust,
    check_file,
    check_folder,
)
from qcn.cli.say import command, say, show
from qcn.progress import shown


def ship_check(
    bundle: BundleFolder,
    min_accuracy: Annotated[
        str | None,
        typer.Option(
            help="Smallest accuracy on each test split, 0.94 or 94%, judged by its 95 % interval. Default: no limit."
        ),
    ] = None,
    max_latency: Annotated[
        str | None,
        typer.Option(
            help="Largest time per image at a percentile: 5ms@p99, 800us@p50 (also p90, p95). Default: no limit."
        ),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            help="Most memory to load and answer once, host and GPU together: 200MiB, 1GB. Default: no limit."
        ),
    ] = None,
    max_energy: Annotated[
        str | None, typer.Option(help="Most energy per image: 30mJ, 0.1J. Default: no limit.")
    ] = None,
    max_calibration_error: Annotated[
        str | None,
        typer.Option(help="Largest expected calibration error: 0.05 or 5%. Default: no limit."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Test images: a data set or a folder of pictures. Default: the data set it was trained on."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="One split of them, such as novel. Default: all test splits.")
    ] = None,
    data_dir: DataDir = DATA,
    backend: Annotated[
        str,
        typer.Option(
            help="Backend that will ship, one of `qcn verify-parity --backends`; auto is what `qcn.load` takes."
        ),
    ] = "auto",
    file: Annotated[
        str | None,
        typer.Option(help="File of the bundle that will ship, if the backend can run several. Default: its first."),
    ] = None,
    run: Run = None,
    target: Annotated[
        str, typer.Option(help="Machine it will run on: this, jetson-orin, jetson-thor, or a GPU such as sm89.")
    ] = "this",
    duration: Annotated[float, typer.Option(help="Seconds to measure its speed, at least.")] = 3.0,
    report: Annotated[Path | None, typer.Option(help="Write a report into this folder. Default: none.")] = None,
    json: JsonFile = None,
    junit: Annotated[
        Path | None, typer.Option(help="Write the results to this JUnit XML file, for CI. Default: none.")
    ] = None,
    trust: Trust = False,
    time_limit: TimeLimit = 60.0,
    public_key: PublicKey = None,
) -> None:
    """Check a bundle against your limits on accuracy, latency, memory and energy, and against the trained network."""
    from qcn import records
    from qcn.export.bundle import Bundle
    from qcn.files import write_text
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
    asked = Asked(limits, target, data, split, data_dir, plan, report is not None, time_limit, run)
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
        records.write(json, ship)
    if junit:
        write_text(junit, junit_xml(parity, ship))
    results.conclude(ship)
    say(ship.headline, "passed", "green")
