"""Runs and times assignments: on the target if it runs here, else by torch and a cost model."""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qcn.calibrate.assignments import Assignment, apply, estimated
from qcn.calibrate.record import Calibration
from qcn.calibrate.simulation import ProgramOutputs, answers
from qcn.data.spec import Preprocessing
from qcn.errors import CheckFailed, FellBack, MissingError, UsageError
from qcn.evaluate.networks import AT_ONCE, outputs_by
from qcn.export import targets
from qcn.export.backends import find
from qcn.export.backends.candidates import Candidate, candidates
from qcn.export.backends.format import Job, format_of
from qcn.export.bundle import Bundle
from qcn.export.pipeline import FROM_RUN
from qcn.export.program.program import Program
from qcn.export.request import ExportRequest
from qcn.terminal.progress import doing, undisturbed
from qcn.verify.speed.cold import first_images
from qcn.verify.speed.turns import Timing, TimingPlan, take_turns
from qcn.verify.words import milliseconds

TIMING = TimingPlan(warmup_ms=300, duration_s=2.0, turn_s=0.1)  # in many short turns: a machine's load hits both alike


@dataclass(frozen=True)
class Timed:
    """An image's time over that of float32; and both in milliseconds where they were measured, at batch 1."""

    share: float
    milliseconds: float | None = None
    float32: float | None = None

    def words(self) -> str:
        if self.milliseconds is None or self.float32 is None:
            return f"an estimated {100 * self.share:.0f} % of the time of float32"
        return f"{milliseconds(self.milliseconds)} per image, {milliseconds(self.float32)} in float32"


class Body(ABC):
    """`name` says what answers and what the times are, in words."""

    name: str

    @abstractmethod
    def answers(self, program: Program, images: NDArray[np.uint8], task: str) -> ProgramOutputs:
        """Answers to images [N, C, H, W]; progress shows `task`."""

    @abstractmethod
    def timed(self, program: Program, assignment: Assignment, calibration: Calibration) -> Timed:
        """How long an image takes with this assignment."""


class TorchBody(Body):
    """Answers of torch, which rounds as the target does, and times of a cost model."""

    def __init__(self, spec: Preprocessing, target: str, why: str) -> None:
        self._spec, self._target = spec, target
        self.name = f"torch; {target} does not run here ({why}), so times are estimated from multiplications"

    def answers(self, program: Program, images: NDArray[np.uint8], task: str) -> ProgramOutputs:
        return answers(program, images, self._spec, task)

    def timed(self, program: Program, assignment: Assignment, calibration: Calibration) -> Timed:
        lowers = find(self._target).lowers  # the rest it computes in float32
        lowered = {name: precision for name, precision in assignment.items() if precision in lowers}
        return Timed(estimated(program, lowered))


class TargetBody(Body):
    """A backend of this machine, with bundles of its own in a temporary folder."""

    def __init__(self, base: Bundle, target: str) -> None:
        self._base, self._target = base, target
        self.name = f"{target}; times are the least of many runs on this machine, at batch 1"

    def answers(self, program: Program, images: NDArray[np.uint8], task: str) -> ProgramOutputs:
        with tempfile.TemporaryDirectory() as folder:
            bundle, candidate = self._candidate(Path(folder), program)
            with candidate.runner_to_time(bundle) as runner:
                show, spec = partial(doing, task, of=len(images)), bundle.manifest.preprocessing
                return ProgramOutputs(*outputs_by(runner, images, spec, AT_ONCE, show))

    def timed(self, program: Program, assignment: Assignment, calibration: Calibration) -> Timed:
        with tempfile.TemporaryDirectory() as folder:
            lowered = [apply(program, assignment, calibration)] if assignment else []
            times = self._milliseconds(Path(folder), [program, *lowered])
        return Timed(times[-1] / times[0], times[-1], times[0])

    def _milliseconds(self, folder: Path, programs: Sequence[Program]) -> list[float]:
        """The least of each one's runs, in turns: whatever else the machine does only adds to a time."""
        with ExitStack() as opened:
            timings = []
            for place, program in enumerate(programs):
                bundle, candidate = self._candidate(folder / str(place), program)
                runner = opened.enter_context(candidate.runner_to_time(bundle))
                timings.append(Timing(candidate, runner, first_images(bundle.golden(), 1)))
            with undisturbed():
                take_turns(timings, TIMING)
            return [min(time for turn in one.turns for time in turn) for one in timings]

    def _candidate(self, folder: Path, program: Program) -> tuple[Bundle, Candidate]:
        bundle = write_bundle(self._base, folder, program, self._target)
        return bundle, candidates(bundle, [self._target])[0]


def write_bundle(base: Bundle, folder: Path, program: Program, target: str) -> Bundle:
    """A bundle to try a program with: what the target runs is in it, and the images of `base`.

    Its expected answers are still those of the trained network. `qcn.export.calibrated` writes the ones that are kept.
    """
    golden = base.golden()
    if program.calibrated:
        golden = replace(golden, plan=True, trained=golden.reference.answers)
    bundle = Bundle.create(folder, replace(base.manifest, files=()), program, lambda: golden, FROM_RUN)
    (format, *_) = find(target).formats
    format_of(format).make(Job(bundle, ExportRequest()))
    return bundle


def find_body(base: Bundle, target: str, lowered: Program) -> Body:
    """The target where it runs this program here, else torch; CheckFailed where it runs it in another precision."""
    body, spec = TargetBody(base, target), base.manifest.preprocessing
    try:
        if find(target).device == "cuda" and targets.this_gpu() is None:
            raise MissingError("there is no GPU")
        body.answers(lowered, np.zeros((1, *base.manifest.image), np.uint8), f"trying {target}")
    except FellBack as error:
        raise CheckFailed(f"cannot calibrate for {target} here: {error}") from error
    except MissingError as error:
        return TorchBody(spec, target, str(error))
    except UsageError as error:  # such as an older library that refuses a bundle in int8
        return TorchBody(spec, target, f"it refuses a calibrated bundle: {error}")
    return body
