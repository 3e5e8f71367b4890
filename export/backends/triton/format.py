"""A server's model repository in a bundle."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from qcn.errors import UsageError
from qcn.export.backends.format import Format, Job, Made, Support
from qcn.export.backends.onnx.format import UNROLLED_GRAPH
from qcn.export.backends.triton import INSTALL
from qcn.export.backends.triton.networks import networks, unbatched
from qcn.export.backends.triton.repository import (
    model_name,
    repository_difference,
    write_repository,
)
from qcn.export.bundle import Artefact, Bundle


class Repository(Format):
    """Pre-processing, and behind it the ONNX graph, or the engine where there is one."""

    package, title, install = "tritonclient", "tritonclient", INSTALL
    fused = False

    def make(self, job: Job) -> Made:
        request, bundle = job.request, job.bundle
        self.check(job)
        if why := unbatched(request.batch):
            raise UsageError(f"it cannot be served: {why}")
        _, notes = networks(bundle, UNROLLED_GRAPH.fitting(job), request.batch, request.benchmark)
        result = job.add(self)
        notes += [
            f"mkdir -p models && tar -xf {shlex.quote(str(bundle.folder / result.file))} -C models",
            f"tritonserver --model-repository=models   # serves {model_name(bundle.manifest.name, job.precision)}: "
            "docs/serve.md",
        ]
        return Made(self.name, result, notes=tuple(notes))

    def write(self, job: Job, path: Path) -> dict[str, Any]:
        """The repository of the bundle's graph, which must be there, and of its engine, if there is one."""
        request, bundle = job.request, job.bundle
        graph = bundle.find(UNROLLED_GRAPH.data.file_in(job.precision))
        served, _ = networks(bundle, graph, request.batch, request.benchmark)
        name = model_name(bundle.manifest.name, job.precision)
        return write_repository(path, name, bundle, served, job.command(self.name))

    def difference(self, bundle: Bundle, artefact: Artefact, content: bytes, rebuilt: Path) -> str:
        return repository_difference(bundle, artefact, content, rebuilt.read_bytes())

    def support(self, artefact: Artefact, bundle: Bundle) -> Support:
        """It runs in a server, and is checked by what stands in for one."""
        checked = super().support(artefact, bundle)
        if checked.state == "runs":
            checked = UNROLLED_GRAPH.support(artefact, bundle)
        if checked.state == "cannot":
            return checked
        return replace(checked, reason=f"in Triton Inference Server; checked here with tritonclient, {checked.reason}")


REPOSITORY = Repository("triton")
