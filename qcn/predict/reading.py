"""Pictures read ahead: some threads decode the next ones while the network answers. Pillow decodes without the GIL."""

import os
import threading
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from qcn.data.fit import Pixels
from qcn.errors import UsageError
from qcn.predict.sources import Found, Item, has_frames

THREADS = min(4, os.cpu_count() or 1)
AHEAD = 32  # pictures
ROOM = 256 << 20  # bytes of pixels that may wait: large photographs are read ahead by fewer


def pictures_of(waiting: Iterable[Item], sources: list[str]) -> Generator[Found, None, None]:
    """These pictures of `sources`, in their order. Frames come one by one: those of a camera are of now."""
    return read_ahead(waiting, 0 if any(map(has_frames, sources)) else AHEAD)


def read_ahead(waiting: Iterable[Item], ahead: int = AHEAD) -> Generator[Found, None, None]:
    """These pictures in their order. While one is used, up to `ahead` others are being read; 0 reads none of them."""
    begun: deque[Future[Found]] = deque()
    ready = _Bytes()
    with ThreadPoolExecutor(THREADS, "decode") as pool:
        try:
            for item in waiting:
                begun.append(pool.submit(_read, item, ready))
                while len(begun) > ahead or (begun and ready.total > ROOM):
                    yield _next(begun, ready)
            while begun:
                yield _next(begun, ready)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class _Bytes:
    """Of the pixels that wait to be used."""

    def __init__(self) -> None:
        self.total, self._lock = 0, threading.Lock()

    def add(self, pixels: Pixels | None, times: int = 1) -> None:
        with self._lock:
            self.total += times * pixels.nbytes if pixels is not None else 0


def _next(begun: "deque[Future[Found]]", ready: _Bytes) -> Found:
    result = begun.popleft().result()
    ready.add(result.pixels, -1)
    return result


def _read(item: Item, ready: _Bytes) -> Found:
    try:
        pixels = item.read()
    except UsageError as error:
        return Found(item.name, None, str(error))
    ready.add(pixels)
    return Found(item.name, pixels)
