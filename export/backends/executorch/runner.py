"""A .pte file on the CPU, by ExecuTorch's runtime for Python, which needs torch."""

import importlib
import json
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.errors import MissingError, UsageError
from qcn.export.backends.executorch import INSTALL
from qcn.export.backends.executorch.facts import quiet
from qcn.export.backends.model_file import ModelFile
from qcn.export.backends.runner import Options, Runner, muted


class ExecuTorchRunner(Runner):
    """Runs a .pte file. Any number of threads may ask it, one after the other."""

    def __init__(self, model: ModelFile, options: Options) -> None:
        super().__init__(model, options)
        self.name = "executorch (cpu)"
        self._program: Any = None
        self._method: Any = None
        self._outputs: list[str] = []
        self._takes: list[int] = []
        self._one_at_a_time = threading.Lock()

    def load_backend(self) -> None:
        try:
            with quiet():
                importlib.import_module("executorch.runtime")
            from executorch.extension.pybindings import portable_lib
            from executorch.version import __version__
        except ImportError as error:
            raise MissingError(f"ExecuTorch is not installed, or only in part ({error}): {INSTALL}") from error
        with muted():  # on ARM, ExecuTorch says by which files it counts the processor's cores
            portable_lib._threadpool_get_thread_count()
        self.name = f"executorch {__version__.partition('+')[0]} (cpu)"

    def open(self) -> None:
        self.load_backend()
        from executorch.extension.pybindings import portable_lib
        from executorch.runtime import Runtime, Verification

        if self.options.threads is not None:
            portable_lib._unsafe_reset_threadpool(self.options.threads)
        try:
            self._program = Runtime.get().load_program(
                self.model.content, verification=Verification.InternalConsistency
            )
            if "metadata" not in self._program.method_names:
                raise UsageError(f"{self.path} does not name its outputs: it was not written by qcn")
            metadata = json.loads(self._program.load_method("metadata").execute([])[0])
            self._outputs = list(metadata["outputs"])
            self._method = self._program.load_method("forward")
            self._takes = list(self._method.metadata.input_tensor_meta(0).sizes())
        except (RuntimeError, ValueError, TypeError, KeyError) as error:
            raise UsageError(
                f"{self.name} cannot load {self.path}: {error}; it is damaged, or from another version: rebuild "
                f"it with `qcn export BUNDLE --format executorch`"
            ) from error

    def infer(self, images: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        import torch

        if self._method is None:
            raise UsageError(f"the runner of {self.path} is not open")
        if list(images.shape) != self._takes:
            raise UsageError(f"images are {list(images.shape)}, {self.path} takes {self._takes}")
        batch = torch.from_numpy(np.ascontiguousarray(images, np.float32))
        try:
            with self._one_at_a_time:
                answers = [answer.numpy().copy() for answer in self._method.execute([batch])]
        except RuntimeError as error:
            raise UsageError(f"{self.name} cannot run {self.path}: {error}") from error
        if len(answers) != len(self._outputs):
            raise UsageError(f"{self.path} returns {len(answers)} outputs, but names {len(self._outputs)}")
        return dict(zip(self._outputs, answers, strict=True))

    def close(self) -> None:
        self._method = self._program = None
