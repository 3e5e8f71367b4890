"""Measures one file of a bundle in one backend, by evaluate, verify-parity and benchmark, and has it judged."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qcn.data.imageset import ImageSet
from qcn.data.spec import Dataset
from qcn.direction import Directions
from qcn.errors import CheckFailed, MissingError, UsageError
from qcn.evaluate.directions import errors_of_right_answers
from qcn.evaluate.evaluation import answer_splits
from qcn.evaluate.networks import CandidateNetwork
from qcn.evaluate.rates import Answers, measure_answers
from qcn.export import targets
from qcn.export.backends import BACKENDS, FORMATS
from qcn.export.backends.candidates import Candidate, candidates
from qcn.export.backends.runner import TIME_LIMIT
from qcn.export.bundle import Bundle
from qcn.terminal.progress import say
from qcn.verify.machine import Environment
from qcn.verify.parity import check as parity
from qcn.verify.parity.check import Checked
from qcn.verify.parity.compare import Share
from qcn.verify.parity.request import ParityRequest
from qcn.verify.parity.results import ParityReport, make_report
from qcn.verify.parity.verdict import PREPROCESSING, RUN, Verdict
from qcn.verify.ship import judge
from qcn.verify.ship.judge import LimitRow
from qcn.verify.ship.limits import Limits
from qcn.verify.ship.outcome import Ship, overall
from qcn.verify.speed import latency, timings
from qcn.verify.speed.latency import Speed
from qcn.verify.speed.turns import TimingPlan

AUTO = ("tensorrt", "native", "onnxruntime")  # as `qcn.load` chooses
FASTEST = ("int8", "fp16", "bf16", "fp32", "fp64")  # of several files of a format, as libqcn takes engines
PLAN = TimingPlan(iterations=100)  # of fewer runs the 99th percentile is the slowest one
TOP = 1  # nothing here shows a top-k error


@dataclass(frozen=True)
class ShipTerms:
    """What to check, and how.

    target   the machine that it is to run on, as `qcn export --target` knows it; "this" is this one
    data     a data set or folder; None: the one that the bundle was trained on
    run      the training run that the bundle must come from; None: that is not checked
    """

    limits: Limits
    target: str = "this"
    data: str | None = None
    split: str | None = None
    data_dir: Path = Path("data")
    plan: TimingPlan = PLAN
    bisect: bool = False
    time_limit: float = TIME_LIMIT
    run: str | None = None

    @property
    def of_images(self) -> bool:
        """Whether a limit needs test images, or images are named."""
        limits = self.limits
        needs_images = (limits.accuracy, limits.calibration_error, limits.direction_error)
        return bool(self.data) or any(limit is not None for limit in needs_images)


def choose(bundle: Bundle, backend: str, file: str | None, trust: bool) -> Candidate:
    """The file in the backend that will ship: those that were named, or what `qcn.load` would take here."""
    if file is not None:
        bundle.find(file)
    if backend != "auto":
        return _best_first(candidates(bundle, [backend], trust, file))[0]
    lacking = []
    for name in AUTO:
        formats = BACKENDS[name].formats
        if not any(one.format in formats and file in (None, one.file) for one in bundle.manifest.files):
            continue
        for result in _best_first(candidates(bundle, [name], trust, file)):
            runner = result.runner(bundle)
            try:
                runner.open()
            except MissingError as error:
                lacking.append(str(error))
                continue
            except UsageError:
                pass  # the checks say what is wrong with it
            finally:
                runner.close()
            return result
    if lacking:
        raise MissingError(f"no backend on this machine runs {bundle.folder}: {'; '.join(lacking)}")
    raise UsageError(
        f"{bundle.folder} has no file for {', '.join(AUTO)}: name the backend that will ship with --backend"
    )


def _best_first(candidates: list[Candidate]) -> list[Candidate]:
    """Of a backend's first format the fastest precision first, but for ONNX Runtime, which takes model.onnx."""

    def order(candidate: Candidate) -> tuple[int, int]:
        format = candidate.backend.formats.index(candidate.artefact.format)
        fastest = FASTEST.index(candidate.precision)
        return format, fastest if candidate.artefact.format == "trt" else -fastest

    return sorted(candidates, key=order)


