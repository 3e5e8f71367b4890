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
    check_file,
    check_folder,
)
from qcn.cli.say import command, say, say_next, show
from qcn.errors import MissingError, UsageError
from qcn.progress import doing, shown


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
    from qcn.verify.network import Network
    from qcn.verify.parity import results
    from qcn.verify.parity.check import Request, check
    from qcn.verify.parity.soak import Soak
    from qcn.verify.parity.verdict import conclude
    from qcn.verify.report.files import write
    from qcn.verify.speed.results import read_benchmark_of

    if benchmark and not report:
        raise UsageError("--benchmark is for the report: name its folder with --report")
    check_folder("--report", report)
    soaking = Soak.parse(soak, seed)
    opened = Bundle.open(bundle, public_key)
    timed = read_benchmark_of(benchmark, opened) if benchmark else None
    network = Network.of(opened.manifest)  # now: the new report may take the baseline's place
    before = results.read_baseline(baseline, network, other_network) if baseline else None
    request = Request(
        backends=backends,
        data=data,
        samples=samples,
        data_dir=data_dir,
        atol=atol or (),
        rtol=rtol or (),
        run=run,
        bisect=bisect or report is not None,
        trust=trust,
        time_limit=time_limit,
        soak=soaking,
    )
    if soaking:
        say(f"soak of {soak}: --seed {soaking.seed} repeats it")
    checked = check(opened, request)
    found, chosen, asked = checked.verdicts, checked.samples, bool(backends)
    for why in chosen.unreadable:
        say(f"left out: {why}")
    for status, name, lines in results.status_lines(found, asked):
        say(name, results.WORDS[status], results.COLOURS[status])
        for line in lines:
            say(line, "")
    show(results.table(found, chosen))
    record = results.make_report(opened, chosen, found, command(), asked, timed)
    if report:
        images = dict(zip(chosen.golden.rows, chosen.golden.image, strict=True))
        with shown():
            doing("writing the report")
            written = write(report, record, images)
        for path in written:
            say(path)
    conclude(found, asked, chosen.golden.plan)
    if baseline and before:
        results.check_baseline(baseline, before, record, asked)
    say(results.verdict(found, chosen, run))
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
    from qcn import records
    from qcn.export.bundle import Bundle
    from qcn.verify.network import Network, check_baseline_network
    from qcn.verify.speed import latency, nvml, results
    from qcn.verify.speed.turns import Plan
    from qcn.verify.words import by_reason

    plan = Plan(tuple(dict.fromkeys(batch or (1,))), warmup, duration, iterations, fps)
    check_file("--json", json)
    opened = Bundle.open(bundle, public_key)
    before = results.read_benchmark(baseline) if baseline else None  # now: the new file may take its place
    if baseline and before:
        check_baseline_network(baseline, before.network, Network.of(opened.manifest), other_network)
    with shown():
        found = latency.benchmark(opened, backends, plan, trust, time_limit)
    measured, missing = ([speed for speed in found if bool(speed.missing) is lacking] for lacking in (False, True))
    for size in plan.batches:
        if any(speed.batch == size for speed in measured):
            show(results.table(found, size))
    if measured:
        pace = f"at {fps:g} per second" if fps else "back to back"
        print(
            f"milliseconds, including transfers to and from a GPU (except `compute`), {pace}; open, first and "
            f"MiB were measured"
        )
        print("in a new process: loading the backend and the model, the first answer, and the memory for both")
    if energy := next((speed.energy_of for speed in measured if speed.energy_of), ""):
        say(f"mJ per inference: {energy}, idle power included")
    if why := nvml.obstacle():
        say(f"memory and energy of the GPU were not measured: {why}")
    for reason, keys in by_reason({speed.key: speed.missing for speed in missing}):
        say(f"not measured: {'; '.join(keys)}: {reason}")
    if json:
        records.write(json, results.benchmark_record(opened, plan, found, command()))
    if failed := next((speed for speed in missing if speed.failed), None):
        raise UsageError(f"{failed.key}: {failed.missing}")
    if missing and (backends or not measured):
        raise MissingError(f"{missing[0].key}: {missing[0].missing}")
    if baseline and before:
        results.check_regression(baseline, before, found, max_regression)
    for size in plan.batches:
        if line := results.fastest(measured, size):
            say(line)
    say_next("qcn", "verify-parity", bundle, *(("--report", "report", "--benchmark", json) if json else ()))
