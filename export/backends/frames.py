"""Messages between `isolated` and `worker`, and between `web.runner` and Node: texts and arrays, never pickle.

A frame is two lengths (8 bytes each, little-endian), a JSON object of that many bytes, and the bytes of its arrays, one
after the other. The object has the texts, and under "arrays" a list of name, dtype and shape. Whoever reads a frame
believes nothing in it: lengths, names, types and shapes are limited and must agree.
"""

import json
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.errors import QcnError

LENGTHS = struct.Struct("<QQ")
MOST_TEXT, MOST_BYTES = 1 << 20, 1 << 30  # of the JSON object, and of the arrays
MOST_ARRAYS, MOST_AXES, LONGEST_NAME = 4096, 8, 256
DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")

Arrays = Mapping[str, NDArray[Any]]


class NotAFrame(QcnError):
    """The bytes are not a frame."""


def encode(texts: Mapping[str, Any], arrays: Arrays) -> list[memoryview]:
    """The parts of a frame; arrays that lie in one piece are not copied."""
    whole = {name: np.ascontiguousarray(array).reshape(np.shape(array)) for name, array in arrays.items()}
    if odd := [f"{name} is {array.dtype}" for name, array in whole.items() if array.dtype.name not in DTYPES]:
        raise NotAFrame(f"an output is of no type that can be compared: {odd[0]}")
    listed = [(name, array.dtype.name, array.shape) for name, array in whole.items()]
    head = json.dumps({**texts, "arrays": listed}).encode()
    lengths = LENGTHS.pack(len(head), sum(array.nbytes for array in whole.values()))
    bodies = [array.reshape(-1).view(np.uint8).data for array in whole.values() if array.nbytes]
    return [memoryview(lengths + head), *bodies]


def lengths(start: bytes | bytearray) -> tuple[int, int]:
    """Read the lengths of the object and of the arrays at the start of a frame."""
    head, body = LENGTHS.unpack(start)
    if head > MOST_TEXT or body > MOST_BYTES:
        raise NotAFrame(f"an answer of {head:,} and {body:,} bytes is too long: {MOST_BYTES:,} are read")
    return head, body


def receive(read: Callable[[int], bytes | bytearray]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The texts and the arrays of the next frame; `read` gives so many bytes."""
    head, body = lengths(read(LENGTHS.size))
    return decode(read(head), bytearray(read(body)))


def decode(head: bytes | bytearray, body: bytearray) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The texts and the arrays of a frame, which share the memory of `body`."""
    try:
        texts = json.loads(bytes(head))
    except (ValueError, RecursionError) as error:
        raise NotAFrame("an answer is not JSON") from error
    if not isinstance(texts, dict) or not isinstance(listed := texts.pop("arrays", None), list):
        raise NotAFrame("an answer is not an object with arrays")
    if len(listed) > MOST_ARRAYS:
        raise NotAFrame(f"an answer of {len(listed)} arrays is too long: {MOST_ARRAYS} are read")
    arrays: dict[str, NDArray[Any]] = {}
    at = 0
    for entry in listed:
        name, dtype, shape = _entry(entry)
        size = math.prod(shape) * dtype.itemsize
        if name in arrays or at + size > len(body):
            raise NotAFrame("the arrays of an answer do not fit its length, or two have one name")
        arrays[name] = np.frombuffer(body, dtype, math.prod(shape), at).reshape(shape)
        at += size
    if at != len(body):
        raise NotAFrame("the arrays of an answer do not fit its length")
    return texts, arrays


def _entry(entry: Any) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
    """Name, type and shape of an array in the list."""
    if not isinstance(entry, list) or len(entry) != 3:
        raise NotAFrame("an array of an answer has no name, type and shape")
    name, dtype, shape = entry
    if not isinstance(name, str) or len(name) > LONGEST_NAME or dtype not in DTYPES:
        raise NotAFrame("an array of an answer has an odd name or type")
    if not isinstance(shape, list) or len(shape) > MOST_AXES or not all(type(side) is int for side in shape):
        raise NotAFrame("an array of an answer has an odd shape")
    if any(not 0 <= side <= MOST_BYTES for side in shape):
        raise NotAFrame("an array of an answer has an odd shape")
    return name, np.dtype(dtype), tuple(shape)
