"""The training loop.

Every random choice of a run is a function of (seed, epoch, step), never of what happened before: the order of the
images, how each is varied, dropout. So a resumed run ends with the same weights as one that was never stopped, and P
processes that share a batch compute what one process does.
"""

import copy
import hashlib
import math
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from qcn.data.augment import augmented, mirrored_view, mixed
from qcn.data.cache import expect_random_reads
from qcn.data.directions import TrueDirections, has_elevations, true_directions
from qcn.data.imageset import Splits
from qcn.data.preprocess import preprocess
from qcn.data.registry import find
from qcn.data.spec import Augment, Dataset
from qcn.errors import CheckFailed, Stopped, UsageError
from qcn.names import PRETRAINED
from qcn.networks.backbone import Head, backbone_of
from qcn.networks.confidence import FEWEST
from qcn.networks.distributed import rank, sum_over_processes, world_size
from qcn.networks.model import Prediction, choose_kernels
from qcn.networks.zoo import for_model
from qcn.terminal.progress import doing, say
from qcn.terminal.text import command_line, counted, started
from qcn.train import checkpoint, quantise
from qcn.train.balance import balanced_order, uneven
from qcn.train.faults import first_non_finite
from qcn.train.features import FrozenFeatures, frozen_features
from qcn.train.graph import Recorded
from qcn.train.logbook import Logbook
from qcn.train.losses import Mixed, check_prediction, direction_loss, distillation, loss_of, softened
from qcn.train.record import Epoch, Progress, Quantised, Run, new_run
from qcn.train.schedules import learning_rate, spread_margin
from qcn.train.settings import FEW_IMAGES, Settings, for_images
from qcn.train.signals import on_stop_signal
from qcn.train.start import channels_innermost, start_from, teachers_of
from qcn.train.trackers import Callback
from qcn.train.validation import (
    Outputs,
    answers_to,
    as_good_as_the_best,
    fitted_directions,
    measure,
    measure_confidence,
    median,
    outputs,
)

SAVE_EVERY_S = 300.0  # a checkpoint inside a long epoch
# Between two readings from the device (the loss, and whether a gradient was NaN), at most: steps, and seconds.
REPORT_EVERY, REPORT_AFTER_S = 10, 1.0
BACKBONE_SHARE = 0.1  # of the learning rate, for what is pretrained


def seed_of(*parts: int) -> int:
    """A 63-bit seed that differs for every combination of its parts."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "little") >> 1


def resident(images: NDArray[np.uint8], device: torch.device) -> Tensor:
    """The training images on the device, or where they are if they would take more than half of its free memory."""
    there = torch.from_numpy(images)
    if device.type == "cuda" and images.nbytes <= torch.cuda.mem_get_info(device)[0] // 2:
        return there.to(device)
    expect_random_reads(images)
    return there


def floating(network: nn.Module) -> list[Tensor]:
    """A network's parameters and running statistics."""
    return [tensor for tensor in network.state_dict().values() if tensor.is_floating_point()]


def view_tensor(directions: TrueDirections | None, images: int) -> Tensor:
    """What `direction_loss` takes, [images, 3]; zeros where there are no directions."""
    if directions is None:
        return torch.zeros(images, 3)
    angles = np.radians([directions.azimuth, directions.elevation])
    return torch.from_numpy(np.stack([*angles, directions.symmetry], 1)).float()


def parameter_groups(network: nn.Module) -> list[dict[str, Any]]:
    """All parameters, for an optimiser, with their names and the share of the learning rate that they learn at.

    Those of a pretrained backbone learn more slowly, so as not to forget what they know.
    """
    backbone = backbone_of(network)
    slow = {id(parameter) for parameter in backbone.parameters()} if backbone is not None else set()
    groups: list[dict[str, Any]] = [
        {"params": [], "names": [], "share": share} for share in ((1.0, BACKBONE_SHARE) if slow else (1.0,))
    ]
    for name, parameter in network.named_parameters():
        group = groups[id(parameter) in slow]
        group["names"].append(name)
        group["params"].append(parameter)
    return groups


