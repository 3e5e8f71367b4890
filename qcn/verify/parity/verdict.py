"""What is said of an artefact in a backend, and what all verdicts come to."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from qcn.errors import CheckFailed, MissingError, UsageError
from qcn.verify.parity.compare import Errors, Flip, Share
from qcn.verify.parity.inside import Stage
from qcn.verify.runners import key
from qcn.verify.words import share_of_allowed

Status = Literal["passed", "failed", "missing", "untrusted"]
NOT_RUN: tuple[Status, ...] = ("missing", "untrusted")
# Stand for a backend in the verdicts of the modules of these names.
PREPROCESSING, RUN = "preprocessing", "run"
NO_BACKENDS = (PREPROCESSING, RUN)


@dataclass(frozen=True)
class Verdict:
    """What is said of an artefact in a backend.

    seconds      that the check took
    outputs      errors by output; `share` is the largest, as a share of what is allowed
    stages       what was compared on the way to the answers, where a look inside was taken
    first_wrong  the first of them, or of the outputs, that is not as it should be
    inside       what there is to say of that look in words, such as that the backend allows none
    notes        what was asked of it, and what its precision could not be read from, in words
    """

    backend: str
    file: str
    precision: str
    status: Status
    reasons: tuple[str, ...] = ()
    runner: str = ""
    seconds: float = 0.0
    outputs: dict[str, Errors] = field(default_factory=dict)
    flips: tuple[Flip, ...] = ()
    images: int = 0
    pose_degrees: float | None = None
    deterministic: bool = True
    accuracy: Share | None = None
    agreement: Share | None = None
    stages: tuple[Stage, ...] = ()
    first_wrong: str | None = None
    inside: str = ""
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return key(self.backend, self.file, self.precision)

    @property
    def is_of_file(self) -> bool:
        """Whether it is of a file in a backend, and not of what a bundle says of itself."""
        return self.backend not in NO_BACKENDS

    @property
    def ran(self) -> bool:
        return self.status not in NOT_RUN

    @property
    def share(self) -> float | None:
        """The largest error of an output, as a share of what is allowed; None where there are no outputs."""
        return max((error.share for error in self.outputs.values()), default=None)

    def lines(self) -> list[str]:
        """What a user wants to know of it, in words."""
        said = [*self.reasons] + [
            f"{name:10} max {errors.max_abs:.2e}, rms {errors.rms:.2e}: {share_of_allowed(errors.share)} "
            f"({errors.tolerance:.2e})"
            for name, errors in self.outputs.items()
        ]
        said += [*([self.inside] if self.inside else []), *self.notes]
        if self.agreement is None:
            return said
        changed, ties = ([flip for flip in self.flips if flip.tie is tie] for tie in (False, True))
        tied = f" ({len(ties)} tied within the noise of {self.precision})" if ties else ""
        poses = f", poses within {self.pose_degrees:.2g}°" if self.pose_degrees is not None else ""
        said.append(f"same class for {self.agreement.right} of {self.agreement.of} images{tied}{poses}")
        said += [f"flip: {flip.row}, whose margin was {flip.margin:.2g}" for flip in changed]
        if not self.deterministic:
            said.append("two runs differ in their bits")
        return said


def overall(verdicts: Iterable[Verdict], asked: bool) -> Status:
    """Of all: failed if one is; missing if all backends are, or if one is and they were `asked` for by name.

    What was not trusted counts for nothing: where there is nothing else, nothing passed.
    """
    found = [(verdict.backend, verdict.status) for verdict in verdicts]
    if any(status == "failed" for _, status in found):
        return "failed"
    given = {status for backend, status in found if backend not in NO_BACKENDS}
    if given == {"untrusted"}:
        return "untrusted"
    return "missing" if "missing" in given and (asked or "passed" not in given) else "passed"


def conclude(verdicts: Sequence[Verdict], asked: bool, plan: bool = False) -> None:
    """Raise what the command must end with, unless all is well; `plan` as in `qcn.verify.parity.results.verdict`."""
    status = overall(verdicts, asked)
    if status == "failed":
        failed = [verdict for verdict in verdicts if verdict.status == status]
        named = ", ".join(verdict.key for verdict in failed)
        whose = "calibrated network's plan" if plan else "trained network"
        raise CheckFailed(f"{named}: not the answers of the {whose}: {failed[0].reasons[0]}")
    if status == "untrusted":
        raise UsageError(f"nothing was run: {verdicts[0].key}: {verdicts[0].reasons[0]}")
    if status == "missing":
        lacking = next(one for one in verdicts if one.status == status and one.backend not in NO_BACKENDS)
        raise MissingError(f"{lacking.backend} could not run {lacking.file}: {lacking.reasons[0]}")
