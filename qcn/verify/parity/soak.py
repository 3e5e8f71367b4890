"""A soak: many more calls, for a given time. It finds what shows only in some batch size or only after many calls.

Every batch size that a file takes comes once first, in random order; then sizes are random, and images always are
(`qcn.verify.parity.calls.random_calls`). Every answer is compared at once, so memory does not grow with time. After the
first wrong call there are `MORE` more, every other one the same again, to see what wrong calls have in common.
"""

import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.errors import QcnError, UsageError
from qcn.export.bundle.golden import Golden
from qcn.names import AnyPrecision
from qcn.terminal.progress import doing
from qcn.terminal.text import counted
from qcn.verify.parity.calls import CALLS, Call, Worst, shares
from qcn.verify.parity.compare import Allowed, Share, accuracy, compare, decisions, flips
from qcn.verify.parity.stages import first_wrong
from qcn.verify.parity.verdict import Verdict

Array = NDArray[Any]
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
LONGEST = 7 * 86_400  # seconds
MORE = CALLS


@dataclass(frozen=True)
class Soak:
    """The time of a soak, in seconds over all backends, and the seed of its sizes and images."""

    seconds: float
    seed: int

    def shared_by(self, backends: int) -> "Soak":
        """The share of one of so many backends."""
        return replace(self, seconds=self.seconds / backends)

    @staticmethod
    def parse(duration: str | None, seed: int | None) -> "Soak | None":
        """From the settings `soak` and `seed`; a new seed if none is given."""
        if duration is None:
            if seed is not None:
                raise UsageError("seed is for a soak: give both")
            return None
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(s|min|h)", duration.strip())
        seconds = float(match[1]) * SECONDS[match[2]] if match else 0.0
        if not 0 < seconds <= LONGEST:
            raise UsageError(f"soak takes a time of up to 7 days, such as 60s, 10min or 2h, not '{duration}'")
        if seed is not None and not 0 <= seed < 1 << 64:
            raise UsageError(f"seed must be from 0 to 2⁶⁴ − 1, not {seed}")
        return Soak(seconds, secrets.randbelow(1 << 32) if seed is None else seed)


@dataclass
class Tally:
    """Counts of the soak so far.

    sizes, wrong   how many calls there were of each batch size, and how many of them were wrong
    first          number and batch size of the first wrong call, from 1 on
    right_since    how many calls were right after it
    changed        by image the logits that gave it another class than the reference's, and the reference's margin
    failure        why the backend stopped answering
    """

    worst: Worst
    seconds: float = 0.0
    answers: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    wrong: Counter[int] = field(default_factory=Counter)
    first: tuple[int, int] | None = None
    right_since: int = 0
    changed: dict[int, tuple[float, Array]] = field(default_factory=dict)
    failure: str = ""

    @property
    def calls(self) -> int:
        return self.sizes.total()

    def words(self, all_sizes: int, seed: int) -> str:
        """What was asked; `all_sizes` is how many batch sizes the file takes."""
        least, most = min(self.sizes), max(self.sizes)
        of = f"{least} to {most} images" if least < most else f"{counted(least, 'image')} each"
        left = 0 if self.first else all_sizes - len(self.sizes)
        short = f"; {left} of {counted(all_sizes, 'batch size')} got no turn: soak for longer" if left else ""
        calls = f"{counted(self.calls, 'further call')} of {of} in {self.seconds:.3g} s"
        return f"soak: {calls}: {self.answers:,} answers, all compared (seed={seed}){short}"

    def when(self) -> str:
        """Which calls were wrong, in words; empty if none was."""
        if self.first is None:
            return ""
        number, size = self.first
        bad, first = self.wrong.total(), f"first at call {number} of the soak, a batch of {size}"
        if bad == self.calls:
            return f"in every call of the soak; {first}"
        if bad > 1 and not self.right_since:
            return f"from call {number} of the soak on, a batch of {size}"
        if len(self.wrong) <= 3 and bad > 1 and all(self.sizes[of] == count for of, count in self.wrong.items()):
            return f"in batches of {', '.join(map(str, sorted(self.wrong)))}; {first}"
        return f"in {bad} of {self.calls:,} calls of the soak; {first}"

    def add(self, call: Call, answers: Mapping[str, Array], exact: Mapping[str, Array], limits: "SoakLimits") -> None:
        """Compare the answers to a call."""
        share = shares(call, answers, exact, limits.allowed)
        self.worst.add(call, answers, share)
        self.answers += call.size
        wrong = bool(share.max() > 1)
        for place, margin in _changed(call, answers["logit"], exact["logit"]):
            wrong |= margin > limits.tie
            if margin > self.changed.get(call.rows[place], (-1.0, None))[0]:
                self.changed[call.rows[place]] = margin, np.array(answers["logit"][place])
        self.count(call, wrong)

    def count(self, call: Call, wrong: bool) -> None:
        self.sizes[call.size] += 1
        if wrong:
            self.wrong[call.size] += 1
            self.first = self.first or (self.calls, call.size)
        elif self.first:
            self.right_since += 1


