"""From a stored uint8 image to what the network sees, and the random variations of it that training draws.

Both run on the tensor, on whatever device it lives.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from qcn.data.spec import STD_FLOOR, Augmentation, Preprocessing
from qcn.errors import UsageError


def preprocess(images: Tensor, spec: Preprocessing) -> Tensor:
    """uint8 [B, C, H, W] to the float32 [B, C, h, w] that the network sees."""
    pixels = _resize(images, spec)
    if spec.crop:
        margins = (pixels.shape[-2] - spec.crop) // 2, (pixels.shape[-1] - spec.crop) // 2
        pixels = pixels[..., margins[0] : margins[0] + spec.crop, margins[1] : margins[1] + spec.crop]
    return _standardise(pixels, spec)


def augmented(images: Tensor, spec: Preprocessing, augmentation: Augmentation, draws: Tensor) -> Tensor:
    """Like `preprocess`, varied by `draws`: uniform numbers in [0, 1), [B, 3] for row, column and mirroring.

    The draws come from the caller, so that they do not depend on the device or on how a batch is shared out.
    """
    pixels = _resize(images, spec)
    pixels = F.pad(pixels, [augmentation.shift] * 4)
    height, width = spec.output_size(*images.shape[-2:])
    slack_y, slack_x = pixels.shape[-2] - height, pixels.shape[-1] - width
    if augmentation.random_crop or augmentation.shift:
        top = (draws[:, 0] * (slack_y + 1)).long()
        left = (draws[:, 1] * (slack_x + 1)).long()
    else:
        top = torch.full_like(draws[:, 0], slack_y // 2, dtype=torch.long)
        left = torch.full_like(draws[:, 1], slack_x // 2, dtype=torch.long)
    columns = torch.arange(width, device=images.device).expand(len(images), width)
    if augmentation.flip:
        columns = torch.where(draws[:, 2:] < 0.5, columns.flip(1), columns)
    rows = top[:, None] + torch.arange(height, device=images.device)  # [B, h]
    columns = left[:, None] + columns  # [B, w]
    batch = torch.arange(len(images), device=images.device)
    # Two advanced indices around a slice put the channel last: [B, h, w, C].
    pixels = pixels[batch[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    return _standardise(pixels.contiguous(), spec)


def _resize(images: Tensor, spec: Preprocessing) -> Tensor:
    pixels = images.float() / 255
    if spec.resize:
        pixels = F.interpolate(pixels, size=(spec.resize, spec.resize), mode="bilinear", align_corners=False)
    if spec.crop and spec.crop > min(pixels.shape[-2:]):
        raise UsageError(f"cannot crop {spec.crop} pixels out of images of {pixels.shape[-2]}×{pixels.shape[-1]}")
    return pixels


def _standardise(pixels: Tensor, spec: Preprocessing) -> Tensor:
    if spec.standardise == "image":
        std, mean = torch.std_mean(pixels, dim=(2, 3), keepdim=True, correction=0)
        return (pixels - mean) / std.clamp_min(STD_FLOOR)
    if len(spec.mean) != pixels.shape[1]:
        raise UsageError(f"images have {pixels.shape[1]} channels, but the network was trained on {len(spec.mean)}")
    mean = pixels.new_tensor(spec.mean)[:, None, None]
    std = pixels.new_tensor(spec.std)[:, None, None]
    return (pixels - mean) / std
