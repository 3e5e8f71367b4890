"""torch as a backend: the deployment form by plain torch or by its fused kernels, and the files made for torch."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.errors import MissingError, UsageError
from qcn.verify import Runner


class _TorchRunner(Runner):
    """What the three have in common: images become a tensor on the device, and a tuple of tensors arrays by name."""

    def __init__(self, path: Path, device: str = "cpu") -> None:
        self.path, self.device = path, device
        self.name = "torch"
        self._model: Any = None

    def open(self) -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingError("torch is not installed: pip install 'qcn[train]'") from error
        if self.device != "cpu" and not torch.cuda.is_available():
            raise MissingError(f"torch {torch.__version__} sees no CUDA device here")
        try:
            self._model = self._load()
        except (RuntimeError, ValueError, OSError) as error:
            raise UsageError(f"torch cannot load {self.path}: {error}") from error
        self.name = f"torch {torch.__version__} ({self.device})"

    @abstractmethod
    def _load(self) -> Any:
        """The model, on the device, in evaluation mode."""

    def infer(self, images: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        import torch

        if self._model is None:
            raise UsageError(f"the runner of {self.path} is not open")
        with torch.inference_mode(), torch.backends.cudnn.flags(allow_tf32=False):
            outputs = self._run(torch.from_numpy(np.ascontiguousarray(images)).to(self.device))
        return {name: x.cpu().numpy() for name, x in zip(self._outputs(len(outputs)), outputs, strict=True)}

    def _run(self, images: Any) -> Any:
        return self._model(images)

    def _outputs(self, count: int) -> list[str]:
        return ["activation", "pose", *(f"layer output {i}" for i in range(count - 2))]

    def close(self) -> None:
        self._model = None


class DeployedRunner(_TorchRunner):
    """weights.safetensors by torch: `dtype` float64 or float32, `routing` reference or fused, and any `layers`."""

    def __init__(
        self,
        path: Path,
        device: str = "cpu",
        dtype: str = "float32",
        routing: Any = "reference",
        layers: Sequence[str] = (),
    ) -> None:
        super().__init__(path, device)
        self.dtype, self.routing, self.layers = dtype, routing, layers

    def _load(self) -> Any:
        import torch

        from qcn.export import native
        from qcn.export.lower import Deployed
        from qcn.routing import fused

        network = native.read(self.path)
        model = Deployed(network, every_layer=bool(self.layers)).to(self.device, getattr(torch, self.dtype)).eval()
        model.routing = self.routing
        kernels_for = torch.empty(0, dtype=getattr(torch, self.dtype), device=self.device)
        fused(self.routing, kernels_for, network.structure.classes)  # says so now if there are none
        return model

    def _outputs(self, count: int) -> list[str]:
        return list(self._model.facts()["outputs"])

    def _run(self, images: Any) -> Any:
        import torch

        return self._model(images.to(getattr(torch, self.dtype)))


class TorchScriptRunner(_TorchRunner):
    """A TorchScript file."""

    def _load(self) -> Any:
        import warnings

        import torch

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
            return torch.jit.load(str(self.path), map_location=self.device)


class Pt2Runner(_TorchRunner):
    """A file of torch.export."""

    def _load(self) -> Any:
        import torch

        return torch.export.load(str(self.path)).module().to(self.device)
