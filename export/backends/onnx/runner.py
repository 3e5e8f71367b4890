"""An ONNX file in ONNX Runtime, by the execution provider that was asked for and no other."""

import importlib
import json
import os
import re
import tempfile
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.errors import MissingError, UsageError
from qcn.export.backends import FORMATS
from qcn.export.backends.definition import Device
from qcn.export.backends.model_file import ModelFile
from qcn.export.backends.receipts import Receipt, receipt_of
from qcn.export.backends.runner import Options, Runner, check_shape, imported
from qcn.export.bundle import Bundle
from qcn.export.program.program import Operation, Product, Route
from qcn.packages import installed

OPERATORS = "QCN_ONNXRUNTIME_OPS"  # environment variable: libqcn_onnxruntime.so, for fused graphs (deploy/onnxruntime)
PROVIDERS: dict[Device, str] = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_INSTALL: dict[Device, str] = {"cpu": "pip install onnxruntime", "cuda": "pip install onnxruntime-gpu"}
TYPES = {"float": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8"}
_PROFILED = "_kernel_time"  # the end of a kernel's name in a profile
FIX = "pip install onnxruntime-gpu, on a machine with a GPU"  # for what `cannot` names


def cannot(precision: str, device: Device) -> str:
    """Why ONNX Runtime cannot run any graph of this precision on this device; empty if it can."""
    return "ONNX Runtime has no bf16 convolutions on a CPU" if (precision, device) == ("bf16", "cpu") else ""


def load_onnxruntime(device: Device) -> Any:
    """ONNX Runtime, or what brings it."""
    return imported("onnxruntime", "ONNX Runtime", _INSTALL[device])


def session_options(onnxruntime: Any, own: Options) -> Any:
    """For a graph that may be a stranger's."""
    options = onnxruntime.SessionOptions()
    if own.threads is not None:
        options.intra_op_num_threads = own.threads
    if own.thrifty:  # threads that wait sleep
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Weights beside the graph would be weights that no hash was checked of.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
    return options


@dataclass(frozen=True)
class _Bound:
    """The memory on the GPU for one batch size, and the options to run as a CUDA graph or not."""

    images: Any
    binding: Any
    as_graph: Any
    one_by_one: Any


class OnnxRuntimeRunner(Runner):
    """Runs an ONNX file.

    ONNX Runtime falls back to the CPU without a word when CUDA's libraries do not load; here that is an error. On a GPU
    an inference is captured as a CUDA graph at each new batch size. With layers, which go without such graphs, every
    iteration of their routing is given out too where it is written out in the file.
    """

    def __init__(self, model: ModelFile, options: Options) -> None:
        super().__init__(model, options)
        self.device = options.device
        self.graph = True if self.transfers and not options.layers else None
        self.name = f"onnxruntime ({options.device})"
        self._session: Any = None
        self._bound: dict[tuple[int, ...], _Bound] = {}
        self._current: Any = None

    def open(self) -> None:
        provider = PROVIDERS[self.device]
        if why := cannot(self.options.precision, self.device):
            raise MissingError(f"{why}: {FIX}")
        onnxruntime = load_onnxruntime(self.device)
        available = onnxruntime.get_available_providers()
        if provider not in available:
            raise MissingError(
                f"onnxruntime {onnxruntime.__version__} here has no {provider}, only {', '.join(available)}: "
                f"{_INSTALL[self.device]}"
            )
        if self.device == "cuda" and installed("torch"):
            importlib.import_module("torch")  # its wheel brings CUDA's libraries; loading it makes them found
        options = session_options(onnxruntime, self.options)
        operators = os.environ.get(OPERATORS, "") if self.device == "cpu" else ""
        if operators and not Path(operators).is_file():
            raise MissingError(f"{operators}, which {OPERATORS} names, does not exist: build it in deploy/onnxruntime")
        try:
            # TF32 is the CUDA provider's default: float32 would have 10 bits of mantissa.
            settings = {"use_tf32": "0"} if self.device == "cuda" else {}
            if self.graph is not None:
                settings["enable_cuda_graph"] = "1"
            if operators:
                options.register_custom_ops_library(operators)
            content, layers = self.model.content, self.options.layers
            model = _with_layers(content, layers) if layers else content
            session = onnxruntime.InferenceSession(model, options, providers=[(provider, settings)])
        except Exception as error:  # its errors have no common base but Exception
            raise UsageError(f"ONNX Runtime cannot load {self.path}: {error}") from error
        got = session.get_providers()
        if got[0] != provider:
            raise MissingError(
                f"{provider} was requested, but ONNX Runtime {onnxruntime.__version__} fell back to {got[0]}: "
                f"the CUDA or cuDNN libraries did not load (its own message is above); see `qcn doctor`"
            )
        session.disable_fallback()
        if len(session.get_inputs()) != 1:
            names = ", ".join(value.name for value in session.get_inputs())
            raise UsageError(f"{self.path} has the inputs {names}; only one is supported, the images")
        self._session = session
        by = f"{self.device}, {operators}" if operators else self.device
        self.name = f"onnxruntime {onnxruntime.__version__} ({by})"

    def infer(self, images: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        port = self._input_for(images)
        if self.transfers:
            self.upload(images)
        try:
            if self.transfers:
                self.enqueue()
                values = self._current.binding.copy_outputs_to_cpu()
            else:
                values = self._session.run(None, {port.name: np.ascontiguousarray(images, np.float32)})
        except Exception as error:  # its errors have no common base but Exception
            raise UsageError(f"ONNX Runtime cannot run {self.path} on {list(images.shape)}: {error}") from error
        return as_steps(dict(zip((output.name for output in self._session.get_outputs()), values, strict=True)))

    def upload(self, images: NDArray[np.float32]) -> None:
        """Copy images to the GPU; they stay there, and so do the answers, for any number of `enqueue`."""
        port = self._input_for(images)
        if images.shape not in self._bound:
            self._bound[images.shape] = self._bind(port.name, images.shape)
        self._current = self._bound[images.shape]
        self._current.images.update_inplace(np.ascontiguousarray(images, np.float32))

    def enqueue(self) -> None:
        current = self._current
        self._session.run_with_iobinding(current.binding, current.as_graph if self.graph else current.one_by_one)

    def synchronize(self) -> None:
        self._current.binding.synchronize_outputs()

    def _bind(self, image: str, shape: tuple[int, ...]) -> _Bound:
        """Memory for images of this shape and for the answers: a graph reads and writes where it did when captured."""
        import onnxruntime

        images = onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, np.float32, self.device, 0)
        binding = self._session.io_binding()
        binding.bind_ortvalue_input(image, images)
        for output in self._session.get_outputs():
            if self.graph is None:
                binding.bind_output(output.name, self.device)  # of any shape: layers do not say theirs
            else:
                sides = [shape[0], *output.shape[1:]]
                value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(sides, np.float32, self.device, 0)
                binding.bind_ortvalue_output(output.name, value)
        numbered = onnxruntime.RunOptions(), onnxruntime.RunOptions()
        for options, number in zip(numbered, (len(self._bound) + 1, -1), strict=True):
            options.add_run_config_entry("gpu_graph_id", str(number))  # -1: no graph
        return _Bound(images, binding, *numbered)

    def _input_for(self, images: NDArray[np.float32]) -> Any:
        """The graph's input, if it takes these images."""
        port = self.opened(self._session).get_inputs()[0]
        check_shape(self.path, images, port.shape)
        return port

    def close(self) -> None:
        self._session = self._current = None
        self._bound = {}


def _with_layers(graph: bytes, layers: tuple[str, ...]) -> bytes:
    """The graph with more outputs: its values are named for their places (`qcn.export.backends.onnx`)."""
    onnx = imported("onnx", "onnx, which looks into graphs,", "pip install onnx")
    model = onnx.load_from_string(graph)
    there = {output for node in model.graph.node for output in node.output}
    for name, place in layer_values(there, layers).items():
        if name == place:  # of any type: a statistic that is not float32 is a fault to be found
            model.graph.output.append(onnx.ValueInfoProto(name=name))
        else:
            model.graph.node.append(onnx.helper.make_node("Identity", [place], [name], name))
            model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return bytes(model.SerializeToString())


def layer_values(there: Set[str], layers: tuple[str, ...]) -> dict[str, str]:
    """Find the values in a graph that show its layers; keys are the names that a runner returns."""
    result = {}
    for layer in layers:
        for kind in ("pose", "activation"):
            places = (f"{layer}/parents.{kind}", f"{layer}/{kind}")  # of an unrolled layer, of a fused one
            place = next((place for place in places if place in there), None)
            name = f"{layer}.{kind}"
            if place is not None and name not in there:  # else another graph, or one that gives it out already
                result[name] = place
        iterations = re.compile(rf"{re.escape(layer)}/iteration\d+/(mean|variance|score|score\.unit)")
        result |= {name: name for name in sorted(there) if iterations.fullmatch(name)}
    return result


def as_steps(outputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Means and variances [B, 3, J, n] and logits [B, 1, J, n] of iterations as `qcn.verify.parity.stages` has them."""
    result = {}
    for name, value in outputs.items():
        step, _, kind = name.rpartition("/")
        if kind in ("mean", "variance"):
            result[name] = value.transpose(0, 2, 1, 3)
        elif kind == "score.unit" or (kind == "score" and f"{step}/score.unit" not in outputs):
            result[f"{step}/logit"] = value[:, 0]
        elif kind != "score":
            result[name] = value
    return result


def receipts(bundle: Bundle) -> list[Receipt]:
    """What ONNX Runtime runs each operation in: it is profiled on one image."""
    program = bundle.program()
    events = _profile(bundle.read(bundle.find(FORMATS["onnx"].file_in(program.precision))), program.input.shape)
    return [_receipt(op, events) for op in program.operations if isinstance(op, Product | Route)]


def _receipt(op: Operation, events: Sequence[dict[str, Any]]) -> Receipt:
    """The receipt of an operation, from its convolutions or the votes of a capsule layer.

    Those of a class layer's first iteration, `PLACE/iteration1/turned`, are float32 in every plan.
    """
    place = op.name.replace(".", "/")
    names = ("turned",) if isinstance(op, Route) else ("conv", "skip", "gemm")
    nodes = {f"{place}/{name}" for name in names}
    own = [event for event in events if event["name"].removesuffix(_PROFILED).removesuffix("_nchwc") in nodes]
    types = (kind for event in own for one in event["args"]["input_type_shape"][:2] for kind in one)
    return receipt_of(op, types, (event["args"]["op_name"] for event in own), TYPES)


def _profile(graph: bytes, shape: tuple[int, ...]) -> list[dict[str, Any]]:
    """The kernels that ONNX Runtime calls for one image, and the types of what they are given."""
    onnxruntime = load_onnxruntime("cpu")
    with tempfile.TemporaryDirectory() as folder:
        options = session_options(onnxruntime, Options())
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        session.run(None, {session.get_inputs()[0].name: np.zeros((1, *shape), np.float32)})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return [event for event in events if event.get("cat") == "Node" and event["name"].endswith(_PROFILED)]
