"""TorchScript and pt2 files: traced from the interpreter of programs."""

from pathlib import Path
from typing import Any

from qcn.export.backends.format import Format, Job, Made, Support, need
from qcn.export.backends.products import Products
from qcn.export.backends.torch import INSTALL
from qcn.export.backends.torch.precision import read_pt2, read_torchscript
from qcn.export.bundle import Artefact, Bundle
from qcn.packages import installed, version


class TorchScript(Format):
    title = "TorchScript"

    def make(self, job: Job) -> Made:
        need("torch", f"{self.title} needs torch", INSTALL)
        job.refuse_calibrated(self.name)
        return super().make(job)

    def write(self, job: Job, path: Path) -> dict[str, Any]:
        from qcn.export.backends.torch.torchscript import write_torchscript

        return write_torchscript(job.bundle.program(), path, **self._settings(job))

    def products(self, content: bytes) -> Products:
        return read_torchscript(content)

    def support(self, artefact: Artefact, bundle: Bundle) -> Support:
        if not installed("torch"):
            return Support("cannot", "torch is not installed", INSTALL)
        return Support("runs", f"by torch {version('torch')}")

    def _settings(self, job: Job) -> dict[str, Any]:
        request = job.request
        return {"precision": request.precision, "every_layer": request.every_layer, "metadata": job.metadata}


class Pt2(TorchScript):
    title = "pt2"

    def write(self, job: Job, path: Path) -> dict[str, Any]:
        from qcn.export.backends.torch.pt2 import write_pt2

        return write_pt2(job.bundle.program(), path, **self._settings(job))

    def products(self, content: bytes) -> Products:
        return read_pt2(content)


TORCHSCRIPT, PT2 = TorchScript("torchscript"), Pt2("pt2")
