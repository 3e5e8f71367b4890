"""The sources of `qcn predict` as a stream of pictures: files, folders, patterns, videos and cameras."""

import glob
import heapq
import itertools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from qcn.data.fit import PICTURES, Pixels, read_picture
from qcn.errors import MissingError, UsageError
from qcn.packages import installed
from qcn.runtime.pictures import refuse_address

VIDEOS = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm")
AT_ONCE = 20_000  # names in memory; each listing of a folder of a million takes about a second
T = TypeVar("T", bound=Any)
GET_VIDEO = "pip install opencv-python-headless, or install ffmpeg"


@dataclass(frozen=True)
class Item:
    """A picture that is still to be read, by its name. `read` raises UsageError if it cannot be."""

    name: str
    read: Callable[[], Pixels]


def items(sources: list[str], frames: int | None = None) -> Iterator[Item]:
    """Every picture of these sources; of a video or camera at most `frames` frames, if that is given."""
    for source in sources:
        if has_frames(source):
            yield from _frames(source, frames)
        else:
            yield from map(item, files(source))


def item(name: str) -> Item:
    """The picture in this file."""
    return Item(name, partial(read_picture, Path(name)))


def files(source: str) -> Iterator[str]:
    """The picture files of a source: itself, those below a folder that are not hidden, or what a pattern matches.

    They come sorted, those of a folder in a folder in its place, and are listed as they are needed.
    """
    refuse_address(source)
    path = Path(source)
    if not path.is_dir() and (path.exists() or not glob.has_magic(source)):
        yield str(path)
        return
    one = ""
    for one in _below(path) if path.is_dir() else _in_order(lambda: _matches(source)):
        yield one
    if not one:
        wrong = f"{source} has no pictures ({', '.join(PICTURES)})" if path.is_dir() else f"no file matches '{source}'"
        raise UsageError(wrong)


def count(sources: list[str]) -> int | None:
    """How many pictures there are; None where only a video's end tells."""
    if any(map(has_frames, sources)):
        return None
    return sum(sum(1 for _ in files(source)) for source in sources)


def _below(folder: Path) -> Iterator[str]:
    for name, is_folder in _in_order(lambda: _entries(folder)):
        yield from _below(folder / name) if is_folder else (str(folder / name),)


def _entries(folder: Path) -> Iterator[tuple[str, bool]]:
    """The pictures and folders right in a folder, in any order. A link to a folder is not followed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield entry.name, True
            elif entry.name.lower().endswith(PICTURES) and entry.is_file():
                yield entry.name, False


def _matches(pattern: str) -> Iterator[str]:
    return (str(one) for one in map(Path, glob.iglob(pattern, recursive=True)) if one.is_file())  # noqa: PTH207


def _in_order(listing: Callable[[], Iterator[T]]) -> Iterator[T]:
    """A listing, sorted, with at most AT_ONCE entries in memory: a longer one is listed again for the next entries."""
    some = heapq.nsmallest(AT_ONCE, listing())
    while some:
        yield from some
        last = some[-1]
        some = heapq.nsmallest(AT_ONCE, (one for one in listing() if one > last)) if len(some) == AT_ONCE else []


def has_frames(source: str) -> bool:
    """Whether it is a camera or a video."""
    return bool(re.fullmatch(r"/dev/video\d+", _device(source))) or Path(source).suffix.lower() in VIDEOS


def _device(source: str) -> str:
    """/dev/video1 for camera1, /dev/video0 for camera; anything else as it is."""
    camera = re.fullmatch(r"camera(\d*)", source)
    return f"/dev/video{camera[1] or 0}" if camera else source


def _frames(source: str, most: int | None) -> Iterator[Item]:
    if not _device(source).startswith("/dev/") and not Path(source).is_file():
        raise UsageError(f"there is no file {source}")
    if installed("cv2"):
        frames = _by_opencv(source)
    elif shutil.which("ffmpeg"):
        frames = _by_ffmpeg(source)
    else:
        raise MissingError(f"no installed program can read the frames of {source}: {GET_VIDEO}")
    number = 0
    for number, pixels in enumerate(itertools.islice(frames, most), 1):
        yield Item(f"{source}#{number - 1}", partial(_same, pixels))
    if not number:
        raise UsageError(f"{source} has no frame that can be read")


def _same(pixels: Pixels) -> Pixels:
    return pixels


def _by_opencv(source: str) -> Iterator[Pixels]:
    # Its own lines would stand before ours. It reads these when it is imported.
    os.environ.setdefault("OPENCV_LOG_LEVEL", "ERROR")
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    import cv2  # type: ignore[import-not-found,unused-ignore]

    number = re.fullmatch(r"camera(\d*)", source)
    capture = cv2.VideoCapture(int(number[1] or 0) if number else source)
    try:
        if not capture.isOpened():
            raise UsageError(f"OpenCV cannot open {source}")
        while True:
            more, frame = capture.read()
            if not more:
                return
            yield np.ascontiguousarray(frame[..., ::-1], np.uint8)  # BGR
    finally:
        capture.release()


def _by_ffmpeg(source: str) -> Iterator[Pixels]:
    place = _device(source)
    # The name of a file may look like an option or an address; a device is opened by its name as it is.
    input_arguments = ["-f", "v4l2", "-i", place] if place.startswith("/dev/") else ["-i", f"file:{place}"]
    # Each frame once, evenly spaced: ffmpeg would repeat and drop frames to fill a fixed rate.
    once = ["-map", "0:v:0?", "-vf", "settb=1/25,setpts=N", "-r", "25"]
    # PPM says the size of each frame, which is not the stored one in a video that is turned when shown.
    command = ["ffmpeg", "-v", "error", "-nostdin", *input_arguments, *once, "-f", "image2pipe", "-c:v", "ppm", "-"]
    # What it says goes into a file: a pipe that nobody reads would stop it once it is full.
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as running:
        assert running.stdout
        try:
            while (pixels := _ppm(running.stdout)) is not None:
                yield pixels
            if running.wait():
                log.seek(0)
                why = log.read().decode(errors="replace").strip().splitlines()[-1:] or ["it does not say why"]
                raise UsageError(f"ffmpeg cannot read {source}: {why[0]}")
        finally:
            running.kill()


def _ppm(stream: IO[bytes]) -> Pixels | None:
    """The next frame, uint8 [H, W, 3], of ffmpeg's PPM; None where it ends, also in the middle of one."""
    heading = [stream.readline() for _ in range(3)]  # P6, width and height, 255
    if not heading[2].endswith(b"\n"):
        return None
    width, height = map(int, heading[1].split())
    frame = stream.read(width * height * 3)
    return np.frombuffer(frame, np.uint8).reshape(height, width, 3) if len(frame) == width * height * 3 else None
