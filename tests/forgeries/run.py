"""Forge bundles of every kind in every format, and see what `qcn verify-parity` says of each, with --run and without.

    python tests/forgeries/run.py                       all; some minutes
    python tests/forgeries/run.py --fast --only trigger
    python tests/forgeries/run.py --work FOLDER         keep the run and the forged bundles, and use them again

Ends with 1 if a forgery is not refused with --run, or passes without it and nothing says what was not proven.
"""

import argparse
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait must not take the time of what runs beside
ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from forgeries import FORGERIES, Forgery  # noqa: E402
from measurements import stamp  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from workshop import CRASHED, Workshop, qcn  # noqa: E402

from qcn.errors import MissingError  # noqa: E402

NOT_PROVEN = "not proven"


@dataclass(frozen=True)
class Outcome:
    """What was said of one forgery. `with_run` and `without` are exit codes; None: it could not be made here."""

    kind: str
    what: str
    file: str
    with_run: int | None
    reason: str
    without: int | None
    without_says: str
    seconds: float

    @property
    def refused(self) -> bool:
        """1: a check failed; 2: the bundle contradicts itself and is not read."""
        return self.with_run in (1, 2)

    @property
    def honest_without(self) -> bool:
        """Refused without --run too, or passed by a sentence that says what was not proven."""
        return self.without in (1, 2) or (self.without == 0 and NOT_PROVEN in self.without_says)

    @property
    def made(self) -> bool:
        return self.with_run is not None


def examine(forgery: Forgery, workshop: Workshop, folder: Path) -> Outcome:
    """Make the forged bundle in `folder`, and ask of it with --run and without."""
    about, began = (forgery.kind, forgery.what, forgery.file), time.perf_counter()
    try:
        forgery.forge(workshop, folder)
        commands = [forgery.command(folder, workshop, with_run) for with_run in (True, False)]
    except MissingError as error:
        return Outcome(*about, None, f"not made: {error}", None, "", 0.0)
    (with_run, said), (without, short) = (qcn(*command) for command in commands)
    seconds = time.perf_counter() - began
    said, short = (text.replace(f"{folder}/", "").replace(f"{workshop.folder}/", "") for text in (said, short))
    return Outcome(*about, with_run, reason(said), without, last_sentence(short), seconds)


def reason(said: str) -> str:
    """Why a bundle was refused: the first line below the first file that failed, or the error."""
    for line, following in itertools.pairwise(said.splitlines()):
        if line.startswith("failed "):
            return f"{line.removeprefix('failed').strip()}: {following.strip()}"
    return last_sentence(said)


def last_sentence(said: str) -> str:
    """The verdict: what begins with `passed:`, or the line of the error."""
    lines = said.splitlines()
    found = [line for line in lines if line.startswith(("passed:", "qcn:"))]
    return (found or lines)[-1]


def shown(outcomes: Sequence[Outcome]) -> Table:
    table = Table("kind", "what", "file", "with --run", "why", "without --run", title="Forged bundles")
    for one in outcomes:
        run = "not made" if not one.made else f"[green]refused ({one.with_run})" if one.refused else "[red]PASSED"
        if one.with_run not in (None, 0, 1, 2):
            run = "[red]CRASHED" if one.with_run == CRASHED else f"[red]exit {one.with_run}"
        if one.without in (1, 2):
            without = f"refused ({one.without})"
        else:
            without = "passed, says what was not proven" if one.honest_without else f"[red]{one.without}: says no limit"
        table.add_row(one.kind, one.what, one.file, run, one.reason[:120], without if one.made else "")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="those whose name has this text in it")
    parser.add_argument("--fast", action="store_true", help="leave out those that take long")
    parser.add_argument("--work", type=Path, help="folder for the run and the bundles, which is kept")
    parser.add_argument("--json", type=Path, help="file to write")
    arguments = parser.parse_args()
    chosen = [
        one
        for one in FORGERIES
        if not (arguments.fast and one.slow)
        and (not arguments.only or any(text in one.name for text in arguments.only))
    ]
    outcomes = []
    with tempfile.TemporaryDirectory() as temporary:
        workshop = Workshop(arguments.work or Path(temporary))
        for number, forgery in enumerate(chosen, 1):
            folder = workshop.folder / "forged" / forgery.name
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(f"{folder}.made", ignore_errors=True)
            outcome = examine(forgery, workshop, folder)
            outcomes.append(outcome)
            state = "not made" if not outcome.made else "refused" if outcome.refused else "NOT REFUSED"
            print(f"{number}/{len(chosen)} {forgery.name}: {state} in {outcome.seconds:.1f} s", file=sys.stderr)
            if not arguments.work:
                shutil.rmtree(folder, ignore_errors=True)
    Console(width=None if sys.stdout.isatty() else 240).print(shown(outcomes))
    made = [one for one in outcomes if one.made]
    passed = [one for one in made if not one.refused]
    silent = [one for one in made if not one.honest_without]
    kinds = len(Counter(one.kind for one in made))
    print(f"{len(made)} forgeries of {kinds} kinds: {len(made) - len(passed)} refused with --run, {len(passed)} not")
    without = sum(one.without == 0 for one in made)
    print(f"without --run {without} passed, {len(silent)} without saying what was not proven")
    if arguments.json:
        record = {**stamp(), "forgeries": len(made), "kinds": kinds, "not_refused": len(passed), "silent": len(silent)}
        record["results"] = [{**asdict(one), "seconds": round(one.seconds, 1)} for one in outcomes]
        arguments.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return int(bool(passed or silent))


if __name__ == "__main__":
    sys.exit(main())
