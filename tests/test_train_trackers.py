"""Callbacks, MLflow and Weights & Biases: what they are told, where a resumed run goes on, and what a failure does."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import Command
from test_train import SHORT

import qcn
from qcn.errors import MissingError, Stopped, UsageError
from qcn.train import logbook, resume, trackers
from qcn.train.record import Epoch, Run, load_run
from qcn.train.trackers import Callback, Tracker, trackers_named
from qcn.verify.parity.check import Checked

SMALL = replace(SHORT, model="cnn-small", batch_size=90)
OTHERS_WARNINGS = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Told(Callback):
    """Writes down what it is told; `stop` is the epoch after which it raises."""

    def __init__(self, stop: int = 0, error: type[Exception] = Stopped) -> None:
        self.stop, self.error = stop, error
        self.events: list[Any] = []

    def begin(self, folder: Path, run: Run) -> None:
        self.events.append(("begin", run.progress.step))

    def progress(self, step: int, loss: float) -> None:
        self.events.append("progress")

    def epoch_done(self, run: Run, row: Epoch) -> None:
        assert run.history[-1] == row
        self.events.append(row.epoch)
        if row.epoch == self.stop:
            raise self.error("by a callback")

    def end(self, run: Run, error: BaseException | None) -> None:
        self.events.append((type(error), run.confidence is not None))


class Service(Tracker):
    """A tracker without a package."""

    name = "service"
    told = Told()
    known = ""
    down = False

    def start(self, run: Run, known: str) -> str:
        Service.known = known
        if Service.down:
            raise ConnectionError("it is\ndown")
        return "id-1"

    def epoch_done(self, run: Run, row: Epoch) -> None:
        Service.told.epoch_done(run, row)

    def end(self, run: Run, error: BaseException | None) -> None:
        Service.told.end(run, error)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> type[Service]:
    monkeypatch.setitem(trackers.TRACKERS, "service", Service)
    monkeypatch.setattr(trackers, "installed", lambda package: True)
    monkeypatch.setattr(Service, "told", Told())
    monkeypatch.setattr(Service, "known", "")
    monkeypatch.setattr(Service, "down", False)
    return Service


def train(data_dir: Path, out: Path, *names: str, told: Told | None = None) -> qcn.Run:
    settings = {"model": SMALL.model, "epochs": SMALL.epochs, "batch_size": SMALL.batch_size, "device": "cpu"}
    return qcn.train("mnist", **settings, data_dir=data_dir, out=out, tracker=names, callbacks=[told or Told()])


def stopped(data_dir: Path, out: Path, *names: str) -> None:
    """A run that was stopped after its first epoch."""
    with pytest.raises(Stopped):
        train(data_dir, out, *names, told=Told(stop=1))


def test_a_callback_is_told_of_the_whole_run(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No package of a tracker is imported: there is none here."""
    for name in trackers.TRACKERS:
        monkeypatch.setitem(sys.modules, name, None)
    told = Told()
    train(data_dir, tmp_path / "run", told=told)
    assert [one for one in told.events if one != "progress"] == [("begin", 0), 1, 2, (type(None), True)]
    assert told.events.count("progress") >= 2
    other = Told()
    monkeypatch.setattr(logbook, "rank", lambda: 1)  # of torchrun's other processes
    train(data_dir, tmp_path / "other", told=other)
    assert other.events == []


