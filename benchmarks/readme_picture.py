"""Draw the picture of the README, docs/images/novel.png: views that a network learns from, and views it is asked about.

python benchmarks/readme_picture.py
"""

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from qcn.data.viewpoints import raytrace
from qcn.data.viewpoints.light import LIGHTS
from qcn.data.viewpoints.toys import CATEGORIES, toy
from qcn.plots import COLOURS

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "novel.png"
TOYS = (("animal", 0), ("truck", 3))
# As in the split `viewpoints-azimuth`: by heading, its azimuths in degrees, in two rows per toy.
BLOCKS = {"It learns from these views …": (300, 320, 340, 0, 20, 40), "… and is asked about these": range(60, 300, 20)}
TILE, GAP, BLOCK_GAP, HEADING = 128, 6, 34, 52


def main() -> None:
    columns = [len(azimuths) // 2 for azimuths in BLOCKS.values()]
    width = sum(columns) * (TILE + GAP) + BLOCK_GAP - GAP
    picture = Image.new("RGB", (width, HEADING + 2 * len(TOYS) * (TILE + GAP) - GAP), "white")
    draw = ImageDraw.Draw(picture)
    left = 0
    for (heading, azimuths), colour, across in zip(BLOCKS.items(), COLOURS, columns, strict=False):
        draw.text((left, 4), heading, fill=colour, font=ImageFont.load_default(30))
        for row, (category, instance) in enumerate(TOYS):
            shown = toy(CATEGORIES.index(category), instance, 0)
            angles, light = np.array(azimuths), LIGHTS[:1]
            views = raytrace.render(shown, np.array([35]), angles, light, size=TILE, device=torch.device("cpu"))
            for place, view in enumerate(views[0, :, 0, 0]):
                x = left + place % across * (TILE + GAP)
                y = HEADING + (2 * row + place // across) * (TILE + GAP)
                picture.paste(Image.fromarray(view), (x, y))
                draw.rectangle((x, y, x + TILE - 1, y + TILE - 1), outline=colour, width=3)
        left += across * (TILE + GAP) - GAP + BLOCK_GAP
    picture.quantize(128).save(PICTURE, optimize=True)
    print(PICTURE)


if __name__ == "__main__":
    main()
