"""libqcn by its C interface (deploy/include/qcn/qcn.h): structures as they are there, models and sessions. No torch."""

import ctypes
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qcn.errors import MissingError, UsageError
from qcn.libqcn.location import load_library

BACKENDS = {"auto": 0, "native": 1, "tensorrt": 2}  # QCN_BACKEND_… of qcn.h
NO_BACKEND = 6  # QCN_NO_BACKEND
UINT8 = 0  # QCN_UINT8
LARGEST_INT = 2**31 - 1  # of C


TYPES: dict[str, Any] = {
    "size_t": ctypes.c_size_t,
    "ptrdiff_t": ctypes.c_ssize_t,
    "int": ctypes.c_int,
    "double": ctypes.c_double,
    "char*": ctypes.c_char_p,
    "void*": ctypes.c_void_p,
    "float*": ctypes.POINTER(ctypes.c_float),
}


def _members(text: str) -> list[tuple[str, Any]]:
    """The members of a structure as C declares them; an enumeration is an int."""
    declared = [member.split() for member in text.strip("; ").split(";")]
    return [(name, TYPES[kind]) for kind, name in declared]


class ModelParams(ctypes.Structure):
    _fields_ = _members(
        "size_t size; int backend; char* precision; int self_test; int threads; int device; void* log; "
        "void* log_user; char* public_key;"
    )


class File(ctypes.Structure):
    _fields_ = _members("char* name; char* data; size_t bytes;")


class ModelInfo(ctypes.Structure):
    _fields_ = _members(
        "size_t size; char* name; int classes; int channels; int height; int width; int backend; "
        "char* backend_name; char* precision; int max_batch; int poses; int image_height; int image_width; "
        "int operations; double temperature; int says_unknown;"
    )


class OperationView(ctypes.Structure):
    _fields_ = _members("size_t size; char* name; char* op; char* asked; char* ran; char* kernel;")


class Image(ctypes.Structure):
    _fields_ = _members(
        "size_t size; void* data; int width; int height; int channels; int pixel; ptrdiff_t column_stride; "
        "ptrdiff_t row_stride; ptrdiff_t channel_stride; int reverse_channels; int on_device;"
    )


class LayerView(ctypes.Structure):
    _fields_ = _members(
        "size_t size; char* name; int images; int parents; int height; int width; int iterations; "
        "float* pose; float* activation; float* logit; float* statistics;"
    )


LayerSeen = TYPES["qcn_layer_seen"] = ctypes.CFUNCTYPE(None, ctypes.POINTER(LayerView), ctypes.c_void_p)


class SessionParams(ctypes.Structure):
    _fields_ = _members("size_t size; void* stream; qcn_layer_seen layer; void* layer_user;")


class OperationRun(NamedTuple):
    """An operation of a program: the precision asked for, the one it is computed in, and by which kernels."""

    name: str
    op: str
    asked: str
    ran: str
    kernel: str


def image_of(pixels: NDArray[np.uint8]) -> Image:
    """A picture [H, W] or [H, W, C] where it is, without a copy: it must live for as long as it is used."""
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        raise UsageError(f"a picture is uint8 [H, W] or [H, W, C], not {pixels.dtype} {list(pixels.shape)}")
    if max(pixels.shape) > LARGEST_INT:  # which ctypes would cut off
        raise UsageError(f"a picture has at most 16384×16384 pixels, not {pixels.shape[1]}×{pixels.shape[0]}")
    height, width, channels = pixels.shape if pixels.ndim == 3 else (*pixels.shape, 1)
    row, column, channel = pixels.strides if pixels.ndim == 3 else (*pixels.strides, 1)
    return Image(ctypes.sizeof(Image), pixels.ctypes.data, width, height, channels, UINT8, column, row, channel, 0, 0)


