"""What a training run shows and leaves behind: a progress bar, metrics.csv, TensorBoard events, learning curves."""

import csv
import io
import math
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from qcn.distributed import rank
from qcn.files import write_text
from qcn.train.curves import learning_curves
from qcn.train.record import Epoch, Run

DRAW_EVERY_S = 10.0  # the learning curves: a picture takes as long as a short epoch on a GPU


class Logbook:
    """Keeps the log of a run, as a context around its epochs. With several processes only the first one writes."""

    def __init__(self, folder: Path, run: Run, steps_per_epoch: int) -> None:
        self.folder, self.epochs, self.batch = folder, run.settings.epochs, run.settings.batch_size
        self.active = rank() == 0
        self.console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps  {task.fields[rate]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not (self.active and self.console.is_terminal),
        )
        step = run.progress.step
        total = steps_per_epoch * self.epochs
        self.task = self.bar.add_task(f"epoch {run.progress.epoch + 1}", total=total, completed=step, rate="")
        self.step = step
        self.drawn = -math.inf  # when the curves were drawn last

    def __enter__(self) -> "Logbook":
        self.bar.start()
        if self.active:
            from torch.utils.tensorboard import SummaryWriter

            self.events = SummaryWriter(str(self.folder / "tensorboard"), purge_step=self.step)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        if self.active:
            self.events.close()

    def say(self, line: str) -> None:
        if self.active:
            self.console.print(line, highlight=False, soft_wrap=True)

    def progress(self, epoch: int, step: int, loss: float) -> None:
        """After some steps: move the bar on."""
        speed = self.bar.tasks[0].speed
        rate = f"{speed * self.batch:,.0f} images/s" if speed else ""
        description = f"epoch {epoch + 1}/{self.epochs}  loss {loss:.4f}"
        self.bar.update(self.task, completed=step, description=description, rate=rate)
        if self.active:
            self.events.add_scalar("train/loss", loss, step)

    def epoch_done(self, run: Run, row: Epoch) -> None:
        """After an epoch: print a line, and write the metrics and, at times, the curves again."""
        if not self.active:
            return
        self.say(
            f"epoch {row.epoch:>3}/{self.epochs}  loss {row.train_loss:.4f}  "
            f"error {100 * row.train_error:.2f} % train, {100 * row.validation_error:.2f} % validation  "
            f"{row.images_per_second:,.0f} images/s"
        )
        for name in ("train_error", "validation_error", "lr", "images_per_second"):
            self.events.add_scalar(name.replace("_", "/", 1), getattr(row, name), row.step)
        table = io.StringIO()
        writer = csv.DictWriter(table, fieldnames=list(asdict(row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, run.history))
        write_text(self.folder / "metrics.csv", table.getvalue())
        if row.epoch == self.epochs or time.monotonic() - self.drawn > DRAW_EVERY_S:
            learning_curves(self.folder / "curves.png", run.history)
            self.drawn = time.monotonic()
