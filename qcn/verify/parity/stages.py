"""Where a deployment goes wrong: every capsule layer and every iteration of its routing against the reference.

A backend that can be looked into gives out, beside its answers, LAYER.pose and LAYER.activation of each capsule layer,
and LAYER/iterationT/mean, variance and logit of each iteration, laid out as in `qcn.export.bundle.golden`. They
are taken in the order in which they are computed; the first that leaves its tolerance is where to look. Tolerances are
those of the outputs (`qcn.export.bundle.tolerance`). Of iterations the golden file has two images only.

All statistics of routing are float32, in every precision. One that has no more digits than a half precision was held
in it, and is wrong however close it is: the next image's may be too small for it, or cancel. One that is not what
float32 makes of the backend's own children is wrong likewise (`qcn.verify.parity.arithmetic`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qcn.export.bundle.golden import QUANTITIES, Golden
from qcn.export.bundle.tolerance import FLOORS, floor_of
from qcn.export.program.program import Array
from qcn.verify.parity.arithmetic import RoutingLayer, check
from qcn.verify.parity.compare import Errors, errors

TYPES = {precision: np.float16 if precision == "fp16" else np.float32 for precision in FLOORS}
CANCELLED = 100.0  # how much larger than the variance the mean's square is where E[v²] − μ² has lost digits
# The largest number, and the smallest that has all its digits: float16's, or float32's in every other precision.
LIMITS = {name: (float(np.finfo(of).max), float(np.finfo(of).smallest_normal)) for name, of in TYPES.items()}


@dataclass(frozen=True)
class Range:
    """The exact values in the backend's precision: how many are beyond its largest number or came out not finite, and
    how many are too small to keep their digits. `note` says so where the variance has cancelled."""

    largest: float
    smallest: float
    overflow: int
    underflow: int
    note: str = ""


@dataclass(frozen=True)
class ComparedStage:
    """One intermediate value that was compared.

    iteration    None for what a layer gives
    errors       against the reference; None for what is not there, or has another shape
    half         held in a half precision, where float32 is due
    arithmetic   against exact arithmetic on the backend's own children; None where that cannot be known
    """

    layer: str
    iteration: int | None
    quantity: str
    errors: Errors | None
    range: Range
    half: bool = False
    arithmetic: Errors | None = None

    @property
    def name(self) -> str:
        if self.iteration is None:
            return f"{self.layer}.{self.quantity}"
        return f"{self.layer}/iteration{self.iteration}/{self.quantity}"

    @property
    def passed(self) -> bool:
        return self.errors is not None and self.errors.passed and self.single

    @property
    def single(self) -> bool:
        """Whether it is float32, as far as can be seen."""
        return not self.half and (self.arithmetic is None or self.arithmetic.passed)

    @property
    def share(self) -> float:
        """The largest error as a share of what is allowed, by the check that it is furthest beyond."""
        result = [one.share for one in (self.errors, self.arithmetic) if one]
        return max(result) if self.errors else float("inf")

    def words(self) -> str:
        """What is wrong with it, and its range."""
        if self.errors is None:
            return "not there"
        words = [self.errors.words()]
        if self.arithmetic and not self.arithmetic.passed and self.errors.passed:
            words = [f"not float32's sum of what this backend itself routed: {self.arithmetic.words()}"]
        if self.half:
            words = [f"held in half precision, {self.errors.words()}"]
        words.append(f"its values are {self.range.smallest:.2g} to {self.range.largest:.2g}")
        for count, what in ((self.range.overflow, "overflow"), (self.range.underflow, "underflow")):
            words += [f"{count} {what}"] if count else []
        return "; ".join([*words, *([self.range.note] if self.range.note else [])])


def stages(
    outputs: Mapping[str, Array], golden: Golden, precision: str, layers_routed: Sequence[RoutingLayer]
) -> Iterator[ComparedStage]:
    """The intermediate values of a backend, in the order of computation."""
    routes = {route.op.name: route for route in layers_routed}
    inspected = {name.partition("/")[0] for name in outputs if "/iteration" in name}
    layers = list(
        dict.fromkeys([*(name.partition("/")[0] for name in golden.reference.steps), *golden.reference.layers])
    )
    for layer in layers:
        for name in golden.reference.steps if layer in inspected else ():
            if name.partition("/")[0] == layer:
                yield from _step(name, outputs, golden, precision, routes.get(layer))
        for output in ("activation", "pose") if layer in golden.reference.layers else ():
            name = f"{layer}.{output}"
            if (array := outputs.get(name)) is not None:
                exact = golden.reference.arrays[name]
                array = array[: len(exact)]
                compared = _compared(array, golden, name, precision)
                yield ComparedStage(layer, None, output, compared, _range(array, exact, precision))


def _step(
    name: str, outputs: Mapping[str, Array], golden: Golden, precision: str, route: RoutingLayer | None
) -> Iterator[ComparedStage]:
    layer, _, iteration = name.partition("/iteration")
    quantities = [quantity for quantity in QUANTITIES if f"{name}/{quantity}" in outputs]
    for quantity in quantities or QUANTITIES:  # libqcn shows no logits
        exact = golden.reference.arrays[f"{name}/{quantity}"]
        array = outputs.get(f"{name}/{quantity}")
        if array is not None:
            array = array[: len(exact)]
        compared = None if array is None else _compared(array, golden, f"{name}/{quantity}", precision)
        note = ""
        if array is not None and compared and quantity == "variance":
            note = _cancellation(array, exact, golden.reference.arrays[f"{name}/mean"])
        statistic = array is not None and compared is not None and quantity != "logit"
        own = check(route, name, quantity, outputs, golden) if statistic and route else None
        yield ComparedStage(
            layer,
            int(iteration),
            quantity,
            compared,
            _range(array, exact, precision, note),
            bool(statistic and array is not None and _is_half(array)),
            own and replace(own, histogram=None),
        )


def _compared(array: Array, golden: Golden, name: str, precision: str) -> Errors | None:
    """None for arrays of another shape: they are of another network, and cannot be compared."""
    exact = golden.reference.arrays[name]
    if array.shape != exact.shape:
        return None
    return replace(errors(array, exact, floor_of(golden, name, precision), precision), histogram=None)


def _range(array: Array | None, exact: Array, precision: str, note: str = "") -> Range:
    largest, smallest = LIMITS[precision]
    size = np.abs(exact)
    over = size > largest
    if array is not None and array.shape == exact.shape:
        over |= ~np.isfinite(array)
    under = (size > 0) & (size < smallest)
    least = float(size[size > 0].min()) if size.any() else 0.0
    return Range(float(size.max()), least, int(over.sum()), int(under.sum()), note)


def _cancellation(array: Array, exact: Array, mean: Array) -> str:
    """Whether the variance is worst where it is the small difference of two large numbers."""
    with np.errstate(invalid="ignore"):
        place = np.unravel_index(np.argmax(np.abs(array - exact)), exact.shape)
    times = float(mean[place] ** 2 / exact[place])
    return f"cancellation: there the mean's square is {times:.0f} times the variance" if times > CANCELLED else ""


def _is_half(values: Array) -> bool:
    """Whether all numbers are those of float16 or of bfloat16: by chance, hundreds of float32 numbers never are."""
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(np.float32)
        as_fp16 = np.array_equal(single, single.astype(np.float16).astype(np.float32))
    return as_fp16 or not (np.ascontiguousarray(single).view(np.uint32) & 0xFFFF).any()


def first_wrong(looked: Sequence[ComparedStage], answers: Mapping[str, Errors]) -> str | None:
    """The first stage that is wrong, or else the first output."""
    wrong = [stage.name for stage in looked if not stage.passed]
    wrong += [name for name, error in answers.items() if not error.passed]
    return wrong[0] if wrong else None
