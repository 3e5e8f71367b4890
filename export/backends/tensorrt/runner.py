"""A TensorRT engine, run without torch: named tensors, any batch of its profile, optionally as a CUDA graph.

`infer` does it all. A benchmark that wants the GPU's time alone uploads once and then enqueues:

    runner.upload(images)
    for _ in range(iterations):
        runner.enqueue()
    runner.synchronize()
"""

import shlex
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.errors import MissingError, QcnError, UsageError
from qcn.export import targets
from qcn.export.backends.model_file import ModelFile
from qcn.export.backends.runner import Options, Runner, imported
from qcn.export.backends.tensorrt import plugin
from qcn.export.backends.tensorrt.find import find
from qcn.export.backends.tensorrt.progress import BuildLog, logger

_NUMPY = {"FLOAT": np.float32, "HALF": np.float16, "INT32": np.int32, "INT64": np.int64, "INT8": np.int8}


class Cuda:
    """Device memory and streams without torch, by NVIDIA's cuda-bindings.

    Each call raises when CUDA does, with the call's name and CUDA's own words.
    """

    def __init__(self) -> None:
        self._runtime = imported("cuda.bindings.runtime", "cuda-bindings", "pip install cuda-bindings")

    def call(self, name: str, *arguments: Any) -> Any:
        """A function of the runtime by name: its result, several as a tuple, or None."""
        code, *values = getattr(self._runtime, name)(*arguments)
        if code != self._runtime.cudaError_t.cudaSuccess:
            _, words = self._runtime.cudaGetErrorString(code)
            raise QcnError(f"{name} failed: {words.decode()} ({code.name})")
        return values[0] if len(values) == 1 else tuple(values) or None

    def constant(self, enum: str, member: str) -> Any:
        return getattr(getattr(self._runtime, enum), member)

    def to_device(self, address: int, array: NDArray[Any], stream: Any) -> None:
        kind = self.constant("cudaMemcpyKind", "cudaMemcpyHostToDevice")
        self.call("cudaMemcpyAsync", address, array.ctypes.data, array.nbytes, kind, stream)

    def to_host(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], stream: Any) -> NDArray[Any]:
        array = np.empty(shape, dtype)
        kind = self.constant("cudaMemcpyKind", "cudaMemcpyDeviceToHost")
        self.call("cudaMemcpyAsync", array.ctypes.data, address, array.nbytes, kind, stream)
        return array


class TensorRTRunner(Runner):
    """Runs an .engine file, whose facts, where they are known, say which GPU and TensorRT it was built for.

    An inference is captured as a CUDA graph at each new batch size.
    """

    def __init__(self, model: ModelFile, options: Options) -> None:
        super().__init__(model, options)
        self.graph = True
        self.name = "tensorrt"
        self._cuda: Cuda | None = None
        self._memory: dict[str, int] = {}
        self._stream: Any = None
        self._captured: Any = None
        self._context: Any = None

    def open(self) -> None:
        facts = self.model.facts
        tensorrt = find(facts.get("flavour"))
        gpu = targets.need_gpu(str(tensorrt))
        if why := targets.foreign(facts, tensorrt.version_text, gpu):  # before TensorRT says so in its own words
            raise MissingError(f"{self.path} {why}; build it here: {self.model.rebuild}")
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
        self._engine = self._runtime.deserialize_cuda_engine(self.model.content)
        if self._engine is None:
            raise MissingError(
                f"{tensorrt} on {gpu.name} (sm{gpu.sm}) refuses {self.path}:{self._log.summary()}\n"
                f"build it here: {self.model.rebuild}"
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
        self.opened(self._cuda)
        inspector = self._engine.create_engine_inspector()
        return str(inspector.get_engine_information(self._trt.LayerInformationFormat.JSON))

    def infer(self, images: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        self.upload(images)
        self.enqueue()
        return self.download()

    def upload(self, images: NDArray[np.float32]) -> None:
        """Copy images to the GPU; they stay there for any number of `enqueue`."""
        cuda = self.opened(self._cuda)
        low, high = self._batches
        if images.shape[1:] != self._image or not low <= len(images) <= high:
            raise UsageError(
                f"images are {list(images.shape)}; {self.path.name} takes {list(self._image)} in batches of {low} to "
                f"{high}: {self.model.rebuild}"
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
        cuda = self.opened(self._cuda)
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
        mode = self.opened(self._cuda).constant("cudaStreamCaptureMode", "cudaStreamCaptureModeThreadLocal")
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
        return self.opened(self._cuda).call(name, *arguments)


def refit_command(path: Path) -> str:
    """The command that gives a stripped engine the weights of the bundle that it lies in."""
    return f"qcn export {shlex.quote(str(path.parent.parent))} --refit {shlex.quote(str(path))}"
