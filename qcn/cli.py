"""The command line: arguments in, one call each, tables out. Heavy imports happen inside the commands."""

import errno
import math
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import qcn
from qcn.errors import CheckFailed, MissingError, QcnError, UsageError

app = typer.Typer(
    help="Train a Quaternion Capsule Network and carry it to a verified, fast engine on an edge device.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
datasets = typer.Typer(help="List, fetch and look at data sets.", no_args_is_help=True)
app.add_typer(datasets, name="datasets")


def _by_commas(given: list[str] | None) -> list[str]:
    return [name for names in given or () for name in names.split(",")]


DataDir = Annotated[Path, typer.Option(envvar="QCN_DATA", help="Folder that holds the data sets.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N; auto takes a GPU where there is one.")]
Backends = Annotated[
    list[str] | None,
    typer.Option(
        callback=_by_commas,
        help="native, torch, torch-fused, torch-cuda, torch-cuda-fp16, torchscript, torchscript-cuda, pt2, "
        "onnxruntime, onnxruntime-cuda, tensorrt; several by commas, or given several times; else all "
        "that run here.",
    ),
]
ROUTING = "auto (fused kernels where there are any), fused, or reference (plain torch, slow)."
DATA = Path("data")
# The packages of the extras in pyproject.toml that a command may find missing.
EXTRAS = {
    "torch": "train",
    "matplotlib": "train",
    "scipy": "train",
    "PIL": "train",
    "tensorboard": "train",
    "onnx": "onnx",
}
# A file or folder that a user named and that cannot be: of another kind, not allowed, nowhere, too long.
WRONG_PATH = {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS}
WRONG_PATH |= {errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP}


def main() -> None:
    """Run a command; end with its exit code, and with one line instead of a traceback for what a user can mend."""
    try:
        app()
    except QcnError as error:
        _end(str(error), error.exit_code)
    except KeyboardInterrupt:
        _end("stopped", 130)
    except MemoryError as error:
        _end(f"not enough memory: {error}", MissingError.exit_code)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        _end(
            f"this needs {package}, which is not installed: pip install 'qcn[{EXTRAS[package]}]'",
            MissingError.exit_code,
        )
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            _end(f"no room left on the disk: {error}; nothing half-written was kept", MissingError.exit_code)
        if error.errno in WRONG_PATH:
            _end(str(error), UsageError.exit_code)
        raise


def _end(message: str, code: int) -> None:
    print(f"qcn: {message}", file=sys.stderr)
    sys.stderr.flush()
    raise SystemExit(code)


def _version(asked: bool) -> None:
    if asked:
        print(f"qcn {qcn.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print and end.")
    ] = False,
) -> None:
    pass


