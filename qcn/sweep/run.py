"""Runs the trials of a sweep, rung by rung. Each is a folder as `qcn train` makes them: all of it can be resumed.

Weak trials are stopped by successive halving, as in ASHA (Li et al. 2020), but all trials of a rung are waited for: so
the same ones go on whether one process trains or many, and however often the sweep was interrupted. Several processes
may run the same sweep: each takes runs that no other one holds (a lock on the run's folder, which ends with its
process), and waits for those that others train.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qcn import api
from qcn.errors import Stopped, UsageError
from qcn.intervals import wilson
from qcn.names import RUN, Engine
from qcn.storage.files import folder_lock, write_text
from qcn.sweep.plan import Sweep, Trial
from qcn.terminal.progress import doing, muted, part, shown
from qcn.terminal.text import counted
from qcn.train.record import Epoch, Run, load_run
from qcn.train.trackers import Callback
from qcn.train.validation import as_good_as_the_best
from qcn.workers import by_ray

PLAN = "sweep.json"


@dataclass(frozen=True)
class Piece:
    """One run of a trial, to be trained to so many epochs."""

    folder: Path
    settings: dict[str, Any]
    epochs: int
    data_dir: Path


@dataclass(frozen=True)
class Outcome:
    """How a trial did after so many epochs: validation error of each seed, at the epoch that would be kept."""

    trial: Trial
    epochs: int
    errors: tuple[float, ...]
    images: int
    folders: tuple[Path, ...]
    curves: tuple[tuple[float, ...], ...]

    @property
    def error(self) -> float:
        return sum(self.errors) / len(self.errors)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % of it, as far as the number of validation images tells."""
        total = self.images * len(self.errors)
        return wilson(round(self.error * total), total)


class StopAfter(Callback):
    """Stops a run after so many epochs, saved, if it was to train more."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def epoch_done(self, run: Run, row: Epoch) -> None:
        if self.epochs <= row.epoch < run.settings.epochs:
            raise Stopped(f"judged after {counted(row.epoch, 'epoch')}")


def sweep(
    plan: Sweep, out: Path, data_dir: Path, engine: Engine = "process", only: Sequence[str] = ()
) -> list[Outcome]:
    """Run all trials into the folder `out`, or go on where that was stopped. The best is first.

    With `only`, some trials of a sweep that is not judged on the way.
    """
    chosen = plan.only(only)
    out.mkdir(parents=True, exist_ok=True)
    with shown():
        with folder_lock(out):
            text = json.dumps(asdict(plan), indent=1, default=str) + "\n"
            if (out / PLAN).is_file() and (out / PLAN).read_text(encoding="utf-8") != text:
                raise UsageError(f"{out} has another sweep: name another folder with --out, or remove it")
            write_text(out / PLAN, text)
        trials, ended = list(chosen.trials), list[Outcome]()
        for rung, epochs in enumerate(chosen.rungs):
            with part(rung, len(chosen.rungs)):
                for generation in sorted({trial.generation for trial in trials}):  # teachers come first
                    pieces = [
                        Piece(
                            _folder(out, trial, seed),
                            run_settings(chosen, out, trial, seed),
                            min(epochs, chosen.epochs(trial)),
                            data_dir.resolve(),
                        )
                        for trial in trials
                        if trial.generation == generation
                        for seed in trial.seeds
                    ]
                    what = f"of {counted(len(pieces), 'run')} trained to {counted(pieces[0].epochs, 'epoch')}"
                    for place, _ in enumerate(_each(pieces, engine), 1):
                        doing(f"{place} {what}", place, of=len(pieces))
            judged = sorted((_outcome(chosen, trial, epochs, out) for trial in trials), key=lambda one: one.error)
            last = rung + 1 == len(chosen.rungs)
            going_on = 0 if last else chosen.going_on(rung + 1)
            ended[:0] = judged[going_on:]
            trials = [one.trial for one in judged[:going_on]]
        return ended


def advance(piece: Piece) -> None:
    """Train a run to this many epochs, or go on with it."""
    begun = (piece.folder / RUN).is_file()
    done = load_run(piece.folder).progress.epoch if begun else 0
    if done >= piece.epochs:
        return
    stop = [StopAfter(piece.epochs)]
    try:
        with muted():
            if begun:
                api.Run(piece.folder).resume(data_dir=piece.data_dir, callbacks=stop)
            else:
                api.train(**piece.settings, out=piece.folder, data_dir=piece.data_dir, callbacks=stop)
    except Stopped:
        if load_run(piece.folder).progress.epoch < piece.epochs:
            raise


def run_settings(plan: Sweep, out: Path, trial: Trial, seed: int) -> dict[str, Any]:
    """Of one run, with the folders of the trials that teach it."""
    settings = plan.settings(trial, seed)
    if trial.teachers:
        folders = {one.name: str(_folder(out, one, one.seeds[0])) for one in plan.trials}
        settings["teachers"] = tuple(folders.get(name, name) for name in settings["teachers"])
    return settings


def _folder(out: Path, trial: Trial, seed: int) -> Path:
    return out.resolve() / f"{trial.name}-seed{seed}"


def _each(pieces: list[Piece], engine: Engine) -> Iterator[None]:
    """Train them, and say so after each."""
    if engine == "ray":
        yield from by_ray(lambda: advance, pieces)
        return
    left = list(pieces)
    while left:
        for piece in list(left):
            piece.folder.mkdir(parents=True, exist_ok=True)
            with folder_lock(piece.folder, wait=False) as free:
                if not free:
                    continue
                with part(len(pieces) - len(left), len(pieces)):
                    advance(piece)
            left.remove(piece)
            yield
        if left:  # by other processes
            doing("waiting for runs that other processes train")
            with folder_lock(left[0].folder):
                pass


def _outcome(plan: Sweep, trial: Trial, epochs: int, out: Path) -> Outcome:
    folders = tuple(_folder(out, trial, seed) for seed in trial.seeds)
    runs = [load_run(folder) for folder in folders]
    epochs = min(epochs, plan.epochs(trial))
    errors = tuple(kept_error(run, epochs) for run in runs)
    curves = tuple(tuple(row.validation_error for row in run.history[:epochs]) for run in runs)
    return Outcome(trial, epochs, errors, runs[0].data.validation, folders, curves)


def kept_error(run: Run, epochs: int) -> float:
    """The validation error of the weights that would be kept after so many epochs."""
    history, kept = run.history[:epochs], 0.0
    for end, row in enumerate(history, 1):
        if as_good_as_the_best(history[:end], run.data.validation)[-1]:
            kept = row.validation_error
    return kept
