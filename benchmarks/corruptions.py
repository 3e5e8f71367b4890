"""What happens to pictures between a camera and a network, in five severities each, and attacks on a network.

Corruptions take and give stored images, uint8 [N, C, H, W], so that runs and bundles see the same pixels. Lengths are
for images of 32 pixels and grow with the side. What comes in from outside is black. No two neighbours in a set are
turned or shifted in the same direction.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from qcn.data.preprocess import preprocess
from qcn.data.spec import Preprocessing

BATCH = 512
Pictures = NDArray[np.uint8]


def rotation(images: Tensor, degrees: float, first: int) -> Tensor:
    """Turned about the middle, to the left and to the right by turns."""
    turn = torch.full((len(images),), math.radians(degrees), device=images.device)
    turn[(first + 1) % 2 :: 2] *= -1
    cos, sin, none = turn.cos(), turn.sin(), torch.zeros_like(turn)
    affine = torch.stack([torch.stack([cos, -sin, none], 1), torch.stack([sin, cos, none], 1)], 1)
    grid = F.affine_grid(affine, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def shift(images: Tensor, pixels: float, first: int) -> Tensor:
    """Moved by so many pixels across and down, into each of the four corners by turns."""
    by = round(pixels * images.shape[-1] / 32)
    moved = torch.zeros_like(images)
    for corner, (down, across) in enumerate(((by, by), (-by, by), (by, -by), (-by, -by))):
        start = (corner - first) % 4
        rows, columns = (slice(max(0, step), min(0, step) or None) for step in (down, across))
        from_rows, from_columns = (slice(max(0, -step), min(0, -step) or None) for step in (down, across))
        moved[start::4, :, rows, columns] = images[start::4, :, from_rows, from_columns]
    return moved


def noise(images: Tensor, deviation: float, first: int) -> Tensor:
    """Gaussian noise; white is 1. The same on every machine."""
    drawn = np.random.Generator(np.random.PCG64(first)).standard_normal(images.shape, np.float32)
    return images + deviation * torch.from_numpy(drawn).to(images.device)


def blur(images: Tensor, deviation: float, first: int) -> Tensor:
    """A Gaussian blur, edges repeated."""
    sigma = deviation * images.shape[-1] / 32
    reach = math.ceil(3 * sigma)
    weights = torch.exp(-(torch.arange(-reach, reach + 1, device=images.device) ** 2) / (2 * sigma**2))
    weights = (weights / weights.sum())[None, None]
    channels, height, width = images.shape[1:]
    planes = F.pad(images.reshape(-1, 1, height, width), [reach] * 4, mode="replicate")
    across = F.conv2d(planes, weights[:, :, None])
    return F.conv2d(across, weights[..., None]).reshape(-1, channels, height, width)


def contrast(images: Tensor, share: float, first: int) -> Tensor:
    """Only this share of the contrast is left, about each image's own mean."""
    mean = images.mean((1, 2, 3), keepdim=True)
    return mean + share * (images - mean)


Corruption = Callable[[Tensor, float, int], Tensor]
CORRUPTIONS: dict[str, tuple[Corruption, tuple[float, ...], str]] = {
    "rotation": (rotation, (10, 20, 30, 40, 50), "degrees"),
    "shift": (shift, (1, 2, 3, 4, 6), "pixels of 32, both ways"),
    "noise": (noise, (0.04, 0.08, 0.12, 0.18, 0.25), "standard deviation; white is 1"),
    "blur": (blur, (0.5, 0.75, 1, 1.5, 2), "standard deviation, pixels of 32"),
    "contrast": (contrast, (0.75, 0.5, 0.35, 0.2, 0.1), "share of the contrast that is left"),
}
EPSILONS = (1, 2, 4, 8, 16, 32)  # of 255
STEPS = 20


def corrupted(images: Pictures, kind: str, severity: int, device: torch.device) -> Pictures:
    """The images, made worse: severity is 1 to 5."""
    apply, amounts, _ = CORRUPTIONS[kind]
    made = []
    for first in range(0, len(images), BATCH):
        batch = torch.from_numpy(images[first : first + BATCH]).to(device).float() / 255
        worse = apply(batch, amounts[severity - 1], first)
        made.append((worse.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy())
    return np.concatenate(made)


def attacked(
    network: nn.Module, images: Tensor, labels: Tensor, preprocessing: Preprocessing, epsilon: float, steps: int
) -> Tensor:
    """Float images [B, C, H, W], 0 to 1, changed by at most `epsilon` per pixel to raise the loss.

    One step is FGSM. More are PGD, from a random place within reach, with the same numbers on every machine. The
    gradient is that of the network's own scores, whose saturation hides nothing, through its pre-processing.
    """
    changed = images.clone()
    if steps > 1:
        drawn = np.random.Generator(np.random.PCG64(0)).uniform(-1, 1, images.shape).astype(np.float32)
        changed = (images + epsilon * torch.from_numpy(drawn).to(images.device)).clamp(0, 1)
    stride = epsilon if steps == 1 else 2.5 * epsilon / steps
    for _ in range(steps):
        changed.requires_grad_(True)
        loss = F.cross_entropy(network(preprocess(changed, preprocessing)).logit, labels, reduction="sum")
        (slope,) = torch.autograd.grad(loss, changed)
        changed = changed.detach() + stride * slope.sign()
        changed = torch.minimum(torch.maximum(changed, images - epsilon), images + epsilon).clamp(0, 1)
    return changed


def fooled(
    network: nn.Module, images: Pictures, labels: NDArray[np.int64], preprocessing: Preprocessing, device: torch.device
) -> Iterator[tuple[str, int, NDArray[np.bool_]]]:
    """Attack, epsilon in 255ths, and which images are wrong under it; a wrong one counts without any attack too."""
    network.eval().requires_grad_(False)
    for name, steps in (("fgsm", 1), ("pgd", STEPS)):
        for epsilon in EPSILONS:
            wrong = []
            for first in range(0, len(images), BATCH):
                batch = torch.from_numpy(images[first : first + BATCH]).to(device).float() / 255
                truth = torch.from_numpy(labels[first : first + BATCH]).to(device)
                changed = attacked(network, batch, truth, preprocessing, epsilon / 255, steps)
                with torch.no_grad():
                    answers = [network(preprocess(one, preprocessing)).logit.argmax(1) for one in (batch, changed)]
                wrong.append(((answers[0] != truth) | (answers[1] != truth)).cpu().numpy())
            yield name, epsilon, np.concatenate(wrong)