def is_here(target: str, machine: Environment) -> bool:
    """Whether this machine is the target: a Jetson by the words of its name, any other by its GPU."""
    device = targets.target(target)
    if device.sm is None:
        return True
    if target.startswith("jetson-"):
        words = (machine.jetson or "").lower().split()
        return all(word in words for word in target.split("-"))
    return machine.gpu is not None and machine.gpu.sm == device.sm


def check(bundle: Bundle, candidate: Candidate, terms: ShipTerms, command: str) -> tuple[Ship, ParityReport]:
    """The verdict on each limit, and the parity report with the benchmark."""
    began = time.perf_counter()
    targets.target(terms.target)  # first: what cannot be meant is refused at once
    network = CandidateNetwork(bundle, candidate, terms.time_limit)
    dataset = _dataset(network, terms)
    say(f"parity: {candidate.key}")
    checked = _parity(bundle, candidate, terms)
    of_candidate = [one for one in checked.verdicts if not one.is_of_file or one.precision == candidate.precision]
    by_backend = {one.backend: one for one in of_candidate}
    verdict, preprocessing = by_backend[candidate.backend.name], by_backend[PREPROCESSING]
    of_run = by_backend.get(RUN)
    say(f"accuracy: {dataset.name if isinstance(dataset, Dataset) else 'not tested'}")
    accuracy = _accuracy(network, dataset, verdict, terms, bundle.manifest.confidence is not None)
    say(f"latency, memory and energy: {candidate.key}")
    speed, timed = _speed(bundle, candidate, verdict, terms)
    report = make_report(
        bundle,
        checked.samples,
        [verdict, preprocessing, *([of_run] if of_run else [])],
        command,
        True,
        timings.benchmark_record(bundle, terms.plan, timed, command) if timed else None,
    )
    here = is_here(terms.target, report.environment)
    elsewhere = "" if here else f"this machine is not {terms.target}: run `qcn ship-check` there"
    rows = (
        *accuracy,
        judge.parity(verdict, preprocessing, of_run, terms.run),
        judge.latency(speed, terms.limits.latency, elsewhere),
        judge.memory(speed, terms.limits.memory, elsewhere),
        judge.energy(speed, terms.limits.energy, elsewhere),
    )
    ship = Ship(
        schema=2,
        bundle=bundle.manifest.name,
        source=bundle.manifest.source,
        manifest_sha256=report.manifest_sha256,
        network_sha256=report.network_sha256,
        command=command,
        environment=report.environment,
        status=overall(rows),
        backend=candidate.backend.name,
        file=candidate.artefact.file,
        precision=candidate.precision,
        data=dataset.name if isinstance(dataset, Dataset) else bundle.manifest.source.data,
        target=terms.target,
        target_is_here=here,
        calibrated=bundle.manifest.confidence is not None,
        measured=bundle.manifest.measured,
        rows=rows,
        not_tested=tuple(_unchecked(bundle, candidate, terms, here)),
        seconds=time.perf_counter() - began,
    )
    return ship, report


def _parity(bundle: Bundle, candidate: Candidate, terms: ShipTerms) -> Checked:
    """On the candidate's file and backend, which may run it in other precisions too."""
    request = ParityRequest(
        backends=[candidate.backend.name],
        file=candidate.artefact.file,
        run=terms.run,
        bisect=terms.bisect,
        trust=candidate.trusted,
        time_limit=terms.time_limit,
    )
    return parity.check(bundle, request)


def _ran(verdict: Verdict) -> bool:
    """Whether it gave answers that could be compared, right or wrong."""
    return bool(verdict.outputs)


