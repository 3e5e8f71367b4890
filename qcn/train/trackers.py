"""Who is told how a training run goes: callbacks of a user's own, TensorBoard, MLflow, and Weights & Biases.

    class Print(qcn.Callback):
        def epoch_done(self, run, row):
            print(row.epoch, row.validation_error)

    qcn.train("my/pictures", callbacks=[Print()], tracker="mlflow")

TensorBoard's events are always written. A tracker is a service that was chosen by name: its package is imported by its
`start`, and nowhere else. If it cannot start, neither does the run; if it fails later, the training goes on without it
(`qcn.train.logbook`). No torch here: the names are checked before it is imported.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qcn.errors import MissingError, Stopped, UsageError, unknown_name
from qcn.names import RUN
from qcn.packages import installed
from qcn.storage.files import write_text
from qcn.terminal.progress import doing, say
from qcn.terminal.text import command_line, one_line

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from qcn.train.record import Epoch, Run

MEASURED = ("train_error", "validation_error", "direction_error", "lr", "images_per_second")


class Callback:
    """Is told how a run goes, if there are several processes by the first one: override what you need.

    `run` is its record so far, as in run.json. An error that one of these methods raises ends the run, which can be
    resumed.
    """

    def begin(self, folder: Path, run: "Run") -> None:
        """Before the first step here. If the run goes on from a checkpoint, `run.progress.step` is not 0."""

    def progress(self, step: int, loss: float) -> None:
        """After some steps."""

    def epoch_done(self, run: "Run", row: "Epoch") -> None:
        """After an epoch has been measured and saved; `row` is also the last of `run.history`."""

    def end(self, run: "Run", error: BaseException | None) -> None:
        """At the end: `error` is None if the run is complete, else what stopped it, such as `qcn.errors.Stopped`."""


class TensorBoard(Callback):
    """Writes events to the run's folder, where nothing is before the run has been saved."""

    def begin(self, folder: Path, run: "Run") -> None:
        self.folder, self.first = folder / "tensorboard", run.progress.step

    @cached_property
    def events(self) -> "SummaryWriter":
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self.folder), purge_step=self.first)

    def progress(self, step: int, loss: float) -> None:
        self.events.add_scalar("train/loss", loss, step)

    def epoch_done(self, run: "Run", row: "Epoch") -> None:
        for name, value in metrics(row).items():
            self.events.add_scalar(name, value, row.step)

    def end(self, run: "Run", error: BaseException | None) -> None:
        if "events" in vars(self):
            self.events.close()


class Tracker(Callback):
    """A service that keeps runs: it gets the settings, the metrics of each epoch and, at the end, the run's files.

    The id that it knows the run by stays in the run's folder, so that a resumed run goes on there.
    """

    name: str  # for `--tracker`; its package and the extra that installs it have the same

    def start(self, run: "Run", known: str) -> str:
        """Begin a run, or go on with the one of this id; returns the id."""
        raise NotImplementedError

    def begin(self, folder: Path, run: "Run") -> None:
        self.folder, kept = folder, id_file(folder, self.name)
        # Without run.json the id is that of a start that failed.
        known = kept.read_text(encoding="utf-8") if kept.is_file() and (folder / RUN).is_file() else ""
        doing(f"starting {self.name}")
        with _errors(f"{self.name} could not start"):
            self.id = self.start(run, known)
        write_text(kept, self.id)

    def add(self, run: "Run", known: str, folders: Mapping[str, Path]) -> None:
        """Add folders by their names to what the run of this id has, which has ended."""
        raise NotImplementedError

    def files(self, run: "Run") -> list[Path]:
        """What evaluation and export need of a run, and what a person looks at."""
        best = run.weights("best")
        return [self.folder / name for name in (RUN, "metrics.csv", "curves.png", *([best.file] if best else []))]


class MLflow(Tracker):
    """In the store that MLFLOW_TRACKING_URI names, or else MLflow's own default, a file: no server is needed."""

    name = "mlflow"

    def start(self, run: "Run", known: str) -> str:
        from mlflow import MlflowClient, get_tracking_uri
        from mlflow.entities import Param

        client: Any = MlflowClient()
        self.client = client
        if known:
            client.update_run(known, "RUNNING")
            client.set_tag(known, "epochs", run.settings.epochs)  # a parameter cannot change
        else:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "qcn")
            experiment = client.get_experiment_by_name(name)
            number = experiment.experiment_id if experiment else client.create_experiment(name)
            known = client.create_run(number, run_name=self.folder.name).info.run_id
            client.log_batch(known, params=[Param(key, str(value)) for key, value in asdict(run.settings).items()])
        say(f"mlflow: run {known} in {get_tracking_uri()}")
        return known

    def epoch_done(self, run: "Run", row: "Epoch") -> None:
        for name, value in {"train/loss": row.train_loss, **metrics(row)}.items():
            self.client.log_metric(self.id, name, value, step=row.epoch)

    def end(self, run: "Run", error: BaseException | None) -> None:
        for path in self.files(run) if error is None else ():
            self.client.log_artifact(self.id, str(path))
        stopped = isinstance(error, Stopped | KeyboardInterrupt)
        self.client.set_terminated(self.id, "KILLED" if stopped else "FAILED" if error else "FINISHED")

    def add(self, run: "Run", known: str, folders: Mapping[str, Path]) -> None:
        from mlflow import MlflowClient

        for name, folder in folders.items():
            MlflowClient().log_artifacts(known, str(folder), name)


