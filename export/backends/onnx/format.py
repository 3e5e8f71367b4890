"""ONNX graphs in a bundle, in two styles: routing in standard operators, and as one custom node per capsule layer."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qcn.export.backends.definition import Device
from qcn.export.backends.format import Format, Job, Made, Support, need
from qcn.export.backends.onnx import INSTALL
from qcn.export.backends.onnx.precision import read
from qcn.export.backends.onnx.runner import FIX, cannot
from qcn.export.backends.products import Products
from qcn.export.bundle import Artefact, Bundle
from qcn.export.targets import this_gpu
from qcn.packages import distribution, installed, package_version, version

if TYPE_CHECKING:
    from onnx import ModelProto

    from qcn.export.backends.onnx.build import Style


class OnnxFile(Format):
    """The graph as ONNX Runtime is fastest with. `made_by` is the --format that makes it."""

    made_by = "onnx"

    def style(self) -> "Style":
        from qcn.export.backends.onnx.build import UNROLLED

        return UNROLLED

    def make(self, job: Job) -> Made:
        return Made(self.name, (FUSED_GRAPH if job.request.routing == "fused" else self).add(job))

    def add(self, job: Job) -> Artefact:
        """Write the graph in this style into the bundle. One that is only for an engine is made with it."""
        need_onnx()
        return job.add(self, job.request.batch, job.command(self.made_by))

    def fitting(self, job: Job) -> Artefact:
        """The bundle's graph in this style if it will do, else a new one."""
        request, bundle = job.request, job.bundle
        for artefact in bundle.manifest.files:
            if artefact.file == self.file_in(job.precision) and artefact.batch is not None:
                open_batch = artefact.batch.min < artefact.batch.max
                layers_shown = len(artefact.facts.get("outputs", ())) > len(bundle.manifest.outputs)
                opset_fits = request.opset in (None, artefact.facts.get("opset"))
                if (
                    (open_batch or artefact.batch == request.batch)
                    and layers_shown == request.every_layer
                    and opset_fits
                ):
                    return artefact
        return self.add(job)

    def write(self, job: Job, path: Path) -> dict[str, Any]:
        need_onnx()
        import onnx

        model = graph_of(job, self.style())
        onnx.save(model, path)
        outputs = [output.name for output in model.graph.output]
        return {"opset": model.opset_import[0].version, "nodes": len(model.graph.node), "outputs": outputs}

    def products(self, content: bytes) -> Products:
        return read(content)

    def difference(self, bundle: Bundle, artefact: Artefact, content: bytes, rebuilt: Path) -> str:
        from qcn.export.backends.onnx.difference import graph_difference

        return graph_difference(content, rebuilt.read_bytes())

    def support(self, artefact: Artefact, bundle: Bundle) -> Support:
        if not installed("onnxruntime"):
            return Support("cannot", "onnxruntime is not installed", INSTALL)
        device: Device = "cuda" if this_gpu() and distribution("onnxruntime") == "onnxruntime-gpu" else "cpu"
        if why := cannot(artefact.precision, device):
            return Support("cannot", why, FIX)
        return Support("runs", f"by ONNX Runtime {version('onnxruntime')}")


class FusedGraph(OnnxFile):
    """One custom node per capsule layer, and in it the unrolled graph for runtimes without the node."""

    def style(self) -> "Style":
        from qcn.export.backends.onnx.build import FUSED

        return FUSED

    def support(self, artefact: Artefact, bundle: Bundle) -> Support:
        plain = super().support(artefact, bundle)
        return replace(plain, reason=f"{plain.reason}, as the unrolled graph in it") if plain.state == "runs" else plain


def need_onnx() -> None:
    need("onnx", "writing ONNX needs the onnx package", "pip install onnx")


def graph_of(job: Job, style: "Style") -> "ModelProto":
    """The graph of a job, in a style."""
    from qcn.export.backends.onnx.build import build

    request = job.request
    return build(
        job.program,
        style=style,
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
