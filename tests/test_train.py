"""Training: it learns, it can be killed at any moment and taken up, shared out over processes, and it stops at NaN."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from official import accept, idx, write
from pictures import write_pictures
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

from qcn.cli import app
from qcn.data.imageset import Splits
from qcn.data.registry import load
from qcn.errors import CheckFailed, Stopped, UsageError
from qcn.networks.model import QCN
from qcn.train import loop, resume, train
from qcn.train.checkpoint import load_network
from qcn.train.graph import WARM_UP
from qcn.train.loop import Training
from qcn.train.record import Epoch, Progress, Run, load_run
from qcn.train.settings import Settings, for_images, settings_from
from qcn.train.trackers import Callback
from qcn.train.validation import as_good_as_the_best

SHORT = Settings("mnist", "qcn-tiny", epochs=2, batch_size=30)


def last_weights(folder: Path) -> dict[str, Tensor]:
    last = load_run(folder).last
    assert last is not None
    return load_file(folder / last.file)


def assert_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert torch.equal(tensor, b[name]), name


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "qcn", *map(str, arguments)]


def environment(threads: int = 1) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": ""}


def good(errors: list[float], angles: list[float | None] | None = None, images: int = 20) -> list[bool]:
    """Which of these epochs are as good as the best."""
    pairs = zip(errors, angles or [None] * len(errors), strict=True)
    rows: Any = [SimpleNamespace(validation_error=error, direction_error=angle) for error, angle in pairs]
    return as_good_as_the_best(rows, images)


def test_an_epoch_is_kept_if_chance_does_not_tell_it_from_the_best() -> None:
    assert good([0.5])[-1]
    assert good([0.5, 0.2, 0.4])[-1]  # the interval of 4 in 20 ends at 0.42
    assert not good([0.5, 0.2, 0.45])[-1]
    assert not good([0.5, 0.2, 0.25], images=2000)[-1]
    assert good([0.5, 0.0, 0.15])[-1]
    assert not good([0.5, 0.0, 0.2])[-1]


def test_an_epoch_is_kept_if_its_directions_are_as_good_too() -> None:
    assert good([0.2, 0.2], [10.0, 10.9]) == [True, True]
    assert good([0.2, 0.2], [10.0, 11.1]) == [True, False]
    assert good([0.2, 0.9], [10.0, 9.0]) == [True, False]
    assert good([0.9, 0.2], [None, 90.0]) == [False, True]  # there was no right answer before


def test_a_run_keeps_the_last_epoch_that_is_as_good_as_the_best(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [0.9, 0.3, 0.35, 0.6, 0.1, 0.4]  # of 20 images: the intervals of 0.3 and 0.1 end at 0.52 and 0.30
    kept = scripted(monkeypatch, errors)
    train(replace(SHORT, epochs=len(errors), batch_size=180, model="cnn-small"), data_dir, tmp_path / "run", "cpu")
    assert kept == [1, 2, 3, 3, 5, 5]


def test_a_run_stops_when_its_patience_ends(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """0.6 is better than 0.9, and 0.3 than 0.6; 0.25 is not better than 0.3 as far as 20 images can tell."""
    kept, out = scripted(monkeypatch, [0.9, 0.6, 0.3, 0.25, 0.3, 0.2, 0.2, 0.0]), tmp_path / "run"
    settings = replace(SHORT, batch_size=180, model="cnn-small", epochs=8, patience=3)

    class Stop(Callback):
        def epoch_done(self, run: Run, row: Epoch) -> None:
            if row.epoch == 5:
                raise Stopped("now")

    with pytest.raises(Stopped):
        train(settings, data_dir, out, "cpu", callbacks=[Stop()])
    assert len(resume(out, data_dir, "cpu").history) == 6 and load_run(out).confidence
    assert len(resume(out, data_dir, "cpu").history) == 6 and kept == [1, 2, 3, 4, 5, 6]
    says = "stopped after 6 of 8 epochs: none after epoch 3 is better (--patience 3)"
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith(says)]
    assert len(lines) == 2  # also when it was resumed in vain
    assert lines[0] == lines[1] == f"{says}; the learning rate had not come down yet: 0.0041, of at most 0.01"
    training = Training(replace(settings, schedule="exponential"), load("mnist", data_dir), out, torch.device("cpu"))
    training.restore(load_run(out))
    assert training.patience_ended() == says
    longer = resume(out, data_dir, "cpu", epochs=8)  # without patience
    assert len(longer.history) == 8 and longer.settings.patience is None


def scripted(monkeypatch: pytest.MonkeyPatch, errors: list[float]) -> list[int]:
    """Runs get these errors on 20 validation images; after each epoch, which one is kept is added to the list."""
    kept, finish_epoch = [], Training.finish_epoch

    def finish(self: Training, seconds: float, steps: int) -> Epoch:
        wrong = np.arange(20) < round(20 * errors[self.epoch - 1])
        monkeypatch.setattr(loop, "measure", lambda *_: (wrong, np.full(20, np.nan)))
        row = finish_epoch(self, seconds, steps)
        assert self.record.best is not None
        kept.append(self.record.best.epoch)
        return row

    monkeypatch.setattr(Training, "finish_epoch", finish)
    return kept


def test_classes_of_different_sizes_are_shown_equally_often(data_dir: Path, tmp_path: Path) -> None:
    splits = load("mnist", data_dir)
    labels = splits.train.labels
    rows = np.flatnonzero((labels == 0) | (labels == 1) | ((labels == 2) & (np.cumsum(labels == 2) <= 3)))
    many, few = (labels == 0).sum(), 3
    assert many >= 15
    few_of_one = replace(splits, train=splits.train[rows])
    settings = replace(SHORT, model="cnn-small", epochs=1, batch_size=8)
    warning = f"'0' has {many} training images, '2' 3: --set balance shows all classes equally often"
    plain = Training(settings, few_of_one, tmp_path / "plain", torch.device("cpu"))
    assert warning in plain.remarks and sorted(plain.plan(0).order) == list(range(len(rows)))
    balanced = Training(replace(settings, balance=True), few_of_one, tmp_path / "balanced", torch.device("cpu"))
    assert warning not in balanced.remarks
    orders = [balanced.plan(epoch).order.numpy() for epoch in (0, 0, 1)]
    assert (orders[0] == orders[1]).all() and (orders[0] != orders[2]).any()
    shown = few_of_one.train.labels[orders[0]]
    assert len(shown) == len(rows) and np.ptp(np.bincount(shown)[:3]) <= 1
    times = np.bincount(orders[0])[few_of_one.train.labels == 2]
    assert len(times) == few and np.ptp(times) <= 1
    assert Training(settings, splits, tmp_path / "even", torch.device("cpu")).remarks == splits.remarks
    assert balanced.run().settings.balance and load_run(tmp_path / "balanced").settings.balance


def test_a_run_learns_and_leaves_its_files(data_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = train(replace(SHORT, epochs=5), data_dir, out, "cpu")
    assert run.history[-1].train_error < 0.6 < run.history[0].train_error
    assert {"run.json", "metrics.csv", "curves.png", "tensorboard"} <= {path.name for path in out.iterdir()}
    assert len((out / "metrics.csv").read_text().splitlines()) == 6
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert any((out / "tensorboard").iterdir())
    # mean and std of the training images are part of the checkpoint
    pixels = load("mnist", data_dir).train.images / 255
    assert json.loads((out / "run.json").read_text())["preprocessing"]["mean"] == pytest.approx([pixels.mean()])
    assert load_run(out).preprocessing.std == pytest.approx((pixels.std(),))
    network, _ = load_network(out)
    assert not network.training


def test_the_same_seed_gives_the_same_weights_and_another_does_not(data_dir: Path, tmp_path: Path) -> None:
    short = replace(SHORT, epochs=1)
    for name, settings in (("a", short), ("b", short), ("c", replace(short, seed=1))):
        train(settings, data_dir, tmp_path / name, "cpu")
    assert_equal(last_weights(tmp_path / "a"), last_weights(tmp_path / "b"))
    other = last_weights(tmp_path / "c")
    assert any(not torch.equal(tensor, other[name]) for name, tensor in last_weights(tmp_path / "a").items())


def test_slow_routing_is_announced(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("qcn.kernels.native.available", lambda: False)
    monkeypatch.setattr("qcn.kernels.native.why_not", lambda: "there is no libqcn")
    for kernels, why in (("auto", "there is no libqcn"), ("reference", "kernels=reference was asked for")):
        train(replace(SHORT, epochs=1, kernels=kernels), data_dir, tmp_path / kernels, "cpu")
        shown = capsys.readouterr().err
        assert shown.count(f"routing: in plain torch, which is slow: {why}") == 1, shown


# cnn: dropout, so the random state counts too
@pytest.mark.slow  # the next test stops one in its own process
@pytest.mark.parametrize("model", ["cnn", "qcn-tiny"])
def test_a_run_killed_at_any_moment_resumes_to_the_same_weights(data_dir: Path, tmp_path: Path, model: str) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    options = ("--dataset", "mnist", "--model", model, "--data-dir", data_dir, "--epochs", 3, "--batch-size", 60)
    subprocess.run(command("train", *options, "--out", whole), env=environment(), check=True, capture_output=True)
    generator = np.random.default_rng(0)
    start = command("train", *options, "--out", killed)
    for _ in range(3):
        process = subprocess.Popen(start, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 240
        while not (killed / "run.json").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(generator.uniform(0.1, 2.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        load_network(killed, "last")  # whatever moment it was, the run can be loaded
        start = command("train", "--resume", killed, "--data-dir", data_dir)
    subprocess.run(start, env=environment(), check=True, capture_output=True)
    assert_equal(last_weights(whole), last_weights(killed))
    assert [row.train_loss for row in load_run(whole).history] == [row.train_loss for row in load_run(killed).history]
    assert not list(killed.glob(".*.part")) and len(list(killed.glob("state-*"))) == 1


def test_a_run_stopped_inside_an_epoch_resumes_to_the_same_weights(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(SHORT, data_dir, whole, "cpu")
    update = Training.update

    def update_then_ctrl_c(self: Training, *arguments: Tensor) -> Tensor:
        loss = update(self, *arguments)  # type: ignore[arg-type]
        if self.step == 7:  # the eighth step, which counts when this returns
            signal.raise_signal(signal.SIGINT)
        return loss

    with monkeypatch.context() as patch:
        patch.setattr(Training, "update", update_then_ctrl_c)
        with pytest.raises(Stopped, match="after 8 steps; continue with: qcn train --resume"):
            train(SHORT, data_dir, stopped, "cpu")
    assert load_run(stopped).progress.step == 8  # two steps into the second epoch
    resume(stopped, data_dir, "cpu")
    assert_equal(last_weights(whole), last_weights(stopped))
    assert load_run(whole).history[1].train_loss == load_run(stopped).history[1].train_loss


def test_a_run_stopped_in_its_first_epoch_has_no_chosen_weights(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = property(lambda self: self.step == 2, lambda self, value: None)
    monkeypatch.setattr(Training, "stop_asked", asked, raising=False)
    with pytest.raises(Stopped, match="after 2 steps"):
        train(SHORT, data_dir, tmp_path / "run", "cpu")
    run = load_run(tmp_path / "run")
    assert run.best is None and run.weights("best") == run.last
    assert_equal(load_network(tmp_path / "run")[0].state_dict(), last_weights(tmp_path / "run"))


def test_a_run_killed_after_its_last_epoch_gets_its_metrics_and_curves(data_dir: Path, tmp_path: Path) -> None:
    train(replace(SHORT, epochs=1), data_dir, tmp_path / "run", "cpu")
    metrics, curves = tmp_path / "run" / "metrics.csv", tmp_path / "run" / "curves.png"
    before = metrics.read_bytes()
    metrics.unlink()
    curves.unlink()
    resume(tmp_path / "run", data_dir, "cpu")
    assert metrics.read_bytes() == before and curves.is_file()


def test_a_run_may_be_in_a_thread(data_dir: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:  # whose threads may not handle signals
        pool.submit(train, replace(SHORT, epochs=1), data_dir, tmp_path / "run", "cpu").result()
    assert load_run(tmp_path / "run").progress.epoch == 1


@pytest.mark.slow
def test_two_processes_do_what_one_does(data_dir: Path, tmp_path: Path) -> None:
    options = ("--dataset", "mnist", "--model", "qcn-tiny", "--data-dir", data_dir, "--epochs", 1, "--batch-size", 30)
    subprocess.run(
        command("train", *options, "--out", tmp_path / "one"), env=environment(2), check=True, capture_output=True
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "qcn"]
    shared = subprocess.run(
        [*torchrun, *map(str, ("train", *options, "--out", tmp_path / "two"))],
        env=environment(),
        check=True,
        capture_output=True,
        text=True,
    )
    assert "deprecated" not in shared.stderr  # what torch has to say to us is not the user's to read
    one, two = last_weights(tmp_path / "one"), last_weights(tmp_path / "two")
    start = torch.cat([p.flatten() for p in one.values()])
    difference = torch.cat([(one[name] - two[name]).flatten() for name in one])
    # The sums are taken in another order; Adam's first steps turn that rounding into at most a few steps' difference
    # of single weights, but not into another network.
    assert difference.norm() / start.norm() < 2e-3
    rows = load_run(tmp_path / "one").history[0], load_run(tmp_path / "two").history[0]
    assert rows[0].train_loss == pytest.approx(rows[1].train_loss, rel=1e-3)
    assert rows[0].train_error == pytest.approx(rows[1].train_error, abs=0.02)


@pytest.mark.slow
def test_two_processes_have_the_gradients_of_one_to_rounding() -> None:
    script = Path(__file__).parent / "two_processes.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    result = subprocess.run([*torchrun, str(script)], env=environment(), check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "gradients agree" in result.stdout


def test_nan_stops_the_run_names_step_and_layer_and_keeps_the_checkpoint(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = Training.update

    def poison(self: Training, *arguments: Tensor) -> Tensor:
        if self.step == 8:
            with torch.no_grad():  # the second capsule layer overflows from now on
                self.network.layers[1].rotors.beta_u.fill_(torch.inf)  # type: ignore[union-attr, index]
        return update(self, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Training, "update", poison)
        with pytest.raises(
            CheckFailed, match=r"NaN at step 8 \(epoch 2\): first in the weights of 'layers.1.rotors.beta_u'"
        ):
            train(SHORT, data_dir, tmp_path / "run", "cpu")
    run = load_run(tmp_path / "run")
    assert run.progress == Progress(epoch=1, step=6)
    assert all(tensor.isfinite().all() for tensor in last_weights(tmp_path / "run").values())
    resume(tmp_path / "run", data_dir, "cpu")


def test_a_layer_that_overflows_is_named(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qcn.networks.model import ConvCapsules

    forward, calls = ConvCapsules.forward, []

    def overflow(self: ConvCapsules, pose: Tensor, activation: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(self)
        out_pose, out_activation = forward(self, pose, activation)
        return (out_pose * torch.inf if self.kernel == 3 and self.stride == 2 else out_pose), out_activation

    monkeypatch.setattr(ConvCapsules, "forward", overflow)
    with pytest.raises(CheckFailed, match=r"NaN at step 0 .*the output of layer 'layers.0' \(ConvCapsules\)"):
        train(SHORT, data_dir, tmp_path / "run", "cpu")


def test_the_presets() -> None:
    paper = settings_from("paper", dataset="mnist", model="qcn", epochs=None)
    assert (paper.loss, paper.mode, paper.schedule, paper.batch_size, paper.ema) == (
        "spread",
        "unit",
        "exponential",
        64,
        None,
    )
    assert settings_from("paper", dataset="mnist", model="qcn", epochs=3).epochs == 3
    assert settings_from("best", dataset="mnist", model="qcn").loss == "ce"
    with pytest.raises(UsageError, match="did you mean 'best'"):
        settings_from("bset", dataset="mnist", model="qcn")


def first_images(data_dir: Path) -> Splits:
    splits = load("mnist", data_dir)
    return replace(splits, train=splits.train[np.arange(4)], validation=splits.validation[np.arange(2)])


@pytest.mark.parametrize(
    "settings",
    [
        settings_from("paper", dataset="mnist", model="qcn-tiny", epochs=1, batch_size=2),
        replace(SHORT, epochs=1, batch_size=2, precision="bf16"),
        *(
            replace(SHORT, model=m, epochs=1, batch_size=2, loss="spread")
            for m in ("em", "vb", "cnn", "qcn-unbranched")
        ),
    ],
    ids=["paper", "bf16", "em", "vb", "cnn", "qcn-unbranched"],
)
def test_presets_precisions_and_rivals_train_by_the_same_call(
    data_dir: Path, tmp_path: Path, settings: Settings
) -> None:
    run = Training(settings, first_images(data_dir), tmp_path / "run", torch.device("cpu")).run()
    assert np.isfinite(run.history[0].train_loss) and load_network(tmp_path / "run")


@pytest.mark.parametrize("times", [(2, 3), (3, 2)], ids=["56×84", "84×56"])
def test_larger_images_get_a_network_for_their_shorter_side(
    data_dir: Path, tmp_path: Path, times: tuple[int, int]
) -> None:
    splits = first_images(data_dir)
    train, validation = (
        replace(part, images=part.images.repeat(times[0], 2).repeat(times[1], 3))
        for part in (splits.train, splits.validation)
    )
    larger = replace(splits, train=train, validation=validation)
    Training(replace(SHORT, epochs=1, batch_size=2), larger, tmp_path / "run", torch.device("cpu")).run()
    network, run = load_network(tmp_path / "run")
    assert isinstance(network, QCN)
    assert (run.model.size, network.config.pose_strides) == (56, (2, 2))


@pytest.mark.parametrize(
    ("images", "batch", "epochs"), [(6, 6, 1000), (108, 8, 77), (1000, 31, 32), (4096, 128, 32), (54000, 128, 16)]
)
def test_few_images_are_learnt_in_small_batches_and_more_epochs(images: int, batch: int, epochs: int) -> None:
    fitted = for_images(Settings("mnist", "qcn-tiny"), images)
    assert (fitted.batch_size, fitted.epochs) == (batch, epochs)
    asked = Settings("mnist", "qcn-tiny", epochs=3, batch_size=50)
    chosen = for_images(asked, images)
    assert (chosen.batch_size, chosen.epochs) == (50, 3) and for_images(chosen, 10) == chosen
    assert for_images(replace(asked, batch_size=None), 108) == replace(chosen, batch_size=8)
    assert for_images(replace(asked, batch_size=None), 1000, processes=4).batch_size == 32
    paper = for_images(settings_from("paper", dataset="mnist", model="qcn-tiny"), images)
    assert (paper.batch_size, paper.epochs) == (64, 300)


def test_a_script_trains_with_the_settings_that_the_command_chooses(tmp_path: Path) -> None:
    """A small folder, of which a batch of 128 would be more than all pictures."""
    pictures, out = write_pictures(tmp_path / "shapes", 8), tmp_path / "by command"
    arguments = ["train", "--dataset", pictures, "--model", "qcn-tiny", "--epochs", 1, "--size", 20, "--device", "cpu"]
    arguments += ["--data-dir", tmp_path / "data", "--out", out]
    done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0
    settings = settings_from("best", dataset=pictures, model="qcn-tiny", epochs=1, size=20)
    run = train(settings, tmp_path / "data", tmp_path / "by script", "cpu")
    assert run.settings == load_run(out).settings and run.settings.batch_size == 8


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"batch_size": 1000}, "larger than the 1.. training images: choose a smaller --batch-size"),
        ({"epochs": 0}, "epochs must be positive"),
        ({"patience": 0}, "patience must be positive"),
        ({"seed": 2**63}, r"seed must be less than 2\*\*63"),  # run.json would be read with another one
        ({"seed": "3"}, "seed must be an integer, not '3'"),
        ({"batch_size": 16.0}, "batch_size must be an integer, not 16.0"),
        ({"compile": "no"}, "compile must be true or false, not 'no'"),
        ({"teachers": "runs/one"}, "teachers must be a list, not 'runs/one'"),
        ({"loss": 1}, "no loss named '1'"),
        ({"teachers": ("one", 2)}, r"teachers\[1\] must be text, not 2"),
        ({"lr": -1.0}, "lr must be positive"),
        ({"lr": math.inf}, "lr must be a finite number, not inf"),
        ({"weight_decay": math.inf}, "weight_decay must be a finite number, not inf"),
        ({"loss": "sprad"}, "did you mean 'spread'"),
        ({"dataset": "mnits"}, "did you mean 'mnist'"),
        ({"model": "cnnn"}, "did you mean 'cnn'"),
    ],
)
def test_wrong_settings_are_refused_and_leave_nothing(data_dir: Path, tmp_path: Path, change: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        train(replace(SHORT, **change), data_dir, tmp_path / "run", "cpu")
    assert not (tmp_path / "run").exists()


def test_settings_may_be_numbers_of_numpy_and_paths() -> None:
    given = settings_from(
        "best",
        dataset=Path("my/pets"),
        model="qcn-tiny",
        epochs=np.int64(3),
        lr=np.float32(0.5),
        size=np.int32(28),
        seed=np.uint8(7),
        init=Path("runs/one"),
        teachers=[Path("runs/two"), "three"],
    )
    plain = Settings("my/pets", "qcn-tiny", epochs=3, lr=0.5, size=28, seed=7, init="runs/one")
    assert given == replace(plain, teachers=("runs/two", "three"))
    assert json.loads(json.dumps(asdict(given)))["lr"] == 0.5


def test_a_run_is_not_overwritten_and_not_resumed_on_other_data(data_dir: Path, tmp_path: Path) -> None:
    run = tmp_path / "a run"
    train(replace(SHORT, epochs=1), data_dir, run, "cpu")
    with pytest.raises(UsageError, match=f"already holds a run: continue it with `qcn train --resume '{run}'`"):
        train(SHORT, data_dir, run, "cpu")
    (tmp_path / "manifest.json").touch()
    with pytest.raises(UsageError, match=f"{tmp_path} is a bundle, and a run needs its own folder"):
        train(SHORT, data_dir, tmp_path, "cpu")
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    with pytest.raises(UsageError, match="its name is not UTF-8: choose another"):
        train(SHORT, data_dir, odd, "cpu")
    assert not odd.exists()
    shutil.copytree(data_dir / "mnist", tmp_path / "other" / "mnist")
    pictures = np.zeros((200, 28, 28))
    write(tmp_path / "other" / "mnist" / "train-images-idx3-ubyte.gz", idx(pictures))
    accept("mnist", tmp_path / "other" / "mnist")
    with pytest.raises(UsageError, match="have changed since"):
        resume(run, tmp_path / "other", "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"precision": "bf16"}, {"compile": True}], ids=["fp32", "bf16", "compile"])
def test_a_gpu_trains_and_resumes(data_dir: Path, tmp_path: Path, options: dict) -> None:
    settings = replace(SHORT, epochs=6, **options)
    run = train(settings, data_dir, tmp_path / "run", "cuda")
    assert run.history[-1].train_error < 0.6
    assert resume(tmp_path / "run", data_dir, "cuda").history == run.history  # nothing is left to do
    stopped = replace(run, settings=replace(settings, epochs=8))
    stopped.write(tmp_path / "run")
    assert [row.epoch for row in resume(tmp_path / "run", data_dir, "cuda").history] == list(range(1, 9))
    network, _ = load_network(tmp_path / "run")
    assert all(tensor.device.type == "cpu" for tensor in network.state_dict().values())


@pytest.mark.gpu
def test_nan_is_found_on_a_gpu(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qcn.routing.VARIANCE_FLOOR", -torch.inf)
    with pytest.raises(CheckFailed, match=r"NaN at step 0 .*the output of layer 'layers.0'"):
        train(replace(SHORT, kernels="reference"), data_dir, tmp_path / "run", "cuda")


@pytest.mark.gpu
def test_nan_is_found_in_a_step_that_is_a_cuda_graph(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Training.batch

    def poison(self: Training, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        if self.step == WARM_UP + 2:
            with torch.no_grad():
                self.network.layers[1].rotors.beta_u.fill_(torch.inf)  # type: ignore[union-attr, index]
        return batch(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(CheckFailed, match=f"NaN at step {WARM_UP + 2} "):
        patch.setattr(Training, "batch", poison)
        train(SHORT, data_dir, tmp_path / "run", "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [{}, {"augment": "strong"}, {"augment": "elastic"}, {"loss": "spread"}, {"model": "cnn"}, {"model": "cnn-small"}]
    + [{"model": "em"}, {"model": "vb"}, {"kernels": "reference"}, {"precision": "bf16"}],
    ids=lambda options: "-".join(map(str, options.values())) or "plain",
)
def test_a_cuda_graph_takes_the_steps_that_single_launches_do(
    data_dir: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Learning rate, margin, average, dropout and counted errors change from step to step, also when replayed."""
    settings = replace(SHORT, epochs=2, lr=1e-3, **options)
    runs, weights = [], []
    for as_graph in (False, True):
        splits, out = load(settings.dataset, data_dir), tmp_path / str(as_graph)
        training = Training(settings, splits, out, torch.device("cuda"))
        training.as_graph = as_graph
        start = torch.cat([tensor.detach().flatten().cpu() for tensor in training.average.parameters()])
        runs.append(training.run())
        weights.append(
            torch.cat([last_weights(out)[name].flatten() for name, _ in training.average.named_parameters()])
        )
    (plain, graph), (one_by_one, replayed) = weights, runs
    # Sums in another order differ by rounding, which Adam and twelve steps enlarge.
    assert (graph - plain).norm() < 0.2 * (plain - start).norm()
    for before, after in zip(one_by_one.history, replayed.history, strict=True):
        assert after.train_loss == pytest.approx(before.train_loss, rel=0.02)
