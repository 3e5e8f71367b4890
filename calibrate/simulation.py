"""A program in any precision, by torch: fast where it is float32, rounded as a device rounds where it is not."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qcn import routing
from qcn.calibrate.observers import batches
from qcn.data.spec import Preprocessing
from qcn.export.backends.torch.interpreter import DTYPES, Interpreter
from qcn.export.backends.torch.unrolled import UnrolledRoute
from qcn.export.program.program import Program, Route
from qcn.kernels import native
from qcn.kernels.shapes import Layer
from qcn.terminal.progress import doing


@dataclass(frozen=True)
class ProgramOutputs:
    """Answers to images: logit [N, classes], pose [N, classes, 3] (None for a CNN)."""

    logit: NDArray[np.float32]
    pose: NDArray[np.float32] | None

    @property
    def predicted(self) -> NDArray[np.int64]:
        return self.logit.argmax(1)


class Simulation(Interpreter):
    """Routes float32 layers by the fastest kernels, bf16 layers unrolled, and fp16 layers by libqcn.

    Where this CPU has no float16 arithmetic, fp16 layers are routed by the reference, which rounds, and slowly.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program, kernels="reference")

    def _route(self, op: Route, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        pose, activation = inputs
        pose = pose.reshape(len(pose), -1, 3, *pose.shape[-2:])
        rotation, beta_u, beta_a = (self._array(op, name) for name in op.arrays)
        arrays = (rotation, beta_u, beta_a)
        how: dict[str, Any] = {"window": op.window, "stride": op.stride, "iterations": op.iterations}
        how["logit"] = op.ending == "none"
        if op.precision == "bf16":
            made: tuple[Tensor, ...] = UnrolledRoute(op, *arrays, DTYPES["bf16"])(pose, activation)
            return made
        if op.precision == "fp16" and native.has_half():
            layer = Layer(op.window, op.stride, op.iterations, op.mode == "unit", how["logit"])
            return native.half_forward((pose, activation, *arrays), layer)
        how["mode"] = op.mode
        if op.precision == "fp32":
            return routing.route(pose, activation, *arrays, **how)
        # One image at a time: the votes, written out, are 50 MB of a full-size QCN.
        how |= {"kernels": "reference", "half": torch.float16}
        maps = zip(pose.split(1), activation.split(1), strict=True)
        parts = [routing.route(*one, *arrays, **how) for one in maps]
        return tuple(torch.cat(outputs) for outputs in zip(*parts, strict=True))


def answers(program: Program, images: NDArray[np.uint8], spec: Preprocessing, task: str = "") -> ProgramOutputs:
    """Run a program on images [N, C, H, W]; progress shows `task`."""
    simulation, parts = Simulation(program).eval(), []
    with torch.inference_mode():
        for done, batch in batches(images, spec):
            parts.append(simulation(batch))
            if task:
                doing(task, done, of=len(images))
    outputs = [torch.cat([part[i] for part in parts]).numpy() for i in range(len(program.outputs))]
    return ProgramOutputs(outputs[0], outputs[1] if program.poses else None)
