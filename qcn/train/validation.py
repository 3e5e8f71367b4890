"""A network's answers to a set of images: validation after each epoch, and what `qcn.evaluate` measures."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qcn.data.directions import TrueDirections, symmetries
from qcn.data.imageset import ImageSet
from qcn.data.preprocess import preprocess
from qcn.data.spec import Preprocessing
from qcn.data.unlike import unlike_pictures
from qcn.direction import Degrees, Directions, fit_directions
from qcn.intervals import wilson
from qcn.networks.confidence import FEWEST, KEEP, Confidence, Known, check_finite, fit_confidence, fit_known
from qcn.terminal.progress import doing
from qcn.train.record import Epoch

BATCH = 32  # at a time, at least: for the full-size QCN the reference routing holds 0.1 GB of votes per image


class Outputs(NamedTuple):
    """Of a network for N images: logits [N, classes], and poses [N, classes, numbers]."""

    logit: NDArray[np.float32]
    pose: NDArray[np.float32]

    def pose_of(self, labels: NDArray[np.integer]) -> NDArray[np.float32]:
        """The poses [N, numbers] of these classes."""
        return self.pose[np.arange(len(labels)), labels]


def outputs(
    network: nn.Module,
    images: ImageSet,
    preprocessing: Preprocessing,
    device: torch.device,
    rows: slice = slice(None),
    report: Callable[[int], None] = lambda done: None,
) -> Outputs:
    """Logits and poses. `report` is given how many images are done."""
    pixels = torch.from_numpy(images.images[rows])

    def prepared(batch: Tensor) -> Tensor:
        return preprocess(batch, preprocessing)

    return answers_to(network, pixels, prepared, device, len(images.classes), report)


def answers_to(
    network: nn.Module,
    inputs: Tensor,
    prepared: Callable[[Tensor], Tensor],
    device: torch.device,
    classes: int,
    report: Callable[[int], None] = lambda done: None,
) -> Outputs:
    """Logits and poses for inputs of any kind, which `prepared` makes ready on the device."""
    network.eval()
    logit, pose = [torch.empty(0, classes)], [torch.empty(0, classes, 0)]
    with torch.inference_mode():
        for batch in inputs.split(batch_size(device)):
            answer = network(prepared(batch.to(device)))
            logit.append(answer.logit.float().cpu())
            pose.append(answer.pose.float().cpu())
            report(sum(map(len, logit)))
    return Outputs(torch.cat(logit).numpy(), torch.cat(pose[1:] or pose).numpy())


def batch_size(device: torch.device) -> int:
    """How many images a device with this much free memory should answer at a time."""
    if device.type != "cuda":
        return BATCH
    return max(BATCH, min(8 * BATCH, torch.cuda.mem_get_info(device)[0] // 2**29))


def measure(
    answers: Outputs, labels: NDArray[np.int64], directions: TrueDirections | None
) -> tuple[NDArray[np.bool_], Degrees]:
    """Which images are answered wrong, and the degrees that the poses of their classes are off.

    The degrees are NaN without directions.
    """
    degrees = directions.measure(answers.pose_of(labels))[1] if directions else np.full(len(labels), np.nan)
    return answers.logit.argmax(1) != labels, degrees


def median(degrees: Degrees) -> float | None:
    """Of those that are not NaN; None if there are none."""
    known = degrees[np.isfinite(degrees)]
    return float(np.median(known)) if len(known) else None


def as_good_as_the_best(history: Sequence[Epoch], images: int) -> list[bool]:
    """Whether each epoch is as good as any: by its errors on so many validation images, and by its median angle.

    Errors differ by chance alone from epoch to epoch. The least of many is a lucky one, often early in a run; of those
    that chance does not tell apart, the latest has had the most training (docs/results.md#finished-studies). So an
    error in the 95 % interval of the least is as good, and so is an angle at most a tenth above the least of these
    epochs. (Angles are of the images that are answered right: in others, of few.)
    """
    most = wilson(round(min(row.validation_error for row in history) * images), images)[1]
    good = [row.validation_error <= most for row in history]
    angles = [row.direction_error for row in history]
    least = min((angle for angle, fits in zip(angles, good, strict=True) if fits and angle), default=None)
    turned = [least is not None and angle is not None and angle > 1.1 * least for angle in angles]
    return [fits and not off for fits, off in zip(good, turned, strict=True)]


def fitted_directions(answers: Outputs, validation: ImageSet, directions: TrueDirections) -> Directions:
    """How sure a network's directions are, from its answers to validation images, of which the right ones count."""
    lengths, degrees = directions.measure(answers.pose_of(validation.labels))
    right = answers.logit.argmax(1) == validation.labels
    return fit_directions(symmetries(validation), directions.elevations, lengths[right], degrees[right])


def measure_confidence(
    network: nn.Module,
    answers: Outputs,
    validation: ImageSet,
    preprocessing: Preprocessing,
    device: torch.device,
    keep: float = KEEP,
) -> tuple[Confidence, Known | None]:
    """The temperature that makes probabilities of this network's logits, and when its answers count as known.

    Both come from its `answers` to validation images, the latter also from those to made-up pictures.
    """
    doing("fitting the temperature of probabilities")
    logit, labels = answers.logit, validation.labels
    confidence = fit_confidence(logit, labels)
    if (logit.argmax(1) == labels).sum() < FEWEST:
        return confidence, None
    doing("making up pictures that it should not know")
    unlike = {}
    for kind, images in unlike_pictures(validation.images, validation.classes).items():
        doing(f"fitting when an answer counts as known: {kind}")
        pictures = ImageSet(images, np.zeros(len(images), np.int64), validation.classes)
        unlike[kind] = outputs(network, pictures, preprocessing, device).logit
        check_finite(unlike[kind], f"the network, shown {kind},")
    return confidence, fit_known(logit, labels, unlike, confidence.temperature, keep)
