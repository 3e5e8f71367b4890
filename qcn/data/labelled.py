"""Copy pictures that a table has labels for, such as that of `qcn report field`, into a folder of classes."""

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from qcn.data.folder import NAMES, csv_lines, plain
from qcn.errors import UsageError
from qcn.storage.files import atomic_write, file_sha256
from qcn.terminal.text import csv_cell


@dataclass(frozen=True)
class Added:
    """How many pictures were added to each class, how many lines have no label, and classes that were not there."""

    classes: dict[str, int]
    unlabelled: int
    already_there: int
    new: list[str]


def add(folder: Path, table: Path) -> Added:
    """Copy every picture that has a label into its class' subfolder, of the training split if there are splits."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder with one subfolder per class")
    parts = [path for path in sorted(folder.iterdir()) if path.is_dir() and NAMES.get(path.name.lower()) == "train"]
    home = parts[0] if parts else folder
    classes = {path.name for path in home.iterdir() if path.is_dir()}
    rows = _rows(table)
    labelled = [(number, path, label) for number, path, label in rows if label]
    copies: list[tuple[Path, Path, str]] = []
    for number, path, label in labelled:
        if label in (".", "..") or "/" in label or not label.isprintable():
            raise UsageError(f"{table}, line {number}: {label!r} cannot be the name of a class' folder")
        source = table.parent / path
        if not source.is_file():
            raise UsageError(f"{table}, line {number}: there is no picture {source}")
        copies.append((source, home / label / f"{plain(source.parent.name)}-{source.name}", label))
    added, there = Counter[str](), 0
    for source, target, label in copies:
        if target.exists() and file_sha256(target) == file_sha256(source):
            there += 1
            continue
        with atomic_write(target) as aside:
            shutil.copyfile(source, aside)
        added[label] += 1
    new = sorted({label for _, _, label in labelled} - classes)
    return Added(dict(sorted(added.items())), len(rows) - len(labelled), there, new)


def _rows(table: Path) -> list[tuple[int, str, str]]:
    """Line, path and label of each row."""
    rows = [(line, row.get("path") or "", (row.get("label") or "").strip()) for line, row in csv_lines(table)]
    if not rows or any(not path for _, path, _ in rows):
        raise UsageError(f"{table}: columns named path and label are needed")
    return [(number, path, csv_cell(label)) for number, path, label in rows]
