"""A parity record as JUnit XML, which every CI server reads: a suite for each artefact in a backend, a case a check."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qcn.verify.records import entries, listed, number, text, texts

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Case:
    name: str
    failure: str = ""
    skipped: str = ""
    note: str = ""


def junit(record: Mapping[str, Any]) -> str:
    """The XML. A case fails only in a backend that failed: what lies beside the verdict is a note."""
    root = ET.Element("testsuites", name="qcn verify-parity")
    suites = {key: list(_cases(verdict)) for key, verdict in entries(record.get("backends")).items()}
    _count(root, [case for cases in suites.values() for case in cases], record.get("seconds"))
    for key, cases in suites.items():
        suite = ET.SubElement(root, "testsuite", name=_clean(key))
        _count(suite, cases, entries(record.get("backends"))[key].get("seconds"))
        for case in cases:
            element = ET.SubElement(suite, "testcase", classname=_clean(key), name=_clean(case.name))
            if case.failure:
                ET.SubElement(element, "failure", message=_clean(case.failure))
            if case.skipped:
                ET.SubElement(element, "skipped", message=_clean(case.skipped))
            if case.note:
                ET.SubElement(element, "system-out").text = _clean(case.note)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _count(element: ET.Element, cases: list[Case], seconds: object) -> None:
    element.set("tests", str(len(cases)))
    element.set("failures", str(sum(bool(case.failure) for case in cases)))
    element.set("errors", "0")
    element.set("skipped", str(sum(bool(case.skipped) for case in cases)))
    if (time := number(seconds)) is not None:
        element.set("time", f"{time:.3f}")


def _cases(verdict: Mapping[str, Any]) -> Iterator[Case]:
    reasons = "; ".join(texts(verdict.get("reasons")))
    name = "answers as the trained network does"
    if verdict.get("status") == "missing":
        yield Case(name, skipped=reasons or "could not run here")
        return
    failed = verdict.get("status") != "passed"
    yield Case(name, failure=(reasons or "failed") if failed else "")
    for output, errors in entries(verdict.get("outputs")).items():
        worst, allowed = number(errors.get("max_abs")), number(errors.get("tolerance"))
        within = worst is not None and allowed is not None and worst <= allowed
        yield _measured(f"output {output}", within, failed, errors)
    for stage in listed(verdict.get("stages")):
        iteration = stage.get("iteration")
        place = text(stage.get("layer")) + (f"/iteration{iteration}" if iteration is not None else "")
        yield _measured(f"{place}/{text(stage.get('quantity'))}", bool(stage.get("passed")), failed, stage)


def _measured(name: str, within: bool, failed: bool, errors: Mapping[str, Any]) -> Case:
    said = f"off by {text(errors.get('max_abs'))}, {text(errors.get('noise_floor_multiple'))} noise floors; "
    said += f"{text(errors.get('tolerance'))} is allowed"
    return Case(name, failure=said if failed and not within else "", note=said)


def _clean(value: str) -> str:
    """Without what XML cannot hold, even escaped."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", value)
