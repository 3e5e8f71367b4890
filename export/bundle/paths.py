"""Files below a folder that may come from a stranger.

No symbolic link below the folder is followed, in any part of a path: nothing outside of it is read or written. Paths
are texts with slashes, such as "engines/x.engine". Each is walked from the folder down, one descriptor at a time
(`parent_of`), and all that is done to a file is done by its name in the last of them.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from qcn.errors import UsageError
from qcn.storage.files import stream_sha256

LARGEST = 1 << 20  # bytes of manifest.json and what stands beside it; libqcn reads no more
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# What a file system answers that has no hard links, or no more of them.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


@contextmanager
def parent_of(folder: Path, file: str) -> Iterator[tuple[int, str]]:
    """A descriptor of the folder that `file` lies in, and the name of the file in it."""
    *parents, name = PurePosixPath(file).parts
    descriptor, place = os.open(folder, _FOLDER), folder
    try:
        for part in parents:
            place /= part
            with _refusing(place):
                below = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor, name
    finally:
        os.close(descriptor)


def open_file(folder: Path, file: str, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a plain file; anything else in its place is refused. FileNotFoundError where there is nothing."""
    with parent_of(folder, file) as (parent, name), _refusing(folder / file):
        # A pipe would be waited for without O_NONBLOCK, which plain files do not heed.
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError(f"{folder / file} is not a plain file: remove it")
    return descriptor


def read_file(folder: Path, file: str) -> bytes:
    """The bytes of one of the bundle's own small files."""
    with os.fdopen(open_file(folder, file), "rb") as opened:
        if (size := os.fstat(opened.fileno()).st_size) > LARGEST:
            raise UsageError(f"{folder / file} has {size} bytes, but at most {LARGEST} are allowed")
        return opened.read()


def sha256(folder: Path, file: str) -> str | None:
    """The hash of a file; None where there is no plain file."""
    try:
        with os.fdopen(open_file(folder, file), "rb") as opened:
            return stream_sha256(opened)
    except (FileNotFoundError, UsageError):
        return None


def write_new(folder: Path, file: str, content: bytes) -> None:
    """A file that is not there yet, to disk for good."""
    with os.fdopen(open_file(folder, file, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())


def move(folder: Path, source: str, target: str) -> None:
    """Rename; an existing target, even a link, is replaced."""
    with (
        parent_of(folder, source) as (left, old),
        parent_of(folder, target) as (right, new),
        _refusing(folder / target),
    ):
        os.rename(old, new, src_dir_fd=left, dst_dir_fd=right)


def remove(folder: Path, file: str) -> None:
    """Remove a file or a link, if there is one."""
    with parent_of(folder, file) as (parent, name), _refusing(folder / file):
        try:
            os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            return


def link(folder: Path, source: str, target: str) -> None:
    """A second name for a plain file, or a copy where there are no hard links; nothing, where `target` exists."""
    with parent_of(folder, source) as (left, old), parent_of(folder, target) as (right, new):
        try:
            os.link(old, new, src_dir_fd=left, dst_dir_fd=right, follow_symlinks=False)
        except FileExistsError:
            return
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with os.fdopen(open_file(folder, source), "rb") as opened:
                write_new(folder, target, opened.read())


def make_folder(folder: Path, name: str) -> None:
    """A folder below `folder`, if there is nothing of that name."""
    with parent_of(folder, name) as (parent, last):
        try:
            os.mkdir(last, dir_fd=parent)
        except FileExistsError:
            return


def remove_folder(folder: Path, name: str) -> None:
    """Remove a folder of `folder` with all that is in it, if it is there. Links in it are removed, and not followed."""
    try:
        shutil.rmtree(folder / name)  # by descriptors too
    except FileNotFoundError:
        return
    except RecursionError:
        raise UsageError(f"{folder / name} is nested too deeply: remove it") from None


def names_in(folder: Path, name: str) -> set[str]:
    """The names in a folder below `folder`; none where there is no such folder."""
    try:
        with parent_of(folder, f"{name}/*") as (descriptor, _), os.scandir(descriptor) as entries:
            return {entry.name for entry in entries}
    except FileNotFoundError:
        return set()


def sync_folder(folder: Path, name: str = ".") -> None:
    """The names in a folder to disk for good: without it a rename can be lost, or come before another one."""
    with parent_of(folder, f"{name}/*") as (descriptor, _):
        os.fsync(descriptor)


@contextmanager
def _refusing(place: Path) -> Iterator[None]:
    """Raise UsageError for links, and for files and folders in each other's place."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO):  # ENXIO: a pipe or a socket
            error.filename = str(place)  # not only the last part of it
            raise
        raise UsageError(f"{place} is {what_is(place)}: remove it") from None


def what_is(place: Path) -> str:
    """Describe the kind of file at this path."""
    if place.is_symlink():
        return f"a symbolic link, to {place.readlink()}, and a bundle has none"
    if place.is_dir():
        return "a folder and not a file"
    return "a file and not a folder" if place.is_file() else "neither a plain file nor a folder"
