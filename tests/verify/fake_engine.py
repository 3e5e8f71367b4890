"""An engine and a CUDA runtime in main memory: activation = sum of each image. They check what the runner does with
memory, shapes and graphs; that real ones answer so, only the GPU test shows."""

import ctypes
import enum
from types import SimpleNamespace
from typing import Any

import numpy as np

Mode = enum.Enum("TensorIOMode", ["INPUT", "OUTPUT"])
SHAPE = (2, 4, 4)


class FakeCuda:
    """cudaMalloc and the rest, on numpy arrays; `live` is what was taken and not given back."""

    def __init__(self) -> None:
        self.live: dict[Any, Any] = {}
        self.calls: list[str] = []

    def call(self, name: str, *arguments: Any) -> Any:
        self.calls.append(name)
        if name == "cudaMalloc":
            memory = np.zeros(arguments[0], np.uint8)
            self.live[memory.ctypes.data] = memory
            return memory.ctypes.data
        if name == "cudaStreamCreate":
            self.live[7] = "stream"
            return 7
        if name == "cudaGraphInstantiate":
            self.live[9] = "graph"
            return 9
        if name in ("cudaFree", "cudaStreamDestroy", "cudaGraphExecDestroy"):
            del self.live[arguments[0]]
        return None

    def constant(self, enum: str, member: str) -> str:
        return member

    def to_device(self, address: int, array: np.ndarray, stream: Any) -> None:
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def to_host(self, address: int, shape: tuple[int, ...], dtype: np.dtype, stream: Any) -> np.ndarray:
        array = np.empty(shape, dtype)
        ctypes.memmove(array.ctypes.data, address, array.nbytes)
        return array


class FakeContext:
    def __init__(self) -> None:
        self.shape: tuple[int, ...] = ()
        self.addresses: dict[str, int] = {}
        self.runs = 0

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> None:
        self.shape = tuple(shape)

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.shape if name == "image" else (self.shape[0], 1)

    def set_tensor_address(self, name: str, address: int) -> None:
        self.addresses[name] = address

    def execute_async_v3(self, stream: int) -> bool:
        self.runs += 1
        count = int(np.prod(self.shape))
        images = np.frombuffer((ctypes.c_float * count).from_address(self.addresses["image"]), np.float32)
        sums = images.reshape(self.shape[0], -1).sum(1).astype(np.float16)
        ctypes.memmove(self.addresses["logit"], sums.ctypes.data, sums.nbytes)
        return True


def fake_runtime(context: FakeContext, readable: bool = True) -> Any:
    """A TensorRT module whose engine takes 1 to 8 images and answers in float16."""
    names = ["image", "logit"]
    engine = SimpleNamespace(
        num_io_tensors=2,
        get_tensor_name=lambda index: names[index],
        get_tensor_mode=lambda name: Mode.INPUT if name == "image" else Mode.OUTPUT,
        get_tensor_dtype=lambda name: SimpleNamespace(name="FLOAT" if name == "image" else "HALF"),
        get_tensor_shape=lambda name: (-1, *SHAPE),
        get_tensor_profile_shape=lambda name, profile: [(1, *SHAPE), (4, *SHAPE), (8, *SHAPE)],
        create_execution_context=lambda: context,
        create_engine_inspector=lambda: SimpleNamespace(get_engine_information=lambda format: ""),
    )

    class Runtime:
        engine_host_code_allowed = True

        def __init__(self, logger: Any) -> None:
            self.logger = logger

        def deserialize_cuda_engine(self, plan: bytes) -> Any:
            assert not self.engine_host_code_allowed, "an engine could bring code for the host"
            if not readable:
                self.logger.log(SimpleNamespace(name="ERROR"), "The engine plan file is not compatible")
            return engine if readable else None

    return SimpleNamespace(
        ILogger=type("ILogger", (), {}),
        Runtime=Runtime,
        TensorIOMode=Mode,
        LayerInformationFormat=SimpleNamespace(JSON="JSON"),
        __version__="8.6.1",
    )
