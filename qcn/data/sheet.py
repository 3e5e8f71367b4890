"""A contact sheet: a PNG that shows at a glance what a data set holds and whether it was read the right way round.

One row per class. Where viewpoints are known, a row goes around one object, azimuth by azimuth, with all else as equal
as the images allow. Elsewhere it shows images spread evenly over the class.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qcn.data.imageset import Angles, ImageSet, Ints, Views
from qcn.errors import UsageError
from qcn.storage.files import atomic_write

if TYPE_CHECKING:
    from PIL.Image import Image

CELL = 64  # side of an image on the sheet, in pixels, near enough: small images are enlarged by whole factors only
GAP, MARGIN = 4, 24
COLUMNS, AZIMUTHS = 10, 18  # images per row; with viewpoints, at most so many, one per azimuth
PAPER, INK, FAINT, EMPTY = (255, 255, 255), (28, 30, 34), (91, 97, 105), (240, 241, 243)
Rows = list[list[int | None]]  # by class, by column: which image, or None for an empty cell


def contact_sheet(images: ImageSet, path: Path, title: str) -> None:
    """Write the sheet of `images` to `path`, a PNG. Of a stereo pair it shows the left eye."""
    if not len(images):
        raise UsageError("no images to show on a contact sheet")
    if images.images.shape[1] not in (1, 2, 3):
        raise UsageError(f"a contact sheet shows images of 1, 2 or 3 channels, not {images.images.shape[1]}")
    if images.views is None or not np.isfinite(images.views.azimuth).any():
        rows, headings = _spread(images), list[str]()
    else:
        rows, headings = _around(images, images.views)
    sheet = _draw(images, rows, headings, title)
    with atomic_write(path) as aside:
        sheet.save(aside, format="PNG", optimize=True)


def _spread(images: ImageSet) -> Rows:
    """For each class, images at even distances through it."""
    rows: Rows = []
    for label in range(len(images.classes)):
        members = np.flatnonzero(images.labels == label)
        count = min(COLUMNS, len(members))
        shown = members[np.arange(count) * len(members) // max(count, 1)]
        rows.append([*map(int, shown), *[None] * (COLUMNS - count)])
    return rows


def _around(images: ImageSet, views: Views) -> tuple[Rows, list[str]]:
    """For each class, one object at each azimuth (or near AZIMUTHS of them, evenly), and the azimuths as headings."""
    azimuths: NDArray[Any] = np.unique(views.azimuth[np.isfinite(views.azimuth)])
    reach = 0.0
    if len(azimuths) > AZIMUTHS:
        azimuths, reach = azimuths[np.arange(AZIMUTHS) * len(azimuths) // AZIMUTHS], 180 / AZIMUTHS
    members = [np.flatnonzero(images.labels == label) for label in range(len(images.classes))]
    rows = [_walk(every, views, azimuths, reach) for every in members]
    return rows, [f"{azimuth:g}°" for azimuth in azimuths]


def _walk(members: Ints, views: Views, azimuths: Angles, reach: float) -> list[int | None]:
    """The images of a class that are nearest to its first one in everything but the azimuth, one for each azimuth.

    Where no image has the azimuth, it may be up to `reach` degrees off.
    """
    row: list[int | None] = []
    for azimuth in azimuths:
        apart = np.abs((views.azimuth[members] - azimuth + 180) % 360 - 180)
        here, apart = members[apart <= reach], apart[apart <= reach]
        if not len(here):
            row.append(None)
            continue
        first, there = members[0], views[here]
        # Another object changes the picture most, another light some, five degrees of elevation least.
        unlike = 1000 * (there.instance != views.instance[first]) + 20 * (there.lighting != views.lighting[first])
        unlike = unlike + np.abs(there.elevation - views.elevation[first]) + apart
        row.append(int(here[np.argmin(unlike)]))
    return row


def _picture(pixels: NDArray[np.uint8]) -> "Image":
    """One image [C, H, W] at the size it has on the sheet."""
    from PIL import Image

    shown = pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels[0]
    picture = Image.fromarray(np.ascontiguousarray(shown))
    height = pixels.shape[1]
    if height > CELL:
        return picture.resize((round(picture.width * CELL / height), CELL), Image.Resampling.LANCZOS)
    factor = max(1, round(CELL / height))
    return picture.resize((picture.width * factor, height * factor), Image.Resampling.NEAREST)


def _draw(images: ImageSet, rows: Rows, headings: list[str], title: str) -> "Image":
    from PIL import Image, ImageDraw, ImageFont

    large, plain, small = (ImageFont.load_default(size) for size in (20, 15, 12))
    width, height = _picture(images.images[0]).size
    counts = [f"{np.count_nonzero(images.labels == label):,}" for label in range(len(images.classes))]
    ruler = ImageDraw.Draw(Image.new("L", (1, 1)))
    axis = [("azimuth", small)] * bool(headings)
    labels = [*((name, plain) for name in images.classes), *((count, small) for count in counts), *axis]
    left = MARGIN + int(max(ruler.textlength(text, font) for text, font in labels)) + 16
    top = MARGIN + 34 + (20 if headings else 0)
    columns = max(map(len, rows))
    size = (left + columns * (width + GAP) - GAP + MARGIN, top + len(rows) * (height + GAP) - GAP + MARGIN)
    sheet = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, MARGIN - 4), title, INK, large)
    channels, *pixels = images.images.shape[1:]
    kind = {1: "grey", 2: "stereo pairs", 3: "colour"}[channels]
    facts = f"{len(images):,} images, {kind}, {pixels[1]} x {pixels[0]} pixels"  # Pillow's font has no ×
    draw.text((MARGIN + draw.textlength(title, large) + 14, MARGIN + 17), facts, FAINT, small, anchor="ls")
    for text, font in axis:
        draw.text((left - 12, top - 6), text, FAINT, font, anchor="rs")
    for column, heading in enumerate(headings):
        draw.text((left + column * (width + GAP) + width // 2, top - 6), heading, FAINT, small, anchor="ms")
    for number, (name, count, row) in enumerate(zip(images.classes, counts, rows, strict=True)):
        y = top + number * (height + GAP)
        draw.text((left - 12, y + height // 2), name, INK, plain, anchor="rs")
        draw.text((left - 12, y + height // 2 + 6), count, FAINT, small, anchor="rt")
        for column, index in enumerate(row):
            x = left + column * (width + GAP)
            if index is None:
                draw.rectangle((x, y, x + width - 1, y + height - 1), EMPTY)
            else:
                sheet.paste(_picture(images.images[index]), (x, y))
    return sheet
