"""The calls that a backend is asked in: all batch sizes that matter, each image alone, and then anything in any order.

    plan(22, Batch(1, 8, 64))  ->  22 calls of 1, 3 of 8, 1 of 64, then random ones and some again: `CALLS` in all

A deployment is asked in batches, in any order, for days. So every image is given in the smallest batch and in the one
that the file was made to be fastest at; every place of the largest batch is filled; and calls go on in random order, of
random images, until there are `CALLS`: a fault that depends on the size of a batch, on the place in it, on what else is
in it, on the call before or on how many there were is seen. The same plan is made every time.

Every answer of every call is compared. `Calls` keeps of each image the worst, and says in words which calls were wrong.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.export.bundle.manifest import Batch
from qcn.terminal.text import counted

Array = NDArray[Any]
CALLS = 64  # at least: an artefact that goes wrong after twenty or forty calls is seen
RANDOM_IMAGES = 128  # in the calls of random sizes, unless the smallest batch makes them more
ANY = Batch(1, 8, 64)  # what is run of a file that takes any number of images


@dataclass(frozen=True)
class Call:
    """One call: the indices of its images, in order."""

    rows: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.rows)


def call_plan(images: int, batch: Batch) -> tuple[Call, ...]:
    """The calls for this number of images, in batches of these sizes."""
    random = np.random.default_rng(0)
    sizes = dict.fromkeys((batch.min, batch.opt, batch.max))
    calls = [call for size in sizes for call in in_order(images, size)]
    for size in _random_sizes(random, batch, CALLS - len(calls) - 1):
        calls.append(Call(tuple(random.integers(images, size=size).tolist())))
    return (*calls, in_order(images, batch.opt)[0])  # again, to see whether it has the same bits


def random_calls(images: int, batch: Batch, seed: int) -> Iterator[Call]:
    """Endless calls of random images: first every batch size once, in random order, then random sizes."""
    random = np.random.default_rng(seed)
    every = random.permutation(np.arange(batch.min, batch.max + 1)).tolist()
    for size in chain(every, iter(lambda: int(random.integers(batch.min, batch.max + 1)), 0)):
        yield Call(tuple(random.integers(images, size=size).tolist()))


def in_order(images: int, size: int) -> list[Call]:
    """Every image in batches of this size; the last one is filled up with the first images."""
    rows = list(islice(cycle(range(images)), -(-images // size) * size))
    return [Call(tuple(rows[start : start + size])) for start in range(0, len(rows), size)]


def _random_sizes(random: np.random.Generator, batch: Batch, count: int) -> list[int]:
    """`count` batch sizes in random order, small ones more often."""
    least, most = np.log([batch.min, batch.max + 1])
    left, sizes = RANDOM_IMAGES, list[int]()
    for remaining in range(count, 0, -1):
        drawn = int(np.exp(least + random.random() ** 2 * (most - least)))
        room = left - (remaining - 1) * batch.min  # so that there is enough for the others
        sizes.append(max(min(drawn, room, batch.max), batch.min))
        left -= sizes[-1]
    random.shuffle(sizes)
    return sizes


@dataclass(frozen=True)
class Replies:
    """What a backend answered to each call, by output [size of the call, …]."""

    calls: tuple[Call, ...]
    answers: tuple[Mapping[str, Array], ...]

    @property
    def rows(self) -> tuple[int, ...]:
        """The image of each answer, over all calls."""
        return tuple(row for call in self.calls for row in call.rows)

    def joined(self, name: str) -> Array:
        """One output of all calls, concatenated."""
        return np.concatenate([answers[name] for answers in self.answers])

    def words(self) -> str:
        sizes = [call.size for call in self.calls]
        several = (
            f"{min(sizes)} to {max(sizes)} images" if min(sizes) < max(sizes) else f"{counted(sizes[0], 'image')} each"
        )
        return f"asked in {len(sizes)} calls of {several}: {sum(sizes):,} answers, all compared"

    def deterministic(self) -> bool:
        """Whether calls for the same images had the same bits."""
        first_answers: dict[tuple[int, ...], Mapping[str, Array]] = {}
        for call, answers in zip(self.calls, self.answers, strict=True):
            before = first_answers.setdefault(call.rows, answers)
            if not all(np.array_equal(before[name], answers[name], equal_nan=True) for name in before):
                return False
        return True

    def worst(self, exact: Mapping[str, Array], allowed: Mapping[str, float]) -> dict[str, Array]:
        """The worst answers per image, by output [images, …]."""
        worst = Worst(exact)
        for call, answers, share in zip(self.calls, self.answers, self._shares(exact, allowed), strict=True):
            worst.add(call, answers, share)
        return worst.answers

    def first_wrong_size(self, exact: Mapping[str, Array], allowed: Mapping[str, float]) -> int | None:
        """The batch size of the first wrong call; None if all were right."""
        result = zip(self.calls, self._shares(exact, allowed), strict=True)
        return next((call.size for call, share in result if share.max() > 1), None)

    def when(self, exact: Mapping[str, Array], allowed: Mapping[str, float]) -> str:
        """Which calls were wrong, in words; empty if none or all were."""
        return which(self.calls, [tuple(np.flatnonzero(share > 1)) for share in self._shares(exact, allowed)])

    def _shares(self, exact: Mapping[str, Array], allowed: Mapping[str, float]) -> list[Array]:
        return [shares(call, answers, exact, allowed) for call, answers in zip(self.calls, self.answers, strict=True)]


class Worst:
    """The worst `answers` per image, by output [images, …]; the exact ones for images that were never asked."""

    def __init__(self, exact: Mapping[str, Array]) -> None:
        self.answers = {name: np.array(of, np.float64) for name, of in exact.items()}
        self._share = np.full(len(next(iter(exact.values()))), -1.0)

    def add(self, call: Call, answers: Mapping[str, Array], share: Array) -> None:
        """The answers to a call; `share` is of each place in it (`shares`)."""
        for place, row in enumerate(call.rows):
            if share[place] > self._share[row]:
                self._share[row] = share[place]
                for name, of in self.answers.items():
                    of[row] = answers[name][place]


def shares(call: Call, answers: Mapping[str, Array], exact: Mapping[str, Array], allowed: Mapping[str, float]) -> Array:
    """The largest error at each place of a call, as a share of the tolerance; infinite for NaN."""
    share = np.zeros(call.size)
    for name, of in exact.items():
        apart = np.abs(answers[name].astype(np.float64) - of[list(call.rows)]).reshape(call.size, -1).max(1)
        with np.errstate(divide="ignore", invalid="ignore"):  # none allowed, or none at all
            own = np.where(apart == 0, 0.0, apart / allowed[name])
        share = np.maximum(share, np.where(np.isfinite(apart), own, np.inf))
    return share


def which(calls: Sequence[Call], wrong: Sequence[Sequence[int]]) -> str:
    """What the wrong calls have in common, in words; `wrong` are the wrong places of each.

    Nothing where all are wrong, or always the same images: then it is not a matter of the call.
    """
    bad = [number for number, places in enumerate(wrong) if places]
    images = {calls[number].rows[place] for number in bad for place in wrong[number]}
    always = [[place for place, row in enumerate(call.rows) if row in images] for call in calls]
    if not bad or always == [list(places) for places in wrong]:
        return ""
    if bad == list(range(bad[0], len(calls))):
        return f"from call {bad[0] + 1} of {len(calls)} on"
    common = _place(calls, bad, wrong) or _sizes(calls, bad) or f"in {len(bad)} of {len(calls)} calls"
    return f"{common}; first at call {bad[0] + 1}, a batch of {calls[bad[0]].size}"


def _place(calls: Sequence[Call], bad: Sequence[int], wrong: Sequence[Sequence[int]]) -> str:
    """The one place of a batch at which calls are wrong; empty if there are several."""
    places = {place for number in bad for place in wrong[number]}
    several = any(calls[number].size > 1 for number in bad)
    return f"at place {min(places) + 1} of a batch" if several and len(places) == 1 else ""


def _sizes(calls: Sequence[Call], bad: Sequence[int]) -> str:
    """The batch sizes in which all calls are wrong; empty if wrong calls have no such sizes in common."""
    sizes = {calls[number].size for number in bad}
    others = {call.size for call in calls} - sizes
    if [number for number, call in enumerate(calls) if call.size in sizes] != list(bad) or not others:
        return ""
    if sizes == {1}:
        return "for images that are given alone"
    if len(sizes) == 1:
        return f"in batches of {min(sizes)}"
    return f"in batches of {min(sizes)} or more" if min(sizes) > max(others) else ""