def test_an_error_of_a_callback_ends_the_run_which_can_go_on(data_dir: Path, tmp_path: Path) -> None:
    told = Told(stop=1, error=ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        train(data_dir, tmp_path / "run", told=told)
    assert told.events[-1] == (ZeroDivisionError, False)
    told = Told()
    assert len(qcn.open(tmp_path / "run").resume(data_dir=data_dir, callbacks=[told]).record.history) == 2
    assert [one for one in told.events if one != "progress"] == [("begin", 2), 2, (type(None), True)]


def test_a_tracker_that_cannot_start_is_an_error_and_leaves_no_run(
    data_dir: Path, tmp_path: Path, service: type[Service]
) -> None:
    out = tmp_path / "run"
    service.down = True
    with pytest.raises(MissingError, match="service could not start: it is down"):
        train(data_dir, out, "service")
    service.down = False
    stopped(data_dir, out, "service")
    assert service.known == "" and service.told.events == [1, (Stopped, False)]
    resume(out, data_dir, "cpu")
    assert service.known == "id-1" and service.told.events[2:] == [2, (type(None), True)]


def test_a_tracker_that_fails_later_is_left_out_with_a_warning(
    data_dir: Path, tmp_path: Path, service: type[Service], capsys: pytest.CaptureFixture[str]
) -> None:
    service.told = Told(stop=1, error=ConnectionError)
    assert len(train(data_dir, tmp_path / "run", "service").record.history) == 2
    assert service.told.events == [1]
    said = capsys.readouterr().err
    assert said.count("warning: service failed, and gets no more of this run: by a callback\n") == 1, said


def test_trackers_that_are_not_there_are_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(monkeypatch, capsys)
    monkeypatch.setattr(trackers, "installed", lambda package: False)
    code, said = command("train", "--dataset", "mnist", "--tracker", "mlflow")
    assert code == 3 and "qcn: mlflow is not installed: pip install 'qcn-toolkit[mlflow]'" in said
    for name, says in (("wanbd", "did you mean 'wandb'"), ("tensorboard", "its events are always written")):
        with pytest.raises(UsageError, match=says):
            trackers_named([name])
    code, said = command("train", "--resume", run, "--tracker", "mlflow")
    assert code == 2 and "leave out --tracker" in said


def kept_bundle(out: Path, folder: Path, data_dir: Path) -> Checked:
    """The run's bundle, checked; both kept in the run's trackers."""
    run = qcn.open(out)
    assert isinstance(run, qcn.Run)
    bundle = run.export("native", out=folder / "exported", data_dir=data_dir)
    return bundle.verify(run=run, report=folder / "report", track=True, data_dir=data_dir)


def test_a_bundle_and_its_report_join_the_run(
    data_dir: Path, tmp_path: Path, service: type[Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    train(data_dir, tmp_path / "run", "service")
    added: dict[str, set[str]] = {}

    def add(self: Service, run: Run, known: str, folders: Mapping[str, Path]) -> None:
        assert known == "id-1"
        added.update({name: {path.name for path in folder.iterdir()} for name, folder in folders.items()})

    monkeypatch.setattr(Service, "add", add)
    assert kept_bundle(tmp_path / "run", tmp_path, data_dir).passed
    assert added["bundle"] == {"manifest.json", "manifest.sha256", "weights.safetensors", "golden.safetensors"}
    assert added["report"] == {"report.html", "report.json", "junit.xml"}
    monkeypatch.setattr(Service, "add", lambda *_: 1 / 0)
    with pytest.raises(MissingError, match="service could not keep report: division by zero"):
        trackers.keep(tmp_path / "run", {"report": tmp_path / "report"})
    (tmp_path / "run" / "service.id").unlink()
    with pytest.raises(UsageError, match="was trained without --tracker"):
        trackers.keep(tmp_path / "run", {"report": tmp_path / "report"})


@OTHERS_WARNINGS
def test_mlflow_keeps_settings_metrics_and_files_and_a_resumed_run(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'qcn-toolkit[mlflow]'")
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)  # where artefacts go
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    out = tmp_path / "run"
    stopped(data_dir, out, "mlflow")
    client: Any = MlflowClient()
    (kept,) = client.search_runs([client.get_experiment_by_name("qcn").experiment_id])
    assert (kept.info.status, kept.info.run_name, kept.data.params["batch_size"]) == ("KILLED", "run", "90")
    history = resume(out, data_dir, "cpu").history
    (kept,) = client.search_runs([kept.info.experiment_id])
    assert kept.info.status == "FINISHED"
    errors = client.get_metric_history(kept.info.run_id, "validation/error")
    assert [(one.step, one.value) for one in errors] == [(row.epoch, row.validation_error) for row in history]
    files = {one.path for one in client.list_artifacts(kept.info.run_id)}
    assert files >= {"run.json", "metrics.csv", "curves.png"}
    fetched = Path(client.download_artifacts(kept.info.run_id, "", str(tmp_path)))
    assert load_run(fetched).confidence and qcn.open(fetched).predict(tmp_path / "run/curves.png")

    assert kept_bundle(out, tmp_path, data_dir).summary
    assert "report.html" in {path.name for path in (tmp_path / "report").iterdir()}
    fetched = Path(client.download_artifacts(kept.info.run_id, "", str(tmp_path)))
    assert (
        isinstance(qcn.open(fetched / "bundle"), qcn.Bundle)
        and (fetched / "report" / "report.html").stat().st_size > 1000
    )
    assert client.get_run(kept.info.run_id).info.status == "FINISHED"


@OTHERS_WARNINGS
def test_weights_and_biases_keeps_a_run_offline_and_goes_on_with_it(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="W&B is not installed: pip install 'qcn-toolkit[wandb]'")
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    out = tmp_path / "run"
    stopped(data_dir, out, "wandb")
    resume(out, data_dir, "cpu")
    files = sorted(out.glob("wandb/offline-run-*/run-*.wandb"))
    assert [path.name for path in files] == [f"run-{(out / 'wandb.id').read_text()}.wandb"] * 2
    first, second = (path.read_bytes() for path in files)
    assert b"validation/error" in first and b"batch_size" in first and b"run.json" not in first
    for name in (b"validation/error", b"run.json", b"metrics.csv", b"curves.png", b"safetensors"):
        assert name in second, name
    kept_bundle(out, tmp_path, data_dir)
    *_, third = sorted(out.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime)
    assert b"weights.safetensors" in third.read_bytes() and b"report.html" in third.read_bytes()
