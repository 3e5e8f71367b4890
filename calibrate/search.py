"""The fastest assignment whose accuracy holds: by the bound of its drop on validation images, and by the clock.

1. Convolutions all in int8, and capsule layers all in fp16, are timed against float32. What is not faster is refused,
   and stays float32 (unless size is what is asked for).
2. What is left is judged together. While the upper bound of its drop is above what is allowed, the operation whose
   change of logits is largest for the time that it saves goes back to float32; and while directions turn by more than
   is allowed, the one that turns poses most.
3. What remains is timed again: it must be faster than float32.

Every trial is kept, for the Pareto front, and so that an interrupted search resumes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from qcn.calibrate.assignments import COST, Assignment, apply, array_bytes, in_words, lowest, multiplications
from qcn.calibrate.bodies import Body, Timed
from qcn.calibrate.images import tenths
from qcn.calibrate.record import Calibration, Key
from qcn.calibrate.request import Goal, Method
from qcn.calibrate.sensitivity import Sensitivity, turn
from qcn.calibrate.simulation import ProgramOutputs
from qcn.data.imageset import ImageSet
from qcn.direction import Directions
from qcn.errors import CheckFailed
from qcn.export.program.program import Program
from qcn.export.program.quantise import find
from qcn.intervals import ErrorRate, lost_and_won, paired_drop
from qcn.names import OperationPrecision
from qcn.terminal.progress import part

FASTER = 0.97  # of the time of float32: less of a gain is within what timings vary by


@dataclass(frozen=True)
class Trial:
    """An assignment: its errors and those of float32 on the same images, its size, and its time where it was taken.

    turn   what directions turn by against float32, for 95 of 100 images, in degrees; None if none are told
    """

    assignment: dict[str, OperationPrecision]
    images: int
    wrong: int
    lost: int
    won: int
    bytes: int
    timed: Timed | None = None
    turn: float | None = None

    @property
    def drop(self) -> float:
        """Lost accuracy, in points."""
        return 100 * (self.lost - self.won) / self.images

    @property
    def bound(self) -> float:
        """The upper end of the drop's interval, in points: the drop is below it in 95 of 100 cases."""
        return 100 * paired_drop(self.lost, self.won, self.images)[1]

    @property
    def rate(self) -> ErrorRate:
        return ErrorRate.of(self.wrong, self.images)


@dataclass(frozen=True)
class Search:
    """search.json: what was tried, for which target and goal; `chosen` is None until it is known."""

    key: Key
    method: Method
    target: str
    body: str
    goal: Goal
    max_drop: float
    max_turn: float | None = None
    trials: tuple[Trial, ...] = ()
    refused: tuple[str, ...] = ()
    chosen: Trial | None = None

    def turns_too_far(self, trial: Trial) -> bool:
        return self.max_turn is not None and trial.turn is not None and trial.turn > self.max_turn

    def find(self, assignment: Assignment) -> Trial | None:
        return next((trial for trial in self.trials if trial.assignment == assignment), None)

    def with_trial(self, trial: Trial) -> "Search":
        others = tuple(earlier for earlier in self.trials if earlier.assignment != trial.assignment)
        return replace(self, trials=(*others, trial))


