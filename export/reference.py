"""The trained network's own answers, for golden.safetensors: by the reference routing, in float64 and float32.

Nothing here has gone through `qcn.export.lower`: a fault of folding must show when an artefact is compared with these.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qcn.checkpoint import Run
from qcn.data import find, load
from qcn.data.imageset import ImageSet
from qcn.data.preprocess import preprocess
from qcn.errors import CheckFailed, UsageError
from qcn.evaluate import check_fits
from qcn.export.golden import Answers, Golden
from qcn.model import QCN, choose_routing

REAL = 16
BATCH = 4  # the votes of a full-size QCN take 0.2 GB an image in float64


def make_golden(network: QCN, run: Run, data_dir: Path) -> Golden:
    """Images of the test splits of the run's data set, and edge cases, with the answers of its network to them."""
    check_fits(find(run.data.name), run)
    rows, images, labels = zip(*real_images(load(run.data.name, data_dir).tests, REAL), strict=True)
    edges = edge_images(images[0].shape)
    raw = np.stack([*images, *edges.values()])
    seen = preprocess(torch.from_numpy(raw), run.preprocessing)
    names = (*rows, *edges)
    exact, layers = answers(network, seen.double())
    single, layers_single = answers(network, seen)
    for name, activation, pose in zip(names, exact.activation, exact.pose, strict=True):
        if not (np.isfinite(activation).all() and np.isfinite(pose).all()):
            raise CheckFailed(
                f"the trained network's answer to the image '{name}' is not finite: it cannot be exported"
            )
    return Golden(
        rows=names,
        image=raw,
        label=np.array([*labels, *[-1] * len(edges)]),
        input=seen.numpy(),
        reference=exact,
        float32=single,
        layers=layers,
        layers_float32=layers_single,
    )


def answers(network: QCN, image: Tensor) -> tuple[Answers, dict[str, Answers]]:
    """The network's answers in the precision of `image` [N, C, h, w], and those of each capsule layer before the last.

    The layers are named as in `qcn.export.lower`.
    """
    network = copy.deepcopy(network).to(image.dtype).cpu().eval()
    choose_routing(network, "reference")
    seen: dict[str, list[Any]] = {}
    for i, layer in enumerate(network.layers):
        kept = seen.setdefault(f"capsules{i + 1}", [])
        layer.register_forward_hook(lambda module, inputs, outputs, kept=kept: kept.append(outputs))
    with torch.inference_mode():
        whole = [network(batch) for batch in image.split(BATCH)]
    layers = {name: Answers(_joined(kept, 1), _joined(kept, 0)) for name, kept in seen.items()}
    return Answers(_joined(whole, 1), _joined(whole, 0)), layers


def _joined(batches: list[Any], index: int) -> NDArray[Any]:
    return torch.cat([batch[index] for batch in batches]).numpy()


def real_images(tests: dict[str, ImageSet], count: int) -> Iterator[tuple[str, NDArray[np.uint8], int]]:
    """Up to `count` images, each with a name and a label, spread over classes and, within a class, over splits."""
    splits = list(tests.items())
    if not any(len(images) for _, images in splits):
        raise UsageError("the data set has no test images: golden answers need some")
    classes = range(len(splits[0][1].classes))
    generator = np.random.default_rng(0)
    orders = {name: generator.permutation(len(images)) for name, images in splits}
    places = [(turn, label) for turn in range(max(len(images) for _, images in splits)) for label in classes]
    given = 0
    for turn, label in places:
        name, images = splits[(label + turn) % len(splits)]
        candidates = orders[name][images.labels[orders[name]] == label]
        if turn // len(splits) < len(candidates) and given < count:
            index = candidates[turn // len(splits)]
            given += 1
            yield f"{name} {index}: {images.classes[label]}", images.images[index], label


def edge_images(shape: tuple[int, ...]) -> dict[str, NDArray[np.uint8]]:
    """Images [C, H, W] that no camera is asked for and every deployment meets, by name."""
    pixel = np.zeros(shape, np.uint8)
    pixel[:, shape[1] // 2, shape[2] // 2] = 255
    return {
        "zeros": np.zeros(shape, np.uint8),
        "grey": np.full(shape, 128, np.uint8),
        "saturated": np.full(shape, 255, np.uint8),
        "noise": np.random.default_rng(0).integers(0, 256, shape, np.uint8),
        "one bright pixel": pixel,
    }
