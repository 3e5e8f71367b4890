"""Runners: one class a backend, all with the same four methods, so that what compares them need not know them.

    with create("onnxruntime", bundle / "model.onnx") as runner:
        outputs = runner.infer(images)          # images [B, C, H, W] float32 -> {"activation": [B, classes], ...}

Making a runner costs nothing and imports nothing; `open` loads the backend and the model, or says what is missing.
"""

import importlib
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from qcn.errors import UsageError, unknown_name

RUNNERS = {
    "torch": "qcn.verify.torch:DeployedRunner",
    "torchscript": "qcn.verify.torch:TorchScriptRunner",
    "pt2": "qcn.verify.torch:Pt2Runner",
    "native": "qcn.verify.native:NativeRunner",
    "onnxruntime": "qcn.verify.onnxruntime:OnnxRuntimeRunner",
    "tensorrt": "qcn.verify.tensorrt:TensorRTRunner",
}

Opened = TypeVar("Opened", bound="Runner")


class Runner(ABC):
    """A model in a backend. `name` says which, with the device and the version, once it is open.

    transfers   whether images and answers travel to a GPU and back. Such a runner can be asked for what lies between:
                `upload(images)` once, then any number of `enqueue()`, and `synchronize()`
    graph       None, or whether an inference is launched as one CUDA graph; may be set between any two
    """

    name: str
    transfers: bool = False
    graph: bool | None = None

    @abstractmethod
    def open(self) -> None:
        """Load the backend and the model."""

    @abstractmethod
    def infer(self, images: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """The outputs by name for images [B, C, H, W], which are already pre-processed."""

    @abstractmethod
    def close(self) -> None:
        """Free what `open` took. Closing twice is allowed."""

    def __enter__(self: Opened) -> Opened:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def create(backend: str, path: Path, **options: Any) -> Runner:
    """A runner by the name of its backend, for a model file; `options` are those of its class."""
    if backend not in RUNNERS:
        raise unknown_name("backend", backend, RUNNERS)
    if not path.is_file():
        raise UsageError(f"there is no model file {path}")
    module, name = RUNNERS[backend].split(":")
    runner: Runner = getattr(importlib.import_module(module), name)(path, **options)
    return runner
