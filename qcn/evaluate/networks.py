"""What can be measured: a training run, by torch, or a bundle, by any of its backends. torch only for a run."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.data.imageset import ImageSet, Splits
from qcn.data.numpy_preprocess import preprocess
from qcn.data.registry import DATASETS, find
from qcn.data.spec import Dataset, Preprocessing, Stored
from qcn.direction import Directions
from qcn.errors import UsageError
from qcn.evaluate.rates import Answers
from qcn.export.backends.candidates import Candidate
from qcn.export.backends.runner import TIME_LIMIT, Runner
from qcn.export.bundle import Bundle
from qcn.names import RUN, Kernels
from qcn.networks.confidence import Known, is_known, probabilities, temperature_of
from qcn.networks.shipped import SHIPPED, is_shipped_run, place, run_of
from qcn.runtime.model import load_opened
from qcn.storage import measured
from qcn.storage.measured import Measured
from qcn.terminal.text import command_line

Report = Callable[[int], None]  # is given how many images are done
AT_ONCE = 16  # images, where a file takes so many


class Network(ABC):
    """A network with what is known of it.

    classes      by label
    image        [C, H, W] of a stored image
    backend      what runs it, in words
    temperature  of its probabilities
    known        when an answer counts as known; None: always
    direction    what makes directions of its poses; None: it tells none
    trained_on   the name of its data set, and the sha256 of the training images
    weights      the sha256 of its weights file in the training run
    """

    classes: tuple[str, ...]
    image: tuple[int, int, int]
    preprocessing: Preprocessing
    backend: str
    temperature: float
    known: Known | None
    direction: Directions | None = None
    trained_on: tuple[str, str]
    weights: str

    @abstractmethod
    def answers(self, images: ImageSet, report: Report) -> Answers: ...

    def answers_of(self, logit: NDArray[np.float32], pose: NDArray[np.float32] | None = None) -> Answers:
        """What these logits [N, classes] and poses [N, classes, 3] say."""
        known = None if self.known is None else is_known(logit, self.temperature, self.known)
        return Answers(logit, probabilities(logit, self.temperature), known, pose if self.direction else None)

    @abstractmethod
    def own_dataset(self) -> Dataset:
        """The data set that it was trained on."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What evaluation.json says of it."""

    def remember(self, found: Measured) -> None:
        """Keep what was measured of it on its own test splits, where there is a place for it."""
        return

    def dataset(self, name: str | None) -> Dataset:
        """The data set of this name or path, or its own; refused where the network cannot be measured on it."""
        channels, height, _ = self.image
        if name is None:
            result = self.own_dataset()
        elif name in DATASETS:
            result = find(name)
        elif channels == 2:
            raise UsageError(f"the network takes stereo pairs, but {name} is a folder of single pictures")
        else:
            result = find(name, Stored(height, self.preprocessing.fit, channels))
        result.check_fits(self.classes, self.image)
        return result

    def refuse_known(self, name: str, splits: Splits) -> None:
        """Refuse to test on a folder that grew since: what was trained on may have been dealt into its test split."""
        trained, sha256 = self.trained_on
        if splits.dealt and name == trained and splits.train.sha256 != sha256:
            raise UsageError(
                f"the pictures of '{name}' or their groups have changed since training, and so have its splits: the "
                f"test split may contain pictures that the network was trained on. Train again, or name another "
                f"folder of new pictures with --dataset"
            )


def open_network(
    model: str | Path,
    *,
    which: str = "best",
    device: str = "auto",
    kernels: Kernels = "auto",
    backend: str = "auto",
    public_key: Path | None = None,
) -> Network:
    """The run or bundle in this folder, or the network that ships under this name."""
    folder, by_torch = place(str(model)), (which, device, kernels) != ("best", "auto", "auto")
    if by_torch and folder.resolve().parent == SHIPPED:
        folder = run_of(str(model))
    if (folder / RUN).is_file():
        if backend != "auto" or public_key:
            raise UsageError(
                f"{folder} is a training run, which runs in torch: leave out --backend and --public-key, or "
                f"export it with `{command_line('qcn', 'export', folder)}`"
            )
        return RunNetwork(folder, which, device, kernels)
    if by_torch:
        raise UsageError(f"--device, checkpoint and kernels are for training runs; {folder} is a bundle: use --backend")
    return BundleNetwork(folder, backend, public_key)


