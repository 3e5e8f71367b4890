"""What this machine is and has: for figures that were measured on it, and for `qcn doctor`.

Nothing here needs a package that may be missing.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import qcn
from qcn.errors import MissingError
from qcn.export.executorch import INSTALL as INSTALL_EXECUTORCH
from qcn.export.openvino import INSTALL as INSTALL_OPENVINO
from qcn.export.targets import install_hint, on_jetson, this_gpu
from qcn.export.tensorrt.find import FLAVOURS
from qcn.export.web.page import BUILD as BUILD_WASM
from qcn.export.web.page import wasm_file
from qcn.libqcn import BUILD, find_library
from qcn.packages import installed, package_version, version
from qcn.verify.runners.triton import INSTALL as INSTALL_TRITON
from qcn.verify.runners.web import INSTALL_NODE, find_node
from qcn.verify.speed import nvml

PACKAGES = (
    *("torch", "triton", "onnxruntime", "onnxruntime-gpu", "openvino", "executorch", "tensorrt"),
    *("tensorrt_rtx_cu13_bindings", "cuda-bindings", "nvidia-ml-py", "numpy"),
)


@dataclass(frozen=True)
class Graphics:
    """The GPU, and what NVML knows of it."""

    name: str
    sm: int
    state: nvml.State


@dataclass(frozen=True)
class Environment:
    """What figures depend on; None or left out where it is not known."""

    processor: str
    cores: int
    governor: str | None
    cpu_mhz: float | None
    max_cpu_mhz: float | None
    jetson: str | None
    power_mode: str | None
    gpu: Graphics | None
    system: str
    python: str
    qcn: str
    packages: dict[str, str]


def environment() -> Environment:
    """This machine, now."""
    gpu, watched = this_gpu(), nvml.find()
    frequency = "/sys/devices/system/cpu/cpu0/cpufreq"
    return Environment(
        processor=processor(),
        cores=len(os.sched_getaffinity(0)),
        governor=_line(f"{frequency}/scaling_governor"),
        cpu_mhz=_megahertz(f"{frequency}/scaling_cur_freq"),
        max_cpu_mhz=_megahertz(f"{frequency}/cpuinfo_max_freq"),
        jetson=_line("/proc/device-tree/model") if on_jetson() else None,
        power_mode=power_mode(),
        gpu=Graphics(gpu.name, gpu.sm, watched.state() if watched else nvml.State()) if gpu else None,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        qcn=qcn.__version__,
        packages={name: found for name in PACKAGES if (found := package_version(name))},
    )


def processor() -> str:
    """Its name, as lscpu tells it: on ARM /proc/cpuinfo has none."""
    return _printed("lscpu", "Model name") or platform.processor() or platform.machine()


def power_mode() -> str | None:
    """A Jetson's, as nvpmodel tells it: "NV Power Mode: MAXN" and its number. None elsewhere."""
    return _printed("nvpmodel", "NV Power Mode", "-q")


def _printed(program: str, entry: str, *arguments: str) -> str | None:
    """What a program prints behind "ENTRY:", if there is such a program and it does."""
    path = shutil.which(program)
    if not path:
        return None
    english = {**os.environ, "LC_ALL": "C"}
    said = subprocess.run([path, *arguments], capture_output=True, text=True, check=False, env=english)
    found = re.search(rf"^{entry}: *(.+)$", said.stdout, re.MULTILINE)
    return found[1] if found else None


def _megahertz(path: str) -> float | None:
    text = _line(path)
    return int(text) / 1e3 if text and text.isdigit() else None


def _line(path: str) -> str | None:
    """The first line of a file of the system, if there is such a file."""
    try:
        return Path(path).read_text(encoding="utf-8").strip("\0\n ") or None
    except OSError:
        return None


def _tensorrt(flavour: str) -> str:
    module = next(filter(installed, FLAVOURS[flavour]), None)
    return (version(module) or "installed, of unknown version") if module else ""


def _found(look: Callable[[], str]) -> str:
    """What `look` finds; empty where it is missing."""
    try:
        return look()
    except MissingError:
        return ""


@dataclass(frozen=True)
class Piece:
    """Something that a machine has or lacks: what was found, what it is for, and the command that brings it."""

    name: str
    found: str
    enables: str
    get: str


def survey() -> list[Piece]:
    """What this machine has of all that the product can use. Packages are looked for, not imported."""
    gpu, watched = this_gpu(), nvml.find()
    driver = watched.state().driver if watched else None
    here = f"{gpu.name}, sm{gpu.sm}{f', driver {driver}' if driver else ''}" if gpu else ""
    on_gpu = package_version("onnxruntime-gpu")
    providers = f"{on_gpu}, CUDA" if on_gpu else package_version("onnxruntime")
    compiler = next((path for path in map(shutil.which, ("c++", "g++", "clang++")) if path), "")
    runtime = "pip install onnxruntime (with a GPU: onnxruntime-gpu)"
    counters = "memory, energy and clocks of the GPU in a benchmark"

    def package(name: str, module: str, enables: str, get: str) -> Piece:
        return Piece(name, package_version(module), enables, get)

    return [
        Piece("GPU", here, "training in minutes, engines", "NVIDIA's driver"),
        package("torch", "torch", "training, export from a run", "pip install 'qcn-toolkit[train]'"),
        package("triton", "triton", "fused routing on a GPU", "pip install 'qcn-toolkit[gpu]'"),
        package("onnx", "onnx", "writing ONNX graphs", "pip install 'qcn-toolkit[onnx]'"),
        Piece("ONNX Runtime", providers, "running ONNX graphs", runtime),
        package("tritonclient", "tritonclient", "checking a server's model repository", INSTALL_TRITON),
        package("OpenVINO", "openvino", "OpenVINO's graphs (--format openvino)", INSTALL_OPENVINO),
        package("ExecuTorch", "executorch", "files for phones (--format executorch)", INSTALL_EXECUTORCH),
        Piece("TensorRT", _tensorrt("tensorrt"), "engines for this GPU", install_hint(None)),
        Piece("TensorRT-RTX", _tensorrt("rtx"), "engines for RTX GPUs, built without one", install_hint("rtx")),
        package("cuda-bindings", "cuda-bindings", "running engines from Python", "pip install 'qcn-toolkit[trt]'"),
        package("nvidia-ml-py", "nvidia-ml-py", counters, nvml.INSTALL),
        Piece("C++ compiler", compiler, "building libqcn", "apt install g++ cmake"),
        Piece("nvcc", shutil.which("nvcc") or "", "building libqcn's CUDA kernels and plugin", "the CUDA toolkit"),
        Piece(
            "libqcn", _found(lambda: str(find_library())), "routing on the CPU at full speed, the native backend", BUILD
        ),
        Piece("WebAssembly", _found(lambda: str(wasm_file("simd"))), "pages (--format web)", BUILD_WASM),
        Piece("Node", _found(lambda: find_node()[1]), "running a page without a browser", INSTALL_NODE),
    ]
