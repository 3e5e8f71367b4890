"""A .pte file in a bundle."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qcn.errors import UsageError
from qcn.export.backends.executorch import INSTALL
from qcn.export.backends.format import Format, Job, Made, Support
from qcn.export.backends.torch import INSTALL as INSTALL_TORCH
from qcn.export.bundle import Artefact, Batch, Bundle


class PteFile(Format):
    package, title, install = "executorch", "ExecuTorch", INSTALL
    needs = (("torch", "ExecuTorch needs torch", INSTALL_TORCH), (package, "ExecuTorch is not installed", INSTALL))
    fused = False

    def check(self, job: Job) -> None:
        super().check(job)
        if job.precision != "fp32":
            raise UsageError(f"executorch is only made in fp32, not in {job.precision}: leave out --precision")

    def make(self, job: Job) -> Made:
        """For the fewest images that were asked for."""
        least = job.request.batch.min
        made = super().make(replace(job, request=replace(job.request, batch=Batch(least, least, least))))
        if (result := made.artefact) is None:
            return made
        return replace(made, notes=(f"{result.file}, for batches of {result.batch}: {summary(result.facts)}",))

    def write(self, job: Job, path: Path) -> dict[str, Any]:
        from qcn.export.backends.executorch.writer import write_executorch

        request, program = job.request, job.bundle.program()
        return write_executorch(
            program, path, batch=request.batch.min, every_layer=request.every_layer, metadata=job.metadata
        )

    def support(self, artefact: Artefact, bundle: Bundle) -> Support:
        plain = super().support(artefact, bundle)
        return replace(plain, reason=f"{plain.reason}: {summary(artefact.facts)}") if plain.state == "runs" else plain


def summary(facts: Mapping[str, Any]) -> str:
    """Which operators of a file XNNPACK runs, and which run by portable kernels."""
    delegated, left = (facts.get(name, {}) for name in ("xnnpack", "portable"))
    others = ", ".join(f"{count} {name}" for name, count in left.items())
    return (
        f"XNNPACK runs {sum(delegated.values())} of {sum(delegated.values()) + sum(left.values())} operators, in "
        f"{facts.get('parts')} parts; portable kernels run {others or 'none'}"
    )


PTE = PteFile("executorch")
