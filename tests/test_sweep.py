"""`qcn sweep`: which trials there are, which go on, and that a sweep that is stopped goes on as if it had not been."""

import csv
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from command import Command, call

from qcn.errors import UsageError
from qcn.names import RUN
from qcn.packages import installed
from qcn.sweep.outcome import best_again
from qcn.sweep.plan import read_sweep
from qcn.sweep.run import Outcome, kept_error
from qcn.train.record import load_run
from qcn.workers import INSTALL

EIGHT = """
dataset = "mnist"
model = "qcn-tiny"
epochs = 8
batch_size = 50
lr = { low = 0.0001, high = 0.05, log = true }
seed = [0, 1]

[sweep]
draws = 4
keep = 2
"""
FOUR = EIGHT.replace("epochs = 8", "epochs = 4").replace("draws = 4", "draws = 2")


@pytest.fixture
def qcn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def written(folder: Path, text: str) -> Path:
    path = folder / "sweep.toml"
    path.write_text(text, encoding="utf-8")
    return path


def small(**table: object) -> str:
    """A sweep of two networks, with these entries in its table."""
    options = "\n".join(f"{name} = {value}" for name, value in table.items())
    settings = (
        'dataset = "mnist"',
        "epochs = 9",
        'model = ["qcn", "cnn"]',
        "lr = {low = 0.001, high = 0.1, log = true}",
    )
    return "\n".join((*settings, "[sweep]", options))


def named(*trials: str, keep: int = 3) -> str:
    """A sweep of trials that have names."""
    return "\n".join(('dataset = "mnist"', "epochs = 2", f"sweep.keep = {keep}", *(f"trials.{one}" for one in trials)))


def test_trials_with_names_have_settings_seeds_and_teachers_of_their_own(tmp_path: Path) -> None:
    text = named('small.teachers = ["large", "models/runs/x"]', "small.seed = [1, 2]", "large.epochs = 5", keep=1)
    plan = read_sweep(written(tmp_path, text))
    large, small = plan.trials  # who teaches is first
    assert (large.name, large.seeds, plan.epochs(large)) == ("large", (0,), 5)
    assert (small.name, small.seeds, plan.epochs(small), small.teachers) == ("small", (1, 2), 2, ("large",))
    assert plan.rungs == (5,) and plan.cost == 5 + 2 * 2 and plan.runs == 3
    assert plan.only(["s*"]).trials == plan.trials and plan.only(["large"]).trials == (large,)
    with pytest.raises(UsageError, match="did you mean 'large'"):
        plan.only(["lagre"])


def test_lists_make_a_grid_and_ranges_are_drawn(tmp_path: Path) -> None:
    plan = read_sweep(written(tmp_path, small(draws=3)))
    assert [trial.changed["model"] for trial in plan.trials] == ["qcn", "cnn"] * 3
    rates = [trial.changed["lr"] for trial in plan.trials]
    assert rates[::2] == rates[1::2] and len({*rates}) == 3 and all(0.001 <= rate <= 0.1 for rate in rates)
    assert plan.settings(plan.trials[0], 5) == {
        "dataset": "mnist",
        "epochs": 9,
        "model": "qcn",
        "lr": rates[0],
        "seed": 5,
    }
    assert read_sweep(written(tmp_path, small(draws=3))) == plan
    assert read_sweep(written(tmp_path, small(draws=3, seed=1))) != plan


