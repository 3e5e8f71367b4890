"""The precision that a file computes in, read from the file itself: nothing of it is run, and nothing unpickled.

A half precision is what the network's convolutions and linear layers compute in: the type of their weights. Statistics
of routing are float32 in every precision. So a file computes in fp16 if every convolution and linear layer of the
program is found in float16, and in fp32 if there is no half-precision number in it. A calibrated program says of each
operation what it computes in, and a file of it must have each of them so; its precision is then the lowest of them.
What a file does not say, or says in a way that is not ours, is not guessed: `Seen(None, why)`.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from qcn.errors import UsageError
from qcn.export.program.program import Product, Program, Shape
from qcn.names import PRECISIONS, AnyPrecision

ELEMENT_TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}
HALVES = {"float16", "bfloat16"}
FLOATS = HALVES | {"float32"}
MOST_BYTES = 1 << 28  # of what is read into memory: a graph or the description of one; ours have a few megabytes


@dataclass(frozen=True)
class Products:
    """The types ("float16") and shapes of the weights of a file's convolutions and linear layers, and every type of
    floating-point or quantised number that occurs anywhere in it."""

    weights: tuple[tuple[str, tuple[int, ...]], ...]
    types: frozenset[str]


@dataclass(frozen=True)
class Seen:
    """The precision that a file computes in; None if it is no precision of ours or cannot be read, and why."""

    precision: AnyPrecision | None
    why: str = ""
    readable: bool = True

    def contradicts(self, declared: AnyPrecision) -> str:
        """Why the declared precision is wrong; empty if it is right or cannot be checked."""
        if not self.readable or self.precision == declared:
            return ""
        return f"declared {declared}, " + (f"computes in {self.precision}" if self.precision else f"but {self.why}")


def seen(read: Callable[[bytes], Products], content: bytes, program: Program, routing: int) -> Seen:
    """The precision of a file with these bytes that was made from this program.

    `routing` is how many float32 products a capsule layer has in such a file.
    """
    try:
        products = read(content)
    except UsageError as error:
        return Seen(None, str(error), readable=False)
    wide = routing * len(program.routes)
    return as_planned(products, program, wide) if program.calibrated else judge(products, program, wide)


def seen_in(program: Program) -> Seen:
    """The precision of a program's own weights."""
    result = {program.precision} if program.calibrated else {operation.precision for operation in program.operations}
    if len(result) == 1:
        return Seen(result.pop())
    return Seen(None, f"its operations are in {' and '.join(sorted(result))}")


def judge(products: Products, program: Program, routing: int) -> Seen:
    """The precision that these products of a file are in, as those of this program with so many of `routing`."""
    if strange := sorted(products.types - FLOATS):
        return Seen(None, f"it computes in {', '.join(strange)} too")
    halves = products.types - {"float32"}
    if not halves:
        return Seen("fp32")
    if len(halves) > 1:
        return Seen(None, "it computes in float16 and in bfloat16")
    precision = next(name for name in PRECISIONS if ELEMENT_TYPES[name] in halves)
    expected = Counter(shape for _, shape in _weights(program))
    inside = Counter(shape for type_, shape in products.weights if type_ == ELEMENT_TYPES[precision])
    if lacking := sum((expected - inside).values()):
        return Seen(None, f"{lacking} of its {expected.total()} convolutions and linear layers are not in {precision}")
    wide = sum(type_ == "float32" for type_, _ in products.weights)
    if wide > routing:
        return Seen(None, f"{wide} of its {len(products.weights)} convolutions and linear layers are in fp32")
    return Seen(precision)


def as_planned(products: Products, program: Program, routing: int) -> Seen:
    """The precision of a calibrated program, if these products of a file are in what it says of each."""
    expected, inside = Counter(_weights(program)), Counter(products.weights)
    if lacking := sum((expected - inside).values()):
        total = expected.total()
        return Seen(None, f"{lacking} of its {total} convolutions and linear layers are not in what the program says")
    others = inside - expected
    if any(type_ != "float32" for type_, _ in others) or others.total() > routing:
        return Seen(None, f"it has {others.total()} convolutions and linear layers more than the program")
    planned = {ELEMENT_TYPES[operation.precision] for operation in program.operations}
    if strange := sorted(products.types - planned - {"float32"}):
        return Seen(None, f"it computes in {', '.join(strange)} too")
    return Seen(program.precision)


def _weights(program: Program) -> Iterable[tuple[str, Shape]]:
    """The types and shapes of the weights of all convolutions and linear layers."""
    for operation in program.operations:
        if isinstance(operation, Product):
            type_ = ELEMENT_TYPES[operation.precision]
            yield from ((type_, program.arrays[name].shape) for name in operation.factors)
