"""A verdict for each artefact of a bundle in each backend: does it answer as the trained network did?"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from qcn.errors import CheckFailed, MissingError, QcnError, UsageError
from qcn.export.bundle import Bundle
from qcn.export.bundle.golden import Golden
from qcn.verify.parity.arithmetic import Layer, layers
from qcn.verify.parity.compare import (
    Allowed,
    Errors,
    Flip,
    Share,
    accuracy,
    compare,
    flips,
    pose_degrees,
)
from qcn.verify.parity.inside import Stage, first_wrong, stages
from qcn.verify.runners import Candidate, Runner, candidates, key
from qcn.verify.words import share_of_allowed

Status = Literal["passed", "failed", "missing"]
Answers = dict[str, Any]  # arrays by the name of an output, a layer or an iteration
AT_ONCE = 16  # images: the votes of a full-size QCN take 0.1 GB each in torch
ALONE = 2  # images that are also given in the smallest batch: what a device does
PREPROCESSING = "preprocessing"  # stands for a backend in the verdict of `qcn.verify.parity.preprocessing`


@dataclass(frozen=True)
class Verdict:
    """What is said of an artefact in a backend.

    seconds      that the check took
    outputs      errors by output; `share` is the largest, as a share of what is allowed
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

    @property
    def key(self) -> str:
        return key(self.backend, self.file, self.precision)

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
        said += [self.inside] if self.inside else []
        if self.agreement is None:
            return said
        changed, ties = ([flip for flip in self.flips if flip.tie is tie] for tie in (False, True))
        tied = f" ({len(ties)} tied within float32's noise)" if ties else ""
        poses = f", poses within {self.pose_degrees:.2g}°" if self.pose_degrees is not None else ""
        said.append(f"same class for {self.agreement.right} of {self.agreement.of} images{tied}{poses}")
        said += [f"flip: {flip.row}, whose margin was {flip.margin:.2g}" for flip in changed]
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
    verdicts = []
    for candidate in candidates(bundle, backends):
        began = time.perf_counter()
        verdict = _verdict(bundle, candidate, given, allowed, bisect)
        verdicts.append(replace(verdict, seconds=time.perf_counter() - began))
    return verdicts


def _check_reference(golden: Golden, allowed: Mapping[str, Allowed]) -> None:
    """Refuse a reference that leaves float32 no more digits than float16 has: all that is wrong would be noise."""
    for name in (name for name in golden.outputs if name not in allowed):
        exact, single = (getattr(of, name) for of in (golden.reference, golden.float32))
        noise, scale = float(np.abs(single - exact).max()), float(np.abs(exact).max())
        if noise > scale * np.finfo(np.float16).eps / 2:
            raise CheckFailed(
                f"the reference is too noisy to judge by: its own {name} in float32 is off by {noise:.2g}, of values "
                f"up to {scale:.2g}; export the bundle again, or say what is allowed with --atol"
            )


def _verdict(
    bundle: Bundle, candidate: Candidate, golden: Golden, allowed: Mapping[str, Allowed], bisect: bool
) -> Verdict:
    precision = candidate.precision
    about = (candidate.backend.name, candidate.artefact.file, precision)
    opened = candidate.runner(bundle)  # refuses an altered file
    try:
        with opened as runner:
            if candidate.artefact.format == "native":
                bundle.program()  # refuses weights of another network than the manifest's
            found, again = (_all(runner, golden.input, candidate) for _ in range(2))
            alone = _all(runner, golden.input[:ALONE], candidate, smallest=True)
    except MissingError as error:
        return Verdict(*about, "missing", (str(error),))
    except QcnError as error:
        return Verdict(*about, "failed", (f"it does not run: {error}",), runner=opened.name)
    for answers, rows in ((found, len(golden.rows)), (alone, len(golden.input[:ALONE]))):
        if differs := _other_shape(answers, golden, rows):
            return Verdict(*about, "failed", (f"it is of another network: {differs}",), runner=opened.name)
    names = golden.outputs
    deterministic = all(np.array_equal(found[name], again[name], equal_nan=True) for name in names)
    single = {name: np.concatenate([alone[name], found[name][len(alone[name]) :]]) for name in names}
    ways = {"": found, ", the second time": again, f", in batches of {candidate.least}": single}
    when, found, errors = _worst(ways, golden, precision, allowed)
    reasons = [f"{name} is {error.words()}{when}" for name, error in errors.items() if not error.passed]
    looked: tuple[Stage, ...] = ()
    inside = ""
    # Statistics of routing that are made in half precision do not show in half-precision answers.
    if reasons or bisect or precision in ("fp16", "bf16"):
        looked, inside = _look(bundle, candidate, golden, found)
        coarse = [stage for stage in looked if not stage.single]
        if coarse and not reasons:
            reasons.append(f"{coarse[0].name} is {coarse[0].words()}")
    wrong = first_wrong(looked, errors) if reasons else None
    if place := next((stage for stage in looked if stage.name == wrong), None):
        reasons.append(f"the first to leave its tolerance: {place.name}, which is {place.words()}")
    changed = flips(found["activation"], golden, bundle.manifest.classes)
    count = len(golden.rows)
    return Verdict(
        *about,
        "failed" if reasons else "passed",
        tuple(reasons),
        opened.name,
        outputs=errors,
        flips=changed,
        images=count,
        pose_degrees=pose_degrees(found["pose"], golden) if "pose" in names else None,
        deterministic=deterministic,
        accuracy=accuracy(found["activation"], golden),
        agreement=Share.count(count - sum(not flip.tie for flip in changed), count),
        stages=looked,
        first_wrong=wrong,
        inside=inside,
    )


