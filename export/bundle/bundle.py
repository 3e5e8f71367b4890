"""A bundle: the folder that `qcn export` writes and everything on the device reads. No torch here, nothing unpickled.

    manifest.json         what the network is, where it came from, the sha256 of every file (manifest.py)
    manifest.sha256       the sha256 of manifest.json itself (manifest.py)
    weights.safetensors   the program (export/program)    golden.safetensors   images and the reference's answers
    model.onnx            model.fused.onnx, model.fp16.onnx  model.ts, model.pt2  for torch
    model.xml, model.bin  OpenVINO's graph and its weights
    engines/*.engine      TensorRT plans, with a copy of each one's entry, for people, in a .json beside it

A file is read once, and its bytes are given out when their hash is the manifest's: nothing opens it by its name again,
since another may lie there by then. No symbolic link in a bundle is followed (paths.py). A new file is written aside
and taken in whole, with a new manifest, or not at all (transaction.py). Several processes may add to one bundle at
once, while others read it.
"""

import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qcn.errors import UsageError, unknown_name
from qcn.export.bundle import golden, paths, signing, weights
from qcn.export.bundle.findings import MOST_BYTES, Finding, foreign, look
from qcn.export.bundle.golden import Golden
from qcn.export.bundle.manifest import (
    GOLDEN,
    SIGNATURE,
    WEIGHTS,
    Artefact,
    Batch,
    BundleSource,
    Manifest,
    file_of,
    ports,
)
from qcn.export.bundle.tolerance import tolerances
from qcn.export.bundle.transaction import (
    LOCK,
    aside_of,
    is_part,
    locked,
    read_manifest,
    settle,
    take_in,
    undisturbed,
)
from qcn.export.program.program import Program
from qcn.names import MANIFEST, RUN, AnyPrecision
from qcn.networks.shipped import DEFAULT, networks
from qcn.storage.files import refuse_dead_link
from qcn.terminal.text import command_line, readable