@app.command()
def train(
    dataset: Annotated[str | None, typer.Option(help="Data set by name; see `qcn datasets list`.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="qcn (if not given), qcn-unbranched, qcn-tiny, em, em-branched, em-unbranched, vb or cnn."),
    ] = None,
    data_dir: DataDir = DATA,
    preset: Annotated[str | None, typer.Option(help="Where the settings below start from: best or paper.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images a step, over all processes.")] = None,
    lr: Annotated[float | None, typer.Option(help="Largest learning rate.")] = None,
    loss: Annotated[str | None, typer.Option(help="spread or ce.")] = None,
    device: Device = "auto",
    precision: Annotated[str | None, typer.Option(help="fp32 or bf16 (convolutions; routing stays fp32).")] = None,
    compile: Annotated[bool | None, typer.Option("--compile/--no-compile", help="Use torch.compile.")] = None,
    routing: Annotated[str | None, typer.Option(help=ROUTING)] = None,
    seed: Annotated[int | None, typer.Option(help="Decides every random choice of the run.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the run in this folder, with its own settings.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; runs/train/DATASET-MODEL if not given.")] = None,
) -> None:
    """Train a network. Several GPUs or machines: `torchrun … -m qcn train …`."""
    chosen = {
        "dataset": dataset,
        "model": model,
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "loss": loss,
        "precision": precision,
        "compile": compile,
        "routing": routing,
        "seed": seed,
    }
    given = [name for name, value in {**chosen, "preset": preset, "out": out}.items() if value is not None]
    if resume and given:
        raise UsageError(f"--resume goes on with a run's own settings: leave out --{given[0].replace('_', '-')}")
    if not resume and not dataset:
        raise UsageError("name a data set with --dataset; `qcn datasets list` shows what there is")

    from qcn import train as training
    from qcn.settings import settings_from

    if resume:
        folder = resume
        run = training.resume(folder, data_dir, device)
    else:
        settings = settings_from(preset or "best", **{**chosen, "model": model or "qcn"})
        folder = out or _new_folder("train", f"{settings.dataset}-{settings.model}")
        run = training.train(settings, data_dir, folder, device)
    if int(os.environ.get("RANK", "0")):
        return
    last = run.history[-1]
    best = next((row for row in run.history if run.best and row["epoch"] == run.best.epoch), last)
    table = Table(title=f"{run.model['name']} on {run.data.name}")
    for heading in ("", "epoch", "training error", "validation error"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, row in (("best", best), ("last", last)):
        table.add_row(
            name, str(row["epoch"]), f"{100 * row['train_error']:.2f} %", f"{100 * row['validation_error']:.2f} %"
        )
    console = Console()
    console.print(table)
    for name in ("run.json", "metrics.csv", "curves.png", "tensorboard"):
        console.print(folder / name, highlight=False)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a training run.")],
    dataset: Annotated[str | None, typer.Option(help="Another data set than the run's own.")] = None,
    split: Annotated[
        str | None, typer.Option(help="One split, such as novel or validation; else all test splits.")
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="best (on the validation split) or last.")] = "best",
    data_dir: DataDir = DATA,
    device: Device = "auto",
    routing: Annotated[str, typer.Option(help=ROUTING)] = "auto",
    out: Annotated[Path | None, typer.Option(help="Folder to write; runs/evaluate/RUN[-DATASET] if not given.")] = None,
) -> None:
    """Measure a network's error with its 95 % interval, by class, by azimuth and by elevation."""
    from qcn.evaluate import evaluate as measure

    folder = out or Path("runs/evaluate") / "-".join(filter(None, (run.resolve().name, dataset)))
    results = measure(run, dataset, data_dir, folder, which=checkpoint, split=split, device=device, routing=routing)
    table = Table(title=f"{run}: error on {dataset or 'its own data set'}")
    for heading in ("split", "images", "error", "95 % interval"):
        table.add_column(heading, justify="left" if heading == "split" else "right")
    for result in results:
        rate = result.overall
        interval = f"{100 * rate.low:.2f} to {100 * rate.high:.2f} %"
        table.add_row(result.split, f"{rate.total:,}", f"{100 * rate.error:.2f} %", interval)
    console = Console()
    console.print(table)
    for path in sorted(folder.glob("*")):
        console.print(path, highlight=False)


