"""The pictures that commands draw, as PNG files."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from qcn.intervals import ErrorRate
from qcn.storage.files import atomic_write

COLOURS = ("#2a6fbb", "#d1495b", "#3c9d6e", "#8e6bbf")


@contextmanager
def figure(path: Path, columns: int, width: float, height: float, polar: bool = False) -> Iterator[list[Any]]:
    """Yield `columns` axes side by side; the picture is written when the block ends."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(width, height), layout="constrained")
    axes = canvas.subplots(1, columns, squeeze=False, subplot_kw={"polar": polar})[0]
    yield list(axes)
    with atomic_write(path) as aside, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a class's name: the tables have it
        canvas.savefig(aside, format="png", dpi=130, bbox_inches="tight", pad_inches=0.12)


def confusion(path: Path, matrices: Mapping[str, Sequence[Sequence[int]]], classes: Sequence[str]) -> None:
    """One confusion matrix per split, in per cent of the true class."""
    size = 1.6 + 0.5 * len(classes)
    with figure(path, len(matrices), size * len(matrices), size) as axes:
        for ax, (split, counts) in zip(axes, matrices.items(), strict=True):
            shares = [[100 * n / max(1, sum(row)) for n in row] for row in counts]
            ax.imshow(shares, cmap="Blues", vmin=0, vmax=100)
            ax.set_xticks(range(len(classes)), classes, rotation=45, ha="right")
            ax.set_yticks(range(len(classes)), classes)
            ax.set(title=f"{split}: % of each true class", xlabel="predicted class", ylabel="true class")
            for true, row in enumerate(shares):
                for guess, share in enumerate(row):
                    if share >= 0.5:
                        ax.text(guess, true, f"{share:.0f}", ha="center", va="center", color="w" if share > 50 else "k")


def error_by_view(path: Path, axis: str, curves: Mapping[str, Mapping[int, ErrorRate]]) -> None:
    """Error with its 95 % interval at each azimuth or elevation, one colour per split."""
    with figure(path, 1, 7, 3.4) as (ax,):
        for colour, (split, rates) in zip(COLOURS, curves.items(), strict=False):
            angles = sorted(rates)
            values = [100 * rates[angle].error for angle in angles]
            spread = [
                [100 * (rates[angle].error - rates[angle].low) for angle in angles],
                [100 * (rates[angle].high - rates[angle].error) for angle in angles],
            ]
            ax.errorbar(angles, values, spread, fmt="o", color=colour, capsize=2, label=split, clip_on=False)
        every = sorted({angle for rates in curves.values() for angle in rates})
        ax.set_xticks(every)
        ax.set_title(f"Error by {axis}, with 95 % intervals", loc="left")
        ax.set(xlabel=f"{axis}, degrees", ylabel="error, %", ylim=(0, None))
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(curves))


def direction_by_azimuth(path: Path, roses: Mapping[str, Mapping[int, float]]) -> None:
    """A rose per split: how far directions are off, in the median, for objects seen from each azimuth (0°: front)."""
    with figure(path, len(roses), 4.2 * len(roses), 4.4, polar=True) as axes:
        furthest = max(degrees for rose in roses.values() for degrees in rose.values())
        for ax, (split, rose) in zip(axes, roses.items(), strict=True):
            width = math.radians(0.9 * min((after - before for before, after in pairwise(sorted(rose))), default=30))
            ax.bar([math.radians(one) for one in rose], list(rose.values()), width=width, color=COLOURS[0])
            ax.set_theta_zero_location("N")
            ax.set(ylim=(0, 1.05 * furthest), title=f"{split}: median degrees off, by azimuth")
            ax.yaxis.set_major_formatter("{x:g}°")
