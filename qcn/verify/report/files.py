"""The report of `qcn verify-parity`: report.json for programs, junit.xml for CI, report.html for people.

The page is one file that asks nothing of any network and runs no script. What it says comes from a bundle, which may be
of unknown origin, so every word is escaped (Jinja's autoescape) and everything missing is left out. `charts`
computes the charts, report.html.jinja and charts.html.jinja lay them out, report.css paints.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray

import qcn
from qcn.files import write_text
from qcn.verify.records import by_reason, entries, listed, number, part, strict, text
from qcn.verify.report import charts, summary
from qcn.verify.report.heat import heat_map
from qcn.verify.report.junit import junit
from qcn.verify.report.pictures import data_uri

HERE = Path(__file__).parent
SHOWN = 60  # flips with their picture; the rest are counted


@dataclass(frozen=True)
class Errors:
    """A backend's histograms, by output."""

    key: str
    outputs: list[tuple[str, charts.Histogram, str]]


@dataclass(frozen=True)
class Flip:
    """An image that some backends put into another class, with its picture if there is one."""

    row: str
    picture: str
    expected: str
    margin: str
    tie: bool
    found: list[tuple[str, str]]  # the class, and the backends that say so


@dataclass(frozen=True)
class Speeds:
    """All that was timed at one batch."""

    batch: str
    rows: list[dict[str, Any]]
    columns: list[tuple[str, list[str]]]
    strips: list[charts.Strip | None]
    ticks: tuple[charts.Tick, ...]
    histograms: list[charts.Histogram | None]


