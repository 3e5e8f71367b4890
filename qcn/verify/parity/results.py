"""What `qcn verify-parity` found: as a table, in lines, as a record (`ParityReport`), and against an earlier one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rich.table import Table
from rich.text import Text

from qcn.errors import CheckFailed, UsageError
from qcn.export.bundle import Bundle
from qcn.export.bundle.manifest import BundleSource
from qcn.export.bundle.tolerance import FLOORS
from qcn.storage import records
from qcn.terminal.tables import table_of
from qcn.terminal.text import counted
from qcn.verify.machine import Environment, environment
from qcn.verify.network import NetworkId, check_baseline_network
from qcn.verify.parity.compare import Share, accuracy
from qcn.verify.parity.samples import GOLDEN, Samples
from qcn.verify.parity.verdict import NOT_RUN, Status, Verdict, overall
from qcn.verify.speed.timings import Benchmark
from qcn.verify.words import by_reason, share

SCHEMA: Literal[5] = 5
COLOURS: dict[Status, str] = {"failed": "red", "missing": "yellow", "untrusted": "yellow", "passed": "green"}
WORDS: dict[Status, str] = {**{status: status for status in COLOURS}, "missing": "cannot"}  # as `qcn doctor` says it
WIDEST = max(FLOORS.values())  # tolerance in noise floors, unless atol or rtol set another
WORSE = 2.0  # times as far off as before; and by more than a noise floor: less is float32's own


@dataclass(frozen=True)
class Images:
    """The images that were compared: `golden`, a data set's name or a folder, and their number with edge cases."""

    name: str
    count: int
    edge_cases: int

    @property
    def show_accuracy(self) -> bool:
        """Not of golden images: they are too few, and chosen to compare backends, not to test the network."""
        return self.name != GOLDEN


@dataclass(frozen=True)
class ParityReport:
    """report.json.

    manifest_sha256   of the bundle's manifest.json; network_sha256: see `Manifest.network_sha256`
    files             the sha256 of each file of the bundle
    by_name           whether backends were asked for by name: then none may be missing
    status            of the whole: see `qcn.verify.parity.verdict.overall`
    reference         the trained network's own accuracy, of the images that have a label
    backends          by `Verdict.key`
    benchmark         what `qcn benchmark --json` wrote, if it was given
    """

    schema: Literal[5]
    bundle: str
    source: BundleSource
    manifest_sha256: str
    network_sha256: str
    files: dict[str, str]
    command: str
    environment: Environment
    images: Images
    by_name: bool
    status: Status
    reference: Share | None
    backends: dict[str, Verdict]
    benchmark: Benchmark | None = None

    @property
    def network(self) -> NetworkId:
        return NetworkId(self.bundle, self.network_sha256)

    def derived(self) -> Status:
        """The status that follows from what was measured."""
        return overall((replace(verdict, status=verdict.derived) for verdict in self.backends.values()), self.by_name)

    def contradictions(self) -> list[str]:
        """Entries that contradict each other, in words."""
        problems = [f"{key}: {why}" for key, verdict in self.backends.items() if (why := verdict.contradiction())]
        problems += [f"{key}: the entry is of {of.key}" for key, of in self.backends.items() if key != of.key]
        for verdict in self.backends.values():
            if verdict.is_of_file and verdict.derived == "passed":  # an engine may have failed on fresh images
                problems += [f"{verdict.key}: {why}" for why in self._miscounted(verdict)]
        if not 0 <= self.images.edge_cases <= self.images.count:
            problems.append(f"{self.images.edge_cases} of {self.images.count} images are edge cases")
        if not problems and (status := self.derived()) != self.status:
            passed = any(of.status == "passed" for of in self.backends.values() if of.is_of_file)
            why = f"what was measured is {status}" if passed else "nothing was measured"
            problems.append(f"the report is called {self.status}, but {why}")
        if self.benchmark and (why := self.benchmark.not_of(self.network, self.files)):
            problems.append(f"its benchmark is {why}")
        return problems

    def tolerances_by_hand(self) -> list[str]:
        """Tolerances wider than a bundle's own, in words."""
        return [
            f"{verdict.key}: {name} was allowed {errors.tolerance:.2g}, more than {WIDEST:.0f} noise floors"
            for verdict in self.backends.values()
            for name, errors in verdict.outputs.items()
            if errors.tolerance > WIDEST * errors.noise_floor * (1 + 1e-6)
        ]

    def _miscounted(self, verdict: Verdict) -> list[str]:
        """Contradictions between a verdict's counts and the report's."""
        problems = []
        if verdict.images != self.images.count:
            problems.append(f"it was compared on {verdict.images} images, and the report is on {self.images.count}")
        right, of = (verdict.accuracy.right, verdict.accuracy.of) if verdict.accuracy else (0, 0)
        expected, labelled = (self.reference.right, self.reference.of) if self.reference else (0, 0)
        if of != labelled or abs(right - expected) > len(verdict.flips):
            problems.append(
                f"it is right for {right} of {of} images and the trained network for {expected} of {labelled}, with "
                f"{counted(len(verdict.flips), 'changed decision')}"
            )
        return problems


