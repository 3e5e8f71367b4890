"""`qcn verify-parity`: every backend of a bundle against the float64 reference. Works without torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from qcn.errors import CheckFailed, MissingError, QcnError, UsageError
from qcn.export.bundle import Bundle
from qcn.export.golden import Golden
from qcn.verify import Runner
from qcn.verify.backends import Candidate, candidates
from qcn.verify.compare import OUTPUTS, Allowed, Errors, Flip, Share, accuracy, compare, flips, pose_degrees
from qcn.verify.trace import Stage, first_wrong, stages

Status = Literal["passed", "failed", "missing"]
AT_ONCE = 16  # images: the votes of a full-size QCN take 0.1 GB each in torch
ALONE = 2  # images that are also given in the smallest batch: what a device does
PREPROCESSING = "preprocessing"  # stands for a backend in the verdict of `qcn.verify.preprocessing`


@dataclass(frozen=True)
class Verdict:
    """What is said of an artefact in a backend.

    stages       what was compared on the way to the answers, where a look inside was taken
    first_wrong  the first of them, or of the outputs, that is not as it should be
    inside       what there is to say of that look in words, such as that the backend allows none
    """

    backend: str
    file: str
    precision: str
    status: Status
    reasons: tuple[str, ...] = ()
    runner: str = ""
    outputs: dict[str, Errors] = field(default_factory=dict)
    flips: tuple[Flip, ...] = ()
    images: int = 0
    pose_degrees: float = 0.0
    deterministic: bool = True
    accuracy: Share | None = None
    agreement: Share | None = None
    stages: tuple[Stage, ...] = ()
    first_wrong: str | None = None
    inside: str = ""

    @property
    def key(self) -> str:
        return f"{self.backend}: {self.file}"

    @property
    def worst(self) -> float | None:
        """Of the outputs, in noise floors; None where there are none."""
        return max((error.noise_floor_multiple for error in self.outputs.values()), default=None)

    def lines(self) -> list[str]:
        """What a user wants to know of it, in words."""
        said = [*self.reasons] + [
            f"{name:10} max {errors.max_abs:.2e}, rms {errors.rms:.2e}: "
            f"{errors.noise_floor_multiple:.3g} noise floors (allowed {errors.tolerance:.2e})"
            for name, errors in self.outputs.items()
        ]
        said += [self.inside] if self.inside else []
        if self.agreement is None:
            return said
        turned, ties = ([flip for flip in self.flips if flip.tie is tie] for tie in (False, True))
        tied = f" ({len(ties)} tied within float32's noise)" if ties else ""
        agreed = f"{self.agreement.right} of {self.agreement.of} images{tied}"
        said.append(f"same class for {agreed}, poses within {self.pose_degrees:.2g}°")
        said += [f"flip: {flip.row}, whose margin was {flip.margin:.2g}" for flip in turned]
        if not self.deterministic:
            said.append("two runs differ in their bits")
        return said


def verify(
    bundle: Bundle,
    backends: Iterable[str] | None,
    allowed: Mapping[str, Allowed],
    bisect: bool = False,
    golden: Golden | None = None,
) -> list[Verdict]:
    """A verdict for each artefact in each backend; what this machine lacks is `missing`.

    `bisect` looks inside also where the answers are right. `golden` has other images than the bundle's own.
    """
    given = golden or bundle.golden()
    _check_reference(given, allowed)
    return [_verdict(bundle, candidate, given, allowed, bisect) for candidate in candidates(bundle, backends)]


def _check_reference(golden: Golden, allowed: Mapping[str, Allowed]) -> None:
    """Refuse a reference that leaves float32 no more digits than float16 has: all that is wrong would be noise."""
    for name in (name for name in OUTPUTS if name not in allowed):
        exact, single = (getattr(of, name) for of in (golden.reference, golden.float32))
        noise, scale = float(np.abs(single - exact).max()), float(np.abs(exact).max())
        if noise > scale * np.finfo(np.float16).eps / 2:
            raise CheckFailed(
                f"the reference is too noisy to judge by: its own {name} in float32 is off by {noise:.2g}, of values "
                f"up to {scale:.2g}; make the bundle anew, or say what is allowed with --atol"
            )


def _verdict(
    bundle: Bundle, candidate: Candidate, golden: Golden, allowed: Mapping[str, Allowed], bisect: bool
) -> Verdict:
    precision = candidate.precision
    about = (candidate.backend, candidate.artefact.file, precision)
    opened = candidate.runner(bundle)  # refuses an altered file
    try:
        with opened as runner:
            if candidate.artefact.format == "native":
                bundle.network()  # refuses weights of another network than the manifest's
            found, again = (_all(runner, golden.input, candidate) for _ in range(2))
            alone = _all(runner, golden.input[:ALONE], candidate, smallest=True)
    except MissingError as error:
        return Verdict(*about, "missing", (str(error),))
    except QcnError as error:
        return Verdict(*about, "failed", (f"it does not run: {error}",), runner=opened.name)
    for answers, rows in ((found, len(golden.rows)), (alone, len(golden.input[:ALONE]))):
        if strange := _strangers(answers, golden, rows):
            return Verdict(*about, "failed", (f"it is of another network: {strange}",), runner=opened.name)
    deterministic = all(np.array_equal(found[name], again[name], equal_nan=True) for name in OUTPUTS)
    single = {name: np.concatenate([alone[name], found[name][len(alone[name]) :]]) for name in OUTPUTS}
    ways = {"": found, ", the second time": again, f", in batches of {_least(candidate)}": single}
    when, found, errors = _worst(ways, golden, precision, allowed)
    reasons = [f"{name} is {error.words()}{when}" for name, error in errors.items() if not error.passed]
    looked: list[Stage] = []
    inside = ""
    # Statistics of routing that are held in half precision do not show in half-precision answers.
    if reasons or bisect or precision in ("fp16", "bf16"):
        looked, inside = _look(bundle, candidate, golden, found)
        halved = [stage for stage in looked if stage.half]
        if halved and not reasons:
            reasons.append(f"{halved[0].name} is {halved[0].words()}")
    wrong = first_wrong(looked, errors) if reasons else None
    if place := next((stage for stage in looked if stage.name == wrong), None):
        reasons.append(f"the first to leave its tolerance: {place.name}, which is {place.words()}")
    turned = flips(found["activation"], golden)
    count = len(golden.rows)
    return Verdict(
        *about,
        "failed" if reasons else "passed",
        tuple(reasons),
        opened.name,
        errors,
        tuple(turned),
        count,
        pose_degrees(found["pose"], golden),
        deterministic,
        accuracy(found["activation"], golden),
        Share.count(count - sum(not flip.tie for flip in turned), count),
        tuple(looked),
        wrong,
        inside,
    )


def _worst(
    ways: Mapping[str, dict[str, Any]], golden: Golden, precision: str, allowed: Mapping[str, Allowed]
) -> tuple[str, dict[str, Any], dict[str, Errors]]:
    """Of the ways in which a backend was asked the same, the first that is wrong, or else the one nearest to it."""
    compared = {when: compare(found, golden, precision, allowed) for when, found in ways.items()}
    parts = {when: max(error.of_allowed for error in errors.values()) for when, errors in compared.items()}
    when = next((when for when, part in parts.items() if part > 1), max(parts, key=parts.__getitem__))
    return when, ways[when], compared[when]


def _strangers(found: Mapping[str, Any], golden: Golden, rows: int) -> str:
    """What is missing or of another shape among the answers to the first rows, in words."""
    for name in OUTPUTS:
        expected = getattr(golden.reference, name)[:rows].shape
        if name not in found or found[name].shape != expected:
            given = f"it gives {list(found[name].shape)}" if name in found else "it gives none"
            return f"{given} for '{name}', where {list(expected)} are due"
    return ""


def _look(bundle: Bundle, candidate: Candidate, golden: Golden, found: Mapping[str, Any]) -> tuple[list[Stage], str]:
    """What the backend can be made to give out on the way, compared, and what there is to say of that in words."""
    try:
        with candidate.runner(bundle, every_layer=True) as runner:
            found = {**found, **_all(runner, golden.input, candidate)}
    except QcnError as error:  # such as no onnx package, without which a graph can be run but not looked into
        return [], f"no look inside: {error}"
    looked = stages(found, golden, candidate.precision)
    if not looked:
        return (
            [],
            "this backend gives out no layers: where it goes wrong cannot be seen (native, torch and ONNX Runtime do)",
        )
    if all(stage.iteration is None for stage in looked):
        why = "its iterations of routing" if golden.steps else "iterations: the golden file is of an older qcn"
        return looked, f"layers were compared, and not {why}"
    return looked, ""


def _least(candidate: Candidate) -> int:
    return candidate.artefact.batch.min if candidate.artefact.batch else 1


def _all(runner: Runner, inputs: Any, candidate: Candidate, smallest: bool = False) -> dict[str, Any]:
    """The outputs of all images, in batches that the artefact takes; in the smallest such."""
    batch, least = candidate.artefact.batch, _least(candidate)
    size = least if smallest else max(least, min(len(inputs), batch.max if batch else len(inputs), AT_ONCE))
    parts = []
    for start in range(0, len(inputs), size):
        images = inputs[start : start + size]
        rows = len(images)
        if rows < least:  # the last ones, where the batch is fixed: made up with some that are left out again
            images = np.concatenate([images, np.repeat(images[:1], least - rows, axis=0)])
        parts.append({name: value[:rows] for name, value in runner.infer(images).items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def tolerances(atol: Iterable[str], rtol: Iterable[str]) -> dict[str, Allowed]:
    """From what `--atol` and `--rtol` were given, by output: each "1e-4" for all outputs, "pose:1e-4" for one."""
    absolute, relative = _by_output("--atol", atol), _by_output("--rtol", rtol)
    named = {name for given in (absolute, relative) for name in (OUTPUTS if "" in given else given)}
    return {
        name: Allowed(*(given.get(name, given.get("", 0.0)) for given in (absolute, relative)))
        for name in OUTPUTS
        if name in named
    }


def _by_output(option: str, given: Iterable[str]) -> dict[str, float]:
    """The numbers by output; under "" what is for all of them."""
    found = {}
    for text in given:
        name, _, number = text.rpartition(":")
        try:
            found[name] = float(number)
        except ValueError:
            found[name] = -1.0
        if name not in ("", *OUTPUTS) or not 0 <= found[name] < float("inf"):
            raise UsageError(f"{option} takes a number, or OUTPUT:NUMBER with {' or '.join(OUTPUTS)}, not '{text}'")
    return found


def overall(verdicts: list[Verdict], asked: bool) -> Status:
    """Of all: failed if one is; missing if all backends are, or if one is and they were `asked` for by name."""
    if any(verdict.status == "failed" for verdict in verdicts):
        return "failed"
    found = {verdict.status for verdict in verdicts if verdict.backend != PREPROCESSING}
    return "missing" if "missing" in found and (asked or found == {"missing"}) else "passed"


def conclude(verdicts: list[Verdict], asked: bool) -> None:
    """Raise what the command must end with, unless all is well."""
    status = overall(verdicts, asked)
    if status == "failed":
        failed = [verdict for verdict in verdicts if verdict.status == status]
        named = ", ".join(f"{verdict.backend} ({verdict.file})" for verdict in failed)
        raise CheckFailed(f"not as the trained network answers: {named}: {failed[0].reasons[0]}")
    if status == "missing":
        lacking = next(one for one in verdicts if one.status == status and one.backend != PREPROCESSING)
        raise MissingError(f"{lacking.backend} could not run {lacking.file}: {lacking.reasons[0]}")
