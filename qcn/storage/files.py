"""Writing files so that a crash, a kill or a full disk leaves no half-written one behind, and folders that only one
process writes to at a time; and the hashes of files."""

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import BinaryIO

from qcn.errors import MissingError, UsageError

_UMASK = os.umask(0)  # can only be read by setting it
os.umask(_UMASK)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to; when the block ends well, sync it to disk and rename it into place.

    A device or a pipe, such as /dev/null, stays in its place and is written to.
    """
    if path.is_char_device() or path.is_fifo():
        with tempfile.TemporaryDirectory() as folder:
            yield (aside := Path(folder, "written"))
            path.write_bytes(aside.read_bytes())
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        yield aside
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.chmod(0o666 & ~_UMASK)  # some writers make files that only their owner can read
        aside.replace(path)
    except OSError as error:
        if error.filename is None or str(error.filename) == str(aside):  # a write that fails does not say where
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):  # it was never there, or the disk takes nothing: that was said
            aside.unlink()


@contextmanager
def folder_aside(folder: Path) -> Iterator[Path]:
    """Yield a new folder beside `folder`, to be renamed into its place; gone when the block ends, if it was not.

    A process holds a lock on its folder while it lives: what killed ones left is known by that, and removed.
    """
    aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.part")
    with ExitStack() as alive:
        with folder_lock(folder.parent):
            for left in folder.parent.glob(f".{escape(folder.name)}.*.part"):
                with folder_lock(left, wait=False) as alone:
                    if alone:
                        shutil.rmtree(left, ignore_errors=True)
            aside.mkdir()
            alive.enter_context(folder_lock(aside))
        try:
            yield aside
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    with atomic_write(path) as aside:
        # A file's name may be no text; in JSON what is written for its bytes is read as that name again.
        aside.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lock a folder for writing until the block or the process ends; a second writer is refused.

    The folder is made if need be, and removed again if nothing was written to it.
    """
    refuse_dead_link(folder)
    lock, missing = folder / ".lock", _missing(folder)
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        if not _locked(descriptor, lock):
            raise UsageError(f"another process is writing to {folder}: wait until it ends, or name another folder")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
            _remove_empty(missing)
    finally:
        os.close(descriptor)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Make this folder, or NAME-2, NAME-3, … if it exists: no two processes get the same one.

    It is removed again if the block writes nothing to it.
    """
    candidate, number, missing = folder, 1, _missing(folder.parent)
    folder.parent.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            candidate.mkdir()
            break
        except FileExistsError:
            number += 1
            candidate = folder.with_name(f"{folder.name}-{number}")
    try:
        yield candidate
    finally:
        _remove_empty([candidate, *missing])


@contextmanager
def folder_lock(folder: Path, wait: bool = True) -> Iterator[bool]:
    """A lock on a folder until the block ends; whether we have it: another process may, and some disks have none."""
    descriptor, have = os.open(folder, os.O_RDONLY | os.O_CLOEXEC), False
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            have = True
        yield have
    finally:
        os.close(descriptor)


def _locked(descriptor: int, lock: Path) -> bool:
    """Take a lock, unless another process has it, or had it and has just removed its file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), lock.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError as error:
        raise MissingError(f"{lock} cannot be locked: {error.strerror}; write to another disk") from None


def _missing(folder: Path) -> list[Path]:
    """The folder and those above it that are not there, the folder first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # it is not empty
            folder.rmdir()


def refuse_dead_link(path: Path) -> None:
    """Refuse to write where a symbolic link leads nowhere, such as to itself."""
    if path.is_symlink() and not path.exists():
        raise UsageError(f"{path} is a symbolic link to {path.readlink()}, which does not exist: remove the link")


def refuse_no_text(path: Path) -> None:
    """Refuse a name that is not UTF-8: a record could not store it, and neither TensorBoard nor safetensors take it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{path}: its name is not UTF-8: choose another") from None


def open_plain(path: Path) -> BinaryIO:
    """Open a plain file for reading. A pipe, socket or device is refused at once: it may never send anything."""
    refusal = UsageError(f"{path} is not a plain file: a pipe, socket or device is not read")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise refusal if error.errno in (errno.ENXIO, errno.EOPNOTSUPP) else error from None  # a socket
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path)) if stat.S_ISDIR(kind) else refusal
    return os.fdopen(descriptor, "rb")


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return stream_sha256(file)


def stream_sha256(file: BinaryIO) -> str:
    return _digest(file, hashlib.sha256())


def file_md5(path: Path) -> str:
    """For comparing with a checksum that an official server gives; it is no protection against tampering."""
    with path.open("rb") as file:
        return _digest(file, hashlib.md5(usedforsecurity=False))


def _digest(file: BinaryIO, digest: "hashlib._Hash") -> str:
    while part := file.read(1 << 20):
        digest.update(part)
    return digest.hexdigest()
