"""A LiteRT model on the CPU, by LiteRT's interpreter for Python, which gives XNNPACK all operators that it has."""

import platform
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.errors import FellBack, UsageError
from qcn.export.backends import FORMATS
from qcn.export.backends.litert import INSTALL
from qcn.export.backends.litert.precision import read
from qcn.export.backends.model_file import ModelFile
from qcn.export.backends.precision import seen
from qcn.export.backends.receipts import Receipt
from qcn.export.backends.runner import Options, Runner, check_shape, imported, muted
from qcn.export.bundle import Bundle
from qcn.export.program.program import Convolution, Product, Route
from qcn.packages import version
from qcn.terminal.text import one_line


class LiteRtRunner(Runner):
    """Runs a .tflite file. Any number of threads may ask it, one after the other."""

    def __init__(self, model: ModelFile, options: Options) -> None:
        super().__init__(model, options)
        self.name = "litert (cpu)"
        self._interpreter: Any = None
        self._input = 0
        self._takes: list[int | str] = []
        self._size: tuple[int, ...] = ()  # of the images that memory is planned for
        self._one_at_a_time = threading.Lock()

    def load_backend(self) -> None:
        imported("ai_edge_litert.interpreter", "LiteRT", INSTALL)
        self.name = f"litert {version('ai_edge_litert')} (cpu)"

    def open(self) -> None:
        self.load_backend()
        from ai_edge_litert.interpreter import Interpreter

        from qcn.export.backends.litert.integers import multiplies_integers

        try:
            with muted():  # LiteRT announces XNNPACK
                interpreter = Interpreter(model_content=self.model.content, num_threads=self.options.threads)
                interpreter.allocate_tensors()
                wide = any(kind == "int8" for kind, _ in read(self.model.content).weights) and not multiplies_integers()
            inputs = interpreter.get_input_details()
        except (RuntimeError, ValueError) as error:
            raise UsageError(
                f"{self.name} cannot load {self.path}: {one_line(str(error), 500)}; it is damaged, or from another "
                f"version: rebuild it with `qcn export BUNDLE --format litert`"
            ) from error
        if wide:
            raise FellBack(
                f"{self.name.removesuffix(' (cpu)')} computes int8 convolutions in floating point on this processor "
                f"({platform.machine()}), so int8 gains nothing: run the float32 bundle here"
            )
        if len(inputs) != 1 or inputs[0]["dtype"] != np.float32:
            names = ", ".join(f"{one['name']} ({np.dtype(one['dtype'])})" for one in inputs)
            raise UsageError(f"{self.path} has the inputs {names}; only one is supported, the images in float32")
        sides, self._input = inputs[0]["shape_signature"].tolist(), inputs[0]["index"]
        self._takes = ["batch" if side == -1 else side for side in sides]
        self._size = tuple(inputs[0]["shape"].tolist())
        self._interpreter = interpreter

    def infer(self, images: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        interpreter = self.opened(self._interpreter)
        check_shape(self.path, images, self._takes)
        with self._one_at_a_time:
            try:
                return self._infer(interpreter, np.ascontiguousarray(images, np.float32))
            except (RuntimeError, ValueError) as error:
                self._size = ()
                message = one_line(str(error), 500)
                raise UsageError(f"LiteRT cannot run {self.path} on {list(images.shape)}: {message}") from error

    def _infer(self, interpreter: Any, images: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        if images.shape != self._size:
            interpreter.resize_tensor_input(self._input, images.shape)
            interpreter.allocate_tensors()
            self._size = images.shape
        interpreter.set_tensor(self._input, images)
        interpreter.invoke()
        return {one["name"]: interpreter.get_tensor(one["index"]) for one in interpreter.get_output_details()}

    def close(self) -> None:
        self._interpreter = None


def receipts(bundle: Bundle) -> list[Receipt]:
    """What LiteRT runs each operation in: what the file says, if LiteRT is seen to multiply int8 weights in integers.

    Votes are float32 in every plan.
    """
    imported("ai_edge_litert.interpreter", "LiteRT", INSTALL)
    from qcn.export.backends.litert.integers import multiplies_integers

    program, kind = bundle.program(), FORMATS["litert"]
    content = bundle.read(bundle.find(kind.file_in(program.precision)))
    as_planned = seen(read, content, program, kind.routing).precision == program.precision
    result = []
    for op in program.operations:
        if isinstance(op, Route):
            result.append(Receipt(op.name, op.precision, "fp32", "BATCH_MATMUL"))
        elif isinstance(op, Product):
            ran = op.precision if as_planned and multiplies_integers() else "fp32"
            result.append(Receipt(op.name, op.precision, ran, _operator(op)))
    return result


def _operator(op: Product) -> str:
    if isinstance(op, Convolution):
        return "DEPTHWISE_CONV_2D" if op.depthwise else "CONV_2D"
    return "FULLY_CONNECTED"
