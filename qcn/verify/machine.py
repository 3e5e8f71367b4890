"""What this machine is and has: for figures that were measured on it, and for `qcn doctor`.

Nothing here needs a package that may be missing.
"""

import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import qcn
from qcn.export.backends import REGISTRATIONS, distributions
from qcn.export.targets import on_jetson, this_gpu
from qcn.packages import package_version
from qcn.verify.speed import nvml

PACKAGES = (*distributions(), "nvidia-ml-py", "numpy")


@dataclass(frozen=True)
class Graphics:
    """The GPU, and what NVML knows of it."""

    name: str
    sm: int
    state: nvml.State


@dataclass(frozen=True)
class Environment:
    """The machine that figures depend on; None or left out if unknown."""

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
        packages={name: result for name in PACKAGES if (result := package_version(name))},
    )


def processor() -> str:
    """Its name from lscpu: on ARM /proc/cpuinfo has none."""
    return _printed("lscpu", "Model name") or platform.processor() or platform.machine()


def power_mode() -> str | None:
    """A Jetson's power mode, from nvpmodel: "NV Power Mode: MAXN" and its number. None elsewhere."""
    return _printed("nvpmodel", "NV Power Mode", "-q")


def _printed(program: str, entry: str, *arguments: str) -> str | None:
    """What a program prints after "ENTRY:"; None if there is no such program or line."""
    path = shutil.which(program)
    if not path:
        return None
    english = {**os.environ, "LC_ALL": "C"}
    said = subprocess.run([path, *arguments], capture_output=True, text=True, check=False, env=english)
    result = re.search(rf"^{entry}: *(.+)$", said.stdout, re.MULTILINE)
    return result[1] if result else None


def _megahertz(path: str) -> float | None:
    text = _line(path)
    return int(text) / 1e3 if text and text.isdigit() else None


def _line(path: str) -> str | None:
    """The first line of a file of the system, if there is such a file."""
    try:
        return Path(path).read_text(encoding="utf-8").strip("\0\n ") or None
    except OSError:
        return None


@dataclass(frozen=True)
class MachinePart:
    """Something that a machine has or lacks: what was found, what it is for, and the command that brings it."""

    name: str
    found: str
    enables: str
    get: str


def survey() -> list[MachinePart]:
    """What this machine has of all that the product can use. Packages are looked for, not imported."""
    gpu, watched = this_gpu(), nvml.find()
    driver = watched.state().driver if watched else None
    here = f"{gpu.name}, sm{gpu.sm}{f', driver {driver}' if driver else ''}" if gpu else ""
    compiler = next((path for path in map(shutil.which, ("c++", "g++", "clang++")) if path), "")
    counters = "memory, energy and clocks of the GPU in a benchmark"
    pieces = [piece for of in REGISTRATIONS for piece in of.pieces]
    return [
        MachinePart("GPU", here, "training in minutes, engines", "NVIDIA's driver"),
        *(MachinePart(piece.name, piece.release(), piece.enables, piece.get) for piece in pieces),
        MachinePart("nvidia-ml-py", package_version("nvidia-ml-py"), counters, nvml.INSTALL),
        MachinePart("C++ compiler", compiler, "building libqcn", "apt install g++ cmake"),
        MachinePart("nvcc", shutil.which("nvcc") or "", "building libqcn's CUDA parts", "the CUDA toolkit"),
    ]
