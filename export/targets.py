"""The machines an engine is built for: what they are, whether their engine can be built here, and what to type if not.

A TensorRT engine runs on GPUs of the compute capability (SM) it was built on, with the TensorRT version it was built
with. TensorRT-RTX is different: its builder needs no GPU, and a plan holds kernels for a named SM or, if none is
named, for every GPU from SM 8.0 on that TensorRT-RTX knows.
"""

import ctypes
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qcn.errors import MissingError, unknown_name
from qcn.names import BUNDLE

# CUdevice_attribute of cuda.h
_MAJOR, _MINOR = 75, 76
AMPERE = 80  # the oldest SM that hardware-compatible engines run on
LEAN_RUNTIME = "QCN_LEAN_RUNTIME"
OLDEST = (8, 6)  # of the TensorRT versions that engines are built with
RTX_SMS = frozenset({75, 80, 86, 89, 120, 121})  # the GPUs that TensorRT-RTX 1 runs on


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine: its name and its compute capability as one number (9.0 is 90, 12.1 is 121)."""

    name: str
    sm: int


def cuda_device() -> tuple[ctypes.CDLL, ctypes.c_int] | None:
    """The driver itself, so that no package is needed, and the first GPU that it shows; None without one."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device = ctypes.c_int()
    return None if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0) else (cuda, device)


def this_gpu() -> Gpu | None:
    """The first GPU that CUDA shows; None without one."""
    if (result := cuda_device()) is None:
        return None
    cuda, device = result
    name, major, minor = ctypes.create_string_buffer(128), ctypes.c_int(), ctypes.c_int()
    if cuda.cuDeviceGetName(name, 128, device):
        return None
    if any(cuda.cuDeviceGetAttribute(ctypes.byref(of), key, device) for of, key in ((major, _MAJOR), (minor, _MINOR))):
        return None
    return Gpu(name.value.decode(errors="replace"), 10 * major.value + minor.value)


def on_jetson() -> bool:
    """Whether this is a Jetson."""
    return Path("/etc/nv_tegra_release").exists()


@dataclass(frozen=True)
class Target:
    """A machine to build for.

    sm         compute capability as one number; None: that of this machine
    tensorrt   (major, minor) of the TensorRT versions its system brings, newest last; empty: any
    """

    name: str
    sm: int | None
    tensorrt: tuple[tuple[int, int], ...] = ()


TARGETS = {
    target.name: target
    for target in (
        Target("this", None),
        Target("jetson-orin", 87, ((8, 6), (10, 3))),  # of JetPack 6.0, and of 6.1 and 6.2
        Target("jetson-thor", 110, ((10, 13),)),  # of JetPack 7.0
    )
}


# Modules of one of these, by the names that people know them by.
ALIASES = dict.fromkeys(("jetson-orin-nano", "jetson-orin-nx", "jetson-agx-orin"), "jetson-orin")
ALIASES["jetson-agx-thor"] = "jetson-thor"
# Too old for the TensorRT 8.6 that is needed: JetPack 4 and 5 bring 8.2 and 8.5 for them.
TOO_OLD = {
    name: f"its newest TensorRT is {newest}, and {'.'.join(map(str, OLDEST))} or newer is needed; its CPU runs "
    "--format native, and an Orin Nano is --target jetson-orin"
    for newest, names in {
        "8.2": ("jetson-nano", "jetson-tx1", "jetson-tx2"),
        "8.5": ("jetson-xavier", "jetson-xavier-nx", "jetson-agx-xavier"),
    }.items()
    for name in names
}


def target(name: str, tensorrt: str | None = None) -> Target:
    """A target by name: one of TARGETS, a module of one (jetson-orin-nano), or any GPU as smXY (sm89, sm120).

    `tensorrt` is the version that is installed there, where it is known.
    """
    if tensorrt:
        major, minor, *_ = version_numbers(tensorrt)
        return replace(target(name), tensorrt=((major, minor),))
    name = ALIASES.get(name, name)
    if match := re.fullmatch(r"sm_?(\d{2,3})", name):
        return Target(name.replace("_", ""), int(match[1]))
    if name not in TARGETS:
        raise unknown_name("target", name, (*TARGETS, *ALIASES, "sm89"), TOO_OLD)
    return TARGETS[name]