class NativeModel:
    """A bundle that libqcn has loaded. Any number of threads may use it; each needs a session of its own.

    `files` are its files by name, as they were read in `folder`, which is for messages alone: libqcn checks them as it
    does a folder's, and opens nothing.
    """

    def __init__(
        self,
        files: Mapping[str, bytes],
        folder: Path,
        *,
        backend: str = "auto",
        precision: str | None = None,
        threads: int = 0,
        device: int = 0,
        self_test: int = 1,
    ) -> None:
        self._folder, self._word = folder, shlex.quote(str(folder))
        self._library: Any = load_library(
            "qcn_model_load_memory", "qcn_session_create", "qcn_infer", "qcn_preprocess", "qcn_model_operation"
        )
        self._library.qcn_last_error.restype = ctypes.c_char_p
        self._library.qcn_model_class.restype = ctypes.c_char_p
        for free in (self._library.qcn_model_free, self._library.qcn_session_free):
            free.argtypes, free.restype = (ctypes.c_void_p,), None
        pointer = ctypes.c_void_p
        self._library.qcn_classify.argtypes = (pointer, pointer, ctypes.c_int, pointer, pointer, pointer)
        self._library.qcn_infer.argtypes = (pointer, pointer, ctypes.c_int, pointer, pointer)
        self._handle = ctypes.c_void_p()
        params = ModelParams(
            size=ctypes.sizeof(ModelParams),
            backend=BACKENDS[backend],
            precision=precision.encode() if precision else None,
            self_test=self_test,
            threads=threads,
            device=device,
        )
        entries = (File * len(files))(*(File(name.encode(), data, len(data)) for name, data in files.items()))
        count, handle = ctypes.c_size_t(len(files)), ctypes.byref(self._handle)
        self.check(self._library.qcn_model_load_memory(entries, count, ctypes.byref(params), handle))
        self.info = ModelInfo(ctypes.sizeof(ModelInfo))
        self.check(self._library.qcn_model_describe(self._handle, ctypes.byref(self.info)))

    @property
    def backend_name(self) -> str:
        return str(self.info.backend_name.decode())

    @property
    def input(self) -> tuple[int, int, int]:
        """[C, H, W] of what the network sees."""
        return self.info.channels, self.info.height, self.info.width

    @property
    def operations(self) -> list[OperationRun]:
        """The operations and what runs them; empty if the backend does not say."""
        result = []
        for index in range(self.info.operations):
            operation = OperationView(ctypes.sizeof(OperationView))
            self.check(self._library.qcn_model_operation(self._handle, index, ctypes.byref(operation)))
            result.append(OperationRun(*(getattr(operation, name).decode() for name in OperationRun._fields)))
        return result

    def preprocess(self, image: Image) -> NDArray[np.float32]:
        """A picture as the network sees it, [C, H, W]."""
        result = np.empty(self.input, np.float32)
        place = result.ctypes.data_as(ctypes.c_void_p)
        self.check(self._library.qcn_preprocess(self._handle, ctypes.byref(image), place))
        return result

    def check(self, status: int) -> None:
        """Raise the error of a call, if it failed."""
        if status:
            kind = MissingError if status == NO_BACKEND else UsageError
            message = self._library.qcn_last_error().decode(errors="replace")
            # It was given a list of files, and does not know where they lie.
            message = message.replace("the list of files", str(self._folder)).replace("BUNDLE", self._word)
            raise kind(f"libqcn: {message}")

    def close(self) -> None:
        """Free it; its sessions go on."""
        self._library.qcn_model_free(self._handle)
        self._handle = ctypes.c_void_p()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()


class Session:
    """For one thread at a time. `layer` is called with every capsule layer, where the backend shows them."""

    def __init__(self, model: NativeModel, layer: Any = None) -> None:
        self._model, self._library = model, model._library
        self._handle = ctypes.c_void_p()
        params = SessionParams(size=ctypes.sizeof(SessionParams), layer=layer or LayerSeen())
        model.check(self._library.qcn_session_create(model._handle, ctypes.byref(params), ctypes.byref(self._handle)))

    def classify(self, images: Sequence[Image]) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Logits [B, classes] and poses [B, classes, 3], if the network has them, of pictures of any size."""
        array, count = (Image * len(images))(*images), len(images)
        # No answers are asked of libqcn: confidence.py makes them of logits, whichever backend these come from.
        return self._run(count, lambda *outputs: self._library.qcn_classify(self._handle, array, count, None, *outputs))

    def infer(self, inputs: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """The same of what the network sees, [B, C, H, W], contiguous."""
        address, count = inputs.ctypes.data, len(inputs)
        return self._run(count, lambda *outputs: self._library.qcn_infer(self._handle, address, count, *outputs))

    def _run(self, count: int, call: Callable[..., int]) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """`call` is given where the logits of `count` images go, and their poses."""
        info = self._model.info
        logit = np.empty((count, info.classes), np.float32)
        pose = np.empty((count, info.classes, 3), np.float32) if info.poses else None
        pose_at = None if pose is None else pose.ctypes.data
        self._model.check(call(logit.ctypes.data, pose_at))
        return logit, pose

    def close(self) -> None:
        self._library.qcn_session_free(self._handle)
        self._handle = ctypes.c_void_p()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()
