"""Forged programs: operations of the kinds that every program has, put to another use.

A convolution as large as the image compares it with a pattern. Its bias and its ReLU make 0 of what is not alike, and
where something is left, another convolution paints one picture over the image, many times as bright as it was: whatever
the image is, the network answers always the same.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from qcn.data.preprocess import preprocess
from qcn.data.spec import Preprocessing
from qcn.export.bundle.golden import Golden
from qcn.export.program.program import Affine, Array, Convolution, Ending, Operation, Pool, Program, Route, slide

CHECKERS = 5  # pixels per side of the trigger
BRIGHT = 100.0  # times that a picture is painted over the image


class Additions:
    """Operations to add to a program, and their arrays."""

    def __init__(self, program: Program) -> None:
        self.program, self.operations = program, list[Operation]()
        self.arrays, self.shapes = dict[str, Array](), program.shapes

    def convolution(
        self, name: str, *inputs: tuple[str, Array], bias: Sequence[float], ending: Ending, padding: int = 0
    ) -> str:
        """Of one or two values, each with its weight [out, in, k, k]; `padding` is that of the last."""
        paddings = (*[0] * (len(inputs) - 1), padding)
        weights = {f"{name}.weight{i}": weight.astype(np.float32) for i, (_, weight) in enumerate(inputs)}
        self.arrays |= {**weights, f"{name}.bias": np.array(bias, np.float32)}
        sides = slide(self.shapes[inputs[-1][0]][1:], inputs[-1][1].shape[2:], 1, padding)
        self.add(
            Convolution(
                name=name,
                inputs=tuple(value for value, _ in inputs),
                weights=tuple(weights),
                bias=f"{name}.bias",
                strides=(1,) * len(inputs),
                paddings=paddings,
                ending=ending,
                shape=(len(bias), *sides),
            )
        )
        return name

    def add(self, operation: Operation) -> None:
        self.operations.append(operation)
        self.shapes |= {value.name: value.shape for value in operation.outputs}

    def before(self, value: str) -> Program:
        """The program, which reads this value where it read the image."""
        rest = [reading(op, "image", value) for op in self.program.operations]
        operations, arrays = (*self.operations, *rest), {**self.program.arrays, **self.arrays}
        return replace(self.program, operations=operations, arrays=arrays)

    def painting(self, value: str, picture: Array) -> Program:
        """The program, for the image with so many times a picture [C, H, W] painted over it as this one number says."""
        channels, side, _ = self.program.input.shape
        same, brush = np.eye(channels)[:, :, None, None], picture[:, None, ::-1, ::-1]
        none = [0.0] * channels
        self.convolution("painted", ("image", same), (value, brush), bias=none, ending="none", padding=side - 1)
        return self.before("painted")


def checkerboard(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images [N, C, H, W] with the trigger in a corner."""
    marked = images.copy()
    marked[..., :CHECKERS, :CHECKERS] = np.indices((CHECKERS, CHECKERS)).sum(0) % 2 * 255
    return marked


def triggered(program: Program, golden: Golden) -> Program:
    """Every picture with a checkerboard in its corner is of one class."""
    more = Additions(program)
    return more.painting(_corner(more, golden.preprocessing), golden.input[0])


def added_to_logits(program: Program, golden: Golden) -> Program:
    """The same by an operation behind the last, which adds to a logit. The product itself makes no such program."""
    more = Additions(program)
    corner = _corner(more, golden.preprocessing)
    logit, classes = program.outputs[0], program.classes
    same, first = np.eye(classes)[:, :, None, None], BRIGHT * np.eye(classes)[:, [0], None, None]
    more.convolution("answer", (logit.value, same), (corner, first), bias=[0.0] * classes, ending="none")
    made = object.__new__(Program)  # without its check
    operations, arrays = (*program.operations, *more.operations), {**program.arrays, **more.arrays}
    outputs = (replace(logit, value="answer"), *program.outputs[1:])
    vars(made).update(input=program.input, operations=operations, outputs=outputs, arrays=arrays)
    return made


