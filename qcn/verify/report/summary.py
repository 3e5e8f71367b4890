"""What a report says first: the verdict in plain words, the figures one wants at once, and a line for each backend."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qcn.verify.records import entries, number, part, text, texts
from qcn.verify.report import charts

ORDER = {"failed": 0, "passed": 1, "missing": 2}
INPUT = "preprocessing"  # is among the verdicts, and is no backend


@dataclass(frozen=True)
class Row:
    """A backend in the table."""

    key: str
    backend: str
    file: str
    precision: str
    status: str
    runner: str
    reasons: list[str]
    worst: str
    share: float | None  # of what is allowed
    agreement: tuple[str, str]
    accuracy: tuple[str, str]
    degrees: str
    deterministic: bool
    first_wrong: str


def table(record: Mapping[str, Any]) -> list[Row]:
    """Failures first, what could not run last."""
    rows = [_row(key, verdict) for key, verdict in entries(record.get("backends")).items()]
    return sorted(rows, key=lambda row: ORDER.get(row.status, 0))


def _row(key: str, verdict: Mapping[str, Any]) -> Row:
    outputs = entries(verdict.get("outputs"))
    answers = {name: outputs[name] for name in ("activation", "pose") if name in outputs} or outputs
    shares = [_share(errors) for errors in answers.values()]
    worst = [number(errors.get("noise_floor_multiple")) for errors in answers.values()]
    finite = [value for value in worst if value is not None]
    return Row(
        key,
        str(verdict.get("backend") or key),
        str(verdict.get("file") or ""),
        str(verdict.get("precision") or ""),
        str(verdict.get("status") or "failed"),
        str(verdict.get("runner") or ""),
        texts(verdict.get("reasons")),
        charts.floors(max(finite) if len(finite) == len(worst) else None) if worst else "–",
        None if not shares or None in shares else max(share for share in shares if share is not None),
        rate(verdict.get("agreement")),
        rate(verdict.get("accuracy")),
        f"{degrees:.2g}°"
        if "pose" in outputs and (degrees := number(verdict.get("pose_degrees"))) is not None
        else "–",
        verdict.get("deterministic") is not False,
        str(verdict.get("first_wrong") or ""),
    )


def _share(errors: Mapping[str, Any]) -> float | None:
    worst, allowed = number(errors.get("max_abs")), number(errors.get("tolerance"))
    if worst == 0:
        return 0.0
    return number(worst / allowed) if worst is not None and allowed else None


def rate(value: object) -> tuple[str, str]:
    """21 of 21, and the interval: 84.5 to 100 %."""
    if not isinstance(value, dict) or not number(value.get("of")):
        return "–", ""
    low, high = number(value.get("low")), number(value.get("high"))
    interval = f"{100 * low:.1f} to {100 * high:.1f} %" if low is not None and high is not None else ""
    return f"{text(value.get('right'))} of {text(value.get('of'))}", interval


def verdict(rows: list[Row]) -> tuple[str, str]:
    """What it comes to, and in plain words."""
    ran = [row for row in rows if row.status != "missing" and row.backend != INPUT]
    wrong = [row for row in ran if row.status != "passed"]
    answers = "answer as the trained network does"
    if not ran:
        return "missing", "Nothing could be checked: no backend runs here."
    if wrong:
        of = f"{len(wrong)} of {len(ran)} backends {'does' if len(wrong) == 1 else 'do'}"
        return "failed", f"{of if len(ran) > 1 else 'The backend does'} not {answers}."
    if any(row.backend == INPUT and row.status == "failed" for row in rows):
        return "failed", "Pre-processing does not give the network what it was trained on."
    some = any(row.status == "missing" and row.backend != INPUT for row in rows)
    return "passed", f"Every backend{' that ran' if some else ''} answers{answers.removeprefix('answer')}."


def images(data: object) -> str:
    """What was looked at: 22 golden images, 6 of them edge cases."""
    if not isinstance(data, dict):
        return ""
    name, count, edge = data.get("name"), text(data.get("images")), number(data.get("edge_cases"))
    of = f"{count} golden images" if name == "golden" else f"{count} images of {name}"
    return of + (f", {edge:.0f} of them edge cases" if edge else "")


def tiles(rows: list[Row], record: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Of each a name, a value, a word on it."""
    rows = [row for row in rows if row.backend != INPUT]
    ran = [row for row in rows if row.status != "missing"]
    absent = f"{len(rows) - len(ran)} more cannot run here" if len(rows) > len(ran) else "all that were asked for"
    found = [("backends that passed", f"{sum(row.status == 'passed' for row in ran)} of {len(ran)}", absent)]
    shares = {row.key: row.share for row in ran if row.share is not None}
    if shares and len(shares) == len(ran):
        worst = max(shares, key=shares.__getitem__)
        value, rest = share_words(shares[worst])
        found.append(("largest error", value, f"{rest} what is allowed: {worst}"))
    if ran:
        flips = [verdict.get("flips") for verdict in entries(record.get("backends")).values()]
        count = sum(len(one) for one in flips if isinstance(one, list))
        found.append(("changed decisions", str(count), "over all backends and images"))
    timed = [
        (number(part(speed.get("latency_ms"), "p50")), f"{speed.get('backend')}: {speed.get('file')}")
        for speed in entries(part(record.get("benchmark"), "results")).values()
        if speed.get("batch") == 1 and not speed.get("missing")
    ]
    if known := [(median, name) for median, name in timed if median is not None]:
        median, name = min(known)
        found.append(("fastest, one image", charts.milliseconds(median), name))
    return found


def share_words(share: float) -> tuple[str, str]:
    """How much of what is allowed: 6.2 % of it, 9.5 times it."""
    if share <= 1:
        return f"{100 * share:.2g} %" if share < 0.995 else "100 %", "of"
    return f"{share:.2g}" if share < 10 else charts.count(share), "times"
