"""The settings of a training run, and the two presets they start from. No torch here: they are checked before it."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from qcn.data.fit import Fit
from qcn.data.spec import Augment, Stored
from qcn.errors import UsageError, unknown_name
from qcn.limits import MAX_ITERATIONS
from qcn.names import NETWORKS, PRETRAINED, Kernels, Loss, Mode
from qcn.networks.confidence import KEEP
from qcn.settings import check_choices, setting, values
from qcn.storage import records
from qcn.train.schedules import LearningRateSchedule, MarginSchedule

Preset = Literal["best", "paper"]
TrainingPrecision = Literal["fp32", "bf16"]
FEW_IMAGES = 5000
FROM_PICTURES = "chosen from the pictures"
RANDOM = "random"  # weights that nothing was learnt with, for --init


def direction_weight(text: str) -> float:
    """A number, or "off" for 0."""
    try:
        return 0.0 if text.lower() == "off" else float(text)
    except ValueError:
        raise UsageError(f"direction must be a number or 'off', not '{text}'") from None


@dataclass(frozen=True)
class Settings:
    """What a user chooses of a run. The defaults are the preset "best"."""

    dataset: str = setting(
        "", "Data set (see `qcn datasets list`) or folder of pictures.", unset="that of --resume", complete="data"
    )
    model: str = setting(
        "qcn", "{choices}.", unset="that of --init; qcn-lite0 for a folder of photographs; else qcn", choices=NETWORKS
    )
    preset: Preset = setting("best", "Preset that the other settings start from: {choices}.", rare=True)
    size: int | None = setting(None, "For a folder: resize pictures to this side, in pixels.", unset=FROM_PICTURES)
    fit: Fit | None = setting(
        None,
        "For a folder: crop (to the centre), letterbox (the whole picture, on black) or stretch.",
        unset="crop",
        rare=True,
    )
    channels: int | None = setting(None, "For a folder: 1 (grey) or 3 (colour).", unset=FROM_PICTURES, rare=True)
    group_by: str | None = setting(
        None,
        "For a folder: pictures in whose paths this regular expression (its first group, if it has one) matches the "
        "same text share a split; off: recognise no groups.",
        unset="recognised by names and pictures",
        rare=True,
    )
    epochs: int | None = setting(
        None, "Passes over the training images.", unset="16 (paper: 300); more if there are few images"
    )
    batch_size: int | None = setting(
        None, "Images per step, over all processes.", unset="128 (paper: 64); fewer if there are few images"
    )
    lr: float | None = setting(
        None, "Largest learning rate.", unset="0.01 (paper: 0.003); 0.005 on a pretrained backbone"
    )
    patience: int | None = setting(
        None, "Stop after so many epochs without a better validation error.", unset="train all epochs"
    )
    loss: Loss = setting("ce", "What is minimised: ce (cross-entropy) or spread.", rare=True)
    margin: MarginSchedule = setting(
        "scaled", "Margin of the spread loss: the paper's schedule, or one scaled to the run's length.", rare=True
    )
    mode: Mode = setting("logistic", "A parent's activation, see `qcn.routing`: {choices}.", rare=True)
    schedule: LearningRateSchedule = setting(
        "one-cycle",
        "Learning rate: one cycle with 15 % warm-up, or the paper's decay by 0.96 every 20,000 steps.",
        rare=True,
    )
    weight_decay: float = setting(1e-4, "Weight decay.", rare=True)
    clip: float | None = setting(5.0, "Largest gradient norm.", rare=True)
    ema: float | None = setting(0.999, "Decay of the averaged weights that evaluation uses.", rare=True)
    precision: TrainingPrecision = setting("fp32", "fp32 or bf16 (convolutions only; routing stays fp32).", rare=True)
    compile: bool = setting(False, "Use torch.compile.", rare=True)
    kernels: Kernels = setting(
        "auto", "Routing kernels: auto (fused if available), fused, or reference (plain torch, slow).", rare=True
    )
    augment: Augment | None = setting(
        None, "Augmentation of training images: {choices}.", unset="the set's; photo on a pretrained backbone"
    )
    flip: bool | None = setting(
        None,
        "Mirror half of the training images, or none: for signs, letters and left hands.",
        unset="as --augment says",
        rare=True,
    )
    label_smoothing: float = setting(
        0.0, "Share of a label that is spread over all classes; with cross-entropy only.", rare=True
    )
    balance: bool = setting(False, "Show the images of all classes equally often.", rare=True)
    direction: float | None = setting(
        None,
        "Weight of the loss that turns poses towards the direction of view; off or 0 to train without. It counts only "
        "if the training images have views.",
        unset="3; 10 on a pretrained backbone",
        parse=direction_weight,
    )
    freeze: bool | None = setting(
        None,
        "Train only what stands on a pretrained backbone, on features that are computed once; or all of it, the "
        "backbone more slowly.",
        unset=f"--freeze on a CPU, with at most {FEW_IMAGES:,} training images",
        option="--freeze/--unfreeze",
    )
    iterations: int | None = setting(
        None, "Iterations of routing.", unset="those of --init, or the network's own; 2 for qcn", rare=True
    )
    init: str | None = setting(
        None,
        "Start from the weights of this run or shipped network, or from random ones.",
        unset="random; for qcn-lite0 and cnn-lite0 those of ImageNet",
        complete="model",
    )
    teachers: tuple[str, ...] = setting(
        (),
        "Also learn from the answers of this run (distillation), on a GPU in bfloat16. If repeated, from their mean.",
        unset="none",
        option="--teacher",
        complete="model",
    )
    seed: int = setting(0, "Seed of every random choice in the run.")
    keep: float = setting(
        KEEP, "Share of right answers that must stay known: it decides which answers are unknown.", rare=True
    )

    def __post_init__(self) -> None:
        check_choices(self, except_for=("model",))  # a user's file may add one
        records.check(self)  # what run.json could not hold, or would be read back as something else
        for name in ("epochs", "batch_size", "lr", "patience"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise UsageError(f"{name} must be positive, not {value}")
        if not 0 <= self.label_smoothing < 1:
            raise UsageError(f"label_smoothing must be 0 or more and less than 1, not {self.label_smoothing}")
        if self.label_smoothing and self.loss != "ce":
            raise UsageError(f"label_smoothing works with cross-entropy (loss=ce), not with {self.loss}")
        if self.teachers and self.loss != "ce":
            raise UsageError(f"--teacher works with cross-entropy (loss=ce), not with {self.loss}")
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
            raise UsageError(f"keep is a share of right answers, between 0 and 1, not {self.keep}")
        if self.direction is not None and self.direction < 0:
            raise UsageError(f"direction must be 0 or more, not {self.direction}")
        if self.seed >= 1 << 63:
            raise UsageError(f"seed must be less than 2**63, not {self.seed}")
        _ = self.stored  # refuses what is wrong

    @property
    def stored(self) -> Stored:
        """How the pictures of a folder are kept."""
        return Stored(self.size, self.fit, self.channels, self.group_by)


@dataclass(frozen=True)
class RunSettings(Settings):
    """Everything that decides the weights a run ends with. The defaults are those for many images."""

    epochs: int = 16
    batch_size: int = 128
    lr: float = 1e-2
    direction: float = 3.0


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
    "direction": 0.0,
}
PRESETS: dict[str, dict[str, Any]] = {"best": {}, "paper": PAPER}


PRETRAINED_DIRECTION = 10.0  # a fine-tuned backbone tells directions better the more they weigh (docs/results.md)
FEWEST_STEPS = 1000  # that a network learns in; 16 epochs of a hundred pictures would be a hundred


def for_images(settings: Settings, images: int, processes: int = 1) -> RunSettings:
    """The settings of a run with so many training images: with few, smaller batches and more epochs.

    Epochs, batches and rates that the user chose stay as they are.
    """
    chosen = {one.name: getattr(settings, one.name) for one in fields(settings)}
    if settings.lr is None:
        chosen["lr"] = RunSettings.lr / 2 if settings.model in PRETRAINED else RunSettings.lr
    if settings.direction is None:
        chosen["direction"] = PRETRAINED_DIRECTION if settings.model in PRETRAINED else RunSettings.direction
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
