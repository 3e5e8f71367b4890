"""The pictures of a folder, read once and kept: uint8 [N, C, H, W] in one file, which is mapped into memory.

So a folder need not fit into memory, and a second run starts at once. Training pictures come first, then validation,
then test. A cache is written aside and takes its place whole. No torch here.
"""

import json
import mmap
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qcn.data.duplicates import SIDE, Groups, near_duplicates, thumbnail
from qcn.data.fit import fit, read_picture
from qcn.data.groups import OFF, recognise
from qcn.data.imageset import ImageSet, Splits, Views
from qcn.data.spec import Stored
from qcn.data.splits import deal_groups
from qcn.errors import MissingError, UsageError
from qcn.storage import records
from qcn.storage.files import folder_aside
from qcn.terminal.progress import doing, shown
from qcn.terminal.text import counted, readable

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
SHARE = 0.1  # of every class, for a split that is not given
LEAST = 5  # pictures per class: three to train on, one each to choose by and to test
UNREADABLE = 0.05  # of the files: more than that is a fault of the folder and not of a file
FORM = 5  # of a cache: another one is made again
INDEX, IMAGES = "index.json", "images.npy"


@dataclass(frozen=True)
class Picture:
    """A file with its class, and what a table says of it: split, direction of view in degrees, object, group; or None.

    Objects of two classes may have the same name; a group may have pictures of several classes.
    """

    path: Path
    label: int
    split: Split | None = None
    azimuth: float | None = None
    elevation: float | None = None
    object: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class Listing:
    """What a folder or table names, before a picture is opened.

    `ignored` are files that are no pictures by name: how many of each ending. `symmetry` is that of each class, as
    `qcn.direction` has it; None if it is not given.
    """

    source: Path
    classes: tuple[str, ...]
    pictures: tuple[Picture, ...]
    ignored: dict[str, int] = field(default_factory=dict)
    symmetry: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        return self.source.resolve().name if self.source.is_dir() else self.source.resolve().stem

    @property
    def files(self) -> tuple[str, ...]:
        """The name of each picture."""
        return tuple(_below(picture.path, self.source) for picture in self.pictures)


@dataclass(frozen=True)
class Index:
    """What is known of the pictures in a cache, in the order in which they lie in it: training, validation, test.

    sizes       [width, height] of each picture as it was
    skipped     files that could not be read, and why
    duplicates  groups of nearly the same pictures, as places
    conflicts   pairs of nearly the same pictures with different labels
    groups      pictures that belong together for another reason, which `grouped` has in words
    views       azimuth, elevation and object of each picture, where they are known
    """

    source: str
    stored: Stored
    counts: tuple[int, int, int]
    files: tuple[str, ...]
    labels: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]
    skipped: dict[str, str]
    duplicates: tuple[tuple[int, ...], ...]
    conflicts: tuple[tuple[int, int], ...]
    groups: tuple[tuple[int, ...], ...]
    grouped: str
    views: tuple[tuple[float | None, float | None, str | None], ...]
    dealt: tuple[Split, ...]


def refuse_few(found: Listing, which: str = "") -> None:
    """Refuse classes with too few pictures."""
    counts = Counter(picture.label for picture in found.pictures)
    if few := [f"{name} ({counts[label]})" for label, name in enumerate(found.classes) if counts[label] < LEAST]:
        raise UsageError(
            f"{found.source} has too few pictures{which} of {', '.join(few)}: at least {LEAST} of each class are needed"
        )


