"""The worst mistakes on one sheet: the wrong answers that a network was most certain of."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qcn.data.imageset import ImageSet
from qcn.evaluate.rates import Answers
from qcn.predict.draw import BAR, FAINT, INK, PAPER, scaled, shortened
from qcn.terminal.text import counted, readable

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

SHOWN, COLUMNS = 24, 6
CELL, STRIP, GAP, MARGIN, HEADING = 160, 64, 12, 20, 62
BACKGROUND, WRONG = (240, 241, 243), (190, 50, 50)


@dataclass(frozen=True)
class Mistake:
    """A wrong answer: the image [C, H, W], both classes, and how certain the answer was.

    `place` says where the image is found: its file, or its split and number.
    """

    image: NDArray[np.uint8]
    place: str
    label: str
    predicted: str
    probability: float


def worst(answered: dict[str, tuple[ImageSet, Answers]], count: int = SHOWN) -> list[Mistake]:
    """The most certain wrong answers over all splits, worst first; at most `count`."""
    result = []
    for split, (images, answers) in answered.items():
        predicted = answers.predicted
        sure = answers.probability[np.arange(len(images)), predicted]
        wrong = np.flatnonzero(predicted != images.labels)
        for number in wrong[np.argsort(-sure[wrong], kind="stable")[:count]]:
            label, guess = (images.classes[index] for index in (images.labels[number], predicted[number]))
            place = images.name(number) if images.files else f"{split} {number}"
            result.append(Mistake(images.images[number], place, label, guess, float(sure[number])))
    return sorted(result, key=lambda mistake: -mistake.probability)[:count]


def sheet(mistakes: list[Mistake], total: int, title: str) -> "Image":
    """All of them, worst first. `total` is how many there are altogether."""
    from PIL import Image, ImageDraw, ImageFont

    columns, rows = min(COLUMNS, len(mistakes)), -(-len(mistakes) // COLUMNS)
    columns = max(columns, 3)  # room for the heading
    width = 2 * MARGIN + columns * (CELL + GAP) - GAP
    page = Image.new("RGB", (width, HEADING + MARGIN + rows * (CELL + STRIP + GAP) - GAP), BACKGROUND)
    draw = ImageDraw.Draw(page)
    large, small = ImageFont.load_default(20), ImageFont.load_default(13)
    draw.text((MARGIN, 10), shortened(draw, readable(title), large, width - 2 * MARGIN), INK, large)
    which = "all of them" if len(mistakes) == total else f"the {len(mistakes)} with the highest probability"
    said = f"{counted(total, 'wrong answer')}, {which}. Of each: true class, answer, probability, and file or number"
    draw.text((MARGIN, 35), shortened(draw, said, small, width - 2 * MARGIN), FAINT, small)
    for place, mistake in enumerate(mistakes):
        row, column = divmod(place, COLUMNS)
        page.paste(_card(mistake), (MARGIN + column * (CELL + GAP), HEADING + row * (CELL + STRIP + GAP)))
    return page


def _card(mistake: Mistake) -> "Image":
    """The image, and below it: true class, an arrow to the answer, its probability, and where the image is found."""
    from PIL import Image, ImageDraw, ImageFont

    card = Image.new("RGB", (CELL, CELL + STRIP), PAPER)
    picture = _picture(mistake.image)
    card.paste(picture, ((CELL - picture.width) // 2, (CELL - picture.height) // 2))
    draw = ImageDraw.Draw(card)
    plain, small = ImageFont.load_default(15), ImageFont.load_default(12)
    draw.text((7, CELL + 3), shortened(draw, readable(mistake.label), plain, CELL - 14), INK, plain)
    sure = f"{100 * mistake.probability:.1f} %"
    room = CELL - 14 - 20 - 8 - round(draw.textlength(sure, small))
    _arrow(draw, 7, CELL + 31)
    draw.text((27, CELL + 21), shortened(draw, readable(mistake.predicted), plain, room), WRONG, plain)
    draw.text((CELL - 7, CELL + 36), sure, INK, small, anchor="rs")
    draw.text((7, CELL + 41), _end_of(draw, readable(mistake.place), small, CELL - 14), FAINT, small)
    draw.rectangle((0, CELL + STRIP - 4, round((CELL - 1) * mistake.probability), CELL + STRIP - 1), BAR)
    return card


def _end_of(draw: "ImageDraw", place: str, font: object, room: int) -> str:
    """The place, or as much of its end as there is room for: the end of a path says which file it is."""
    if draw.textlength(place, font) <= room:  # type: ignore[arg-type]
        return place
    while place and draw.textlength(f"…{place}", font) > room:  # type: ignore[arg-type]
        place = place[1:]
    return f"…{place}"


def _picture(pixels: NDArray[np.uint8]) -> "Image":
    """An image [C, H, W] as large as there is room for; of a stereo pair the left eye."""
    from PIL import Image

    shown = pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels[0]
    return scaled(Image.fromarray(np.ascontiguousarray(shown)).convert("RGB"), CELL)


def _arrow(draw: "ImageDraw", x: int, y: int) -> None:
    """The font that comes with Pillow has no arrow."""
    draw.line((x, y, x + 12, y), WRONG, 2)
    draw.polygon([(x + 9, y - 4), (x + 15, y), (x + 9, y + 4)], WRONG)
