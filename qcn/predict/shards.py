"""`qcn predict --out DIR`: answers as one file per thousand pictures, by this process, or by several with Ray.

A shard has the rows that `--jsonl` writes, or the same as Parquet if the folder's name ends in .parquet. It is put into
the folder whole, under a name that holds a hash of the network and of its pictures' names, sizes and times. So a
command that is given again skips what is finished, and answers anew what has changed.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from qcn import workers
from qcn.errors import MissingError, UsageError
from qcn.packages import installed
from qcn.predict.open import open_model
from qcn.predict.reading import read_ahead
from qcn.predict.records import ResultRow, answered, entry
from qcn.predict.rows import Before, JsonLines, plain
from qcn.predict.sources import files, has_frames, item
from qcn.runtime import Model
from qcn.storage.files import atomic_write, write_text

PICTURES = 1000  # of a shard
PARQUET = ".parquet"


@dataclass(frozen=True)
class Shard:
    """A file of answers, and the pictures that they are of."""

    path: Path
    pictures: tuple[str, ...]


@dataclass(frozen=True)
class Opening:
    """What a process needs to open the network, and to see that it is the same one.

    folder   that names of files are relative to
    """

    model: str
    backend: str
    public_key: Path | None
    batch: int
    identity: str
    folder: Path

    def open(self) -> Model:
        os.chdir(self.folder)
        model = open_model(self.model, self.backend, self.public_key, threads=1)
        if model.identity != self.identity:
            raise UsageError(f"{self.model} is {model.identity} where this process runs, not {self.identity}")
        return model


class Answering:
    """A process's network, which answers one shard after the other."""

    def __init__(self, model: Model, batch: int) -> None:
        self.model, self.batch = model, batch

    def __call__(self, shard: Shard) -> Before:
        """Write the shard; it says how many rows it has, and how many of them are of pictures that cannot be read."""
        pictures = read_ahead(map(item, shard.pictures))
        rows = [row for row, _ in answered(self.model, pictures, self.batch)]
        if shard.path.suffix == PARQUET:
            _write_parquet(shard.path, rows, self.model)
        else:
            form = JsonLines(self.model.classes, self.model.identity)
            write_text(shard.path, "".join(map(form.text, rows)))
        return Before(len(rows), sum(row.answer is None for row in rows))


class Work(NamedTuple):
    """Shards that are still to be answered, and what those that are finished hold."""

    waiting: list[Shard]
    before: Before


def plan(sources: list[str], out: Path, model: str) -> Work:
    """The shards of these pictures, by the network of this identity. UsageError if `out` has other ones."""
    if moving := [source for source in sources if has_frames(source)]:
        raise UsageError(f"--out is for pictures: {moving[0]} is a video or a camera")
    if out.suffix == PARQUET and not installed("pyarrow"):
        raise MissingError(f"Parquet needs pyarrow: {workers.INSTALL}")
    waiting, before, expected = list[Shard](), Before(), set[Path]()
    names = (name for source in sources for name in files(source))
    while pictures := tuple(islice(names, PICTURES)):
        form = PARQUET if out.suffix == PARQUET else ".jsonl"
        shard = Shard(out / f"{len(expected):06}-{_hash(pictures, model)}{form}", pictures)
        expected.add(shard.path)
        if shard.path.is_file():
            finished = _rows_of(shard.path)
            before = Before(before.rows + finished.rows, before.unreadable + finished.unreadable)
        else:
            waiting.append(shard)
    if others := sorted({*out.glob("*.jsonl"), *out.glob(f"*{PARQUET}")} - expected):
        raise UsageError(
            f"{out} has answers to other pictures, or of another network, such as {others[0].name}: remove them, or "
            "name another folder"
        )
    return Work(waiting, before)


def by_ray(opening: Opening, waiting: list[Shard]) -> Iterator[Before]:
    """Answer these shards with Ray; what each holds comes when it is there, in any order."""
    return workers.by_ray(lambda: Answering(opening.open(), opening.batch), waiting)


def _hash(pictures: tuple[str, ...], model: str) -> str:
    digest = hashlib.sha256(model.encode())
    for name in pictures:
        there = Path(name).stat() if Path(name).exists() else None
        known = (there.st_size, there.st_mtime_ns) if there else ()
        digest.update(f"{name}\0{known}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:12]


def _rows_of(path: Path) -> Before:
    """What a finished shard holds."""
    if path.suffix == PARQUET:
        from pyarrow import parquet

        errors = parquet.read_table(path, columns=["error"])["error"]
        return Before(len(errors), len(errors) - errors.null_count)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return Before(len(rows), sum("error" in row for row in rows))


def _write_parquet(path: Path, rows: list[ResultRow], model: Model) -> None:
    """The objects of JSON as they are, with an `error` that is null where there is an answer."""
    import pyarrow as arrow
    from pyarrow import parquet

    entries = [{**entry(row, model.identity), "file": plain(row.file)} for row in rows]
    number = arrow.float64()
    direction = {"azimuth": number, "elevation": number, "vector": arrow.list_(number), "spread": number}
    columns = {
        "file": arrow.string(),
        "error": arrow.string(),
        "label": arrow.string(),
        "probability": number,
        "known": arrow.bool_(),
        "direction": arrow.struct(direction.items()),
        "logit": arrow.struct((name, number) for name in model.classes),
        "pose": arrow.struct((name, arrow.list_(number)) for name in model.classes),
        "model": arrow.string(),
    }
    with atomic_write(path) as aside:
        parquet.write_table(arrow.Table.from_pylist(entries, arrow.schema(columns.items())), aside)
