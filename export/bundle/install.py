"""`qcn install`: a bundle into the place that a program reads it from, by one rename; and back to the one before.

    NAME -> .NAME.versions/4-SHA256   the place: a symbolic link to the version in use
    .NAME.versions/3-SHA256           the version that was in use before it, for `--rollback`
    .NAME.versions/.….part            a copy being made; the next to install removes what a killed one left

A version is a whole bundle. Its number is one more than that of the version whose place it took; its SHA256 is that of
the manifest it was installed with. The copy is made beside the others, on their disk, and checked as it lies there.
Then it gets its number, and a new link takes the place of the old one. That rename decides: whatever interrupts it, the
place leads to a whole bundle. A link is swapped, and not two folders (renameat2), so that whoever has opened a bundle
goes on with all of it: `Bundle.open` follows the link once.
"""

import errno
import hashlib
import re
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from qcn.errors import UsageError
from qcn.export.bundle import paths
from qcn.export.bundle.bundle import Bundle
from qcn.export.bundle.manifest import MANIFEST_SHA256, SIGNATURE, manifest_sums
from qcn.export.bundle.transaction import aside_of, locked, undisturbed
from qcn.names import MANIFEST

_VERSION = re.compile(r"([1-9][0-9]{0,8})-([0-9a-f]{64})")
_COPY, _LINK = "copy", "link"


@dataclass(frozen=True, order=True)
class Version:
    """A version beside its place: the folder `name`, installed with the manifest of hash `sha256`."""

    number: int
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.number}-{self.sha256}"


def install(source: Path, target: Path, public_key: Path | None = None) -> Path | None:
    """Put the bundle `source` in the place `target`; gives the folder of its version, None where it is in use already.

    What is in `target` before stays until the new one is whole there, and is kept beside it for `rollback`. Every file
    is checked against its hash, and the manifest against a signature if a `public_key` is given. The place is a link
    that this function made, or nothing yet: a folder or a file in it is refused.
    """
    place = _Place(target)
    with undisturbed(source):
        bundle = Bundle.open(source, public_key)
        bundle.require_whole()
        sha256 = hashlib.sha256(bundle.text).hexdigest()
        if place.uses(sha256, bundle):
            return None
        place.versions.mkdir(parents=True, exist_ok=True)
        with aside_of(place.versions) as aside:
            copy_bundle(bundle, aside / _COPY)
            Bundle.open(aside / _COPY, public_key).require_whole()
            with locked(place.versions):
                if place.uses(sha256, bundle):  # another process was quicker
                    return None
                used = place.in_use()
                place.tidy(aside)
                version = Version(used.number + 1 if used else 1, sha256)
                try:
                    place.use(version, aside, aside / _COPY)
                finally:
                    place.tidy(aside)
    return place.versions / version.name


def rollback(target: Path, public_key: Path | None = None) -> Path:
    """Put the version that was in use before back in its place, once it was found whole; gives its folder."""
    place = _Place(target)
    place.previous()  # before anything is made
    with aside_of(place.versions) as aside, locked(place.versions):
        version = place.previous()
        Bundle.open(place.versions / version.name, public_key).require_whole()
        place.use(version, aside)
    return place.versions / version.name


class _Place:
    """The link `link` and the folder `versions` beside it. What changes them is called under that folder's lock."""

    def __init__(self, target: Path) -> None:
        self.link = target.absolute()
        self.versions = self.link.parent / f".{self.link.name}.versions"
        if self.versions.is_symlink():
            raise UsageError(f"{self.versions} is {paths.what_is(self.versions)}: remove it")
        parent = self.link.parent.resolve()
        if bundles := [folder for folder in (parent, *parent.parents) if (folder / MANIFEST).is_file()]:
            raise UsageError(f"{self.link} would be inside of the bundle {bundles[0]}: choose another folder")
        self.in_use()  # a place that is taken is refused before anything is made

    def in_use(self) -> Version | None:
        """The version that the link leads to; None where there is nothing yet."""
        try:
            leads_to = self.link.readlink()
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            kind, old = "folder" if self.link.is_dir() else "file", shlex.quote(f"{self.link}.old")
            raise UsageError(
                f"{self.link} is a {kind} that `qcn install` did not make, so it is not replaced: choose "
                f"another folder, or move it away with: mv {shlex.quote(str(self.link))} {old}"
            ) from None
        version = _parsed(leads_to.name)
        if leads_to.parent != Path(self.versions.name) or version is None:
            raise UsageError(
                f"{self.link} is a link to {leads_to} that `qcn install` did not make: choose another folder"
            )
        return version

    def before(self, version: Version | None) -> Version | None:
        """The version that this one took the place of, if it is kept."""
        return max((one for one in self._versions() if version and one.number < version.number), default=None)

    def previous(self) -> Version:
        """The version to go back to."""
        version = self.before(self.in_use())
        if version is None:
            raise UsageError(
                f"{self.link} has no earlier version to go back to: install a bundle with: "
                f"qcn install BUNDLE {shlex.quote(str(self.link))}"
            )
        return version

    def uses(self, sha256: str, bundle: Bundle) -> bool:
        """Whether the version in use was installed from this bundle and is whole. Engines may have been added since."""
        version = self.in_use()
        if version is None or version.sha256 != sha256:
            return False
        try:
            installed = Bundle.open(self.versions / version.name, bundle.public_key)
            installed.require_whole()
        except (UsageError, OSError):
            return False
        return _signature(installed.folder) == _signature(bundle.folder)

    def use(self, version: Version, aside: Path, copy: Path | None = None) -> None:
        """Let the place lead to this version, which is kept already or lies in `copy`. The last rename decides."""
        (aside / _LINK).symlink_to(f"{self.versions.name}/{version.name}")
        if copy:
            copy.rename(self.versions / version.name)
        paths.sync_folder(self.versions)
        (aside / _LINK).rename(self.link)
        paths.sync_folder(self.link.parent)

    def tidy(self, aside: Path) -> None:
        """Move aside, and so out of the way, every version but the one in use and the one before."""
        used = self.in_use()
        for version in self._versions() - {used, self.before(used)}:
            (self.versions / version.name).rename(aside / version.name)

    def _versions(self) -> set[Version]:
        return {version for name in paths.names_in(self.versions, ".") if (version := _parsed(name))}


def _parsed(name: str) -> Version | None:
    result = _VERSION.fullmatch(name)
    return Version(int(result[1]), result[2]) if result else None


def copy_bundle(bundle: Bundle, folder: Path) -> None:
    """The files that the manifest names, the manifest and its signature, to disk for good. No other file."""
    folder.mkdir()
    paths.write_new(folder, MANIFEST, bundle.text)
    paths.write_new(folder, MANIFEST_SHA256, manifest_sums(bundle.text))
    if (signature := _signature(bundle.folder)) is not None:
        paths.write_new(folder, SIGNATURE, signature)
    for artefact in bundle.manifest.files:
        if parent := artefact.file.rpartition("/")[0]:
            paths.make_folder(folder, parent)
        paths.write_new(folder, artefact.file, bundle.read(artefact))
        if artefact.has_record:
            paths.write_new(folder, artefact.facts_file, artefact.to_json().encode())
            paths.sync_folder(folder, "engines")
    paths.sync_folder(folder)


def _signature(folder: Path) -> bytes | None:
    with suppress(FileNotFoundError):
        return paths.read_file(folder, SIGNATURE)
    return None
