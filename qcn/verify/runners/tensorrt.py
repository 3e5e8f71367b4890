"""A TensorRT engine, run without torch: named tensors, any batch of its profile, optionally as a CUDA graph.

`infer` does it all. A benchmark that wants the GPU's time alone uploads once and then enqueues:

    runner.upload(images)
    for _ in range(iterations):
        runner.enqueue()
    runner.synchronize()
"""

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.errors import MissingError, QcnError, UsageError
from qcn.export import targets
from qcn.export.bundle import MANIFEST, Bundle, folder_of
from qcn.export.bundle.manifest import BUNDLE
from qcn.export.tensorrt import plugin
from qcn.export.tensorrt.find import TensorRT, find
from qcn.export.tensorrt.progress import BuildLog, logger
from qcn.verify.runners import Options, Runner
from qcn.verify.runners.cuda_memory import Cuda

_NUMPY = {"FLOAT": np.float32, "HALF": np.float16, "INT32": np.int32, "INT64": np.int64, "INT8": np.int8}


class TensorRTRunner(Runner):
    """Runs an .engine file; the .json beside it, if there, says which GPU and TensorRT it was built for.

    An inference is captured as a CUDA graph at each new batch size.
    """

    def __init__(self, path: Path, options: Options) -> None:
        super().__init__(path, options)
        self.graph = True
        self.name = "tensorrt"
        self._cuda: Cuda | None = None
        self._memory: dict[str, int] = {}
        self._stream: Any = None
        self._captured: Any = None
        self._context: Any = None

    def open(self) -> None:
        facts = read_facts(self.path)
        tensorrt = find(facts.get("flavour"))
        gpu = targets.need_gpu(str(tensorrt))
        refuse_foreign(self.path, facts, tensorrt, gpu)
        if facts.get("stripped"):
            raise MissingError(f"{self.path} contains no weights; add them with: {refit_command(self.path)}")
        if facts.get("plugin"):
            plugin.load(tensorrt)
        self._cuda, self._trt = (cuda := Cuda()), tensorrt.module
        self._log = BuildLog()
        self._logger = logger(tensorrt.module, self._log)
        self._runtime = tensorrt.module.Runtime(self._logger)
        if hasattr(self._runtime, "engine_host_code_allowed"):  # from TensorRT 8.6 on
            self._runtime.engine_host_code_allowed = False  # TensorRT's default: an engine is kernels for the GPU alone
        if facts.get("version") not in (None, tensorrt.version_text):  # version-compatible, or it had been refused
            self._runtime = self._runtime.load_runtime(targets.lean_runtime())
        self._engine = self._runtime.deserialize_cuda_engine(self.path.read_bytes())
        if self._engine is None:
            raise MissingError(
                f"{tensorrt} on {gpu.name} (sm{gpu.sm}) refuses {self.path}:{self._log.summary()}\n"
                f"build it here: {rebuild_command(self.path)}"
            )
        self._context = self._engine.create_execution_context()
        if self._context is None:
            raise MissingError(f"{tensorrt} cannot make a context for {self.path}:{self._log.summary()}")
        self._stream = cuda.call("cudaStreamCreate")
        self._read_tensors(tensorrt.module)
        self.name = f"{tensorrt} on {gpu.name}"

    def _read_tensors(self, trt: Any) -> None:
        """Learn the engine's inputs and outputs, and take memory for the largest batch of its profile."""
        engine = self._engine
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        inputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        if len(inputs) != 1:
            raise UsageError(f"{self.path} has the inputs {', '.join(inputs)}; only one is supported, the images")
        self._input = inputs[0]
        self._outputs = [name for name in names if name not in inputs]
        self._dtypes: dict[str, np.dtype[Any]] = {}
        for name in names:
            kind = engine.get_tensor_dtype(name).name
            if kind not in _NUMPY:
                raise UsageError(f"tensor '{name}' of {self.path} is {kind}, which numpy does not have")
            self._dtypes[name] = np.dtype(_NUMPY[kind])
        smallest = largest = tuple(engine.get_tensor_shape(self._input))
        if -1 in largest:
            smallest, _, largest = (tuple(shape) for shape in engine.get_tensor_profile_shape(self._input, 0))
        self._batches = smallest[0], largest[0]
        self._image = largest[1:]
        self._context.set_input_shape(self._input, largest)
        for name in names:
            size = int(np.prod(self._context.get_tensor_shape(name))) * self._dtypes[name].itemsize
            self._memory[name] = self._call("cudaMalloc", max(size, 1))
            self._context.set_tensor_address(name, self._memory[name])
        self._batch = -1

    def inspected(self) -> str:
        self._need_cuda()
        inspector = self._engine.create_engine_inspector()
        return str(inspector.get_engine_information(self._trt.LayerInformationFormat.JSON))

    def infer(self, images: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        self.upload(images)
        self.enqueue()
        return self.download()

    def upload(self, images: NDArray[np.float32]) -> None:
        """Copy images to the GPU; they stay there for any number of `enqueue`."""
        cuda = self._need_cuda()
        low, high = self._batches
        if images.shape[1:] != self._image or not low <= len(images) <= high:
            raise UsageError(
                f"images are {list(images.shape)}; {self.path.name} takes {list(self._image)} in batches of {low} to "
                f"{high}: {rebuild_command(self.path)}"
            )
        if len(images) != self._batch:
            self._drop_graph()
            self._context.set_input_shape(self._input, images.shape)
            self._batch = len(images)
        self._image_copy = np.ascontiguousarray(images, self._dtypes[self._input])  # alive while it is copied
        cuda.to_device(self._memory[self._input], self._image_copy, self._stream)

    def enqueue(self) -> None:
        """Start one inference of what was uploaded; returns at once."""
        if self.graph and self._captured is not None:
            self._call("cudaGraphLaunch", self._captured, self._stream)
            return
        self._execute()
        if self.graph:
            self._capture()

    def synchronize(self) -> None:
        """Wait until everything enqueued is done."""
        self._call("cudaStreamSynchronize", self._stream)

    def download(self) -> dict[str, NDArray[Any]]:
        """Wait, and copy the last inference's outputs from the GPU."""
        cuda = self._need_cuda()
        outputs = {
            name: cuda.to_host(
                self._memory[name], tuple(self._context.get_tensor_shape(name)), self._dtypes[name], self._stream
            )
            for name in self._outputs
        }
        self.synchronize()
        return outputs

    def close(self) -> None:
        self._context = self._engine = self._runtime = None
        if self._cuda is None:
            return
        self._drop_graph()
        for address in self._memory.values():
            self._call("cudaFree", address)
        self._memory = {}
        if self._stream is not None:
            self._call("cudaStreamDestroy", self._stream)
        self._stream = self._cuda = None

    def _execute(self) -> None:
        if not self._context.execute_async_v3(int(self._stream)):
            raise QcnError(f"{self.path} did not run:{self._log.summary()}")

    def _capture(self) -> None:
        """Record one inference as a graph. One must have run before: TensorRT finishes setting up in the first."""
        self.synchronize()
        mode = self._need_cuda().constant("cudaStreamCaptureMode", "cudaStreamCaptureModeThreadLocal")
        self._call("cudaStreamBeginCapture", self._stream, mode)
        try:
            self._execute()
        finally:
            recorded = self._call("cudaStreamEndCapture", self._stream)
        self._captured = self._call("cudaGraphInstantiate", recorded, 0)
        self._call("cudaGraphDestroy", recorded)

    def _drop_graph(self) -> None:
        if self._captured is not None:
            self._call("cudaGraphExecDestroy", self._captured)
            self._captured = None

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._need_cuda().call(name, *arguments)

    def _need_cuda(self) -> Cuda:
        if self._cuda is None:
            raise UsageError(f"the runner of {self.path} is not open")
        return self._cuda


def read_facts(path: Path) -> dict[str, Any]:
    """What is known of an engine; empty if there is no record of it."""
    return dict(read_record(path).get("facts", {}))


def read_record(path: Path) -> dict[str, Any]:
    """An engine's entry of its bundle's manifest; of one in no bundle, the .json beside it; empty if there is none."""
    folder = folder_of(path)
    if (folder / MANIFEST).exists():
        files = Bundle.open(folder).manifest.files
        return next((asdict(one) for one in files if path.name in (Path(one.file).name, one.sha256)), {})
    beside = path.with_suffix(".json")
    if not beside.is_file():
        return {}
    try:
        record = json.loads(beside.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{beside} is not JSON: {error}") from error
    if not isinstance(record, dict) or not isinstance(record.get("facts"), dict):
        raise UsageError(f"{beside} is not an engine's record but a JSON {type(record).__name__}")
    return record


def rebuild_command(path: Path) -> str:
    """The command that builds this engine again, in the bundle it lies in (BUNDLE/engines/X.engine)."""
    command = read_record(path).get("rebuild", f"qcn export {BUNDLE} --format trt")
    return str(command).replace(BUNDLE, shlex.quote(str(path.parent.parent)))


def refit_command(path: Path) -> str:
    """The command that gives a stripped engine the weights of the bundle that it lies in."""
    return f"qcn refit {shlex.quote(str(path))} --weights {shlex.quote(str(path.parent.parent))}"


def refuse_foreign(path: Path, facts: dict[str, Any], tensorrt: TensorRT, gpu: targets.Gpu) -> None:
    """Refuse an engine that was built for another TensorRT or GPU, before TensorRT does so in its own words."""
    if why := targets.foreign(facts, tensorrt.version_text, gpu):
        raise MissingError(f"{path} {why}; build it here: {rebuild_command(path)}")
