"""Pictures read ahead and answered: some threads decode the next ones meanwhile. Pillow decodes without the GIL."""

import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice

from qcn.data.fit import Pixels
from qcn.errors import UsageError
from qcn.predict.sources import Item, has_frames
from qcn.runtime import Answer, Model

THREADS = min(4, os.cpu_count() or 1)
AHEAD = 32  # pictures
ROOM = 256 << 20  # bytes of pixels that may wait: large photographs are read ahead by fewer


@dataclass(frozen=True)
class Row:
    """A picture by its name: its pixels and then the answer to it, or why there is none."""

    file: str
    pixels: Pixels | None
    error: str = ""
    answer: Answer | None = None


def pictures_of(waiting: Iterable[Item], sources: list[str]) -> Generator[Row, None, None]:
    """These pictures of `sources`, in their order. Frames come one by one: those of a camera are of now."""
    return read_ahead(waiting, 0 if any(map(has_frames, sources)) else AHEAD)


def read_ahead(waiting: Iterable[Item], ahead: int = AHEAD) -> Generator[Row, None, None]:
    """These pictures in their order. While one is used, up to `ahead` others are being read; 0 reads none of them."""
    begun: deque[Future[Row]] = deque()
    with ThreadPoolExecutor(THREADS, "decode") as pool:
        try:
            for item in waiting:
                begun.append(pool.submit(_read, item))
                while len(begun) > ahead or _waiting_bytes(begun) > ROOM:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def answered(model: Model, pictures: Iterable[Row], batch: int) -> Iterator[Row]:
    """Each picture with its answer, in their order; `batch` of them are worked on at once."""
    waiting = iter(pictures)
    while rows := list(islice(waiting, batch)):
        answers = iter(model.predict([row.pixels for row in rows if row.pixels is not None]))
        for row in rows:
            yield row if row.pixels is None else replace(row, answer=next(answers))


def _waiting_bytes(begun: Iterable[Future[Row]]) -> int:
    """The size of the pixels that were read and not used yet."""
    rows = [future.result() for future in begun if future.done() and not future.exception()]
    return sum(row.pixels.nbytes for row in rows if row.pixels is not None)


def _read(item: Item) -> Row:
    try:
        return Row(item.name, item.read())
    except UsageError as error:
        return Row(item.name, None, str(error))