def table(verdicts: Sequence[Verdict], samples: Samples) -> Table:
    """One row per file that ran, failures first; with `--dataset` also accuracies, the reference's in the last row."""
    tested = samples.name != GOLDEN
    columns = ("backend", "file", "precision", "status", "allowed deviation used", "same class")
    turns = any(verdict.turn for verdict in verdicts)
    result = table_of(*columns, *["accuracy"] * tested, *["direction turned by"] * turns)
    for verdict in (verdict for status in ("failed", "passed") for verdict in verdicts if verdict.status == status):
        worst = "" if verdict.share is None else share(verdict.share)
        shares = [verdict.agreement, *[verdict.accuracy] * tested]
        status = Text(verdict.status, COLOURS[verdict.status])
        words = (one.words() if one else "" for one in shares)
        turned = f"{verdict.turn.largest:.2g}°" if verdict.turn else ""
        result.add_row(verdict.backend, verdict.file, verdict.precision, status, worst, *words, *[turned] * turns)
    if not tested:
        return result
    right = accuracy(samples.golden.reference.logit, samples.golden)
    result.add_row("reference", samples.name, "fp64", "", "", "", right.words() if right else "")
    return result


def status_lines(verdicts: Sequence[Verdict], by_name: bool) -> list[tuple[Status, str, list[str]]]:
    """Status, name and lines, in the order that a user wants to see them: what failed first.

    Those that were not run are put together by reason, and come last where no backend was asked for by name.
    """
    by_status: dict[Status, list[tuple[Status, str, list[str]]]] = {status: [] for status in COLOURS}
    for verdict in verdicts:
        if verdict.ran:
            by_status[verdict.status].append((verdict.status, verdict.key, verdict.lines()))
    for status in NOT_RUN:
        lacking = {verdict.key: "; ".join(verdict.reasons) for verdict in verdicts if verdict.status == status}
        by_status[status] = [(status, ", ".join(keys), [reason]) for reason, keys in by_reason(lacking)]
    order: tuple[Status, ...] = ("failed", *NOT_RUN, "passed") if by_name else ("failed", "passed", *NOT_RUN)
    return [line for status in order for line in by_status[status]]


def verdict(verdicts: Sequence[Verdict], samples: Samples, run: str | None) -> str:
    """The verdict in one line if nothing failed: what was compared, and without a `run` what was not proven."""
    counts = Counter(one.status for one in verdicts if one.is_of_file)
    others: dict[Status, str] = {"missing": "cannot run here", "untrusted": "can carry code and were not run"}
    rest = "".join(f"; {counts[status]} {words}" for status, words in others.items() if counts[status])
    plan, ran = samples.golden.plan, counts["passed"]
    if run:
        same = f"the plan of a calibration of {run}" if plan else f"the same network as {run}"
        return f"passed: {same}, and all {ran} that ran answer as it does {on_images(samples)}{rest}"
    whose = "the calibrated network's plan" if plan else "the trained network"
    unproven = " or that they answer other images so (--dataset DATA)" if samples.name == GOLDEN else ""
    return (
        f"passed: all {ran} that ran answer as {whose} does {on_images(samples)}{rest}; not proven: that they are of a "
        f"training run (--run RUN){unproven}"
    )


