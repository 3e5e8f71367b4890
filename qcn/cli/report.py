"""`qcn report merge` and `qcn report field`."""

from pathlib import Path
from typing import Annotated

import typer

from qcn.cli import Group
from qcn.cli.options import DATA, DataDir, MaxRegression, OtherNetwork
from qcn.cli.say import command, say, say_next, show
from qcn.errors import UsageError
from qcn.terminal.progress import shown
from qcn.terminal.tables import table_of

app = typer.Typer(
    help="Combine the reports of many devices; see what they met in the field.",
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def merge(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Folders written by `qcn verify-parity --report`, one per device, named after the device."),
    ],
    out: Annotated[Path, typer.Option(help="Page to write; a JSON file of the same name is written beside it.")] = Path(
        "fleet.html"
    ),
    baseline: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the earlier report folder of each device: fail if a device got worse. Default: none."
        ),
    ] = None,
    other_network: OtherNetwork = False,
    max_regression: MaxRegression = 0.1,
) -> None:
    """Combine the reports of many devices into one page: verdicts, accuracy, latency, energy, drift."""
    from rich.text import Text

    from qcn.verify.parity.results import COLOURS, WORDS
    from qcn.verify.report import merge as merging

    if out.suffix != ".html":
        raise UsageError(f"--out names a page, such as fleet.html, not {out}")
    merged = merging.merge(folders, baseline, max_regression, command(), other_network)
    table = table_of("device", "status", *(["worse than before"] if baseline else []), "machine")
    for device in merged.fleet.devices:
        status = Text(WORDS[device.status], COLOURS[device.status])
        drift = [str(len(device.drift))] if baseline else []
        table.add_row(device.name, status, *drift, device.machine)
    show(table)
    for device in merged.fleet.devices:
        for line in (*device.reasons, *device.drift, *device.by_hand):
            say(f"{device.name}: {line}")
    for path in merging.write(out, merged):
        say(path)
    merging.conclude(merged.fleet)
    say(merging.headline(merged.fleet))


@app.command()
def field(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Folders that libqcn recorded into (`--field`), one per device, named after the device."),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("runs/report/field"),
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Compare with the validation images of this run or bundle, or with a folder recorded before. Default: "
            "none."
        ),
    ] = None,
    data_dir: DataDir = DATA,
) -> None:
    """Show what devices met: counts, drift, uncertain pictures, and a table to label them in."""
    from qcn.field import report as reporting

    with shown():
        report, devices = reporting.read_field(folders, command(), baseline, data_dir)
        paths = reporting.write(out, report, devices)
    table = table_of("device", "answers", "unknown", "drifted", "pictures", right=("answers", "unknown", "pictures"))
    for one in report.devices:
        drifted = ", ".join(one.drifted) or ("no" if any(drift.p is not None for drift in one.drift) else "not tested")
        table.add_row(one.name, f"{one.answers:,}", f"{100 * one.unknown:.1f} %", drifted, f"{one.pictures:,}")
    show(table)
    for path in paths:
        say(path)
    reporting.conclude(report)
    say(reporting.headline(report))
    if any(one.pictures for one in report.devices):
        say_next("qcn", "datasets", "add", "my/pictures", out / reporting.TABLE)
