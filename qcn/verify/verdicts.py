"""What `qcn verify-parity` found: as a table, as a record for report.json, and against an earlier one.

The record:

    schema, bundle, source, command, environment
    data        name, images, edge_cases
    status      of the whole: see `qcn.verify.parity.overall`
    reference   accuracy: right, of, low, high (95 %, Wilson's), of the images that have a label
    backends    by "BACKEND: FILE": what `qcn.verify.parity.Verdict` has, and
                outputs    by name: what `qcn.verify.compare.Errors` has, the histogram with its edges
                stages     layer, iteration, quantity, max_abs, noise_floor_multiple, tolerance, passed, range

A number that is not finite is written by its name, "nan" or "inf" (`qcn.verify.records.strict`).
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from qcn.errors import CheckFailed, UsageError
from qcn.export.bundle import Bundle
from qcn.verify.compare import EDGES, Errors, accuracy
from qcn.verify.machine import environment
from qcn.verify.parity import Verdict, overall
from qcn.verify.records import by_reason, number
from qcn.verify.samples import Samples
from qcn.verify.trace import Stage

SCHEMA = 1
COLOURS = {"failed": "red", "missing": "yellow", "passed": "green"}
WORSE = 2.0  # times as many noise floors as before; and more than one: less is float32's own


def table(verdicts: list[Verdict], samples: Samples) -> Table:
    """One line for each that ran, those that failed first; the reference's own accuracy last."""
    shown = Table(box=None)
    for heading in ("backend", "file", "status", "noise floors", "same class", "accuracy"):
        shown.add_column(heading, overflow="fold")
    for verdict in (verdict for status in ("failed", "passed") for verdict in verdicts if verdict.status == status):
        worst = "" if verdict.worst is None else f"{verdict.worst:.3g}"
        shares = (share.words() if share else "" for share in (verdict.agreement, verdict.accuracy))
        colour = COLOURS[verdict.status]
        shown.add_row(verdict.backend, verdict.file, Text(verdict.status, colour), worst, *shares)
    right = accuracy(samples.golden.reference.activation, samples.golden)
    shown.add_row("reference", f"float64, {samples.name}", "", "", "", right.words() if right else "")
    return shown


def told(verdicts: list[Verdict], asked: bool) -> list[tuple[str, str, list[str]]]:
    """Status, name and lines, in the order that a user wants to see them: what failed first.

    Those that this machine lacks are put together by reason, and come last where no backend was asked for by name.
    """
    failed, passed = (
        [(status, one.key, one.lines()) for one in verdicts if one.status == status] for status in ("failed", "passed")
    )
    lacking = {one.key: "; ".join(one.reasons) for one in verdicts if one.status == "missing"}
    missing = [("missing", ", ".join(keys), [reason]) for reason, keys in by_reason(lacking)]
    return [*failed, *missing, *passed] if asked else [*failed, *passed, *missing]


def record(bundle: Bundle, samples: Samples, verdicts: list[Verdict], command: str, asked: bool) -> dict[str, Any]:
    """The whole; `asked` says whether backends were asked for by name."""
    classes = bundle.manifest.classes
    right = accuracy(samples.golden.reference.activation, samples.golden)
    return {
        "schema": SCHEMA,
        "bundle": bundle.manifest.name,
        "source": asdict(bundle.manifest.source),
        "command": command,
        "environment": environment(),
        "data": {"name": samples.name, "images": len(samples.golden.rows), "edge_cases": samples.edge_cases},
        "status": overall(verdicts, asked),
        "reference": {"accuracy": right and asdict(right)},
        "backends": {verdict.key: _of_verdict(verdict, classes) for verdict in verdicts},
    }


def _of_verdict(verdict: Verdict, classes: tuple[str, ...]) -> dict[str, Any]:
    return {
        **asdict(verdict),
        "outputs": {name: _of_errors(errors) for name, errors in verdict.outputs.items()},
        "stages": [_of_stage(stage) for stage in verdict.stages],
        "flips": [
            {**asdict(flip), "expected_name": classes[flip.expected], "found_name": classes[flip.found]}
            for flip in verdict.flips
        ],
    }


def _of_errors(errors: Errors) -> dict[str, Any]:
    return {
        **asdict(errors),
        "passed": errors.passed,
        "histogram": {"edges": list(EDGES), "counts": list(errors.histogram)},
    }


def _of_stage(stage: Stage) -> dict[str, Any]:
    errors = stage.errors
    return {
        "layer": stage.layer,
        "iteration": stage.iteration,
        "quantity": stage.quantity,
        "max_abs": errors and errors.max_abs,
        "noise_floor_multiple": errors and errors.noise_floor_multiple,
        "tolerance": errors and errors.tolerance,
        "passed": stage.passed,
        "range": {**asdict(stage.range), "note": "" if stage.passed else stage.words()},
    }


@dataclass(frozen=True)
class Baseline:
    """Of an earlier report.json: where it was read, the name of its images, its backends."""

    path: Path
    data: str
    backends: dict[str, Any]


def read_baseline(path: Path) -> Baseline:
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        return Baseline(path, before["data"]["name"], dict(before["backends"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path} is not a report of `qcn verify-parity`: {error!r}") from error


def check_baseline(before: Baseline, now: dict[str, Any], asked: bool) -> None:
    """Refuse to be worse than an earlier report.json: a backend that passed and does not any more, or an output that is
    off by more than `WORSE` times as many noise floors as then, and by more than one.

    What is not there any more is worse too, unless backends were `asked` for by name.
    """
    path, data, backends = before.path, before.data, before.backends
    gone = None if asked else {"status": "not there any more", "outputs": {}}
    try:
        worse = [line for key, then in backends.items() for line in _worse(key, then, now["backends"].get(key, gone))]
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not a report of `qcn verify-parity`: {error!r}") from error
    if data != now["data"]["name"]:
        raise UsageError(f"{path} is of the images '{data}', not of '{now['data']['name']}': they cannot be compared")
    if not backends.keys() & now["backends"].keys():
        raise UsageError(f"{path} has none of what was compared now: {', '.join(now['backends'])}")
    if worse:
        raise CheckFailed(f"worse than in {path}: {'; '.join(worse)}")


def _worse(key: str, then: dict[str, Any], now: dict[str, Any] | None) -> list[str]:
    if now is None:
        return []  # it was not asked for this time
    if then["status"] == "passed" and now["status"] != "passed":
        return [f"{key} passed, and is {now['status']}"]
    said = []
    for name, errors in now["outputs"].items():
        old, new = (number(of.get("noise_floor_multiple")) for of in (then["outputs"].get(name, {}), errors))
        if old is not None and new is not None and new > max(WORSE * old, 1.0):
            said.append(f"{name} of {key} is off by {new:.3g} noise floors, and was by {old:.3g}")
    return said
