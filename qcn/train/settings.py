"""The settings of a training run, and the two presets they start from. No torch here: they are checked before it."""

from dataclasses import dataclass, fields
from typing import Any, get_args

from qcn import records
from qcn.confidence import KEEP
from qcn.data.fit import Fit
from qcn.data.spec import Augment, Stored
from qcn.errors import UsageError, unknown_name
from qcn.limits import MAX_ITERATIONS
from qcn.names import Kernels, Loss, Mode, Precision
from qcn.settings import values
from qcn.train.schedules import LearningRateSchedule, MarginSchedule

CHOICES = {
    "augment": get_args(Augment),
    "loss": get_args(Loss),
    "margin": get_args(MarginSchedule),
    "mode": get_args(Mode),
    "schedule": get_args(LearningRateSchedule),
    "precision": ("fp32", "bf16"),
    "kernels": get_args(Kernels),
}


@dataclass(frozen=True)
class Settings:
    """What a user chooses of a run. The defaults are the preset "best".

    epochs, batch_size   None: chosen by the number of training images (`for_images`)
    margin        the spread loss's margin: the paper's schedule, or one scaled to the run's length
    mode          a parent's activation, see `qcn.routing`
    schedule      the learning rate: one cycle with 15 % warm-up, or the paper's decay by 0.96 every 20,000 steps
    clip          largest gradient norm; None: not clipped
    ema           decay of the averaged weights that evaluation uses; None: the raw weights
    kernels       of routing: fused where there are any (auto), always (fused) or never (reference)
    augment       variations of training images (`qcn.data.spec`); None: those that the data set asks for
    label_smoothing   share of a label that is spread over all classes; of cross-entropy only
    iterations    of routing; None: the network's own
    init          the run whose weights this one starts from
    teachers      runs whose answers this one learns beside the labels (`distillation` in `qcn.train.losses`);
                  on a GPU they answer in bfloat16, whatever the precision of this one
    keep          share of right answers that stay known, of validation images (`qcn.confidence.fit_known`)
    size, fit, channels   of a folder of pictures: see `qcn.data.spec.Stored`; None for other data sets
    """

    dataset: str
    model: str
    preset: str = "best"
    epochs: int | None = None
    batch_size: int | None = None
    lr: float = 1e-2
    loss: Loss = "ce"
    margin: MarginSchedule = "scaled"
    mode: Mode = "logistic"
    schedule: LearningRateSchedule = "one-cycle"
    weight_decay: float = 1e-4
    clip: float | None = 5.0
    ema: float | None = 0.999
    precision: Precision = "fp32"
    compile: bool = False
    kernels: Kernels = "auto"
    augment: Augment | None = None
    label_smoothing: float = 0.0
    iterations: int | None = None
    init: str | None = None
    teachers: tuple[str, ...] = ()
    seed: int = 0
    keep: float = KEEP
    size: int | None = None
    fit: Fit | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        for name, choices in {**CHOICES, "preset": tuple(PRESETS)}.items():
            if (value := getattr(self, name)) is not None and value not in choices:
                raise unknown_name(name, str(value), choices)
        records.check(self)  # what run.json could not hold, or would be read back as something else
        for name in ("epochs", "batch_size", "lr"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise UsageError(f"{name} must be positive, not {value}")
        if not 0 <= self.label_smoothing < 1:
            raise UsageError(f"label_smoothing must be 0 or more and less than 1, not {self.label_smoothing}")
        if self.label_smoothing and self.loss != "ce":
            raise UsageError(f"--label-smoothing works with cross-entropy (--loss ce), not with {self.loss}")
        if self.teachers and self.loss != "ce":
            raise UsageError(f"--teacher works with cross-entropy (--loss ce), not with {self.loss}")
        if self.iterations is not None and not 1 <= self.iterations <= MAX_ITERATIONS:
            raise UsageError(f"iterations must be 1 to {MAX_ITERATIONS}, not {self.iterations}")
        for name in ("weight_decay", "seed"):
            if (value := getattr(self, name)) < 0:
                raise UsageError(f"{name} must be 0 or more, not {value}")
        if self.clip is not None and not self.clip > 0:
            raise UsageError(f"clip must be positive, not {self.clip}")
        if self.ema is not None and not 0 < self.ema < 1:
            raise UsageError(f"ema must lie between 0 and 1, not {self.ema}")
        if not 0 < self.keep < 1:
            raise UsageError(f"--keep is a share of right answers, between 0 and 1, not {self.keep}")
        if self.seed >= 1 << 63:
            raise UsageError(f"seed must be less than 2**63, not {self.seed}")
        Stored(self.size, self.fit, self.channels)  # refuses what is wrong

    @property
    def stored(self) -> Stored:
        """How the pictures of a folder are kept."""
        return Stored(self.size, self.fit, self.channels)


@dataclass(frozen=True)
class RunSettings(Settings):
    """Everything that decides the weights a run ends with. The defaults are those for many images."""

    epochs: int = 16
    batch_size: int = 128


# What the authors' code does: Adam without weight decay, spread loss, unit activation, 300 epochs of batches of 64.
PAPER: dict[str, Any] = {
    "epochs": 300,
    "batch_size": 64,
    "lr": 3e-3,
    "loss": "spread",
    "margin": "paper",
    "mode": "unit",
    "schedule": "exponential",
    "weight_decay": 0.0,
    "clip": None,
    "ema": None,
}
PRESETS: dict[str, dict[str, Any]] = {"best": {}, "paper": PAPER}


FEWEST_STEPS = 1000  # that a network learns in; 16 epochs of a hundred pictures would be a hundred


def for_images(settings: Settings, images: int, processes: int = 1) -> RunSettings:
    """The settings of a run with so many training images: with few, smaller batches and more epochs.

    Epochs and batches that the user chose stay as they are.
    """
    chosen = {one.name: getattr(settings, one.name) for one in fields(settings)}
    if settings.batch_size is None:
        batch = min(RunSettings.batch_size, max(8, images // 32), images)
        chosen["batch_size"] = batch + -batch % processes
    if settings.epochs is None:
        steps = max(1, images // chosen["batch_size"])  # of an epoch
        chosen["epochs"] = max(RunSettings.epochs, -(-FEWEST_STEPS // steps))
    return RunSettings(**chosen)


def settings_from(preset: str, **chosen: Any) -> Settings:
    """The preset's settings with what the user chose on top; a choice of None means the preset's."""
    if preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    return Settings(**{"preset": preset, **PRESETS[preset], **values(Settings, **chosen)})
