"""A runner is a model file in a backend. Each backend has its own, all with the same contract.

    with create("onnxruntime", ModelFile.of_bundle(bundle, artefact)) as runner:      # qcn.export.backends.candidates
        outputs = runner.infer(images)          # images [B, C, H, W] float32 -> {"logit": [B, classes], ...}

Making a runner costs nothing and imports nothing; `open` loads the backend and the model, or says what is missing.
"""

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from qcn.errors import MissingError, UsageError
from qcn.export.backends.definition import Device
from qcn.export.backends.model_file import ModelFile
from qcn.names import AnyPrecision, ProgramKernels

TIME_LIMIT = 60.0  # seconds for one answer of a file that runs in a process of its own

Opened = TypeVar("Opened", bound="Runner")
Part = TypeVar("Part")


@dataclass(frozen=True)
class Options:
    """How a runner runs its file. Each runner uses what applies to it.

    precision   what to compute in, where a file can be run in several
    kernels     what routes, where a backend has a choice
    layers      capsule layers to give out beside the answers (`qcn.verify.parity.stages`)
    threads     CPU threads; None: the backend's choice
    thrifty     spend less processor time, where answers are checked and not timed
    """

    device: Device = "cpu"
    precision: AnyPrecision = "fp32"
    kernels: ProgramKernels = "reference"
    layers: tuple[str, ...] = ()
    threads: int | None = None
    thrifty: bool = False


class Runner(ABC):
    """A model file in a backend. `name` says which, with the device and the version, once it is open.

    path        where the file was read, for messages: what runs is `model`, its bytes
    transfers   whether images and answers travel to a GPU and back. Such a runner can be asked for what lies between:
                `upload(images)` once, then any number of `enqueue()`, and `synchronize()`
    graph       None, or whether an inference is launched as one CUDA graph; may be set between any two
    """

    graph: bool | None = None

    def __init__(self, model: ModelFile, options: Options) -> None:
        self.model, self.path, self.options = model, model.path, options
        self.transfers = options.device != "cpu"
        self.name = type(self).__name__

    def opened(self, part: Part | None) -> Part:
        """A part that `open` made."""
        if part is None:
            raise UsageError(f"the runner of {self.path} is not open")
        return part

    def load_backend(self) -> None:
        """Load the backend's libraries alone, or say what is missing; `open` does so too."""
        return

    @abstractmethod
    def open(self) -> None:
        """Load the backend and the model."""

    @abstractmethod
    def infer(self, images: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """The outputs by name for images [B, C, H, W], which are already pre-processed."""

    @abstractmethod
    def close(self) -> None:
        """Free what `open` took. Closing twice is allowed."""

    def inspected(self) -> str:
        """The JSON of the engine inspector; empty if there is none."""
        return ""

    def upload(self, images: NDArray[np.float32]) -> None:
        """Copy images to the device, for any number of `enqueue`; only where the runner `transfers`."""
        raise UsageError(f"{self.name} has no device to upload to")

    def enqueue(self) -> None:
        """Start one inference of what was uploaded."""
        raise UsageError(f"{self.name} has no device to run on")

    def synchronize(self) -> None:
        """Wait until everything enqueued is done."""
        raise UsageError(f"{self.name} has no device to wait for")

    def __enter__(self: Opened) -> Opened:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def imported(module: str, title: str, install: str) -> Any:
    """A module of a backend, or MissingError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingError(f"{title} is not installed, or only in part ({error}): {install}") from error


def check_shape(path: Path, images: NDArray[Any], takes: Sequence[object]) -> None:
    """Refuse images that a file does not take: `takes` are the sides of its input, those that are open as texts."""
    fits = len(takes) == images.ndim and all(
        side == size or isinstance(side, str) for side, size in zip(takes, images.shape, strict=True)
    )
    if not fits:
        raise UsageError(f"images are {list(images.shape)}, {path} takes {list(takes)}")


@contextmanager
def muted() -> Iterator[None]:
    """Silence standard error, where some runtimes announce themselves."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)
