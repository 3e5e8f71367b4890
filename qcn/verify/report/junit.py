"""A report as JUnit XML, for CI servers: a suite for the limits of `qcn ship-check`, if there are any, and one per
artefact in a backend; one case per check."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qcn.terminal.text import readable
from qcn.verify.parity.results import ParityReport
from qcn.verify.parity.verdict import Verdict
from qcn.verify.ship.judge import LimitRow
from qcn.verify.ship.outcome import Ship

_NOT_XML = re.compile("[\ufffe\uffff]")  # of what `readable` leaves


@dataclass(frozen=True)
class Case:
    name: str
    failure: str = ""
    skipped: str = ""
    note: str = ""


Suite = tuple[str, float, list[Case]]  # its name, the seconds that it took, its cases


def junit(report: ParityReport, ship: Ship | None = None) -> str:
    """The XML. A case fails only in a backend that failed: what lies beside the verdict is a note."""
    root = ET.Element("testsuites", name="qcn ship-check" if ship else "qcn verify-parity")
    suites: list[Suite] = [(of.key, of.seconds, list(_cases(of))) for of in report.backends.values()]
    if ship:
        took = max(0.0, ship.seconds - sum(seconds for _, seconds, _ in suites))
        suites.insert(0, (f"may ship: {ship.bundle}", took, [_limit(row) for row in ship.rows if row.asked]))
    _count(root, [case for _, _, cases in suites for case in cases], sum(seconds for _, seconds, _ in suites))
    for name, seconds, cases in suites:
        suite = ET.SubElement(root, "testsuite", name=_clean(name))
        _count(suite, cases, seconds)
        for case in cases:
            element = ET.SubElement(suite, "testcase", classname=_clean(name), name=_clean(case.name))
            if case.failure:
                ET.SubElement(element, "failure", message=_clean(case.failure))
            if case.skipped:
                ET.SubElement(element, "skipped", message=_clean(case.skipped))
            if case.note:
                ET.SubElement(element, "system-out").text = _clean(case.note)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _count(element: ET.Element, cases: Sequence[Case], seconds: float) -> None:
    element.set("tests", str(len(cases)))
    element.set("failures", str(sum(bool(case.failure) for case in cases)))
    element.set("errors", "0")
    element.set("skipped", str(sum(bool(case.skipped) for case in cases)))
    element.set("time", f"{seconds:.3f}")


def _limit(row: LimitRow) -> Case:
    """A limit that is not shown counts as failed, one that was not tested as skipped."""
    message = f"{row.status}: found {row.found}; asked {row.asked}" + (f"; {row.note}" * bool(row.note))
    failure = message if row.status in ("failed", "not shown") else ""
    return Case(row.name, failure, message if row.status == "not tested" else "", message)


def _cases(verdict: Verdict) -> Iterator[Case]:
    reasons = "; ".join(verdict.reasons)
    name = "answers as the trained network does"
    if not verdict.ran:
        yield Case(name, skipped=reasons)
        return
    failed = verdict.status == "failed"
    yield Case(name, failure=(reasons or "failed") if failed else "")
    for output, errors in verdict.outputs.items():
        yield _checked(f"output {output}", errors.passed, failed, errors.words())
    if verdict.turn:
        yield _checked("directions", verdict.turn.passed, failed, verdict.turn.words())
    if verdict.agreement:
        changed = [flip for flip in verdict.flips if not flip.tie]
        names = ", ".join(f"{flip.row}: {flip.found} instead of {flip.expected}" for flip in changed)
        yield _checked("decisions", not changed, failed, names or "as the trained network's")
    for stage in verdict.stages:
        yield _checked(stage.name, stage.passed, failed, stage.words())


def _checked(name: str, passed: bool, failed: bool, words: str) -> Case:
    return Case(name, failure=words if failed and not passed else "", note=words)


def _clean(value: str) -> str:
    """Without control characters, and without what XML cannot hold, even escaped."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", readable(value, keep="\n"))
