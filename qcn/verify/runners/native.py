"""libqcn by its C interface (deploy/include/qcn/qcn.h): the code that a C++ program on a device runs. No torch."""

import ctypes
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.ctypeslib import as_array
from numpy.typing import NDArray

from qcn.errors import MissingError, UsageError
from qcn.export.bundle import folder_of
from qcn.export.bundle.golden import step_names
from qcn.libqcn import load_library
from qcn.limits import STATISTICS
from qcn.verify.runners import Options, Runner

NATIVE, NO_BACKEND = 1, 6  # QCN_BACKEND_NATIVE and QCN_NO_BACKEND of qcn.h


class _ModelParams(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("backend", ctypes.c_int),
        ("precision", ctypes.c_char_p),
        ("self_test", ctypes.c_int),
        ("threads", ctypes.c_int),
        ("device", ctypes.c_int),
        ("log", ctypes.c_void_p),
        ("log_user", ctypes.c_void_p),
    )


class _ModelInfo(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("classes", ctypes.c_int),
        ("channels", ctypes.c_int),
        ("height", ctypes.c_int),
        ("width", ctypes.c_int),
        ("backend", ctypes.c_int),
        ("backend_name", ctypes.c_char_p),
        ("precision", ctypes.c_char_p),
        ("max_batch", ctypes.c_int),
        ("poses", ctypes.c_int),
    )


class _Image(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("width", ctypes.c_int),
        ("height", ctypes.c_int),
        ("channels", ctypes.c_int),
        ("pixel", ctypes.c_int),
        ("column_stride", ctypes.c_ssize_t),
        ("row_stride", ctypes.c_ssize_t),
        ("channel_stride", ctypes.c_ssize_t),
        ("reverse_channels", ctypes.c_int),
        ("on_device", ctypes.c_int),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("images", ctypes.c_int),
        ("parents", ctypes.c_int),
        ("height", ctypes.c_int),
        ("width", ctypes.c_int),
        ("iterations", ctypes.c_int),
        ("pose", ctypes.POINTER(ctypes.c_float)),
        ("activation", ctypes.POINTER(ctypes.c_float)),
        ("statistics", ctypes.POINTER(ctypes.c_float)),
    )


_LayerSeen = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Layer), ctypes.c_void_p)


class _SessionParams(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("layer", _LayerSeen),
        ("layer_user", ctypes.c_void_p),
    )


class NativeRunner(Runner):
    """The bundle that weights.safetensors lies in, by libqcn's own kernels. Its self-test is left to the comparator.

    With layers it gives out the means and variances of every iteration of their routing too.
    """

    def __init__(self, path: Path, options: Options) -> None:
        super().__init__(path, options)
        self.folder, self.layers = folder_of(path), options.layers
        self.name = "libqcn"
        self._shown: dict[str, list[NDArray[np.float32]]] = {}
        self._seen = _LayerSeen(self._show) if self.layers else _LayerSeen()
        self._library: Any = None
        self._model, self._session = ctypes.c_void_p(), ctypes.c_void_p()

    def open(self) -> None:
        self._library = library = load_library("qcn_model_load", "qcn_session_create", "qcn_infer", "qcn_preprocess")
        library.qcn_last_error.restype = ctypes.c_char_p
        library.qcn_model_free.argtypes = library.qcn_session_free.argtypes = (ctypes.c_void_p,)
        library.qcn_model_free.restype = library.qcn_session_free.restype = None
        params = _ModelParams(size=ctypes.sizeof(_ModelParams), backend=NATIVE, threads=self.options.threads or 0)
        folder = os.fsencode(self.folder)
        self._check(library.qcn_model_load(folder, ctypes.byref(params), ctypes.byref(self._model)))
        shown = _SessionParams(size=ctypes.sizeof(_SessionParams), layer=self._seen)
        self._check(library.qcn_session_create(self._model, ctypes.byref(shown), ctypes.byref(self._session)))
        info = _ModelInfo(ctypes.sizeof(_ModelInfo))
        self._check(library.qcn_model_describe(self._model, ctypes.byref(info)))
        self._image = (info.channels, info.height, info.width)
        self._classes, self._poses = info.classes, bool(info.poses)
        self.name = f"libqcn ({info.backend_name.decode()})"

    def infer(self, images: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        if self._library is None:
            raise UsageError(f"the runner of {self.folder} is not open")
        if images.shape[1:] != self._image:
            raise UsageError(f"images are {list(images.shape)}, the network takes {list(self._image)}")
        given = np.ascontiguousarray(images, np.float32)
        activation = np.empty((len(given), self._classes), np.float32)
        pose = np.empty((len(given), self._classes, 3), np.float32)
        images_at, activation_at, pose_at = (
            array.ctypes.data_as(ctypes.c_void_p) for array in (given, activation, pose)
        )
        self._shown = {}
        poses = pose_at if self._poses else None
        self._check(self._library.qcn_infer(self._session, images_at, len(given), activation_at, poses))
        inside = {name: np.concatenate(parts) for name, parts in self._shown.items()}
        return {"activation": activation, **({"pose": pose} if self._poses else {}), **inside}

    def _show(self, shown: Any, _: Any) -> None:
        """Keep what libqcn shows of a layer, laid out as `qcn.export.bundle.golden` has it: its memory is libqcn's."""
        layer = shown.contents
        name, images, places = layer.name.decode(), layer.images, (layer.height, layer.width)

        def keep(name: str, numbers: NDArray[np.float32]) -> None:
            self._shown.setdefault(name, []).append(numbers.copy())

        if name in self.layers[:-1]:
            keep(f"{name}.pose", as_array(layer.pose, (images, layer.parents, 3, *places)))
            keep(f"{name}.activation", as_array(layer.activation, (images, layer.parents, *places)))
        statistics = as_array(
            layer.statistics, (layer.iterations, STATISTICS, layer.parents, images, layer.height * layer.width)
        )
        steps = step_names([name], layer.iterations)
        for step, of in zip(steps, statistics.transpose(0, 3, 2, 1, 4), strict=True):
            keep(f"{step}/mean", of[:, :, 1:4])
            keep(f"{step}/variance", of[:, :, 4:7])
        keep(f"{steps[-1]}/activation", as_array(layer.activation, (images, layer.parents, statistics.shape[-1])))

    def preprocess(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Images [B, C, H, W] as the network sees them, by libqcn's own pre-processing."""
        if self._library is None:
            raise UsageError(f"the runner of {self.folder} is not open")
        _, channels, height, width = images.shape
        seen = np.empty((len(images), *self._image), np.float32)
        for image, out in zip(np.ascontiguousarray(images, np.uint8), seen, strict=True):
            planar = _Image(
                ctypes.sizeof(_Image), image.ctypes.data, width, height, channels, 0, 1, width, width * height
            )
            place = out.ctypes.data_as(ctypes.c_void_p)
            self._check(self._library.qcn_preprocess(self._model, ctypes.byref(planar), place))
        return seen

    def close(self) -> None:
        if self._library is not None:
            self._library.qcn_session_free(self._session)
            self._library.qcn_model_free(self._model)
        self._library, self._model, self._session = None, ctypes.c_void_p(), ctypes.c_void_p()

    def _check(self, status: int) -> None:
        if status:
            kind = MissingError if status == NO_BACKEND else UsageError
            raise kind(f"libqcn: {self._library.qcn_last_error().decode(errors='replace')}")