def obstacle(target: Target, flavour: str, version: tuple[int, ...], known_sms: frozenset[int], gpu: Gpu | None) -> str:
    """Why the engine of `target` cannot be built here; empty if it can.

    flavour, version   of the TensorRT found here ("tensorrt" or "rtx")
    known_sms          the SMs that its builder can be told to build for, whatever GPU is here (TensorRT-RTX only)
    gpu                this machine's, if any
    """
    words = f"{product(flavour)} {'.'.join(map(str, version))}"
    if flavour == "rtx":
        if target.sm is None or target.sm in known_sms:
            return ""
        sms = ", ".join(f"sm{sm}" for sm in sorted(known_sms))
        return f"{words} builds for {sms}; {target.name} is sm{target.sm}"
    if gpu is None:
        return f"{words}, unlike TensorRT-RTX, builds only on a machine with an NVIDIA GPU; there is none here"
    if target.sm not in (None, gpu.sm):
        return f"{target.name} is sm{target.sm}; this machine's {gpu.name} is sm{gpu.sm}"
    if target.tensorrt and version[:2] not in target.tensorrt:
        brings = " or ".join(f"{major}.{minor}" for major, minor in target.tensorrt)
        return f"{target.name} has TensorRT {brings}; this machine has {words}"
    return ""


def without_tensorrt(target: Target) -> str:
    """Why the engine of another machine is not built here, where there is no TensorRT to build with."""
    why = f"TensorRT builds for the GPU that it runs on: build the engine of {target.name} (sm{target.sm}) there"
    return f"{why}, or here without a GPU: {install_hint('rtx')}" if target.sm in RTX_SMS else why


def product(flavour: str | None) -> str:
    """Its name; "tensorrt" where none is named."""
    return "TensorRT-RTX" if flavour == "rtx" else "TensorRT"


def foreign(facts: Mapping[str, Any], version: str, gpu: Gpu) -> str:
    """Why an engine with these facts does not run on this GPU, with this version of its TensorRT; empty if it does.

    What is not known (a fact that was not written down, a version that is empty) stands in no engine's way.
    """
    name = product(facts.get("flavour"))
    built, sm = facts.get("version"), facts.get("sm")
    if built and version and version_numbers(str(built)) != version_numbers(version):
        return _of_another_version(facts, name, str(built), version)
    if name == "TensorRT-RTX" and gpu.sm not in RTX_SMS:
        return f"needs TensorRT-RTX, which does not run on this machine's {gpu.name}, sm{gpu.sm}"
    if name == "TensorRT-RTX" and sm is None and gpu.sm < 80:  # for no GPU in particular
        return f"was built for GPUs from sm80 on; here is {gpu.name}, sm{gpu.sm}"
    if facts.get("hardware_compatible"):
        return "" if gpu.sm >= AMPERE else f"was built for GPUs from sm{AMPERE} on; here is {gpu.name}, sm{gpu.sm}"
    if sm not in (None, gpu.sm):
        return f"was built for {facts['gpu'] + ', ' if facts.get('gpu') else ''}sm{sm}; here is {gpu.name}, sm{gpu.sm}"
    return ""


def _of_another_version(facts: Mapping[str, Any], name: str, built: str, version: str) -> str:
    """Why an engine of one version does not run with another; empty for a version-compatible one that does."""
    why = f"was built with {name} {built}; here is {name} {version}"
    if not facts.get("version_compatible"):
        return why
    if version_numbers(version) < version_numbers(built):
        return f"{why}, and only newer versions run what is version-compatible"
    if not lean_runtime():
        return f"{why}, which runs it by the lean runtime of {built}: set {LEAN_RUNTIME} to its libnvinfer_lean.so"
    return ""


def lean_runtime() -> str:
    """The library by which a newer TensorRT runs a version-compatible engine; empty if none is named."""
    return os.environ.get(LEAN_RUNTIME, "")


def version_numbers(version: str) -> tuple[int, ...]:
    """Major, minor and patch: what a plan is bound to."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def device_commands(bundle: Path, command: str, host: str = "device") -> list[str]:
    """The commands that run an export on the device itself, whose ssh name is `host`."""
    name = shlex.quote(Path(os.path.realpath(bundle)).name)
    return [f"scp -r {shlex.quote(str(bundle))} {host}:", f"ssh {host} {command.replace(BUNDLE, name)}"]


def install_hint(flavour: str | None) -> str:
    """How to get TensorRT on this platform, in one line."""
    rtx = "pip install --no-deps tensorrt_rtx_cu13_libs tensorrt_rtx_cu13_bindings"
    if flavour == "rtx":
        return f"install TensorRT-RTX with `{rtx}`"
    if on_jetson():
        return (
            "on a Jetson it comes with JetPack: `sudo apt install nvidia-jetpack` (its Python module alone: "
            "`sudo apt install python3-libnvinfer`), seen by a virtual environment made with --system-site-packages"
        )
    return (
        "install it with `pip install tensorrt` (CUDA 13) or `pip install tensorrt-cu12` (CUDA 12), "
        f"or TensorRT-RTX, for GeForce and RTX GPUs, with `{rtx}`"
    )


def need_gpu(words: str) -> Gpu:
    """This machine's GPU, or the error that says what needed it."""
    gpu = this_gpu()
    if gpu is None:
        raise MissingError(
            f"{words} needs an NVIDIA GPU and its driver, but libcuda.so.1 finds none here; run this on the device"
        )
    return gpu
