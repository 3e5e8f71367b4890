"""The TensorRT plugin behind `EMRouting` (`deploy/plugins/`), for engines with fused routing.

Loading `libqcn_plugin.so` registers it with TensorRT; nothing is called. It belongs to the TensorRT that it was built
for, and has to be loaded both where an engine is built and where one is run.
"""

import ctypes
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qcn.errors import MissingError
from qcn.export.backends.tensorrt.find import TensorRT
from qcn.libqcn import location

LIBRARY = "libqcn_plugin.so"
NAME, VERSION = "EMRouting", "1"  # of the creator in TensorRT's registry
# CUDA is named too, since `make` configures the same folder without it.
BUILD = "cmake -S deploy -B build -DQCN_CUDA=ON -DQCN_TENSORRT=ON && cmake --build build -j --target qcn_plugin"


@dataclass(frozen=True)
class Plugin:
    """The plugin library that was loaded: its own version, and the sha256 of its file."""

    path: Path
    version: str
    sha256: str

    def facts(self) -> dict[str, str]:
        """Its entry in an engine's facts."""
        return {"name": NAME, "version": self.version, "sha256": self.sha256}


def find() -> Path:
    """The library's file: $QCN_PLUGIN, or beside libqcn ($QCN_LIBRARY, the package's own, that of build/)."""
    override = os.environ.get("QCN_PLUGIN")
    places = [Path(override)] if override else [place.with_name(LIBRARY) for place in location.places()]
    missing = "an engine with fused routing needs the TensorRT plugin, which is not at"
    fix = f"build it with `{BUILD}`, name it with QCN_PLUGIN, or use --routing unrolled"
    return location.first_file(places, missing, fix).resolve()


def load(tensorrt: TensorRT) -> Plugin:
    """Load the plugin into this TensorRT. Loading it again changes nothing."""
    if tensorrt.flavour == "rtx":
        raise MissingError(f"{tensorrt} has no fused routing: its plugin is for TensorRT; use --routing unrolled")
    path = find()
    try:
        library = ctypes.CDLL(str(path))
        version, built_for = _text(library.qcn_plugin_version), _text(library.qcn_plugin_tensorrt)
    except (OSError, AttributeError) as error:
        raise MissingError(f"{path} cannot be loaded ({error}); build it for {tensorrt} by `{BUILD}`") from error
    registry = tensorrt.module.get_plugin_registry()
    # Creators of the newer kind are found by get_creator, which TensorRT 8.6 does not have.
    creator = getattr(registry, "get_creator", None) or registry.get_plugin_creator
    if built_for.split(".", maxsplit=1)[0] != str(tensorrt.version[0]) or creator(NAME, VERSION, "") is None:
        raise MissingError(f"{path} was built for TensorRT {built_for}, here is {tensorrt}; build it by `{BUILD}`")
    return Plugin(path, version, hashlib.sha256(path.read_bytes()).hexdigest())


def _text(function: Any) -> str:
    function.restype = ctypes.c_char_p
    return str(function().decode())
