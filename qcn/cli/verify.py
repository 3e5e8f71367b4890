"""`qcn verify-parity` and `qcn benchmark`."""

import os
from typing import Any

from qcn.cli.options import BundleFolder, PublicKey, takes
from qcn.cli.say import command, say, say_next, show
from qcn.settings import make
from qcn.verify.parity.request import ParityRequest
from qcn.verify.speed.request import BenchmarkRequest


@takes(ParityRequest)
def verify_parity(bundle: BundleFolder, settings: dict[str, Any], public_key: PublicKey = None) -> None:
    """Compare each backend of a bundle with the trained network's float64 answers."""
    from qcn.export.bundle import Bundle
    from qcn.verify.parity import results
    from qcn.verify.parity.check import check

    # torch's arrays then lie in large pages, which takes a fifth off its processor time; read when torch is loaded.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    request = make(ParityRequest, **settings, command=command())
    checked = check(Bundle.open(bundle, public_key), request)
    for why in checked.samples.unreadable:
        say(f"left out: {why}")
    for status, name, lines in results.status_lines(checked.verdicts, bool(request.backends)):
        say(name, results.WORDS[status], results.COLOURS[status])
        for line in lines:
            say(line, "")
    show(results.table(checked.verdicts, checked.samples))
    for path in checked.files:
        say(path)
    checked.require()
    say(checked.summary)
    say_next("qcn", "benchmark", bundle)


@takes(BenchmarkRequest)
def benchmark(bundle: BundleFolder, settings: dict[str, Any], public_key: PublicKey = None) -> None:
    """Time each backend of a bundle, by trtexec's definitions."""
    from qcn.export.bundle import Bundle
    from qcn.verify.speed import check, nvml, timings
    from qcn.verify.words import by_reason

    request = make(BenchmarkRequest, **settings, command=command())
    measured = check.benchmark(Bundle.open(bundle, public_key), request)
    for size in measured.record.plan.batches:
        if any(speed.batch == size for speed in measured.speeds):
            show(timings.table(measured.speeds, size))
    if measured.speeds:
        pace = f"at {request.fps:g} per second" if request.fps else "back to back"
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
    say_next(
        "qcn", "verify-parity", bundle, *(("--report", "report", "--benchmark", request.json) if request.json else ())
    )
