"""Is a file of a bundle what its program builds? It is built again, and the two are compared.

The same program, options and versions of the writers give the same bytes. Where another version wrote the file, a
format that can be is compared part by part (`FileFormat.difference`): every node and every array must be the same.
Files that can carry code, and pages, must be the same bytes: nothing less shows that they do nothing else.

An engine of TensorRT is not built alike twice, and cannot be compared so.
"""

import tempfile
from pathlib import Path

from qcn.export.backends.format import Job, format_of
from qcn.export.bundle import Artefact, Batch, Bundle
from qcn.export.bundle.manifest import Manifest
from qcn.export.pipeline import check_opset
from qcn.export.request import ExportRequest
from qcn.names import PRECISIONS


def difference(bundle: Bundle, artefact: Artefact) -> str:
    """The first difference between a file and what the bundle's program builds, in words; empty if there is none.

    MissingError where a package is not installed that builds it.
    """
    content, format = bundle.read(artefact), format_of(artefact.format)
    with tempfile.TemporaryDirectory() as folder:
        path, request = Path(folder) / artefact.file, request_of(artefact, bundle.manifest)
        check_opset(request)
        format.require()
        format.write(Job(bundle, request), path)
        return format.difference(bundle, artefact, content, path)


def request_of(artefact: Artefact, manifest: Manifest) -> ExportRequest:
    """The request that makes this file again; its facts may come from a stranger."""
    outputs, opset = artefact.facts.get("outputs"), artefact.facts.get("opset")
    return ExportRequest(
        precision=next((one for one in PRECISIONS if one == artefact.precision), "fp32"),
        batch=artefact.batch or Batch(1, 8, 64),
        opset=opset if isinstance(opset, int) and not isinstance(opset, bool) else None,
        every_layer=isinstance(outputs, list | dict) and len(outputs) > len(manifest.outputs),
    )
