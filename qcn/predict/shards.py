"""`qcn predict --out DIR`: answers as one file per thousand pictures, by this process, or by several with Ray.

A shard has the rows that `--jsonl` writes, or the same as Parquet if the folder's name ends in .parquet. It is put into
the folder whole, under a name that holds a hash of the network and of its pictures' names, sizes and times. So a
command that is repeated skips finished shards, and answers changed pictures again.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from qcn import workers
from qcn.errors import MissingError, UsageError
from qcn.packages import installed
from qcn.predict.open import open_model
from qcn.predict.reading import answered, read_ahead
from qcn.predict.rows import Tally, entry, json_line, plain
from qcn.predict.sources import files, has_frames, item
from qcn.runtime import Model
from qcn.storage.files import atomic_write, write_text

PICTURES = 1000  # of a shard
PARQUET = ".parquet"


class Shard(NamedTuple):
    """A file of answers, and the pictures that they are of."""

    path: Path
    pictures: tuple[str, ...]


def answer(model: Model, batch: int, shard: Shard) -> Tally:
    """Write a shard: how many rows it has, and how many of them are of pictures that cannot be read."""
    pictures = read_ahead(map(item, shard.pictures))
    entries = [entry(row, model.identity) for row in answered(model, pictures, batch)]
    if shard.path.suffix == PARQUET:
        _write_parquet(shard.path, entries, model.classes)
    else:
        write_text(shard.path, "".join(map(json_line, entries)))
    return Tally(len(entries), sum("error" in one for one in entries))


def plan(sources: list[str], out: Path, model: str) -> tuple[list[Shard], Tally]:
    """The shards of these pictures that the network of this identity has still to answer, and what the others hold.

    UsageError if `out` has other ones.
    """
    if moving := [source for source in sources if has_frames(source)]:
        raise UsageError(f"--out is for pictures: {moving[0]} is a video or a camera")
    if out.suffix == PARQUET and not installed("pyarrow"):
        raise MissingError(f"Parquet needs pyarrow: {workers.INSTALL}")
    waiting, before, expected = list[Shard](), Tally(), set[Path]()
    names = (name for source in sources for name in files(source))
    while pictures := tuple(islice(names, PICTURES)):
        form = PARQUET if out.suffix == PARQUET else ".jsonl"
        shard = Shard(out / f"{len(expected):06}-{_hash(pictures, model)}{form}", pictures)
        expected.add(shard.path)
        if shard.path.is_file():
            before = before.plus(*_rows_of(shard.path))
        else:
            waiting.append(shard)
    if others := sorted({*out.glob("*.jsonl"), *out.glob(f"*{PARQUET}")} - expected):
        raise UsageError(
            f"{out} has answers to other pictures, or of another network, such as {others[0].name}: remove them, or "
            "name another folder"
        )
    return waiting, before


def by_ray(
    name: str, backend: str, public_key: Path | None, identity: str, batch: int, waiting: list[Shard]
) -> Iterator[Tally]:
    """Answer these shards with Ray; what each holds comes when it is there, in any order."""
    folder = Path.cwd()  # that names of files are relative to

    def prepare() -> Callable[[Shard], Tally]:
        os.chdir(folder)
        model = open_model(name, backend, public_key, threads=1)
        if model.identity != identity:
            raise UsageError(f"{name} is {model.identity} where this process runs, not {identity}")
        return partial(answer, model, batch)

    return workers.by_ray(prepare, waiting)


def _hash(pictures: tuple[str, ...], model: str) -> str:
    digest = hashlib.sha256(model.encode())
    for name in pictures:
        there = Path(name).stat() if Path(name).exists() else None
        known = (there.st_size, there.st_mtime_ns) if there else ()
        digest.update(f"{name}\0{known}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:12]


def _rows_of(path: Path) -> Tally:
    """The counts of a finished shard."""
    if path.suffix == PARQUET:
        from pyarrow import parquet

        errors = parquet.read_table(path, columns=["error"])["error"]
        return Tally(len(errors), len(errors) - errors.null_count)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return Tally(len(rows), sum("error" in row for row in rows))


def _write_parquet(path: Path, entries: list[dict[str, Any]], classes: tuple[str, ...]) -> None:
    """The objects of JSON as they are, with an `error` that is null where there is an answer."""
    import pyarrow as arrow
    from pyarrow import parquet

    number = arrow.float64()
    direction = {"azimuth": number, "elevation": number, "vector": arrow.list_(number), "spread": number}
    columns = {
        "file": arrow.string(),
        "error": arrow.string(),
        "label": arrow.string(),
        "probability": number,
        "known": arrow.bool_(),
        "direction": arrow.struct(direction.items()),
        "logit": arrow.struct((name, number) for name in classes),
        "pose": arrow.struct((name, arrow.list_(number)) for name in classes),
        "model": arrow.string(),
    }
    rows = [{**one, "file": plain(one["file"])} for one in entries]
    with atomic_write(path) as aside:
        parquet.write_table(arrow.Table.from_pylist(rows, arrow.schema(columns.items())), aside)
