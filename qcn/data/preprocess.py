"""From a stored image to what the network sees, on the tensor's own device.

`qcn.data.augment` varies it for training. What a network sees is part of it, and libqcn
(deploy/src/preprocess.cpp) must repeat it, so the arithmetic is defined to the last bit:

1. Resize. Pixel i of `side` lies at x = ((2i + 1)·size - side) / 2·side among `size` pixels, at least at 0. With the
   fraction reduced, x = (d·n + w) / d, it becomes (d - w)·pixel[n] + w·pixel[n + 1], the last pixel repeating: d times
   the interpolated value; downwards first, then across. Nothing is smoothed before: an image made much smaller is
   sampled.
2. Crop: (size - crop) // 2 pixels go above and to the left.
3. Standardise, q being the pixel so far and `one` what white has become. By data set: (q / one - mean) / std. By image,
   with N pixels per channel and S = Σq: D = N·q - S, D / max(√(ΣD² / N), N·one·STD_FLOOR).

All in float64, rounded to float32 at the end. For uint8 images all numbers before the first division or root are whole,
and exact (for sides up to 1700; only ΣD² may be rounded), so they are the same in any order of summation, fused or not,
on any machine. Float images, 0 to 1, follow the same steps, and may differ in a last bit.
"""

import math

import torch
from torch import Tensor

from qcn.data.spec import STD_FLOOR, Preprocessing
from qcn.errors import UsageError


def preprocess(images: Tensor, spec: Preprocessing) -> Tensor:
    """uint8 [B, C, H, W], or floats from 0 to 1, to the float32 [B, C, h, w] that the network sees."""
    pixels, one = resize(images, spec)
    if spec.crop:
        margins = (pixels.shape[-2] - spec.crop) // 2, (pixels.shape[-1] - spec.crop) // 2
        pixels = pixels[..., margins[0] : margins[0] + spec.crop, margins[1] : margins[1] + spec.crop]
    return standardise(pixels, one, spec)


def resize(images: Tensor, spec: Preprocessing) -> tuple[Tensor, float]:
    """Pixels, whole numbers if the images' are, in a type that holds them exactly; and what white is among them."""
    pixels, one = images, 1.0 if images.is_floating_point() else 255.0
    for dim in (-2, -1):
        size, side = images.shape[dim], spec.resize or images.shape[dim]
        if size == side:
            continue
        common = math.gcd(2 * size, 2 * side, size - side)
        parts = 2 * side // common  # what a place is counted in: parts of a pixel
        one *= parts
        place = torch.arange(size, 2 * size * side, 2 * size, device=images.device)
        place = ((place - side) // common).clamp_min(0)
        weight = (place % parts).to(torch.float64 if images.is_floating_point() or one >= 2**24 else torch.float32)
        lower: slice | Tensor = place // parts
        upper: slice | Tensor = (place // parts + 1).clamp_max(size - 1)
        step, rest = divmod(size, side)
        if not rest:  # the same pixels, and seven times as fast
            lower, upper = slice((step - 1) // 2, None, step), slice((step - 1) // 2 + 1, None, step)
        if dim == -2:
            pixels = pixels[..., lower, :] * (parts - weight)[:, None] + pixels[..., upper, :] * weight[:, None]
        else:
            pixels = pixels[..., lower] * (parts - weight) + pixels[..., upper] * weight
    if spec.crop and spec.crop > min(pixels.shape[-2:]):
        raise UsageError(f"cannot crop {spec.crop} pixels out of images of {pixels.shape[-2]}×{pixels.shape[-1]}")
    return pixels, one


def standardise(pixels: Tensor, one: float, spec: Preprocessing) -> Tensor:
    if spec.standardise == "image":
        count = pixels[0, 0].numel()
        pixels = pixels.double()
        deviation = pixels * count - pixels.sum((2, 3), keepdim=True)
        std = (deviation.square().sum((2, 3), keepdim=True) / count).sqrt()  # of the deviations: `count` times that
        return (deviation / std.clamp_min(count * one * STD_FLOOR)).float()
    if len(spec.mean) != pixels.shape[1]:
        raise UsageError(f"images have {pixels.shape[1]} channels, but the network was trained on {len(spec.mean)}")
    # Tensors, since on a GPU torch divides by a number by multiplying with its rounded inverse.
    white = pixels.new_full((1, 1, 1), one, dtype=torch.float64)
    mean, std = (torch.stack([white.new_full((1, 1), each) for each in of]) for of in (spec.mean, spec.std))
    return ((pixels / white - mean) / std).float()