def write(
    folder: Path,
    record: Mapping[str, Any],
    images: Mapping[str, NDArray[np.uint8]],
    benchmark: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write the three files and return their paths.

    record      what `qcn.verify.verdicts.record` gives
    images      uint8 [C, H, W] by the name of the row, for the flips' pictures
    benchmark   what `qcn benchmark --json` wrote
    """
    whole = strict({**record, **({"benchmark": benchmark} if benchmark else {})})
    paths = [folder / name for name in ("report.json", "junit.xml", "report.html")]
    contents = (
        json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        junit(whole),
        page(whole, images),
    )
    for path, content in zip(paths, contents, strict=True):
        write_text(path, content)
    return paths


def page(record: Mapping[str, Any], images: Mapping[str, NDArray[np.uint8]]) -> str:
    """The HTML."""
    backends = entries(record.get("backends"))
    rows = summary.table(record)
    ran = {row.key: backends[row.key] for row in rows if row.status != "missing"}
    return (
        _templates()
        .get_template("report.html.jinja")
        .render(
            css=(HERE / "report.css").read_text(encoding="utf-8"),
            record=record,
            bundle=str(record.get("bundle") or "bundle"),
            verdict=summary.verdict(rows),
            data=summary.images(record.get("data")),
            tiles=summary.tiles(rows, record),
            rows=[row for row in rows if row.status != "missing"],
            missing=by_reason({row.key: "; ".join(row.reasons) for row in rows if row.status == "missing"}),
            reference=summary.rate(part(record.get("reference"), "accuracy")),
            speeds=_speeds(record.get("benchmark")),
            errors=_errors(ran),
            heat=[one for one in (heat_map(key, verdict) for key, verdict in ran.items()) if one],
            closed=by_reason({key: str(verdict["inside"]) for key, verdict in ran.items() if verdict.get("inside")}),
            flips=_flips(ran, images),
            environment=_flat(record.get("environment")),
            source=_flat(record.get("source")),
            commands=[str(one) for one in (record.get("command"), part(record.get("benchmark"), "command")) if one],
            version=qcn.__version__,
            made=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        )
    )


@cache
def _templates() -> Environment:
    loader = FileSystemLoader(HERE, encoding="utf-8")
    found = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    found.filters |= {"short": text, "share": summary.share_words}
    return found


def _errors(ran: Mapping[str, dict[str, Any]]) -> list[Errors]:
    outputs = {key: entries(verdict.get("outputs")) for key, verdict in ran.items()}
    axis = charts.error_axis([one for of in outputs.values() for one in of.values()])
    found = []
    for key, of in outputs.items():
        drawn = [(name, charts.error_histogram(errors, axis), errors) for name, errors in of.items()]
        shown = [
            (name, chart, f"worst {charts.floors(number(errors.get('noise_floor_multiple')))}")
            for name, chart, errors in drawn
            if chart and errors.get("noise_floor_multiple") != 0  # what is exact has no distribution
        ]
        found += [Errors(key, shown)] if shown else []
    return found


def _flips(ran: Mapping[str, dict[str, Any]], images: Mapping[str, NDArray[np.uint8]]) -> list[Flip]:
    """By image: the same one often changes in several backends."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for key, verdict in ran.items():
        for flip in listed(verdict.get("flips")):
            found.setdefault(str(flip.get("row")), []).append((key, flip))
    flips = []
    for row, pairs in list(found.items())[:SHOWN]:
        first = pairs[0][1]
        by_class: dict[str, list[str]] = {}
        for key, flip in pairs:
            by_class.setdefault(_class(flip, "found"), []).append(key)
        picture = data_uri(images[row]) if row in images else ""
        answers = [(name, ", ".join(keys)) for name, keys in by_class.items()]
        margin, tie = text(first.get("margin")), all(bool(flip.get("tie")) for _, flip in pairs)
        flips.append(Flip(row, picture, _class(first, "expected"), margin, tie, answers))
    return flips


def _class(flip: Mapping[str, Any], which: str) -> str:
    return str(flip.get(f"{which}_name") or f"class {flip.get(which)}")


def _speeds(benchmark: object) -> list[Speeds]:
    measured = [one for one in entries(part(benchmark, "results")).values() if not one.get("missing")]
    found = []
    for batch in dict.fromkeys(str(one.get("batch")) for one in measured):
        rows = [one for one in measured if str(one.get("batch")) == batch]
        rows.sort(key=lambda one: number(part(one.get("latency_ms"), "p50")) or 0.0)
        strips, ticks = charts.latency_strips(rows)
        found.append(
            Speeds(batch, rows, _columns(rows), strips, ticks, [charts.latency_histogram(one) for one in rows])
        )
    return found


def _columns(rows: list[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """Heading and cells; a column of which nothing is known is left out."""

    def read(group: str, name: str, write: Callable[[float], str]) -> list[str]:
        inner = [row.get(group) if group else row for row in rows]
        values = [number(one.get(name)) if isinstance(one, dict) else None for one in inner]
        return ["–" if value is None else write(value) for value in values]

    def amount(unit: str) -> Callable[[float], str]:
        return lambda value: f"{value:,.0f}{unit}" if value >= 100 else f"{value:.3g}{unit}"

    columns = [(name, read("latency_ms", name, charts.milliseconds)) for name in ("p50", "p90", "p95", "p99")]
    columns += [
        ("without transfers", read("compute_ms", "p50", charts.milliseconds)),
        ("images/s", read("", "images_per_second", amount(""))),
        ("load", read("cold", "open_ms", charts.milliseconds)),
        ("first answer", read("cold", "first_answer_ms", charts.milliseconds)),
        ("memory", read("cold", "host_mib", amount(" MiB"))),
        ("GPU memory", read("cold", "device_mib", amount(" MiB"))),
        ("energy", read("", "energy_mj", amount(" mJ"))),
    ]
    return [(heading, cells) for heading, cells in columns if any(cell != "–" for cell in cells)]


def _flat(value: object, above: str = "") -> list[tuple[str, str]]:
    """A nested object as names and values, without what is not known."""
    if isinstance(value, dict):
        inner = [(f"{above} {key}".strip().replace("_", " "), one) for key, one in value.items()]
        return [pair for name, one in inner for pair in _flat(one, name)]
    if value is None or value == "":
        return []
    return [(above, ", ".join(map(str, value)) if isinstance(value, list) else str(value))]
