"""From any picture to an image as a network's data set stores them: uint8 [C, H, W].

A photo has any size, any shape and any number of channels. What a network was trained on does not, so how the one
becomes the other is part of the network. It is whole-number arithmetic, defined to the last bit (docs/bundle.md):

1. Decode. The first frame, turned as its EXIF entry says. Grey of 16 bits, v, becomes (v + 128) // 257; of colours of
   16 bits the high byte is taken. Ink (CMYK) becomes light as Pillow has it.
2. Channels. Transparent pixels are laid on white: (a·v + 255·(255 - a) + 127) // 255. Colour becomes grey as
   (19595 R + 38470 G + 7471 B + 32768) >> 16; grey becomes colour by repeating it. Two channels are the two eyes of a
   stereo pair: they come from two channels, and are never guessed.
3. Size. "crop" takes the largest centred part that has the shape of the result, "letterbox" keeps all of the picture
   and fills with black, "stretch" changes its shape. What is left is resized as Pillow does by its BILINEAR filter,
   across and then down: from n to m pixels, pixel i has in the result's pixel j the weight
   w = max(0, 2·max(n, m) - |(2i + 1)·m - (2j + 1)·n|), as a share of 2²²: k = (2·w·2²² + Σw) // (2·Σw), and the
   result is (Σ k·v + 2²¹) >> 22, at most 255.

No torch here.
"""

from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from qcn.errors import MissingError, UsageError
from qcn.storage.files import open_plain

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

Fit = Literal["crop", "letterbox", "stretch"]
Pixels = NDArray[np.uint8]
PICTURES = (".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp")
MAX_SIDE = 16384  # of a picture; as in deploy/programs/image.h


def need_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise MissingError("reading pictures needs Pillow, which is not installed: pip install pillow") from error


def read_picture(path: Path) -> Pixels:
    """The pixels of a picture file, uint8 [H, W, 1 or 3], the right way up. UsageError says why it cannot be read."""
    try:
        with open_plain(path) as file:
            return decode_picture(file, str(path))
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
        raise UsageError(f"{path} cannot be read as a picture: {getattr(error, 'strerror', None) or error}") from error


def decode_picture(source: "IO[bytes] | Image", name: str) -> Pixels:
    """The same of a file's contents, or of a picture that Pillow has opened or made; errors call it by `name`."""
    need_pillow()
    from PIL import Image, UnidentifiedImageError

    try:
        if isinstance(source, Image.Image):
            return _decoded(_upright(_within_limits(source, name)))
        with Image.open(source) as opened:
            _within_limits(opened, name)
            return _decoded(_upright(opened))
    except UnidentifiedImageError:
        raise UsageError(f"{name} is not a picture that Pillow can read") from None
    except Image.DecompressionBombError:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise UsageError(f"{name} has more than {most:,} pixels, the most that can be read: make it smaller") from None
    # Pillow's decoders raise whatever a damaged file leads them to.
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, TypeError) as error:
        why = getattr(error, "strerror", None) or error  # Pillow's errors have none
        raise UsageError(f"{name} cannot be read as a picture: {why}") from error


def _within_limits(picture: "Image", name: str) -> "Image":
    """The picture itself, unless libqcn would refuse its size."""
    if max(picture.size) > MAX_SIDE:
        width, height = picture.size
        raise UsageError(f"{name} has {width}×{height} pixels; a picture has at most {MAX_SIDE}×{MAX_SIDE}")
    return picture


def _upright(opened: "Image") -> "Image":
    """Turned as its EXIF orientation says. `exif_transpose` turns by XMP as well, which libqcn does not look at."""
    from PIL import ExifTags, Image, ImageOps

    if opened.format == "PNG":
        _scale_transparency(opened)  # type: ignore[arg-type]  # it was opened from a file
    opened.load()  # PNG files may have their EXIF entry at the end
    if opened.format == "TIFF":  # whose own tags are those of EXIF; libqcn reads none
        return ImageOps.exif_transpose(opened)
    exif = Image.Exif()
    exif.load(opened.info.get("exif", b""))
    turns = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
    turn = dict(enumerate(turns, 2)).get(exif.get(ExifTags.Base.Orientation, 1))
    return opened.transpose(Image.Transpose[turn]) if turn else opened


def _scale_transparency(opened: "ImageFile") -> None:
    """Grey of 2 and 4 bits becomes 8 when it is loaded, but Pillow leaves the shade that is transparent as it was."""
    scale = {"L;2": 85, "L;4": 17}.get(str(opened.tile[0].args) if opened.tile else "")
    if scale and isinstance(shade := opened.info.get("transparency"), int):
        opened.info["transparency"] = scale * shade