def _dataset(network: CandidateNetwork, terms: ShipTerms) -> Dataset | str:
    """The test images, or why there are none if no limit needs them."""
    try:
        return network.dataset(terms.data)
    except UsageError as error:
        if terms.of_images:
            raise
        return str(error)


def _accuracy(
    network: CandidateNetwork, dataset: Dataset | str, verdict: Verdict, terms: ShipTerms, calibrated: bool
) -> list[LimitRow]:
    """Rows of accuracy, calibration error and directions for every test split, or the one that was asked for."""
    limits = terms.limits
    most, angle = limits.calibration_error, limits.direction_error
    if angle and network.direction is None:
        raise UsageError(f"{network.backend} tells no directions: leave out --max-direction-error")
    checks = [
        ("accuracy", judge.at_least(limits.accuracy), limits.accuracy),
        ("calibration error", judge.at_most(judge.percent, most), most),
    ]
    if angle:
        checks.append(("direction error", judge.at_most(judge.degrees, angle.degrees), angle.degrees))
    if isinstance(dataset, str) or not _ran(verdict):
        why = dataset if isinstance(dataset, str) else verdict.reasons[0]
        return [judge.not_tested(*one, why) for one in checks]
    try:
        answered = answer_splits(network, dataset, terms.data_dir, terms.split)
        results = [measure_answers(split, *answers, TOP) for split, answers in answered.items()]
    except MissingError as error:
        if terms.of_images:
            raise
        return [judge.not_tested(*one, str(error)) for one in checks]
    except CheckFailed as error:  # NaN is no answer
        return [LimitRow(name, text, "no answer", "failed", str(error), limit) for name, text, limit in checks]
    rows = []
    for result in results:
        right = Share.count(result.overall.total - result.overall.wrong, result.overall.total)
        rows.append(judge.accuracy(result.split, right, limits.accuracy))
    for result in results:
        if result.calibration_error is not None:
            rows.append(judge.calibration(result.split, result.calibration_error, calibrated, most))
    if network.direction:
        for split, answers in answered.items():
            rows.append(judge.direction(split, _off(*answers, network.direction), angle))
    return rows


def _off(images: ImageSet, answers: Answers, directions: Directions) -> NDArray[np.float64] | None:
    """Degrees that told directions are off, of images that are answered right and have one; None without views."""
    if answers.pose is None:
        return None
    errors = errors_of_right_answers(images, answers.predicted, answers.pose, directions)
    return None if errors is None else errors[np.isfinite(errors)]


def _speed(bundle: Bundle, candidate: Candidate, verdict: Verdict, terms: ShipTerms) -> tuple[Speed, list[Speed]]:
    """The figures of one image at a time, and all that were taken; nothing is timed that does not run."""
    about = (candidate.backend.name, candidate.artefact.file, candidate.precision, 1)
    if not _ran(verdict):
        return Speed(*about, missing=verdict.reasons[0]), []
    timed = latency.benchmark(
        bundle, [candidate.backend.name], terms.plan, candidate.trusted, terms.time_limit, candidate.artefact.file
    )
    own = [one for one in timed if (one.backend, one.file, one.precision, one.batch) == about]
    return own[0], own


def _unchecked(bundle: Bundle, candidate: Candidate, terms: ShipTerms, here: bool) -> list[str]:
    """What was not tested, beside the rows that say so."""
    lines = [] if here else [f"{terms.target}: nothing ran on it; times, memory and energy are of this machine"]
    others = [
        one.file
        for one in bundle.manifest.files
        if one.file != candidate.artefact.file and not FORMATS[one.format].part_of
    ]
    if others:
        lines.append(f"{', '.join(others)}: not what ships by {candidate.backend.name}; see `qcn verify-parity`")
    if not terms.run:
        lines.append("that the bundle is built from a training run's network: --run RUN")
    if terms.split:
        lines.append(f"other splits than {terms.split}")
    return lines
