"""A bundle: the folder that `qcn export` writes and everything on the device reads. No torch here, nothing unpickled.

    manifest.json         what the network is, where it came from, the sha256 of every file (manifest.py)
    weights.safetensors   the program (`qcn.export.program`) golden.safetensors   images and the reference's answers
    model.onnx            model.fused.onnx, model.fp16.onnx  model.ts, model.pt2  for torch
    engines/*.engine      TensorRT plans, the facts of each in a .json beside it

A file is handed out after its hash was checked. A new one is written aside and taken in whole, with a new manifest, or
not at all (`qcn.export.bundle.transaction`). Several processes may add to one bundle at once.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from qcn.errors import UsageError, unknown_name
from qcn.export.bundle import golden, weights
from qcn.export.bundle.golden import Golden
from qcn.export.bundle.manifest import (
    GOLDEN,
    MANIFEST,
    WEIGHTS,
    Artefact,
    Batch,
    Format,
    Manifest,
    Source,
    ports,
)
from qcn.export.bundle.tolerance import tolerances
from qcn.export.bundle.transaction import LOCK, aside_of, locked, take_places
from qcn.export.program import Program
from qcn.files import file_sha256, write_text
from qcn.names import AnyPrecision


@dataclass(frozen=True)
class Finding:
    """What a look at a file of the bundle found, and the command that rebuilds it where that is needed."""

    file: str
    state: Literal["whole", "altered", "missing", "unknown"]
    reason: str = ""
    rebuild: str = ""


@dataclass
class Draft:
    """An artefact being made: write it to `path`, and say in which precision it was found to compute, if that was."""

    path: Path
    found: AnyPrecision | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class Bundle:
    """A bundle on disk: `folder`, and its `manifest` as last read or written."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest

    @staticmethod
    def open(folder: Path) -> "Bundle":
        """Read and check the manifest, and nothing else yet."""
        return Bundle(folder, _read_manifest(folder))

    @staticmethod
    def create(folder: Path, manifest: Manifest) -> "Bundle":
        """A new bundle, or the one that is there already if it was made from the same network."""
        if folder.exists() and not (folder / MANIFEST).is_file():
            if not folder.is_dir():
                raise UsageError(f"{folder} is a file; choose a folder with --out")
            if strange := sorted(path.name for path in folder.iterdir() if not _ours(path.name, {LOCK})):
                raise UsageError(f"{folder} is neither a bundle nor empty: it has '{strange[0]}'; choose another --out")
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            if (folder / MANIFEST).exists():
                there = _read_manifest(folder)
                _check_same_network(folder, there, manifest)
                manifest = replace(there, tools={**there.tools, **manifest.tools})
            write_text(folder / MANIFEST, manifest.to_json())
        return Bundle(folder, manifest)

    def find(self, file: str) -> Artefact:
        """The artefact of this file name."""
        for artefact in self.manifest.files:
            if artefact.file == file:
                return artefact
        raise unknown_name(
            f"file in the bundle {self.folder}", file, (artefact.file for artefact in self.manifest.files)
        )

    def path(self, artefact: Artefact) -> Path:
        """Its place, with its hash checked. An altered or missing one is refused, with the command to rebuild it."""
        finding = self._look(artefact)
        if finding.state != "whole":
            raise UsageError(f"{self.folder / artefact.file} {finding.reason}; rebuild it with: {finding.rebuild}")
        return self.folder / artefact.file

    def program(self) -> Program:
        """The network as a program."""
        path = self.path(self.find(WEIGHTS))
        program = weights.read(path)
        found = ports(program.input.shape, program.classes, program.poses)
        if found != (self.manifest.input, self.manifest.outputs):
            raise UsageError(f"{path} is another network than {MANIFEST} describes")
        return program

    def golden(self) -> Golden:
        """Images and the answers that the trained network gave to them."""
        path = self.path(self.find(GOLDEN))
        found = golden.read(path)
        try:
            _check_golden(found, self.manifest)
        except UsageError as error:
            raise UsageError(f"{path} is not of the network that {MANIFEST} describes: {error}") from error
        return found

    def check(self) -> list[Finding]:
        """Every file that the manifest names, then every other file that lies in the bundle."""
        named = {MANIFEST, LOCK, *(artefact.file for artefact in self.manifest.files)}
        named |= {_facts_file(artefact.file) for artefact in self.manifest.files if artefact.format == "trt"}
        lying = sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if not path.is_dir())
        return [
            *(self._look(artefact) for artefact in self.manifest.files),
            *(Finding(file, "unknown", f"is not in {MANIFEST}") for file in lying if not _ours(file, named)),
        ]

    @contextmanager
    def adding(
        self,
        file: str,
        format: Format,
        precision: AnyPrecision,
        rebuild: str,
        *,
        batch: Batch | None = None,
        plugin: bool = False,
    ) -> Iterator[Draft]:
        """Add an artefact, or replace it: the block writes `draft.path`, and sets `draft.found` and `draft.facts`.

        The bundle takes it in when the block ends well, and stays as it was when it does not. The golden answers come
        first: they decide the tolerances of all others.
        """
        allowed = None if format == "golden" else tolerances(self.golden(), precision)
        wanted = Artefact(file, format, "0" * 64, 0, precision, None, batch, rebuild, plugin, allowed)
        with aside_of(self.folder, MANIFEST) as aside:
            draft = Draft(aside / file)
            draft.path.parent.mkdir(parents=True, exist_ok=True)
            yield draft
            size, digest = draft.path.stat().st_size, file_sha256(draft.path)
            artefact = replace(wanted, sha256=digest, bytes=size, found=draft.found, facts=draft.facts)
            files = [file]
            if format == "trt":
                files.append(_facts_file(file))
                (aside / files[-1]).write_text(_facts_text(artefact), encoding="utf-8")
            with locked(self.folder):
                there = _read_manifest(self.folder)
                _check_same_network(self.folder, there, self.manifest)
                for name in files:
                    self._place(name)
                others = tuple(other for other in there.files if other.file != file)
                if format == "golden":  # other answers: in float32 they depend on the processor
                    answers = golden.read(draft.path)
                    others = tuple(replace(one, tolerance=tolerances(answers, one.precision)) for one in others)
                    for engine in (one for one in others if one.format == "trt"):
                        files.append(_facts_file(engine.file))
                        (aside / files[-1]).parent.mkdir(exist_ok=True)
                        (aside / files[-1]).write_text(_facts_text(engine), encoding="utf-8")
                manifest = replace(there, files=(*others, artefact))
                (aside / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
                take_places(aside, self.folder, files, MANIFEST)
                self.manifest = manifest

    def _place(self, file: str) -> Path:
        """The path of a file, which must not lead out of the bundle by a symbolic link."""
        path = self.folder / file
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise UsageError(f"{path} leads out of the bundle, to {path.resolve()}: remove that link")
        return path

    def _look(self, artefact: Artefact) -> Finding:
        """One file against its entry."""
        rebuild = artefact.rebuild_command(self.folder)
        try:
            path = self._place(artefact.file)
        except UsageError as error:
            return Finding(artefact.file, "altered", str(error), rebuild)
        if not path.is_file():
            return Finding(artefact.file, "missing", f"is missing, though {MANIFEST} names it", rebuild)
        if (size := path.stat().st_size) != artefact.bytes:
            reason = f"was altered: it has {size:,} bytes, {MANIFEST} says {artefact.bytes:,}"
            return Finding(artefact.file, "altered", reason, rebuild)
        if (found := file_sha256(path)) != artefact.sha256:
            reason = f"was altered: its sha256 is {found[:12]}…, {MANIFEST} says {artefact.sha256[:12]}…"
            return Finding(artefact.file, "altered", reason, rebuild)
        if artefact.format == "trt":
            beside = self.folder / _facts_file(artefact.file)
            if not beside.is_file() or beside.read_bytes() != _facts_text(artefact).encode():
                return Finding(artefact.file, "altered", f"has other facts beside it than {MANIFEST}", rebuild)
        return Finding(artefact.file, "whole")


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    if not path.is_file():
        raise UsageError(f"{folder} is not a bundle: it has no {MANIFEST} (`qcn export RUN --out {folder}` makes one)")
    if path.is_symlink():
        raise UsageError(f"{path} is a symbolic link, to {path.resolve()}: a bundle has its manifest in itself")
    try:
        return Manifest.from_json(path.read_bytes())
    except UsageError as error:
        raise UsageError(
            f"{path} cannot be read: {error}; remove the bundle and make it anew with: qcn export RUN --out {folder}"
        ) from error


def _check_golden(found: Golden, manifest: Manifest) -> None:
    """Refuse golden answers that are not of this network: of other shapes, or with other names for its classes."""
    sides = {
        "images": (found.image.shape[1:], manifest.image),
        "inputs": (found.input.shape[1:], manifest.input.shape),
        "activations": (found.reference.activation.shape[1:], (len(manifest.classes),)),
    }
    for name, (seen, expected) in sides.items():
        if seen != expected:
            raise UsageError(f"its {name} are {list(seen)}, where {list(expected)} are due")
    if found.outputs != tuple(port.name for port in manifest.outputs):
        raise UsageError(f"it answers with {', '.join(found.outputs)}, not as the network does")
    for artefact in manifest.files:
        if artefact.tolerance is not None and artefact.tolerance != tolerances(found, artefact.precision):
            raise UsageError(f"{artefact.file} has other tolerances in {MANIFEST} than these answers give it")
    for row, label in zip(found.rows, found.label, strict=True):
        if label >= len(manifest.classes):
            raise UsageError(f"'{row}' has the label {label}, and there are {len(manifest.classes)} classes")
        named = row.partition(": ")[2]  # as `qcn.export.reference` names images: SPLIT NUMBER: CLASS
        if label >= 0 and named in manifest.classes and named != manifest.classes[label]:
            raise UsageError(f"'{row}' is of the class {label}, which {MANIFEST} calls '{manifest.classes[label]}'")


def _check_same_network(folder: Path, there: Manifest, new: Manifest) -> None:
    """Refuse to mix two networks in one bundle."""
    if there.source != new.source:
        raise UsageError(
            f"{folder} was made from {_weights(there.source)}, not from {_weights(new.source)}: choose another --out"
        )
    for name in ("classes", "image", "preprocessing", "input", "outputs"):
        if getattr(there, name) != getattr(new, name):
            raise UsageError(f"{folder} was made by another version of qcn: its {name} differs; choose another --out")


def _weights(source: Source) -> str:
    return f"the weights {source.sha256[:12]}… ({source.model}, {source.checkpoint} epoch, {source.epoch})"


def _facts_file(file: str) -> str:
    return str(Path(file).with_suffix(".json"))


def _facts_text(artefact: Artefact) -> str:
    return json.dumps(asdict(artefact), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _ours(file: str, named: set[str]) -> bool:
    return file in named or re.match(r"\..*\.part(/|$)", file) is not None  # aside: see `qcn.export.bundle.transaction`
