"""`qcn report merge`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from qcn.cli.options import MaxRegression
from qcn.cli.say import command, say, show
from qcn.errors import UsageError

app = typer.Typer(help="Put reports of `qcn verify-parity` together.", no_args_is_help=True)


@app.command()
def merge(
    folders: Annotated[
        list[Path],
        typer.Argument(help="What `qcn verify-parity --report` wrote on each device; a folder has its device's name."),
    ],
    out: Annotated[Path, typer.Option(help="Page to write, and beside it a JSON file of the same name.")] = Path(
        "fleet.html"
    ),
    baseline: Annotated[
        Path | None,
        typer.Option(help="Folder with the earlier folder of each device, to be no worse than; none if not given."),
    ] = None,
    max_regression: MaxRegression = 0.1,
) -> None:
    """Make one page of the reports of many devices: verdicts, accuracy, latency, energy, what drifted."""
    from qcn.verify.parity.results import COLOURS, WORDS
    from qcn.verify.report import merge as merging

    if out.suffix != ".html":
        raise UsageError(f"--out names a page, such as fleet.html, not {out}")
    merged = merging.merge(folders, baseline, max_regression, command())
    table = Table(box=None)
    for heading in ("device", "status", *(["worse than before"] if baseline else []), "machine"):
        table.add_column(heading, overflow="fold")
    for device in merged.fleet.devices:
        status = Text(WORDS[device.status], COLOURS[device.status])
        drift = [str(len(device.drift))] if baseline else []
        table.add_row(device.name, status, *drift, device.machine)
    show(table)
    for device in merged.fleet.devices:
        for line in (*device.reasons, *device.drift):
            say(f"{device.name}: {line}")
    for path in merging.write(out, merged):
        say(path)
    merging.conclude(merged.fleet)
    say(merging.headline(merged.fleet))
