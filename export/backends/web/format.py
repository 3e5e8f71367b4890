"""A page in a bundle."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from qcn.errors import MissingError
from qcn.export.backends.format import Format, Job, Made, Support
from qcn.export.backends.web.page import page_difference, wasm_file, write_page
from qcn.export.backends.web.runner import find_node
from qcn.export.bundle import Artefact, Bundle


class Page(Format):
    """A page with libqcn and the weights in it; it computes as they do, whatever else is asked for."""

    def make(self, job: Job) -> Made:
        made = super().make(replace(job, request=replace(job.request, precision="fp32", every_layer=False)))
        return replace(made, notes=(f"open {job.bundle.folder / self.data.file} in a browser: the network runs in it",))

    def write(self, job: Job, path: Path) -> dict[str, Any]:
        beside = Bundle.open(job.request.beside) if job.request.beside else None
        return write_page(job.bundle, beside, path)

    def difference(self, bundle: Bundle, artefact: Artefact, content: bytes, rebuilt: Path) -> str:
        return page_difference(bundle, content)

    def support(self, artefact: Artefact, bundle: Bundle) -> Support:
        try:
            return Support("runs", f"in a browser, and by Node {find_node()[1]}")
        except MissingError as error:
            return Support("runs", f"in a browser; {error}")


def wasm() -> str:
    """The path of libqcn for browsers; empty if there is none."""
    try:
        return str(wasm_file("simd"))
    except MissingError:
        return ""


def node() -> str:
    """Node's version; empty where there is none."""
    try:
        return find_node()[1]
    except MissingError:
        return ""


PAGE = Page("web")