class Searcher:
    """One search. `keep` is called with the record after every step."""

    def __init__(
        self,
        program: Program,
        calibration: Calibration,
        images: ImageSet,
        body: Body,
        sensitivities: Sequence[Sensitivity],
        record: Search,
        keep: Callable[[Search], None],
        directions: Directions | None = None,
    ) -> None:
        self.program, self.calibration, self.images, self.body = program, calibration, images, body
        self.record, self.keep, self.directions = record, keep, directions
        self._harm = {(one.operation, one.precision): one.logit for one in sensitivities}
        self._turns = {(one.operation, one.precision): one.degrees or 0.0 for one in sensitivities}

    def run(self) -> Search:
        """Search, or raise CheckFailed with what came nearest."""
        whole = lowest(self.program)
        groups = {
            f"convolutions and linear layers in {precision}"
            if precision == "int8"
            else f"capsule layers in {precision}": {name: one for name, one in whole.items() if one == precision}
            for precision in dict.fromkeys(whole.values())
        }
        points: list[Assignment] = [{}, *groups.values(), *([whole] if len(groups) > 1 else [])]
        for place, assignment in enumerate(points):
            with part(place, len(points) + 1):
                self.timed(assignment)
        with part(len(points), len(points) + 1):
            lowered = whole if self.record.goal == "size" else self._faster(groups)
            trial = self._accurate(lowered)
        timed = self.timed(trial.assignment).timed
        if self.record.goal == "latency" and timed and timed.share > FASTER:
            raise CheckFailed(
                f"the assignment that keeps the accuracy is not faster on {self.record.target}: "
                f"{timed.words()}; use --set goal=size to accept it anyway"
            )
        self._keep(replace(self.record, chosen=self.record.find(trial.assignment)))
        return self.record

    @cached_property
    def _exact(self) -> ProgramOutputs:
        """The answers of float32."""
        return self.body.answers(self.program, self.images.images, "accuracy: all fp32")

    def judged(self, assignment: Assignment) -> Trial:
        """The trial of an assignment, from the record or by answering all images."""
        if known := self.record.find(assignment):
            return known
        program = apply(self.program, assignment, self.calibration)
        task = f"accuracy: {in_words(self.program, assignment)}"
        result = self.body.answers(program, self.images.images, task) if assignment else self._exact
        right, still = self._exact.predicted == self.images.labels, result.predicted == self.images.labels
        counts = (len(still), int((~still).sum()), *lost_and_won(right, still))
        turned = turn(self._exact, result, self.directions)
        trial = Trial(dict(assignment), *counts, array_bytes(program), turn=turned)
        self._keep(self.record.with_trial(trial))
        return trial

    def timed(self, assignment: Assignment) -> Trial:
        """The same with its time."""
        trial = self.judged(assignment)
        if trial.timed is None:
            trial = replace(trial, timed=self.body.timed(self.program, assignment, self.calibration))
            self._keep(self.record.with_trial(trial))
        return trial

    def _faster(self, groups: Mapping[str, Assignment]) -> dict[str, OperationPrecision]:
        lowered: dict[str, OperationPrecision] = {}
        refused = []
        for description, group in groups.items():
            timed = self.timed(group).timed
            if timed and timed.share > FASTER:
                refused.append(f"{description} are not faster on {self.record.target}: {timed.words()}")
            else:
                lowered |= group
        self._keep(replace(self.record, refused=tuple(refused)))
        if not lowered:
            raise CheckFailed(
                f"{'; '.join(refused)}: calibrating would gain nothing; --set goal=size makes a smaller bundle"
            )
        return lowered

    def _accurate(self, lowered: Assignment) -> Trial:
        """Raise operations to float32, one at a time, until drop and turn are within what is allowed."""
        left, first = dict(lowered), self.judged(lowered)
        trial = first
        while trial.bound > self.record.max_drop or self.record.turns_too_far(trial):
            harm = self._harm if trial.bound > self.record.max_drop else self._turns
            del left[max(left, key=lambda name: self._harm_per_gain(name, left[name], harm))]
            if not left and trial.bound <= self.record.max_drop:
                raise CheckFailed(
                    f"no assignment turns directions by at most {self.record.max_turn:g}°: "
                    f"{in_words(self.program, first.assignment)} turns them by {first.turn:.2g}°, for 95 of 100 "
                    f"images; allow more with --set max_turn={tenths(first.turn or 0.0)}"
                )
            if not left:
                raise CheckFailed(
                    f"no assignment keeps the drop within {self.record.max_drop:g} points: "
                    f"{in_words(self.program, first.assignment)} drops {first.drop:.2f}, and up to {first.bound:.2f} "
                    f"cannot be excluded; allow more with --max-drop {tenths(first.bound)}, or use more images"
                )
            trial = self.judged(left)
        return trial

    def _harm_per_gain(
        self, name: str, precision: OperationPrecision, harm: Mapping[tuple[str, OperationPrecision], float]
    ) -> float:
        saved = multiplications(self.program, find(self.program, name)) * (1 - COST[precision])
        return harm.get((name, precision), 0.0) / saved

    def _keep(self, record: Search) -> None:
        self.record = record
        self.keep(record)


def pareto(trials: Sequence[Trial]) -> list[Trial]:
    """The Pareto front: trials that no other equals in error, time and size and beats in one of them."""

    def figures(trial: Trial) -> tuple[float, float, float]:
        return trial.wrong, trial.timed.share if trial.timed else 1.0, trial.bytes

    def beaten(trial: Trial) -> bool:
        own = figures(trial)
        return any(of != own and all(a <= b for a, b in zip(of, own, strict=True)) for of in map(figures, trials))

    return [trial for trial in trials if trial.timed and not beaten(trial)]
