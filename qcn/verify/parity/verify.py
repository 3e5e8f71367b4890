"""A verdict for each artefact of a bundle in each backend: does it answer as the trained network did?"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from qcn.errors import CheckFailed, MissingError, QcnError, UsageError
from qcn.export.bundle import Bundle
from qcn.export.bundle.golden import Golden
from qcn.export.bundle.manifest import Batch
from qcn.export.bundle.tolerance import tie_band
from qcn.names import AnyPrecision
from qcn.progress import doing, part, shown
from qcn.verify.parity.arithmetic import Layer, layers
from qcn.verify.parity.calls import ANY, Asked, Call, in_order, plain_batch, plan
from qcn.verify.parity.compare import (
    Allowed,
    Errors,
    Flip,
    Share,
    accuracy,
    compare,
    costs,
    flips,
    pose_degrees,
)
from qcn.verify.parity.inside import Stage, first_wrong, stages
from qcn.verify.parity.precision import Held, held_to
from qcn.verify.runners import ONNX, TIME_LIMIT, Candidate, Runner, candidates, key
from qcn.verify.words import share_of_allowed

Status = Literal["passed", "failed", "missing", "untrusted"]
NOT_RUN: tuple[Status, ...] = ("missing", "untrusted")
Answers = dict[str, Any]  # arrays by the name of an output, a layer or an iteration
AT_ONCE = 16  # images in a look inside: the votes of a full-size QCN take 0.1 GB each in torch
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


def verify(
    bundle: Bundle,
    backends: Iterable[str] | None,
    allowed: Mapping[str, Allowed],
    bisect: bool = False,
    golden: Golden | None = None,
    trust: bool = False,
    time_limit: float = TIME_LIMIT,
    file: str | None = None,
) -> list[Verdict]:
    """A verdict for each artefact, or one `file`, in each backend; what this machine lacks is `missing`.

    `bisect` looks inside also where the answers are right. `golden` has other images than the bundle's own. What can
    carry code is `untrusted` and not run without `trust`. `time_limit` is in seconds, for one answer.
    """
    given = golden or bundle.golden()
    _check_reference(given, allowed)
    verdicts = []
    found = candidates(bundle, backends, trust, file)
    with shown():
        for place, candidate in enumerate(found):
            began = time.perf_counter()
            with part(place, len(found)):
                doing(f"opening {candidate.key}")
                verdict = _verdict(bundle, candidate, given, allowed, bisect, time_limit)
            verdicts.append(replace(verdict, seconds=time.perf_counter() - began))
    return verdicts


def _check_reference(golden: Golden, allowed: Mapping[str, Allowed]) -> None:
    """Refuse a reference that leaves float32 no more digits than float16 has: all that is wrong would be noise.

    Of a calibrated network's plan, whose noise is that of half precision and of int8, one of a 64th is refused.
    """
    for name in (name for name in golden.outputs if name not in allowed):
        exact, single = (getattr(of, name) for of in (golden.reference, golden.float32))
        noise, scale = float(np.abs(single - exact).max()), float(np.abs(exact).max())
        if noise > scale * (1 / 64 if golden.plan else np.finfo(np.float16).eps / 2):
            raise CheckFailed(
                f"the reference is too noisy to judge by: its own {name} in float32 is off by {noise:.2g}, of values "
                f"up to {scale:.2g}; export the bundle again, or say what is allowed with --atol"
            )


def _verdict(
    bundle: Bundle,
    candidate: Candidate,
    golden: Golden,
    allowed: Mapping[str, Allowed],
    bisect: bool,
    time_limit: float,
) -> Verdict:
    about = (candidate.backend.name, candidate.artefact.file, candidate.precision)
    if candidate.untrusted:
        return Verdict(*about, "untrusted", (candidate.untrusted,))
    opened = candidate.runner(bundle, time_limit=time_limit)  # refuses an altered file
    try:
        held = _borne_out(held_to(bundle, candidate))
        with opened as runner:
            if candidate.artefact.format == "native":
                bundle.program()  # refuses weights of another network than the manifest's
            if candidate.artefact.format == "trt":
                held = _borne_out(held_to(bundle, candidate, runner))
            asked = _ask(runner, golden, plan(len(golden.rows), _batch(bundle, candidate)), candidate.key)
    except MissingError as error:
        return Verdict(*about, "missing", (str(error),))
    except _Refused as error:
        return Verdict(*about, "failed", (str(error),), runner=opened.name)
    except QcnError as error:
        return Verdict(*about, "failed", (f"it does not run: {error}",), runner=opened.name)
    return _judged(bundle, candidate, golden, allowed, bisect, asked, held, opened.name, time_limit)


def _judged(
    bundle: Bundle,
    candidate: Candidate,
    golden: Golden,
    allowed: Mapping[str, Allowed],
    bisect: bool,
    asked: Asked,
    held: Held,
    runner: str,
    time_limit: float,
) -> Verdict:
    """The verdict on what was answered."""
    exact = {name: getattr(golden.reference, name) for name in golden.outputs}
    limits = {name: error.tolerance for name, error in compare(exact, golden, held.precision, allowed).items()}
    found = asked.worst(exact, limits)
    errors = compare(found, golden, held.precision, allowed)
    when = asked.when(exact, limits)
    reasons = [
        f"{name} is {error.words()}{f', {when}' if when else ''}" for name, error in errors.items() if not error.passed
    ]
    changed = flips(asked.rows, asked.joined("activation"), golden, bundle.manifest.classes, held.precision)
    reasons += _decisions(changed, golden, held.precision)
    looked: tuple[Stage, ...] = ()
    inside = ""
    # Statistics of routing that are made in half precision do not show in half-precision answers.
    if reasons or bisect or golden.plan or candidate.precision in ("fp16", "bf16"):
        size = asked.first_wrong_size(exact, limits) or min(_batch(bundle, candidate).max, AT_ONCE, len(golden.rows))
        size = max(size, candidate.least)
        doing(f"looking inside {candidate.key}", 1)
        looked, inside = _look(bundle, candidate, golden, found, size, held.precision, time_limit)
        if not reasons:
            reasons += _inside_wrong(looked)
    wrong = first_wrong(looked, errors) if reasons else None
    if place := next((stage for stage in looked if stage.name == wrong), None):
        reasons.append(f"the first to leave its tolerance: {place.name}, which is {place.words()}")
    count = len(golden.rows)
    return Verdict(
        candidate.backend.name,
        candidate.artefact.file,
        candidate.precision,
        "failed" if reasons else "passed",
        tuple(reasons),
        runner,
        outputs=errors,
        flips=changed,
        images=count,
        pose_degrees=pose_degrees(found["pose"], golden) if "pose" in golden.outputs else None,
        deterministic=asked.deterministic(),
        accuracy=accuracy(found["activation"], golden),
        agreement=Share.count(count - sum(not flip.tie for flip in changed), count),
        stages=looked,
        first_wrong=wrong,
        inside=inside,
        notes=(asked.words(), *([held.note] if held.note else []), *costs(golden)),
    )


def _decisions(changed: Sequence[Flip], golden: Golden, precision: AnyPrecision) -> list[str]:
    """What is wrong with the classes; a change within the tie band is not."""
    flipped = [flip for flip in changed if not flip.tie]
    if not flipped:
        return []
    worst = max(flipped, key=lambda flip: flip.margin)
    band = tie_band(golden, precision)
    return [
        f"{len(flipped)} of {len(golden.rows)} images get another class, such as {worst.row}: {worst.found}, where the "
        f"trained network prefers {worst.expected} by {worst.margin:.2g} ({band:.2g} is a tie in {precision})"
    ]


def _inside_wrong(looked: Sequence[Stage]) -> list[str]:
    """What is wrong on the way to right answers: statistics that are not float32 first, since they explain the rest."""
    wrong = [stage for stage in looked if not stage.single] or [stage for stage in looked if not stage.passed]
    return [f"its answers are within what is allowed, but {wrong[0].name} is {wrong[0].words()}"] if wrong else []


class _Refused(QcnError):
    """What a file is found guilty of before its answers are compared."""


def _borne_out(held: Held) -> Held:
    """The precision, unless the file only claims it."""
    if held.refused:
        raise _Refused(held.refused)
    return held


def _ask(runner: Runner, golden: Golden, calls: Sequence[Call], name: str) -> Asked:
    """The answers to all calls, and no other output."""
    answers = []
    for done, call in enumerate(calls):
        doing(f"asking {name}", done, of=len(calls))
        given = runner.infer(golden.input[list(call.rows)])
        if differs := _other_shape(given, golden, call.size):
            raise _Refused(f"it is of another network: {differs}")
        answers.append({name: np.array(given[name]) for name in golden.outputs})
    return Asked(tuple(calls), tuple(answers))


def _batch(bundle: Bundle, candidate: Candidate) -> Batch:
    """The sizes that it is run in."""
    if candidate.artefact.batch or candidate.backend.name != "torch":
        return candidate.artefact.batch or ANY
    try:
        return plain_batch(bundle.program())
    except UsageError:  # which the weights' own verdict says
        return Batch(1, 8, AT_ONCE)


def _other_shape(found: Answers, golden: Golden, rows: int) -> str:
    """What is missing or of another shape among the answers to so many images, in words."""
    for name in golden.outputs:
        expected = (rows, *getattr(golden.reference, name).shape[1:])
        if name not in found or found[name].shape != expected:
            given = f"it gives {list(found[name].shape)}" if name in found else "it gives nothing"
            return f"{given} for '{name}', where {list(expected)} is expected"
    return ""


def _look(
    bundle: Bundle,
    candidate: Candidate,
    golden: Golden,
    found: Answers,
    size: int,
    precision: AnyPrecision,
    time_limit: float,
) -> tuple[tuple[Stage, ...], str]:
    """What the backend can be made to give out on the way, in batches of `size`, and what there is to say of that."""
    if not golden.steps and not golden.layers:
        return (), "the network has no capsule layers to look into"
    try:
        with candidate.runner(bundle, every_layer=True, time_limit=time_limit) as runner:
            found = {**found, **_all(runner, golden.input, size)}
    except QcnError as error:  # such as no onnx package, without which a graph can be run but not looked into
        return (), f"no look inside: {error}"
    looked = stages(found, golden, golden.judged_by(precision), _layers(bundle, candidate, precision))
    if not looked:
        return (
            (),
            "this backend gives out no layers: where it goes wrong cannot be seen (native, torch and ONNX Runtime do)",
        )
    if all(stage.iteration is None for stage in looked):
        return looked, "layers were compared, and not its iterations of routing"
    return looked, ""


def _layers(bundle: Bundle, candidate: Candidate, precision: AnyPrecision) -> Sequence[Layer]:
    """What the statistics of routing can be computed again from; nothing where there are no whole weights."""
    try:
        return layers(bundle, precision, graph=candidate.artefact.format in ONNX)
    except QcnError:  # which the weights' own verdict says
        return ()


def _all(runner: Runner, inputs: Any, size: int) -> Answers:
    """All outputs of all images, in batches of this size."""
    parts = [runner.infer(inputs[list(call.rows)]) for call in in_order(len(inputs), size)]
    return {name: np.concatenate([part[name] for part in parts])[: len(inputs)] for name in parts[0]}


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
        raise CheckFailed(f"not as the {whose} answers: {named}: {failed[0].reasons[0]}")
    if status == "untrusted":
        raise UsageError(f"nothing was run: {verdicts[0].key}: {verdicts[0].reasons[0]}")
    if status == "missing":
        lacking = next(one for one in verdicts if one.status == status and one.backend not in NO_BACKENDS)
        raise MissingError(f"{lacking.backend} could not run {lacking.file}: {lacking.reasons[0]}")
