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

Trials with little in common have tables of their own, instead of lists and ranges. With keep = 1 they may differ in
epochs and seeds; a teacher is a run, or the name of a trial, whose first seed teaches:

[trials.large]
model = "cnn-wide"
[trials.small]
model = "qcn-deep"
teachers = ["large"]
"""

import fnmatch
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of a trial, whose folder is called so


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
    """Settings to be judged: `changed` are those that differ between trials; it is trained once with each seed.

    teachers     trials whose runs it learns from
    generation   0, or one more than that of its last teacher
    """

    name: str
    changed: dict[str, Any]
    seeds: tuple[int, ...] = (0,)
    teachers: tuple[str, ...] = ()
    generation: int = 0


@dataclass(frozen=True)
class Sweep:
    """All trials; `common` are the settings that they share.

    rungs   numbers of epochs: after each, one of `keep` trials goes on to the next; the last is the end
    """

    common: dict[str, Any]
    trials: tuple[Trial, ...]
    rungs: tuple[int, ...]
    keep: int

    def settings(self, trial: Trial, seed: int) -> dict[str, Any]:
        """Of one run; a teacher that is a trial is its name, as in the file."""
        return {**self.common, **trial.changed, "seed": seed}

    def epochs(self, trial: Trial) -> int:
        """To the end."""
        return int(self.settings(trial, 0)["epochs"])

    def going_on(self, rung: int) -> int:
        """How many trials train to this rung."""
        return max(1, len(self.trials) // self.keep**rung)

    @property
    def runs(self) -> int:
        return sum(len(trial.seeds) for trial in self.trials)

    @property
    def cost(self) -> int:
        """Epochs of all runs."""
        if self.keep == 1:
            return sum(len(trial.seeds) * self.epochs(trial) for trial in self.trials)
        steps = zip(self.rungs, (0, *self.rungs), strict=False)
        each = sum(self.going_on(rung) * (end - start) for rung, (end, start) in enumerate(steps))
        return len(self.trials[0].seeds) * each

    def only(self, names: Sequence[str]) -> "Sweep":
        """The trials of these names or patterns, and their teachers; all without names."""
        if not names:
            return self
        every, chosen = [trial.name for trial in self.trials], set[str]()
        for name in names:
            if not (matching := fnmatch.filter(every, name)):
                raise unknown_name("trial", name, every)
            chosen.update(matching)
        if self.keep > 1:
            raise UsageError("trials that are judged train together: only with keep = 1 can some be named")
        trials: tuple[Trial, ...] = ()
        for trial in reversed(self.trials):  # teachers come before those that they teach
            if trial.name in chosen:
                chosen.update(trial.teachers)
                trials = (trial, *trials)
        return replace(self, trials=trials)


def read_sweep(path: Path) -> Sweep:
    """The sweep that this file asks for; UsageError says what is wrong in it."""
    tables = read_toml(path, "a sweep")
    options = records.read(Options, {**vars(Options()), **tables.pop("sweep", {})}, f"{path}: [sweep]")
    named = tables.pop("trials", None)
    _check_names(path, tables)
    seeds = _seeds(path, tables.pop("seed", 0))
    lists, ranges, common = dict[str, list[Any]](), dict[str, Range](), dict[str, Any]()
    for name, value in tables.items():
        if isinstance(value, Mapping):
            ranges[name] = records.read(Range, {"log": False, **value}, f"{path}: {name}")
        elif isinstance(value, list) and named is None:
            lists[name] = value
        else:
            common[name] = value
    if named is not None:
        if ranges:
            raise UsageError(f"{path}: a sweep has ranges and lists, or [trials] of their own, not both")
        return _checked(path, _named(path, named, common, seeds, options.keep), options)
    _check_whole(path, common, lists)
    if [] in lists.values():
        raise UsageError(f"{path}: a list has no values")
    rungs = _rungs(common["epochs"], options.keep)

    def of(draws: int) -> Sweep:
        chosen = np.random.default_rng(options.seed)
        drawn = [{name: one.draw(chosen) for name, one in ranges.items()} for _ in range(draws)]
        grid = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
        pairs = enumerate(itertools.product(drawn, grid))
        trials = tuple(Trial(f"trial{place:03}", {**a, **b}, seeds) for place, (b, a) in pairs)
        return Sweep(common, trials, rungs, options.keep)

    if not ranges:
        sweep = of(1)
    elif options.draws:
        sweep = of(options.draws)
    elif budget := options.budget:
        affordable = itertools.takewhile(lambda one: one.cost <= budget, map(of, range(1, MOST + 1)))
        sweep = max(affordable, key=lambda one: one.cost, default=of(1))
    else:
        raise UsageError(f"{path} has ranges: say in [sweep] how many draws of them, or a budget of epochs")
    return _checked(path, sweep, options)


def _named(path: Path, named: Any, common: dict[str, Any], seeds: tuple[int, ...], keep: int) -> Sweep:
    """The trials of tables [trials.NAME], teachers first."""
    if not isinstance(named, dict) or not named or not all(isinstance(table, dict) for table in named.values()):
        raise UsageError(f"{path}: [trials] has a table of settings for each trial")
    for name, table in named.items():
        if not NAME.fullmatch(name):
            raise UsageError(f"{path}: the name of a trial has letters, digits, '.', '_' and '-', not {name!r}")
        _check_names(path, table)
        _check_whole(path, {**common, **table})
        if not isinstance(table.get("teachers", []), list):
            raise UsageError(f"{path}: teachers of {name} is a list of runs and trials")
    trials, waiting = list[Trial](), dict(named)
    for generation in itertools.count():
        if not waiting:
            break
        ready = [name for name, table in waiting.items() if waiting.keys().isdisjoint(table.get("teachers", ()))]
        if not ready:
            raise UsageError(f"{path}: {min(waiting)} would teach itself")
        for name in ready:
            table = waiting.pop(name)
            changed = {key: value for key, value in table.items() if key != "seed"}
            teachers = tuple(teacher for teacher in table.get("teachers", ()) if teacher in named)
            own = _seeds(path, table["seed"]) if "seed" in table else seeds
            trials.append(Trial(name, changed, own, teachers, generation))
    sweep = Sweep(common, tuple(trials), (), keep)
    epochs = {sweep.epochs(trial) for trial in trials}
    if keep > 1 and (len(epochs) > 1 or len({trial.seeds for trial in trials}) > 1):
        raise UsageError(f"{path}: trials that differ in epochs or seeds cannot be compared as they go: set keep = 1")
    if keep > 1 and any(trial.teachers for trial in trials):
        raise UsageError(f"{path}: a trial that teaches must train to the end: set keep = 1")
    return replace(sweep, rungs=_rungs(max(epochs), keep))


def _check_names(path: Path, settings: Mapping[str, Any]) -> None:
    known = settings_of(Settings)
    if strange := settings.keys() - known.keys():
        raise unknown_name(f"setting in {path}", min(strange), known)


def _check_whole(path: Path, settings: Mapping[str, Any], lists: Mapping[str, Any] | None = None) -> None:
    if not {"dataset", "epochs"} <= {*settings, *(lists or ())}:
        raise UsageError(f"{path} must name the dataset and the number of epochs")
    if not isinstance(settings.get("epochs"), int):
        raise UsageError(f"{path}: epochs is one number: trials that differ in it cannot be compared as they go")


def _seeds(path: Path, value: Any) -> tuple[int, ...]:
    if value == []:
        raise UsageError(f"{path}: a list has no values")
    return tuple(value) if isinstance(value, list) else (value,)


def _checked(path: Path, sweep: Sweep, options: Options) -> Sweep:
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