@dataclass(frozen=True)
class SoakLimits:
    """The largest error that is allowed, by output, and the largest margin that is a tie."""

    allowed: Mapping[str, float]
    tie: float


def run_soak(
    answer: Callable[[Call], Mapping[str, Array]],
    calls: Iterable[Call],
    exact: Mapping[str, Array],
    limits: SoakLimits,
    seconds: float,
    key: str,
) -> Tally:
    """Ask for `calls`, without end, until the time is over. `key` names the backend that answers."""
    tally, began = Tally(Worst(exact)), time.monotonic()
    for call in _until_wrong(calls, tally):
        doing(f"soaking {key}", min(tally.seconds, seconds), of=seconds)
        try:
            tally.add(call, answer(call), exact, limits)
        except QcnError as error:
            tally.failure = str(error)
            tally.count(call, True)
        tally.seconds = time.monotonic() - began
        if tally.failure or tally.seconds >= seconds:
            break
    return tally


def _until_wrong(calls: Iterable[Call], tally: Tally) -> Iterator[Call]:
    """The calls; after the first wrong one, `MORE` more, every second one a repetition of it."""
    upcoming = iter(calls)
    for call in upcoming:
        yield call
        if tally.first:
            yield from islice(chain.from_iterable(zip(repeat(call), upcoming, strict=False)), MORE)
            return


def judge_soak(
    verdict: Verdict,
    tally: Tally,
    golden: Golden,
    precision: AnyPrecision,
    allowed: Mapping[str, Allowed],
    classes: tuple[str, ...],
    note: str,
) -> Verdict:
    """A verdict that passed, updated by the soak: the worse errors and decisions count."""
    worst, when = compare(tally.worst.answers, golden, precision, allowed), tally.when()
    reasons = [f"{name} is {error.words()}, {when}" for name, error in worst.items() if not error.passed]
    if tally.failure and tally.first:
        number, size = tally.first
        reasons.append(f"it stops at call {number} of the soak, a batch of {size}: {tally.failure}")
    changed = {flip.row: flip for flip in verdict.flips}
    logits = np.array([logit for _, logit in tally.changed.values()])
    for flip in flips([*tally.changed], logits, golden, classes, precision):
        if flip.row not in changed or flip.margin > changed[flip.row].margin:
            changed[flip.row] = flip
    reasons += [f"{why}, {when}" for why in decisions([*changed.values()], golden, precision)]
    rights = [right for right in (verdict.accuracy, accuracy(tally.worst.answers["logit"], golden)) if right]
    return replace(
        verdict,
        seconds=verdict.seconds + tally.seconds,
        reasons=tuple(reasons),
        outputs={name: max(error, worst[name], key=lambda of: of.share) for name, error in verdict.outputs.items()},
        flips=tuple(changed.values()),
        accuracy=min(rights, key=lambda right: right.right, default=None),
        agreement=Share.count(verdict.images - sum(not flip.tie for flip in changed.values()), verdict.images),
        first_wrong=first_wrong((), worst),
        notes=(*verdict.notes, note),
    ).settled()


def _changed(call: Call, logit: Array, exact: Array) -> Iterable[tuple[int, float]]:
    """The places of the answers with another class than the reference's, and by how much it preferred its own."""
    rows = list(call.rows)
    expected, decided = exact[rows].argmax(1), logit.argmax(1)
    for place in np.flatnonzero(expected != decided):
        row = exact[rows[place]]
        yield int(place), float(row[expected[place]] - row[decided[place]])
