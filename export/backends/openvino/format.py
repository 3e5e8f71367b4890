"""OpenVINO's graph and its weights in a bundle."""

import platform
from pathlib import Path
from typing import Any

from qcn.errors import UsageError
from qcn.export.backends.format import Format, Job, Made, Support
from qcn.export.backends.model_file import ModelFile
from qcn.export.backends.onnx.format import graph_of, need_onnx
from qcn.export.backends.openvino import INSTALL
from qcn.export.backends.openvino.ir import check_pair, graph_difference, import_openvino, write_ir
from qcn.export.backends.openvino.precision import read
from qcn.export.backends.products import Products
from qcn.export.bundle import Artefact, Bundle
from qcn.packages import installed, version


class GraphFile(Format):
    def make(self, job: Job) -> Made:
        job.refuse_fused("OpenVINO")
        return Made(self.name, job.add(self, job.request.batch))

    def write(self, job: Job, path: Path) -> dict[str, Any]:
        import_openvino()
        need_onnx()
        from qcn.export.backends.openvino.layers import STYLE

        return write_ir(graph_of(job, STYLE).SerializeToString(), path)

    def products(self, content: bytes) -> Products:
        return read(content)

    def difference(self, bundle: Bundle, artefact: Artefact, content: bytes, rebuilt: Path) -> str:
        (weights,) = self.beside(artefact.precision)
        if bundle.read(bundle.find(weights)) != rebuilt.with_suffix(".bin").read_bytes():
            return f"{weights} are other weights than its program's"
        return graph_difference(content, rebuilt.read_bytes())

    def support(self, artefact: Artefact, bundle: Bundle) -> Support:
        model = ModelFile.of_bundle(bundle, artefact)
        check_pair(model.path, model.content, model.beside)
        if not installed("openvino"):
            return Support("cannot", "OpenVINO is not installed", INSTALL)
        here = f"OpenVINO {version('openvino')}"
        if artefact.precision != "int8":
            return Support("runs", f"by {here}; computes in float32")
        if (machine := platform.machine()) not in ("x86_64", "AMD64"):
            return Support("cannot", f"{here} computes int8 in floating point on {machine}", "run it on x86-64")
        # Only a compiled graph says what it runs in, and compiling a stranger's may take for ever.
        return Support("runs", f"by {here}; `qcn verify-parity` checks that its int8 runs as int8")


class GraphWeightsFile(Format):
    def products(self, content: bytes) -> Products:
        raise UsageError("the graph says what these weights are for")

    def support(self, artefact: Artefact, bundle: Bundle) -> Support:
        return Support("intact", f"the weights of {GRAPH.file_in(artefact.precision)}")


GRAPH, WEIGHTS = GraphFile("openvino"), GraphWeightsFile("openvino-weights")
