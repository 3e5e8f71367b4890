"""TorchScript and pt2 files: traced from the interpreter of programs."""

from pathlib import Path
from typing import Any

from qcn.export.backends.format import Format, Job
from qcn.export.backends.torch import INSTALL


class TorchFile(Format):
    package = title = "torch"
    install = INSTALL
    needs = (("torch", "files for torch need torch", INSTALL),)

    def write(self, job: Job, path: Path) -> dict[str, Any]:
        from qcn.export.backends.torch.torchscript import write_pt2, write_torchscript

        request, write = job.request, write_pt2 if self.name == "pt2" else write_torchscript
        about = {"precision": request.precision, "every_layer": request.every_layer, "metadata": job.metadata}
        return write(job.bundle.program(), path, **about)


TORCHSCRIPT, PT2 = TorchFile("torchscript"), TorchFile("pt2")
