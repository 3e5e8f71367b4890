"""A model's file as it was read: runners load these bytes, and open nothing by its name again.

Between a check and a second look another file may lie in the same place. So a file of a bundle is read once, its hash
is computed of what was read, and that goes to the backend; through a pipe, if the backend is in another process.
"""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from qcn.errors import UsageError
from qcn.export.backends import FORMATS, parts_of
from qcn.export.bundle import MANIFEST, WEIGHTS, Artefact, Bundle, folder_of
from qcn.export.bundle.digest import manifest_sums
from qcn.export.bundle.manifest import MANIFEST_SHA256
from qcn.names import BUNDLE


@dataclass(frozen=True)
class ModelFile:
    """What a runner runs.

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

    @staticmethod
    def at(path: Path) -> "ModelFile":
        """The user's own file, in a bundle or not, with what it needs and lies beside it. No hash is checked."""
        if not path.is_file():
            raise UsageError(f"there is no model file {path}")
        names = [MANIFEST, MANIFEST_SHA256] if path.name == WEIGHTS else [*_companions(path)]
        beside = {name: (path.parent / name).read_bytes() for name in names if (path.parent / name).is_file()}
        record = read_record(path) if path.suffix == ".engine" else {}
        rebuild = str(record.get("rebuild", f"qcn export {BUNDLE} --format trt"))
        command = rebuild.replace(BUNDLE, shlex.quote(str(folder_of(path))))
        return ModelFile(path, path.read_bytes(), beside, record.get("facts", {}), command)


def _companions(path: Path) -> Iterator[str]:
    """Files that one of this name needs, whichever precision it is in: those of its stem with another ending."""
    for format in FORMATS.values():
        if Path(format.file).suffix == path.suffix:
            yield from (path.with_suffix(Path(other).suffix).name for other in parts_of(format.name, "fp32"))


def read_record(path: Path) -> dict[str, Any]:
    """An engine's entry of its bundle's manifest; of one in no bundle, the .json beside it; empty if there is none."""
    folder = folder_of(path)
    if (folder / MANIFEST).exists():
        return next((asdict(one) for one in Bundle.open(folder).manifest.files if Path(one.file).name == path.name), {})
    beside = path.with_suffix(".json")
    if not beside.is_file():
        return {}
    try:
        record = json.loads(beside.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{beside} is not JSON: {error}") from error
    if not isinstance(record, dict) or not isinstance(record.get("facts"), dict):
        raise UsageError(f"{beside} is not an engine's record but a JSON {type(record).__name__}")
    return record
