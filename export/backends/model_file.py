"""A model's file as it was read: runners load these bytes, and open nothing by its name again.

Between a check and a second look another file may lie in the same place. So a file of a bundle is read once, its hash
is computed of what was read, and that goes to the backend; through a pipe, if the backend is in another process.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qcn.export.backends import parts_of
from qcn.export.bundle import MANIFEST, Artefact, Bundle
from qcn.export.bundle.manifest import MANIFEST_SHA256, manifest_sums


@dataclass(frozen=True)
class ModelFile:
    """The file that a runner runs.

    path      where it was read, for messages alone
    content   its bytes
    beside    other files that it needs, by name: the weights of a graph; the manifest that libqcn reads
    facts     what is known of an engine (`qcn.export.backends.tensorrt.build`)
    rebuild   the command that makes it again
    """

    path: Path
    content: bytes = field(repr=False)
    beside: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    facts: Mapping[str, Any] = field(default_factory=dict)
    rebuild: str = ""

    @property
    def files(self) -> dict[str, bytes]:
        """All of it by name."""
        return {self.path.name: self.content, **self.beside}

    @staticmethod
    def of_bundle(bundle: Bundle, artefact: Artefact) -> "ModelFile":
        """A file of a bundle, with what it needs; what is not as its manifest says is refused."""
        others = parts_of(artefact.format, artefact.precision)
        read = bundle.read_together([artefact.file, *others])
        artefact = bundle.find(artefact.file)  # a writer may have replaced it
        beside = {file: read[file] for file in others}
        if artefact.format == "native":
            beside = {MANIFEST: bundle.text, MANIFEST_SHA256: manifest_sums(bundle.text)}
        path, rebuild = bundle.folder / artefact.file, artefact.rebuild_command(bundle.folder)
        return ModelFile(path, read[artefact.file], beside, artefact.facts, rebuild)