@app.command()
def export(
    source: Annotated[Path, typer.Argument(help="Folder of a training run, or a bundle made earlier.")],
    format: Annotated[
        list[str] | None,
        typer.Option(
            callback=_by_commas,
            help="onnx (if not given), trt, torchscript, pt2, native or all; several by commas or given several times.",
        ),
    ] = None,
    precision: Annotated[str, typer.Option(help="fp32, fp16 or bf16; routing's statistics stay fp32.")] = "fp32",
    batch: Annotated[str, typer.Option(help="Images at once: a number, or min:opt:max.")] = "1:8:64",
    routing: Annotated[
        str, typer.Option(help="unrolled (standard operators) or fused (one custom node a capsule layer).")
    ] = "unrolled",
    opset: Annotated[
        int | None, typer.Option(help="ONNX opset; if not given 17, which TensorRT 8.6 reads; for bf16 22.")
    ] = None,
    every_layer: Annotated[
        bool, typer.Option("--every-layer", help="Also give out every capsule layer's pose and activation.")
    ] = False,
    checkpoint: Annotated[str, typer.Option(help="best (on the validation split) or last.")] = "best",
    target: Annotated[
        str, typer.Option(help="Machine that the engine is for: this, jetson-orin, jetson-thor, or smXY.")
    ] = "this",
    tensorrt: Annotated[str | None, typer.Option(help="tensorrt or rtx, where both are installed.")] = None,
    tf32: Annotated[bool, typer.Option("--tf32", help="Let an engine round fp32 products' inputs to TF32.")] = False,
    optimization: Annotated[int | None, typer.Option(help="TensorRT's optimisation level, 0 to 5.")] = None,
    workspace: Annotated[int | None, typer.Option(help="MiB of GPU memory that an engine may use.")] = None,
    data_dir: DataDir = DATA,
    out: Annotated[Path | None, typer.Option(help="Bundle to write or add to; runs/export/RUN if not given.")] = None,
) -> None:
    """Carry a trained network into a bundle: ONNX, TensorRT, TorchScript, and libqcn's weights, with golden answers."""
    from qcn.export import pipeline
    from qcn.export.manifest import Batch

    request = pipeline.Request(
        formats=tuple(format or ("onnx",)),
        precision=precision,  # type: ignore[arg-type]  # checked by Request
        batch=Batch.parse(batch),
        routing=routing,
        opset=opset,
        every_layer=every_layer,
        checkpoint=checkpoint,
        target=target,
        tensorrt=tensorrt,
        tf32=tf32,
        optimization=optimization,
        workspace=workspace,
    )
    console = Console(markup=False, emoji=False)  # names as they are
    bundle, made = pipeline.export(source, out, request, data_dir, console)
    table = Table(box=None)
    for heading in ("file", "precision", "batch", "size"):  # folded where it must be: a name cut short is of no use
        table.add_column(heading, justify="right" if heading == "size" else "left", overflow="fold")
    for artefact in bundle.manifest.files:
        size, batch = f"{artefact.bytes / 1e6:,.2f} MB", str(artefact.batch or "any")
        table.add_row(artefact.file, artefact.precision, batch, size)
    print(bundle.folder)
    console.print(table)
    for one in made:
        if one.receipt and one.artefact:
            print(f"\n{one.artefact.file}: {one.receipt.summary()}")
            layers = one.receipt.table()
            layers.title, layers.box = None, None
            console.print(layers)
        if one.reason:
            print(f"\n{one.format} was not made: {one.reason}")
        for command in one.commands:
            print(f"  {command}")


@app.command()
def doctor(
    bundle: Annotated[Path | None, typer.Argument(help="A bundle that `qcn export` wrote; else this machine.")] = None,
) -> None:
    """Say what this machine has and lacks; of a bundle, whether every file is whole and which can run here."""
    from qcn.doctor import diagnose
    from qcn.verify.machine import survey

    if bundle is None:
        for piece in survey():
            found = piece.found or typer.style("missing", fg="yellow")
            typer.echo(f"{piece.name:14} {found}")
            if not piece.found:
                typer.echo(f"{'':14} for {piece.enables} → {piece.get}")
        return
    rows = diagnose(bundle)
    for row in rows:  # lines and not a table, so that commands can be copied from a narrow terminal
        colour = {"runs": "green", "whole": "green", "cannot": "yellow"}.get(row.state, "red")
        typer.echo(f"{typer.style(f'{row.state:8}', fg=colour)} {row.file}: {row.reason}")
        if row.mend:
            typer.echo(f"{'':8} → {row.mend}")
    if faulty := [row.file for row in rows if row.faulty]:
        raise CheckFailed(f"{bundle} is not as it was written: {', '.join(faulty)}")