@dataclass
class Draft:
    """An artefact being written to `path`; `found` is the precision read from it, if known."""

    path: Path
    found: AnyPrecision | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class Bundle:
    """A bundle on disk: `folder`, and its `manifest` as last read or written, with its `text`.

    With a `public_key`, a file, every manifest that is read must be signed by its owner. One that was written here is
    not: the next to ask for a signature finds none.
    """

    folder: Path
    public_key: Path | None

    def __init__(
        self, folder: Path, manifest: Manifest, public_key: Path | None = None, text: bytes | None = None
    ) -> None:
        self.folder, self.manifest, self.public_key = folder, manifest, public_key
        self.text = manifest.to_json().encode() if text is None else text

    @property
    def manifest_sha256(self) -> str:
        """The sha256 of manifest.json, as last read or written."""
        return hashlib.sha256(self.text).hexdigest()

    @staticmethod
    def open(folder: Path, public_key: Path | None = None) -> "Bundle":
        """Read and check the manifest, and nothing else yet.

        A folder that is a link, as `qcn install` makes them, is followed now and never again: when the link is swapped
        for another bundle's, this one stays what it was.
        """
        folder = Path(os.path.realpath(folder)) if folder.is_symlink() else folder
        text, manifest = _read_manifest(folder, public_key)
        return Bundle(folder, manifest, public_key, text)

    @staticmethod
    def create(
        folder: Path, manifest: Manifest, program: Program, answers: Callable[[], Golden], rebuild: str
    ) -> "Bundle":
        """A bundle with the weights and the golden answers of a network in it, written all at once.

        Where there is one of the same network already, it is that one, with these files made anew if they are not
        whole. `answers` is called if they are needed; `rebuild` is the command that makes both again.
        """
        _check_free(folder)
        folder.mkdir(parents=True, exist_ok=True)
        bundle, missing = Bundle(folder, manifest), {GOLDEN, WEIGHTS}
        if os.path.lexists(folder / MANIFEST):
            bundle = Bundle.open(folder)
            _check_same_network(folder, bundle.manifest, manifest)
            missing -= {finding.file for finding in bundle.check() if finding.state == "intact"}
            bundle.manifest = _with_news(bundle.manifest, manifest)
        with aside_of(folder) as aside:
            drafts = []
            if GOLDEN in missing:
                drafts.append((Draft(aside / GOLDEN), _planned(GOLDEN, "golden", "fp64", rebuild)))
                golden.write(aside / GOLDEN, answers())
            if WEIGHTS in missing:
                drafts.append((Draft(aside / WEIGHTS), _planned(WEIGHTS, "native", program.precision, rebuild)))
                weights.write(aside / WEIGHTS, program)
            bundle._take_in(aside, drafts)
        return bundle

    def find(self, file: str) -> Artefact:
        """The artefact of this file name."""
        for artefact in self.manifest.files:
            if artefact.file == file:
                return artefact
        raise unknown_name(
            f"file in the bundle {self.folder}", file, (artefact.file for artefact in self.manifest.files)
        )

    def read(self, artefact: Artefact) -> bytes:
        """Its bytes, checked against the manifest. Altered, missing or unreadable files are refused.

        If a writer has replaced it since the manifest was read, this is the new one, and the manifest is read again.
        """
        finding, content = self._look(artefact)
        if content is None:
            how = "allow it with" if finding.state == "denied" else "rebuild it with"
            raise UsageError(f"{self.folder / artefact.file} {finding.reason}; {how}: {finding.fix}")
        return content

    def read_together(self, files: Iterable[str], optional: Iterable[str] = ()) -> dict[str, bytes]:
        """The bytes of files that belong together, and of the `optional` ones that are whole, all by one manifest."""
        while True:
            text, result = self.text, {file: self.read(self.find(file)) for file in files}
            for file in optional:
                with suppress(UsageError):
                    result[file] = self.read(self.find(file))
            if self.text == text:
                return result

    def program(self) -> Program:
        """The network as a program."""
        path = self.folder / WEIGHTS
        program = weights.read(self.read(self.find(WEIGHTS)), path)
        result = ports(program.input.shape, program.classes, program.poses)
        if result != (self.manifest.input, self.manifest.outputs):
            raise UsageError(f"{path} is not the network that {MANIFEST} describes")
        return program

    def golden(self) -> Golden:
        """Images and the answers that the trained network gave to them."""
        path = self.folder / GOLDEN
        result = golden.read(self.read(self.find(GOLDEN)), path)
        try:
            _check_golden(result, self.manifest)
        except UsageError as error:
            raise UsageError(f"{path} does not belong to the network that {MANIFEST} describes: {error}") from error
        return result

    def check(self) -> list[Finding]:
        """Every file that the manifest names, then all else that lies in the bundle, with what to do about it."""
        return [*(self._look(artefact)[0] for artefact in self.manifest.files), *foreign(self.folder, self.manifest)]

    def require_whole(self) -> None:
        """Refuse a bundle with a file that is missing, altered or of another network."""
        self.program(), self.golden()
        for artefact in self.manifest.files:
            self.read(artefact)

    def sign(self, key: Path) -> Path:
        """Sign the bundle with a private key; gives the signature's path. What is not whole is not signed."""
        with locked(self.folder):
            settle(self.folder)
            if (result := read_manifest(self.folder)) is None:
                raise UsageError(f"{self.folder} is no longer a bundle: it has no {MANIFEST}")
            self.text, self.manifest = result
            self.require_whole()
            signing.sign(self.folder, self.text, key)
        return self.folder / SIGNATURE

    @contextmanager
    def adding(
        self,
        file: str,
        format: str,
        precision: AnyPrecision,
        rebuild: str,
        *,
        batch: Batch | None = None,
        plugin: bool = False,
        beside: str | None = None,
    ) -> Iterator[Draft]:
        """Add an artefact, or replace it: the block writes `draft.path`, and sets `draft.found` and `draft.facts`.

        Where a format has two files, the block writes that of `beside` too, into the same folder. The bundle takes
        them in when the block ends well, and stays as it was when it does not.
        """
        planned = _planned(file, format, precision, rebuild, batch, plugin)
        if format != "golden":
            self.golden()  # it decides the tolerances: better refused now than after a long build
        with aside_of(self.folder) as aside:
            draft = Draft(aside / file)
            draft.path.parent.mkdir(parents=True, exist_ok=True)
            yield draft
            drafts = [(draft, planned)]
            if beside:
                companion = _planned(file_of(beside, precision), beside, precision, rebuild, batch)
                drafts.append((Draft(aside / companion.file, draft.found), companion))
            self._take_in(aside, drafts)

    def _take_in(self, aside: Path, drafts: list[tuple[Draft, Artefact]]) -> None:
        """Artefacts that lie aside, into the bundle as it is now: others may have added to it meanwhile."""
        new = [
            replace(planned, sha256=sha256, bytes=draft.path.stat().st_size, found=draft.found, facts=draft.facts)
            for draft, planned in drafts
            if (sha256 := paths.sha256(aside, planned.file)) is not None
        ]
        if missing := {planned.file for _, planned in drafts} - {artefact.file for artefact in new}:
            raise FileNotFoundError(f"{aside / min(missing)} was not written")
        if large := [artefact for artefact in new if artefact.bytes > MOST_BYTES]:
            raise UsageError(f"{large[0].file} has {large[0].bytes:,} bytes, but at most {MOST_BYTES:,} are allowed")
        with locked(self.folder):
            settle(self.folder)
            base, there = self.manifest, read_manifest(self.folder)
            if there:
                _check_same_network(self.folder, there[1], base)
                base = _with_news(there[1], base)
            files = {artefact.file: artefact for artefact in base.files}
            for artefact in new:
                files.pop(artefact.file, None)  # to the end, as the newest
                files[artefact.file] = artefact
            allowed = _tolerances(self.folder, aside, files, {artefact.file for artefact in new})
            manifest = replace(base, files=tuple(replace(one, tolerance=allowed[one.file]) for one in files.values()))
            text = there[0] if there else b""
            if new or manifest != base or base != (there and there[1]):
                take_in(self.folder, aside, {artefact.file: artefact.sha256 for artefact in new}, manifest)
                text = manifest.to_json().encode()
            self.manifest, self.text, self.public_key = manifest, text, None
            self._write_facts(aside)

    def _write_facts(self, aside: Path) -> None:
        """Write each engine's manifest entry beside it, for people; nothing reads it again."""
        for artefact in self.manifest.files:
            text, beside = artefact.to_json().encode(), artefact.facts_file
            if artefact.has_record and paths.sha256(self.folder, beside) != hashlib.sha256(text).hexdigest():
                paths.write_new(self.folder, f"{aside.name}/facts", text)
                paths.move(self.folder, f"{aside.name}/facts", beside)

    def _look(self, artefact: Artefact) -> tuple[Finding, bytes | None]:
        """One file against its entry, or against its entry by now if a writer replaced it; and its bytes, if whole."""
        finding, content = look(self.folder, artefact)
        if content is not None:
            return finding, content
        with undisturbed(self.folder):
            text, manifest = _read_manifest(self.folder, self.public_key)
            if _network(manifest) != _network(self.manifest):
                raise UsageError(f"{self.folder} was replaced by another network's bundle meanwhile: start again")
            self.text, self.manifest = text, manifest
            return look(self.folder, self.find(artefact.file))


