"""A folder of pictures as a data set: a subfolder per class, or train, val and test with such subfolders in each.

A table of pictures does as well: CSV with the columns path and label, or JSON lines with these keys, and `split` where
splits are given; paths are relative to the table. It may also have `azimuth` and `elevation`, in degrees, from where
the object is seen (`qcn.direction`); `object` and `group`, whose pictures all go to one split; and `symmetry` of the
class: "none", "round", or a number n if it looks the same every 360°/n.

    pets/cat/1.jpg            pets/train/cat/1.jpg          path,label,split
    pets/dog/2.png            pets/val/dog/2.png            img/1.jpg,cat,train

`qcn.data.cache` reads the pictures. No torch here.
"""

import csv
import hashlib
import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from qcn.data import cache
from qcn.data.cache import Listing, Picture, Split
from qcn.data.fit import PICTURES, need_pillow
from qcn.data.groups import OFF, matches
from qcn.data.spec import Augmentation, Dataset, Preprocessing, Stored
from qcn.direction import ROUND
from qcn.errors import UsageError
from qcn.storage import records
from qcn.storage.files import open_plain, refuse_no_text

NAMES: dict[str, Split] = {  # of folders, and in tables
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
TABLES = (".csv", ".jsonl")
BACKBONE_SIDES = (128, 96)  # pixels of pictures for a pretrained backbone, if they have so many
SAMPLED = 200  # pictures that are looked at to choose a size


def is_source(name: str) -> bool:
    """Whether this is a folder or a table that is there, and no name of a data set."""
    path = Path(name)
    return path.is_dir() or (path.suffix.lower() in TABLES and path.is_file())


def find(source: Path, asked: Stored) -> Dataset:
    """The data set of a folder or table; what is not asked for is chosen from its pictures."""
    result = listing(source)
    if asked.group_by not in (None, OFF):
        groups = zip(result.pictures, matches(result.files, asked.group_by), strict=True)
        result = replace(result, pictures=tuple(replace(picture, group=group) for picture, group in groups))
    stored = choose(result, asked)
    # A mirror turns azimuths about the front, which a table need not count from: --augment mirrored asks for it.
    known = any(picture.azimuth is not None for picture in result.pictures)
    return Dataset(
        name=result.name,
        summary=f"pictures of {source}",
        classes=result.classes,
        channels=stored.shape[0],
        size=stored.shape[1],
        folder=f"folders/{plain(result.name)}-{_key(result, stored)[:12]}",
        load=partial(cache.load, found=result, stored=stored),
        preprocessing=Preprocessing(fit=stored.fit or "crop"),
        augmentation={"paper": Augmentation(), "best": Augmentation(shift=2, flip=not known)},
        stored=stored,
    )


def listing(source: Path) -> Listing:
    """Every picture that a folder or table names."""
    refuse_no_text(source)
    result = _table(source) if source.is_file() else _folders(source)
    if not result.classes and source.is_dir() and any(path.suffix.lower() in PICTURES for path in source.iterdir()):
        raise UsageError(
            f"{source} has pictures, but no subfolders: name the folder above it, which has one subfolder per class"
        )
    if len(result.classes) < 2:
        raise UsageError(
            f"{source} has {len(result.classes)} class{'es' * (len(result.classes) != 1)}, but at least 2 are "
            f"needed: one subfolder of pictures per class"
        )
    cache.refuse_few(result)
    return result


def side_for_backbone(source: Path) -> int | None:
    """The side at which a pretrained backbone should see these pictures; None if they are grey, or too small for it."""
    pictures = _glances(listing(source))
    usual = np.median([min(width, height) for width, height, _ in pictures]) if pictures else 0
    if all(grey for _, _, grey in pictures):
        return None
    return next((side for side in BACKBONE_SIDES if side <= usual), None)


def choose(found: Listing, asked: Stored) -> Stored:
    """The size and channels: what was asked for, or what the pictures suggest.

    Pictures that are all of one square size up to 96 keep it. Others become 32 pixels, or 64 where they have them.
    """
    size, channels = asked.size, asked.channels
    if size is None or channels is None:
        seen = _glances(found)
        if not seen:
            raise UsageError(f"{found.source}: none of the pictures can be read")
        sides = {side for width, height, _ in seen for side in (width, height)}
        usual = int(np.median([min(width, height) for width, height, _ in seen]))
        keep = len(sides) == 1 and 20 <= usual <= 96
        size = size or (usual if keep else 32 if usual < 48 else 64)
        channels = channels or (1 if all(grey for _, _, grey in seen) else 3)
    return replace(asked, size=size, fit=asked.fit or "crop", channels=channels)


def _folders(source: Path) -> Listing:
    inside = sorted(path for path in source.iterdir() if path.is_dir() and not path.name.startswith("."))
    parts = {path: NAMES[path.name.lower()] for path in inside if path.name.lower() in NAMES}
    homes: list[tuple[Path, Split | None]]
    if parts and len(parts) == len(inside) and "train" in parts.values():
        homes = [(home, split) for part, split in parts.items() for home in sorted(part.iterdir()) if home.is_dir()]
    else:
        homes = [(home, None) for home in inside]
    homes = [(home, split) for home, split in homes if not home.name.startswith(".")]
    classes = tuple(sorted({home.name for home, _ in homes}))
    if odd := [name for name in classes if not name.isprintable()]:
        raise UsageError(f"{source}: the name of the class {odd[0]!r} cannot be printed: rename the folder")
    pictures: list[Picture] = []
    ignored: Counter[str] = Counter()
    for home, split in homes:
        for path in files_below(home):
            if path.suffix.lower() in PICTURES:
                pictures.append(Picture(path, classes.index(home.name), split))
            else:
                ignored[path.suffix.lower() or "without an ending"] += 1
    return Listing(source, classes, tuple(pictures), dict(ignored.most_common()))


def files_below(folder: Path) -> Iterator[Path]:
    """Files below a folder in a fixed order, hidden ones left out; a folder that may not be read is not."""

    def refuse(error: OSError) -> None:
        raise error

    for place, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place, name) for name in sorted(files) if not name.startswith("."))


