"""`qcn doctor BUNDLE`: is every file of a bundle whole, which can run on this machine, and what to do for the others.

Packages are looked for, not imported: a look must be quick and must work where they are broken.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qcn.errors import UsageError
from qcn.export.backends.format import format_of
from qcn.export.bundle import Artefact, Bundle
from qcn.export.program.program import Program

CODE = "can carry code: runs only with --trust"


@dataclass(frozen=True)
class DoctorRow:
    """A file of the bundle: whether it `runs` here (or is `intact`, where there is nothing to run), why not, the fix.

    `cannot` speaks of this machine; `altered`, `missing`, `denied` and `unknown` of the bundle.
    """

    file: str
    state: Literal["runs", "intact", "cannot", "altered", "missing", "denied", "unknown"]
    reason: str
    fix: str = ""

    @property
    def faulty(self) -> bool:
        """Whether the file was altered, or cannot be checked."""
        return self.state in ("altered", "missing", "denied")


def diagnose(folder: Path, public_key: Path | None = None) -> list[DoctorRow]:
    """A row for each file of the bundle; raises UsageError where there is none."""
    bundle = Bundle.open(folder, public_key)
    artefacts = {artefact.file: artefact for artefact in bundle.manifest.files}
    program = _program(bundle)
    rows = []
    for finding in bundle.check():
        artefact = artefacts.get(finding.file)
        if finding.state != "intact" or artefact is None:
            rows.append(DoctorRow(finding.file, finding.state, finding.reason, finding.fix))
            continue
        try:
            support = format_of(artefact.format).support(artefact, bundle)
            _check_precision(artefact, bundle, program)
        except UsageError as error:  # as the manifest says, and yet not what it should be
            rows.append(DoctorRow(artefact.file, "altered", str(error), artefact.rebuild_command(folder)))
        else:
            reason = f"{support.reason}; {CODE}" if artefact.carries_code else support.reason
            rows.append(DoctorRow(artefact.file, support.state, reason, support.fix))
    return rows


def _program(bundle: Bundle) -> Program | None:
    """None where the weights are not whole, which their own row says."""
    try:
        return bundle.program()
    except UsageError:
        return None


def _check_precision(artefact: Artefact, bundle: Bundle, program: Program | None) -> None:
    """Refuse a file that computes in another precision than the manifest says, where that can be read."""
    if program is None:
        return
    reading = format_of(artefact.format).seen(bundle.read(artefact), program)
    if why := reading.contradicts(artefact.precision):
        raise UsageError(f"{artefact.file} is {why}")
