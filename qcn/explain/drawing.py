"""Maps as coloured pictures, and vectors as drawings in three dimensions that page.js turns."""

import base64
import io
from collections.abc import Iterable, Sequence
from typing import Any

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


def coloured(values: Array, palette: Sequence[str]) -> Picture:
    """Values from 0 to 1 [H, W] as colours [3, H, W]; what is beyond has the colour of the end."""
    stops = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in palette], np.float64)
    at = np.clip(values, 0, 1) * (len(stops) - 1)
    return np.stack([np.interp(at, np.arange(len(stops)), stops[:, i]) for i in range(3)]).round().astype(np.uint8)


def legend(palette: Sequence[str]) -> str:
    """A bar of these colours, as CSS."""
    return f"linear-gradient(90deg, {', '.join(palette)})"


def seen(image: Array) -> Picture:
    """The network's input [C, H, W], of any range, scaled from black to white."""
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


Shape = dict[str, Any]  # a part of a drawing, as the template and page.js take it; `at` is where it is in space


def globe(
    spoken: str, dots: Iterable[Shape], arrows: Iterable[Shape], words: Iterable[Shape], axes: tuple[str, str, str]
) -> Shape:
    """A drawing in the unit ball, which has a radius of 100. What is nearer is drawn later.

    With three rings and the names of the axes, to the right, up and towards us.
    """
    turn = np.linspace(0, 2 * np.pi, 49)
    ring = np.stack([np.cos(turn), np.sin(turn), np.zeros_like(turn)])
    return {
        "spoken": spoken,
        "rings": [line(ring[list(order)].T) for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0))],
        "dots": list(dots),
        "arrows": list(arrows),
        "words": [*(mark("axis", 1.14 * np.eye(3)[i], word=axes[i]) for i in range(3)), *words],
        "yaw": YAW,
        "pitch": PITCH,
    }


def line(points: Array) -> Shape:
    """Through points [n, 3]; `points` is where it lies at first."""
    flat = project(points)
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in flat)
    return {"at": _text(points), "points": places, "behind": bool(flat[-1, 2] < 0)}


def mark(kind: str, point: Array, *, size: float = 0.0, word: str = "") -> Shape:
    """A dot of this radius, or a word, at one point [3]."""
    x, y, depth = map(float, project(point[None])[0])
    about = {"kind": kind, "size": size, "word": word}
    return {**about, "at": _text(point[None]), "x": round(x, 1), "y": round(y, 1), "behind": depth < 0}


def arrow(kind: str, tip: Array, title: str, strength: float = 1.0) -> Shape:
    """A vector from the middle to `tip` [3]; `strength`, from 0 to 1, is how strongly it is drawn.

    Its head is two strokes to each side, in two planes, to be one from anywhere.
    """
    length = float(np.linalg.norm(tip))
    along = tip / length if length > 1e-9 else np.eye(3)[0]
    helper = np.eye(3)[np.abs(along).argmin()]
    aside = np.cross(along, helper)
    aside /= np.linalg.norm(aside)
    over = np.cross(along, aside)
    back, wide = tip - min(0.11, 0.5 * length) * along, min(0.05, 0.25 * length)
    head = np.stack([point for side in (aside, -aside, over, -over) for point in (back + wide * side, tip)])
    lines = [line(np.stack([np.zeros(3), tip])), line(head)]
    return {"kind": kind, "lines": lines, "title": title, "strength": strength}


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
