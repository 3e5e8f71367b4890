"""OpenVINO's IR (`qcn.export.backends.openvino.ir`) on the CPU, in float32.

OpenVINO lowers float32 to bfloat16 (on ARM to float16) wherever the processor is faster at it, and says nothing. Here
it is told to compute in float32, and asked whether it does. So is a graph in half precision, of which only the weights
are in half: OpenVINO's own half precision would take routing's statistics with it, and these are float32 everywhere.

Of a graph in int8 it is asked what it compiled. Where it computes integers in floats, as on ARM, the graph is refused.
"""

import platform
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.errors import FellBack, MissingError, UsageError
from qcn.export.backends import FORMATS
from qcn.export.backends.model_file import ModelFile
from qcn.export.backends.onnx.runner import as_steps, layer_values
from qcn.export.backends.openvino import INSTALL
from qcn.export.backends.openvino.ir import check_pair, written_by
from qcn.export.backends.openvino.precision import read
from qcn.export.backends.receipts import Receipt, receipt_of
from qcn.export.backends.runner import Options, Runner, check_shape, imported
from qcn.export.bundle import Bundle
from qcn.export.program.program import Product, Route
from qcn.terminal.text import one_line

ARITHMETIC = "f32"
PRODUCTS = ("Convolution", "MatMul", "FullyConnected")  # of a compiled graph
INTEGERS = ("i8", "u8")  # with AVX2 alone, kernels multiply unsigned bytes by signed weights
TYPES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"} | dict.fromkeys(INTEGERS, "int8")


class OpenVinoRunner(Runner):
    """Runs model.xml with the model.bin that it names. Any number of threads may ask it at once."""

    def __init__(self, model: ModelFile, options: Options) -> None:
        super().__init__(model, options)
        self.name = "openvino (cpu)"
        self._compiled: Any = None
        self._outputs: list[str] = []
        self._takes: list[int | str] = []
        self._requests = threading.local()

    def load_backend(self) -> None:
        imported("openvino", "OpenVINO", INSTALL)

    def open(self) -> None:
        self.compile()
        self._require_integers()

    def compile(self) -> None:
        """`open` without a look at what integers are computed in."""
        openvino = imported("openvino", "OpenVINO", INSTALL)
        version = openvino.__version__.partition("-")[0]
        graph, weights = self.model.content, check_pair(self.path, self.model.content, self.model.beside)
        settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": ARITHMETIC, "PERFORMANCE_HINT": "LATENCY"}
        if self.options.threads is not None:
            settings["INFERENCE_NUM_THREADS"] = self.options.threads
        try:
            core = openvino.Core()
            model = core.read_model(graph, weights)
            self._outputs = [output.get_any_name() for output in model.outputs]
            there = {name for op in model.get_ops() for value in op.outputs() for name in value.get_names()}
            for name, place in layer_values(there, self.options.layers).items():
                model.add_outputs(place)
                self._outputs.append(name)
            compiled = core.compile_model(model, "CPU", settings)
        except RuntimeError as error:
            raise UsageError(
                f"OpenVINO {version} cannot load {self.path}, which was written by {written_by(graph)}; with "
                f"another version, rebuild it with `qcn export BUNDLE --format openvino`: {one_line(str(error), 500)}"
            ) from error
        if (got := compiled.get_property("INFERENCE_PRECISION_HINT")) != openvino.Type(np.float32):
            raise MissingError(f"OpenVINO {version} was told to compute in float32 on this CPU, but computes in {got}")
        if len(model.inputs) != 1:
            names = ", ".join(one.get_any_name() for one in model.inputs)
            raise UsageError(f"{self.path} has the inputs {names}; only one is supported, the images")
        sides = model.inputs[0].get_partial_shape()
        self._takes = [side.get_length() if side.is_static else "batch" for side in sides]
        self._compiled = compiled
        self.name = f"openvino {version} (cpu)"

    def infer(self, images: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        compiled = self.opened(self._compiled)
        check_shape(self.path, images, self._takes)
        if (request := getattr(self._requests, "request", None)) is None:
            request = self._requests.request = compiled.create_infer_request()
        try:
            request.infer([np.ascontiguousarray(images, np.float32)], share_inputs=True)
        except RuntimeError as error:
            message = one_line(str(error), 500)
            raise UsageError(f"OpenVINO cannot run {self.path} on {list(images.shape)}: {message}") from error
        values = (request.get_output_tensor(i).data.copy() for i in range(len(self._outputs)))
        return as_steps(dict(zip(self._outputs, values, strict=True)))

    def executed(self) -> list[dict[str, str]]:
        """What OpenVINO made of the graph for this CPU: of each layer what it is, its type, its kernel, and the names
        of the graph's layers in it."""
        layers = []
        for layer in self._compiled.get_runtime_model().get_ops():
            info = layer.get_rt_info()
            keys = ("layerType", "runtimePrecision", "primitiveType", "originalLayersNames")
            layers.append({key: str(info[key].value) for key in keys})
        return layers

    def _require_integers(self) -> None:
        """Refuse convolutions of integers that were compiled for floats."""
        int8_count = sum(kind == "int8" for kind, _ in read(self.model.content).weights)
        products = [layer for layer in self.executed() if layer["layerType"] in PRODUCTS] if int8_count else []
        ran = sum(layer["runtimePrecision"] in INTEGERS for layer in products)
        if ran < int8_count:
            raise FellBack(
                f"{self.name.removesuffix(' (cpu)')} computes {int8_count - ran} of {int8_count} int8 convolutions in "
                f"floating point on this processor ({platform.machine()}), so int8 gains nothing: run the "
                f"float32 bundle here"
            )

    def close(self) -> None:
        self._compiled = None
        self._requests = threading.local()


def receipts(bundle: Bundle) -> list[Receipt]:
    """From the compiled products of each operation. A compiled layer lists the names of all layers fused into it."""
    program = bundle.program()
    model = ModelFile.of_bundle(bundle, bundle.find(FORMATS["openvino"].file_in(program.precision)))
    places = {f"{op.name.replace('.', '/')}/": op for op in program.operations if isinstance(op, Product | Route)}
    ran: dict[str, list[dict[str, str]]] = {place: [] for place in places}
    runner = OpenVinoRunner(model, Options())
    runner.compile()
    try:
        for layer in runner.executed():
            names = layer["originalLayersNames"].split(",")
            place = next((place for name in names for place in places if name.startswith(place)), None)
            if place and layer["layerType"] in PRODUCTS:
                ran[place].append(layer)
    finally:
        runner.close()
    return [
        receipt_of(
            op,
            (one["runtimePrecision"] for one in ran[place]),
            (one["primitiveType"] for one in ran[place]),
            TYPES,
        )
        for place, op in places.items()
    ]
