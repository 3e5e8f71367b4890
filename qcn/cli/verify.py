"""`qcn verify-parity` and `qcn benchmark`."""

from pathlib import Path
from typing import Annotated

import typer

from qcn.cli import complete
from qcn.cli.options import (
    DATA,
    Backends,
    BundleFolder,
    DataDir,
    JsonFile,
    MaxRegression,
    OtherNetwork,
    PublicKey,
    Run,
    TimeLimit,
    Trust,
)
from qcn.cli.say import command, say, say_next, show


def verify_parity(
    bundle: BundleFolder,
    backends: Backends = None,
    data: Annotated[
        str,
        typer.Option(
            autocompletion=complete.or_folder(lambda: ("golden", *complete.datasets())),
            help="Images: golden (the bundle's own, no torch needed), a data set, or a folder or table of pictures.",
        ),
    ] = "golden",
    samples: Annotated[
        int | None, typer.Option(help="Number of images to take from a data set, folder or table. Default: 64.")
    ] = None,
    data_dir: DataDir = DATA,
    atol: Annotated[
        list[str] | None,
        typer.Option(help="Absolute tolerance: 1e-4, or logit:1e-4 for one output. Default: the bundle's."),
    ] = None,
    rtol: Annotated[
        list[str] | None,
        typer.Option(help="Tolerance relative to the output's largest value, added to --atol. Default: 0."),
    ] = None,
    run: Run = None,
    bisect: Annotated[
        bool,
        typer.Option(
            "--bisect", show_default="off", help="Compare every layer and iteration, even if the answers are right."
        ),
    ] = False,
    soak: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Ask the backends that passed for random images in every batch size, for so long in all: 60s, 10min, "
            "2h. Default: off.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of --soak, to repeat it. Default: a new one.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write a report into this folder; implies --bisect. Default: none.")
    ] = None,
    benchmark: Annotated[
        Path | None,
        typer.Option(help="File from `qcn benchmark --json`, to show in the report. Default: none."),
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="An earlier report.json: fail if anything got worse. Default: none.")
    ] = None,
    other_network: OtherNetwork = False,
    trust: Trust = False,
    time_limit: TimeLimit = 60.0,
    public_key: PublicKey = None,
) -> None:
    """Compare each backend of a bundle with the trained network's float64 answers."""
    from qcn.export.bundle import Bundle
    from qcn.verify.parity import results
    from qcn.verify.parity.check import Request, check

    request = Request(
        backends=backends,
        data=data,
        samples=samples,
        data_dir=data_dir,
        atol=atol or (),
        rtol=rtol or (),
        run=run,
        bisect=bisect,
        soak=soak,
        seed=seed,
        report=report,
        benchmark=benchmark,
        baseline=baseline,
        other_network=other_network,
        trust=trust,
        time_limit=time_limit,
        command=command(),
    )
    checked = check(Bundle.open(bundle, public_key), request)
    for why in checked.samples.unreadable:
        say(f"left out: {why}")
    for status, name, lines in results.status_lines(checked.verdicts, bool(backends)):
        say(name, results.WORDS[status], results.COLOURS[status])
        for line in lines:
            say(line, "")
    show(results.table(checked.verdicts, checked.samples))
    for path in checked.files:
        say(path)
    checked.require()
    say(checked.summary)
    say_next("qcn", "benchmark", bundle)


def benchmark(
    bundle: BundleFolder,
    backends: Backends = None,
    batch: Annotated[list[int] | None, typer.Option(help="Batch size; may be repeated. Default: 1.")] = None,
    warmup: Annotated[float, typer.Option(help="Milliseconds of warm-up before measuring.")] = 200.0,
    duration: Annotated[float, typer.Option(help="Seconds to measure each backend, at least.")] = 3.0,
    iterations: Annotated[int, typer.Option(help="Runs of each backend, at least.")] = 10,
    fps: Annotated[
        float | None, typer.Option(help="Runs per second, paced like a camera. Default: back to back.")
    ] = None,
    json: JsonFile = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Compare with this JSON file of an earlier benchmark. Default: none.")
    ] = None,
    other_network: OtherNetwork = False,
    max_regression: MaxRegression = 0.1,
    trust: Trust = False,
    time_limit: TimeLimit = 60.0,
    public_key: PublicKey = None,
) -> None:
    """Time each backend of a bundle, by trtexec's definitions."""
    from qcn.export.bundle import Bundle
    from qcn.verify.speed import check, nvml, results
    from qcn.verify.words import by_reason

    request = check.Request(
        backends=backends,
        batch=batch or (1,),
        warmup=warmup,
        duration=duration,
        iterations=iterations,
        fps=fps,
        json=json,
        baseline=baseline,
        other_network=other_network,
        max_regression=max_regression,
        trust=trust,
        time_limit=time_limit,
        command=command(),
    )
    measured = check.benchmark(Bundle.open(bundle, public_key), request)
    for size in request.plan().batches:
        if any(speed.batch == size for speed in measured.speeds):
            show(results.table(measured.speeds, size))
    if measured.speeds:
        pace = f"at {fps:g} per second" if fps else "back to back"
        print(
            f"milliseconds, including transfers to and from a GPU (except `compute`), {pace}; open, first and "
            f"MiB were measured"
        )
        print("in a new process: loading the backend and the model, the first answer, and the memory for both")
    if energy := next((speed.energy_of for speed in measured.speeds if speed.energy_of), ""):
        say(f"mJ per inference: {energy}, idle power included")
    if why := nvml.obstacle():
        say(f"memory and energy of the GPU were not measured: {why}")
    for reason, keys in by_reason({speed.key: speed.missing for speed in measured.missing}):
        say(f"not measured: {'; '.join(keys)}: {reason}")
    measured.require()
    for line in measured.fastest:
        say(line)
    say_next("qcn", "verify-parity", bundle, *(("--report", "report", "--benchmark", json) if json else ()))
