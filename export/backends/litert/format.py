"""A LiteRT model in a bundle."""

from pathlib import Path
from typing import Any

from qcn.errors import FellBack
from qcn.export.backends.format import Format, Job, Made, Support, need
from qcn.export.backends.litert import INSTALL
from qcn.export.backends.litert.precision import read
from qcn.export.backends.products import Products
from qcn.export.bundle import Artefact, Bundle
from qcn.packages import installed, version


class TfliteFile(Format):
    def make(self, job: Job) -> Made:
        _need_litert()
        job.refuse_fused("LiteRT")
        if job.precision != "fp32" and not job.program.calibrated:
            raise FellBack(f"litert is only made in fp32, not in {job.precision}: leave out --precision")
        return Made(self.name, job.add(self, job.request.batch))

    def write(self, job: Job, path: Path) -> dict[str, Any]:
        _need_litert()
        from qcn.export.backends.litert.writer import write

        request = job.request
        fixed = request.batch.min if request.batch.min == request.batch.max else None
        content, facts = write(job.program, batch=fixed, every_layer=request.every_layer, metadata=job.metadata)
        path.write_bytes(content)
        return facts

    def products(self, content: bytes) -> Products:
        return read(content)

    def support(self, artefact: Artefact, bundle: Bundle) -> Support:
        if not installed("ai_edge_litert"):
            return Support("cannot", "LiteRT is not installed", INSTALL)
        return Support("runs", f"by LiteRT {version('ai_edge_litert')}")


def _need_litert() -> None:
    need("ai_edge_litert", "LiteRT is not installed", INSTALL)


TFLITE = TfliteFile("litert")
