"""NVIDIA's management library, as much as a benchmark needs: memory, energy, clocks, power. By nvidia-ml-py.

Everything is None where there is no such package, no driver or no such counter: on a Jetson most are missing, a part of
a GPU (MIG) has no energy of its own.
"""

import ctypes
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from qcn.export.targets import cuda_device

T = TypeVar("T")
INSTALL = "pip install nvidia-ml-py"


@dataclass(frozen=True)
class State:
    """What figures depend on: the driver, clocks in MHz now and at most, power in W now and at most."""

    driver: str | None = None
    sm_mhz: int | None = None
    max_sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None


class Nvml:
    """The GPU that CUDA calls its first, seen from the driver's side. Reading it makes no CUDA context."""

    def __init__(self, pynvml: Any, handle: Any) -> None:
        self._nvml, self._handle = pynvml, handle

    def memory_used(self) -> int | None:
        """Bytes in use on the whole GPU, by everyone."""
        return self._reading_or_none(lambda: int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used))

    def energy_mj(self) -> int | None:
        """Millijoules since the driver was loaded: Volta and later."""
        return self._reading_or_none(lambda: int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)))

    def state(self) -> State:
        """The GPU now."""
        nvml, gpu = self._nvml, self._handle
        return State(
            driver=self._reading_or_none(lambda: _text(nvml.nvmlSystemGetDriverVersion())),
            sm_mhz=self._reading_or_none(lambda: int(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM))),
            max_sm_mhz=self._reading_or_none(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM))),
            memory_mhz=self._reading_or_none(lambda: int(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM))),
            power_w=self._reading_or_none(lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3),
            power_limit_w=self._reading_or_none(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3),
        )

    def _reading_or_none(self, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except self._nvml.NVMLError:  # such as: not supported
            return None


def find() -> Nvml | None:
    """That of CUDA's first GPU, found by its UUID: NVML counts also those that CUDA_VISIBLE_DEVICES hides."""
    gpu = _first_gpu()
    if gpu is None:
        return None
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return Nvml(pynvml, pynvml.nvmlDeviceGetHandleByUUID(gpu))
    except pynvml.NVMLError:
        return None


def obstacle() -> str:
    """Why the memory and energy of this machine's GPU cannot be read; empty if they can or there is no GPU."""
    if _first_gpu() is None or find() is not None:
        return ""
    try:
        import pynvml  # noqa: F401
    except ImportError:
        return f"nvidia-ml-py is not installed: {INSTALL}"
    return "NVIDIA's management library does not know the GPU that CUDA uses"


def _first_gpu() -> str | None:
    """The UUID of CUDA's first GPU as NVML writes it; None without one."""
    if (result := cuda_device()) is None:
        return None
    (cuda, device), raw = result, (ctypes.c_ubyte * 16)()
    return None if cuda.cuDeviceGetUuid(raw, device) else f"GPU-{uuid.UUID(bytes=bytes(raw))}"


def _text(value: str | bytes) -> str:
    """Older versions of the package give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