class RunNetwork(Network):
    """A training run, by torch."""

    def __init__(self, folder: Path, which: str, device: str, kernels: Kernels) -> None:
        import torch

        from qcn.networks.devices import pick_device
        from qcn.networks.model import choose_kernels
        from qcn.train import checkpoint

        self._network, self._run = checkpoint.load_network(folder, which)
        choose_kernels(self._network, kernels)
        self._folder, self._which, self._device = folder, which, pick_device(device)
        self._network.to(self._device)
        self.classes, self.image = self._run.classes, self._run.data.image
        self.preprocessing = self._run.preprocessing
        self.backend = f"torch {torch.__version__} on {self._device.type}"
        best = self._run.weights(which) == self._run.weights("best")  # which both were fitted for
        self.temperature = temperature_of(self._run.confidence if best else None)
        self.known = self._run.known if best else None
        self.direction = self._run.direction if best else None
        self.trained_on = self._run.data.name, self._run.data.sha256
        stored = self._run.weights(which)
        self.weights = stored.sha256 if stored else ""

    def answers(self, images: ImageSet, report: Report) -> Answers:
        from qcn.train.validation import outputs

        return self.answers_of(*outputs(self._network, images, self.preprocessing, self._device, report=report))

    def own_dataset(self) -> Dataset:
        return self._run.dataset()

    def remember(self, found: Measured) -> None:
        """In the run's folder, of the weights that `qcn export` takes; a network that ships has its card."""
        weights = self._run.weights("best")
        own = not is_shipped_run(self._folder) and os.access(self._folder, os.W_OK)
        if weights and weights == self._run.weights(self._which) and own:
            measured.write(self._folder, weights.sha256, found)

    def facts(self) -> dict[str, Any]:
        return {"run": str(self._folder), "checkpoint": self._which}


class _OfBundle(Network):
    """What is known of a bundle's network, whatever runs it."""

    def __init__(self, bundle: Bundle) -> None:
        manifest = bundle.manifest
        self._folder, self._source = bundle.folder, manifest.source
        self.classes, self.image, self.preprocessing = manifest.classes, manifest.image, manifest.preprocessing
        self.temperature, self.known = temperature_of(manifest.confidence), manifest.known
        self.direction = manifest.direction
        self.trained_on = manifest.source.data, manifest.source.data_sha256
        self.weights = manifest.source.sha256

    def own_dataset(self) -> Dataset:
        if self._source.data not in DATASETS:
            raise UsageError(
                f"{self._folder} was trained on '{self._source.data}', which is not one of qcn's data sets: "
                f"name a folder of pictures with --dataset"
            )
        return find(self._source.data)

    def facts(self) -> dict[str, Any]:
        return {"bundle": str(self._folder), "checkpoint": self._source.checkpoint}


class BundleNetwork(_OfBundle):
    """A bundle, by `qcn.load`."""

    def __init__(self, folder: Path, backend: str, public_key: Path | None) -> None:
        opened = Bundle.open(folder, public_key)
        self._model = load_opened(opened, backend)
        super().__init__(opened)
        self.backend = self._model.backend

    def answers(self, images: ImageSet, report: Report) -> Answers:
        logit = np.empty((len(images), len(self.classes)), np.float32)
        pose = np.empty((*logit.shape, 3), np.float32) if self.direction else None
        pictures = (image.transpose(1, 2, 0) for image in images.images)
        for row, answer in enumerate(self._model.stream(pictures)):
            logit[row] = answer.logit
            if pose is not None:
                pose[row] = answer.pose
            report(row + 1)
        return self.answers_of(logit, pose)


def outputs_by(
    runner: Runner, images: NDArray[np.uint8], spec: Preprocessing, size: int, report: Report
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """Logits [N, classes] and poses [N, classes, 3], if there are any, of stored images [N, C, H, W].

    They are asked in batches of `size`; the first images fill up the last one.
    """
    logits: list[NDArray[np.float32]] = []
    poses: list[NDArray[np.float32]] = []
    for start in range(0, len(images), size):
        rows = np.arange(start, start + size) % len(images)
        outputs = runner.infer(preprocess(images[rows], spec))
        logits.append(np.array(outputs["logit"], np.float32))
        poses += [np.array(outputs["pose"], np.float32)] if "pose" in outputs else []
        report(min(start + size, len(images)))
    return np.concatenate(logits)[: len(images)], np.concatenate(poses)[: len(images)] if poses else None


class CandidateNetwork(_OfBundle):
    """One file of a bundle in one backend, as `qcn verify-parity` and `qcn benchmark` run it."""

    def __init__(self, bundle: Bundle, candidate: Candidate, time_limit: float = TIME_LIMIT) -> None:
        super().__init__(bundle)
        self._bundle, self._candidate, self._time_limit = bundle, candidate, time_limit
        self.backend = candidate.key

    def answers(self, images: ImageSet, report: Report) -> Answers:
        limits = self._candidate.artefact.batch
        size = min(max(limits.min, AT_ONCE), limits.max) if limits else AT_ONCE
        with self._candidate.runner(self._bundle, time_limit=self._time_limit) as runner:
            result = outputs_by(runner, images.images, self.preprocessing, size, report)
        return self.answers_of(*result)
