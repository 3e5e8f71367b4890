"""Runners: one file per backend, all with the same contract, so that what compares them need not know them.

    with create("onnxruntime", bundle / "model.onnx") as runner:
        outputs = runner.infer(images)          # images [B, C, H, W] float32 -> {"logit": [B, classes], ...}

Making a runner costs nothing and imports nothing; `open` loads the backend and the model, or says what is missing.
A new backend is one file here and one line in `BACKENDS`.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from qcn.errors import UsageError, unknown_name
from qcn.export.bundle import Bundle
from qcn.export.bundle.manifest import Artefact, Format
from qcn.names import AnyPrecision, ProgramKernels
from qcn.verify.runners.model_file import ModelFile

if TYPE_CHECKING:
    from qcn.verify.runners.isolated import IsolatedRunner

Device = Literal["cpu", "cuda"]
TIME_LIMIT = 60.0  # seconds for one answer of a file that runs in a process of its own

Opened = TypeVar("Opened", bound="Runner")


@dataclass(frozen=True)
class Options:
    """How a runner runs its file. Each runner uses what applies to it.

    precision   what to compute in, where a file can be run in several
    kernels     what routes, where a backend has a choice
    layers      capsule layers to give out beside the answers (`qcn.verify.parity.inside`)
    threads     CPU threads; None: the backend's choice
    """

    device: Device = "cpu"
    precision: AnyPrecision = "fp32"
    kernels: ProgramKernels = "reference"
    layers: tuple[str, ...] = ()
    threads: int | None = None


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
        """What the engine inspector says of its layers, in JSON; empty where there is none."""
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


@dataclass(frozen=True)
class Backend:
    """What `--backends` knows by `name`: the formats it runs, and the runner's class (MODULE:CLASS, in this folder).

    precisions     those that it makes of one artefact; empty: the artefact's own
    shows_layers   whether its runner can give out capsule layers that the file does not (`Options.layers`)
    isolated       whether its files are checked in a process of their own (`qcn.verify.runners.isolated`): they are
                   programs, which may run for ever or carry code
    timed          whether its time says anything; not that of a server that is stood in for
    """

    name: str
    formats: tuple[Format, ...]
    runner: str
    device: Device = "cpu"
    kernels: ProgramKernels = "reference"
    precisions: tuple[AnyPrecision, ...] = ()
    shows_layers: bool = False
    isolated: bool = False
    timed: bool = True

    def create(self, model: ModelFile, options: Options) -> Runner:
        """Its runner, not yet open."""
        module, name = self.runner.split(":")
        runner: Runner = getattr(importlib.import_module(f"{__name__}.{module}"), name)(model, options)
        return runner


ONNX: tuple[Format, ...] = ("onnx", "onnx-tensorrt", "onnx-fused")
BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("native", ("native",), "native:NativeRunner", shows_layers=True),
        Backend("torch", ("native",), "torch:WeightsRunner", shows_layers=True),
        Backend("torch-fused", ("native",), "torch:WeightsRunner", kernels="fused", shows_layers=True),
        Backend("torch-cuda", ("native",), "torch:WeightsRunner", "cuda", "fused", ("fp32", "fp16"), True),
        Backend("torchscript", ("torchscript",), "torch:TorchScriptRunner", isolated=True),
        Backend("torchscript-cuda", ("torchscript",), "torch:TorchScriptRunner", "cuda", isolated=True),
        Backend("pt2", ("pt2",), "torch:Pt2Runner", isolated=True),
        Backend("onnxruntime", ONNX, "onnxruntime:OnnxRuntimeRunner", shows_layers=True, isolated=True),
        Backend("onnxruntime-cuda", ONNX, "onnxruntime:OnnxRuntimeRunner", "cuda", shows_layers=True, isolated=True),
        Backend("tensorrt", ("trt",), "tensorrt:TensorRTRunner", "cuda"),
        Backend("web", ("web",), "web:WebRunner", shows_layers=True, isolated=True),
        Backend("triton", ("triton",), "triton:TritonRunner", isolated=True, timed=False),
        Backend("openvino", ("openvino",), "openvino:OpenVinoRunner", shows_layers=True, isolated=True),
        Backend("executorch", ("executorch",), "executorch:ExecuTorchRunner", isolated=True),
    )
}


def find(name: str) -> Backend:
    """A backend by name."""
    if name not in BACKENDS:
        raise unknown_name("backend", name, BACKENDS)
    return BACKENDS[name]


def create(
    name: str,
    file: Path | ModelFile,
    *,
    precision: AnyPrecision = "fp32",
    layers: Sequence[str] = (),
    threads: int | None = None,
) -> Runner:
    """The runner of a backend for a model file, in this process. A path is that of your own file, in a bundle or not:
    it is read now, and not checked against any hash."""
    backend = find(name)
    options = Options(backend.device, precision, backend.kernels, tuple(layers), threads=threads)
    return backend.create(file if isinstance(file, ModelFile) else ModelFile.at(file), options)


@dataclass(frozen=True)
class Candidate:
    """An artefact in a backend, in a precision; `trusted` says whether code that it carries may run."""

    backend: Backend
    artefact: Artefact
    precision: AnyPrecision
    trusted: bool = False

    @property
    def key(self) -> str:
        return key(self.backend.name, self.artefact.file, self.precision)

    @property
    def untrusted(self) -> str:
        """Why it must not run; empty if it may."""
        if self.trusted or not self.artefact.carries_code:
            return ""
        return "it can carry code: add --trust if you trust its author"

    @property
    def least(self) -> int:
        """The fewest images that it takes at once."""
        return self.artefact.batch.min if self.artefact.batch else 1

    def takes(self, batch: int) -> bool:
        limits = self.artefact.batch
        return limits is None or limits.min <= batch <= limits.max

    def runner(self, bundle: Bundle, every_layer: bool = False, time_limit: float = TIME_LIMIT) -> Runner:
        """Its runner, not yet open, with the artefact's bytes, whose hash was checked.

        What may be a stranger's program runs isolated. With `every_layer` it gives out every capsule layer too, in
        backends that can be made to.
        """
        runner = self._runner(bundle, every_layer)
        return self._isolated(runner, time_limit) if self.backend.isolated else runner

    def isolated(self, bundle: Bundle, time_limit: float = TIME_LIMIT) -> "IsolatedRunner":
        """Its runner in a process of its own, whatever the backend."""
        return self._isolated(self._runner(bundle), time_limit)

    def runner_to_time(self, bundle: Bundle, time_limit: float = TIME_LIMIT) -> Runner:
        """Its runner in this process, where nothing adds to its time; isolated only where it carries code."""
        runner = self._runner(bundle)
        return self._isolated(runner, time_limit) if self.artefact.carries_code else runner

    def _isolated(self, runner: Runner, time_limit: float) -> "IsolatedRunner":
        from qcn.verify.runners.isolated import IsolatedRunner

        return IsolatedRunner(runner, self.backend.name, carries_code=self.artefact.carries_code, time_limit=time_limit)

    def _runner(self, bundle: Bundle, every_layer: bool = False) -> Runner:
        if self.untrusted:
            raise UsageError(f"{self.artefact.file} is not run: {self.untrusted}")
        layers = capsule_layers(bundle) if every_layer and self.backend.shows_layers else ()
        options = Options(self.backend.device, self.precision, self.backend.kernels, layers)
        return self.backend.create(ModelFile.of_bundle(bundle, self.artefact), options)


def capsule_layers(bundle: Bundle) -> tuple[str, ...]:
    """The names of the network's capsule layers, first to last; none where it has none."""
    return tuple(route.name for route in bundle.program().routes)


