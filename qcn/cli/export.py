"""`qcn export` and `qcn doctor`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from qcn.cli import complete
from qcn.cli.options import DATA, DataDir, PublicKey, by_commas
from qcn.cli.say import say, say_next, show
from qcn.errors import CheckFailed, UsageError
from qcn.names import MANIFEST
from qcn.progress import doing, shown

if TYPE_CHECKING:
    from qcn.export.bundle import Bundle
    from qcn.export.formats import Made
    from qcn.export.request import Request


def export(
    source: Annotated[
        str, typer.Argument(help="A training run, a bundle made earlier, or the name of a network that ships.")
    ],
    format: Annotated[
        list[str] | None,
        typer.Option(
            callback=by_commas,
            autocompletion=complete.several(complete.formats),
            help="onnx (if not given), trt, torchscript, pt2, native, web, openvino, executorch, triton or all; "
            "several by commas, or given several times.",
        ),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            autocompletion=complete.one_of(complete.precisions),
            help="fp32, fp16 or bf16; routing's statistics stay fp32.",
        ),
    ] = "fp32",
    batch: Annotated[str, typer.Option(help="Images at once: a number, or min:opt:max.")] = "1:8:64",
    routing: Annotated[
        str,
        typer.Option(
            autocompletion=complete.one_of(complete.routings),
            help="unrolled (standard operators) or fused (one custom node per capsule layer).",
        ),
    ] = "unrolled",
    opset: Annotated[
        int | None, typer.Option(help="ONNX opset; if not given 17, which TensorRT 8.6 reads; for bf16 22.")
    ] = None,
    every_layer: Annotated[
        bool,
        typer.Option(
            "--every-layer", show_default="off", help="Also give out every capsule layer's pose and activation."
        ),
    ] = False,
    checkpoint: Annotated[str, typer.Option(help="best (on the validation split) or last.")] = "best",
    target: Annotated[
        str,
        typer.Option(
            autocompletion=complete.one_of(complete.targets),
            help="Machine that the engine is for: this, jetson-orin, jetson-thor, or smXY; or a list of devices, a "
            "TOML file: a bundle for each.",
        ),
    ] = "this",
    tensorrt: Annotated[
        str | None, typer.Option(help="tensorrt (if not given) or rtx, where both are installed.")
    ] = None,
    tf32: Annotated[
        bool, typer.Option("--tf32", show_default="off", help="Let an engine round fp32 products' inputs to TF32.")
    ] = False,
    optimization: Annotated[
        int | None, typer.Option(help="TensorRT's optimisation level, 0 to 5; its own if not given, 3.")
    ] = None,
    workspace: Annotated[
        int | None, typer.Option(help="MiB of GPU memory that an engine may use; all if not given.")
    ] = None,
    version_compatible: Annotated[
        bool,
        typer.Option(
            "--version-compatible", show_default="off", help="An engine that newer versions of TensorRT run too."
        ),
    ] = False,
    hardware_compatible: Annotated[
        bool, typer.Option("--hardware-compatible", show_default="off", help="An engine for every GPU from Ampere on.")
    ] = False,
    refittable: Annotated[
        bool, typer.Option("--refittable", show_default="off", help="An engine whose weights `qcn refit` can replace.")
    ] = False,
    stripped: Annotated[
        bool,
        typer.Option("--stripped", show_default="off", help="An engine without weights, which `qcn refit` gives it."),
    ] = False,
    beside: Annotated[
        Path | None, typer.Option(help="Of web: a bundle whose network answers beside this one; none if not given.")
    ] = None,
    benchmark: Annotated[
        Path | None,
        typer.Option(
            help="Of triton: what `qcn benchmark --json` wrote, to choose batches, delay and instances by; none if not "
            "given."
        ),
    ] = None,
    data_dir: DataDir = DATA,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Bundle to write or add to; of a list, the folder of its bundles; runs/export/RUN or runs/fleet/LIST "
            "if not given."
        ),
    ] = None,
    public_key: PublicKey = None,
) -> None:
    """Carry a trained network into a bundle: ONNX, TensorRT, OpenVINO, ExecuTorch, TorchScript, a page, libqcn's."""
    from qcn.export import pipeline
    from qcn.export.bundle.manifest import Batch
    from qcn.export.request import Request
    from qcn.export.tensorrt.config import Fleet
    from qcn.shipped import place
    from qcn.verify.speed.results import for_serving

    listed = Path(target) if target.endswith(".toml") else None
    if listed and (format or (precision, batch) != ("fp32", "1:8:64")):
        raise UsageError(f"{listed} says the formats, precision and batch of each device: leave these options out")
    request = Request(
        formats=tuple(format or ("onnx",)),
        precision=precision,  # type: ignore[arg-type]  # checked by Request
        batch=Batch.parse(batch),
        routing=routing,
        opset=opset,
        every_layer=every_layer,
        checkpoint=checkpoint,
        target="this" if listed else target,
        tensorrt=tensorrt,
        tf32=tf32,
        optimization=optimization,
        workspace=workspace,
        fleet=Fleet(version_compatible, hardware_compatible, refittable, stripped),
        beside=beside,
        benchmark=for_serving(benchmark) if benchmark else None,
        public_key=public_key,
    )
    if checkpoint != "best" and (place(source) / MANIFEST).is_file():
        raise UsageError(f"{source} is a bundle, which has the weights of one checkpoint: leave out --checkpoint")
    if listed:
        _fleet(place(source), listed, out, request, data_dir)
        return
    with shown():
        doing(f"loading {source}")
        bundle, made = pipeline.export(place(source), out, request, data_dir)
    _say_made(bundle, made)
    if any(one.artefact for one in made):
        say_next("qcn", "verify-parity", bundle.folder)