def folder_of(path: Path) -> Path:
    """The bundle that a file lies in."""
    return path.parent.parent if path.parent.name == "engines" else path.parent


def _planned(
    file: str, format: str, precision: AnyPrecision, rebuild: str, batch: Batch | None = None, plugin: bool = False
) -> Artefact:
    """The entry of an artefact that is not made yet."""
    allowed: dict[str, float] | None = None if format == "golden" else {}
    return Artefact(file, format, "0" * 64, 0, precision, None, batch, rebuild, plugin, allowed)


def _tolerances(
    folder: Path, aside: Path, files: Mapping[str, Artefact], new: set[str]
) -> dict[str, dict[str, float] | None]:
    """The tolerances by file, computed from the golden answers: for all files if these are new, else for new files."""
    if not new:
        return {file: artefact.tolerance for file, artefact in files.items()}
    place = aside if GOLDEN in new else folder
    _, content = look(place, files[GOLDEN])
    if content is None:
        raise UsageError(f"{folder / GOLDEN} was altered; rebuild it with: {files[GOLDEN].rebuild_command(folder)}")
    answers = golden.read(content, place / GOLDEN)
    return {
        file: artefact.tolerance
        if file == GOLDEN or not {file, GOLDEN} & new
        else tolerances(answers, artefact.precision)
        for file, artefact in files.items()
    }