def candidates(
    bundle: Bundle, names: Iterable[str] | None, trust: bool = False, file: str | None = None
) -> list[Candidate]:
    """Every artefact, or one `file`, in every backend that was asked for, or in every one; one for each precision.

    Without `trust` those that can carry code are listed as such, and refused where they were asked for by name.
    """
    asked = [find(name) for name in dict.fromkeys(names or BACKENDS)]
    found = []
    for backend in asked:
        own = [
            Candidate(backend, artefact, precision, trust)
            for artefact in bundle.manifest.files
            if artefact.format in backend.formats and file in (None, artefact.file)
            for precision in backend.precisions or (artefact.precision,)
        ]
        if names and not own:
            formats, add = " or ".join(backend.formats), f"qcn export {bundle.folder} --format {backend.formats[0]}"
            where = ", on the device" if "trt" in backend.formats else ""  # where an engine is built
            raise UsageError(
                f"{bundle.folder} has no file for the backend {backend.name}, which runs {formats}; add "
                f"one{where}: {add}"
            )
        if names and (refused := [one for one in own if one.untrusted]):
            raise UsageError(f"{backend.name} does not run {refused[0].artefact.file}: {refused[0].untrusted}")
        found += own
    if not found:
        add = f"qcn export RUN --out {bundle.folder}"
        raise UsageError(f"{bundle.folder} has no file that a backend can run; add one with: {add}")
    return found


def key(backend: str, file: str, precision: str) -> str:
    """What an artefact in a backend is called in tables and records: no two in a bundle share it."""
    return f"{backend}: {file} ({precision})"
