"""What a sweep file asks for: its trials, and after how many epochs weak ones are stopped. No torch here.

dataset = "my/pictures"                          # a setting of `qcn train`, by its name in Python
epochs = 27
model = ["qcn-deep", "cnn-small"]                # a list: each of them
lr = { low = 0.002, high = 0.02, log = true }    # a range: drawn from at random
seed = [0, 1]                                    # a trial is trained with each seed; their mean counts

[sweep]
draws = 4       # from the ranges, for each combination of the lists
budget = 300    # epochs of all trials together: as many draws as it pays for
keep = 3        # of so many trials, one goes on to three times as many epochs; 1: all of them train to the end
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qcn.errors import UsageError, unknown_name
from qcn.settings import settings_of
from qcn.storage import records
from qcn.storage.toml import read_toml
from qcn.train.settings import Settings

FEWEST = 2  # epochs before a trial is judged
MOST = 1000  # trials


@dataclass(frozen=True)
class Range:
    """A setting that is drawn: evenly from `low` to `high`, or its logarithm is; whole numbers if both ends are."""

    low: int | float
    high: int | float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise UsageError(f"a range must rise, and start above 0 with log, not go from {self.low} to {self.high}")

    def draw(self, chosen: np.random.Generator) -> int | float:
        """A number with three digits."""
        low, high = (math.log(end) if self.log else end for end in (self.low, self.high))
        value = chosen.uniform(low, high)
        value = float(f"{math.exp(value) if self.log else value:.3g}")
        return round(value) if isinstance(self.low, int) and isinstance(self.high, int) else value


@dataclass(frozen=True)
class Options:
    """The table [sweep]."""

    draws: int | None = None
    budget: int | None = None
    keep: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("draws", "budget", "keep"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"{name} must be 1 or more, not {value}")


@dataclass(frozen=True)
class Trial:
    """Settings to be judged: `changed` are those that differ between trials; it is trained once with each seed."""

    name: str
    changed: dict[str, Any]


@dataclass(frozen=True)
class Sweep:
    """All trials; `common` are the settings that they share.

    rungs   numbers of epochs: after each, one of `keep` trials goes on to the next; the last is the end
    """

    common: dict[str, Any]
    trials: tuple[Trial, ...]
    seeds: tuple[int, ...]
    rungs: tuple[int, ...]
    keep: int

    def settings(self, trial: Trial, seed: int) -> dict[str, Any]:
        return {**self.common, **trial.changed, "seed": seed}

    def going_on(self, rung: int) -> int:
        """How many trials train to this rung."""
        return max(1, len(self.trials) // self.keep**rung)

    @property
    def cost(self) -> int:
        """Epochs of all runs."""
        steps = zip(self.rungs, (0, *self.rungs), strict=False)
        return len(self.seeds) * sum(self.going_on(rung) * (end - start) for rung, (end, start) in enumerate(steps))


def read_sweep(path: Path) -> Sweep:
    """The sweep that this file asks for; UsageError says what is wrong in it."""
    tables = read_toml(path, "a sweep")
    options = records.read(Options, {**vars(Options()), **tables.pop("sweep", {})}, f"{path}: [sweep]")
    known = settings_of(Settings)
    if strange := tables.keys() - known.keys():
        raise unknown_name(f"setting in {path}", min(strange), known)
    if "dataset" not in tables or "epochs" not in tables:
        raise UsageError(f"{path} must name the dataset and the number of epochs")
    seeds = tables.pop("seed", 0)
    lists, ranges, common = dict[str, list[Any]](), dict[str, Range](), dict[str, Any]()
    for name, value in tables.items():
        if isinstance(value, Mapping):
            ranges[name] = records.read(Range, {"log": False, **value}, f"{path}: {name}")
        elif isinstance(value, list):
            lists[name] = value
        else:
            common[name] = value
    if "epochs" not in common:
        raise UsageError(f"{path}: epochs is one number: trials that differ in it cannot be compared as they go")
    if [] in lists.values():
        raise UsageError(f"{path}: a list has no values")
    rungs = _rungs(common["epochs"], options.keep)
    seeds = tuple(seeds) if isinstance(seeds, list) else (seeds,)

    def of(draws: int) -> Sweep:
        chosen = np.random.default_rng(options.seed)
        drawn = [{name: one.draw(chosen) for name, one in ranges.items()} for _ in range(draws)]
        grid = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
        trials = (Trial(f"trial{place:03}", {**a, **b}) for place, (b, a) in enumerate(itertools.product(drawn, grid)))
        return Sweep(common, tuple(trials), seeds, rungs, options.keep)

    if not ranges:
        sweep = of(1)
    elif options.draws:
        sweep = of(options.draws)
    elif budget := options.budget:
        affordable = itertools.takewhile(lambda one: one.cost <= budget, map(of, range(1, MOST + 1)))
        sweep = max(affordable, key=lambda one: one.cost, default=of(1))
    else:
        raise UsageError(f"{path} has ranges: say in [sweep] how many draws of them, or a budget of epochs")
    if len(sweep.trials) > MOST:
        raise UsageError(f"{path} asks for {len(sweep.trials):,} trials; at most {MOST:,} are made")
    if options.budget and sweep.cost > options.budget:
        raise UsageError(
            f"{path}: {len(sweep.trials)} trials take {sweep.cost} epochs, and the budget is {options.budget}: raise "
            "it, or shorten the lists or the epochs"
        )
    return sweep


def _rungs(epochs: int, keep: int) -> tuple[int, ...]:
    """After how many epochs trials are judged; the last is the end."""
    rungs = [epochs]
    while keep > 1 and rungs[0] // keep >= FEWEST:
        rungs.insert(0, rungs[0] // keep)
    return tuple(rungs)
