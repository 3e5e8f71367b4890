"""What a training run shows and leaves behind: how far it is, metrics.csv, learning curves, and what callbacks keep."""

import csv
import io
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from qcn.networks.distributed import rank
from qcn.networks.model import routed_by
from qcn.networks.zoo import parameter_count
from qcn.pages.plots import COLOURS, figure
from qcn.storage.files import write_text
from qcn.terminal import progress
from qcn.terminal.text import command_line, counted, one_line, started
from qcn.train.record import Epoch, Run
from qcn.train.trackers import Callback, TensorBoard, Tracker

DRAW_EVERY_S = 10.0  # the learning curves: a picture takes as long as a short epoch on a GPU
LONG_S = 3600.0  # a run that takes longer says so at its start
SETTLED_S = 5.0  # of training, to tell from how long the whole takes


class Logbook:
    """Keeps the log of a run, as a context around its epochs. With several processes only the first one writes."""

    def __init__(self, folder: Path, run: Run, steps_per_epoch: int, callbacks: Sequence[Callback] = ()) -> None:
        self.folder, self.epochs, self.batch = folder, run.settings.epochs, run.settings.batch_size
        self.active = rank() == 0
        self.run, self.waiting = run, [*callbacks, TensorBoard()] if self.active else []
        self.callbacks: list[Callback] = []  # those that have begun
        self.name, self.steps, self.total = run.model.name, steps_per_epoch, steps_per_epoch * self.epochs
        self.warned = False
        self._first: tuple[float, int] | None = None  # when training began here, after the first step, and at which
        self._held = ExitStack()
        self.drawn = -math.inf  # when the curves were drawn last

    def __enter__(self) -> "Logbook":
        self._held.enter_context(progress.shown())
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._held:
            self._tell(lambda one: one.end(self.run, error))

    def begin(self, network: nn.Module, device: torch.device, remarks: Sequence[str]) -> None:
        """At the start: what is trained, by what, and where to."""
        steps = f"{counted(self.epochs, 'epoch')} of {counted(self.steps, 'step')} of {counted(self.batch, 'image')}"
        self.say(f"{self.name}: {parameter_count(network):,} parameters, {steps}")
        self.say(f"device: {_device(device)}")
        if body := routed_by(network):
            self.say(f"routing: {body}")
        self.say(f"folder: {self.folder}")
        for remark in remarks:
            self.say(remark)
        for one in self.waiting:
            one.begin(self.folder, self.run)
            self.callbacks.append(one)

    def _tell(self, what: Callable[[Callback], None]) -> None:
        """Tell all callbacks. A tracker that fails is left out from then on, and the training goes on."""
        for one in tuple(self.callbacks):
            try:
                what(one)
            except Exception as error:
                if not isinstance(one, Tracker):
                    raise
                self.callbacks.remove(one)
                self.say(f"warning: {one.name} failed, and gets no more of this run: {one_line(str(error))}")

    def say(self, line: str) -> None:
        if self.active:
            progress.say(line)

    def progress(self, epoch: int, step: int, loss: float) -> None:
        """After some steps."""
        if not self.active:
            return
        self._first = self._first or (time.monotonic(), step)
        took, done = time.monotonic() - self._first[0], step - self._first[1]
        rate = f"  {done * self.batch / took:,.0f} images/s" if done else ""
        progress.doing(f"epoch {epoch + 1}/{self.epochs}  loss {loss:.4f}{rate}", step, of=self.total)
        if not self.warned and done and took >= SETTLED_S:
            self.warned = True
            if (left := self._left(step)) > LONG_S:
                self.say(
                    f"the whole run takes about {progress.duration(left)} here{rate.rstrip()}; Ctrl-C stops and "
                    f"saves it, and you can continue it with: "
                    f"{command_line(*started, 'train', '--resume', self.folder)}"
                )
        self._tell(lambda one: one.progress(step, loss))

    def _left(self, step: int) -> float:
        """Seconds to the end at the pace so far, validation included; 0 where there is none yet."""
        if self._first is None or step <= self._first[1]:
            return 0.0
        return (time.monotonic() - self._first[0]) / (step - self._first[1]) * (self.total - step)

    def epoch_done(self, run: Run, row: Epoch) -> None:
        """After an epoch: print a line, and write the metrics and, at times, the curves again."""
        if not self.active:
            return
        left = self._left(row.step)
        direction = f"  direction {row.direction_error:.1f}° off" if row.direction_error is not None else ""
        self.say(
            f"epoch {row.epoch:>3}/{self.epochs}  loss {row.train_loss:.4f}  "
            f"error {100 * row.train_error:.2f} % train, {100 * row.validation_error:.2f} % validation"
            f"{direction}  {row.images_per_second:,.0f} images/s{f', {progress.duration(left)} left' if left else ''}"
        )
        self.run = run
        self._write_metrics(run)
        if row.epoch < self.epochs and time.monotonic() - self.drawn > DRAW_EVERY_S:
            self._draw_curves(run)
        self._tell(lambda one: one.epoch_done(run, row))

    def finish(self, run: Run) -> None:
        """At the end, also of a run that was killed after its last epoch: the metrics and curves of all epochs."""
        self.run = run
        if self.active:
            self._write_metrics(run)
            self._draw_curves(run)

    def _write_metrics(self, run: Run) -> None:
        table = io.StringIO()
        writer = csv.DictWriter(table, fieldnames=list(asdict(run.history[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, run.history))
        write_text(self.folder / "metrics.csv", table.getvalue())

    def _draw_curves(self, run: Run) -> None:
        last = run.history[-1]
        progress.doing(f"epoch {last.epoch}/{self.epochs}  drawing learning curves", last.step, of=self.total)
        learning_curves(self.folder / "curves.png", run.history)
        self.drawn = time.monotonic()


def _device(device: torch.device) -> str:
    """Its name, as a user knows it."""
    if device.type == "cuda":
        return f"{device}, {torch.cuda.get_device_name(device)}"
    return f"{device}, {counted(torch.get_num_threads(), 'thread')}"


def learning_curves(path: Path, history: Sequence[Epoch]) -> None:
    """Training loss, training and validation error, and how far directions are off where they are learnt, by epoch."""
    epochs = [row.epoch for row in history]
    directions = [row.direction_error for row in history]
    panels = 2 if directions == [None] * len(history) else 3
    with figure(path, panels, 4.5 * panels, 3.4) as (left, right, *others):
        left.plot(epochs, [row.train_loss for row in history], color=COLOURS[0], marker=".")
        first, last = history[0].margin, history[-1].margin
        grows = f" (its margin grows from {first:.1f} to {last:.1f})" if first and last and last > first else ""
        left.set(title=f"Training loss{grows}", xlabel="epoch")
        right.plot(epochs, [100 * row.train_error for row in history], color=COLOURS[0], marker=".", label="training")
        validation = [100 * row.validation_error for row in history]
        right.plot(epochs, validation, color=COLOURS[1], marker=".", label="validation")
        right.set(title="Error, %", xlabel="epoch", ylim=(0, None))
        right.legend(frameon=False)
        for axes in others:
            degrees = [float("nan") if one is None else one for one in directions]
            axes.plot(epochs, degrees, color=COLOURS[1], marker=".")
            axes.set(title="Direction, median degrees off (validation)", xlabel="epoch", ylim=(0, None))
        for axes in (left, right, *others):
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
