"""Writing files so that a crash, a kill or a full disk leaves no half-written one behind; and their hashes."""

import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_UMASK = os.umask(0)  # can only be read by setting it
os.umask(_UMASK)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to; when the block ends well, sync it to disk and rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        yield aside
        with aside.open("rb") as written:
            os.fsync(written.fileno())
        aside.chmod(0o666 & ~_UMASK)  # some writers make files that only their owner can read
        aside.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a write that fails does not say where
        raise
    finally:
        aside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with atomic_write(path) as aside:
        aside.write_text(text, encoding="utf-8")


def file_sha256(path: Path) -> str:
    return _digest(path, hashlib.sha256())


def file_md5(path: Path) -> str:
    """For comparing with a checksum that an official server gives; it is no protection against tampering."""
    return _digest(path, hashlib.md5(usedforsecurity=False))


def _digest(path: Path, digest: "hashlib._Hash") -> str:
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
