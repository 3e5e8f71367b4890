"""The image that is explained: as it was given, brought to the network's size, and as the network sees it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qcn.data.fit import fit, read_picture
from qcn.data.numpy_preprocess import preprocess
from qcn.errors import UsageError
from qcn.explain.source import Source

GIVEN = 360  # pixels: the longer side of the given picture on the page


@dataclass(frozen=True)
class Picture:
    """`given` uint8 [C, H, W] is for looking at; `input` float32 [C, H, W] is what the network sees.

    `size` is width and height of the picture before it was made smaller for the page.
    """

    name: str
    size: tuple[int, int]
    given: NDArray[np.uint8]
    input: NDArray[np.float32]
    label: str | None = None  # the right class, where it is known


def from_file(path: Path, source: Source) -> Picture:
    """Any picture that Pillow opens, upright by its EXIF orientation, brought to the network's size."""
    from PIL import Image

    channels = source.image[0]
    if channels not in (1, 3):
        golden = "--golden shows one of the bundle's own images"
        more = golden if source.bundle else f"`qcn export` makes a bundle of a run, and {golden}"
        raise UsageError(f"{source.name} takes images of {channels} channels (stereo); a picture has 1 or 3; {more}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name one picture")
    pixels = read_picture(path)
    seen = preprocess(fit(pixels, source.image, source.preprocessing.fit)[None], source.preprocessing)[0]
    shown = Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels).convert("RGB")
    shown.thumbnail((GIVEN, GIVEN))
    return Picture(path.name, pixels.shape[1::-1], np.asarray(shown).transpose(2, 0, 1), seen)


def from_golden(number: int, source: Source) -> Picture:
    """The `number`-th of the bundle's golden images, from 1."""
    if source.bundle is None:
        raise UsageError(
            "--golden is for bundles, but this is a training run, which has no golden images; name a picture"
        )
    golden = source.bundle.golden()
    if not 1 <= number <= len(golden.rows):
        raise UsageError(f"--golden must be from 1 to {len(golden.rows)}, not {number}")
    row = number - 1
    image, label = golden.image[row], int(golden.label[row])
    right = source.classes[label] if label >= 0 else None
    return Picture(golden.rows[row], (image.shape[2], image.shape[1]), image, golden.input[row], right)