def test_a_third_goes_on_and_a_budget_says_how_many_begin(tmp_path: Path) -> None:
    plan = read_sweep(written(tmp_path, small(draws=6)))
    assert plan.rungs == (3, 9) and plan.cost == 12 * 3 + 4 * 6
    assert read_sweep(written(tmp_path, small(draws=6, keep=1))).cost == 12 * 9
    afforded = read_sweep(written(tmp_path, small(budget=60)))
    assert len(afforded.trials) == 12 and afforded.cost == 60
    assert len(read_sweep(written(tmp_path, small(budget=59))).trials) == 10


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epochs = 3", "must name the dataset and the number of epochs"),
        ('dataset = "mnist"\nepochs = [3, 4]', "epochs is one number"),
        ('dataset = "mnist"\nepochs = 3\nmodell = "qcn"', "did you mean 'model'?"),
        ('dataset = "mnist"\nepochs = 3\nlr = {low = 1, high = 0.1}', "must rise"),
        ('dataset = "mnist"\nepochs = 3\nlr = {low = 0, high = 0.1, log = true}', "above 0 with log"),
        ('dataset = "mnist"\nepochs = 3\nlr = {low = 0.1, heigh = 1}', "sweep.toml: lr"),
        ('dataset = "mnist"\nepochs = 3\nmodel = []', "a list has no values"),
        (small(), "how many draws of them, or a budget"),
        (small(budget=10), "2 trials take 12 epochs, and the budget is 10"),
        (small(draws=0), "draws must be 1 or more"),
        (small(draws=1000), "asks for 2,000 trials"),
        (small(drawn=3), "drawn"),
        ("dataset =", "is not a sweep"),
        (small(draws=1) + "\n[trials.a]", "ranges and lists, or [trials]"),
        (named("a.lr = 0.1", "b.epochs = 3"), "set keep = 1"),
        (named("a.seed = 3", "b.lr = 0.1"), "set keep = 1"),
        (named("'a/b'.lr = 0.1"), "the name of a trial has letters"),
        (named("a.teachers = ['b']", "b.teachers = ['a']"), "a would teach itself"),
        (named("a.lrr = 0.1"), "did you mean 'lr'?"),
        (named("a = 3"), "a table of settings for each trial"),
        (named("a.teachers = ['b']", "b.lr = 0.1"), "a trial that teaches must train to the end: set keep = 1"),
        (named("a.teachers = 'b'", "b.lr = 0.1"), "teachers of a is a list"),
        (named("a.seed = []"), "a list has no values"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_sweep(written(tmp_path, text))
    assert said in str(refused.value)


@pytest.fixture(scope="module")
def finished(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small sweep, with its file in it."""
    folder = tmp_path_factory.mktemp("sweep")
    done = call("sweep", written(folder, FOUR), "--data-dir", data_dir, "--out", folder / "out")
    assert done.returncode == 0 and "next: qcn sweep" in done.stdout, done.stderr
    return folder


@pytest.fixture(scope="module")
def undisturbed(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a larger one, of one process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert begun(written(folder, EIGHT), data_dir, folder / "out").wait(300) == 0
    return folder


def begun(file: Path, data_dir: Path, out: Path, *options: object) -> "subprocess.Popen[bytes]":
    words = ("sweep", file, "--data-dir", data_dir, "--out", out, *options)
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # as in a process of Ray's: sums are the same to the last bit
    return subprocess.Popen([sys.executable, "-m", "qcn", *map(str, words)], env=one_thread)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "sweep.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def epochs(folder: Path) -> dict[str, int]:
    """How far each run is."""
    return {path.parent.name: load_run(path.parent).progress.epoch for path in folder.glob(f"*/{RUN}")}


def test_the_weaker_trial_is_stopped_and_the_best_is_first(finished: Path) -> None:
    best, weaker = ranked = rows(finished / "out")
    assert (best["epochs"], weaker["epochs"]) == ("4", "2") and best["trial"] != weaker["trial"]
    assert epochs(finished / "out") == {
        f"{row['trial']}-seed{seed}": int(row["epochs"]) for row in ranked for seed in (0, 1)
    }
    for row in ranked:
        assert 0.0001 <= float(row["lr"]) <= 0.05
        assert float(row["low"]) <= float(row["validation_error"]) <= float(row["high"])
    assert error_at(finished / "out", best["trial"], 2) <= error_at(finished / "out", weaker["trial"], 2)
    assert (finished / "out" / "sweep.png").stat().st_size > 1000


def error_at(folder: Path, trial: str, epoch: int) -> float:
    errors = [kept_error(load_run(run), epoch) for run in sorted(folder.glob(f"{trial}-seed*"))]
    return sum(errors) / len(errors)


def test_the_best_again_is_a_sweep_with_fresh_seeds(finished: Path) -> None:
    plan = read_sweep(finished / "out" / "best.toml")
    assert [trial.seeds for trial in plan.trials] == [(2, 3, 4)] and plan.rungs == (4,)
    assert plan.common["lr"] == float(rows(finished / "out")[0]["lr"])


def test_a_run_of_a_sweep_is_an_ordinary_run(finished: Path, data_dir: Path, tmp_path: Path, qcn: Command) -> None:
    stopped = next(name for name, epoch in epochs(finished / "out").items() if epoch == 2)
    copy = shutil.copytree(finished / "out" / stopped, tmp_path / "run")
    code, said = qcn("train", "--resume", copy, "--data-dir", data_dir)
    assert code == 0, said
    assert load_run(copy).progress.epoch == 4


@pytest.mark.slow
def test_a_sweep_that_is_killed_three_times_ends_the_same(undisturbed: Path, data_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for kill, number in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGKILL), 1):
        running = begun(undisturbed / "sweep.toml", data_dir, out)
        until = time.monotonic() + 120
        while sum(epochs(out).values()) < 5 * kill and time.monotonic() < until and running.poll() is None:
            time.sleep(0.05)
        assert running.poll() is None
        running.send_signal(number)
        running.wait(60)
    assert begun(undisturbed / "sweep.toml", data_dir, out).wait(300) == 0
    assert (out / "sweep.csv").read_text() == (undisturbed / "out" / "sweep.csv").read_text()
    weights = [sorted(path.name for path in folder.rglob("weights-*")) for folder in (out, undisturbed / "out")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_processes_share_the_trials_of_a_sweep(undisturbed: Path, data_dir: Path, tmp_path: Path) -> None:
    """One of them is killed: the other trains its run to the end."""
    out = tmp_path / "out"
    first, second = (begun(undisturbed / "sweep.toml", data_dir, out) for _ in range(2))
    until = time.monotonic() + 120
    while sum(epoch > 0 for epoch in epochs(out).values()) < 3 and time.monotonic() < until:
        time.sleep(0.05)
    assert first.poll() is None and second.poll() is None
    first.kill()
    assert first.wait() == -signal.SIGKILL and second.wait(300) == 0
    assert (out / "sweep.csv").read_text() == (undisturbed / "out" / "sweep.csv").read_text()


TAUGHT = """
dataset = "mnist"
batch_size = 50

[sweep]
keep = 1

[trials]
pupil = { model = "qcn-tiny", epochs = 1, teachers = ["teacher"], seed = [0, 1] }
teacher = { model = "cnn-small", epochs = 2, seed = 4 }
other = { model = "cnn-small", epochs = 50 }
"""


def test_a_trial_learns_from_another(data_dir: Path, tmp_path: Path, qcn: Command) -> None:
    out = tmp_path / "out"
    code, said = qcn("sweep", written(tmp_path, TAUGHT), "pupil", "--data-dir", data_dir, "--out", out)
    assert code == 0 and "2 trials, 3 runs, 4 epochs in all\n" in said, said
    assert epochs(out) == {"teacher-seed4": 2, "pupil-seed0": 1, "pupil-seed1": 1}
    assert load_run(out / "pupil-seed1").settings.teachers == (str(out / "teacher-seed4"),)
    assert {row["trial"]: row["model"] for row in rows(out)} == {"teacher": "cnn-small", "pupil": "qcn-tiny"}
    plan = read_sweep(tmp_path / "sweep.toml").only(["pupil"])
    best = Outcome(plan.trials[-1], 1, (0.1,), 60, (), ())
    again = tomllib.loads(best_again(plan, out, best))  # where the teacher is no trial
    assert (again["model"], again["teachers"], again["seed"]) == ("qcn-tiny", [str(out / "teacher-seed4")], [2, 3, 4])


@pytest.mark.slow
@pytest.mark.skipif(not installed("ray"), reason=f"Ray is not installed: {INSTALL}")
def test_ray_takes_the_same_trials_on(undisturbed: Path, data_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert begun(undisturbed / "sweep.toml", data_dir, out, "--engine", "ray").wait(300) == 0
    assert (out / "sweep.csv").read_text() == (undisturbed / "out" / "sweep.csv").read_text()


def test_another_sweep_in_the_folder_is_refused(finished: Path, data_dir: Path, tmp_path: Path, qcn: Command) -> None:
    file = written(tmp_path, FOUR.replace("keep = 2", "keep = 4"))
    code, said = qcn("sweep", file, "--data-dir", data_dir, "--out", finished / "out")
    assert code == 2 and "has another sweep" in said


def test_what_is_finished_is_not_trained_again(finished: Path, data_dir: Path, tmp_path: Path, qcn: Command) -> None:
    out = shutil.copytree(finished / "out", tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in out.glob(f"*/{RUN}")}
    code, said = qcn("sweep", finished / "sweep.toml", "--data-dir", data_dir, "--out", out)
    assert code == 0, said
    assert before == {path: path.stat().st_mtime_ns for path in out.glob(f"*/{RUN}")}
