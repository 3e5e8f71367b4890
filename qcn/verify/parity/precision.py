"""The precision that a file is judged by: the one read from the file, not the one it declares."""

from dataclasses import dataclass

from qcn.errors import UsageError
from qcn.export.backends import FORMATS
from qcn.export.backends.candidates import Candidate
from qcn.export.backends.format import format_of
from qcn.export.backends.precision import Seen
from qcn.export.backends.runner import Runner
from qcn.export.bundle import Bundle
from qcn.names import AnyPrecision


@dataclass(frozen=True)
class JudgedPrecision:
    """The precision whose tolerance counts.

    refused   why the declared precision is wrong
    note      why another precision than the declared one counts
    """

    precision: AnyPrecision
    refused: str = ""
    note: str = ""


def judged_precision(bundle: Bundle, candidate: Candidate, runner: Runner | None = None) -> JudgedPrecision:
    """The precision that an artefact in a backend is judged by; an open runner tells that of an engine.

    A half precision that cannot be read from the file is not believed: fp32's tolerance counts.
    """
    declared = candidate.precision
    if candidate.backend.precisions:  # the backend makes it, of float32 weights
        return JudgedPrecision(declared)
    artefact = candidate.artefact
    if FORMATS[artefact.format].proof == "answers" and runner is None:
        return JudgedPrecision(declared)
    reading = format_of(artefact.format).seen_running(bundle, artefact, runner) if runner else None
    reading = reading or _file(bundle, candidate)
    if refused := reading.contradicts(declared):
        return JudgedPrecision(declared, refused=refused)
    if reading.precision is None and declared != "fp32":
        note = f"held to fp32's tolerance: its precision cannot be read, since {reading.why}"
        return JudgedPrecision("fp32", note=note)
    return JudgedPrecision(declared)


def _file(bundle: Bundle, candidate: Candidate) -> Seen:
    artefact = candidate.artefact
    try:
        return format_of(artefact.format).seen(bundle.read(artefact), bundle.program())
    except UsageError as error:  # weights that cannot be read: their own verdict says so
        return Seen(None, str(error), readable=False)
