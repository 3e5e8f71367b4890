"""A verdict for each artefact of a bundle in each backend: does it answer as the trained network did?"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qcn.errors import CheckFailed, MissingError, QcnError
from qcn.export.backends import FORMATS
from qcn.export.backends.candidates import Candidate, candidates
from qcn.export.backends.runner import TIME_LIMIT, Runner
from qcn.export.bundle import Bundle
from qcn.export.bundle.golden import Golden
from qcn.export.bundle.manifest import Batch
from qcn.export.bundle.tolerance import tie_band
from qcn.names import AnyPrecision
from qcn.terminal.progress import doing, part, shown
from qcn.verify.parity.arithmetic import layers
from qcn.verify.parity.calls import ANY, Call, Replies, call_plan, in_order, random_calls
from qcn.verify.parity.compare import Allowed, Share, accuracy, compare, costs, decisions, flips, pose_degrees, turn
from qcn.verify.parity.precision import JudgedPrecision, judged_precision
from qcn.verify.parity.run import Origin
from qcn.verify.parity.soak import Soak, SoakLimits, judge_soak, run_soak
from qcn.verify.parity.stages import ComparedStage, first_wrong, stages
from qcn.verify.parity.verdict import Verdict
from qcn.verify.words import share_of_allowed

Answers = dict[str, Any]  # arrays by the name of an output, a layer or an iteration
AT_ONCE = 16  # images in a look inside: the votes of a full-size QCN take 0.1 GB each in torch


def verify(
    bundle: Bundle,
    backends: Iterable[str] | None,
    allowed: Mapping[str, Allowed],
    bisect: bool = False,
    golden: Golden | None = None,
    trust: bool = False,
    time_limit: float = TIME_LIMIT,
    file: str | None = None,
    origin: Origin | None = None,
    soak: Soak | None = None,
) -> list[Verdict]:
    """A verdict for each artefact, or one `file`, in each backend; what this machine lacks is `missing`.

    `bisect` looks inside also where the answers are right. `golden` has other images than the bundle's own. What can
    carry code is `untrusted` and not run without `trust`. `time_limit` is in seconds, for one answer. With an `origin`,
    to which the bundle's program was found to belong, a file must be what that program builds, and is trusted then.
    Those that passed are asked again, in many more calls, if there is a `soak`.
    """
    reference = golden or bundle.golden()
    _check_reference(reference, allowed)
    verdicts = []
    result = candidates(bundle, backends, trust, file)
    with shown():
        for place, candidate in enumerate(result):
            began = time.perf_counter()
            with part(place, len(result)):
                doing(f"opening {candidate.key}")
                verdict = _Check(bundle, candidate, reference, allowed, bisect, time_limit, origin).verdict()
            verdicts.append(replace(verdict, seconds=time.perf_counter() - began))
        if soak:
            passed = [place for place, verdict in enumerate(verdicts) if verdict.status == "passed"]
            for turn, place in enumerate(passed):
                with part(turn, len(passed)):
                    check = _Check(bundle, result[place], reference, allowed, bisect, time_limit, origin)
                    verdicts[place] = check.soaked(verdicts[place], soak.shared_by(len(passed)))
    return verdicts


def _check_reference(golden: Golden, allowed: Mapping[str, Allowed]) -> None:
    """Refuse a reference that leaves float32 no more digits than float16 has: all that is wrong would be noise.

    Of a calibrated network's plan, whose noise is that of half precision and of int8, one of a 32nd is refused: eight
    of these are a quarter, the most that is tolerated. Of a deep plan, Lite0's, noise was seen at a 54th: one number
    that is rounded to the other step changes all behind it a little.
    """
    for name in (name for name in golden.outputs if name not in allowed):
        exact, single = (getattr(of, name) for of in (golden.reference, golden.float32))
        noise, scale = float(np.abs(single - exact).max()), float(np.abs(exact).max())
        if noise > scale * (1 / 32 if golden.plan else np.finfo(np.float16).eps / 2):
            raise CheckFailed(
                f"the reference is too noisy: its own {name} in float32 is off by {noise:.2g}, with values up "
                f"to {scale:.2g}; export the bundle again, or set the tolerance with --set atol=…"
            )


class _RefusedFile(QcnError):
    """A file that is refused before its answers are compared."""


@dataclass(frozen=True)
class _Check:
    """The check of one artefact in one backend."""

    bundle: Bundle
    candidate: Candidate
    golden: Golden
    allowed: Mapping[str, Allowed]
    bisect: bool
    time_limit: float
    origin: Origin | None

    def verdict(self) -> Verdict:
        """The verdict: by its origin, if given, and then by its answers."""
        about = (self.candidate.backend.name, self.candidate.artefact.file, self.candidate.precision)
        if self.candidate.untrusted:
            return Verdict(*about, "untrusted", (self.candidate.untrusted,))
        proof = FORMATS[self.candidate.artefact.format].proof
        if self.origin is None or proof == "program":  # of which `check_run` has spoken
            return self.answered(about)
        if proof == "answers":
            return self.answered_fresh(self.origin, self.answered(about))
        if refused := self.not_built(self.origin, about):
            return refused
        result = self.answered(about)
        return replace(result, notes=(*result.notes, "it is what its program builds"))

    def not_built(self, origin: Origin, about: tuple[str, str, str]) -> Verdict | None:
        """The verdict on a file that differs from what its program builds, or cannot be compared here."""
        artefact = self.candidate.artefact
        try:
            why = origin.difference(self.bundle, artefact)
        except MissingError as error:
            return Verdict(*about, "missing", (f"it cannot be compared with its program here: {error}",))
        except QcnError as error:
            why = str(error)
        rebuild = f"rebuild it with: {artefact.rebuild_command(self.bundle.folder)}"
        return Verdict(*about, "failed", (f"it is not what its program builds: {why}", rebuild)) if why else None

    def answered_fresh(self, origin: Origin, verdict: Verdict) -> Verdict:
        """The verdict on an engine that passed, or that on its answers to fresh images, which it cannot know."""
        if verdict.status != "passed":
            return verdict
        about, on = (verdict.backend, verdict.file, verdict.precision), f"fresh images (seed {origin.seed})"
        fresh = replace(self, golden=origin.fresh(self.bundle)).answered(about)
        if fresh.status != "passed":
            return replace(fresh, reasons=tuple(f"on {on}: {reason}" for reason in fresh.reasons))
        note = f"an engine cannot be compared with its program; on {fresh.images} {on} it uses "
        return replace(verdict, notes=(*verdict.notes, note + share_of_allowed(fresh.share or 0.0)))

    def answered(self, about: tuple[str, str, str]) -> Verdict:
        """The verdict on its answers."""
        bundle, candidate = self.bundle, self.candidate
        opened = candidate.runner(bundle, time_limit=self.time_limit)  # refuses an altered file
        try:
            judge = _borne_out(judged_precision(bundle, candidate))
            proof = FORMATS[candidate.artefact.format].proof
            with opened as runner:
                if proof == "program":
                    bundle.program()  # refuses weights of another network than the manifest's
                if proof == "answers":
                    judge = _borne_out(judged_precision(bundle, candidate, runner))
                replies = self.ask(runner, call_plan(len(self.golden.rows), self.batch()))
        except MissingError as error:
            return Verdict(*about, "missing", (str(error),))
        except _RefusedFile as error:
            return Verdict(*about, "failed", (str(error),), runner=opened.name)
        except QcnError as error:
            return Verdict(*about, "failed", (f"it does not run: {error}",), runner=opened.name)
        return self.judged(replies, judge, Verdict(*about, "passed", runner=opened.name))

    def ask(self, runner: Runner, calls: Sequence[Call]) -> Replies:
        """The answers to all calls, and no other output."""
        answers = []
        for done, call in enumerate(calls):
            doing(f"asking {self.candidate.key}", done, of=len(calls))
            answers.append(self.answer(runner, call))
        return Replies(tuple(calls), tuple(answers))

    def answer(self, runner: Runner, call: Call) -> Answers:
        """The answers to one call."""
        outputs = runner.infer(self.golden.input[list(call.rows)])
        if differs := _other_shape(outputs, self.golden, call.size):
            raise _RefusedFile(f"it belongs to another network: {differs}")
        return {name: np.array(outputs[name]) for name in self.golden.outputs}

    def soaked(self, verdict: Verdict, soak: Soak) -> Verdict:
        """A verdict that passed, after many more calls in a newly opened backend (`qcn.verify.parity.soak`)."""
        golden, batch = self.golden, self.batch()
        exact = {name: getattr(golden.reference, name) for name in golden.outputs}
        try:
            with self.candidate.runner(self.bundle, time_limit=self.time_limit) as runner:
                precision = _borne_out(judged_precision(self.bundle, self.candidate, runner)).precision
                limits = {name: verdict.outputs[name].tolerance for name in exact}
                tally = run_soak(
                    lambda call: self.answer(runner, call),
                    random_calls(len(golden.rows), batch, soak.seed),
                    exact,
                    SoakLimits(limits, tie_band(golden, precision)),
                    soak.seconds,
                    self.candidate.key,
                )
        except QcnError as error:
            return replace(verdict, status="failed", reasons=(f"it does not run a second time: {error}",))
        size_count = batch.max - batch.min + 1
        classes = self.bundle.manifest.classes
        return judge_soak(verdict, tally, golden, precision, self.allowed, classes, tally.words(size_count, soak.seed))

    def judged(self, replies: Replies, judge: JudgedPrecision, verdict: Verdict) -> Verdict:
        """The verdict, with the answers compared."""
        golden, candidate = self.golden, self.candidate
        exact = {name: getattr(golden.reference, name) for name in golden.outputs}
        of_exact = compare(exact, golden, judge.precision, self.allowed)
        limits = {name: error.tolerance for name, error in of_exact.items()}
        result = replies.worst(exact, limits)
        errors = compare(result, golden, judge.precision, self.allowed)
        when = replies.when(exact, limits)
        reasons = [
            f"{name} is {error.words()}{f', {when}' if when else ''}"
            for name, error in errors.items()
            if not error.passed
        ]
        directions = self.bundle.manifest.direction
        turned = turn(result["pose"], golden, directions, errors["pose"]) if directions else None
        if turned and not turned.passed:
            reasons.insert(0, turned.words())  # what the pose is for says more than its numbers
        changed = flips(replies.rows, replies.joined("logit"), golden, self.bundle.manifest.classes, judge.precision)
        reasons += decisions(changed, golden, judge.precision)
        looked: tuple[ComparedStage, ...] = ()
        inside = ""
        # Statistics of routing that are made in half precision do not show in half-precision answers.
        if reasons or self.bisect or golden.plan or candidate.precision in ("fp16", "bf16"):
            size = replies.first_wrong_size(exact, limits) or min(self.batch().max, AT_ONCE, len(golden.rows))
            doing(f"looking inside {candidate.key}", 1)
            looked, inside = self.look(result, max(size, candidate.least), judge.precision)
            if not reasons:
                reasons += _inside_wrong(looked)
        wrong = first_wrong(looked, errors) if reasons else None
        if place := next((stage for stage in looked if stage.name == wrong), None):
            reasons.append(f"the first to leave its tolerance: {place.name}, which is {place.words()}")
        count = len(golden.rows)
        return replace(
            verdict,
            reasons=tuple(reasons),
            outputs=errors,
            flips=changed,
            images=count,
            pose_degrees=pose_degrees(result["pose"], golden) if "pose" in golden.outputs else None,
            turn=turned,
            deterministic=replies.deterministic(),
            accuracy=accuracy(result["logit"], golden),
            agreement=Share.count(count - sum(not flip.tie for flip in changed), count),
            stages=looked,
            first_wrong=wrong,
            inside=inside,
            notes=(replies.words(), *([judge.note] if judge.note else []), *costs(golden)),
        ).settled()

    def look(self, outputs: Answers, size: int, precision: AnyPrecision) -> tuple[tuple[ComparedStage, ...], str]:
        """Intermediate outputs, in batches of `size`, and a note if unavailable."""
        golden, candidate = self.golden, self.candidate
        if not golden.reference.steps and not golden.reference.layers:
            has = "golden answers are of the whole network alone" if golden.outputs[1:] else "network has no capsules"
            return (), f"the {has}: there are no layers to look into"
        try:
            with candidate.runner(self.bundle, every_layer=True, time_limit=self.time_limit) as runner:
                outputs = {**outputs, **_all(runner, golden.input, size)}
        except QcnError as error:  # such as no onnx package, without which a graph can be run but not looked into
            return (), f"no look inside: {error}"
        try:  # what the statistics of routing can be computed again from
            routes = layers(self.bundle, precision, graph=FORMATS[candidate.artefact.format].graph)
        except QcnError:  # no whole weights, which their own verdict says
            routes = []
        looked = tuple(stages(outputs, golden, golden.judged_by(precision), routes))
        inside = ""
        if not looked:
            inside = "this backend shows no layers, so a fault cannot be located in it (native, torch and ONNX "
            inside += "Runtime do)"
        elif all(stage.iteration is None for stage in looked):
            inside = "its layers were compared, but not its routing iterations"
        return looked, inside

    def batch(self) -> Batch:
        """The sizes that it is run in."""
        return self.candidate.artefact.batch or ANY


def _borne_out(judge: JudgedPrecision) -> JudgedPrecision:
    """The precision; raises if the file contradicts it."""
    if judge.refused:
        raise _RefusedFile(judge.refused)
    return judge


def _inside_wrong(looked: Sequence[ComparedStage]) -> list[str]:
    """Faults in intermediate values although the answers are right; statistics that are not float32 come first."""
    wrong = [stage for stage in looked if not stage.single] or [stage for stage in looked if not stage.passed]
    return [f"its answers are within what is allowed, but {wrong[0].name} is {wrong[0].words()}"] if wrong else []


def _other_shape(outputs: Answers, golden: Golden, rows: int) -> str:
    """Outputs that are missing or have another shape, in words."""
    for name in golden.outputs:
        expected = (rows, *getattr(golden.reference, name).shape[1:])
        if name not in outputs or outputs[name].shape != expected:
            shape = f"it gives {list(outputs[name].shape)}" if name in outputs else "it gives nothing"
            return f"{shape} for '{name}', where {list(expected)} is expected"
    return ""


def _all(runner: Runner, inputs: Any, size: int) -> Answers:
    """All outputs of all images, in batches of this size."""
    parts = [runner.infer(inputs[list(call.rows)]) for call in in_order(len(inputs), size)]
    return {name: np.concatenate([part[name] for part in parts])[: len(inputs)] for name in parts[0]}
