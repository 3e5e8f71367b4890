"""What the tests of a run cost and which were skipped, from the file that `pytest --junitxml` wrote.

    python tests/times.py build/test.xml
    python tests/times.py build/test.xml --budget 960 --skips .ci/skips.txt

Prints the twenty tests that took most CPU time, the total, and each reason for a skip. CPU time is that of the test's
process and of those that it started and waited for: unlike the clock, it hardly depends on what else the machine does.
With --budget it ends with 1 if the total is half as much again; with --skips, if a reason has none of the texts in that
file. Needs nothing but Python.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree


@dataclass(frozen=True)
class Case:
    """One test: seconds of CPU time and by the clock; `skipped` is the reason, or empty."""

    name: str
    cpu: float
    clock: float
    skipped: str


def read(file: Path) -> list[Case]:
    """The tests of a JUnit file."""
    return [
        Case(
            f"{case.get('classname', '').replace('.', '/')}::{case.get('name')}",
            sum(float(one.get("value", 0)) for one in case.iter("property") if one.get("name") == "cpu"),
            float(case.get("time", 0)),
            next((_reason(one) for one in case.iter("skipped") if one.get("type") != "pytest.xfail"), ""),
        )
        for case in ElementTree.parse(file).iter("testcase")
    ]


def _reason(skipped: ElementTree.Element) -> str:
    """Why; of a whole file that was skipped only the text says it, as a tuple of file, line and reason."""
    message = skipped.get("message") or ""
    return (skipped.text or "").strip() if message == "collection skipped" else message


def unexpected(reasons: Sequence[str], expected: str) -> list[str]:
    """The reasons that have none of the expected texts, one per line, in them."""
    texts = [line for line in expected.splitlines() if line.strip() and not line.startswith("#")]
    return [reason for reason in reasons if not any(text in reason for text in texts)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--budget", type=float, help="seconds of CPU time")
    parser.add_argument("--skips", type=Path, help="file of expected texts, one per line")
    parsed = parser.parse_args(arguments)
    cases = read(parsed.file)
    for case in sorted(cases, key=lambda case: -case.cpu)[:20]:
        print(f"{case.cpu:7.1f} s CPU {case.clock:7.1f} s  {case.name}")
    total = sum(case.cpu for case in cases)
    print(f"{total:7.1f} s CPU {sum(case.clock for case in cases):7.1f} s  {len(cases)} tests")
    reasons = Counter(case.skipped for case in cases if case.skipped)
    for reason, count in reasons.most_common():
        print(f"skipped {count}: {reason}")
    failed = False
    if parsed.budget and total > 1.5 * parsed.budget:
        print(f"the tests took {total:.0f} s of CPU time, more than 1.5 times their budget of {parsed.budget:.0f} s")
        failed = True
    if parsed.skips:
        for reason in unexpected(list(reasons), parsed.skips.read_text(encoding="utf-8")):
            print(f"not expected to be skipped: {reason} (install what is missing, or add it to {parsed.skips})")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