def on_images(samples: Samples) -> str:
    """on 22 golden images; on 64 images of DATA, without the edge cases that are added."""
    count = len(samples.golden.rows)
    if samples.name == GOLDEN:
        return f"on {count} golden images"
    return f"on {count - samples.edge_cases:,} images of {samples.name}"


def make_report(
    bundle: Bundle,
    samples: Samples,
    verdicts: Sequence[Verdict],
    command: str,
    backends_named: bool,
    benchmark: Benchmark | None = None,
) -> ParityReport:
    """The whole; `backends_named` says whether backends were requested by name."""
    return ParityReport(
        schema=SCHEMA,
        bundle=bundle.manifest.name,
        source=bundle.manifest.source,
        manifest_sha256=bundle.manifest_sha256,
        network_sha256=bundle.manifest.network_sha256,
        files={one.file: one.sha256 for one in bundle.manifest.files},
        command=command,
        environment=environment(),
        images=Images(samples.name, len(samples.golden.rows), samples.edge_cases),
        by_name=backends_named,
        status=overall(verdicts, backends_named),
        reference=accuracy(samples.golden.reference.logit, samples.golden),
        backends={verdict.key: verdict for verdict in verdicts},
        benchmark=benchmark,
    )


def read_report(path: Path) -> ParityReport:
    """A report.json. It may contradict itself: see `ParityReport.contradictions`."""
    return records.load(ParityReport, path, "qcn verify-parity --report")


def read_baseline(path: Path, network: NetworkId, other_network: bool) -> ParityReport:
    """An earlier report.json, to compare with. One that contradicts itself is refused, and so is one of another
    network unless `other_network` allows it."""
    before = read_report(path)
    if wrong := before.contradictions():
        raise UsageError(f"{path} contradicts itself: {wrong[0]}")
    check_baseline_network(path, before.network, network, other_network)
    return before


def check_baseline(path: Path, before: ParityReport, now: ParityReport, by_name: bool) -> None:
    """Refuse to be worse than an earlier report, read from `path`: a backend that passed and does not any more, or an
    output that is off by more than `WORSE` times as many noise floors as then, and by more than one.

    What is not there any more is worse too, unless backends were requested `by_name`.
    """
    if not before.backends.keys() & now.backends.keys():
        raise UsageError(f"{path} has none of the backends that were compared now: {', '.join(now.backends)}")
    if worse := worse_answers(path, before, now, by_name):
        raise CheckFailed(f"worse than in {path}: {'; '.join(worse)}")


def worse_answers(path: Path, before: ParityReport, now: ParityReport, by_name: bool = False) -> list[str]:
    """Regressions against an earlier report, in words: see `check_baseline`."""
    if before.images.name != now.images.name:
        raise UsageError(
            f"{path} used the images '{before.images.name}', not '{now.images.name}': the two cannot be compared"
        )
    worse = []
    for key, then in before.backends.items():
        if key in now.backends:
            worse += _worse(key, then, now.backends[key])
        elif not by_name and then.status == "passed":
            worse.append(f"{key} passed, and is not there any more")
    return worse


def _worse(key: str, then: Verdict, now: Verdict) -> list[str]:
    if then.status == "passed" and now.status != "passed":
        return [f"{key} passed, and is {now.status}"]
    problems = []
    for name, errors in now.outputs.items():
        old = then.outputs.get(name)
        if old and errors.noise_floors > max(WORSE * old.noise_floors, 1.0):
            problems.append(f"{name} of {key} is off by {errors.max_abs:.2g}, and was by {old.max_abs:.2g}")
    return problems
