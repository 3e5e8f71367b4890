"""`qcn verify-parity`: every backend of a bundle against the golden float64 answers. Works without torch."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from qcn.errors import CheckFailed, MissingError, UsageError
from qcn.export.bundle import Bundle
from qcn.export.golden import Golden
from qcn.files import write_text
from qcn.verify import Runner
from qcn.verify.backends import Candidate, candidates
from qcn.verify.compare import OUTPUTS, Errors, Flip, compare, flips, pose_degrees


@dataclass(frozen=True)
class Verdict:
    """What is said of an artefact in a backend."""

    backend: str
    file: str
    precision: str
    status: Literal["passed", "failed", "missing"]
    reasons: tuple[str, ...] = ()
    runner: str = ""
    outputs: dict[str, Errors] = field(default_factory=dict)
    flips: tuple[Flip, ...] = ()
    images: int = 0
    pose_degrees: float = 0.0
    deterministic: bool = True

    def lines(self) -> list[str]:
        """What a user wants to know of it, in words."""
        if not self.outputs:
            return list(self.reasons)
        width = max(map(len, self.outputs))
        said = [*self.reasons] + [
            f"{name:{width}} max {errors.max_abs:.2e}, rms {errors.rms:.2e}: "
            f"{errors.noise_floor_multiple:.3g} noise floors (allowed {errors.tolerance:.2e})"
            for name, errors in self.outputs.items()
        ]
        flips, ties = ([flip for flip in self.flips if flip.tie is tie] for tie in (False, True))
        tied = f" ({len(ties)} tied within float32's noise)" if ties else ""
        agreed = f"{self.images - len(flips)} of {self.images} images{tied}"
        said.append(f"same class for {agreed}, poses within {self.pose_degrees:.2g}°")
        said += [f"flip: {flip.row}, whose margin was {flip.margin:.2g}" for flip in flips]
        if not self.deterministic:
            said.append("two runs differ in their bits")
        return said

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "outputs": {name: errors.as_json() for name, errors in self.outputs.items()}}


def verify(
    bundle: Bundle, backends: Iterable[str] | None, atol: Mapping[str, float], bisect: bool = False
) -> list[Verdict]:
    """A verdict for each artefact in each backend; what this machine lacks is `missing`.

    `bisect` compares every capsule layer also where the answers are right.
    """
    golden = bundle.golden()
    return [_verdict(bundle, candidate, golden, atol, bisect) for candidate in candidates(bundle, backends)]


def _verdict(bundle: Bundle, candidate: Candidate, golden: Golden, atol: Mapping[str, float], bisect: bool) -> Verdict:
    about = (candidate.backend, candidate.artefact.file, candidate.artefact.precision)
    try:
        with candidate.runner(bundle) as runner:
            found, again = (_all(runner, golden, candidate) for _ in range(2))
    except MissingError as error:
        return Verdict(*about, "missing", (str(error),))
    errors = compare(found, golden, candidate.artefact.precision, atol)
    reasons = [f"{name} is {error.words()}" for name, error in errors.items() if name in OUTPUTS and not error.passed]
    if reasons or bisect:
        layers = errors if len(errors) > len(OUTPUTS) else _layers(bundle, candidate, golden, atol)
        wrong = next((name for name, error in layers.items() if not error.passed), None)
        if wrong and reasons:
            reasons.append(f"the first to leave its tolerance: {wrong}, which is {layers[wrong].words()}")
        errors = {**errors, **layers}
    turned = flips(found["activation"], golden)
    return Verdict(
        *about,
        "failed" if reasons else "passed",
        tuple(reasons),
        runner.name,
        errors,
        tuple(turned),
        len(golden.rows),
        pose_degrees(found["pose"], golden),
        all(np.array_equal(found[name], again[name], equal_nan=True) for name in OUTPUTS),
    )


def _layers(bundle: Bundle, candidate: Candidate, golden: Golden, atol: Mapping[str, float]) -> dict[str, Errors]:
    """The errors of every capsule layer, where the backend can be made to give them out; else of what there is."""
    with candidate.runner(bundle, every_layer=True) as runner:
        found = _all(runner, golden, candidate)
    return compare(found, golden, candidate.artefact.precision, atol)


def _all(runner: Runner, golden: Golden, candidate: Candidate) -> dict[str, Any]:
    """The outputs of all golden images, in batches that the artefact takes."""
    batch = candidate.artefact.batch
    size = min(len(golden.input), batch.max) if batch else len(golden.input)
    least = batch.min if batch else 1
    parts = []
    for start in range(0, len(golden.input), size):
        images = golden.input[start : start + size]
        rows = len(images)
        if rows < least:  # the last ones, where the batch is fixed: made up with some that are left out again
            images = np.concatenate([images, np.repeat(images[:1], least - rows, axis=0)])
        parts.append({name: value[:rows] for name, value in runner.infer(images).items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def tolerances(given: Iterable[str]) -> dict[str, float]:
    """From what `--atol` was given: "1e-4" for all outputs, "pose:1e-4" for one."""
    found = {}
    for text in given:
        name, _, number = text.rpartition(":")
        try:
            found[name] = float(number)
        except ValueError:
            found[name] = -1.0
        if name not in ("", *OUTPUTS) or not 0 <= found[name] < float("inf"):
            raise UsageError(f"--atol takes a number, or OUTPUT:NUMBER with {' or '.join(OUTPUTS)}, not '{text}'")
    return found


def conclude(verdicts: list[Verdict], asked: bool) -> None:
    """Raise what the command must end with, unless all is well. What was not asked for by name may be missing."""
    failed = [verdict for verdict in verdicts if verdict.status == "failed"]
    if failed:
        named = ", ".join(f"{verdict.backend} ({verdict.file})" for verdict in failed)
        raise CheckFailed(f"not as the trained network answers: {named}: {failed[0].reasons[0]}")
    missing = [verdict for verdict in verdicts if verdict.status == "missing"]
    if missing and (asked or len(missing) == len(verdicts)):
        raise MissingError(f"{missing[0].backend} could not run {missing[0].file}: {missing[0].reasons[0]}")


def write_report(path: Path, bundle: Bundle, verdicts: list[Verdict]) -> None:
    """report.json: everything that was found."""
    record = {
        "bundle": bundle.manifest.name,
        "source": asdict(bundle.manifest.source),
        "backends": {f"{verdict.backend}: {verdict.file}": verdict.as_json() for verdict in verdicts},
    }
    write_text(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
