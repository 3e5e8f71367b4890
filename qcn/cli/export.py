"""`qcn export`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qcn.cli.options import DATA, DataDir, takes
from qcn.cli.say import say, say_next, show
from qcn.errors import UsageError
from qcn.export.request import ExportRequest
from qcn.names import MANIFEST
from qcn.settings import make
from qcn.terminal.progress import doing, shown
from qcn.terminal.tables import table_of

if TYPE_CHECKING:
    from qcn.export.backends.format import Made
    from qcn.export.bundle import Bundle


@takes(ExportRequest)
def export(
    source: Annotated[
        str, typer.Argument(help="A training run, a bundle made earlier, or the name of a shipped network.")
    ],
    settings: dict[str, Any],
    refit: Annotated[
        Path | None,
        typer.Option(
            help="Give the weights to these TensorRT engines instead of building new ones: an engine, or a bundle, "
            "made with --set refittable. Default: none."
        ),
    ] = None,
    benchmark: Annotated[
        Path | None,
        typer.Option(
            help="For triton: file from `qcn benchmark --json`, to choose batch sizes, delay and instances. "
            "Default: none."
        ),
    ] = None,
    data_dir: DataDir = DATA,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Bundle to write or add to; for a list of devices, the folder of their bundles. Default: "
            "runs/export/RUN or runs/fleet/LIST."
        ),
    ] = None,
) -> None:
    """Export a trained network to a bundle: ONNX, TensorRT, OpenVINO, ExecuTorch, TorchScript, a web page, libqcn."""
    from qcn.export import pipeline
    from qcn.networks.shipped import run_of
    from qcn.verify.speed.timings import for_serving

    if refit:
        _refit(refit, run_of(source), settings, out, data_dir)
        return
    target = str(settings.get("target", ""))
    listed = Path(target) if target.endswith(".toml") else None
    if listed:
        if settings.keys() & {"formats", "precision", "batch"} - _defaults(settings):
            raise UsageError(f"{listed} gives the formats, precision and batch of each device: leave these options out")
        settings["target"] = "this"
    request = make(ExportRequest, **settings, benchmark=for_serving(benchmark) if benchmark else None)
    if request.checkpoint != "best" and (run_of(source) / MANIFEST).is_file():
        raise UsageError(f"{source} is a bundle, which holds one checkpoint: leave out checkpoint")
    if listed:
        _fleet(run_of(source), listed, out, request, data_dir)
        return
    with shown():
        doing(f"loading {source}")
        bundle, results = pipeline.export(run_of(source), out, request, data_dir)
    _say_made(bundle, results)
    if any(one.artefact for one in results):
        say_next("qcn", "verify-parity", bundle.folder)


def _defaults(settings: dict[str, Any]) -> set[str]:
    """Settings that have their default values."""
    usual = ExportRequest()
    return {name for name, value in settings.items() if str(getattr(usual, name, None)) == str(value)}


def _fleet(source: Path, listed: Path, out: Path | None, request: "ExportRequest", data_dir: Path) -> None:
    """A bundle for each device of a list, and what to type for each."""
    from qcn.export.fleet import commands, export_fleet, read_devices

    devices, folder = read_devices(listed), out or Path("runs/fleet") / listed.stem
    with shown():
        doing(f"loading {source}")
        done = list(export_fleet(source, folder, devices, request, data_dir))
    for device, bundle, results in done:
        say(f"{device.name}: {', '.join(filter(None, (device.target, device.cpu)))}")
        _say_made(bundle, [replace(one, commands=()) for one in results])
        say("then:")
        for command in commands(device, bundle, results):
            say(f"  {command}")
        say("")
    say_next("qcn", "report", "merge", *(f"reports/{device.name}" for device in devices), "--out", "fleet.html")


def _say_made(bundle: "Bundle", results: "Sequence[Made]") -> None:
    """Print what is in the bundle, and the result of each format."""
    headings = ("file", "precision", "batch", "size")
    table = table_of(*headings, right=("size",), whole=headings)
    for artefact in bundle.manifest.files:
        size, batch = f"{artefact.bytes / 1e6:,.2f} MB", str(artefact.batch or "any")
        table.add_row(artefact.file, artefact.precision, batch, size)
    say(bundle.folder)
    show(table)
    for result in results:
        if result.receipt and result.artefact:
            say(f"\n{result.artefact.file}: {result.receipt.summary()}")
            show(result.receipt.table())
        if result.reason:
            say(f"\n{result.format} was not made: {result.reason}")
        for command in result.commands:
            say(f"  {command}")
        for note in ("", *result.notes) if result.notes else ():
            say(note)


def _refit(engines: Path, weights: Path, settings: dict[str, Any], out: Path | None, data_dir: Path) -> None:
    """Put the weights of a retrained network into existing engines, and the engines into its bundle."""
    from qcn.export.backends.tensorrt.refit import refit_engines

    if others := settings.keys() - _defaults(settings):
        raise UsageError(f"--refit keeps engines as they were built: leave out {min(others)}")
    with shown():
        doing(f"loading {engines}")
        bundle, done = refit_engines(engines, weights, out, data_dir)
    for one in done:
        took = f"refitted in {one.seconds:g} s; building it took {one.build_seconds:g} s"
        say(f"{bundle.folder / one.artefact.file}: {took}")
    say_next("qcn", "verify-parity", bundle.folder)
