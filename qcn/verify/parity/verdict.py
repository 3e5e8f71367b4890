"""The verdict on an artefact in a backend, and the status that follows from all verdicts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from qcn.errors import CheckFailed, MissingError, UsageError
from qcn.export.backends.candidates import key
from qcn.export.bundle.tolerance import FLOORS, TIES
from qcn.verify.parity.compare import Errors, Flip, Share, Turn
from qcn.verify.parity.stages import ComparedStage
from qcn.verify.words import share_of_allowed

Status = Literal["passed", "failed", "missing", "untrusted"]
NOT_RUN: tuple[Status, ...] = ("missing", "untrusted")
# In place of a backend's name, in the verdicts of the modules of these names.
PREPROCESSING, RUN = "preprocessing", "run"
NO_BACKENDS = (PREPROCESSING, RUN)
TIE = TIES["fp32"] * FLOORS["fp32"]  # noise floors, the same in every precision


@dataclass(frozen=True)
class Verdict:
    """The verdict on an artefact in a backend.

    seconds      how long the check took
    outputs      errors by output; `share` is the largest, as a share of the tolerance
    stages       intermediate values that were compared, if any
    turn         of the predicted directions, if the bundle has any
    first_wrong  the first stage or output that is wrong
    inside       a note on the stages, such as that the backend shows none
    notes        which calls were made, and why its precision could not be read
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
    turn: Turn | None = None
    deterministic: bool = True
    accuracy: Share | None = None
    agreement: Share | None = None
    stages: tuple[ComparedStage, ...] = ()
    first_wrong: str | None = None
    inside: str = ""
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return key(self.backend, self.file, self.precision)

    @property
    def is_of_file(self) -> bool:
        """Whether it is on a file in a backend, and not on pre-processing or the run."""
        return self.backend not in NO_BACKENDS

    @property
    def ran(self) -> bool:
        return self.status not in NOT_RUN

    @property
    def share(self) -> float | None:
        """The largest error of an output, as a share of what is allowed; None where there are no outputs."""
        return max((error.share for error in self.outputs.values()), default=None)

    def faults(self) -> list[str]:
        """Faults in what was measured, in words; `status` and `reasons` are ignored."""
        faults = [f"{name} is {errors.words()}" for name, errors in self.outputs.items() if not errors.passed]
        faults += [f"{name} {why}" for name, errors in self.outputs.items() if (why := errors.contradiction())]
        faults += [self.turn.words()] if self.turn and not self.turn.passed else []
        faults += [f"{stage.name} is {stage.words()}" for stage in self.stages if not stage.passed]
        if changed := [flip for flip in self.flips if not flip.tie]:
            faults.append(f"{len(changed)} of {self.images} images get another class, such as {changed[0].row}")
        if self.backend != RUN and not (self.outputs and self.images):
            faults.append("nothing was measured")
        elif self.backend not in NO_BACKENDS:
            faults += self._miscounted(self.images - len(changed))
        return faults

    def _miscounted(self, same: int) -> list[str]:
        """Contradictions between its counts and its list of changed decisions, by which `same` keep their class."""
        problems = []
        if self.agreement is None or (self.agreement.right, self.agreement.of) != (same, self.images):
            count = (
                f"its count is {self.agreement.right} of {self.agreement.of}" if self.agreement else "it has no count"
            )
            problems.append(f"{same} of {self.images} images keep their class by its list of changes, but {count}")
        floor = self.outputs["logit"].noise_floor if "logit" in self.outputs else 0.0
        for flip in self.flips:
            if flip.tie and flip.margin > TIE * floor * (1 + 1e-6):
                problems.append(f"{flip.row} is called a tie, but its margin is {flip.margin:.2g}")
        return problems

    @property
    def derived(self) -> Status:
        """The status that follows from what was measured: nothing measured is not passed."""
        if not self.ran and self.reasons and not (self.outputs or self.flips or self.stages):
            return self.status
        return "failed" if self.reasons or self.faults() else "passed"

    def settled(self) -> "Verdict":
        """The same with the status that follows from what was measured."""
        return replace(self, status=self.derived, reasons=self.reasons or tuple(self.faults()))

    def contradiction(self) -> str:
        """Why its status contradicts what was measured; empty if it does not."""
        if self.derived == self.status:
            return ""
        why = (*self.reasons, *self.faults(), "nothing is wrong in what was measured")[0]
        if not self.ran:
            why = "it has answers" if self.outputs else "it does not say why"
        return f"called {self.status}, but {why}"

    def lines(self) -> list[str]:
        """Its lines for the terminal."""
        lines = [*self.reasons] + [
            f"{name:10} max {errors.max_abs:.2e}, rms {errors.rms:.2e}: {share_of_allowed(errors.share)} "
            f"({errors.tolerance:.2e})"
            for name, errors in self.outputs.items()
        ]
        lines += [*([self.inside] if self.inside else []), *self.notes]
        if self.agreement is None:
            return lines
        changed, ties = ([flip for flip in self.flips if flip.tie is tie] for tie in (False, True))
        tied = f" ({len(ties)} tied within the noise of {self.precision})" if ties else ""
        poses = f", poses within {self.pose_degrees:.2g}°" if self.pose_degrees is not None else ""
        if self.turn:
            poses = f", directions within {self.turn.largest:.2g}° ({self.turn.allowed:.2g}° allowed, noise "
            poses += f"{self.turn.noise_floor:.2g}°, for {self.turn.row})"
        lines.append(f"same class for {self.agreement.right} of {self.agreement.of} images{tied}{poses}")
        lines += [f"flip: {flip.row}, whose margin was {flip.margin:.2g}" for flip in changed]
        if not self.deterministic:
            lines.append("two runs differ in their bits")
        return lines


def overall(verdicts: Iterable[Verdict], by_name: bool) -> Status:
    """Failed if one is; missing if all backends are, or if one is and they were requested `by_name`.

    Untrusted files do not count. Without a backend that passed, the whole has not passed.
    """
    result = [(verdict.backend, verdict.status) for verdict in verdicts]
    if any(status == "failed" for _, status in result):
        return "failed"
    statuses = {status for backend, status in result if backend not in NO_BACKENDS}
    if statuses == {"untrusted"}:
        return "untrusted"
    return "missing" if "passed" not in statuses or (by_name and "missing" in statuses) else "passed"


def conclude(verdicts: Sequence[Verdict], by_name: bool, plan: bool = False) -> None:
    """Raise what the command must end with, unless all is well; `plan` as in `qcn.verify.parity.results.verdict`."""
    status = overall(verdicts, by_name)
    if status == "failed":
        failed = [verdict for verdict in verdicts if verdict.status == status]
        named = ", ".join(verdict.key for verdict in failed)
        whose = "calibrated network's plan" if plan else "trained network"
        raise CheckFailed(f"{named}: not the answers of the {whose}: {failed[0].reasons[0]}")
    if status == "untrusted":
        raise UsageError(f"nothing was run: {verdicts[0].key}: {verdicts[0].reasons[0]}")
    if status == "missing":
        lacking = [one for one in verdicts if one.status == status and one.backend not in NO_BACKENDS]
        if not lacking:
            raise MissingError("no backend was run: nothing was measured")
        raise MissingError(f"{lacking[0].backend} could not run {lacking[0].file}: {lacking[0].reasons[0]}")
