"""What `qcn benchmark` found, as a table, as a JSON file, and against an earlier one.

    schema, bundle, command     the file's version (2), the bundle's name, the command that repeats it
    plan, machine               how long was measured; what it was measured on, as `qcn.verify.machine` finds it
    results                     by "BACKEND: FILE[, VARIANT], batch N" the fields of `qcn.verify.latency.Speed`

Strict JSON: what is not known is null.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from qcn.errors import CheckFailed, UsageError
from qcn.export.bundle import Bundle
from qcn.files import write_text
from qcn.verify.latency import Plan, Speed
from qcn.verify.machine import environment
from qcn.verify.records import number, part

SCHEMA = 2
PERCENTILES = ("p50", "p90", "p95", "p99")


def table(speeds: Iterable[Speed], batch: int) -> Table:
    """Those of one batch that were measured; a column that would be empty is left out."""
    shown = [speed for speed in speeds if speed.batch == batch and not speed.missing]
    columns: dict[str, list[str]] = {
        "backend": [speed.backend for speed in shown],
        "file": [speed.file for speed in shown],
        "open": [_short(getattr(speed.cold, "open_ms", None)) for speed in shown],
        "first": [_short(getattr(speed.cold, "first_answer_ms", None)) for speed in shown],
        **{name: [_short(speed.latency_ms[name]) for speed in shown] for name in PERCENTILES},
        "compute": [_short(speed.compute_ms.get("p50")) for speed in shown],
        "images/s": [_short(speed.images_per_second) for speed in shown],
        "MiB": [_short(getattr(speed.cold, "host_mib", None)) for speed in shown],
        "GPU MiB": [_short(getattr(speed.cold, "device_mib", None)) for speed in shown],
        "mJ": [_short(speed.energy_mj) for speed in shown],
        "": [", ".join(filter(None, (speed.variant, "unstable" if speed.unstable else ""))) for speed in shown],
    }
    made = Table(box=None, title=f"batch {batch}", title_justify="left", title_style="bold")
    kept = {heading: cells for heading, cells in columns.items() if any(cells)}
    for heading in kept:
        left = heading in ("backend", "file", "")
        made.add_column(heading, justify="left" if left else "right", overflow="fold", no_wrap=not left)
    for row in zip(*kept.values(), strict=True):
        made.add_row(*row)
    return made


def _short(value: float | None) -> str:
    """Three digits, and whole numbers from a hundred on."""
    return "" if value is None else f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def as_record(bundle: Bundle, plan: Plan, speeds: list[Speed], command: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "bundle": bundle.manifest.name,
        "command": command,
        "plan": asdict(plan),
        "machine": environment(),
        "results": {speed.key: asdict(speed) for speed in speeds},
    }


def write_json(path: Path, record: dict[str, Any]) -> None:
    write_text(path, json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The record that `qcn benchmark --json` wrote."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a result of `qcn benchmark`: {error!r}") from error
    if not isinstance(record, dict) or not isinstance(record.get("results"), dict):
        raise UsageError(f"{path} is not a result of `qcn benchmark`: it has no results")
    return record


def read_medians(path: Path) -> dict[str, float]:
    """Milliseconds by key, of an earlier JSON file."""
    medians = {}
    for key, speed in read_json(path)["results"].items():
        if not part(speed, "missing"):
            median = number(part(part(speed, "latency_ms"), "p50"))
            if median is None or median <= 0:
                raise UsageError(f"{path} is not a result of `qcn benchmark`: '{key}' has no median latency")
            medians[key] = median
    return medians


def check_regression(path: Path, medians: Mapping[str, float], speeds: list[Speed], allowed: float) -> None:
    """Refuse medians that are more than `allowed` (0.1: ten per cent) over those read from `path` earlier."""
    now = {speed.key: speed.latency_ms["p50"] for speed in speeds if not speed.missing}
    if not medians.keys() & now.keys():
        raise UsageError(f"{path} has nothing that was measured now: {', '.join(now) or 'nothing was'}")
    slower = {key: now[key] / medians[key] - 1 for key in now if key in medians}
    if late := {key: by for key, by in slower.items() if by > allowed}:
        said = "; ".join(f"{key} is {by:.0%} slower" for key, by in late.items())
        raise CheckFailed(f"{said} than in {path}, and {allowed:.0%} is allowed")
