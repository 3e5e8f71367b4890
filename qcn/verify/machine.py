"""What this machine is and has: for figures that were measured on it, and for `qcn doctor`.

Nothing here needs a package that may be missing.
"""

import importlib.metadata
import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import qcn
from qcn.errors import MissingError
from qcn.export.targets import install_hint, this_gpu
from qcn.libqcn import BUILD, find_library

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


@dataclass(frozen=True)
class Piece:
    """Something that a machine has or lacks: what was found, what it is for, and the command that brings it."""

    name: str
    found: str
    enables: str
    get: str


def survey() -> list[Piece]:
    """What this machine has of all that the product can use. Packages are looked for, not imported."""
    gpu = this_gpu()
    providers = _version("onnxruntime-gpu") and f"{_version('onnxruntime-gpu')}, CUDA"
    compiler = next((path for path in map(shutil.which, ("c++", "g++", "clang++")) if path), "")
    try:
        library = str(find_library())
    except MissingError:
        library = ""
    rtx = next((text for text in map(_version, ("tensorrt_rtx_cu13_bindings", "tensorrt_rtx")) if text), "")
    return [
        Piece("GPU", f"{gpu.name}, sm{gpu.sm}" if gpu else "", "training in minutes, engines", "NVIDIA's driver"),
        Piece("torch", _version("torch") or "", "training, export from a run", "pip install 'qcn[train]'"),
        Piece("triton", _version("triton") or "", "fused routing on a GPU", "pip install 'qcn[gpu]'"),
        Piece("onnx", _version("onnx") or "", "writing ONNX graphs", "pip install 'qcn[onnx]'"),
        Piece(
            "ONNX Runtime",
            providers or _version("onnxruntime") or "",
            "running ONNX graphs",
            "pip install onnxruntime (with a GPU: onnxruntime-gpu)",
        ),
        Piece("TensorRT", _version("tensorrt") or "", "engines for this GPU", install_hint(None)),
        Piece("TensorRT-RTX", rtx, "engines for RTX GPUs, built without one", install_hint("rtx")),
        Piece(
            "cuda-bindings", _version("cuda-bindings") or "", "running engines from Python", "pip install 'qcn[trt]'"
        ),
        Piece("C++ compiler", compiler, "building libqcn", "apt install g++ cmake"),
        Piece("nvcc", shutil.which("nvcc") or "", "building libqcn's CUDA kernels and plugin", "the CUDA toolkit"),
        Piece("libqcn", library, "routing on the CPU at full speed, the native backend", BUILD),
    ]
