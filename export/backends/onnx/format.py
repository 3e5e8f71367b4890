"""ONNX graphs in a bundle, in two styles: routing in standard operators, and as one custom node per capsule layer."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qcn.export.backends.definition import Device, load
from qcn.export.backends.format import Format, Job, Made, Support
from qcn.export.backends.onnx import INSTALL
from qcn.export.backends.onnx.runner import FIX, cannot
from qcn.export.bundle import Artefact, Bundle
from qcn.export.targets import this_gpu
from qcn.packages import distribution, package_version

if TYPE_CHECKING:
    from onnx import ModelProto


# What writes graphs, for `Format.needs`.
ONNX = ("onnx", "writing ONNX needs the onnx package", "pip install onnx")


class OnnxFile(Format):
    """A graph in a `style` (`onnx.build`): this one is what ONNX Runtime is fastest with."""

    package, title, install = "onnxruntime", "ONNX Runtime", INSTALL
    needs = (ONNX,)
    style = "onnx.build:UNROLLED"

    def make(self, job: Job) -> Made:
        return Made(self.name, job.add(FUSED_GRAPH if job.request.routing == "fused" else self))

    def fitting(self, job: Job) -> Artefact:
        """The bundle's graph in this style if it will do, else a new one."""
        request, bundle = job.request, job.bundle
        for artefact in bundle.manifest.files:
            if artefact.file == self.data.file_in(job.precision) and artefact.batch is not None:
                open_batch = artefact.batch.min < artefact.batch.max
                layers_shown = len(artefact.facts.get("outputs", ())) > len(bundle.manifest.outputs)
                opset_fits = request.opset in (None, artefact.facts.get("opset"))
                batch_fits = open_batch or artefact.batch == request.batch
                if batch_fits and opset_fits and layers_shown == request.every_layer:
                    return artefact
        return job.add(self)

    def write(self, job: Job, path: Path) -> dict[str, Any]:
        import onnx

        model = graph_of(job, self.style)
        onnx.save(model, path)
        outputs = [output.name for output in model.graph.output]
        return {"opset": model.opset_import[0].version, "nodes": len(model.graph.node), "outputs": outputs}

    def difference(self, bundle: Bundle, artefact: Artefact, content: bytes, rebuilt: Path) -> str:
        from qcn.export.backends.onnx.difference import graph_difference

        return graph_difference(content, rebuilt.read_bytes())

    def support(self, artefact: Artefact, bundle: Bundle) -> Support:
        device: Device = "cuda" if this_gpu() and distribution(self.package) == "onnxruntime-gpu" else "cpu"
        runs, why = super().support(artefact, bundle), cannot(artefact.precision, device)
        return Support("cannot", why, FIX) if runs.state == "runs" and why else runs


class FusedGraph(OnnxFile):
    """One custom node per capsule layer, and in it the unrolled graph for runtimes without the node."""

    style = "onnx.build:FUSED"

    def support(self, artefact: Artefact, bundle: Bundle) -> Support:
        plain = super().support(artefact, bundle)
        return replace(plain, reason=f"{plain.reason}, as the unrolled graph in it") if plain.state == "runs" else plain


def graph_of(job: Job, style: str) -> "ModelProto":
    """The graph of a job, in the style that FOLDER.MODULE:NAME has."""
    from qcn.export.backends.onnx.build import build

    request = job.request
    return build(
        job.program,
        style=load(style),
        batch=request.batch.min if request.batch.min == request.batch.max else None,
        opset=request.opset_of(job.precision),
        every_layer=request.every_layer,
        metadata=job.metadata,
    )


def runtime() -> str:
    """The version of ONNX Runtime, and whether it is the one for GPUs."""
    on_gpu = package_version("onnxruntime-gpu")
    return f"{on_gpu}, CUDA" if on_gpu else package_version("onnxruntime")


UNROLLED_GRAPH, FUSED_GRAPH = OnnxFile("onnx"), FusedGraph("onnx-fused")
