"""A LiteRT model in a bundle."""

from pathlib import Path
from typing import Any

from qcn.errors import FellBack
from qcn.export.backends.format import Format, Job
from qcn.export.backends.litert import INSTALL


class TfliteFile(Format):
    package, title, install = "ai_edge_litert", "LiteRT", INSTALL
    needs = ((package, "LiteRT is not installed", INSTALL),)
    fused = False

    def check(self, job: Job) -> None:
        super().check(job)
        if job.precision != "fp32" and not job.program.calibrated:
            raise FellBack(f"litert is only made in fp32, not in {job.precision}: leave out --precision")

    def write(self, job: Job, path: Path) -> dict[str, Any]:
        from qcn.export.backends.litert.writer import write

        request = job.request
        fixed = request.batch.min if request.batch.min == request.batch.max else None
        content, facts = write(job.program, batch=fixed, every_layer=request.every_layer, metadata=job.metadata)
        path.write_bytes(content)
        return facts


TFLITE = TfliteFile("litert")