def _check_free(folder: Path) -> None:
    """Refuse a folder with anything but a bundle or the remains of an interrupted first export."""
    refuse_dead_link(folder)
    if not folder.exists() or os.path.lexists(folder / MANIFEST):
        return
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file; choose a folder with --out")
    if (folder / LOCK).exists():
        with locked(folder):
            settle(folder)
    strange = sorted(one.name for one in folder.iterdir() if not (is_part(one.name) or one.name == LOCK))
    if strange:
        raise UsageError(
            f"{folder} is neither a bundle nor empty: it has '{readable(strange[0])}'; choose another --out"
        )


def _read_manifest(folder: Path, public_key: Path | None) -> tuple[bytes, Manifest]:
    """The manifest, its text first; read again, with writers held off, if it is not as it should be."""
    try:
        try:
            result = read_manifest(folder)
        except UsageError:
            with undisturbed(folder):
                result = read_manifest(folder)
    except PermissionError as error:  # of the file, or of the folder
        allow = command_line("chmod", "-R", "a+rX", folder)
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}; allow it with: {allow}") from None
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise UsageError(f"{folder} is not a bundle: it cannot be opened as a folder ({error.strerror})") from None
    if result is None:
        run = (folder / RUN).is_file() or {str(folder), f"{folder}{DEFAULT}"} & networks().keys()
        make = command_line("qcn", "export", *([folder] if run else ["RUN", "--out", folder]))
        raise UsageError(f"{folder} is not a bundle: it has no {MANIFEST} (`{make}` makes one)")
    text, manifest = result
    if public_key:
        signing.check_signature(folder, text, public_key)
    return text, manifest


def _check_golden(golden: Golden, manifest: Manifest) -> None:
    """Refuse golden answers that are not of this network: of other shapes, classes or pre-processing."""
    if golden.classes != manifest.classes:
        raise UsageError(f"its classes are {list(golden.classes)}, but {list(manifest.classes)} were expected")
    if golden.preprocessing != manifest.preprocessing:
        raise UsageError(f"its pre-processing is {golden.preprocessing}, but {manifest.preprocessing} was expected")
    sides = {
        "images": (golden.image.shape[1:], manifest.image),
        "inputs": (golden.input.shape[1:], manifest.input.shape),
        "logits": (golden.reference.logit.shape[1:], (len(manifest.classes),)),
    }
    for name, (stored, expected) in sides.items():
        if stored != expected:
            raise UsageError(f"its {name} are {list(stored)}, but {list(expected)} were expected")
    if golden.outputs != tuple(port.name for port in manifest.outputs):
        raise UsageError(f"it has the outputs {', '.join(golden.outputs)}, not the network's")
    for artefact in manifest.files:
        if artefact.tolerance is not None and artefact.tolerance != tolerances(golden, artefact.precision):
            raise UsageError(f"{artefact.file} has other tolerances in {MANIFEST} than these answers imply")
    for row, label in zip(golden.rows, golden.label, strict=True):
        named = row.partition(": ")[2]  # as `qcn.export.program.reference` names images: SPLIT NUMBER: CLASS
        if label >= 0 and named in manifest.classes and named != manifest.classes[label]:
            raise UsageError(f"'{row}' is of the class {label}, which {MANIFEST} calls '{manifest.classes[label]}'")


def _check_same_network(folder: Path, there: Manifest, new: Manifest) -> None:
    """Refuse to mix two networks in one bundle."""
    if there.source != new.source:
        raise UsageError(
            f"{folder} was made from {_weights(there.source)}, not from {_weights(new.source)}: choose another --out"
        )
    for name, value in _network(new).items():
        if _network(there)[name] != value:
            raise UsageError(f"{folder} is of another version of qcn, with a different '{name}': choose another --out")


def _network(manifest: Manifest) -> dict[str, Any]:
    """The fields that all manifests of one network share, whichever files they name."""
    names = ("source", "classes", "image", "preprocessing", "input", "outputs")
    return {name: getattr(manifest, name) for name in names}


def _with_news(there: Manifest, new: Manifest) -> Manifest:
    """The manifest of a bundle, with the tools and test errors of a newer one of the same network."""
    return replace(there, tools={**there.tools, **new.tools}, measured=new.measured or there.measured)


def _weights(source: BundleSource) -> str:
    return f"the weights {source.sha256[:12]}… ({source.model}, {source.checkpoint} epoch, {source.epoch})"
