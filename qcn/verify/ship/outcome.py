"""What `qcn ship-check` found: as a record (`Ship`), as a table, in one sentence, and what the command ends with."""

from dataclasses import dataclass
from typing import Literal

from rich.table import Table
from rich.text import Text

from qcn.errors import CheckFailed, MissingError
from qcn.export.bundle.manifest import BundleSource
from qcn.storage.measured import Measured
from qcn.terminal.tables import table_of
from qcn.terminal.text import counted
from qcn.verify.machine import Environment
from qcn.verify.ship.judge import LimitRow, Status

COLOURS: dict[Status, str] = {
    "passed": "green",
    "failed": "red",
    "not shown": "red",
    "not tested": "yellow",
    "no limit": "",
}
ORDER: tuple[Status, ...] = ("failed", "not shown", "not tested")  # the first that a row has is the whole's


@dataclass(frozen=True)
class Ship:
    """ship.json.

    status       of the whole: the worst of what was asked for
    backend      what was checked: a file of the bundle in a backend, in a precision
    data         the test images
    target       what it is to run on, and whether that is this machine
    calibrated   whether the bundle has a temperature for its probabilities
    measured     what the manifest says of the error on test images
    not_tested   what was not, in words, beside the rows that say so
    """

    schema: Literal[2]
    bundle: str
    source: BundleSource
    manifest_sha256: str
    network_sha256: str
    command: str
    environment: Environment
    status: Status
    backend: str
    file: str
    precision: str
    data: str
    target: str
    target_is_here: bool
    calibrated: bool
    measured: Measured | None
    rows: tuple[LimitRow, ...]
    not_tested: tuple[str, ...]
    seconds: float

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        wrong = [row for row in self.rows if row.asked and row.status == self.status]
        names = ", ".join(row.name for row in wrong)
        if self.status == "failed":
            return f"Do not ship: {names} failed."
        if self.status == "not shown":
            return f"Not ready to ship: {names} {'is' if len(wrong) == 1 else 'are'} not shown."
        if self.status == "not tested":
            where = "on this machine" if self.target_is_here else f"on {self.target}"
            return f"Not decided: {names} {'was' if len(wrong) == 1 else 'were'} not tested {where}."
        return f"Ready to ship: {counted(sum(bool(row.asked) for row in self.rows), 'check')} passed, none failed."


def overall(rows: tuple[LimitRow, ...]) -> Status:
    """The worst verdict on what was asked for. A figure without a limit decides nothing."""
    result = {row.status for row in rows if row.asked}
    return next((status for status in ORDER if status in result), "passed")


def table(ship: Ship) -> Table:
    """One line per row; notes go below, by `notes`."""
    result = table_of("check", "limit", "found", "verdict")
    for row in ship.rows:
        result.add_row(row.name, row.asked or "–", row.found, Text(row.status, COLOURS[row.status]))
    return result


def notes(ship: Ship) -> list[str]:
    """Notes on the rows, and what was not tested."""
    lines = [f"{row.name}: {row.note}" for row in ship.rows if row.note]
    return lines + [f"not tested: {what}" for what in ship.not_tested]


def conclude(ship: Ship) -> None:
    """Raise what the command must end with, unless it may be shipped."""
    if ship.status == "passed":
        return
    first = next(row for row in ship.rows if row.asked and row.status == ship.status)
    note = f"; {first.note}" if first.note else ""
    message = f"{ship.headline} {first.name}: {first.found}; limit: {first.asked}{note}"
    raise MissingError(message) if ship.status == "not tested" else CheckFailed(message)
