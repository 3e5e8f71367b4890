"""`qcn export` and `qcn doctor`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qcn.cli import complete
from qcn.cli.options import BUNDLE, DATA, DataDir, PublicKey, by_commas
from qcn.cli.say import say, say_next, show
from qcn.errors import CheckFailed, UsageError
from qcn.export.backends import EXPORTED
from qcn.names import MANIFEST
from qcn.progress import doing, shown
from qcn.tables import table_of

if TYPE_CHECKING:
    from qcn.export.backends.format import Made
    from qcn.export.bundle import Bundle
    from qcn.export.request import Request


def export(
    source: Annotated[
        str, typer.Argument(help="A training run, a bundle made earlier, or the name of a shipped network.")
    ],
    format: Annotated[
        list[str] | None,
        typer.Option(
            callback=by_commas,
            autocompletion=complete.several(complete.formats),
            help=f"{', '.join(EXPORTED)} or all; separate several by commas, or repeat the option. Default: onnx.",
        ),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            autocompletion=complete.one_of(complete.precisions),
            help="fp32, fp16 or bf16; the statistics of routing stay fp32.",
        ),
    ] = "fp32",
    batch: Annotated[str, typer.Option(help="Batch size: a number, or min:opt:max.")] = "1:8:64",
    routing: Annotated[
        str,
        typer.Option(
            autocompletion=complete.one_of(complete.routings),
            help="unrolled (standard operators) or fused (one custom node per capsule layer).",
        ),
    ] = "unrolled",
    opset: Annotated[
        int | None, typer.Option(help="ONNX opset. Default: 17, which TensorRT 8.6 reads; 22 for bf16.")
    ] = None,
    every_layer: Annotated[
        bool,
        typer.Option(
            "--every-layer", show_default="off", help="Also output every capsule layer's pose and activation."
        ),
    ] = False,
    checkpoint: Annotated[str, typer.Option(help="best (chosen on the validation split) or last.")] = "best",
    target: Annotated[
        str,
        typer.Option(
            autocompletion=complete.one_of(complete.targets),
            help="Machine to build the engine for: this, jetson-orin, jetson-thor or smXY; or a TOML file with "
            "a list of devices, to make one bundle per device.",
        ),
    ] = "this",
    tensorrt: Annotated[
        str | None, typer.Option(help="tensorrt or rtx, if both are installed. Default: tensorrt.")
    ] = None,
    tf32: Annotated[bool, typer.Option("--tf32", show_default="off", help="Allow TF32 in fp32 engines.")] = False,
    optimization: Annotated[
        int | None, typer.Option(help="TensorRT's optimisation level, 0 to 5. Default: TensorRT's own, 3.")
    ] = None,
    workspace: Annotated[
        int | None, typer.Option(help="MiB of GPU memory that an engine may use. Default: all.")
    ] = None,
    version_compatible: Annotated[
        bool,
        typer.Option(
            "--version-compatible",
            show_default="off",
            help="Build an engine that also runs with newer TensorRT versions.",
        ),
    ] = False,
    hardware_compatible: Annotated[
        bool,
        typer.Option("--hardware-compatible", show_default="off", help="Build an engine for every GPU from Ampere on."),
    ] = False,
    refittable: Annotated[
        bool,
        typer.Option("--refittable", show_default="off", help="Build an engine whose weights `qcn refit` can replace."),
    ] = False,
    stripped: Annotated[
        bool,
        typer.Option("--stripped", show_default="off", help="Build an engine without weights; `qcn refit` adds them."),
    ] = False,
    beside: Annotated[
        Path | None, typer.Option(help="For web: a second bundle, to compare both networks on one page. Default: none.")
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
    public_key: PublicKey = None,
) -> None:
    """Export a trained network to a bundle: ONNX, TensorRT, OpenVINO, ExecuTorch, TorchScript, a web page, libqcn."""
    from qcn.export import pipeline
    from qcn.export.backends.tensorrt.config import Fleet
    from qcn.export.bundle.manifest import Batch
    from qcn.export.request import Request
    from qcn.shipped import run_of
    from qcn.verify.speed.results import for_serving

    listed = Path(target) if target.endswith(".toml") else None
    if listed and (format or (precision, batch) != ("fp32", "1:8:64")):
        raise UsageError(f"{listed} gives the formats, precision and batch of each device: leave these options out")
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
    if checkpoint != "best" and (run_of(source) / MANIFEST).is_file():
        raise UsageError(f"{source} is a bundle, which holds one checkpoint: leave out --checkpoint")
    if listed:
        _fleet(run_of(source), listed, out, request, data_dir)
        return
    with shown():
        doing(f"loading {source}")
        bundle, made = pipeline.export(run_of(source), out, request, data_dir)
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
    headings = ("file", "precision", "batch", "size")
    table = table_of(*headings, right=("size",), whole=headings)
    for artefact in bundle.manifest.files:
        size, batch = f"{artefact.bytes / 1e6:,.2f} MB", str(artefact.batch or "any")
        table.add_row(artefact.file, artefact.precision, batch, size)
    say(bundle.folder)
    show(table)
    for one in made:
        if one.receipt and one.artefact:
            say(f"\n{one.artefact.file}: {one.receipt.summary()}")
            show(one.receipt.table())
        if one.reason:
            say(f"\n{one.format} was not made: {one.reason}")
        for command in one.commands:
            say(f"  {command}")
        for note in ("", *one.notes) if one.notes else ():
            say(note)


def refit(
    source: Annotated[Path, typer.Argument(help="A refittable engine, or a bundle with such engines.")],
    weights: Annotated[
        str,
        typer.Option(
            help="Where the new weights come from: a training run, a bundle, or the name of a shipped network."
        ),
    ],
    data_dir: DataDir = DATA,
    out: Annotated[
        Path | None, typer.Option(help="For a run: bundle to write or add to. Default: runs/export/RUN.")
    ] = None,
) -> None:
    """Put the weights of a retrained network into existing TensorRT engines, and the engines into its bundle."""
    from qcn.export.refit import refit_engines
    from qcn.shipped import run_of

    with shown():
        doing(f"loading {source}")
        bundle, done = refit_engines(source, run_of(weights), out, data_dir)
    for one in done:
        took = f"refitted in {one.seconds:g} s; building it took {one.build_seconds:g} s"
        say(f"{bundle.folder / one.artefact.file}: {took}")
    say_next("qcn", "verify-parity", bundle.folder)


def doctor(
    bundle: Annotated[
        Path | None,
        typer.Argument(
            **BUNDLE,
            help="A bundle made by `qcn export`, or the name of a shipped network. Default: check this machine.",
        ),
    ] = None,
    public_key: PublicKey = None,
) -> None:
    """Show what this machine has and lacks; for a bundle, which files are intact and which can run here."""
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
        colour = {"runs": "green", "intact": "green", "cannot": "yellow"}.get(row.state, "red")
        say(f"{row.file}: {row.reason}", row.state, colour)
        if row.fix:
            say(f"→ {row.fix}", "")
    if faulty := [row for row in rows if row.faulty]:
        what = "may not be read" if all(row.state == "denied" for row in faulty) else "is not as it was written"
        raise CheckFailed(f"{bundle} {what}: {', '.join(row.file for row in faulty)}")
    able, unable = (sum(row.state == state for row in rows) for state in ("runs", "cannot"))
    say(f"{bundle} is intact: {able} of its files run here" + (f", {unable} cannot run here" if unable else ""))
    say_next("qcn", "verify-parity", bundle)
