"""What `qcn.data.preprocess` defines, in numpy: the same bits for uint8 images, on machines without torch."""

import math

import numpy as np
from numpy.typing import NDArray

from qcn.data.spec import STD_FLOOR, Preprocessing
from qcn.errors import UsageError


def preprocess(images: NDArray[np.uint8], spec: Preprocessing) -> NDArray[np.float32]:
    """uint8 [B, C, H, W] to the float32 [B, C, h, w] that the network sees."""
    pixels, one = _resize(images, spec)
    if spec.crop:
        height, width = pixels.shape[-2:]
        if spec.crop > min(height, width):
            raise UsageError(f"cannot crop {spec.crop} pixels out of images of {height}×{width}")
        top, left = (height - spec.crop) // 2, (width - spec.crop) // 2
        pixels = pixels[..., top : top + spec.crop, left : left + spec.crop]
    return _standardise(pixels.astype(np.float64), float(one), spec)


def _resize(images: NDArray[np.uint8], spec: Preprocessing) -> tuple[NDArray[np.int64], int]:
    """Whole numbers, and what white is among them."""
    pixels, one = images.astype(np.int64), 255
    for axis in (-2, -1):
        size = images.shape[axis]
        side = spec.resize or size
        if size == side:
            continue
        common = math.gcd(2 * size, 2 * side, size - side)
        parts = 2 * side // common  # what a place is counted in: parts of a pixel
        one *= parts
        place = ((np.arange(side) * 2 + 1) * size - side).clip(0) // common
        lower, weight = place // parts, place % parts
        upper = (lower + 1).clip(max=size - 1)
        shape = (-1, 1) if axis == -2 else (-1,)
        below, above = (parts - weight).reshape(shape), weight.reshape(shape)
        pixels = np.take(pixels, lower, axis) * below + np.take(pixels, upper, axis) * above
    return pixels, one


def _standardise(pixels: NDArray[np.float64], one: float, spec: Preprocessing) -> NDArray[np.float32]:
    if spec.standardise == "image":
        count = pixels[0, 0].size
        deviation = pixels * count - pixels.sum((2, 3), keepdims=True)
        std = np.sqrt(np.square(deviation).sum((2, 3), keepdims=True) / count)  # of the deviations: `count` times that
        return (deviation / std.clip(count * one * STD_FLOOR)).astype(np.float32)
    if len(spec.mean) != pixels.shape[1]:
        raise UsageError(f"images have {pixels.shape[1]} channels, but the network was trained on {len(spec.mean)}")
    mean, std = (np.array(of, np.float64)[:, None, None] for of in (spec.mean, spec.std))
    return ((pixels / one - mean) / std).astype(np.float32)
