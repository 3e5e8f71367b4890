"""OpenVINO's graph and its weights in a bundle."""

import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

from qcn.export.backends import parts_of
from qcn.export.backends.format import Format, Job, Support
from qcn.export.backends.model_file import ModelFile
from qcn.export.backends.onnx.format import ONNX, graph_of
from qcn.export.backends.openvino import INSTALL
from qcn.export.backends.openvino.ir import check_pair, graph_difference, write_ir
from qcn.export.bundle import Artefact, Bundle


class GraphFile(Format):
    package, title, install = "openvino", "OpenVINO", INSTALL
    needs = ((package, "OpenVINO is not installed", INSTALL), ONNX)
    fused = False

    def write(self, job: Job, path: Path) -> dict[str, Any]:
        return write_ir(graph_of(job, "openvino.layers:STYLE").SerializeToString(), path)

    def difference(self, bundle: Bundle, artefact: Artefact, content: bytes, rebuilt: Path) -> str:
        (weights,) = parts_of(self.name, artefact.precision)
        if bundle.read(bundle.find(weights)) != rebuilt.with_suffix(".bin").read_bytes():
            return f"{weights} are other weights than its program's"
        return graph_difference(content, rebuilt.read_bytes())

    def support(self, artefact: Artefact, bundle: Bundle) -> Support:
        model = ModelFile.of_bundle(bundle, artefact)
        check_pair(model.path, model.content, model.beside)
        runs = super().support(artefact, bundle)
        if runs.state == "cannot":
            return runs
        if artefact.precision != "int8":
            return replace(runs, reason=f"{runs.reason}; computes in float32")
        if (machine := platform.machine()) not in ("x86_64", "AMD64"):
            return Support("cannot", f"OpenVINO computes int8 in floating point on {machine}", "run it on x86-64")
        # Only a compiled graph says what it runs in, and compiling a stranger's may take for ever.
        return replace(runs, reason=f"{runs.reason}; `qcn verify-parity` checks that its int8 runs as int8")


class GraphWeightsFile(Format):
    def support(self, artefact: Artefact, bundle: Bundle) -> Support:
        return Support("intact", f"the weights of {GRAPH.data.file_in(artefact.precision)}")


GRAPH, WEIGHTS = GraphFile("openvino"), GraphWeightsFile("openvino-weights")