@app.command("verify-parity")
def verify_parity(
    bundle: Annotated[Path, typer.Argument(help="A bundle that `qcn export` wrote.")],
    backends: Backends = None,
    data: Annotated[
        str,
        typer.Option(help="Images: golden (the bundle's own, no torch needed), a data set, or a folder of pictures."),
    ] = "golden",
    samples: Annotated[
        int | None, typer.Option(help="How many images of a data set or folder; 64 if not given.")
    ] = None,
    data_dir: DataDir = DATA,
    atol: Annotated[
        list[str] | None, typer.Option(help="Absolute tolerance instead of our own: 1e-4, or activation:1e-4.")
    ] = None,
    rtol: Annotated[
        list[str] | None, typer.Option(help="Likewise, relative to the output's largest value; added to --atol.")
    ] = None,
    bisect: Annotated[
        bool, typer.Option("--bisect", help="Compare every layer and iteration, also where the answers are right.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Folder to write the report to; implies --bisect.")] = None,
    benchmark: Annotated[
        Path | None, typer.Option(help="What `qcn benchmark --json` wrote, to be shown in the report too.")
    ] = None,
    baseline: Annotated[Path | None, typer.Option(help="An earlier report.json, to be no worse than.")] = None,
) -> None:
    """Compare each backend of a bundle with the trained network's float64 answers, in units of float32's noise."""
    from qcn.export.bundle import Bundle
    from qcn.verify import parity, speeds, verdicts
    from qcn.verify.preprocessing import check_preprocessing
    from qcn.verify.samples import samples as choose

    if benchmark and not report:
        raise UsageError("--benchmark is for the report: name its folder with --report")
    timed = speeds.read_json(benchmark) if benchmark else None
    if report and report.exists() and not report.is_dir():
        raise UsageError(f"{report} is a file; --report names a folder")
    before = verdicts.read_baseline(baseline) if baseline else None  # now: the new report may take its place
    opened = Bundle.open(bundle)
    tolerances = parity.tolerances(atol or (), rtol or ())
    chosen = choose(opened, data, samples, data_dir)
    found = parity.verify(opened, backends, tolerances, bisect or report is not None, chosen.golden)
    seen = check_preprocessing(opened)
    for status, name, lines in verdicts.told([*found, seen], asked=bool(backends)):
        typer.echo(f"{typer.style(f'{status:8}', fg=verdicts.COLOURS[status])} {name}")
        for line in lines:
            typer.echo(f"{'':8} {line}")
    console = Console(width=max(110, Console().width), markup=False, emoji=False)  # names as they are
    console.print(verdicts.table([*found, seen], chosen))
    record = verdicts.record(opened, chosen, [*found, seen], _command(), asked=bool(backends))
    if report:
        from qcn.verify.report.files import write

        images = dict(zip(chosen.golden.rows, chosen.golden.image, strict=True))
        for path in write(report, record, images, timed):
            typer.echo(path)
    parity.conclude([*found, seen], asked=bool(backends))
    if before:
        verdicts.check_baseline(before, record, asked=bool(backends))


