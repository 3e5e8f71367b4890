"""The random variations of training images.

Every image is varied by a row of `draws`, uniform numbers in [0, 1). They come from the caller, so that they do not
depend on the device or on how a batch is shared out. All runs on the tensor's own device.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from qcn.data.preprocess import resize, standardise
from qcn.data.spec import BENDS, Augmentation, Preprocessing

STEREO = 2  # channels of a stereo pair: the left eye's picture and the right eye's


def augmented(images: Tensor, spec: Preprocessing, augmentation: Augmentation, draws: Tensor) -> Tensor:
    """Like `qcn.data.preprocess.preprocess`, varied by `draws` [B, augmentation.draws]."""
    pixels, one = resize(images, spec)
    if augmentation.warps:
        pixels = _warped(pixels, augmentation, draws)
    pixels = _placed(pixels, spec.output_size(*images.shape[-2:]), augmentation, draws)
    if augmentation.light:
        pixels = _lit(pixels, one, augmentation.light, draws[:, 5], draws[:, 6])
    if augmentation.cutout:
        pixels = _cut(pixels, augmentation.cutout, draws[:, 7], draws[:, 8])
    return standardise(pixels.contiguous(), one, spec)


def _placed(pixels: Tensor, size: tuple[int, int], augmentation: Augmentation, draws: Tensor) -> Tensor:
    """Shifted, cropped at some place, mirrored: the part of `size` that the network sees."""
    pixels = F.pad(pixels, [augmentation.shift] * 4)
    height, width = size
    slack_y, slack_x = pixels.shape[-2] - height, pixels.shape[-1] - width
    if augmentation.random_crop or augmentation.shift:
        top = (draws[:, 0] * (slack_y + 1)).long()
        left = (draws[:, 1] * (slack_x + 1)).long()
    else:
        top = torch.full_like(draws[:, 0], slack_y // 2, dtype=torch.long)
        left = torch.full_like(draws[:, 1], slack_x // 2, dtype=torch.long)
    columns = torch.arange(width, device=pixels.device).expand(len(pixels), width)
    if augmentation.flip:
        columns = torch.where(_mirrored(draws)[:, None], columns.flip(1), columns)
    rows = top[:, None] + torch.arange(height, device=pixels.device)  # [B, h]
    columns = left[:, None] + columns  # [B, w]
    batch = torch.arange(len(pixels), device=pixels.device)
    # Two advanced indices around a slice put the channel last: [B, h, w, C].
    pixels = pixels[batch[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    if augmentation.flip and pixels.shape[1] == STEREO:
        pixels = torch.where(_mirrored(draws)[:, None, None, None], pixels.flip(1), pixels)
    return pixels


def _mirrored(draws: Tensor) -> Tensor:
    """Which images [B] are mirrored, of those that may be."""
    return draws[:, 2] < 0.5


def mirrored_view(view: Tensor, augmentation: Augmentation, draws: Tensor) -> Tensor:
    """The views [B, 3] (azimuth, elevation, symmetry) of images as `augmented` varies them.

    In a mirror, what was seen from the left is seen from the right. All else leaves the direction as it is.
    """
    if not augmentation.flip:
        return view
    azimuth, *others = view.unbind(1)
    return torch.stack([torch.where(_mirrored(draws), -azimuth, azimuth), *others], 1)


def _warped(pixels: Tensor, augmentation: Augmentation, draws: Tensor) -> Tensor:
    """Turned about the middle, enlarged or reduced, and bent; black comes in from outside."""
    turn = (2 * draws[:, 3] - 1) * math.radians(augmentation.rotation)
    size = torch.exp((2 * draws[:, 4] - 1) * math.log1p(augmentation.scale))
    cos, sin = torch.cos(turn) / size, torch.sin(turn) / size
    aspect = pixels.shape[-1] / pixels.shape[-2]  # the grid's coordinates go from -1 to 1 both ways
    nothing = torch.zeros_like(cos)
    affine = torch.stack(
        [torch.stack([cos, -sin / aspect, nothing], 1), torch.stack([sin * aspect, cos, nothing], 1)], 1
    )
    grid = F.affine_grid(affine.float(), list(pixels.shape), align_corners=False)  # [B, h, w, x y]
    if augmentation.elastic:
        shifts = augmentation.elastic * (2 * draws[:, 10:] - 1).float().view(-1, 2, BENDS, BENDS)
        across, down = F.interpolate(shifts, pixels.shape[-2:], mode="bicubic", align_corners=True).unbind(1)
        grid = grid + 2 * torch.stack([across / pixels.shape[-1], down / pixels.shape[-2]], -1)
    return F.grid_sample(pixels.float(), grid, align_corners=False)


def _lit(pixels: Tensor, one: float, most: float, brightness: Tensor, contrast: Tensor) -> Tensor:
    """Brighter or darker, with more or less contrast about the image's own mean; no pixel leaves black to white."""
    pixels = pixels.float()
    mean = pixels.mean((1, 2, 3), keepdim=True)
    by = (1 + (2 * contrast - 1) * most)[:, None, None, None].float()
    shift = ((2 * brightness - 1) * most * one)[:, None, None, None].float()
    return ((pixels - mean) * by + mean + shift).clamp(0, one)


def _cut(pixels: Tensor, share: float, y: Tensor, x: Tensor) -> Tensor:
    """A square of this share of the side is black; its middle lies anywhere in the image."""
    height, width = pixels.shape[-2:]
    half = share * min(height, width) / 2
    rows, columns = (torch.arange(size, device=pixels.device) + 0.5 for size in (height, width))
    down = (rows - y[:, None] * height).abs() < half  # [B, h]
    across = (columns - x[:, None] * width).abs() < half
    hole = down[:, None, :, None] & across[:, None, None, :]
    return pixels.masked_fill(hole, 0)


def mixed(images: Tensor, label: Tensor, most: float, draw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each image with the next one laid over it: (images, the labels of what was laid over, its share [B]).

    The share is at most a half, and 0 for most images: 1 - `most` of them stay as they are.
    """
    share = ((draw - (1 - most)) / max(most, 1e-9)).clamp_min(0) / 2
    by = share.view(-1, *[1] * (images.ndim - 1)).to(images.dtype)
    return images + by * (images.roll(1, 0) - images), label.roll(1, 0), share
