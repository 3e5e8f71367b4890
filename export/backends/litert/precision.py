"""The types of a LiteRT model, read from its flatbuffer alone: the file may be a stranger's, and LiteRT is not needed.

A flatbuffer is tables that point at one another. A table starts with how far before it its list of fields lies, and
that list has where in the table each field is, 0 for none. Slots and numbers are those of LiteRT's published schema.
"""

import struct
from collections.abc import Iterator

from qcn.errors import UsageError
from qcn.export.backends.precision import MOST_BYTES, Products

IDENTIFIER = b"TFL3"
MOST = 1 << 16  # operators or tensors; ours have hundreds
TYPES = {0: "float32", 1: "float16", 3: "uint8", 7: "int16", 9: "int8", 10: "float64", 17: "int4", 18: "bfloat16"}
OTHERS = {2, 4, 5, 6, 8, 11, 12, 13, 14, 15, 16}  # whole numbers, truth values, texts: nothing is multiplied in them
MARKS = (-128.0, 127.0)  # both ends of int8, which stand beside the inputs of a product (`integers`)
CONVOLUTIONS, DEPTHWISE, LINEAR = (3, 67), 4, 9  # CONV_2D, TRANSPOSE_CONV; DEPTHWISE_CONV_2D; FULLY_CONNECTED


class Table:
    """A table of a flatbuffer; what points out of the file raises ValueError or struct.error."""

    def __init__(self, content: bytes, place: int) -> None:
        self.content, self.place = content, place
        self.fields = place - self._number("i", place)
        self.size = self._number("H", self.fields)

    def number(self, slot: int, kind: str) -> int:
        """A field that is a number, 0 where it has none."""
        place = self._field(slot)
        return self._number(kind, place) if place else 0

    def numbers(self, slot: int) -> tuple[int, ...]:
        """A field that is a list of int32."""
        place, count = self._list(slot)
        return struct.unpack_from(f"<{count}i", self.content, place)

    def tables(self, slot: int) -> "Iterator[Table]":
        place, count = self._list(slot)
        for at in range(place, place + 4 * count, 4):
            yield Table(self.content, at + self._number("I", at))

    def _list(self, slot: int) -> tuple[int, int]:
        """The start of a list, and its length."""
        if not (place := self._field(slot)):
            return 0, 0
        place += self._number("I", place)
        count = self._number("I", place)
        if count > MOST:
            raise ValueError(f"a list of {count:,}")
        return place + 4, count

    def _field(self, slot: int) -> int:
        within = 4 + 2 * slot
        offset = self._number("H", self.fields + within) if within + 2 <= self.size else 0
        return self.place + offset if offset else 0

    def _number(self, kind: str, place: int) -> int:
        if place < 0:
            raise ValueError("a place before the file")
        number: int = struct.unpack_from(f"<{kind}", self.content, place)[0]
        return number


def read(content: bytes) -> Products:
    """The products of a model; UsageError says why they cannot be read."""
    if len(content) > MOST_BYTES:
        raise UsageError(f"the model has more than {MOST_BYTES:,} bytes")
    if content[4:8] != IDENTIFIER:
        raise UsageError("it is not a LiteRT model")
    try:
        return _read(Table(content, struct.unpack_from("<I", content)[0]))
    except (ValueError, IndexError, struct.error) as error:
        raise UsageError(f"it is not a LiteRT model, or it is damaged: {error}") from None


def _read(model: Table) -> Products:
    graphs = list(model.tables(2))
    if len(graphs) != 1:
        raise UsageError(f"it has {len(graphs)} graphs; only one is supported")
    codes = [max(code.number(0, "b"), code.number(3, "i")) for code in model.tables(1)]
    tensors = [(tensor.numbers(0), tensor.number(1, "b")) for tensor in graphs[0].tables(0)]
    weights = []
    for operator in graphs[0].tables(3):
        if (code := codes[operator.number(0, "I")]) in (*CONVOLUTIONS, DEPTHWISE, LINEAR):
            shape, type_ = tensors[operator.numbers(1)[1]]
            if TYPES.get(type_) == "int8":  # with the marks of `integers`, which the program does not have
                shape = (*shape[:-1], shape[-1] - len(MARKS))
            if code == DEPTHWISE:  # [1, h, w, out] in the file, [out, 1, h, w] in the program
                shape = (*shape[3:], *shape[:3])
            elif code != LINEAR:  # [out, h, w, in] in the file, [out, in, h, w] in the program
                shape = (*shape[:1], *shape[3:], *shape[1:3])
            weights.append((TYPES.get(type_, "unknown"), shape))
    types = {TYPES.get(type_, "unknown") for _, type_ in tensors if type_ not in OTHERS}
    return Products(tuple(weights), frozenset(types))
