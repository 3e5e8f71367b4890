"""`qcn.load`: a bundle as something that answers."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import get_args, overload

import numpy as np
from numpy.typing import NDArray

from qcn.direction import Direction, Directions
from qcn.errors import MissingError, UsageError, unknown_name
from qcn.export.backends import LOADED
from qcn.export.bundle import WEIGHTS, Bundle
from qcn.limits import MAX_THREADS
from qcn.names import OperationPrecision
from qcn.networks.confidence import Confidence, Known, check_finite, is_known, order, probabilities, temperature_of
from qcn.networks.shipped import bundle_of
from qcn.runtime.engines import Engine, LibqcnEngine, RunnerEngine
from qcn.runtime.pictures import Picture, pixels_of, several_of

BACKENDS = ("auto", *LOADED)
BY_LIBQCN = ("auto", "native", "tensorrt")  # it chooses, and runs engines too
PRECISIONS: tuple[OperationPrecision, ...] = get_args(OperationPrecision)
BATCH = 16  # pictures at once, where more are given


@dataclass(frozen=True)
class Answer:
    """The answer of a network to a picture.

    logit        [classes]: how well the parts of an object of this class agree; the answer is worked out from it
    pose         [classes, 3], the poses of the class capsules; None for a network without capsules
    classes      their names
    confidence   what makes probabilities of the logits; None: they were not calibrated
    threshold    what tells known pictures from others; None: the network knows everything
    directions   what makes directions of view of the poses; None: they say none
    """

    logit: NDArray[np.float32]
    pose: NDArray[np.float32] | None
    classes: tuple[str, ...]
    confidence: Confidence | None = None
    threshold: Known | None = None
    directions: Directions | None = None

    @property
    def index(self) -> int:
        """The class of the largest logit; of equal ones the first."""
        return int(self.logit.argmax())

    @property
    def label(self) -> str:
        """The name of that class."""
        return self.classes[self.index]

    @property
    def probability(self) -> float:
        """How likely the label is right, as far as the validation images can tell (`qcn.networks.confidence`)."""
        return float(self.probabilities[self.index])

    @cached_property
    def known(self) -> bool:
        """Whether the picture is like those of training; if not, the label is the class that it is most like."""
        return bool(is_known(self.logit[None], temperature_of(self.confidence), self.threshold)[0])

    @property
    def direction(self) -> Direction | None:
        """From where the object is seen; None if the network cannot say, the class is round, or the answer unknown."""
        if self.directions is None or self.pose is None or not self.known:
            return None
        return self.directions.of(self.pose[self.index], self.index)

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """The probability of every class, [classes]."""
        return probabilities(self.logit[None], temperature_of(self.confidence))[0]

    @property
    def activation(self) -> NDArray[np.float64]:
        """sigmoid(logit), [classes], from 0 to 1. Large logits differ where their activations all are 1."""
        result: NDArray[np.float64] = np.exp(-np.logaddexp(0, -self.logit.astype(np.float64)))
        return result

    def top(self, count: int) -> list[tuple[str, float]]:
        """The most likely classes with their probabilities, best first."""
        best = order(self.logit[None])[0, : max(0, count)]
        return [(self.classes[index], float(self.probabilities[index])) for index in best]

    def words(self) -> str:
        """The answer for people: horse, or unknown (most like horse)."""
        return self.label if self.known else f"unknown (most like {self.label})"


class Model:
    """A loaded bundle. Any number of threads may ask it at once."""

    def __init__(
        self,
        name: str,
        classes: tuple[str, ...],
        engine: Engine,
        confidence: Confidence | None = None,
        threshold: Known | None = None,
        weights: str = "",
        directions: Directions | None = None,
    ) -> None:
        self.name, self.classes, self.directions = name, classes, directions
        self._engine, self._confidence, self._threshold, self._weights = engine, confidence, threshold, weights

    @staticmethod
    def of_bundle(bundle: Bundle, engine: Engine) -> "Model":
        """The bundle's network, answered for by `engine`."""
        manifest = bundle.manifest
        weights = bundle.find(WEIGHTS).sha256
        answers = (manifest.confidence, manifest.known, weights, manifest.direction)
        return Model(manifest.name, manifest.classes, engine, *answers)

    @property
    def backend(self) -> str:
        """The backend, in words."""
        return self._engine.name

    @property
    def identity(self) -> str:
        """Its name and a hash of its weights, confidence, threshold and directions, for records of answers."""
        same = repr((self._weights, self._confidence, self._threshold, self.directions)).encode()
        return f"{self.name}@{sha256(same).hexdigest()[:12]}"

    @overload
    def predict(self, picture: Picture) -> Answer: ...  # type: ignore[overload-overlap]  # text is a list of texts
    @overload
    def predict(self, picture: Iterable[Picture]) -> list[Answer]: ...
    def predict(self, picture: Picture | Iterable[Picture]) -> Answer | list[Answer]:
        """The answer to a picture of any size, or a list of answers to several.

        A picture is the name of a file, its bytes, a file object, an image of Pillow, an array uint8 [H, W] or
        [H, W, C], or a tensor [H, W] or [C, H, W] (`qcn.runtime.pictures`). Several are a list, a tuple, anything else
        that can be iterated over, an array [N, H, W, C] or a tensor [N, C, H, W].
        """
        several = several_of(picture)
        if several is not None:
            return list(self.stream(several))
        return next(self._answers([pixels_of(picture)]))

    def stream(self, pictures: Iterable[Picture], batch: int = BATCH) -> Iterator[Answer]:
        """The answers to any number of pictures, one after the other; `batch` of them are worked on at once."""
        if batch < 1:
            raise UsageError(f"batch must be 1 or more, not {batch}")
        waiting = several_of(pictures)
        if waiting is None:
            raise UsageError(f"stream takes several pictures, not one {type(pictures).__name__}: `predict` takes one")
        while several := list(islice(waiting, batch)):
            yield from self._answers([pixels_of(picture) for picture in several])

    def _answers(self, pixels: list[NDArray[np.uint8]]) -> Iterator[Answer]:
        logits, poses = self._engine.classify(pixels)
        check_finite(logits, self.backend)
        for row, logit in enumerate(logits):
            pose = None if poses is None else poses[row]
            yield Answer(logit, pose, self.classes, self._confidence, self._threshold, self.directions)