def _fleet(source: Path, listed: Path, out: Path | None, request: "Request", data_dir: Path) -> None:
    """A bundle for each device of a list, and what to type for each."""
    from qcn.export.fleet import commands, export_fleet, read_devices

    devices, folder = read_devices(listed), out or Path("runs/fleet") / listed.stem
    with shown():
        doing(f"loading {source}")
        done = list(export_fleet(source, folder, devices, request, data_dir))
    for device, bundle, made in done:
        say(f"{device.name}: {', '.join(filter(None, (device.target, device.cpu)))}")
        _say_made(bundle, [replace(one, commands=()) for one in made])
        say("then:")
        for command in commands(device, bundle, made):
            say(f"  {command}")
        say("")
    say_next("qcn", "report", "merge", *(f"reports/{device.name}" for device in devices), "--out", "fleet.html")


def _say_made(bundle: "Bundle", made: "Sequence[Made]") -> None:
    """What is in a bundle now, and what became of each format."""
    table = Table(box=None)
    for heading in ("file", "precision", "batch", "size"):
        table.add_column(heading, justify="right" if heading == "size" else "left", no_wrap=True)
    for artefact in bundle.manifest.files:
        size, batch = f"{artefact.bytes / 1e6:,.2f} MB", str(artefact.batch or "any")
        table.add_row(artefact.file, artefact.precision, batch, size)
    say(bundle.folder)
    show(table)
    for one in made:
        if one.receipt and one.artefact:
            say(f"\n{one.artefact.file}: {one.receipt.summary()}")
            layers = one.receipt.table()
            layers.title, layers.box = None, None
            show(layers)
        if one.reason:
            say(f"\n{one.format} was not made: {one.reason}")
        for command in one.commands:
            say(f"  {command}")
        for note in ("", *one.notes) if one.notes else ():
            say(note)


def refit(
    source: Annotated[Path, typer.Argument(help="A refittable engine, or a bundle with such engines.")],
    weights: Annotated[
        str, typer.Option(help="Whose weights: a training run, a bundle, or the name of a network that ships.")
    ],
    data_dir: DataDir = DATA,
    out: Annotated[
        Path | None, typer.Option(help="Of a run: bundle to write or add to; runs/export/RUN if not given.")
    ] = None,
) -> None:
    """Give TensorRT engines the weights of a network that was trained again; they go into its bundle."""
    from qcn.export.refit import refit_engines
    from qcn.shipped import place

    with shown():
        doing(f"loading {source}")
        bundle, done = refit_engines(source, place(weights), out, data_dir)
    for one in done:
        took = f"refitted in {one.seconds:g} s; building it took {one.build_seconds:g} s"
        say(f"{bundle.folder / one.artefact.file}: {took}")
    say_next("qcn", "verify-parity", bundle.folder)


def doctor(
    bundle: Annotated[
        Path | None, typer.Argument(help="A bundle that `qcn export` wrote; this machine if not given.")
    ] = None,
    public_key: PublicKey = None,
) -> None:
    """Say what this machine has and lacks; of a bundle, whether every file is whole and which can run here."""
    from qcn.doctor import diagnose
    from qcn.verify.machine import survey

    if bundle is None:
        for piece in survey():
            if piece.found:
                say(f"{piece.name:14} {piece.found}")
            else:
                typer.echo(f"{piece.name:14} {typer.style('missing', fg='yellow')}")
                say(f"{'':14} for {piece.enables} → {piece.get}")
        say_next("qcn", "doctor", "BUNDLE")
        return
    with shown():
        doing(f"checking {bundle}")
        rows = diagnose(bundle, public_key)
    for row in rows:  # lines and not a table, so that commands can be copied from a narrow terminal
        colour = {"runs": "green", "whole": "green", "cannot": "yellow"}.get(row.state, "red")
        say(f"{row.file}: {row.reason}", row.state, colour)
        if row.fix:
            say(f"→ {row.fix}", "")
    if faulty := [row for row in rows if row.faulty]:
        what = "may not be read" if all(row.state == "denied" for row in faulty) else "is not as it was written"
        raise CheckFailed(f"{bundle} {what}: {', '.join(row.file for row in faulty)}")
    able, unable = (sum(row.state == state for row in rows) for state in ("runs", "cannot"))
    say(f"{bundle} is whole: {able} of its files run here" + (f", {unable} cannot run here" if unable else ""))
    say_next("qcn", "verify-parity", bundle)
