"""The whole verdict on a bundle in one call, for the shell, for `qcn ship-check` and for Python."""

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from qcn.errors import QcnError, UsageError
from qcn.export.backends.candidates import candidates
from qcn.export.bundle import Bundle
from qcn.export.bundle.install import copy_bundle
from qcn.networks.shipped import run_of
from qcn.terminal.progress import doing, say, shown
from qcn.verify.network import NetworkId
from qcn.verify.parity.compare import Allowed
from qcn.verify.parity.preprocessing import check_preprocessing, check_repositories
from qcn.verify.parity.request import ParityRequest
from qcn.verify.parity.results import ParityReport, check_baseline, make_report, read_baseline, verdict
from qcn.verify.parity.run import Origin, check_run
from qcn.verify.parity.samples import Samples, samples
from qcn.verify.parity.soak import Soak
from qcn.verify.parity.verdict import Verdict, conclude
from qcn.verify.parity.verify import verify
from qcn.verify.report.answers import answers
from qcn.verify.report.files import write
from qcn.verify.speed.timings import read_benchmark_of


@dataclass(frozen=True)
class Checked:
    """The whole verdict on a bundle.

    verdicts   one per file in a backend, and on pre-processing and the run
    samples    the images that they were compared on
    report     the record, for programs
    files      the files written to the report's folder
    problem    the error that the shell ends with; None if it passed
    """

    verdicts: list[Verdict]
    samples: Samples
    report: ParityReport
    files: tuple[Path, ...]
    problem: QcnError | None
    run: str | None

    @property
    def passed(self) -> bool:
        """Whether every backend that ran answers as the trained network does, and at least one did run."""
        return self.problem is None

    @property
    def summary(self) -> str:
        """The verdict in one line: what was proven and on what, or what is wrong."""
        return str(self.problem) if self.problem else verdict(self.verdicts, self.samples, self.run)

    def require(self) -> None:
        """Raise what is wrong, if anything is."""
        if self.problem:
            raise self.problem


def check(bundle: Bundle, request: ParityRequest) -> Checked:
    """The whole verdict, and its report where a folder is named for it."""
    soak = Soak.parse(request.soak, request.seed)
    timed = read_benchmark_of(request.benchmark, bundle) if request.benchmark else None
    before = None  # read now: the new report may take the baseline's place
    if request.baseline:
        before = read_baseline(request.baseline, NetworkId.of(bundle.manifest), request.other_network)
    if soak:
        say(f"soak of {request.soak}: --set seed={soak.seed} repeats it")
    with shown():
        verdicts, images = _verdicts(bundle, request, soak)
        by_name = bool(request.backends)
        report = make_report(bundle, images, verdicts, request.command, by_name, timed)
        files: list[Path] = []
        if request.report:
            doing("writing the report")
            pixels = dict(zip(images.golden.rows, images.golden.image, strict=True))
            files = write(request.report, report, pixels, answers=answers(bundle.manifest, images.golden))
        if request.track and request.run and request.report:
            _keep(bundle, request.report, run_of(request.run))
    problem = None
    try:
        conclude(verdicts, by_name, images.golden.plan)
        if request.baseline and before:
            check_baseline(request.baseline, before, report, by_name)
    except QcnError as error:
        problem = error
    return Checked(verdicts, images, report, tuple(files), problem, request.run)


def _keep(bundle: Bundle, report: Path, run: Path) -> None:
    """Keep the bundle, without what else lies in its folder, and its report in the trackers of the run."""
    from qcn.train.trackers import keep

    with tempfile.TemporaryDirectory() as folder:
        copy_bundle(bundle, Path(folder, "bundle"))
        keep(run, {"bundle": Path(folder, "bundle"), "report": report})


def _verdicts(bundle: Bundle, request: ParityRequest, soak: Soak | None) -> tuple[list[Verdict], Samples]:
    """Verdicts on the files in their backends, on pre-processing and, with `run`, on the bundle's origin.

    Nothing is run of a bundle that does not belong to the given `run`.
    """
    allowed = tolerances(request.atol, request.rtol, [port.name for port in bundle.manifest.outputs])
    origin, of_run = None, list[Verdict]()
    if request.run:
        doing(f"comparing with {request.run}")
        origin = Origin.open(request.run, bundle)
        of_run = [check_run(bundle, origin, request.data_dir)]
        if of_run[0].status == "failed":
            return [*_not_run(bundle, request), *of_run], samples(bundle)
    doing(f"reading {request.dataset} images")
    images = samples(bundle, request.dataset, request.images, request.data_dir, origin)
    trust = request.trust or origin is not None  # then files are compared with their program before they run
    served = candidates(bundle, request.backends or None, trust, request.file)
    results = verify(
        bundle,
        request.backends or None,
        allowed,
        request.bisect or request.report is not None,
        images.golden,
        trust,
        request.time_limit,
        request.file,
        origin,
        soak,
    )
    doing("checking pre-processing")
    results += [check_preprocessing(bundle), *check_repositories(bundle, served, request.time_limit), *of_run]
    return results, images


def _not_run(bundle: Bundle, request: ParityRequest) -> list[Verdict]:
    """A verdict for each file of a bundle that is not of the run."""
    result = candidates(bundle, request.backends or None, True, request.file)
    why = f"the bundle is not of {request.run}"
    return [Verdict(of.backend.name, of.artefact.file, of.precision, "untrusted", (why,)) for of in result]


def tolerances(atol: Iterable[str], rtol: Iterable[str], names: Sequence[str]) -> dict[str, Allowed]:
    """Tolerances by output, from atol and rtol: "1e-4" for all `names`, "pose:1e-4" for one."""
    absolute, relative = _by_output("atol", atol, names), _by_output("rtol", rtol, names)
    named = {name for numbers in (absolute, relative) for name in (names if "" in numbers else numbers)}
    return {
        name: Allowed(*(numbers.get(name, numbers.get("", 0.0)) for numbers in (absolute, relative)))
        for name in names
        if name in named
    }


def _by_output(option: str, texts: Iterable[str], names: Sequence[str]) -> dict[str, float]:
    """The numbers by output; the one for all outputs under ""."""
    result = {}
    for text in texts:
        name, _, number = text.rpartition(":")
        try:
            result[name] = float(number)
        except ValueError:
            result[name] = -1.0
        if name not in ("", *names) or not 0 <= result[name] < float("inf"):
            raise UsageError(f"{option} takes a number, or OUTPUT:NUMBER with {' or '.join(names)}, not '{text}'")
    return result
