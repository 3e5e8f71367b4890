"""Receptive fields: which pixels of the image a place of a map depends on, worked out from the program."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qcn.export.program.program import Affine, Convolution, Pool, Program, Route, Sum


@dataclass(frozen=True)
class Field:
    """Along one side of the image, place i sees the pixels from low + i · step to below high + i · step.

    Those outside the image are padding.
    """

    low: int
    high: int
    step: int

    def under(self, window: int, stride: int, padding: int = 0) -> "Field":
        """The field of a window over places of this one."""
        return Field(self.low - padding * self.step, self.high + (window - 1 - padding) * self.step, self.step * stride)


Fields = tuple[Field, Field]  # downwards, across


def fields(program: Program) -> dict[str, Fields]:
    """By the name of a value. What follows a linear layer has no places, and no field."""
    result = {program.input.name: (Field(0, 1, 1), Field(0, 1, 1))}
    for operation in program.operations:
        sources = [result[name] for name in operation.reads if name in result]
        match operation:
            case Affine():
                windows = [((1, 1), 1, 0)]
            case Sum():
                windows = [((1, 1), 1, 0)] * 2
            case Pool():
                windows = [((operation.kernel, operation.kernel), operation.stride, 0)]
            case Convolution():
                kernels = [program.arrays[name].shape[2:] for name in operation.weights]
                windows = list(zip(kernels, operation.strides, operation.paddings, strict=True))
            case Route():
                windows = [(operation.window, operation.stride, 0)] * 2
            case _:
                continue
        seen = [
            tuple(side.under(width, stride, padding) for side, width in zip(source, window, strict=True))
            for source, (window, stride, padding) in zip(sources, windows, strict=True)
        ]
        joined = (union([one[0] for one in seen]), union([one[1] for one in seen]))
        result |= {value.name: joined for value in operation.outputs}
    return result


def union(parts: Sequence[Field]) -> Field:
    """The field that covers several."""
    return Field(min(part.low for part in parts), max(part.high for part in parts), max(part.step for part in parts))


def over_image(weights: NDArray[np.float64], seen: Fields, size: Sequence[int]) -> NDArray[np.float64]:
    """Weights [h, w] of places, each spread over what its place sees: [H, W] of the same sum.

    A place depends most on the middle of its field, so a weight is spread as a bell (Hann's window). What a bell loses
    to the padding goes to its other pixels.
    """
    down, across = (_bells(field, places, side) for field, places, side in zip(seen, weights.shape, size, strict=True))
    return down.T @ weights @ across


def _bells(field: Field, places: int, side: int) -> NDArray[np.float64]:
    """[places, side], each row with the sum 1."""
    middle = (field.low + field.high) / 2 + field.step * np.arange(places)[:, None]
    reach = (field.high - field.low + 1) / 2
    distance = np.abs(np.arange(side) + 0.5 - middle) / reach
    bell = np.where(distance < 1, 1 + np.cos(np.pi * np.minimum(distance, 1)), 0)
    return bell / np.maximum(bell.sum(1, keepdims=True), np.finfo(np.float64).tiny)
