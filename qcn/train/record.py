"""What run.json says of a training run: the network, the data, the settings, how far it is, and the files beside it."""

import inspect
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath

from torch import nn

import qcn
from qcn.data.directions import has_directions
from qcn.data.folder import is_source
from qcn.data.imageset import Splits
from qcn.data.registry import find
from qcn.data.spec import Dataset, Preprocessing
from qcn.direction import Directions
from qcn.errors import MissingError, UsageError
from qcn.names import RUN, Mode
from qcn.networks.confidence import Confidence, Known
from qcn.networks.zoo import MODELS, create
from qcn.storage import records
from qcn.storage.files import write_text
from qcn.train.settings import RunSettings

SCHEMA = 6
OPTIONS = ("mode", "size", "iterations", "direction")


@dataclass(frozen=True)
class Model:
    """What `qcn.create` makes the network from. Options that are None are not given: see `qcn.create`.

    direction   a CNN that was trained towards directions has a head for them, which capsules do not need
    """

    name: str
    in_channels: int
    classes: int
    mode: Mode | None = None
    size: int | None = None
    iterations: int | None = None
    direction: bool | None = None

    def create(self) -> nn.Module:
        """A freshly initialised network."""
        options = {name: value for name in OPTIONS if (value := getattr(self, name)) is not None}
        if self.name in MODELS:  # else `create` says so; what goes wrong inside a user's network keeps its traceback
            try:
                inspect.signature(MODELS[self.name]).bind(self.in_channels, self.classes, **options)
            except TypeError as error:
                raise UsageError(
                    f"'{self.name}' cannot be made from in_channels, classes and the options {options}: {error}"
                ) from None
        network = create(self.name, in_channels=self.in_channels, classes=self.classes, **options)
        if getattr(network, "in_channels", None) != self.in_channels:
            raise UsageError(f"'{self.name}' must have in_channels, the number {self.in_channels}: docs/ideas.md")
        return network


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file of the run, and the epoch it was written after."""

    file: str
    sha256: str
    epoch: int

    def __post_init__(self) -> None:
        if PurePath(self.file).name != self.file:
            raise UsageError(f"{self.file!r} is not the name of a file in the run's folder")


@dataclass(frozen=True)
class TrainingData:
    """What a run was trained on: the data set, [C, H, W] of its stored images, how many, and the sha256 of them."""

    name: str
    image: tuple[int, int, int]
    train: int
    validation: int
    sha256: str

    def __post_init__(self) -> None:
        if min(self.image) < 1:
            raise UsageError(f"image must be [channels, height, width], not {list(self.image)}")


@dataclass(frozen=True)
class Progress:
    """The epoch and step to continue from, and the sums (of losses, of wrong answers) of the epoch that has begun."""

    epoch: int = 0
    step: int = 0
    sums: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        if self.epoch < 0 or self.step < 0:
            raise UsageError(f"epoch and step must be 0 or more, not {self.epoch} and {self.step}")


@dataclass(frozen=True)
class Epoch:
    """The measurements of one epoch, a row of metrics.csv. `margin` is the spread loss's; None for other losses.

    `direction_error` is the median angle between predicted and true directions, in degrees, of the validation images
    that are answered right; None if it trains without directions, or no answer is right.
    """

    epoch: int
    step: int
    train_loss: float
    train_error: float
    validation_error: float
    direction_error: float | None
    lr: float
    margin: float | None
    images_per_second: float
    seconds: float


@dataclass(frozen=True)
class Quantised:
    """Layers that round to int8 while they train (`qcn.train.quantise`): the calibrated bundle that they round as, and
    the scale of each one's input, by its name."""

    plan: str
    scales: dict[str, float]

    def __post_init__(self) -> None:
        if odd := [scale for scale in self.scales.values() if not 0 < scale < math.inf]:
            raise UsageError(f"the scale of a layer must be a positive number, not {odd[0]}")


