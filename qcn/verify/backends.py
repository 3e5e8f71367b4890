"""Which backends a bundle's artefacts can run in: what `--backends` knows."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from qcn.errors import UsageError, unknown_name
from qcn.export.bundle import Bundle
from qcn.export.manifest import Artefact, Format
from qcn.verify import Runner, create


@dataclass(frozen=True)
class Backend:
    """The formats it runs, and the runner (of `qcn.verify.RUNNERS`) with the options that do it."""

    formats: tuple[Format, ...]
    runner: str
    options: dict[str, Any] = field(default_factory=dict)


ONNX: tuple[Format, ...] = ("onnx", "onnx-trt", "onnx-fused")
BACKENDS = {
    "native": Backend(("native",), "native"),
    "torch": Backend(("native",), "torch"),
    "torch-fused": Backend(("native",), "torch", {"routing": "fused"}),
    "torchscript": Backend(("torchscript",), "torchscript"),
    "pt2": Backend(("pt2",), "pt2"),
    "onnxruntime": Backend(ONNX, "onnxruntime"),
    "onnxruntime-cuda": Backend(ONNX, "onnxruntime", {"device": "cuda"}),
    "tensorrt": Backend(("trt",), "tensorrt", {"graph": True}),
}


@dataclass(frozen=True)
class Candidate:
    """An artefact in a backend."""

    backend: str
    artefact: Artefact

    def runner(self, bundle: Bundle) -> Runner:
        """Its runner, not yet open; the artefact's hash is checked."""
        backend = BACKENDS[self.backend]
        return create(backend.runner, bundle.path(self.artefact), **backend.options)


def candidates(bundle: Bundle, names: Iterable[str] | None) -> list[Candidate]:
    """Every artefact in every backend that was asked for, or that there is if none was."""
    asked = list(dict.fromkeys(names)) if names else list(BACKENDS)
    found = []
    for name in asked:
        if name not in BACKENDS:
            raise unknown_name("backend", name, BACKENDS)
        own = [Candidate(name, one) for one in bundle.manifest.files if one.format in BACKENDS[name].formats]
        if names and not own:
            formats = " or ".join(BACKENDS[name].formats)
            raise UsageError(f"{bundle.folder} has nothing for the backend {name}: it runs {formats}")
        found += own
    return found
