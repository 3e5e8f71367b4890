"""What a figure was measured on: processor, clocks, GPU, versions. Nothing here needs a package that may be missing."""

import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any

import qcn
from qcn.export.targets import this_gpu

PACKAGES = ("torch", "onnxruntime", "onnxruntime-gpu", "tensorrt", "tensorrt_rtx_cu13_bindings", "numpy")


def environment() -> dict[str, Any]:
    """The machine in a few entries, for a JSON file."""
    gpu = this_gpu()
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "governor": _line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "jetson": _line("/proc/device-tree/model"),
        "gpu": gpu and {"name": gpu.name, "sm": gpu.sm},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "qcn": qcn.__version__,
        "packages": dict(filter(lambda item: item[1], ((name, _version(name)) for name in PACKAGES))),
    }


def processor() -> str:
    """Its name; on ARM, which has none in /proc/cpuinfo, its implementer and part number."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    found = dict(re.findall(r"^(model name|CPU implementer|CPU part)\s*:\s*(.+)$", text, re.MULTILINE))
    arm = f"implementer {found.get('CPU implementer')}, part {found.get('CPU part')}"
    return found.get("model name") or (arm if "CPU part" in found else platform.processor() or platform.machine())


def _line(path: str) -> str | None:
    """The first line of a file of the system, if there is such a file."""
    try:
        return Path(path).read_text(encoding="utf-8").strip("\0\n ") or None
    except OSError:
        return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
