"""Which TensorRT is installed here: TensorRT 8.6 or newer, or TensorRT-RTX, and the version of its library."""

import ctypes
import importlib
import re
from dataclasses import dataclass, field
from typing import Any

from qcn.errors import MissingError, unknown_name
from qcn.export import targets

FLAVOURS = {"tensorrt": ("tensorrt",), "rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings")}


@dataclass(frozen=True)
class TensorRT:
    """An installed TensorRT: "tensorrt" or "rtx", the version of its library, and its Python module."""

    flavour: str
    version: tuple[int, ...]
    module: Any = field(repr=False)

    def __str__(self) -> str:
        return f"{targets.product(self.flavour)} {self.version_text}"

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def always_typed(self) -> bool:
        """Whether networks are strongly typed without being asked to be."""
        return self.flavour == "rtx" or self.version >= (11,)

    @property
    def strongly_typed(self) -> bool:
        return self.always_typed or hasattr(self.module.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")

    @property
    def known_sms(self) -> frozenset[int]:
        """The SMs its builder can be told to build for; empty where it builds for the GPU it runs on."""
        members = getattr(getattr(self.module, "ComputeCapability", None), "__members__", {})
        return frozenset(int(name[2:]) for name in members if re.fullmatch(r"SM\d+", name))


def find(flavour: str | None = None) -> TensorRT:
    """The installed TensorRT; "tensorrt" is preferred over "rtx" unless `flavour` names one."""
    if flavour is not None and flavour not in FLAVOURS:
        raise unknown_name("TensorRT", flavour, FLAVOURS)
    broken = ""
    for kind in (flavour,) if flavour else FLAVOURS:
        for name in FLAVOURS[kind]:
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError:
                continue
            except (ImportError, OSError) as error:  # bindings without their libraries
                broken = f" ({name} is here and cannot be loaded: {error})"
                continue
            result = TensorRT(kind, _version(module, kind), module)
            if kind == "tensorrt" and result.version < targets.OLDEST:
                raise MissingError(f"{result} is too old: 8.6 or newer is needed; {targets.install_hint(flavour)}")
            return result
    raise MissingError(f"{targets.product(flavour)} is not installed{broken}; {targets.install_hint(flavour)}")


def _version(module: Any, flavour: str) -> tuple[int, ...]:
    """The version of the library that is loaded: a plan belongs to it, and the bindings may be of another."""
    bindings = targets.version_numbers(module.__version__)
    stem = "libtensorrt_rtx.so" if flavour == "rtx" else "libnvinfer.so"
    try:
        return library_version(int(ctypes.CDLL(f"{stem}.{bindings[0]}").getInferLibVersion()))
    except (OSError, AttributeError):
        return bindings


def library_version(number: int) -> tuple[int, int, int]:
    """The number of getInferLibVersion in parts: 8601 is 8.6.1, and from TensorRT 10 on 100300 is 10.3.0."""
    if number < 10_000:
        return number // 1000, number // 100 % 10, number % 100
    return number // 10_000, number // 100 % 100, number % 100
