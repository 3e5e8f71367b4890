"""NVIDIA's management library, as much as a benchmark needs: memory, energy, clocks, power. Comes with the driver.

Asked by ctypes, so that no package is needed. Everything is None where there is no library or no such counter: on a
Jetson most are missing, a part of a GPU (MIG) has no energy of its own.
"""

import ctypes
from typing import Any

# nvmlClockType_t of nvml.h
_SM_CLOCK, _MEMORY_CLOCK = 1, 2


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Nvml:
    """The GPU that CUDA calls its first, seen from the driver's side. Reading it makes no CUDA context."""

    def __init__(self, library: Any, device: ctypes.c_void_p) -> None:
        self._library, self._device = library, device

    def memory_used(self) -> int | None:
        """Bytes in use on the whole GPU, by everyone."""
        memory = _Memory()
        return memory.used if self._ask("nvmlDeviceGetMemoryInfo", ctypes.byref(memory)) else None

    def energy_mj(self) -> int | None:
        """Millijoules since the driver was loaded: Volta and later."""
        value = ctypes.c_ulonglong()
        return value.value if self._ask("nvmlDeviceGetTotalEnergyConsumption", ctypes.byref(value)) else None

    def facts(self) -> dict[str, Any]:
        """What figures depend on: driver, clocks in MHz now and at most, power in W now and at most."""
        driver = ctypes.create_string_buffer(96)
        known = not self._library.nvmlSystemGetDriverVersion(driver, len(driver))
        watts = (self._number("nvmlDeviceGetPowerUsage"), self._number("nvmlDeviceGetEnforcedPowerLimit"))
        return {
            "driver": driver.value.decode(errors="replace") if known else None,
            "sm_mhz": self._number("nvmlDeviceGetClockInfo", _SM_CLOCK),
            "max_sm_mhz": self._number("nvmlDeviceGetMaxClockInfo", _SM_CLOCK),
            "memory_mhz": self._number("nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
            "power_w": watts[0] and watts[0] / 1e3,
            "power_limit_w": watts[1] and watts[1] / 1e3,
        }

    def _number(self, function: str, *which: int) -> int | None:
        value = ctypes.c_uint()
        return value.value if self._ask(function, *which, ctypes.byref(value)) else None

    def _ask(self, function: str, *arguments: Any) -> bool:
        return not getattr(self._library, function)(self._device, *arguments)


def find() -> Nvml | None:
    """That of CUDA's first GPU, found by its UUID: NVML counts also those that CUDA_VISIBLE_DEVICES hides."""
    try:
        cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return open_with(cuda, nvml)


def open_with(cuda: Any, nvml: Any) -> Nvml | None:
    device, uuid, handle = ctypes.c_int(), (ctypes.c_ubyte * 16)(), ctypes.c_void_p()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0) or cuda.cuDeviceGetUuid(uuid, device):
        return None
    text = bytes(uuid).hex()
    name = f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)):
        return None
    return Nvml(nvml, handle)