def _table(source: Path) -> Listing:
    rows: list[tuple[str, Path, Any]] = []
    symmetry: dict[str, int] = {}
    for number, row in csv_lines(source) if source.suffix.lower() == ".csv" else _json_lines(source):
        where = f"{source}, line {number}"
        path, label, split = (row.get(name) for name in ("path", "label", "split"))
        label = str(label) if isinstance(label, int) else label
        if not (isinstance(path, str) and path and isinstance(label, str) and label and label.isprintable()):
            raise UsageError(f"{where}: columns named path and label are needed")
        if split and str(split).lower() not in NAMES:
            raise UsageError(f"{where}: the split is train, val or test, not '{split}'")
        fold = _symmetry(where, row.get("symmetry"))
        if fold is not None and symmetry.setdefault(label, fold) != fold:
            raise UsageError(
                f"{where}: class {label} has the symmetry {symmetry[label]} in another line, and {fold} here"
            )
        angles = _angle(where, row, "azimuth", 36000.0), _angle(where, row, "elevation", 90.0)
        together = (None if row.get(name) in (None, "") else str(row[name]) for name in ("object", "group"))
        rows.append((label, source.parent / path, (NAMES[str(split).lower()] if split else None, *angles, *together)))
    classes = tuple(sorted({label for label, *_ in rows}))
    pictures = tuple(Picture(path, classes.index(label), *facts) for label, path, facts in rows)
    if any(one.split for one in pictures) and not all(one.split for one in pictures):
        raise UsageError(f"{source}: some lines have a split and some do not")
    folds = tuple(symmetry.get(name, 1) for name in classes) if symmetry else None
    return Listing(source, classes, pictures, symmetry=folds)


def csv_lines(source: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and cells by column of each row in a table that a person may have edited."""
    try:
        with source.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            for row in rows:
                yield rows.line_num, row
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"{source} cannot be read as CSV: {error}") from None


def _json_lines(source: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with source.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                row = records.parse(line, f"{source}, line {number}")
                yield number, row if isinstance(row, dict) else {}


def _angle(where: str, row: dict[str, Any], name: str, most: float) -> float | None:
    given = row.get(name)
    if given in (None, ""):
        return None
    try:
        angle = float(given)
    except (TypeError, ValueError):
        angle = math.nan
    if not abs(angle) <= most:
        limits = f" from -{most:g} to {most:g}" if name == "elevation" else ""
        raise UsageError(f"{where}: the {name} is a number of degrees{limits}, not '{given}'")
    return angle


def _symmetry(where: str, given: object) -> int | None:
    if given in (None, ""):
        return None
    words = {"none": 1, "round": ROUND}
    text = str(given).lower()
    if text in words or (text.isdecimal() and 1 <= int(text) <= 360):
        return words[text] if text in words else int(text)
    raise UsageError(
        f"{where}: a symmetry is none, round, or the number of azimuths from which the class looks the same, "
        f"not '{given}'"
    )


def _glances(found: Listing) -> list[tuple[int, int, bool]]:
    """Width, height, and whether it is grey, from the heads of some files, evenly spread; of those that can be read."""
    need_pillow()
    from PIL import Image

    pictures, result = found.pictures, []
    if len(pictures) > SAMPLED:
        pictures = tuple(pictures[i * len(pictures) // SAMPLED] for i in range(SAMPLED))
    for picture in pictures:
        with suppress(Exception), open_plain(picture.path) as file, Image.open(file) as opened:  # said when it is read
            result.append((*opened.size, opened.mode in ("1", "L", "LA", "I", "I;16", "I;16B")))
    return result


def plain(name: str, empty: str = "pictures") -> str:
    """A name with nothing in it that a file system or a shell could stumble over; `empty` if nothing is left of it."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or empty


def _key(found: Listing, stored: Stored) -> str:
    """A hash of all that a cache is made from; for the pictures' contents stand their sizes and times."""
    digest = hashlib.sha256(repr((cache.FORM, stored, found.classes, found.symmetry)).encode())
    for picture in found.pictures:
        try:
            facts = picture.path.stat()
        except OSError:  # said when it is read
            continue
        digest.update(repr(replace(picture, path=picture.path.resolve())).encode())
        digest.update(repr((facts.st_size, facts.st_mtime_ns)).encode())
    return digest.hexdigest()
