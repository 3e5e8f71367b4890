"""A .pte file in a bundle."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from qcn.errors import UsageError
from qcn.export.backends.executorch import INSTALL
from qcn.export.backends.executorch.facts import summary
from qcn.export.backends.format import Format, Job, Made, Support, need
from qcn.export.backends.products import Products
from qcn.export.backends.torch import INSTALL as INSTALL_TORCH
from qcn.export.bundle import Artefact, Batch, Bundle
from qcn.packages import installed, version


class PteFile(Format):
    def make(self, job: Job) -> Made:
        """For the fewest images that were asked for."""
        need("torch", "ExecuTorch needs torch", INSTALL_TORCH)
        _need_executorch()
        job.refuse_calibrated(self.name)
        job.refuse_fused("ExecuTorch")
        if job.precision != "fp32":
            raise UsageError(f"executorch is only made in fp32, not in {job.precision}: leave out --precision")
        least = job.request.batch.min
        job = replace(job, request=replace(job.request, batch=Batch(least, least, least), opset=None))
        result = job.add(self, job.request.batch)
        note = f"{result.file}, for batches of {result.batch}: {summary(result.facts)}"
        return Made(self.name, result, notes=(note,))

    def write(self, job: Job, path: Path) -> dict[str, Any]:
        _need_executorch()
        from qcn.export.backends.executorch.writer import write_executorch

        request, program = job.request, job.bundle.program()
        return write_executorch(
            program, path, batch=request.batch.min, every_layer=request.every_layer, metadata=job.metadata
        )

    def products(self, content: bytes) -> Products:
        raise UsageError("a .pte file is for ExecuTorch alone to read")

    def support(self, artefact: Artefact, bundle: Bundle) -> Support:
        if not installed("executorch"):
            return Support("cannot", "ExecuTorch is not installed", INSTALL)
        return Support("runs", f"by ExecuTorch {version('executorch')}: {summary(artefact.facts)}")


def _need_executorch() -> None:
    need("executorch", "ExecuTorch is not installed", INSTALL)


PTE = PteFile("executorch")