def load(
    bundle: str | os.PathLike[str],
    backend: str = "auto",
    *,
    precision: str | None = None,
    threads: int = 0,
    device: int = 0,
    public_key: str | os.PathLike[str] | None = None,
) -> Model:
    """The bundle in this folder, or the network that ships under this name, ready to answer; its self-test has passed.

    backend     "auto" takes TensorRT where the bundle has an engine for this machine, else native (libqcn on the CPU),
                else ONNX Runtime; or one of `qcn.export.backends.LOADED`
    precision   "fp32", "fp16", "bf16" or "int8": of the engine, or of the file that runs; None: the fastest engine,
                else what the bundle was made in
    threads     of the native backend, for all models of this process; 0: one per core
    public_key  PEM file: a bundle is refused unless its owner signed it
    """
    key = Path(public_key) if public_key is not None else None
    _check(backend, precision, threads)
    opened = Bundle.open(bundle_of(os.fsdecode(bundle)), key)
    return load_opened(opened, backend, precision=precision, threads=threads, device=device)


def load_opened(
    bundle: Bundle, backend: str = "auto", *, precision: str | None = None, threads: int = 0, device: int = 0
) -> Model:
    """The same of a bundle that is open. What answers is what its manifest names, whatever lies there by now."""
    _check(backend, precision, threads)
    if backend not in BY_LIBQCN:
        return Model.of_bundle(bundle, RunnerEngine(bundle, backend, precision, threads))
    try:
        return Model.of_bundle(bundle, LibqcnEngine(bundle, backend, precision, threads, device))
    except MissingError as error:
        if backend != "auto":
            raise
        try:
            return Model.of_bundle(bundle, RunnerEngine(bundle, "onnxruntime", precision, threads))
        except MissingError as other:
            raise MissingError(f"no backend on this machine runs {bundle.folder}: {error}; {other}") from other


def _check(backend: str, precision: str | None, threads: int) -> None:
    if backend not in BACKENDS:
        raise unknown_name("backend", str(backend), BACKENDS)
    if precision is not None and precision not in PRECISIONS:
        raise unknown_name("precision", str(precision), PRECISIONS)
    if not isinstance(threads, int | np.integer) or not 0 <= threads <= MAX_THREADS:
        raise UsageError(f"threads must be from 0 to {MAX_THREADS}, not {threads}")
