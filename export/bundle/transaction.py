"""How files get into a folder that others read and write at the same time: all of them, or none.

A writer works in a folder aside, `.….part`, which it holds a lock on for as long as it lives. Under the lock of the
whole folder its files then take their places, one rename each. The last rename, of the file that names all others,
decides: whatever interrupts a writer before it is undone, by the writer itself or, if it was killed, by the next one.
"""

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from qcn.errors import UsageError

LOCK = ".lock"
REPLACED = ".replaced"  # in the folder aside: what made room for a new file


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Alone in the folder until the block ends; waits for whoever is before."""
    descriptor = _lock(folder)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def aside_of(folder: Path, last: str) -> Iterator[Path]:
    """A new folder aside, laid out as `folder` is; gone when the block ends. `last` is the file that names the others.

    What killed writers left is removed first.
    """
    aside = folder / f".{uuid.uuid4().hex[:8]}.part"
    with locked(folder):
        for left in folder.glob(".*.part"):
            _clear(left, folder, last)
        aside.mkdir()
        alive = _lock(aside)
    try:
        yield aside
    except OSError as error:
        error.filename = error.filename or str(folder)  # a write that fails does not say where
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        os.close(alive)


def take_places(aside: Path, folder: Path, files: list[str], last: str) -> None:
    """Move `files` and then `last` from aside into the folder, or leave it as it was. To be called under its lock."""
    for file in (*files, last):
        sync(aside / file)
    begun: list[str] = []
    try:
        for file in files:
            (folder / file).parent.mkdir(exist_ok=True)
            if (folder / file).exists():
                old = aside / REPLACED / file
                old.parent.mkdir(parents=True, exist_ok=True)
                (folder / file).replace(old)
            begun.append(file)
            (aside / file).replace(folder / file)
        (aside / last).replace(folder / last)
    except BaseException:
        if (aside / last).exists():  # else all was done, and the interruption came after it
            for file in begun:
                if not (aside / file).exists():
                    (folder / file).unlink(missing_ok=True)
            _put_back(aside, folder)
        raise


def sync(path: Path) -> None:
    """To disk for good, and readable by whoever may read the folder: some writers make files for their owner alone."""
    with path.open("rb") as written:
        os.fsync(written.fileno())
    path.chmod(path.parent.stat().st_mode & 0o666)


def _put_back(aside: Path, folder: Path) -> None:
    """Undo what a writer replaced. The folder aside may be anybody's: nothing is moved from or to another place."""
    replaced = aside / REPLACED
    for old in replaced.rglob("*"):
        place = folder / old.relative_to(replaced)
        if replaced.is_symlink() or not place.parent.resolve().is_relative_to(folder.resolve()):
            raise UsageError(
                f"{old} would be put back outside of {folder}: remove {aside}, and links out of the bundle"
            )
        if old.is_file() and not old.is_symlink():
            old.replace(place)


def _clear(left: Path, folder: Path, last: str) -> None:
    """Remove what a writer left aside, unless it is still at work."""
    if left.is_symlink() or not left.is_dir():
        left.unlink(missing_ok=True)  # its writer may just have removed it
        return
    with suppress(BlockingIOError, FileNotFoundError):  # at work, or just done
        descriptor = _lock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            if (left / last).exists():
                _put_back(left, folder)
            shutil.rmtree(left)
        finally:
            os.close(descriptor)


def _lock(folder: Path, how: int = fcntl.LOCK_EX) -> int:
    """A lock on the folder, held until the descriptor is closed or the process ends."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, how)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