def fit(pixels: Pixels, shape: tuple[int, int, int], how: Fit) -> Pixels:
    """Pixels [H, W] or [H, W, C], of any size, as an image of this `shape` [C, H, W]."""
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or 0 in pixels.shape:
        raise UsageError(f"a picture is uint8 [H, W] or [H, W, C], not {pixels.dtype} {list(pixels.shape)}")
    if max(pixels.shape[:2]) > MAX_SIDE:  # which libqcn refuses: whatever answers, the same pictures get an answer
        raise UsageError(f"a picture has at most {MAX_SIDE}×{MAX_SIDE} pixels, not {pixels.shape[1]}×{pixels.shape[0]}")
    channels, height, width = shape
    given = _channels(pixels if pixels.ndim == 3 else pixels[..., None], channels)
    if how == "crop":
        given = _cropped(given, height, width)
    inner = _letterbox(given.shape[0], given.shape[1], height, width) if how == "letterbox" else (height, width)
    resized = _resize(given, *inner)
    if inner == (height, width):
        return np.ascontiguousarray(resized.transpose(2, 0, 1))
    whole = np.zeros(shape, np.uint8)
    top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
    whole[:, top : top + inner[0], left : left + inner[1]] = resized.transpose(2, 0, 1)
    return whole


def _decoded(image: "Image") -> Pixels:
    """[H, W, 1 or 3] of a picture in any of Pillow's modes."""
    if image.mode.startswith("I"):  # 16 bit; "I" has room for 32, which no camera gives
        wide = np.asarray(image).astype(np.int64)
        if wide.min() < 0 or wide.max() > 65535:
            raise ValueError("a picture has values of at most 16 bits")
        return ((wide + 128) // 257).astype(np.uint8)[..., None]
    if image.mode == "F":
        raise ValueError("floating-point values have no range that is white")
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        return _channels(np.asarray(image.convert("RGBA")), 3)
    grey = image.mode in ("1", "L")
    plain = np.asarray(image.convert("L" if grey else "RGB"))
    return plain[..., None] if grey else plain


def _channels(pixels: Pixels, wanted: int) -> Pixels:
    """[H, W, C] with another number of channels, where there is one way to get it."""
    result = pixels.shape[2]
    if result == 4 and wanted in (1, 3):
        alpha = pixels[..., 3:].astype(np.int32)
        pixels, result = ((pixels[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8), 3
    if result == wanted:
        return pixels
    if (result, wanted) == (1, 3):
        return np.repeat(pixels, 3, axis=2)
    if (result, wanted) == (3, 1):
        grey = pixels @ np.array([19595, 38470, 7471], np.int32)
        return ((grey + 32768) >> 16).astype(np.uint8)[..., None]
    kinds = {1: "grey", 2: "stereo", 3: "colour", 4: "colour with transparency"}
    have, need = (kinds.get(count, f"of {count} channels") for count in (result, wanted))
    raise UsageError(f"the picture is {have}, but the network takes {need} ones, and one cannot be made from the other")


def _cropped(pixels: Pixels, height: int, width: int) -> Pixels:
    """The largest centred part of the shape height : width."""
    rows, columns = pixels.shape[:2]
    if columns * height > rows * width:
        kept = max(1, rows * width // height)
        left = (columns - kept) // 2
        return pixels[:, left : left + kept]
    kept = max(1, columns * height // width)
    top = (rows - kept) // 2
    return pixels[top : top + kept]


def _letterbox(rows: int, columns: int, height: int, width: int) -> tuple[int, int]:
    """The size of a picture that fits whole into height × width, its shape kept."""
    if columns * height > rows * width:
        return max(1, (2 * rows * width + columns) // (2 * columns)), width
    return height, max(1, (2 * columns * height + rows) // (2 * rows))


def _resize(pixels: Pixels, height: int, width: int) -> Pixels:
    """Across and then down, in this order: Pillow itself takes either, by what is faster."""
    if pixels.shape[:2] == (height, width):
        return pixels
    from PIL import Image

    planes: list[Any] = []
    colours = [pixels] if pixels.shape[2] == 3 else [pixels[..., i] for i in range(pixels.shape[2])]
    for colour in colours:
        across = Image.fromarray(colour).resize((width, pixels.shape[0]), Image.Resampling.BILINEAR)
        planes.append(np.asarray(across.resize((width, height), Image.Resampling.BILINEAR)))
    return planes[0] if pixels.shape[2] == 3 else np.stack(planes, axis=2)
