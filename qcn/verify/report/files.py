"""The report of `qcn verify-parity` and `qcn ship-check`: report.json for programs, junit.xml for CI, report.html.

The page is one file that asks nothing of any network and runs no script. What it says comes from a bundle, which may be
of unknown origin, so every word is escaped (`qcn.pages.html`). `charts` computes the charts, report.html.jinja and
charts.html.jinja lay them out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.pages.html import render
from qcn.storage import records
from qcn.storage.files import write_text
from qcn.verify import words
from qcn.verify.parity.compare import Flip
from qcn.verify.parity.results import ParityReport
from qcn.verify.parity.verdict import NO_BACKENDS, Verdict
from qcn.verify.report import charts, summary
from qcn.verify.report.answers import Answer
from qcn.verify.report.heat import heat_map
from qcn.verify.report.junit import junit
from qcn.verify.report.pictures import data_uri
from qcn.verify.ship.outcome import Ship
from qcn.verify.speed.latency import Speed
from qcn.verify.speed.timings import FIGURES, Benchmark

HERE = Path(__file__).parent
FILTERS: dict[str, Callable[..., Any]] = {
    "milliseconds": words.milliseconds,
    "share": words.share,
    "share_of_allowed": words.share_of_allowed,
    "tiny": words.tiny,
    "rate": summary.rate,
}
SHOWN = 60  # flips with their picture; the rest are counted


@dataclass(frozen=True)
class ErrorCharts:
    """How far an output is off, and the backends whose chart this is, each with its worst value in words."""

    output: str
    chart: charts.Chart
    backends: list[tuple[str, str]]


@dataclass(frozen=True)
class FlippedImage:
    """An image that some backends put into another class, with its picture if there is one."""

    row: str
    picture: str
    expected: str
    margin: str
    tie: bool
    found: list[tuple[str, str]]  # the class, and the backends that say so


@dataclass(frozen=True)
class BatchSpeeds:
    """All that was timed at one batch, fastest first; `columns` are headings and cells."""

    batch: int
    rows: list[Speed]
    columns: list[tuple[str, list[str]]]
    strips: list[charts.Strip]
    ticks: tuple[charts.Tick, ...]
    charts: list[charts.Chart | None]


def write(
    folder: Path,
    report: ParityReport,
    images: Mapping[str, NDArray[np.uint8]],
    ship: Ship | None = None,
    answers: Sequence[Answer] = (),
) -> list[Path]:
    """Write the files and return their paths. `images` [C, H, W], by their rows' names, are for the flips.

    Beside report.json, junit.xml and report.html there is a ship.json where limits were checked.
    """
    record, checks, html = (folder / name for name in ("report.json", "junit.xml", "report.html"))
    records.write(record, report)
    limits = [folder / "ship.json"] if ship else []
    for path in limits:
        records.write(path, ship)
    write_text(checks, junit(report, ship))
    write_text(html, page(report, images, ship, answers))
    return [record, *limits, checks, html]


def page(
    report: ParityReport,
    images: Mapping[str, NDArray[np.uint8]],
    ship: Ship | None = None,
    answers: Sequence[Answer] = (),
) -> str:
    """The HTML."""
    verdicts = summary.in_order(report)
    ran = [verdict for verdict in verdicts if verdict.ran]
    lacking = {verdict.key: "; ".join(verdict.reasons) for verdict in verdicts if not verdict.ran}
    commands = list(dict.fromkeys([report.command, *([report.benchmark.command] if report.benchmark else [])]))
    return render(
        HERE / "report.html.jinja",
        filters=FILTERS,
        bundle=report.bundle,
        verdict=summary.headline(verdicts),
        ship=ship,
        machine=summary.machine(report.environment),
        data=summary.basis([report]),
        tiles=summary.ship_tiles(ship, report) if ship else summary.tiles(report),
        rows=ran,
        missing=words.by_reason(lacking),
        show_accuracy=report.images.show_accuracy,
        show_turns=any(verdict.turn for verdict in report.backends.values()),
        reference=summary.rate(report.reference if report.images.show_accuracy else None),
        speeds=_speeds(report.benchmark),
        errors=_errors(ran),
        notes=_shared_notes(ran),
        heat=[grid for grid in map(heat_map, ran) if grid],
        closed=words.by_reason({verdict.key: verdict.inside for verdict in ran if verdict.inside}),
        flips=_flips(ran, images),
        environment=_flat({**asdict(report.environment), "packages": None}) + [*report.environment.packages.items()],
        source=_flat(asdict(report.source)),
        answers=answers,
        commands=commands,
    )


def _shared_notes(ran: Sequence[Verdict]) -> list[str]:
    """Notes that every backend has: they are said once."""
    backends = [verdict for verdict in ran if verdict.backend not in NO_BACKENDS]
    return [note for note in backends[0].notes if all(note in of.notes for of in backends)] if backends[1:] else []


def _errors(ran: Sequence[Verdict]) -> list[ErrorCharts]:
    """One chart for all backends that it is the same for: a reader who sees two looks for a difference."""
    axis = charts.error_axis([errors for verdict in ran for errors in verdict.outputs.values()])
    result: dict[tuple[str, tuple[charts.HistogramBar, ...]], ErrorCharts] = {}
    for verdict in ran:
        for name, errors in verdict.outputs.items():
            if errors.share and (chart := charts.error_chart(errors, axis)):  # what is exact has no distribution
                drawn = result.setdefault((name, chart.bars), ErrorCharts(name, chart, []))
                drawn.backends.append((verdict.key, words.share(errors.share)))
    return list(result.values())


def _flips(ran: Sequence[Verdict], images: Mapping[str, NDArray[np.uint8]]) -> list[FlippedImage]:
    """By image: the same one often changes in several backends."""
    by_row: dict[str, list[tuple[str, Flip]]] = {}
    for verdict in ran:
        for flip in verdict.flips:
            by_row.setdefault(flip.row, []).append((verdict.key, flip))
    result = []
    for row, pairs in list(by_row.items())[:SHOWN]:
        first = pairs[0][1]
        by_class: dict[str, list[str]] = {}
        for key, flip in pairs:
            by_class.setdefault(flip.found, []).append(key)
        picture = data_uri(images[row]) if row in images else ""
        answers = [(name, ", ".join(keys)) for name, keys in by_class.items()]
        tie = all(flip.tie for _, flip in pairs)
        result.append(FlippedImage(row, picture, first.expected, f"{first.margin:.3g}", tie, answers))
    return result


def _speeds(benchmark: Benchmark | None) -> list[BatchSpeeds]:
    measured = [speed for speed in benchmark.results.values() if speed.latency_ms] if benchmark else []
    result = []
    for batch in dict.fromkeys(speed.batch for speed in measured):
        rows = sorted((speed for speed in measured if speed.batch == batch), key=lambda speed: speed.median or 0.0)
        strips, ticks = charts.latency_strips([speed.latency_ms for speed in rows if speed.latency_ms])
        drawn = [charts.latency_chart(speed.histogram) if speed.histogram else None for speed in rows]
        result.append(BatchSpeeds(batch, rows, _columns(rows), strips, ticks, drawn))
    return result


def _columns(rows: Sequence[Speed]) -> list[tuple[str, list[str]]]:
    """Headings and cells; empty columns are left out."""

    def cell(value: float | None, unit: str) -> str:
        if value is None:
            return "–"
        return words.milliseconds(value) if unit == "ms" else f"{words.amount(value)} {unit}".strip()

    columns = [(heading, [cell(figure(row), unit) for row in rows]) for _, heading, unit, figure in FIGURES]
    return [(heading, cells) for heading, cells in columns if any(cell != "–" for cell in cells)]


def _flat(value: Any, above: str = "") -> list[tuple[str, str]]:
    """A nested record as names and values, without unknown ones."""
    if isinstance(value, dict):
        inner = [(f"{above} {key}".strip().replace("_", " "), item) for key, item in value.items()]
        return [pair for name, item in inner for pair in _flat(item, name)]
    return [] if value in (None, "") else [(above, str(value))]
