"""A program as a torch module: what TorchScript and pt2 files are traced from, and torch's own backends run."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qcn import routing
from qcn.errors import BuildError
from qcn.export.backends.torch.unrolled import UnrolledRoute
from qcn.export.program import operations as ops
from qcn.export.program.program import Program
from qcn.names import Precision, ProgramKernels
from qcn.networks.model import at_least_single

FEW = 1024  # products of int8 whose sums float32 has exactly: 1024 · 128 · 127 < 2²⁴
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Interpreter(nn.Module):
    """Runs the operations of a program, each by the method of its name: image [B, C, H, W] -> a tuple of the outputs.

    The outputs are the program's, and with `every_layer` also the pose and activation of each capsule layer before the
    last. Images and outputs are float32 in every precision; after `.double()` they are float64, and of all rounding
    there is only that of the arrays and to int8. `nudge` moves what is rounded to int8 by such a share of itself and of
    a step: what lies closer to the middle between two steps may go either way in another body.
    """

    def __init__(
        self, program: Program, every_layer: bool = False, kernels: ProgramKernels = "unrolled", nudge: float = 0.0
    ) -> None:
        super().__init__()
        self.program, self.kernels, self.nudge = program, kernels, nudge
        self.outputs = program.outputs_with(every_layer)
        self._places: dict[tuple[str, str], str] = {}  # by operation and array, the name of its buffer
        self._layers: dict[str, UnrolledRoute] = {}
        for i, operation in enumerate(program.operations):
            if isinstance(operation, ops.Route) and kernels == "unrolled":
                rotation = torch.tensor(program.rotation(operation))
                beta_u, beta_a = (torch.tensor(program.arrays[name]) for name in operation.arrays[1:])
                votes = None if operation.precision == "fp32" else DTYPES[operation.precision]
                self._layers[operation.name] = UnrolledRoute(operation, rotation, beta_u, beta_a, votes)
                self.add_module(f"layer{i}", self._layers[operation.name])
                continue
            # The statistics of routing are float32 in every precision, and so are their arrays; integers become floats.
            whole = isinstance(operation, ops.Route) or operation.precision == "int8"
            dtype = torch.float32 if whole else DTYPES[operation.precision]
            for k, name in enumerate(operation.arrays):
                array = program.arrays[name]
                if isinstance(operation, ops.Route) and name == operation.rotation:
                    array = program.rotation(operation)
                exact = torch.float64 if array.dtype == "int32" else dtype
                tensor = torch.tensor(array, dtype=exact)
                if not tensor.isfinite().all():
                    largest = f"{abs(program.arrays[name]).max():g}"
                    raise BuildError(f"the array '{name}' does not fit {operation.precision}: its largest is {largest}")
                self._places[operation.name, name] = f"array{i}_{k}"
                self.register_buffer(f"array{i}_{k}", tensor)

    def example(self) -> Tensor:
        """Images to trace it with: two, so that nothing is taken for a batch of one."""
        return torch.zeros(2, *self.program.input.shape)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """[B, C, H, W] -> `outputs`, in their order, each [B, …]."""
        values = self.values(image)
        return tuple(at_least_single(values[out.value]).reshape(-1, *out.shape) for out in self.outputs)

    def values(self, image: Tensor) -> dict[str, Tensor]:
        """[B, C, H, W] -> every value of the program by its name, the image among them."""
        values = {self.program.input.name: image}
        for operation in self.program.operations:
            outputs = self.operation(operation, [values[name] for name in operation.reads])
            values |= {value.name: tensor for value, tensor in zip(operation.outputs, outputs, strict=True)}
        return values

    def operation(self, operation: ops.Operation, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        """One operation of the program: what it makes of the values that it reads, in the order of its outputs."""
        outputs: tuple[Tensor, ...] = getattr(self, f"_{operation.op}")(operation, inputs)
        return outputs

    def _affine(self, op: ops.Affine, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        scale, shift = self._array(op, op.scale)[:, None, None], self._array(op, op.shift)[:, None, None]
        return (end(inputs[0].to(scale.dtype) * scale + shift, op.ending),)

    def _convolution(self, op: ops.Convolution, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        if op.precision == "int8":
            return (end(self._integers(op, inputs), op.ending),)
        out: Tensor | None = None
        bias: Tensor | None = self._array(op, op.bias)
        for x, name, stride, padding in zip(inputs, op.weights, op.strides, op.paddings, strict=True):
            weight = self._array(op, name)
            part = F.conv2d(x.to(weight.dtype), weight, bias, stride, padding, groups=groups(op))
            out, bias = part if out is None else out + part, None  # the bias once
        assert out is not None  # a convolution has an input
        return (end(out, op.ending),)

    def _sum(self, op: ops.Sum, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        dtype = torch.float64 if inputs[0].dtype == torch.float64 else DTYPES[op.precision]
        return (inputs[0].to(dtype) + inputs[1].to(dtype),)

    def _pool(self, op: ops.Pool, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        pool = F.max_pool2d if op.kind == "max" else F.avg_pool2d
        return (pool(inputs[0], op.kernel, op.stride),)

    def _linear(self, op: ops.Linear, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        if op.precision == "int8":
            return (end(self._integers(op, inputs), op.ending),)
        weight = self._array(op, op.weight)
        return (end(F.linear(inputs[0].flatten(1).to(weight.dtype), weight, self._array(op, op.bias)), op.ending),)

    def _integers(self, op: ops.Product, inputs: list[Tensor]) -> Tensor:
        """An operation in int8 before its ending (`qcn.export.program.program`); sums are exact.

        Those of a depthwise convolution are few enough for float32, in which torch has a fast kernel of it.
        """
        whole: Tensor | None = None
        broad = (-1, *[1] * (len(op.shape) - 1))
        for i, x in enumerate(inputs):
            scale = torch.tensor(op.input_scales[i], dtype=x.dtype, device=x.device)
            steps = x / scale
            q = torch.round(steps + self.nudge * (1 + steps.abs())).clamp(-128, 127)
            weight = self._array(op, op.factors[i])
            exact = torch.float32 if weight[0].numel() <= FEW and groups(op) > 1 else torch.float64
            q, weight = q.to(exact), weight.to(exact)
            if isinstance(op, ops.Convolution):
                acc = F.conv2d(q, weight, None, op.strides[i], op.paddings[i], groups=groups(op)).double()
            else:
                acc = F.linear(q.flatten(1), weight)
            if i == 0:
                acc = acc + self._array(op, op.bias).view(broad)
            part = acc.to(x.dtype) * (scale * self._array(op, op.weight_scales[i])).view(broad)
            whole = part if whole is None else whole + part
        assert whole is not None  # an operation has an input
        return whole

    def _route(self, op: ops.Route, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        pose, activation = map(at_least_single, inputs)
        if pose.ndim == 4:  # as a convolution gives them
            pose = pose.unflatten(1, (-1, 3))
        if self.kernels == "unrolled":
            outputs: tuple[Tensor, ...] = self._layers[op.name](pose, activation)
            return outputs
        return routing.route(
            pose,
            activation,
            *(self._array(op, name) for name in op.arrays),
            window=op.window,
            stride=op.stride,
            iterations=op.iterations,
            mode=op.mode,
            logit=op.ending == "none",
            kernels=self.kernels,
            half=self._votes(op, pose.dtype),
        )

    def _votes(self, op: ops.Route, dtype: torch.dtype) -> torch.dtype | None:
        """The type that kernels round votes to; in float64 there is no rounding."""
        rounds = op.precision != "fp32" and dtype == torch.float32
        return DTYPES[op.precision] if rounds else None

    def _array(self, operation: ops.Operation, name: str) -> Tensor:
        return self.get_buffer(self._places[operation.name, name])


def facts_of(interpreter: Interpreter, precision: Precision) -> dict[str, Any]:
    """Facts for programs that run a file made from this: inputs, outputs, and the precision of each part."""
    image = interpreter.program.input
    return {
        "precision": precision,
        "convolutions": str(DTYPES[precision]).removeprefix("torch."),
        "routing": "float32",
        "inputs": {image.name: ["batch", *image.shape]},
        "outputs": {output.name: ["batch", *output.shape] for output in interpreter.outputs},
        "torch": torch.__version__,
    }


def end(x: Tensor, ending: ops.Ending) -> Tensor:
    """The ending of an operation. A sigmoid needs the digits of float32."""
    if ending == "none":
        return x
    if ending == "relu6":
        return F.relu6(x)
    return F.relu(x) if ending == "relu" else torch.sigmoid(at_least_single(x))


def groups(op: ops.Operation) -> int:
    """The number of groups: as many as channels for a depthwise convolution."""
    return op.shape[0] if isinstance(op, ops.Convolution) and op.depthwise else 1
