"""`qcn report merge`: the reports of many devices as one page and one record, and what drifted since a baseline.

A device is a folder that `qcn verify-parity --report` wrote on it, and has the folder's name. What a report says of
itself is not believed: every status follows from what was measured, and a report that contradicts itself has failed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from qcn.errors import CheckFailed, UsageError
from qcn.export.bundle.manifest import BundleSource
from qcn.pages.html import render
from qcn.storage import records
from qcn.storage.files import write_text
from qcn.terminal.text import command_line, counted
from qcn.verify import words
from qcn.verify.parity.compare import Share
from qcn.verify.parity.results import ParityReport, read_baseline, read_report, worse_answers
from qcn.verify.parity.verdict import NO_BACKENDS, Status, Verdict
from qcn.verify.report import charts, summary
from qcn.verify.report.files import FILTERS, HERE
from qcn.verify.speed.latency import Speed
from qcn.verify.speed.timings import increases

SCHEMA: Literal[2] = 2
REPORT = "report.json"


@dataclass(frozen=True)
class Figures:
    """A file in a backend, on one device; None where it is not known. Times and energy are of the smallest batch.

    share   of the allowed deviation that is used; None also where an answer is not finite
    """

    backend: str
    file: str
    precision: str
    status: Status
    right: Share | None
    share: float | None
    batch: int | None = None
    latency_ms: float | None = None
    unstable: bool = False
    energy_mj: float | None = None


@dataclass(frozen=True)
class DeviceReport:
    """What a device reported.

    status            by what its report measured; "missing" where there is none, or one that cannot be read
    manifest_sha256   of the bundle on the device
    reasons           why it did not pass, in words
    drift             what is worse than in the baseline, in words
    by_hand           tolerances that were set by hand, in words
    """

    name: str
    status: Status
    machine: str = ""
    command: str = ""
    manifest_sha256: str = ""
    backends: tuple[Figures, ...] = ()
    reasons: tuple[str, ...] = ()
    drift: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()

    @property
    def well(self) -> bool:
        return self.status == "passed" and not self.drift


@dataclass(frozen=True)
class FleetReport:
    """The record beside the page."""

    schema: Literal[2]
    bundle: str
    source: BundleSource
    network_sha256: str
    command: str
    baseline: str | None
    devices: tuple[DeviceReport, ...]


@dataclass(frozen=True)
class Merged:
    """The record, and the reports that it was made from, by device, each verdict as it is counted."""

    fleet: FleetReport
    reports: dict[str, ParityReport]


def merge(
    folders: Sequence[Path], baseline: Path | None, allowed: float, command: str, other_network: bool = False
) -> Merged:
    """The reports in these folders; `allowed` is how much slower a device may be than in the baseline (0.1: 10 %).

    `other_network` allows a baseline of another network.
    """
    names = [folder.absolute().name for folder in folders]
    if twice := [name for name in names if names.count(name) > 1]:
        both = " and ".join(str(folder) for folder in folders if folder.absolute().name == twice[0])
        raise UsageError(f"the device {twice[0]} is given twice: {both}; name each folder after its device")
    reports: dict[str, ParityReport] = {}
    unread: dict[str, str] = {}
    for name, folder in zip(names, folders, strict=True):
        try:
            reports[name] = read_report(folder / REPORT)
        except UsageError as error:
            unread[name] = f"it has no report that can be read: {error}"
            if not (folder / REPORT).exists():
                make = command_line("qcn", "verify-parity", "BUNDLE", "--report", folder)
                unread[name] = f"there is no {folder / REPORT}: {make}, on the device"
    if not reports:
        raise UsageError(f"none of these devices has a report: {next(iter(unread.values()))}")
    _check_same(reports)
    wrong = {name: report.contradictions() for name, report in reports.items()}
    reports = {name: _as_counted(report) for name, report in reports.items()}
    drifted = _drift(reports, baseline, allowed, other_network) if baseline else {}
    unread |= dict.fromkeys(drifted.keys() - set(names), "it is in the baseline, and has no report now")
    devices = [
        _device(name, reports[name], wrong[name], drifted.get(name, []))
        if name in reports
        else DeviceReport(name, "missing", reasons=(unread[name],))
        for name in dict.fromkeys((*names, *sorted(unread)))
    ]
    first = next(iter(reports.values()))
    against = str(baseline) if baseline else None
    fleet = FleetReport(SCHEMA, first.bundle, first.source, first.network_sha256, command, against, tuple(devices))
    return Merged(fleet, reports)


def conclude(fleet: FleetReport) -> None:
    """Raise what the command must end with, unless every device is well."""
    if wrong := [device for device in fleet.devices if not device.well]:
        first = wrong[0]
        why = (*first.reasons, *first.drift, f"its report is {first.status}")[0]
        raise CheckFailed(f"{headline(fleet)} {', '.join(one.name for one in wrong)}: {why}")


def headline(fleet: FleetReport) -> str:
    """The result in one sentence."""
    count = len(fleet.devices)
    failed = sum(device.status == "failed" for device in fleet.devices)
    unchecked = sum(device.status in ("missing", "untrusted") for device in fleet.devices)
    worse = sum(device.status == "passed" and not device.well for device in fleet.devices)
    parts = [f"{failed} failed"] * bool(failed)
    parts += [f"{unchecked} {'was' if unchecked == 1 else 'were'} not checked"] * bool(unchecked)
    parts += [f"{worse} {'is' if worse == 1 else 'are'} worse than in the baseline"] * bool(worse)
    if parts:
        return f"Of {counted(count, 'device')}, {' and '.join(parts)}."
    every = "Every device answers" if count > 1 else "The device answers"
    by_hand = [device.name for device in fleet.devices if device.by_hand]
    within = f", within tolerances that were set by hand on {', '.join(by_hand)}" if by_hand else ""
    before = ", and none is worse than before" if fleet.baseline else ""
    return f"{every} as the trained network does{within}{before}."


def write(path: Path, merged: Merged) -> list[Path]:
    """Write the page, and the record beside it; returns their paths."""
    record = path.with_suffix(".json")
    records.write(record, merged.fleet)
    write_text(path, page(merged, record.name))
    return [record, path]


def page(merged: Merged, record: str) -> str:
    """The HTML."""
    fleet, reports = merged.fleet, merged.reports
    first = next(iter(reports.values()))
    timed = [(name, speed) for name, report in reports.items() for speed in _fastest(report) if speed.batch == 1]
    timed.sort(key=lambda pair: pair[1].median or 0.0)
    strips, ticks = charts.latency_strips([speed.latency_ms for _, speed in timed if speed.latency_ms])
    lacking = {
        f"{name}: {one.key}": "; ".join(one.reasons)
        for name, report in reports.items()
        for one in report.backends.values()
        if not one.ran
    }
    return render(
        HERE / "merge.html.jinja",
        filters=FILTERS,
        fleet=fleet,
        headline=headline(fleet),
        tone="passed" if all(device.well for device in fleet.devices) else "failed",
        data=summary.basis(list(reports.values())),
        baseline=fleet.baseline,
        tiles=_tiles(fleet, timed),
        devices=[
            (device, [one for one in device.backends if one.status in ("passed", "failed")]) for device in fleet.devices
        ],
        metered=any(one.energy_mj is not None for device in fleet.devices for one in device.backends),
        show_accuracy=first.images.show_accuracy,
        reference=summary.rate(first.reference if first.images.show_accuracy else None),
        strips=[(name, speed, place) for (name, speed), place in zip(timed, strips, strict=True)],
        ticks=ticks,
        missing=words.by_reason(lacking),
        record=record,
    )


def _tiles(fleet: FleetReport, timed: Sequence[tuple[str, Speed]]) -> list[tuple[str, str, str]]:
    """Tiles: name, value, note."""
    well = sum(device.status == "passed" for device in fleet.devices)
    result = [("devices that passed", f"{well} of {len(fleet.devices)}", "every backend that ran on them did")]
    used = [(one.share, device, one) for device in fleet.devices for one in device.backends if one.share is not None]
    if used:
        share, device, one = max(used, key=lambda of: of[0])
        result.append(("allowed deviation used", words.share(share), f"at most, by {one.backend} on {device.name}"))
    if timed:
        name, speed = timed[0]
        result.append(("fastest, one image", words.milliseconds(speed.median or 0.0), f"{speed.backend} on {name}"))
    metered = [(one.energy_mj, device, one) for device in fleet.devices for one in device.backends if one.energy_mj]
    if metered:
        energy, device, one = min(metered, key=lambda of: of[0] or 0.0)
        result.append(("least energy", f"{words.amount(energy or 0.0)} mJ", f"{one.backend} on {device.name}"))
    if fleet.baseline:
        result.append(("worse than before", str(sum(bool(one.drift) for one in fleet.devices)), "devices"))
    return result


def _check_same(reports: Mapping[str, ParityReport]) -> None:
    """Refuse reports of different networks, or on other images: their rows would not be comparable."""
    (name, first), *others = reports.items()
    for path, report in others:
        if report.network_sha256 != first.network_sha256:
            raise UsageError(
                f"{path} is a report on another network than {name}: {report.network}, not {first.network}; merge "
                f"reports of one network only"
            )
        if report.images != first.images:
            raise UsageError(
                f"{path} was checked on {summary.images(report.images)}, and {name} on {summary.images(first.images)}"
            )


def _as_counted(report: ParityReport) -> ParityReport:
    """The report, with verdicts that contradict their measurements marked as failed."""
    counted = {
        key: replace(one, status="failed", reasons=(why,)) if (why := one.contradiction()) else one
        for key, one in report.backends.items()
    }
    return replace(report, backends=counted)


def _device(name: str, report: ParityReport, wrong: Sequence[str], drift: Sequence[str]) -> DeviceReport:
    """What a device reported; `wrong` is what its report contradicts itself in."""
    status = "failed" if wrong else report.status
    backends = list(report.backends.values())
    why = [f"{one.key}: {one.reasons[0]}" for one in backends if one.status == status and one.reasons]
    if status != "passed" and not (wrong or why):
        why = ["nothing was measured"]
    return DeviceReport(
        name=name,
        status=status,
        machine=summary.machine(report.environment),
        command=report.command,
        manifest_sha256=report.manifest_sha256,
        backends=tuple(_figures(one, report) for one in backends if one.backend not in NO_BACKENDS),
        reasons=tuple(dict.fromkeys((*wrong, *why))),
        drift=tuple(drift),
        by_hand=tuple(report.tolerances_by_hand()),
    )


def _figures(verdict: Verdict, report: ParityReport) -> Figures:
    share = verdict.share if verdict.share is not None and math.isfinite(verdict.share) else None
    about = (verdict.backend, verdict.file, verdict.precision)
    figures = (*about, verdict.status, verdict.accuracy, share)
    for speed in _fastest(report):
        if (speed.backend, speed.file, speed.precision) == about:
            return Figures(*figures, speed.batch, speed.median, speed.unstable, speed.energy_mj)
    return Figures(*figures)


def _fastest(report: ParityReport) -> list[Speed]:
    """Of each file in a backend the fastest way, at the smallest batch that was timed."""
    result: dict[tuple[str, str, str], Speed] = {}
    results = report.benchmark.results.values() if report.benchmark else ()
    for speed in sorted(results, key=lambda one: (one.batch, one.median or math.inf)):
        if speed.median is not None:
            result.setdefault((speed.backend, speed.file, speed.precision), speed)
    return list(result.values())


def _drift(
    reports: Mapping[str, ParityReport], baseline: Path, allowed: float, other_network: bool
) -> dict[str, list[str]]:
    """Regressions per device against a baseline folder; devices that are missing now count too."""
    if not baseline.is_dir():
        raise UsageError(
            f"{baseline} is not a folder: --baseline needs a folder with the earlier report folder of each device"
        )
    before = {path.parent.name: path for path in sorted(baseline.glob(f"*/{REPORT}"))}
    if not before.keys() & reports.keys():
        raise UsageError(f"{baseline} has no earlier report of {', '.join(reports)}: it contains no DEVICE/{REPORT}")
    return {
        name: _worse(path, reports[name], allowed, other_network) if name in reports else []
        for name, path in before.items()
    }


def _worse(path: Path, now: ParityReport, allowed: float, other_network: bool) -> list[str]:
    """Regressions of one device against its earlier report in `path`: answers, accuracy, latency, energy."""
    before = read_baseline(path, now.network, other_network)
    problems = worse_answers(path, before, now)
    for key, then in before.backends.items():
        result = now.backends[key].accuracy if key in now.backends else None
        if then.accuracy and result and result.right < then.accuracy.right:
            problems.append(
                f"{key} is right for {result.right} of {result.of} images, and was for {then.accuracy.right}"
            )
    old, new = (report.benchmark.results if report.benchmark else {} for report in (before, now))
    for figure, more in (("median", "slower"), ("energy_mj", "more energy")):
        then_, now_ = ({key: getattr(one, figure) for key, one in of.items()} for of in (old, new))
        problems += [
            f"{key}: {100 * by:.0f} % {more}, and {100 * allowed:.0f} % is allowed"
            for key, by in increases(then_, now_, allowed).items()
        ]
    return problems
