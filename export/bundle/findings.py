"""The state of a bundle: each file checked against its entry in the manifest, and files that do not belong to it."""

import hashlib
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qcn.errors import UsageError
from qcn.export.bundle import paths
from qcn.export.bundle.manifest import MANIFEST_SHA256, SIGNATURE, Artefact, Manifest
from qcn.export.bundle.transaction import KEPT, LOCK, NEW_SUMS, is_locked, is_part
from qcn.names import CALIBRATION, CARD, CARD_TEXT, MANIFEST
from qcn.terminal.text import command_line, readable

MOST_BYTES = 1 << 30  # of a file of a bundle: it is read into memory


@dataclass(frozen=True)
class Finding:
    """The state of a file of the bundle, and the command that rebuilds, removes or unlocks it."""

    file: str
    state: Literal["intact", "altered", "missing", "denied", "unknown"]
    reason: str = ""
    fix: str = ""


def look(folder: Path, artefact: Artefact) -> tuple[Finding, bytes | None]:
    """One file against its entry, in its place and in `.kept`; and its bytes if it is intact, which were read once."""
    finding, content = _read(folder, artefact, artefact.file)
    if content is None:
        _, content = _read(folder, artefact, f"{KEPT}/{artefact.sha256}")
    return (finding, None) if content is None else (Finding(artefact.file, "intact"), content)


def _read(folder: Path, artefact: Artefact, place: str) -> tuple[Finding, bytes | None]:
    """The bytes that lie in a place, if they are what the entry says; else what is wrong with them."""
    fix = artefact.rebuild_command(folder)
    state: Literal["altered", "missing", "denied"] = "altered"
    try:
        with os.fdopen(paths.open_file(folder, place), "rb") as file:
            # The size first: a stranger's file may be of any.
            size = os.fstat(file.fileno()).st_size
            content = file.read(size) if size == artefact.bytes <= MOST_BYTES else b""
    except FileNotFoundError:
        state, reason = "missing", f"is missing, though {MANIFEST} names it"
    except PermissionError as error:  # of the file, or of the folder that it lies in
        state, reason = "denied", f"cannot be read: {error.strerror}"
        fix = command_line("chmod", "a+rX", error.filename)
    except UsageError as error:
        reason = f"cannot be read: {error}"
    else:
        if size != artefact.bytes:
            reason = f"was altered: it has {size:,} bytes, {MANIFEST} says {artefact.bytes:,}"
        elif size > MOST_BYTES:
            reason = f"cannot be read: it has {size:,} bytes, but at most {MOST_BYTES:,} are allowed"
        elif (result := hashlib.sha256(content).hexdigest()) != artefact.sha256:
            reason = f"was altered: its sha256 is {result[:12]}…, {MANIFEST} says {artefact.sha256[:12]}…"
        else:
            return Finding(artefact.file, "intact"), content
    return Finding(artefact.file, state, reason, fix), None


def foreign(folder: Path, manifest: Manifest) -> Iterator[Finding]:
    """Foreign files in the bundle: unknown files, links, and remains of killed writers."""
    named = {artefact.file for artefact in manifest.files}
    names = {MANIFEST, MANIFEST_SHA256, SIGNATURE, LOCK, CALIBRATION, CARD, CARD_TEXT, *named}
    names |= {artefact.facts_file for artefact in manifest.files if artefact.has_record}
    at_work = is_locked(folder, LOCK)
    for file in _lying(folder):
        path = folder / file
        remove = f"rm -r -- {shlex.quote(str(path))}"
        if path.is_symlink() and file not in named:
            yield _unknown(file, f"is a symbolic link, to {path.readlink()}: nothing in a bundle may be one", remove)
        elif is_part(file) or file in (KEPT, NEW_SUMS):
            if not at_work and not is_locked(folder, f"{file}/{LOCK}"):
                yield _unknown(file, "was left by a writer that was killed", "the next `qcn export` removes it")
        elif file not in names:
            yield _unknown(file, f"is not in {MANIFEST}", f"if it is not yours: {remove}")


def _lying(folder: Path) -> list[str]:
    """List the names in the bundle's folder and in its engines folder."""
    names = paths.names_in(folder, ".")
    if "engines" in names and not (folder / "engines").is_symlink() and (folder / "engines").is_dir():
        names = names - {"engines"} | {f"engines/{name}" for name in paths.names_in(folder, "engines")}
    return sorted(names)


def _unknown(file: str, reason: str, fix: str) -> Finding:
    return Finding(readable(file), "unknown", readable(reason), readable(fix))
