"""The bundle: what `qcn export` writes and everything on the device reads."""

from qcn.export.bundle.bundle import Bundle, Draft, folder_of
from qcn.export.bundle.findings import Finding
from qcn.export.bundle.manifest import GOLDEN, WEIGHTS, Artefact, Batch
from qcn.names import MANIFEST

__all__ = ["GOLDEN", "MANIFEST", "WEIGHTS", "Artefact", "Batch", "Bundle", "Draft", "Finding", "folder_of"]
