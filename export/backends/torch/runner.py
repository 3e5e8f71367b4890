"""torch as a backend: the deployment form by plain torch or by its fused kernels, and the files made for torch."""

import io
import json
from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.errors import MissingError, UsageError
from qcn.export.backends.model_file import ModelFile
from qcn.export.backends.runner import Options, Runner, imported
from qcn.export.backends.torch import INSTALL


class _TorchRunner(Runner):
    """The base of the three runners: images become a tensor on the device, and output tensors become arrays by name.

    On a GPU an inference is captured as a CUDA graph at each new batch size.
    """

    def __init__(self, model: ModelFile, options: Options) -> None:
        super().__init__(model, options)
        self.device = options.device
        self.graph = True if self.transfers else None
        self._images: Any = None
        self._answers: Any = None
        self._captured: Any = None
        self._graph_answers: Any = None
        self._model: Any = None
        self._outputs: list[str] = []  # the names of what the model gives, in its order

    def load_backend(self) -> None:
        torch = imported("torch", "torch", INSTALL)
        if self.device != "cpu" and not torch.cuda.is_available():
            raise MissingError(f"torch {torch.__version__} finds no CUDA device here")
        self.name = f"torch {torch.__version__} ({self.device})"

    def open(self) -> None:
        self.load_backend()
        try:
            self._model = self._load()
        except (RuntimeError, ValueError, OSError) as error:
            raise UsageError(f"torch cannot load {self.path}: {error}") from error

    @abstractmethod
    def _load(self) -> Any:
        """The model, on the device, in evaluation mode; the names of its outputs are kept."""

    def infer(self, images: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        self.upload(images)
        try:
            self.enqueue()
        except (RuntimeError, ValueError, AssertionError) as error:  # Assertion-: how pt2 refuses a shape
            raise UsageError(f"torch cannot run {self.path} on {list(images.shape)}: {error}") from error
        answers = self._answers
        if len(answers) != len(self._outputs):
            raise UsageError(f"{self.path} returns {len(answers)} outputs, but names {len(self._outputs)}")
        return {name: x.cpu().numpy() for name, x in zip(self._outputs, answers, strict=True)}

    def upload(self, images: NDArray[np.float32]) -> None:
        """Bring images to the device; they stay there for any number of `enqueue`."""
        import torch

        self.opened(self._model)
        batch = torch.from_numpy(np.ascontiguousarray(images))
        if self._captured is not None and self._images.shape == batch.shape:
            self._images.copy_(batch)  # a graph reads where it read when it was captured
        else:
            self._images, self._captured = batch.to(self.device), None

    def enqueue(self) -> None:
        """Start one inference of what was uploaded."""
        import torch

        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
            if not self.graph:
                self._answers = self._run(self._images)
                return
            if self._captured is None:
                self._capture()
            self._captured.replay()
            self._answers = self._graph_answers

    def _capture(self) -> None:
        """Record one inference as a graph; a few must have run before, beside the stream that others use."""
        import torch

        aside = torch.cuda.Stream(self.device)
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(aside):
            for _ in range(3):
                self._run(self._images)
        torch.cuda.current_stream(self.device).wait_stream(aside)
        self._captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._captured):
            self._graph_answers = self._run(self._images)

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize(self.device)

    def _run(self, images: Any) -> Any:
        return self._model(images)

    def close(self) -> None:
        self._model = self._images = self._captured = self._answers = self._graph_answers = None


class WeightsRunner(_TorchRunner):
    """weights.safetensors by torch: in fp64 (the reference), fp32, fp16 or bf16, by any kernels, and any layers."""

    def _load(self) -> Any:
        import torch

        from qcn.export.backends.torch.interpreter import Interpreter
        from qcn.export.bundle import weights
        from qcn.routing import fused

        program, options = weights.read(self.model.content, self.path), self.options
        exact = options.precision == "fp64"
        if options.precision != "fp64" and not program.calibrated:
            program = program.at(options.precision)
        model = Interpreter(program, bool(options.layers), options.kernels).to(self.device).eval()
        dtype = torch.float64 if exact else torch.float32
        for route in program.routes if options.kernels == "fused" else ():  # says so now if there is no kernel for it
            fused("fused", torch.empty(0, dtype=dtype, device=self.device), route.parents)
        self._outputs = [output.name for output in model.outputs]
        return model.double() if exact else model

    def infer(self, images: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """The outputs; with layers also every iteration of their routing, if that is the reference's."""
        layers = self.options.layers
        if not layers:  # first, since a benchmark times it
            return super().infer(images)

        from qcn.export.bundle.golden import QUANTITIES, step_names
        from qcn.routing import watched

        steps: list[tuple[Any, ...]] = []
        with watched(lambda *step: steps.append(step)):
            result = super().infer(images)
        for name, step in zip(step_names(layers, len(steps) // len(layers)), steps, strict=True):
            result |= {f"{name}/{of}": x.cpu().numpy() for of, x in zip(QUANTITIES, step, strict=True)}
        return result

    def _run(self, images: Any) -> Any:
        return self._model(images.double() if self.options.precision == "fp64" else images)


class _FileRunner(_TorchRunner):
    """A file that says in its own metadata what its outputs are."""

    def _read(self, metadata: str) -> None:
        """Keep the outputs' names; a file that does not say so is refused."""
        facts = json.loads(metadata or "null")
        if not isinstance(facts, dict) or not isinstance(facts.get("outputs"), dict):
            raise ValueError("its metadata does not name its outputs: it was not written by qcn")
        self._outputs = list(facts["outputs"])


class TorchScriptRunner(_FileRunner):
    """A TorchScript file."""

    def _load(self) -> Any:
        import warnings

        import torch

        from qcn.export.backends.torch.torchscript import METADATA

        extra_files = {METADATA: ""}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is (deprecated|not supported)")
            model = torch.jit.load(io.BytesIO(self.model.content), map_location=self.device, _extra_files=extra_files)
        self._read(extra_files[METADATA])
        return model


class Pt2Runner(_FileRunner):
    """A file of torch.export."""

    def _load(self) -> Any:
        import torch

        from qcn.export.backends.torch.torchscript import METADATA

        extra_files = {METADATA: ""}
        model = torch.export.load(io.BytesIO(self.model.content), extra_files=extra_files).module().to(self.device)
        self._read(extra_files[METADATA])
        return model
