"""How files get into a bundle that others read and write at the same time: all of them, or none.

A writer works in a folder aside, `.….part`, which it holds a lock on for as long as it lives. Under the lock of the
whole bundle its files then take their places:

1. What is about to be replaced, and what replaces it, gets a second name in `.kept/`: its sha256.
2. manifest.sha256 gets a second line, of the new manifest.
3. The new files take their places, one rename each.
4. The new manifest takes its place. This decides: before it the bundle is the old one, after it the new one.
5. manifest.sha256 goes back to one line, and `.kept` goes.

A reader that finds a file with another hash than the manifest's takes it from `.kept`. So a bundle is whole at every
moment, whatever interrupts a writer. What a killed one left is set right by the next (`settle`), by the manifest alone.
"""

import fcntl
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from qcn.errors import MissingError, UsageError
from qcn.export.bundle import paths
from qcn.export.bundle.manifest import (
    MANIFEST_SHA256,
    SIGNATURE,
    Manifest,
    NewerBundle,
    check_manifest_digest,
    manifest_sums,
)
from qcn.names import MANIFEST
from qcn.terminal.progress import say
from qcn.terminal.text import command_line

LOCK, KEPT = ".lock", ".kept"
NEW_SUMS = f".{MANIFEST_SHA256}.new"  # one name, as its writer holds the lock: what a killed one left is overwritten
PATIENCE = 5.0  # seconds that a reader waits for a writer who is moving files, which takes milliseconds


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock during the block; waits for it."""
    descriptor = _lock(folder, LOCK)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def aside_of(folder: Path) -> Iterator[Path]:
    """A new folder aside; gone when the block ends. What killed writers left is removed first."""
    name = f".{uuid.uuid4().hex[:8]}.part"
    with locked(folder):
        for left in parts(folder):
            if not is_locked(folder, f"{left}/{LOCK}"):
                paths.remove_folder(folder, left)
        (folder / name).mkdir()
        alive = _lock(folder, f"{name}/{LOCK}")
    try:
        yield folder / name
    except OSError as error:
        error.filename = error.filename or str(folder)  # a write that fails does not say where
        raise
    finally:
        with locked(folder):
            paths.remove_folder(folder, name)
        os.close(alive)


def take_in(folder: Path, aside: Path, files: Mapping[str, str], manifest: Manifest) -> None:
    """Take `files` (with the sha256 of each) and a new manifest into the bundle, or leave it as it was.

    The files lie aside under the same names. To be called under the folder's lock.
    """
    settle(folder)
    text, there = manifest.to_json().encode(), read_manifest(folder)
    named = {one.file: one.sha256 for one in there[1].files} if there else {}
    for file in files:
        _sync(aside / file)
    paths.write_new(folder, f"{aside.name}/{MANIFEST}", text)
    signed = SIGNATURE in paths.names_in(folder, ".")
    paths.remove(folder, SIGNATURE)  # first: a bundle that is being changed must not pass for the one that was signed
    try:
        paths.make_folder(folder, KEPT)
        for file, digest in files.items():
            if file in named and paths.sha256(folder, file) == named[file]:
                paths.link(folder, file, f"{KEPT}/{named[file]}")
            paths.link(folder, f"{aside.name}/{file}", f"{KEPT}/{digest}")
        paths.sync_folder(folder, KEPT)
        _write_sums(folder, *([there[0]] if there else []), text)
        for file in files:
            if "/" in file:
                paths.make_folder(folder, file.rpartition("/")[0])
            paths.move(folder, f"{aside.name}/{file}", file)
            paths.sync_folder(folder, file.rpartition("/")[0] or ".")
        paths.move(folder, f"{aside.name}/{MANIFEST}", MANIFEST)
        paths.sync_folder(folder)
    finally:
        settle(folder)
        if signed:
            say(f"{folder} changed, so its signature was removed: sign it again with `qcn sign`")


def settle(folder: Path) -> None:
    """Finish what the manifest says was done, and undo what it does not: after a writer, or after a killed one.

    To be called under the folder's lock. Without a manifest nothing is left of a first export that was interrupted.
    """
    there = read_manifest(folder)
    named = {one.file: one.sha256 for one in there[1].files} if there else {}
    backups, lying = paths.names_in(folder, KEPT), _lying(folder)
    for file, digest in named.items():
        if digest in backups and paths.sha256(folder, file) != digest == paths.sha256(folder, f"{KEPT}/{digest}"):
            paths.move(folder, f"{KEPT}/{digest}", file)
    for file in lying - named.keys() if backups else ():
        if paths.sha256(folder, file) in backups:  # it came with a manifest that did not come
            paths.remove(folder, file)
    if there is None:
        paths.remove(folder, MANIFEST_SHA256)
    elif paths.read_file(folder, MANIFEST_SHA256) != manifest_sums(there[0]):
        _write_sums(folder, there[0])
    paths.remove(folder, NEW_SUMS)
    paths.sync_folder(folder)
    paths.remove_folder(folder, KEPT)


def read_manifest(folder: Path) -> tuple[bytes, Manifest] | None:
    """The manifest, as text and read, its hash checked; None where there is none, and so no bundle."""
    try:
        sums = _read(folder, MANIFEST_SHA256)
        text = _read(folder, MANIFEST)
        if text is None:
            return None
        check_manifest_digest(text, sums or b"")
        return text, Manifest.from_json(text)
    except NewerBundle as error:
        raise NewerBundle(f"{folder / MANIFEST} cannot be read: {error}") from None
    except UsageError as error:
        raise UsageError(
            f"{folder / MANIFEST} cannot be read: {error}; remove the bundle and make it again with: "
            f"{command_line('qcn', 'export', 'RUN', '--out', folder)}"
        ) from error


@contextmanager
def undisturbed(folder: Path) -> Iterator[None]:
    """A block for readers in which no writer moves files. One at work is waited for, but not for ever.

    Nothing is written: a bundle may be for reading only. Where nobody ever took the lock there is no writer either.
    """
    try:
        descriptor = paths.open_file(folder, LOCK)
    except (OSError, UsageError):
        yield
        return
    try:
        given_up = time.monotonic() + PATIENCE
        while not _shared(descriptor) and time.monotonic() < given_up:
            time.sleep(0.001)
        yield
    finally:
        os.close(descriptor)


def is_locked(folder: Path, lock: str) -> bool:
    """Whether a process holds this lock."""
    try:
        descriptor = paths.open_file(folder, lock)
    except (OSError, UsageError):  # never locked, or a stranger's
        return False
    try:
        return not _shared(descriptor)
    finally:
        os.close(descriptor)


def parts(folder: Path) -> list[str]:
    """The folders aside that lie in the bundle, of writers at work and of killed ones."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if is_part(entry.name) and entry.is_dir(follow_symlinks=False))