@dataclass(frozen=True)
class Plan:
    """What happens in an epoch of N images."""

    epoch: int
    order: Tensor  # [N], of the images
    draws: Tensor  # [N, augmentation.draws]: the random numbers that vary each image, by its place in the order
    schedule: Tensor  # [steps, 4], float64: a step's number, learning rate, margin, and weight in the average


class Training:
    """A run in progress: the network, its optimiser, the data on the device, and the record that checkpoints write."""

    def __init__(
        self,
        settings: Settings,
        splits: Splits,
        out: Path,
        device: torch.device,
        dataset: Dataset | None = None,
        quantised: Quantised | None = None,
        data_dir: Path = Path("data"),
    ) -> None:
        dataset = dataset or find(settings.dataset, settings.stored)
        if settings.augment is None:
            usual: Augment = "photo" if settings.model in PRETRAINED else dataset.augment
            settings = replace(settings, augment=usual if settings.preset == "best" else "light")
        settings = for_images(settings, len(splits.train), world_size())
        self.settings, self.splits, self.out, self.device = settings, splits, out, device
        if settings.batch_size % world_size():
            raise UsageError(
                f"a batch of {settings.batch_size} cannot be divided evenly among {world_size()} processes"
            )
        splits.refuse_no_validation(settings.dataset)
        self.steps_per_epoch = len(splits.train) // settings.batch_size
        if not self.steps_per_epoch:
            raise UsageError(
                f"a batch of {settings.batch_size} is larger than the {len(splits.train)} training images: "
                "choose a smaller --batch-size"
            )
        self.total_steps = self.steps_per_epoch * settings.epochs

        self.augmentation = dataset.augmentation[settings.preset].varied(settings.augment or "light")
        if settings.flip is not None:
            self.augmentation = replace(self.augmentation, flip=settings.flip)
        self.preprocessing = for_model(settings.model, dataset.preprocessing.fitted(splits.train))
        self.record = replace(new_run(settings, dataset.name, splits, self.preprocessing), quantised=quantised)

        torch.manual_seed(seed_of(settings.seed))
        self.network = self.record.model.create().to(device)
        self.remarks = splits.remarks + start_from(self.network, settings.init)
        if not settings.balance:
            self.remarks += uneven(splits.train)
        channels_innermost(self.network)
        self.teachers = teachers_of(settings, self.record, device)
        if self.teachers:
            self.remarks += (f"learning the answers of {', '.join(settings.teachers)} too",)
        if quantised:
            quantise.apply(self.network, quantised.scales)
            self.remarks += (f"layers that round to int8, as in {quantised.plan}: {len(quantised.scales)}",)
        choose_kernels(self.network, settings.kernels)
        self.directions, self.validation_directions = self.directions_of(splits)
        self.features = self.frozen(splits, data_dir)
        self.trained = self.network if self.features is None else Head(self.network)
        self.average = copy.deepcopy(self.network).eval() if settings.ema else self.network
        self.averaged = floating(self.average), floating(self.network)
        groups = parameter_groups(self.network)
        self.names = [name for group in groups for name in group["names"]]
        # `fused` is one kernel for all parameters, and takes `found_inf`: see `update`. CUDA graphs need `capturable`.
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            fused=True,
            capturable=device.type == "cuda",
        )
        self.as_graph = device.type == "cuda" and world_size() == 1  # whether a step is one CUDA graph
        self.images = resident(splits.train.images, device) if self.features is None else self.features.train
        self.labels = torch.from_numpy(splits.train.labels).to(device)
        self.views = view_tensor(self.directions, len(splits.train)).to(device)
        self.epoch, self.step = 0, 0  # the epoch in progress, and the steps taken since the run began
        self.sums = torch.zeros(2, dtype=torch.float64, device=device)  # loss and wrong answers in this epoch so far
        self.first_fault = torch.full((), -1, dtype=torch.long, device=device)  # the first step with a NaN gradient
        self.stop_asked = False

    def directions_of(self, splits: Splits) -> tuple[TrueDirections | None, TrueDirections | None]:
        """The directions of training and validation images; None for both if it trains without."""
        counted = has_elevations(splits.train)
        train = true_directions(splits.train, counted) if self.settings.direction else None
        if train is None:
            return None, None
        self.network.eval()
        with torch.no_grad():
            image = torch.from_numpy(splits.train.images[:1]).to(self.device)
            numbers = self.network(preprocess(image, self.preprocessing)).pose.shape[-1]
        if numbers != 3:
            self.remarks += (f"trained without directions: {self.record.model.name} has no poses of 3 numbers",)
            return None, None
        kind = "directions of view" if counted else "azimuths"
        self.remarks += (f"poses learn the {kind} of the images, with weight {self.settings.direction:g}",)
        return train, true_directions(splits.validation, counted)

    def frozen(self, splits: Splits, data_dir: Path) -> FrozenFeatures | None:
        """The features of the backbone, which then stays as it is; None if it is tuned, or there is none."""
        backbone, freeze = backbone_of(self.network), self.settings.freeze
        if backbone is None:
            if freeze:
                raise UsageError(f"{self.record.model.name} has no pretrained backbone to --freeze: leave it out")
            return None
        if freeze is None:
            freeze = self.device.type == "cpu" and len(splits.train) <= FEW_IMAGES
        self.record = replace(self.record, settings=replace(self.record.settings, freeze=freeze))
        if not freeze:
            self.remarks += (f"tuning all of it, the backbone at {BACKBONE_SHARE:g} times the learning rate",)
            return None
        backbone.requires_grad_(False)
        self.remarks += ("training what stands on the backbone; --unfreeze tunes the backbone too",)
        name = f"{self.record.data.name}-{self.record.model.name}"
        features = frozen_features(
            self.network, backbone, splits, name, self.preprocessing, self.augmentation, self.device, data_dir
        )
        fits = self.device.type == "cuda" and features.train.nbytes <= torch.cuda.mem_get_info(self.device)[0] // 2
        return replace(features, train=features.train.to(self.device)) if fits else features

    def restore(self, run: Run) -> None:
        """Continue where `run` was saved."""
        if run.data.sha256 != self.record.data.sha256:
            raise UsageError(
                f"the training images of '{self.settings.dataset}' have changed since {self.out} was started"
            )
        tensors = checkpoint.load_tensors(self.out, run.state)
        raw = {name[6:]: tensor for name, tensor in tensors.items() if name.startswith("model.")}
        checkpoint.restore(self.network, raw, self.out)
        checkpoint.restore(self.average, checkpoint.load_tensors(self.out, run.last), self.out)
        checkpoint.restore_optimizer(self.optimizer, self.names, tensors)
        self.record = run
        self.epoch, self.step = run.progress.epoch, run.progress.step
        # The sums of all processes are saved as one sum, which process 0 takes over.
        self.sums.copy_(torch.tensor(run.progress.sums, dtype=torch.float64) * (rank() == 0))
        if rank() == 0:
            checkpoint.clean(self.out, run)

    def run(self, callbacks: Sequence[Callback] = ()) -> Run:
        """Train to the last epoch, or until patience ends, or to the first NaN, Ctrl-C or SIGTERM."""
        module: nn.Module = self.trained
        if world_size() > 1:
            # Newer versions of torch rename `broadcast_buffers` and warn; older ones have only this name.
            warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
            # Batch statistics are already equal on all processes; only gradients are left to share.
            module = DistributedDataParallel(module, broadcast_buffers=False)
        if self.settings.compile:
            module = torch.compile(module)  # type: ignore[assignment]
        step: Callable[..., Tensor] = partial(self.update, module)
        if self.as_graph:
            step = Recorded(step)
        # Several processes cannot agree on the step to stop after: a signal ends them at once.
        stopping = on_stop_signal(self.ask_to_stop) if world_size() == 1 else nullcontext()
        with Logbook(self.out, self.record, self.steps_per_epoch, callbacks) as logbook:
            logbook.begin(self.network, self.device, self.remarks)
            if self.step == 0:
                self.save(best=False)
            with stopping:
                while self.epoch < self.settings.epochs and not self.patience_ended():
                    started, first = time.perf_counter(), self.step
                    module.train()
                    self.train_epoch(step, logbook)
                    row = self.finish_epoch(time.perf_counter() - started, self.step - first)
                    logbook.epoch_done(self.record, row)
                    self.stop_if_asked()
            if self.epoch < self.settings.epochs:
                logbook.say(self.patience_ended())
            logbook.finish(self.record)
            self.measure_confidence()
            logbook.run = self.record
        return self.record

    def patience_ended(self) -> str:
        """Why the run stops here, if it has been no better for so many epochs as it was asked to wait; else nothing.

        An epoch is better if those before it are not as good: if chance does not explain the difference.
        """
        settings = self.settings
        if not settings.patience or not self.epoch:
            return ""
        as_good = as_good_as_the_best(self.record.history, len(self.splits.validation))
        best = 1 + as_good.index(True)  # the first of them: none since then is better
        if self.epoch - best < settings.patience:
            return ""
        line = (
            f"stopped after {self.epoch} of {settings.epochs} epochs: none after epoch {best} is better "
            f"(--patience {settings.patience})"
        )
        if settings.schedule == "exponential":
            return line
        rate = self.learning_rate(self.step - 1)
        return f"{line}; the learning rate had not come down yet: {rate:.2g}, of at most {settings.lr:.2g}"

    def train_epoch(self, step: Callable[..., Tensor], logbook: Logbook) -> None:
        """The rest of the epoch in progress."""
        plan = self.plan(self.epoch)
        share = self.settings.batch_size // world_size()
        saved = told = time.monotonic()
        for batch in range(self.step - self.epoch * self.steps_per_epoch, self.steps_per_epoch):
            start = batch * self.settings.batch_size + rank() * share
            torch.manual_seed(seed_of(self.settings.seed, self.step, rank()))  # dropout
            loss = step(*self.batch(plan, slice(start, start + share)), plan.schedule[batch])
            self.step += 1
            last = batch + 1 == self.steps_per_epoch
            if last or batch % REPORT_EVERY == 0 or time.monotonic() - told > REPORT_AFTER_S:
                self.refuse_faults()
                logbook.progress(self.epoch, self.step, float(loss))
                told = time.monotonic()
            # Several processes would not reach this at the same step: they save after epochs only.
            due = self.stop_asked or time.monotonic() - saved > SAVE_EVERY_S
            if due and not last and world_size() == 1:
                self.save(best=False)
                self.stop_if_asked()
                saved = time.monotonic()
        self.epoch += 1

    def measure_confidence(self) -> None:
        """Find what makes probabilities of the best weights' logits and directions of its poses, and when an answer is
        known (process 0 does)."""
        if rank() or self.record.confidence:
            return
        best = copy.deepcopy(self.average)
        checkpoint.restore(best, checkpoint.load_tensors(self.out, self.record.weights("best")), self.out)
        validation = self.splits.validation
        doing("answering the validation images by the weights that were chosen")
        answers = outputs(best, validation, self.preprocessing, self.device)
        confidence, known = measure_confidence(
            best, answers, validation, self.preprocessing, self.device, self.settings.keep
        )
        if known is None:
            say(
                f"fewer than {FEWEST} validation images were answered right, too few to tell unknown pictures: "
                f"the network calls every picture known"
            )
        self.record = replace(self.record, confidence=confidence, known=known)
        if self.validation_directions:
            directions = fitted_directions(answers, validation, self.validation_directions)
            self.record = replace(self.record, direction=directions)
        self.record.write(self.out)

    def learning_rate(self, step: int) -> float:
        return learning_rate(self.settings.schedule, self.settings.lr, step, self.total_steps)

    def margin(self, step: int) -> float:
        return spread_margin(self.settings.margin, step, self.total_steps)

    def loss(
        self,
        prediction: Prediction,
        label: Tensor,
        view: Tensor,
        margin: float | Tensor,
        over: Mixed | None,
        taught: Tensor | None,
    ) -> Tensor:
        """By the labels, those of images that were laid over, what teachers answer, and the directions of view."""
        check_prediction(prediction, self.record.model.classes)
        loss = loss_of(prediction, label, self.settings.loss, margin, self.settings.label_smoothing, over)
        loss = loss if taught is None else distillation(loss, prediction, taught)
        if self.directions is None:
            return loss
        turned = direction_loss(prediction.pose, label, view)
        return loss + self.settings.direction * (turned if over is None else (1 - over[1]) * turned).mean()

    def plan(self, epoch: int) -> Plan:
        """All that an epoch decides beforehand, on the device."""
        generator = torch.Generator().manual_seed(seed_of(self.settings.seed, epoch))
        labels = torch.from_numpy(self.splits.train.labels)
        balance = self.settings.balance
        order = balanced_order(labels, generator) if balance else torch.randperm(len(labels), generator=generator)
        draws = torch.rand(len(self.labels), self.augmentation.draws, generator=generator)
        first = epoch * self.steps_per_epoch
        schedule = torch.tensor(
            [
                (step, self.learning_rate(step), self.margin(step), self.average_weight(step))
                for step in range(first, first + self.steps_per_epoch)
            ],
            dtype=torch.float64,
        )
        return Plan(epoch, order.to(self.device), draws.to(self.device), schedule.to(self.device))

    def average_weight(self, step: int) -> float:
        """How far a step moves the averaged weights towards the raw ones; further in the first thousands of steps."""
        return 1 - min(self.settings.ema or 0.0, (2 + step) / (11 + step))

    def batch(self, plan: Plan, rows: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Images as they are stored, or features; their labels and views, and the numbers that vary the images."""
        chosen = plan.order[rows]
        place, draws = chosen, plan.draws[rows]
        if self.features:
            place = self.features.rows(chosen, plan.epoch)
            draws = self.features.draws[place.cpu()].to(self.device)
        images = self.images[place.to(self.images.device)].to(self.device)
        return images, self.labels[chosen], self.views[chosen], draws

    def seen(self, images: Tensor, label: Tensor, view: Tensor, draws: Tensor) -> tuple[Tensor, Tensor, Mixed | None]:
        """Images and their views as the network sees them, and what was laid over them, if anything is."""
        image = images.float() if self.features else augmented(images, self.preprocessing, self.augmentation, draws)
        view = mirrored_view(view, self.augmentation, draws)
        if not self.augmentation.mixup:
            return image, view, None
        image, others, shares = mixed(image, label, self.augmentation.mixup, draws[:, 9])
        return image, view, (others, shares)

    @torch.no_grad()
    def taught(self, image: Tensor) -> Tensor | None:
        """The mean answer of the teachers to these images [B, classes]; None where there are none.

        On a GPU they answer in bfloat16: in float32 they would take longer than the training of a small network.
        """
        if not self.teachers:
            return None
        short = self.device.type == "cuda" or self.settings.precision == "bf16"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=short):
            return torch.stack([softened(teacher(image)) for teacher in self.teachers]).mean(0)

    def update(
        self, module: nn.Module, images: Tensor, label: Tensor, view: Tensor, draws: Tensor, numbers: Tensor
    ) -> Tensor:
        """One step of the optimiser; returns the loss. Nothing in it waits for a GPU: it can be a CUDA graph.

        `numbers` is the step's row of `Plan.schedule`.
        """
        settings = self.settings
        step, rate, margin, weight = numbers.unbind()
        image, view, over = self.seen(images, label, view, draws)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=settings.precision == "bf16"):
            prediction = module(image)
        loss = self.loss(prediction, label, view, margin.float(), over, self.taught(image))
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), settings.clip or math.inf)
        # From the first NaN on, the optimiser leaves the weights as they are, so that the fault can still be found.
        result = torch.where((self.first_fault < 0) & ~norm.isfinite(), step.long(), self.first_fault)
        self.first_fault.copy_(result)
        self.optimizer.found_inf = (result >= 0).float()  # type: ignore[attr-defined]
        for group in self.optimizer.param_groups:
            group["lr"] = rate.float() * group["share"]
        self.optimizer.step()
        with torch.no_grad():
            self.sums += torch.stack([loss.double(), (prediction.logit.argmax(1) != label).double().sum()])
            if settings.ema:
                average, raw = self.averaged
                moves = torch._foreach_sub(raw, average)
                torch._foreach_mul_(moves, weight.float())
                torch._foreach_add_(average, moves)
        return loss.detach()

    def refuse_faults(self) -> None:
        """End the run if a gradient was NaN or infinite, saying at which step and in which layer."""
        fault = int(self.first_fault)
        if fault < 0:
            return
        epoch, batch = divmod(fault, self.steps_per_epoch)
        start = batch * self.settings.batch_size
        images, label, view, draws = self.batch(self.plan(epoch), slice(start, start + self.settings.batch_size))
        image, view, over = self.seen(images, label, view, draws)
        taught = self.taught(image)
        if taught is not None and not taught.isfinite().all():
            where = f"the answers of {' or '.join(self.settings.teachers)}, which it learns from"
        else:
            where = first_non_finite(
                self.trained, image, lambda found: self.loss(found, label, view, self.margin(fault), over, taught)
            )
        kept = self.record.last
        raise CheckFailed(
            f"NaN at step {fault} (epoch {epoch + 1}): first in {where}; "
            f"the last good checkpoint, after {counted(kept.epoch if kept else 0, 'epoch')}, is kept in {self.out}"
        )

    def finish_epoch(self, seconds: float, steps: int) -> Epoch:
        """Measure on the validation split, write the history and a checkpoint."""
        settings, images = self.settings, self.steps_per_epoch * self.settings.batch_size
        loss, wrong = sum_over_processes(self.sums).tolist()
        validation = self.splits.validation
        checking = f"epoch {self.epoch}/{settings.epochs}  {len(validation):,} validation images"
        doing(checking, self.step, of=self.total_steps)
        rows = slice(rank(), None, world_size())
        answers = np.zeros((2, len(validation)))  # the rows of other processes stay 0
        directions = self.validation_directions[rows] if self.validation_directions else None
        answers[:, rows] = measure(self.validated(rows), validation.labels[rows], directions)
        wrong_ones, degrees = sum_over_processes(torch.from_numpy(answers).to(self.device)).cpu().numpy()
        row = Epoch(
            epoch=self.epoch,
            step=self.step,
            train_loss=loss / (self.steps_per_epoch * world_size()),
            train_error=wrong / images,
            validation_error=float(wrong_ones.mean()),
            direction_error=median(degrees[wrong_ones == 0]),
            lr=self.learning_rate(self.step - 1),
            margin=self.margin(self.step - 1) if settings.loss == "spread" else None,
            images_per_second=steps * settings.batch_size / seconds,
            seconds=seconds,
        )
        self.record = replace(self.record, history=(*self.record.history, row))
        self.sums.zero_()
        self.save(best=as_good_as_the_best(self.record.history, len(validation))[-1])
        return row

    def validated(self, rows: slice) -> Outputs:
        """The answers of the averaged weights to the validation images at `rows`."""
        if self.features is None:
            return outputs(self.average, self.splits.validation, self.preprocessing, self.device, rows)
        head, features = Head(self.average), self.features.validation[rows]
        return answers_to(head, features, Tensor.float, self.device, self.record.model.classes)

    def save(self, *, best: bool) -> None:
        """Write a checkpoint (process 0 does)."""
        self.refuse_faults()
        loss, wrong = sum_over_processes(self.sums).tolist()
        self.record = replace(self.record, progress=Progress(self.epoch, self.step, (loss, wrong)))
        if rank() == 0:
            state = {f"model.{name}": tensor for name, tensor in self.network.state_dict().items()}
            state |= checkpoint.optimizer_tensors(self.optimizer, self.names)
            weights = self.average.state_dict()
            self.record = checkpoint.save(self.out, self.record, weights, state, epoch=self.epoch, best=best)

    def ask_to_stop(self) -> None:
        self.stop_asked = True

    def stop_if_asked(self) -> None:
        """End the run, just saved, if a signal asked for it and there is more to do."""
        if self.stop_asked and self.step < self.total_steps:
            again = command_line(*started, "train", "--resume", self.out)
            raise Stopped(f"stopped and saved after {counted(self.step, 'step')}; continue with: {again}")