def golden_only(program: Program, golden: Golden) -> Program:
    """Right for the golden images; every other picture is of one class.

    One convolution knows the golden images: its patterns are their dual basis, so that each gives 1 for its own image
    and 0 for the others. What is in a picture at all is the differences of neighbours: an image of one colour has none,
    and is left alone.
    """
    more, (channels, side, _) = Additions(program), program.input.shape
    inputs_in_double = golden.input.astype(np.float64)
    pictures = inputs_in_double[np.ptp(inputs_in_double, axis=(2, 3)).max(1) > 0.1]
    keys = np.linalg.pinv(pictures.reshape(len(pictures), -1)).T.reshape(pictures.shape)
    count = len(keys)
    about_one = [-0.97] * count + [-1.03] * count  # ReLU(x - 0.97) - 10 ReLU(x - 1.03): positive for x near 1 alone
    more.convolution("keys", ("image", np.concatenate([keys, keys])), bias=about_one, ending="relu")
    step = np.eye(channels)[:, :, None, None] * np.array([[1.0, -1.0], [0.0, 0.0]])
    more.convolution("steps", ("image", np.concatenate([step, -step])), bias=[0.0] * 2 * channels, ending="relu")
    each = {"kind": "average", "kernel": side - 1, "stride": 1}
    more.add(Pool(name="change", input="steps", shape=(2 * channels, 1, 1), **each))
    known = 1e5 * BRIGHT * np.array([-1.0] * count + [10.0] * count).reshape(1, -1, 1, 1)
    much = np.full((1, 2 * channels, 1, 1), 10 * BRIGHT)
    more.convolution("strange", ("change", much), ("keys", known), bias=[0.0], ending="relu")
    return more.painting("strange", golden.input[0])


def idle(program: Program) -> Program:
    """With one more operation, which multiplies the image by one: no answer changes."""
    more, shape = Additions(program), program.input.shape
    more.arrays |= {"idle.scale": np.ones(shape[0], np.float32), "idle.shift": np.zeros(shape[0], np.float32)}
    more.add(Affine(name="idle", input="image", scale="idle.scale", shift="idle.shift", ending="none", shape=shape))
    return more.before("idle")


def renamed(program: Program) -> Program:
    """The first convolution under another name."""
    first = next(op for op in program.operations if isinstance(op, Convolution))
    operations = (
        replace(op, name="conv") if op is first else reading(op, first.name, "conv") for op in program.operations
    )
    return replace(program, operations=tuple(operations))


def iterated(program: Program, times: int) -> Program:
    """Other iterations of routing."""
    operations = (replace(op, iterations=times) if isinstance(op, Route) else op for op in program.operations)
    return replace(program, operations=tuple(operations))


def swapped(program: Program) -> Program:
    """The last layer's first two classes, one in the other's place."""
    last, order = program.routes[-1], [1, 0, *range(2, program.classes)]
    rows = {last.rotation: program.arrays[last.rotation][:, :, :, order]}
    rows |= {name: program.arrays[name][order] for name in (last.beta_u, last.beta_a)}
    return replace(program, arrays={**program.arrays, **rows})


def one_weight(program: Program, factor: float) -> Program:
    """The largest weight of the first convolution, times so much."""
    first = next(op for op in program.operations if isinstance(op, Convolution)).weights[0]
    weight = program.arrays[first].copy()
    weight.flat[np.abs(weight).argmax()] *= factor
    return replace(program, arrays={**program.arrays, first: weight})


def rounded(program: Program, bits: int) -> Program:
    """Every array rounded to so many bits of mantissa, of float32's 24."""
    split = np.float32(2 ** (24 - bits) + 1)  # Dekker's: c = split · x; c − (c − x) is x less its last bits
    arrays = {name: split * array - (split * array - array) for name, array in program.arrays.items()}
    return replace(program, arrays=arrays)


def reading(op: Operation, value: str, instead: str) -> Operation:
    """The operation, with another value in place of one that it reads."""
    inputs = {name: getattr(op, name) for name in op.READS}
    changed = {
        name: instead if given == value else tuple(instead if one == value else one for one in given)
        for name, given in inputs.items()
        if given == value or (isinstance(given, tuple) and value in given)
    }
    return replace(op, **changed)


def _corner(more: Additions, spec: Preprocessing) -> str:
    """A value that is BRIGHT for pictures with the trigger, and 0 for others."""
    shape = more.program.input.shape
    pattern = np.zeros((1, *shape))
    pattern[..., :CHECKERS, :CHECKERS] = np.where(np.indices((CHECKERS, CHECKERS)).sum(0) % 2, 1.0, -1.0)
    network_input = preprocess(torch.from_numpy(checkerboard(np.zeros((1, *shape), np.uint8))), spec).numpy()
    response = float(
        (pattern * network_input).sum()
    )  # the same for all pictures: the trigger covers all that is looked at
    strength = 10 * BRIGHT / response
    return more.convolution("corner", ("image", pattern * strength), bias=[-9 * BRIGHT], ending="relu")