class WeightsAndBiases(Tracker):
    """Offline, in the run's folder, unless WANDB_MODE says otherwise: nothing is sent that nobody asked to send."""

    name = "wandb"

    def start(self, run: "Run", known: str) -> str:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "qcn"),
            name=self.folder.name,
            id=known or None,
            resume="allow",
            dir=self.folder,
            mode=mode,
            config=asdict(run.settings),
            settings=wandb.Settings(silent=True, console="off", disable_git=True),
        )
        hint = (
            f"; upload it by: wandb sync {command_line(self.folder)}/wandb/offline-run-*" if mode == "offline" else ""
        )
        say(f"wandb: run {self.run.id}{hint}")
        return str(self.run.id)

    def epoch_done(self, run: "Run", row: "Epoch") -> None:
        self.run.log({"train/loss": row.train_loss, **metrics(row)}, step=row.epoch)

    def end(self, run: "Run", error: BaseException | None) -> None:
        if error is None:
            import wandb

            artefact = wandb.Artifact(f"run-{self.id}", type="run")
            for path in self.files(run):
                artefact.add_file(str(path))
            self.run.log_artifact(artefact)
            self.run.log({"curves": wandb.Image(str(self.folder / "curves.png"))}, step=run.progress.epoch)
        self.run.finish(exit_code=0 if error is None else 1)

    def add(self, run: "Run", known: str, folders: Mapping[str, Path]) -> None:
        import wandb

        self.start(run, known)
        for name, folder in folders.items():
            artefact = wandb.Artifact(f"{name}-{known}", type=name)
            artefact.add_dir(str(folder))
            self.run.log_artifact(artefact)
        self.run.finish()


TRACKERS = {one.name: one for one in (MLflow, WeightsAndBiases)}


def metrics(row: "Epoch") -> dict[str, float]:
    """Of an epoch by the names in trackers, such as validation/error; without those that are not known."""
    return {name.replace("_", "/", 1): value for name in MEASURED if (value := getattr(row, name)) is not None}


def id_file(folder: Path, name: str) -> Path:
    """Where a run keeps the id that this tracker knows it by."""
    return folder / f"{name}.id"


def keep(folder: Path, folders: Mapping[str, Path]) -> None:
    """Add folders, such as a bundle and its report, to a run in the trackers that it began with."""
    from qcn.train.record import load_run

    if not (trackers := trackers_of(folder)):
        raise UsageError(f"{folder} was trained without --tracker: nothing keeps what belongs to it")
    run = load_run(folder)
    for tracker in trackers:
        doing(f"adding {' and '.join(folders)} to {tracker.name}")
        tracker.folder = folder
        known = id_file(folder, tracker.name).read_text(encoding="utf-8")
        with _errors(f"{tracker.name} could not keep {' and '.join(folders)}"):
            tracker.add(run, known, folders)
        say(f"{tracker.name}: {' and '.join(folders)} added to run {known}")


@contextmanager
def _errors(what: str) -> Iterator[None]:
    """Any error of a tracker's package, as one of ours."""
    try:
        yield
    except Exception as error:
        raise MissingError(f"{what}: {one_line(str(error))}") from error


def trackers_of(folder: Path) -> list[Tracker]:
    """The trackers that the run in this folder began with."""
    return trackers_named(name for name in TRACKERS if id_file(folder, name).is_file())


def trackers_named(names: str | Iterable[str]) -> list[Tracker]:
    """The trackers of these names, once each; a package that is missing is refused."""
    names = dict.fromkeys([names] if isinstance(names, str) else names)
    for name in names:
        if name not in TRACKERS:
            raise unknown_name("tracker", name, TRACKERS, {"tensorboard": "its events are always written"})
        if not installed(name):
            raise MissingError(f"{name} is not installed: pip install 'qcn-toolkit[{name}]'")
    return [TRACKERS[name]() for name in names]