def is_part(name: str) -> bool:
    return re.fullmatch(r"\.[0-9a-f]{8}\.part", name) is not None


def _read(folder: Path, file: str) -> bytes | None:
    try:
        return paths.read_file(folder, file)
    except FileNotFoundError:
        return None


def _lying(folder: Path) -> set[str]:
    """The files in the places where artefacts are kept."""
    engines = {f"engines/{name}" for name in paths.names_in(folder, "engines")}
    return paths.names_in(folder, ".") - {MANIFEST, MANIFEST_SHA256, LOCK} | engines


def _write_sums(folder: Path, *texts: bytes) -> None:
    paths.remove(folder, NEW_SUMS)
    paths.write_new(folder, NEW_SUMS, manifest_sums(*texts))
    paths.move(folder, NEW_SUMS, MANIFEST_SHA256)
    paths.sync_folder(folder)


def _sync(path: Path) -> None:
    """Sync to disk, and make it readable for everyone who may read the folder."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    path.chmod(path.parent.stat().st_mode & 0o666)


def _shared(descriptor: int) -> bool:
    """Take a shared lock until the descriptor is closed; False if another process holds it exclusively."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a disk without locks
        return True
    return True


def _lock(folder: Path, file: str) -> int:
    """Take the lock until the descriptor is closed or the process ends; waits for it."""
    descriptor = paths.open_file(folder, file, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        os.close(descriptor)
        raise MissingError(f"{folder / file} cannot be locked: {error.strerror}; use another disk") from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
