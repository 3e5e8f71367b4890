"""Maps as coloured pictures, and vectors as drawings in three dimensions that page.js turns."""

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qcn.export.program.program import Array

Picture = NDArray[np.uint8]

# Colours from the lowest to the highest value, evenly spaced: matplotlib's viridis and inferno, which stay in order
# for the colour-blind and in grey.
VIRIDIS = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725")
INFERNO = ("#000004", "#210c4a", "#57106e", "#8a226a", "#bc3754", "#e45a31", "#f98e09", "#f9cb35", "#fcffa4")

SIDE = 224  # pixels, about: the side of a picture with heat over it
YAW, PITCH = -0.55, 0.35  # from where drawings are seen at first, in radians
AXES = ("i", "j", "k")


def coloured(values: Array, palette: Sequence[str]) -> Picture:
    """Values from 0 to 1 [H, W] as colours [3, H, W]; what is beyond has the colour of the end."""
    stops = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in palette], np.float64)
    at = np.clip(values, 0, 1) * (len(stops) - 1)
    return np.stack([np.interp(at, np.arange(len(stops)), stops[:, i]) for i in range(3)]).round().astype(np.uint8)


def legend(palette: Sequence[str]) -> str:
    """A bar of these colours, as CSS."""
    return f"linear-gradient(90deg, {', '.join(palette)})"


def seen(image: Array) -> Picture:
    """What the network sees, [C, H, W] of any range, from black to white. Two channels stay two, side by side."""
    low, high = float(image.min()), float(image.max())
    if high == low:
        return np.full(image.shape, 128, np.uint8)
    return ((image.astype(np.float64) - low) / (high - low) * 255).round().astype(np.uint8)  # also of denormal numbers


def with_heat(image: Array, heat: Array, low: float, high: float) -> str:
    """Heat [H, W] over the image [C, H, W] in grey, as a `data:` address. Of two eyes the left one is shown."""
    channels = seen(image).astype(np.float64)
    grey = channels.mean(0) if len(channels) == 3 else channels[0]
    times = max(1, round(SIDE / max(grey.shape)))
    grey = grey.repeat(times, 0).repeat(times, 1)
    colours = coloured((_smooth(heat, times) - low) / max(high - low, 1e-12), INFERNO)
    return jpeg_uri((0.42 * grey + 0.58 * colours).round().astype(np.uint8))


def jpeg_uri(image: Picture) -> str:
    """Colours [3, H, W] as a `data:` address: a quarter of what a PNG of soft colours takes."""
    from PIL import Image

    kept = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(kept, "JPEG", quality=88, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(kept.getvalue()).decode("ascii")


def _smooth(values: Array, times: int) -> Array:
    """[H, W] made `times` larger, with straight lines between the middles of pixels."""
    for axis in (0, 1):
        count = values.shape[axis]
        at = (np.arange(count * times) + 0.5) / times - 0.5
        lower = np.clip(np.floor(at).astype(int), 0, count - 1)
        upper = np.clip(lower + 1, 0, count - 1)
        part = np.expand_dims(np.clip(at - lower, 0, 1), 1 - axis)
        values = values.take(lower, axis) * (1 - part) + values.take(upper, axis) * part
    return values


@dataclass(frozen=True)
class Line:
    """A line through points in space; `at` is for page.js, `points` where it lies at first."""

    kind: str
    at: str
    points: str
    behind: bool


@dataclass(frozen=True)
class Mark:
    """A dot or a word at a point in space; `size` is a dot's radius."""

    kind: str
    at: str
    x: float
    y: float
    behind: bool
    size: float = 0.0
    word: str = ""
    title: str = ""


@dataclass(frozen=True)
class Arrow:
    """A vector from the middle, its head, what it is, and how strongly it is drawn: 0 to 1."""

    shaft: Line
    head: Line
    title: str
    strength: float


@dataclass(frozen=True)
class Globe:
    """A drawing: everything lies in the unit ball, drawn with a radius of 100."""

    spoken: str
    rings: tuple[Line, ...]
    dots: tuple[Mark, ...]
    arrows: tuple[Arrow, ...]
    words: tuple[Mark, ...]
    yaw: float = YAW
    pitch: float = PITCH


def globe(
    spoken: str,
    dots: Iterable[Mark],
    arrows: Iterable[Arrow],
    words: Iterable[Mark],
    axes: tuple[str, str, str] = AXES,
) -> Globe:
    """With three rings and the names of the axes, to the right, up and towards us. What is nearer is drawn later."""
    turn = np.linspace(0, 2 * np.pi, 49)
    ring = np.stack([np.cos(turn), np.sin(turn), np.zeros_like(turn)])
    rings = tuple(line("ring", ring[list(order)].T) for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)))
    ends = tuple(mark("axis", 1.14 * np.eye(3)[i], word=axes[i]) for i in range(3))
    return Globe(spoken, rings, tuple(dots), tuple(arrows), (*ends, *words))


def line(kind: str, points: Array) -> Line:
    """Through points [n, 3]."""
    flat = project(points)
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in flat)
    return Line(kind, _text(points), places, bool(flat[-1, 2] < 0))


def mark(kind: str, point: Array, *, size: float = 0.0, word: str = "", title: str = "") -> Mark:
    """At one point [3]."""
    x, y, depth = project(point[None])[0]
    return Mark(kind, _text(point[None]), round(float(x), 1), round(float(y), 1), bool(depth < 0), size, word, title)


def arrow(kind: str, tip: Array, title: str, strength: float = 1.0) -> Arrow:
    """From the middle to `tip` [3]. Its head is two strokes to each side, in two planes, to be one from anywhere."""
    length = float(np.linalg.norm(tip))
    along = tip / length if length > 1e-9 else np.eye(3)[0]
    helper = np.eye(3)[np.abs(along).argmin()]
    aside = np.cross(along, helper)
    aside /= np.linalg.norm(aside)
    over = np.cross(along, aside)
    back, wide = tip - min(0.11, 0.5 * length) * along, min(0.05, 0.25 * length)
    barbs = [back + wide * side for side in (aside, -aside, over, -over)]
    head = np.stack([barbs[0], tip, barbs[1], tip, barbs[2], tip, barbs[3], tip])
    return Arrow(line(kind, np.stack([np.zeros(3), tip])), line(kind, head), title, strength)


def project(points: Array, yaw: float = YAW, pitch: float = PITCH) -> Array:
    """Points [n, 3] to where they are drawn, x to the right and y down, and their depth, towards us: [n, 3].

    The first axis points right, the second up, the third towards us; they are turned by `yaw` about the second, then by
    `pitch` about the first. page.js has the same.
    """
    x, y, z = points.T
    x, z = x * np.cos(yaw) + z * np.sin(yaw), z * np.cos(yaw) - x * np.sin(yaw)
    y, z = y * np.cos(pitch) - z * np.sin(pitch), z * np.cos(pitch) + y * np.sin(pitch)
    return np.stack([100 * x, -100 * y, z], 1)


def _text(points: Array) -> str:
    return " ".join(",".join(f"{value:.3f}" for value in point) for point in points)
