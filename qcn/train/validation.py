"""A network's answers to a set of images: validation after each epoch, and what `qcn.evaluate` measures."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qcn.data.imageset import ImageSet
from qcn.data.preprocess import preprocess
from qcn.data.spec import Preprocessing
from qcn.data.unlike import unlike_pictures
from qcn.intervals import wilson
from qcn.networks.confidence import FEWEST, KEEP, Confidence, Known, check_finite, fit_confidence, fit_known

BATCH = 32  # at a time, at least: for the full-size QCN the reference routing holds 0.1 GB of votes per image


def predict(
    network: nn.Module, images: ImageSet, preprocessing: Preprocessing, device: torch.device, rows: slice = slice(None)
) -> NDArray[np.int64]:
    """The class with the largest logit, for the images at `rows`."""
    return logits(network, images, preprocessing, device, rows).argmax(1)


def logits(
    network: nn.Module,
    images: ImageSet,
    preprocessing: Preprocessing,
    device: torch.device,
    rows: slice = slice(None),
    report: Callable[[int], None] = lambda done: None,
) -> NDArray[np.float32]:
    """The logit of each class, [images, classes]. `report` is given how many images are done."""
    network.eval()
    pixels = torch.from_numpy(images.images[rows])
    answers: list[Tensor] = []
    with torch.inference_mode():
        for batch in pixels.split(batch_size(device)):
            answers.append(network(preprocess(batch.to(device), preprocessing)).logit.float().cpu())
            report(sum(map(len, answers)))
    return torch.cat(answers).numpy() if answers else np.empty((0, len(images.classes)), np.float32)


def batch_size(device: torch.device) -> int:
    """How many images a device with this much free memory should answer at a time."""
    if device.type != "cuda":
        return BATCH
    return max(BATCH, min(8 * BATCH, torch.cuda.mem_get_info(device)[0] // 2**29))


def count_errors(
    network: nn.Module, images: ImageSet, preprocessing: Preprocessing, device: torch.device, rows: slice
) -> int:
    """Wrong answers among the images at `rows`."""
    return int((predict(network, images, preprocessing, device, rows) != images.labels[rows]).sum())


def as_good_as_the_best(errors: Sequence[float], images: int) -> bool:
    """Whether the last of these validation errors, shares of so many images, is in the 95 % interval of the least.

    Errors differ by chance alone from epoch to epoch. The least of many is a lucky one, often early in a run; of those
    that chance does not tell apart, the latest has had the most training (docs/results.md#finished-studies).
    """
    return errors[-1] <= wilson(round(min(errors) * images), images)[1]


def measure_confidence(
    network: nn.Module,
    validation: ImageSet,
    preprocessing: Preprocessing,
    device: torch.device,
    keep: float = KEEP,
    report: Callable[[str], None] = lambda what: None,
) -> tuple[Confidence, Known | None]:
    """The temperature that makes probabilities of this network's logits, and when its answers count as known.

    Both come from its validation images, the latter from made-up pictures too. `report` is told what is done.
    """
    report("fitting the temperature of probabilities")
    answers = logits(network, validation, preprocessing, device)
    confidence = fit_confidence(answers, validation.labels)
    if (answers.argmax(1) == validation.labels).sum() < FEWEST:
        return confidence, None
    report("making up pictures that it should not know")
    unlike = {}
    for kind, images in unlike_pictures(validation.images, validation.classes).items():
        report(f"fitting when an answer counts as known: {kind}")
        pictures = ImageSet(images, np.zeros(len(images), np.int64), validation.classes)
        unlike[kind] = logits(network, pictures, preprocessing, device)
        check_finite(unlike[kind], f"the network, shown {kind},")
    return confidence, fit_known(answers, validation.labels, unlike, confidence.temperature, keep)
