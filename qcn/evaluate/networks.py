"""What can be measured: a training run, by torch, or a bundle, by any of its backends. torch only for a run."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np

from qcn.confidence import probabilities, temperature_of
from qcn.data import DATASETS, find
from qcn.data.imageset import ImageSet
from qcn.data.spec import Dataset, Preprocessing, Stored
from qcn.errors import UsageError, unknown_name
from qcn.evaluate.rates import Answers
from qcn.export.bundle import Bundle
from qcn.runtime import load
from qcn.shipped import RUN, place

Report = Callable[[int], None]  # is given how many images have been answered


class Network(ABC):
    """A network with what is known of it.

    classes      by label
    image        [C, H, W] of a stored image
    backend      what runs it, in words
    temperature  of its probabilities
    """

    classes: tuple[str, ...]
    image: tuple[int, int, int]
    preprocessing: Preprocessing
    backend: str
    temperature: float

    @abstractmethod
    def answers(self, images: ImageSet, report: Report) -> Answers: ...

    @abstractmethod
    def own_dataset(self) -> Dataset:
        """The data set that it was trained on."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What evaluation.json says of it."""

    def dataset(self, name: str | None) -> Dataset:
        """The data set of this name or path, or its own; refused where the network cannot be measured on it."""
        found = self.own_dataset() if name is None else self._other(name)
        found.check_fits(self.classes, self.image)
        return found

    def _other(self, name: str) -> Dataset:
        if name in DATASETS:
            return find(name)
        channels, height, _ = self.image
        if channels == 2:
            raise UsageError(f"the network takes stereo pairs, which are not in a folder of pictures such as {name}")
        return find(name, Stored(height, self.preprocessing.fit, channels))


def open_network(
    model: str | Path,
    *,
    which: str = "best",
    device: str = "auto",
    kernels: str = "auto",
    backend: str = "auto",
    public_key: Path | None = None,
) -> Network:
    """The run or bundle in this folder, or the network that ships under this name."""
    folder = place(str(model))
    if (folder / RUN).is_file():
        if backend != "auto" or public_key:
            raise UsageError(
                f"{folder} is a training run, which torch runs: leave out --backend and --public-key, "
                f"or make a bundle of it with `qcn export {folder}`"
            )
        return RunNetwork(folder, which, device, kernels)
    if (which, device, kernels) != ("best", "auto", "auto"):
        raise UsageError(f"--checkpoint, --device and --kernels are for training runs; {folder} is a bundle: --backend")
    return BundleNetwork(folder, backend, public_key)


class RunNetwork(Network):
    """A training run, by torch."""

    def __init__(self, folder: Path, which: str, device: str, kernels: str) -> None:
        import torch

        from qcn.devices import pick_device
        from qcn.model import QCN, choose_kernels
        from qcn.routing import Kernels
        from qcn.train import checkpoint

        if kernels not in get_args(Kernels):
            raise unknown_name("kernels", kernels, get_args(Kernels))
        self._network, self._run = checkpoint.load_network(folder, which)
        choose_kernels(self._network, kernels)  # type: ignore[arg-type]
        self._folder, self._which, self._device = folder, which, pick_device(device)
        self._network.to(self._device)
        self._poses = isinstance(self._network, QCN)
        self.classes, self.image = self._run.classes, self._run.data.image
        self.preprocessing = self._run.preprocessing
        self.backend = f"torch {torch.__version__} on {self._device.type}"
        self.temperature = temperature_of(self._run.confidence)

    def answers(self, images: ImageSet, report: Report) -> Answers:
        from qcn.train.validation import activations

        found = activations(self._network, images, self.preprocessing, self._device, report=report)
        return Answers(found, probabilities(found, self.temperature, self._poses))

    def own_dataset(self) -> Dataset:
        return find(self._run.settings.dataset, self._run.settings.stored)

    def facts(self) -> dict[str, Any]:
        return {"run": str(self._folder), "checkpoint": self._which}


class BundleNetwork(Network):
    """A bundle, by `qcn.load`."""

    def __init__(self, folder: Path, backend: str, public_key: Path | None) -> None:
        self._model = load(folder, backend, public_key=public_key)  # type: ignore[arg-type]  # checked by load
        manifest = Bundle.open(folder, public_key).manifest
        self._folder, self._source = folder, manifest.source
        self.classes, self.image, self.preprocessing = manifest.classes, manifest.image, manifest.preprocessing
        self.backend = self._model.backend
        self.temperature = temperature_of(manifest.confidence)

    def answers(self, images: ImageSet, report: Report) -> Answers:
        shape = (len(images), len(self.classes))
        activation, probability = np.empty(shape, np.float32), np.empty(shape, np.float64)
        pictures = (image.transpose(1, 2, 0) for image in images.images)
        for row, answer in enumerate(self._model.stream(pictures)):
            activation[row], probability[row] = answer.activation, answer.probabilities
            report(1)
        return Answers(activation, probability)

    def own_dataset(self) -> Dataset:
        if self._source.data not in DATASETS:
            raise UsageError(
                f"{self._folder} was trained on '{self._source.data}', which is not a data set of the product: "
                "name a folder of pictures with --dataset"
            )
        return find(self._source.data)

    def facts(self) -> dict[str, Any]:
        return {"bundle": str(self._folder), "checkpoint": self._source.checkpoint}
