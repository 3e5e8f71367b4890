"""Writes a LiteRT model operator by operator, by the schema that comes with ai-edge-litert.

The batch may be open: then shapes in the file are those of one image, and -1 in a reshape is the side with the batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from qcn.export.program.program import Array, Ending, Shape

VERSION = 3  # of the schema
IDENTIFIER = b"TFL3"
ALIGNMENT = 16  # of constants: the schema asks for it, and its generated Python does not know
TYPES = {
    np.dtype(np.float32): schema.TensorType.FLOAT32,
    np.dtype(np.int32): schema.TensorType.INT32,
    np.dtype(np.int8): schema.TensorType.INT8,
}
ONE_OPTIONS = {  # where they are not named for the operator, or several share them
    "CONV_2D": "Conv2DOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "SUM": "ReducerOptions",
    "MINIMUM": "MaximumMinimumOptions",
    "MAXIMUM": "MaximumMinimumOptions",
    "BATCH_MATMUL": "BatchMatMulOptions",
}
CONVOLUTIONS: dict[bool, tuple[str, dict[str, int]]] = {  # by whether they are depthwise, with their options
    False: ("CONV_2D", {}),
    True: ("DEPTHWISE_CONV_2D", {"depthMultiplier": 1}),
}
WITHOUT_OPTIONS = ("LOG", "SQRT", "RELU", "ROUND")


@dataclass(frozen=True)
class LiteTensor:
    """A value of the graph: its number in the file, and its shape."""

    index: int
    shape: Shape


class LiteGraph:
    """Collects operators and constants. `with graph.scope("capsules1")` names what follows below it."""

    def __init__(self, batch: int | None) -> None:
        self.batch, self.images = batch, batch or 1
        self.operators: list[Any] = []
        self._tensors: list[Any] = []
        self._buffers: list[Any] = [_Buffer(b"")]  # the first one stands for no content
        self._codes: dict[str, int] = {}
        self._constants: dict[tuple[str, Shape, bytes, bytes], LiteTensor] = {}
        self._path: list[str] = []

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """What is added inside the block is named below `name`."""
        self._path.append(name)
        try:
            yield
        finally:
            self._path.pop()

    def tensor(self, name: str, shape: Shape, type: Any = np.float32, buffer: int = 0) -> LiteTensor:
        full = "/".join((*self._path, name))
        entry = schema.TensorT(shape=list(shape), type=TYPES[np.dtype(type)], buffer=buffer, name=full)
        self._tensors.append(entry)
        return LiteTensor(len(self._tensors) - 1, shape)

    def constant(self, name: str, array: Array, scales: Array | None = None, axis: int = 0) -> LiteTensor:
        """An array in the file; equal ones are there once. Integers of a weight have a scale, or one per output, which
        is its side `axis`."""
        key = (
            array.dtype.str,
            array.shape,
            content := array.tobytes(),
            scales.tobytes() if scales is not None else b"",
        )
        if key not in self._constants:
            self._buffers.append(_Buffer(content))
            constant = self._constants[key] = self.tensor(name, array.shape, array.dtype, len(self._buffers) - 1)
            if scales is not None:
                zeros = [0] * len(scales)
                steps = schema.QuantizationParametersT(scale=scales.tolist(), zeroPoint=zeros, quantizedDimension=axis)
                self._tensors[constant.index].quantization = steps
        return self._constants[key]

    def number(self, name: str, value: float) -> LiteTensor:
        return self.constant(name, np.array([value], np.float32))

    def integers(self, name: str, *values: int) -> LiteTensor:
        return self.constant(name, np.array(values, np.int32))

    def node(
        self, op: str, name: str, shape: Shape, *inputs: LiteTensor, type: Any = np.float32, **options: Any
    ) -> LiteTensor:
        """Add an operator with one output of this shape; returns it."""
        out = self.tensor(name, shape, type)
        code = self._codes.setdefault(op, len(self._codes))
        operator = schema.OperatorT(opcodeIndex=code, inputs=[one.index for one in inputs], outputs=[out.index])
        if op not in WITHOUT_OPTIONS:
            kind = ONE_OPTIONS.get(op, f"{op.title().replace('_', '')}Options")
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, kind)
            operator.builtinOptions = getattr(schema, f"{kind}T")(**options)
        self.operators.append(operator)
        return out

    def unary(self, op: str, name: str, x: LiteTensor) -> LiteTensor:
        """EXP, LOG, NEG, ABS, SQRT, RELU."""
        return self.node(op, name, x.shape, x)

    def binary(self, op: str, name: str, a: LiteTensor, b: LiteTensor, **options: Any) -> LiteTensor:
        """ADD, SUB, MUL, DIV, MINIMUM, MAXIMUM, with sides of 1 repeated."""
        return self.node(op, name, np.broadcast_shapes(a.shape, b.shape), a, b, **options)

    def reshape(self, name: str, x: LiteTensor, *shape: int) -> LiteTensor:
        """-1 is what the other sides leave: the one with the batch."""
        size = int(np.prod([side for side in shape if side != -1]))
        whole = tuple(int(np.prod(x.shape)) // size if side == -1 else side for side in shape)
        if whole == x.shape:
            return x
        return self.node("RESHAPE", name, whole, x, self.integers(f"{name}.shape", *shape), newShape=list(shape))

    def copy(self, name: str, x: LiteTensor, shape: Shape) -> LiteTensor:
        """Reshape [B, numbers] to [B, *shape], always by an operator."""
        return self.node(
            "RESHAPE", name, (self.images, *shape), x, self.integers("shape", -1, *shape), newShape=[-1, *shape]
        )

    def transpose(self, name: str, x: LiteTensor, *order: int) -> LiteTensor:
        return self.node("TRANSPOSE", name, tuple(x.shape[i] for i in order), x, self.integers(f"{name}.order", *order))

    def sum(self, name: str, x: LiteTensor, axis: int) -> LiteTensor:
        """Leaves a side of 1."""
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        return self.node("SUM", name, shape, x, self.integers(f"{name}.axis", axis), keepDims=True)

    def gather(self, name: str, x: LiteTensor, axis: int, places: Sequence[int]) -> LiteTensor:
        shape = (*x.shape[:axis], len(places), *x.shape[axis + 1 :])
        return self.node("GATHER", name, shape, x, self.integers(f"{name}.places", *places), axis=axis)

    def channels(self, name: str, x: LiteTensor, start: int, end: int) -> LiteTensor:
        """Slice the channels of a map [B, H, W, C], from `start` to before `end`."""
        if (start, end) == (0, x.shape[3]):
            return x
        limits = self.integers(f"{name}.start", 0, 0, 0, start), self.integers(f"{name}.end", 0, 0, 0, end)
        steps = self.integers(f"{name}.steps", 1, 1, 1, 1)
        shape = (*x.shape[:3], end - start)
        return self.node("STRIDED_SLICE", name, shape, x, *limits, steps, beginMask=0b0111, endMask=0b0111)

    def convolution(
        self,
        name: str,
        x: LiteTensor,
        kernel: Array,
        bias: Array,
        stride: int,
        padding: int,
        ending: Ending = "none",
        depthwise: bool = False,
    ) -> LiteTensor:
        """Convolve a map [B, H, W, C] by a kernel [out, k, k, C], or depthwise [1, k, k, C], padded with zeros."""
        window = kernel.shape[1:3]
        same = stride == 1 and {2 * padding + 1} == set(window)
        if padding and not same:
            x = self.pad(f"{name}.padded", x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
        weights = self.constant(f"{name}.weight", kernel), self.constant(f"{name}.bias", bias)
        how: dict[str, Any] = {"window": window, "stride": stride, "same": same, "ending": ending}
        return self.slide(*CONVOLUTIONS[depthwise], name, x, *weights, out=len(bias), **how)

    def slide(
        self,
        op: str,
        options: Mapping[str, int],
        name: str,
        *inputs: LiteTensor,
        out: int,
        window: Sequence[int],
        stride: int,
        same: bool = False,
        ending: Ending = "none",
    ) -> LiteTensor:
        """An operator whose window slides over a map [B, H, W, C]; `same` pads it so that it keeps its size."""
        sides = inputs[0].shape[1:3]
        if not same:
            sides = tuple((side - reach) // stride + 1 for side, reach in zip(sides, window, strict=True))
        padding = schema.Padding.SAME if same else schema.Padding.VALID
        slides = {"padding": padding, "strideH": stride, "strideW": stride, "fusedActivationFunction": fused(ending)}
        return self.node(op, name, (self.images, *sides, out), *inputs, **slides, **options)

    def pad(self, name: str, x: LiteTensor, rims: Sequence[tuple[int, int]]) -> LiteTensor:
        """Pad each side with zeros, before and behind."""
        shape = tuple(side + before + behind for side, (before, behind) in zip(x.shape, rims, strict=True))
        return self.node("PAD", name, shape, x, self.constant(f"{name}.rims", np.array(rims, np.int32)))

    def sigmoid(self, name: str, x: LiteTensor) -> LiteTensor:
        """1 / (1 + exp(−x)), to the last digits of the smallest too: means are shares of activations, however small."""
        one, power = self.number("one", 1.0), self.unary("EXP", f"{name}.power", self.unary("NEG", f"{name}.below", x))
        return self.binary("DIV", name, one, self.binary("ADD", f"{name}.one_more", power, one))

    def end(self, x: LiteTensor, ending: Ending) -> LiteTensor:
        """Apply a sigmoid ending; a ReLU or ReLU6 is fused into the operator before."""
        return self.sigmoid("sigmoid", x) if ending == "sigmoid" else x

    def file(
        self, inputs: Mapping[str, LiteTensor], outputs: Mapping[str, LiteTensor], metadata: Mapping[str, str]
    ) -> bytes:
        """The model with these inputs and outputs, which are named so."""
        for name, value in {**inputs, **outputs}.items():
            tensor = self._tensors[value.index]
            tensor.name = name
            if self.batch is None:
                tensor.shapeSignature = [-1, *value.shape[1:]]
        notes = []
        for name, text in sorted(metadata.items()):
            self._buffers.append(_Buffer(text.encode()))
            notes.append(schema.MetadataT(name=name, buffer=len(self._buffers) - 1))
        named = (
            [schema.TensorMapT(name=name, tensorIndex=value.index) for name, value in ports.items()]
            for ports in (inputs, outputs)
        )
        model = schema.ModelT(
            version=VERSION,
            operatorCodes=[_code(op) for op in self._codes],
            subgraphs=[
                schema.SubGraphT(
                    tensors=self._tensors,
                    inputs=[value.index for value in inputs.values()],
                    outputs=[value.index for value in outputs.values()],
                    operators=self.operators,
                    name="qcn",
                )
            ],
            description="qcn",
            buffers=self._buffers,
            metadata=notes,
            signatureDefs=[schema.SignatureDefT(*named, signatureKey="serving_default", subgraphIndex=0)],
        )
        builder = flatbuffers.Builder(1 << 20)
        builder.Finish(model.Pack(builder), IDENTIFIER)
        return bytes(builder.Output())


def fused(ending: Ending) -> int:
    """The function that an operator applies last."""
    kind: int = getattr(schema.ActivationFunctionType, ending.upper() if ending.startswith("relu") else "NONE")
    return kind


def _code(op: str) -> Any:
    """Older runtimes read the first field, which holds at most 127."""
    number = getattr(schema.BuiltinOperator, op)
    return schema.OperatorCodeT(deprecatedBuiltinCode=min(number, 127), builtinCode=number, version=1)


class _Buffer(schema.BufferT):  # type: ignore[misc]
    """Bytes in the file, aligned."""

    def Pack(self, builder: Any) -> int:
        if self.data:
            size = len(self.data)
            builder.StartVector(1, size, ALIGNMENT)
            builder.head -= size
            builder.Bytes[builder.head : builder.head + size] = self.data
            content = builder.EndVector()
        schema.BufferStart(builder)
        if self.data:
            schema.BufferAddData(builder, content)
        place: int = schema.BufferEnd(builder)
        return place
