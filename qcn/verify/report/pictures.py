"""Images as PNG, inside a page: no file beside it, and no library but zlib."""

import base64
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

_GREY, _RGB = 0, 2  # colour types of PNG
GAP = 2  # columns between channels that are shown side by side


def data_uri(image: NDArray[np.uint8]) -> str:
    """uint8 [C, H, W] as a `data:` address: three channels in colour, any other number in grey, side by side."""
    return "data:image/png;base64," + base64.b64encode(png(image)).decode("ascii")


def png(image: NDArray[np.uint8]) -> bytes:
    """uint8 [C, H, W] as the bytes of a PNG file."""
    if image.dtype != np.uint8 or image.ndim != 3 or 0 in image.shape:
        raise ValueError(f"a picture is uint8 [C, H, W], not {image.dtype} {list(image.shape)}")
    channels, height, _ = image.shape
    if channels == 3:
        pixels: NDArray[Any] = image.transpose(1, 2, 0)
    else:
        gap = np.full((height, GAP), 255, np.uint8)
        parts = [part for channel in image for part in (gap, channel)][1:]
        pixels = np.concatenate(parts, axis=1)[:, :, None]
    width = pixels.shape[1]
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)  # 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, _RGB if channels == 3 else _GREY, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
