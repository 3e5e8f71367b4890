"""Classes with many pictures and classes with few: a warning, and an order that shows all classes equally often."""

import numpy as np
import torch
from torch import Tensor

from qcn.data.imageset import ImageSet

UNEVEN = 5  # times as many images in the largest class as in the smallest, from which on a run says so


def uneven(images: ImageSet) -> tuple[str, ...]:
    """A line on the largest and the smallest class, if one is many times as large as the other."""
    classes, counts = np.unique(images.labels, return_counts=True)
    least, most = counts.argmin(), counts.argmax()
    if counts[most] < UNEVEN * counts[least]:
        return ()
    names = [images.classes[classes[place]] for place in (most, least)]
    return (
        f"'{names[0]}' has {counts[most]:,} training images, '{names[1]}' {counts[least]:,}: "
        "--set balance shows all classes equally often",
    )


def balanced_order(labels: Tensor, generator: torch.Generator) -> Tensor:
    """As many images as there are, [N], in random order: of each class the same number, to one.

    Those of a small class come several times, all of them about equally often; of a large one others come each time.
    """
    shuffled = torch.randperm(len(labels), generator=generator)
    classes = [shuffled[labels[shuffled] == label] for label in labels.unique()]
    each = -(-len(labels) // len(classes))
    rows = torch.stack([one.repeat(-(-each // len(one)))[:each] for one in classes], 1).flatten()[: len(labels)]
    return rows[torch.randperm(len(rows), generator=generator)]
