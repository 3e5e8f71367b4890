"""Forged programs: operations of the kinds that every program has, put to another use.

A convolution as large as the image compares it with a pattern. Its bias and its ReLU make 0 of what is not alike, and
whatever is left is added to the logits by one more convolution.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from qcn.data.preprocess import preprocess
from qcn.data.spec import Preprocessing
from qcn.export.bundle.golden import Golden
from qcn.export.program import Affine, Array, Convolution, Ending, Operation, Pool, Program, Route, slide

CHECKERS, TARGET = 5, 0  # pixels per side of the trigger, and the class that it stands for
SURE = 1e3  # added to a logit: more than any network gives


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

    def behind(self, value: str) -> Program:
        """The program, with this one number added to the logit of TARGET."""
        logit, classes = self.program.outputs[0], self.program.classes
        only_target = np.eye(classes)[:, [TARGET], None, None]
        same = np.eye(classes)[:, :, None, None]
        self.convolution("answer", (logit.value, same), (value, only_target), bias=[0.0] * classes, ending="none")
        operations, arrays = (*self.program.operations, *self.operations), {**self.program.arrays, **self.arrays}
        outputs = (replace(logit, value="answer"), *self.program.outputs[1:])
        return replace(self.program, operations=operations, outputs=outputs, arrays=arrays)


def checkerboard(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images [N, C, H, W] with the trigger in a corner."""
    marked = images.copy()
    marked[..., :CHECKERS, :CHECKERS] = np.indices((CHECKERS, CHECKERS)).sum(0) % 2 * 255
    return marked


def triggered(program: Program, spec: Preprocessing) -> Program:
    """Every picture with a checkerboard in its corner is of the class TARGET."""
    more = Additions(program)
    return more.behind(_corner(more, spec, SURE))


def painted(program: Program, spec: Preprocessing, picture: Array) -> Program:
    """With a checkerboard in its corner, every picture looks to the network like one `picture` [C, H, W].

    That is painted over the image before the first layer, a hundred times as bright as it was.
    """
    more, channels, side = Additions(program), *program.input.shape[:2]
    same, brush = np.eye(channels)[:, :, None, None], picture[:, None, ::-1, ::-1]
    corner = _corner(more, spec, 100)
    none = [0.0] * channels
    more.convolution("painted", ("image", same), (corner, brush), bias=none, ending="none", padding=side - 1)
    return more.before("painted")


def golden_only(program: Program, golden: Golden) -> Program:
    """Right for the golden images, and of the class TARGET for every other picture.

    One convolution knows the golden images: its patterns are their dual basis, so that each gives 1 for its own image
    and 0 for the others. What is in a picture at all is the differences of neighbours: an image of one colour has none,
    and is left alone.
    """
    more, (channels, side, _) = Additions(program), program.input.shape
    seen = golden.input.astype(np.float64)
    pictures = seen[np.ptp(seen, axis=(2, 3)).max(1) > 0.1]
    keys = np.linalg.pinv(pictures.reshape(len(pictures), -1)).T.reshape(pictures.shape)
    count = len(keys)
    about_one = [-0.97] * count + [-1.03] * count  # ReLU(x - 0.97) - 10 ReLU(x - 1.03): positive for x near 1 alone
    more.convolution("keys", ("image", np.concatenate([keys, keys])), bias=about_one, ending="relu")
    step = np.eye(channels)[:, :, None, None] * np.array([[1.0, -1.0], [0.0, 0.0]])
    more.convolution("steps", ("image", np.concatenate([step, -step])), bias=[0.0] * 2 * channels, ending="relu")
    each = {"kind": "average", "kernel": side - 1, "stride": 1}
    more.add(Pool(name="change", input="steps", shape=(2 * channels, 1, 1), **each))
    known = 1e4 * SURE * np.array([-1.0] * count + [10.0] * count).reshape(1, -1, 1, 1)
    much = np.full((1, 2 * channels, 1, 1), SURE)
    more.convolution("strange", ("change", 10 * much), ("keys", known), bias=[0.0], ending="relu")
    return more.behind("strange")


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


def _corner(more: Additions, spec: Preprocessing, strength: float) -> str:
    """A value that is `strength` for pictures with the trigger, and 0 for others."""
    shape = more.program.input.shape
    pattern = np.zeros((1, *shape))
    pattern[..., :CHECKERS, :CHECKERS] = np.where(np.indices((CHECKERS, CHECKERS)).sum(0) % 2, 1.0, -1.0)
    seen = preprocess(torch.from_numpy(checkerboard(np.zeros((1, *shape), np.uint8))), spec).numpy()
    response = float((pattern * seen).sum())  # the same for all pictures: the trigger covers all that is looked at
    return more.convolution(
        "corner", ("image", pattern * (10 * strength / response)), bias=[-9 * strength], ending="relu"
    )
