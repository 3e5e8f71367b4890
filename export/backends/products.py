"""What the readers of files give: the weights that a file multiplies by, and all types of numbers in it."""

from dataclasses import dataclass

ELEMENT_TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}
HALVES = {"float16", "bfloat16"}
FLOATS = HALVES | {"float32"}
MOST_BYTES = 1 << 28  # of what is read into memory: a graph or the description of one; ours have a few megabytes


@dataclass(frozen=True)
class Products:
    """Of a file's convolutions and linear layers the type ("float16") and shape of each weight, and every type of
    floating-point or quantised number that occurs anywhere in it."""

    weights: tuple[tuple[str, tuple[int, ...]], ...]
    types: frozenset[str]
