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
    """The formats it runs, and the runner (of `qcn.verify.RUNNERS`) with the options that do it.

    shows_layers   whether the runner has an option `layers`: capsule layers to give out beside the answers, as
                   `qcn.verify.trace` wants them
    """

    formats: tuple[Format, ...]
    runner: str
    options: dict[str, Any] = field(default_factory=dict)
    shows_layers: bool = False


ONNX: tuple[Format, ...] = ("onnx", "onnx-trt", "onnx-fused")
ON_GPU = {"device": "cuda", "graph": True}
BACKENDS = {
    "native": Backend(("native",), "native", shows_layers=True),
    "torch": Backend(("native",), "torch", shows_layers=True),
    "torch-fused": Backend(("native",), "torch", {"routing": "fused"}, shows_layers=True),
    "torch-cuda": Backend(("native",), "torch", {"routing": "fused", **ON_GPU}, shows_layers=True),
    "torch-cuda-fp16": Backend(
        ("native",), "torch", {"routing": "fused", "precision": "fp16", **ON_GPU}, shows_layers=True
    ),
    "torchscript": Backend(("torchscript",), "torchscript"),
    "torchscript-cuda": Backend(("torchscript",), "torchscript", ON_GPU),
    "pt2": Backend(("pt2",), "pt2"),
    "onnxruntime": Backend(ONNX, "onnxruntime", shows_layers=True),
    "onnxruntime-cuda": Backend(ONNX, "onnxruntime", ON_GPU, shows_layers=True),
    "tensorrt": Backend(("trt",), "tensorrt", {"graph": True}),
}


@dataclass(frozen=True)
class Candidate:
    """An artefact in a backend."""

    backend: str
    artefact: Artefact

    @property
    def precision(self) -> str:
        """What it computes in: the artefact's, unless the backend makes another of it."""
        return str(BACKENDS[self.backend].options.get("precision", self.artefact.precision))

    def takes(self, batch: int) -> bool:
        limits = self.artefact.batch
        return limits is None or limits.min <= batch <= limits.max

    def runner(self, bundle: Bundle, every_layer: bool = False) -> Runner:
        """Its runner, not yet open; the artefact's hash is checked.

        With `every_layer` it gives out every capsule layer too, in backends that can be made to.
        """
        backend = BACKENDS[self.backend]
        layers = [layer.name for layer in bundle.manifest.structure.capsules] if every_layer else []
        options = {"layers": layers} if layers and backend.shows_layers else {}
        return create(backend.runner, bundle.path(self.artefact), **backend.options, **options)


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
    if not found:
        mend = f"qcn export RUN --out {bundle.folder}"
        raise UsageError(f"{bundle.folder} has nothing that a backend runs; add to it with: {mend}")
    return found
