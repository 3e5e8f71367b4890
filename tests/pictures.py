"""Folders of pictures to train on: discs, squares and stripes in many sizes, colours and formats; and one photo."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

CLASSES = ("disc", "square", "stripes")
SUFFIXES = (".png", ".jpg", ".bmp", ".webp", ".tiff")


def picture(kind: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """A figure in a random colour somewhere on a random background, 40 to 160 pixels a side."""
    height, width = (int(side) for side in rng.integers(40, 160, 2))
    y, x = np.mgrid[:height, :width]
    radius = 0.3 * min(height, width)
    middle = np.array([height, width]) / 2 + rng.uniform(-0.1, 0.1, 2) * (height, width)
    away = np.stack([np.abs(y - middle[0]), np.abs(x - middle[1])])
    figure = {
        "disc": np.hypot(*away) < radius,
        "square": away.max(0) < radius,
        "stripes": ((y + x) // max(4, int(radius / 3))) % 2 == 0,
    }[kind]
    colours = rng.integers(0, 256, (2, 3))
    while np.abs(colours[0] - colours[1]).sum() < 200:
        colours = rng.integers(0, 256, (2, 3))
    noise = rng.normal(0, 8, (height, width, 3))
    return np.clip(np.where(figure[..., None], *colours) + noise, 0, 255).astype(np.uint8)


def write_pictures(folder: Path, per_class: int, classes: tuple[str, ...] = CLASSES, seed: int = 0) -> Path:
    """A subfolder per class, files of every format in turn."""
    rng = np.random.default_rng(seed)
    for kind in classes:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for number in range(per_class):
            path = folder / kind / f"{number:03}{SUFFIXES[number % len(SUFFIXES)]}"
            Image.fromarray(picture(kind, rng)).save(path)
    return folder


def drawn(channels: int, height: int, width: int) -> NDArray[np.uint8]:
    """A photograph, nearly: smooth shading, edges, a texture and the noise of a sensor."""
    y, x = np.mgrid[:height, :width] / max(height, width, 2)
    generator = np.random.default_rng(height * 10007 + width)
    light = [120 + 90 * np.sin(5 * x + c) * np.cos(3 * y - c) for c in range(channels)]
    shape = 60 * ((x - 0.5) ** 2 + (y - 0.4) ** 2 < 0.08) - 50 * (abs(x - y) < 0.03) + 20 * np.sin(90 * x * y)
    pixels = np.stack(light) + shape + generator.normal(0, 4, (channels, height, width))
    return np.clip(pixels, 0, 255).astype(np.uint8)