@dataclass(frozen=True)
class Run:
    """The contents of run.json. `best` and `last` are weights, `state` is what resuming needs.

    `best` was chosen on validation. `confidence`, `known` and `direction` are of it, and None until the run ends;
    `direction` also if it was trained without directions.
    """

    model: Model
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    data: TrainingData
    settings: RunSettings
    progress: Progress = Progress()
    history: tuple[Epoch, ...] = ()
    last: TensorFile | None = None
    best: TensorFile | None = None
    state: TensorFile | None = None
    confidence: Confidence | None = None
    known: Known | None = None
    direction: Directions | None = None
    quantised: Quantised | None = None
    schema: int = SCHEMA
    qcn_version: str = qcn.__version__

    def __post_init__(self) -> None:
        if len(self.classes) != self.model.classes:
            raise UsageError(f"{len(self.classes)} classes have names, but the network has {self.model.classes}")
        if self.direction and len(self.direction.symmetry) != self.model.classes:
            raise UsageError(f"{len(self.direction.symmetry)} classes have a symmetry, not {self.model.classes}")
        if self.data.image[0] != self.model.in_channels:
            raise UsageError(f"its images have {self.data.image[0]} channels, but the network {self.model.in_channels}")
        for what, has, says in (
            ("network", self.model.name, self.settings.model),
            ("data set", self.data.name, self.settings.dataset if self.settings.size is None else self.data.name),
        ):
            if has != says:
                raise UsageError(f"its {what} is '{has}', but its settings say '{says}'")

    def dataset(self) -> Dataset:
        """The data set that it was trained on; of pictures, the folder or table that was named, which must be there."""
        if self.settings.size is not None and not is_source(self.settings.dataset):
            raise MissingError(
                f"the pictures that it was trained on, '{self.settings.dataset}', were not found: run the "
                f"command in the folder in which `qcn train` ran"
            )
        return find(self.settings.dataset, self.settings.stored)

    def weights(self, which: str) -> TensorFile | None:
        """The file of the weights that were chosen on validation ("best"), or of the "last" ones."""
        return self.best if which == "best" and self.best else self.last

    def write(self, folder: Path) -> None:
        write_text(folder / RUN, json.dumps(asdict(self), indent=1, allow_nan=False) + "\n")


def new_run(settings: RunSettings, name: str, splits: Splits, preprocessing: Preprocessing) -> Run:
    """The record of a run that has not begun, on the data set of this name."""
    train_set = splits.train
    channels, height, width = train_set.images.shape[1:]
    accepted = inspect.signature(MODELS[settings.model]).parameters
    size = min(preprocessing.output_size(height, width))
    return Run(
        model=Model(
            settings.model,
            channels,
            len(train_set.classes),
            mode=settings.mode if "mode" in accepted else None,
            size=size if "size" in accepted else None,
            iterations=settings.iterations,
            direction=True if "direction" in accepted and settings.direction and has_directions(train_set) else None,
        ),
        classes=train_set.classes,
        preprocessing=preprocessing,
        data=TrainingData(
            name=name,
            image=(channels, height, width),
            train=len(splits.train),
            validation=len(splits.validation),
            sha256=train_set.sha256,
        ),
        settings=settings,
    )


def load_run(folder: Path) -> Run:
    """Read run.json; what does not fit is refused."""
    path = folder / RUN
    if not path.is_file():
        raise UsageError(f"{folder} is not a training run: it has no {RUN} (make one with `qcn train`)")
    record = records.parse(path.read_bytes(), str(path))
    if isinstance(record, dict) and record.get("schema") != SCHEMA:
        result = record.get("schema")
        raise UsageError(
            f"{path} has schema {result!r}; this version of qcn reads {SCHEMA}: train again with `qcn train`"
        )
    run = records.read(Run, record, str(path))
    if len(run.history) != run.progress.epoch:
        raise UsageError(f"{path}: {run.progress.epoch} epochs are done, but the history lists {len(run.history)}")
    return run
