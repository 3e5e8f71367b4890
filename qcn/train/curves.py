"""The learning curves of a run, as a PNG file."""

from collections.abc import Sequence
from pathlib import Path

from qcn.pages.plots import COLOURS, figure
from qcn.train.record import Epoch


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