def _worst(
    ways: Mapping[str, Answers], golden: Golden, precision: str, allowed: Mapping[str, Allowed]
) -> tuple[str, Answers, dict[str, Errors]]:
    """Of the ways in which a backend was asked the same, the first that is wrong, or else the one nearest to it."""
    compared = {when: compare(found, golden, precision, allowed) for when, found in ways.items()}
    shares = {when: max(error.share for error in errors.values()) for when, errors in compared.items()}
    when = next((when for when, share in shares.items() if share > 1), max(shares, key=shares.__getitem__))
    return when, ways[when], compared[when]


def _other_shape(found: Answers, golden: Golden, rows: int) -> str:
    """What is missing or of another shape among the answers to the first rows, in words."""
    for name in golden.outputs:
        expected = getattr(golden.reference, name)[:rows].shape
        if name not in found or found[name].shape != expected:
            given = f"it gives {list(found[name].shape)}" if name in found else "it gives nothing"
            return f"{given} for '{name}', where {list(expected)} is expected"
    return ""


def _look(bundle: Bundle, candidate: Candidate, golden: Golden, found: Answers) -> tuple[tuple[Stage, ...], str]:
    """What the backend can be made to give out on the way, compared, and what there is to say of that in words."""
    if not golden.steps and not golden.layers:
        return (), "the network has no capsule layers to look into"
    try:
        with candidate.runner(bundle, every_layer=True) as runner:
            found = {**found, **_all(runner, golden.input, candidate)}
    except QcnError as error:  # such as no onnx package, without which a graph can be run but not looked into
        return (), f"no look inside: {error}"
    looked = stages(found, golden, candidate.precision, _layers(bundle))
    if not looked:
        return (
            (),
            "this backend gives out no layers: where it goes wrong cannot be seen (native, torch and ONNX Runtime do)",
        )
    if all(stage.iteration is None for stage in looked):
        return looked, "layers were compared, and not its iterations of routing"
    return looked, ""


def _layers(bundle: Bundle) -> Sequence[Layer]:
    """What the statistics of routing can be computed again from; nothing where there are no whole weights."""
    try:
        return layers(bundle)
    except QcnError:  # which the weights' own verdict says
        return ()


def _all(runner: Runner, inputs: Any, candidate: Candidate, smallest: bool = False) -> Answers:
    """The outputs of all images, in batches that the artefact takes; in the smallest such."""
    batch, least = candidate.artefact.batch, candidate.least
    size = least if smallest else max(least, min(len(inputs), batch.max if batch else len(inputs), AT_ONCE))
    parts = []
    for start in range(0, len(inputs), size):
        images = inputs[start : start + size]
        rows = len(images)
        if rows < least:  # the last ones, where the batch is fixed: made up with some that are left out again
            images = np.concatenate([images, np.repeat(images[:1], least - rows, axis=0)])
        parts.append({name: value[:rows] for name, value in runner.infer(images).items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def tolerances(atol: Iterable[str], rtol: Iterable[str], names: Sequence[str]) -> dict[str, Allowed]:
    """From what `--atol` and `--rtol` were given, by output: each "1e-4" for all `names`, "pose:1e-4" for one."""
    absolute, relative = _by_output("--atol", atol, names), _by_output("--rtol", rtol, names)
    named = {name for given in (absolute, relative) for name in (names if "" in given else given)}
    return {
        name: Allowed(*(given.get(name, given.get("", 0.0)) for given in (absolute, relative)))
        for name in names
        if name in named
    }


def _by_output(option: str, given: Iterable[str], names: Sequence[str]) -> dict[str, float]:
    """The numbers by output; under "" what is for all of them."""
    found = {}
    for text in given:
        name, _, number = text.rpartition(":")
        try:
            found[name] = float(number)
        except ValueError:
            found[name] = -1.0
        if name not in ("", *names) or not 0 <= found[name] < float("inf"):
            raise UsageError(f"{option} takes a number, or OUTPUT:NUMBER with {' or '.join(names)}, not '{text}'")
    return found


def overall(verdicts: Iterable[Verdict], asked: bool) -> Status:
    """Of all: failed if one is; missing if all backends are, or if one is and they were `asked` for by name."""
    found = [(verdict.backend, verdict.status) for verdict in verdicts]
    if any(status == "failed" for _, status in found):
        return "failed"
    ran = {status for backend, status in found if backend != PREPROCESSING}
    return "missing" if "missing" in ran and (asked or ran == {"missing"}) else "passed"


def conclude(verdicts: Sequence[Verdict], asked: bool) -> None:
    """Raise what the command must end with, unless all is well."""
    status = overall(verdicts, asked)
    if status == "failed":
        failed = [verdict for verdict in verdicts if verdict.status == status]
        named = ", ".join(verdict.key for verdict in failed)
        raise CheckFailed(f"not as the trained network answers: {named}: {failed[0].reasons[0]}")
    if status == "missing":
        lacking = next(one for one in verdicts if one.status == status and one.backend != PREPROCESSING)
        raise MissingError(f"{lacking.backend} could not run {lacking.file}: {lacking.reasons[0]}")