def load(folder: Path, found: Listing, stored: Stored) -> Splits:
    """The splits, from the cache, which is made first where there is none."""
    if not (folder / INDEX).is_file():
        _make(folder, found, stored)
    index, damaged = read_index(folder), UsageError(f"{folder} is damaged: delete it, and it is made again")
    try:
        # Stays on disk. Copy on write: torch warns of arrays that cannot be written to.
        images: NDArray[np.uint8] = np.load(folder / IMAGES, mmap_mode="c", allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:  # it is gone, empty, or cut
        raise damaged from error
    counted = {len(images), *map(len, (index.files, index.labels, index.sizes, index.views)), sum(index.counts)}
    if len(counted) > 1 or images.shape[1:] != stored.shape:
        raise damaged
    labels = np.array(index.labels, np.int64)
    ends = np.cumsum((0, *index.counts))
    views = _views(index)
    train, validation, test = (
        ImageSet(
            images[start:end],
            labels[start:end],
            found.classes,
            None if views is None else views[np.arange(start, end)],
            index.files[start:end],
            found.symmetry,
        )
        for start, end in pairwise(ends)
    )
    return Splits(train, validation, {"test": test}, remarks(found, index), "test" in index.dealt)


def _views(index: Index) -> Views | None:
    """Of all pictures; None if no direction is known."""
    azimuth, elevation, names = zip(*index.views, strict=True)
    if not any(angle is not None for angle in (*azimuth, *elevation)):
        return None
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    objects = np.array([numbers[name] for name in names])
    # None becomes NaN.
    return Views(objects, np.array(elevation, np.float64), np.array(azimuth, np.float64), np.zeros_like(objects))


def remarks(found: Listing, index: Index) -> tuple[str, ...]:
    """What whoever trains on it should know, in words."""
    stored = index.stored
    kind = "grey" if stored.channels == 1 else "colour"
    said = [f"{found.name}: {len(index.labels):,} pictures as {stored.size}×{stored.size} {kind} (fit={stored.fit})"]
    counts = ", ".join(f"{count:,} {name}" for name, count in zip(SPLITS, index.counts, strict=True))
    made = f"; {' and '.join(index.dealt)} chosen by qcn" if index.dealt else ""
    said.append(f"{counts}{made}")
    ends = np.cumsum((0, *index.counts))
    for split, start, end in zip(SPLITS, ends[:-1], ends[1:], strict=True):
        if lacking := [name for label, name in enumerate(found.classes) if label not in index.labels[start:end]]:
            said.append(f"there are no {split} pictures of {', '.join(lacking)}")
    if found.ignored:
        endings = ", ".join(f"{count:,} {ending}" for ending, count in found.ignored.items())
        said.append(f"ignored {counted(sum(found.ignored.values()), 'file')} without a picture's extension: {endings}")
    if index.skipped:
        file, why = next(iter(index.skipped.items()))
        said.append(f"left out {counted(len(index.skipped), 'unreadable file')}, such as {file}: {why}")
    if index.groups:
        apart = len({first for first, _ in crossing(index, index.groups)})
        where = f"{apart:,} are in several splits, which makes errors look too small" if apart else "each in one split"
        pictures = len({place for group in index.groups for place in group})
        said.append(f"{counted(len(index.groups), 'group')} of {pictures:,} pictures by {index.grouped}: {where}")
    if index.conflicts:
        one, other = (f"{index.files[place]} ({found.classes[index.labels[place]]})" for place in index.conflicts[0])
        count = counted(len(index.conflicts), "pair")
        said.append(f"label conflict: {count} of nearly equal pictures with different labels, such as {one}, {other}")
    if across := crossing(index):
        one, other = (index.files[place] for place in across[0])
        said.append(
            f"found {counted(len(across), 'pair')} of near duplicates across splits, which makes errors look "
            f"too small, such as {one}, {other}"
        )
    return tuple(said)


def crossing(index: Index, groups: Sequence[Sequence[int]] | None = None) -> list[tuple[int, int]]:
    """Pairs in two splits, of near duplicates or of these groups: the first of its group, and one of a later split."""
    ends = np.cumsum(index.counts)
    pairs = []
    for group in index.duplicates if groups is None else groups:
        splits = np.searchsorted(ends, group, side="right")
        pairs += [(group[0], place) for place, split in zip(group, splits, strict=True) if split != splits[0]]
    return pairs


def _below(path: Path, source: Path) -> str:
    """A file's name as a user knows it: from the folder or the table on."""
    home = source if source.is_dir() else source.parent
    return readable(str(path.relative_to(home) if path.is_relative_to(home) else path))


def read_index(folder: Path) -> Index:
    return records.load(Index, folder / INDEX)


def expect_random_reads(images: NDArray[np.uint8]) -> None:
    """Tell the system that pictures are wanted in any order: of a mapped file it else reads megabytes around each."""
    memory: object = images
    while isinstance(memory, np.ndarray):
        memory = memory.base
    if isinstance(memory, mmap.mmap):
        memory.madvise(mmap.MADV_RANDOM)


def _make(folder: Path, found: Listing, stored: Stored) -> None:
    """Read every picture into a new cache, which takes its place whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder_aside(folder) as aside:
        needed, free = 2 * len(found.pictures) * int(np.prod(stored.shape)), shutil.disk_usage(folder.parent).free
        if needed > free:
            raise MissingError(
                f"{folder.parent} has {free / 1e6:,.2f} MB left; the pictures of {found.source} need "
                f"{needed / 1e6:,.2f}: free some, or name another disk with --data-dir"
            )
        with shown():
            index = _read_all(aside, found, stored)
        (aside / INDEX).write_text(json.dumps(asdict(index)), encoding="utf-8")
        try:
            aside.rename(folder)
        except OSError:
            if not (folder / INDEX).is_file():  # else another process was faster, with the same
                raise
    _forget(folder, index)


def _read_all(aside: Path, found: Listing, stored: Stored) -> Index:
    """Every picture into `aside`, in the order of splits; what is known of them."""
    as_listed = np.lib.format.open_memmap(
        aside / "listed.npy", mode="w+", dtype=np.uint8, shape=(len(found.pictures), *stored.shape)
    )
    thumbnails = np.zeros((len(found.pictures), SIDE, SIDE), np.float32)
    sizes: dict[int, tuple[int, int]] = {}
    skipped: dict[str, str] = {}

    def take(place: int) -> None:
        picture = found.pictures[place]
        try:
            pixels = read_picture(picture.path)
            as_listed[place] = fit(pixels, stored.shape, stored.fit or "crop")
            thumbnails[place] = thumbnail(as_listed[place])
            sizes[place] = pixels.shape[1], pixels.shape[0]
        except UsageError as error:
            skipped[_below(picture.path, found.source)] = str(error).removeprefix(f"{readable(str(picture.path))} ")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        what = f"reading {found.name}, {len(found.pictures):,} pictures"
        for done, _ in enumerate(pool.map(take, range(len(found.pictures)))):
            doing(what, done, of=len(found.pictures))
    if len(skipped) > max(3, UNREADABLE * len(found.pictures)):
        some = "; ".join(f"{file}: {why}" for file, why in list(skipped.items())[:3])
        raise UsageError(
            f"{len(skipped):,} of {len(found.pictures):,} pictures of {found.source} cannot be read: {some}"
        )
    kept = sorted(sizes)
    chosen = replace(found, pictures=tuple(found.pictures[place] for place in kept))
    refuse_few(chosen, " that can be read")
    doing(f"looking for near duplicates among {len(kept):,} pictures")
    pairs = near_duplicates(thumbnails[kept])
    groups, grouped = _groups(chosen, thumbnails[kept], stored)
    splits, dealt = _split(chosen, Groups(len(kept), [*pairs, *groups]))
    trained = {picture.label for picture, split in zip(chosen.pictures, splits, strict=True) if split == "train"}
    if untrained := [name for label, name in enumerate(found.classes) if label not in trained]:
        raise UsageError(f"{found.source} has no training pictures of {', '.join(untrained)}")
    order = sorted(range(len(kept)), key=lambda one: SPLITS.index(splits[one]))
    doing(f"writing {len(kept):,} pictures to {aside.parent}")
    images = np.lib.format.open_memmap(aside / IMAGES, mode="w+", dtype=np.uint8, shape=(len(kept), *stored.shape))
    for place, one in enumerate(order):
        images[place] = as_listed[kept[one]]
    images.flush()
    (aside / "listed.npy").unlink()
    place_of = {one: place for place, one in enumerate(order)}
    files, labels = chosen.files, [picture.label for picture in chosen.pictures]

    def placed(groups: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(sorted(place_of[one] for one in group)) for group in groups if len(group) > 1)

    return Index(
        source=str(found.source.resolve()),
        stored=stored,
        counts=tuple(splits.count(split) for split in SPLITS),  # type: ignore[arg-type]
        files=tuple(files[one] for one in order),
        labels=tuple(labels[one] for one in order),
        sizes=tuple(sizes[kept[one]] for one in order),
        skipped=dict(sorted(skipped.items())),
        duplicates=placed(Groups(len(kept), pairs).lists()),
        conflicts=placed(pair for pair in pairs if labels[pair[0]] != labels[pair[1]]),  # type: ignore[arg-type]
        groups=placed(groups),
        grouped=grouped,
        views=tuple((one.azimuth, one.elevation, one.object) for one in (chosen.pictures[place] for place in order)),
        dealt=dealt,
    )


def _groups(found: Listing, thumbnails: NDArray[np.float32], stored: Stored) -> tuple[list[list[int]], str]:
    """Pictures that belong together, as places: as is stated, or as is recognised; and by what, in words."""
    if stated := list(_stated(found).values()):
        return stated, "the table" if stored.group_by in (None, OFF) else f"group_by={stored.group_by}"
    if stored.group_by == OFF:
        return [], ""
    names: Sequence[str] = found.files
    if found.source.is_dir() and found.pictures[0].split:  # a track whose pictures were moved to train and val is one
        below = [name.partition(os.sep)[2] for name in names]
        names = below if len(set(below)) == len(below) else names
    groups, by = recognise(names, [picture.label for picture in found.pictures], thumbnails)
    return groups, f"{by} (--set group_by=off ignores that)"


def _split(found: Listing, together: Groups) -> tuple[list[Split], tuple[Split, ...]]:
    """The split of each picture, and which splits were dealt out of the training pictures because none are given.

    Pictures that belong together stay together, so that nothing is tested on that was trained on; a class of nothing
    else goes into training.
    """
    for name, members in _stated(found).items():
        if len({found.pictures[place].split for place in members}) > 1:
            raise UsageError(f"{found.source}: pictures of {name} are in two splits: put all of them into one")
    given = {picture.split for picture in found.pictures}
    splits: list[Split] = [picture.split or "train" for picture in found.pictures]
    missing = tuple(split for split in SPLITS[1:] if split not in given)
    if not missing:
        return splits, ()
    open_to = ([place for place in members if splits[place] == "train"] for members in together.lists())
    groups = sorted(filter(None, open_to))
    labels = np.array([found.pictures[members[0]].label for members in groups])
    sizes = np.array([len(members) for members in groups])
    hands = deal_groups(labels, sizes, len(found.classes), "folder", *[SHARE] * len(missing))
    for members, hand in zip(groups, hands, strict=True):
        for place in members:
            splits[place] = ("train", *missing)[hand]
    trained = {picture.label for picture, split in zip(found.pictures, splits, strict=True) if split == "train"}
    for members in groups:
        if not trained.issuperset(found.pictures[place].label for place in members):
            for place in members:
                splits[place] = "train"
    return splits, missing


def _stated(found: Listing) -> dict[str, list[int]]:
    """The pictures of each object and group that has a name, as places."""
    groups: dict[str, list[int]] = {}
    for place, one in enumerate(found.pictures):
        if one.object is not None:
            name = f"the object '{readable(one.object)}' of class {found.classes[one.label]}"
            groups.setdefault(name, []).append(place)
        if one.group is not None:
            groups.setdefault(f"the group '{readable(one.group)}'", []).append(place)
    return groups


def _forget(folder: Path, index: Index) -> None:
    """Remove caches of the same folder, at the same size, that are out of date."""
    for other in folder.parent.glob(f"{folder.name.rpartition('-')[0]}-*"):
        if other == folder or not (other / INDEX).is_file():
            continue
        try:
            there = read_index(other)
        except UsageError:
            continue
        if (there.source, there.stored) == (index.source, index.stored):
            shutil.rmtree(other, ignore_errors=True)
