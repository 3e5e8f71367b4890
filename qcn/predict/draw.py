"""Answers drawn: a picture with its label, score, and a compass of its direction or an arrow of its pose; a sheet."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qcn.data.folder import plain
from qcn.direction import Direction
from qcn.predict.reading import Row
from qcn.runtime import Answer
from qcn.storage.files import atomic_write

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

SIDE = 320  # of a drawn picture, in pixels, at most
STRIP = 48  # below it, for the text
INK, FAINT, PAPER, BAR = (28, 30, 34), (91, 97, 105), (255, 255, 255), (42, 111, 219)
SECTOR = (205, 221, 247)
AXES = {"x": (205, 62, 62), "y": (52, 140, 72), "z": (42, 111, 219)}
TURN = np.array([[0.87, -0.5, 0.0], [0.25, 0.43, 0.87]])  # of space onto paper: seen from above, a little from a side
COLUMNS = 6
SHEET = 60  # pictures on a sheet, at most
HALF = (SIDE // 2, (SIDE + STRIP) // 2)


def drawn(pixels: NDArray[np.uint8], answer: Answer) -> "Image":
    """The picture with its answer."""
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels).convert("RGB")
    picture = scaled(picture, SIDE)
    card = Image.new("RGB", (SIDE, SIDE + STRIP), PAPER)
    card.paste(picture, ((SIDE - picture.width) // 2, (SIDE - picture.height) // 2))
    draw = ImageDraw.Draw(card)
    large, small = ImageFont.load_default(18), ImageFont.load_default(13)
    room = SIDE - 16 - (64 if answer.pose is not None else 0)
    draw.text((8, SIDE + 4), shortened(draw, answer.words(), large, room), INK, large)
    direction = answer.direction
    direction_words = f", {direction.words()}" if direction else ""
    draw.text((8, SIDE + 26), f"{100 * answer.probability:.1f} %{direction_words}", FAINT, small)
    draw.rectangle((0, SIDE + STRIP - 4, round(SIDE * answer.probability), SIDE + STRIP), BAR)
    if direction:
        _compass(draw, direction, (SIDE - 32, SIDE - 16))
    elif answer.pose is not None and answer.directions is None:
        _arrow(draw, answer.pose[answer.index], (SIDE - 32, SIDE - 10))
    return card


def scaled(picture: "Image", side: int) -> "Image":
    """Scale a picture to fit a square of this side; pixels of small ones stay squares."""
    from PIL import Image

    scale = side / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.NEAREST if scale > 2 else Image.Resampling.LANCZOS)


class Sheet:
    """A folder of drawn pictures, and a sheet of the first ones in it, at half their size."""

    def __init__(self, folder: Path) -> None:
        self.path, self._count = folder / "sheet.png", 0
        self._small: list[Image] = []

    def add(self, row: Row, number: int) -> None:
        """The drawing of an answered picture; no two have the same name."""
        from PIL import Image

        if row.pixels is None or row.answer is None:
            return
        card = drawn(row.pixels, row.answer)
        save(card, self.path.with_name(f"{number:04}-{plain(Path(row.file).stem, 'picture')}.png"))
        self._count += 1
        if len(self._small) < SHEET:
            self._small.append(card.resize(HALF, Image.Resampling.LANCZOS))

    def words(self) -> str:
        """Its path, and how many pictures it leaves out."""
        return f"{self.path}" + f" (the first {SHEET} of {self._count:,})" * (self._count > SHEET)

    def write(self) -> bool:
        """Whether there is anything on it."""
        from PIL import Image

        if not self._small:
            return False
        width, height = HALF
        columns = min(COLUMNS, len(self._small))
        rows = -(-len(self._small) // columns)
        sheet = Image.new("RGB", (columns * (width + 8) + 8, rows * (height + 8) + 8), (240, 241, 243))
        for place, small in enumerate(self._small):
            row, column = divmod(place, columns)
            sheet.paste(small, (8 + column * (width + 8), 8 + row * (height + 8)))
        save(sheet, self.path)
        return True


def save(image: "Image", path: Path) -> None:
    with atomic_write(path) as aside:
        image.save(aside, format="PNG")


def shortened(draw: "ImageDraw", text: str, font: object, room: int) -> str:
    """The text, or as much of its beginning as there is room for."""
    if draw.textlength(text, font) <= room:  # type: ignore[arg-type]
        return text
    while text and draw.textlength(f"{text}…", font) > room:  # type: ignore[arg-type]
        text = text[:-1]
    return f"{text}…"


def _compass(draw: "ImageDraw", direction: Direction, middle: tuple[int, int]) -> None:
    """The object from above, its front at the top, the camera as a dot on the rim, and the spread as a sector."""
    x, y = middle
    radius = 26
    rim = (x - radius, y - radius, x + radius, y + radius)
    towards = -90 - direction.azimuth  # in degrees clockwise from the right, as Pillow counts
    draw.ellipse((x - radius - 4, y - radius - 4, x + radius + 4, y + radius + 4), PAPER, FAINT)
    draw.pieslice(rim, towards - direction.spread, towards + direction.spread, SECTOR)
    draw.ellipse(rim, None, FAINT)
    draw.polygon([(x, y - 8), (x - 5, y + 6), (x + 5, y + 6)], FAINT)  # points to its front
    right, down = (radius * f(np.radians(towards)) for f in (np.cos, np.sin))
    draw.line((x, y, x + right, y + down), BAR, 2)
    draw.ellipse((x + right - 4, y + down - 4, x + right + 4, y + down + 4), BAR)


def _arrow(draw: "ImageDraw", pose: NDArray[np.float32], middle: tuple[int, int]) -> None:
    """A pose as an arrow in a small disc, with the three axes that it is measured by."""
    x, y = middle
    radius = 26
    draw.ellipse((x - radius - 4, y - radius - 4, x + radius + 4, y + radius + 4), PAPER, FAINT)
    for axis, colour in zip(np.eye(3), AXES.values(), strict=True):
        right, up = TURN @ axis * radius * 0.8
        draw.line((x, y, x + right, y - up), colour, 1)
    length = float(np.linalg.norm(pose))
    if not np.isfinite(length) or length == 0:
        return
    right, up = TURN @ (pose / length) * radius
    tip = np.array([x + right, y - up])
    draw.line((x, y, *tip), INK, 3)
    away = np.array([right, -up]) / max(1e-6, float(np.hypot(right, up)))
    aside = np.array([-away[1], away[0]])
    draw.polygon([tuple(tip + 3 * away), tuple(tip - 7 * away + 4 * aside), tuple(tip - 7 * away - 4 * aside)], INK)
