"""A .pte file on the CPU, by ExecuTorch's runtime for Python, which needs torch."""

import json
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.errors import UsageError
from qcn.export.backends.executorch import INSTALL
from qcn.export.backends.model_file import ModelFile
from qcn.export.backends.runner import Options, Runner, check_shape, imported, muted


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
        with quiet():
            imported("executorch.runtime", "ExecuTorch", INSTALL)
        portable_lib = imported("executorch.extension.pybindings.portable_lib", "ExecuTorch", INSTALL)
        version = imported("executorch.version", "ExecuTorch", INSTALL).__version__
        with muted():  # on ARM, ExecuTorch says by which files it counts the processor's cores
            portable_lib._threadpool_get_thread_count()
        self.name = f"executorch {version.partition('+')[0]} (cpu)"

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

        method = self.opened(self._method)
        check_shape(self.path, images, self._takes)
        batch = torch.from_numpy(np.ascontiguousarray(images, np.float32))
        try:
            with self._one_at_a_time:
                answers = [answer.numpy().copy() for answer in method.execute([batch])]
        except RuntimeError as error:
            raise UsageError(f"{self.name} cannot run {self.path}: {error}") from error
        if len(answers) != len(self._outputs):
            raise UsageError(f"{self.path} returns {len(answers)} outputs, but names {len(self._outputs)}")
        return dict(zip(self._outputs, answers, strict=True))

    def close(self) -> None:
        self._method = self._program = None


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings of torchao, torch and ExecuTorch about their own internals."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
