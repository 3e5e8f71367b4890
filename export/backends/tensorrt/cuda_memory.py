"""Device memory and streams without torch: NVIDIA's cuda-bindings, every return code checked."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.errors import MissingError, QcnError


class Cuda:
    """The CUDA runtime. Each call raises when CUDA does, with the call's name and CUDA's own words."""

    def __init__(self) -> None:
        try:
            from cuda.bindings import runtime
        except ImportError as error:
            raise MissingError(f"cuda-bindings cannot be loaded ({error}): pip install cuda-bindings") from error
        self._runtime = runtime

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
