"""Made-up pictures of no class, for `qcn.networks.confidence.fit_known`: what a network should not claim to know.

A run has only pictures of its own classes. These are of other things, and cost neither a download nor a minute: noise,
geometric patterns, rendered toys, and the run's own pictures with their blocks jumbled, which have the right colours
and textures and show no object.
"""

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from qcn.data.viewpoints.dataset import Variant, render
from qcn.data.viewpoints.toys import CATEGORIES

Pixels = NDArray[np.uint8]
Reals = NDArray[np.float64]
MOST = 256  # pictures of a kind
BLOCKS = 4  # per side of a jumbled picture
TOYS_SEED = 2  # other toys than those of the data sets


def unlike_pictures(images: Pixels, classes: tuple[str, ...], seed: int = 0) -> dict[str, Pixels]:
    """By kind, uint8 [N, C, H, W], as large as `images` [M, C, H, W] and with as many channels.

    At most two per image, and no more than MOST. Toys are left out where they are what the network should know.
    """
    random, count = np.random.default_rng(seed), min(MOST, 2 * len(images))
    shape = images.shape[1:]
    result = {
        "noise": np.stack([_noise(shape, random) for _ in range(count)]),
        "patterns": np.stack([_pattern(shape, random) for _ in range(count)]),
        "jumbled": np.stack([_jumbled(images[random.integers(len(images))], random) for _ in range(count)]),
    }
    if not set(CATEGORIES) <= set(classes):
        result["toys"] = _toys(shape, count, random)
    return result


def _coloured(map_: Reals, shape: tuple[int, ...], random: Generator) -> Pixels:
    """A map [H, W] of values from 0 to 1 as a picture that goes from one random colour to another; half are grey."""
    channels = shape[0] if random.random() < 0.5 else 1
    dark, light = random.uniform(0, 255, (2, channels, 1, 1))
    mixed = dark + (light - dark) * map_
    return np.broadcast_to(mixed, shape).round().astype(np.uint8)


def _noise(shape: tuple[int, ...], random: Generator) -> Pixels:
    """Grains of 1 to 8 pixels, hard or soft, of one tint or of any colour."""
    _, height, width = shape
    grain = int(random.choice([1, 2, 4, 8]))
    cells = -(-height // grain) + 2, -(-width // grain) + 2

    def grains() -> Reals:
        values = random.random(cells)
        if random.random() < 0.5:
            return values.repeat(grain, 0).repeat(grain, 1)[:height, :width]
        return _between(values, np.arange(height) / grain, np.arange(width) / grain)

    if random.random() < 0.5:
        return _coloured(grains(), shape, random)
    return np.stack([255 * grains() for _ in range(shape[0])]).round().astype(np.uint8)


def _between(values: Reals, rows: Reals, columns: Reals) -> Reals:
    """`values` of a grid, bilinearly at these rows and columns."""
    top, left = rows.astype(int), columns.astype(int)
    down, right = (rows - top)[:, None], columns - left
    upper = values[top][:, left] * (1 - right) + values[top][:, left + 1] * right
    lower = values[top + 1][:, left] * (1 - right) + values[top + 1][:, left + 1] * right
    return upper * (1 - down) + lower * down


def _pattern(shape: tuple[int, ...], random: Generator) -> Pixels:
    """Stripes, checks, a gradient, blobs or a plain surface, each turned, scaled and coloured at random."""
    _, height, width = shape
    y, x = np.mgrid[:height, :width] / max(height, width)
    angle, phase = random.uniform(0, 2 * np.pi, 2)
    along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    waves = random.uniform(1, 8)

    def blobs() -> Reals:
        centres, sizes = random.random((random.integers(1, 7), 2)), random.uniform(0.05, 0.3, 7)
        near = [np.hypot(x - left, y - top) < size for (left, top), size in zip(centres, sizes, strict=False)]
        return np.any(near, axis=0).astype(np.float64)

    kinds: tuple[Callable[[], Reals], ...] = (
        lambda: 0.5 + 0.5 * np.sin(2 * np.pi * waves * along + phase),
        lambda: (np.sin(2 * np.pi * waves * along + phase) > 0).astype(np.float64),
        lambda: (np.sin(2 * np.pi * waves * along) * np.sin(2 * np.pi * waves * across) > 0).astype(np.float64),
        lambda: (along - along.min()) / max(np.ptp(along), 1e-9),
        blobs,
        lambda: np.zeros((height, width)),
    )
    return _coloured(kinds[random.integers(len(kinds))](), shape, random)


def _jumbled(image: Pixels, random: Generator) -> Pixels:
    """The blocks of an image [C, H, W] in another order, each turned over at random. A rest at the edges stays."""
    _, height, width = image.shape
    rows, columns = max(1, height // BLOCKS), max(1, width // BLOCKS)
    corners = [
        (top, left) for top in range(0, height - rows + 1, rows) for left in range(0, width - columns + 1, columns)
    ]
    result = image.copy()
    for (top, left), place in zip(corners, random.permutation(len(corners)), strict=True):
        from_top, from_left = corners[place]
        block = image[:, from_top : from_top + rows, from_left : from_left + columns]
        flipped = block[:, :: random.choice([-1, 1]), :: random.choice([-1, 1])]
        result[:, top : top + rows, left : left + columns] = flipped
    return result


def _toys(shape: tuple[int, ...], count: int, random: Generator) -> Pixels:
    """Toys of `viewpoints`, of both eyes in turn where there are two channels, else tinted."""
    channels, height, width = shape
    views = {"elevations": (30, 60), "azimuths": (40, 160, 280), "lightings": (0, 3)}
    each = len(CATEGORIES) * 12  # pictures of an instance of each
    variant = Variant(size=max(height, width), seed=TOYS_SEED, instances=tuple(range(-(-count // each))), **views)
    pairs = render(variant)
    pairs = pairs[np.linspace(0, len(pairs) - 1, count).astype(int), :, :height, :width]
    if channels == 2:
        return pairs
    return np.stack([_coloured(pair[0] / 255, shape, random) for pair in pairs])