@app.command()
def benchmark(
    bundle: Annotated[Path, typer.Argument(help="A bundle that `qcn export` wrote.")],
    backends: Backends = None,
    batch: Annotated[
        list[int] | None, typer.Option(help="Images at once; 1 if not given; may be given several times.")
    ] = None,
    warmup: Annotated[float, typer.Option(help="Milliseconds before measuring.")] = 200.0,
    duration: Annotated[float, typer.Option(help="Seconds to measure each for, at least.")] = 3.0,
    iterations: Annotated[int, typer.Option(help="Runs of each, at least.")] = 10,
    fps: Annotated[float | None, typer.Option(help="Pace the runs, as a camera does, instead of back to back.")] = None,
    json: Annotated[Path | None, typer.Option(help="File to write.")] = None,
    baseline: Annotated[Path | None, typer.Option(help="JSON of an earlier benchmark to compare with.")] = None,
    max_regression: Annotated[float, typer.Option(help="How much slower it may be than that; 0.1 is 10 %.")] = 0.1,
) -> None:
    """Time each backend of a bundle, in turn, with trtexec's definitions."""
    from qcn.export.bundle import Bundle
    from qcn.verify import latency, speeds
    from qcn.verify.records import by_reason

    plan = latency.Plan(tuple(dict.fromkeys(batch or (1,))), warmup, duration, iterations, fps)
    if not 0 <= max_regression < math.inf:
        raise UsageError(f"--max-regression must be 0 or more, not {max_regression}")
    if json and json.is_dir():
        raise UsageError(f"{json} is a folder; --json names a file")
    before = speeds.read_medians(baseline) if baseline else {}  # now: the new file may take its place
    opened = Bundle.open(bundle)
    found = latency.benchmark(opened, backends, plan)
    measured, missing = ([speed for speed in found if bool(speed.missing) is lacking] for lacking in (False, True))
    # Names whole and as they are, even if lines wrap.
    console = Console(width=max(130, Console().width), markup=False, emoji=False)
    for size in plan.batches:
        if any(speed.batch == size for speed in measured):
            console.print(speeds.table(found, size))
    if measured:
        pace = f"at {fps:g} a second" if fps else "back to back"
        print(f"milliseconds, transfers to and from a GPU included but in `compute`, {pace}; open, first and MiB each")
        print("in a new process: loading the backend and the model, the first answer, the memory that both took")
    if energy := next((speed.energy_of for speed in measured if speed.energy_of), ""):
        print(f"mJ an inference: {energy}, idle power included")
    for reason, keys in by_reason({speed.key: speed.missing for speed in missing}):
        print(f"not measured: {'; '.join(keys)}: {reason}")
    if json:
        speeds.write_json(json, speeds.as_record(opened, plan, found, _command()))
    if missing and (backends or not measured):
        raise MissingError(f"{missing[0].key}: {missing[0].missing}")
    if baseline:
        speeds.check_regression(baseline, before, found, max_regression)


@datasets.command("list")
def list_datasets(data_dir: DataDir = DATA) -> None:
    """Name every data set, and say which are on this machine."""
    from qcn.data import DATASETS
    from qcn.data.fetch import is_here

    table = Table(box=None)
    for heading in ("name", "image", "classes", "here", "what it is"):
        table.add_column(heading, no_wrap=heading != "what it is", overflow="fold")
    for name, entry in DATASETS.items():
        here = "rendered" if not entry.files else "yes" if is_here(entry, data_dir) else "no"
        table.add_row(name, f"{entry.channels}×{entry.size}×{entry.size}", str(len(entry.classes)), here, entry.summary)
    console = Console()
    console.print(table)
    console.print("Those not here: qcn datasets fetch NAME. Rendered ones are made when they are first used.")


@datasets.command()
def fetch(name: str, data_dir: DataDir = DATA) -> None:
    """Bring a data set's official files, checked; goes on where an earlier try stopped."""
    from qcn.data import find
    from qcn.data.fetch import fetch as bring

    dataset = find(name)
    if not dataset.files:
        print(f"{name} is rendered here when it is first used: nothing to fetch")
        return
    for path in bring(dataset, data_dir):
        print(path)
    print(f"{name}: all files are in {data_dir / dataset.folder}")


@datasets.command()
def show(
    name: str,
    data_dir: DataDir = DATA,
    out: Annotated[Path | None, typer.Option(help="PNG to write; runs/datasets/NAME.png if not given.")] = None,
) -> None:
    """Draw a contact sheet of a data set's training images as a PNG."""
    from qcn.data import load
    from qcn.data.sheet import contact_sheet

    path = out or Path("runs/datasets") / f"{name}.png"
    contact_sheet(load(name, data_dir).train, path, title=name)
    print(path)


def _command() -> str:
    """What was typed, for a record that is to be repeated."""
    from qcn.export.golden import readable

    return readable(shlex.join(["qcn", *sys.argv[1:]]))


def _new_folder(command: str, name: str) -> Path:
    """runs/COMMAND/NAME, or NAME-2, NAME-3, … where that is taken."""
    base = Path("runs") / command
    taken = 2
    folder = base / name
    while folder.exists():
        folder = base / f"{name}-{taken}"
        taken += 1
    return folder
