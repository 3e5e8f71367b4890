"""Download the files of a data set from its official server, resume where a download stopped, and check them.

A file is first written as NAME.part. A failed try leaves it there, and the next try continues it. It gets its name once
it is complete and its checksum is right, so a file under its own name can be trusted.
"""

import http.client
import shutil
import tarfile
import urllib.error
import urllib.request
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

from qcn.data.spec import Dataset, RemoteArchive, RemoteFile
from qcn.errors import MissingError, UsageError
from qcn.storage.files import atomic_write, file_md5
from qcn.terminal.progress import doing, shown

TRIES = 3  # for a connection that breaks midway; a refusal by the server is final
TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 18


class _Interrupted(Exception):
    """The connection broke midway: worth another try from where it broke."""


def fetch(dataset: Dataset, data_dir: Path) -> list[Path]:
    """Download the files of a data set that are not in `data_dir` yet; return those (none: all were there)."""
    folder = data_dir / dataset.folder
    brought: list[Path] = []
    with shown():
        for file in dataset.files:
            try:
                if _unpacked(file, folder) or (not isinstance(file, RemoteArchive) and _whole(file, folder)):
                    continue
                folder.mkdir(parents=True, exist_ok=True)
                path = _download(file, folder)
                brought += _unpack(file, path, folder) if isinstance(file, RemoteArchive) else [path]
            except OSError as error:
                raise MissingError(f"cannot write {file.name} into {folder}: {error.strerror or error}") from None
    return brought


def is_here(dataset: Dataset, data_dir: Path) -> bool:
    """Whether every file of a data set is in place. A quick look: checksums are compared when it is fetched."""
    folder = data_dir / dataset.folder
    if dataset.by_hand:
        return folder.is_dir()
    return all(
        _unpacked(file, folder) or (not isinstance(file, RemoteArchive) and (folder / file.name).is_file())
        for file in dataset.files
    )


def _download(file: RemoteFile, folder: Path) -> Path:
    """Download one file into `folder`, unless it is there already with the right checksum."""
    target, part = folder / file.name, folder / f"{file.name}.part"
    if _whole(file, folder):
        return target
    for left in reversed(range(TRIES)):
        try:
            _transfer(file, part)
            break
        except _Interrupted as error:
            if not left:
                raise _unreachable(file, folder, f"{error}; the next try continues {part.name}") from None
    seen = file_md5(part)
    if seen != file.md5:
        part.unlink()
        raise UsageError(f"{file.url} has md5 {seen}, expected {file.md5}; the download was deleted: try again")
    part.replace(target)
    return target


def _transfer(file: RemoteFile, part: Path) -> None:
    """Append the rest of the file to `part`, or start again where the server does not resume."""
    have = part.stat().st_size if part.exists() else 0
    response = _open(file, part.parent, have)
    if response is None:
        return
    with closing(response):
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        have = have if resumed else 0
        total = None if response.length is None else have + response.length
        _show(file, have, total)
        with part.open("ab" if resumed else "wb") as sink:
            while chunk := _receive(response):
                have += sink.write(chunk)
                _show(file, have, total)
    if total is not None and have < total:
        raise _Interrupted(f"the connection broke after {have:,} of {total:,} bytes")


def _open(file: RemoteFile, folder: Path, offset: int) -> Any:
    """The server's answer from byte `offset` on; None if there is nothing beyond it: then the checksum decides."""
    request = urllib.request.Request(file.url, headers={"User-Agent": "qcn"})
    if offset:
        request.add_header("Range", f"bytes={offset}-")
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and offset:
            return None
        raise _unreachable(file, folder, f"the server answered {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        reason = error.reason if isinstance(error.reason, str) else getattr(error.reason, "strerror", None)
        raise _unreachable(file, folder, f"no connection ({reason or error.reason})") from None
    except (http.client.HTTPException, OSError) as error:
        raise _Interrupted(f"the server closed the connection ({error})") from None


def _receive(response: Any) -> bytes:
    try:
        chunk: bytes = response.read(CHUNK)
    except (http.client.HTTPException, OSError) as error:
        raise _Interrupted(f"the connection broke ({error})") from None
    return chunk


def _unreachable(file: RemoteFile, folder: Path, why: str) -> MissingError:
    then = ", and this command unpacks it" if isinstance(file, RemoteArchive) else ""
    return MissingError(f"cannot fetch {file.url}: {why}; you can also put {file.name} into {folder} yourself{then}")


def _unpacked(file: RemoteFile, folder: Path) -> bool:
    """Whether the file is there unpacked, by us or by the user: the readers take that as well."""
    if isinstance(file, RemoteArchive):
        return all((folder / Path(member).name).is_file() for member in file.members)
    return file.name.endswith(".gz") and (folder / file.name.removesuffix(".gz")).is_file()


def _unpack(archive: RemoteArchive, path: Path, folder: Path) -> list[Path]:
    """Copy the wanted members into `folder`: only their bytes. No path, link or mode in the archive is followed."""
    wanted = {member: folder / Path(member).name for member in archive.members}
    try:
        with tarfile.open(path) as tar:
            for member in tar:
                source = tar.extractfile(member) if member.isreg() and member.name in wanted else None
                if source:
                    with source, atomic_write(wanted.pop(member.name)) as aside, aside.open("wb") as sink:
                        shutil.copyfileobj(source, sink, CHUNK)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise UsageError(f"{path}: damaged archive ({error})") from None
    if wanted:
        raise UsageError(f"{path}: the archive has no {', '.join(sorted(wanted))}")
    path.unlink()
    return [folder / Path(member).name for member in archive.members]


def _whole(file: RemoteFile, folder: Path) -> bool:
    path = folder / file.name
    return path.is_file() and file_md5(path) == file.md5


def _show(file: RemoteFile, done: int, total: int | None) -> None:
    """How many bytes are here, of how many if the server says so."""
    doing(f"fetching {file.name}, {done / 1e6:,.1f} MB", done if total else None, of=total or 1)
