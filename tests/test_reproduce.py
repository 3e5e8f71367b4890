"""benchmarks/reproduce.py and looks.py: rows are trained once, in pieces, and their results gathered."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qcn.files import held
from qcn.train.validation import as_good_as_the_best

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def benchmark(script: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, BENCHMARKS / script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def reproduce(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return benchmark("reproduce.py", *arguments)


@pytest.mark.slow
def test_a_row_is_trained_once_and_its_result_joins_the_others(data_dir: Path, tmp_path: Path) -> None:
    results, runs = tmp_path / "results.json", tmp_path / "runs"
    results.write_text(json.dumps({"date": "", "results": [{"weights_sha256": "older"}]}))
    call = ("mnist/cnn-small", "--seeds", "2-3", "--set", "epochs=1", "batch_size=30")
    places = ("--data-dir", data_dir, "--runs", runs, "--json", results)
    first = reproduce(*call, *places)
    assert first.returncode == 0, first.stderr
    older, *rows = json.loads(results.read_text())["results"]
    assert older == {"weights_sha256": "older"}
    assert [(row["row"], row["seed"], row["epochs"]) for row in rows] == [
        ("mnist/cnn-small,epochs=1,batch_size=30", seed, 1) for seed in (2, 3)
    ]
    assert all(0 <= row["splits"]["test"]["error"] <= 1 and row["machine"]["commit"] for row in rows)
    trained = {path: path.stat().st_mtime_ns for path in runs.glob("*/weights-*")}
    second = reproduce(*call, *places)
    assert second.returncode == 0 and "seed 3 done: 3 runs" in second.stdout
    assert {path: path.stat().st_mtime_ns for path in runs.glob("*/weights-*")} == trained


def test_the_rows_are_listed_and_others_refused() -> None:
    listed = reproduce("--list")
    assert (
        "viewpoints-azimuth-pooled/qcn model=qcn epochs=30 augment=light loss=spread lr=0.01"
        in listed.stdout.splitlines()
    )
    wrong = reproduce("mnist/qnc")
    assert wrong.returncode == 2 and "there is no row mnist/qnc: see --list" in wrong.stderr


@pytest.mark.slow
def test_looks_are_taken_after_every_epoch_of_a_changed_row_and_not_again(data_dir: Path, tmp_path: Path) -> None:
    results = tmp_path / "looks.json"
    call = ("mnist/cnn-small", "--seeds", "0-1", "--set", "epochs=2", "batch_size=30")
    places = ("--data-dir", data_dir, "--runs", tmp_path / "runs", "--json", results)
    first = benchmark("looks.py", *call, *places)
    assert first.returncode == 0, first.stderr
    rows = json.loads(results.read_text())["results"]
    assert [(row["row"], row["seed"]) for row in rows] == [
        ("mnist/cnn-small,epochs=2,batch_size=30", seed) for seed in (0, 1)
    ]
    for row in rows:
        assert len(row["looks"]) == row["epochs"] == 2 and row["augment"] == "light"
        assert all(set(look) == {"train", "validation", "test"} for look in row["looks"])
        run = json.loads(next((tmp_path / "runs").glob(f"*-seed{row['seed']}/run.json")).read_text())
        errors, images = [look["validation"] for look in row["looks"]], run["data"]["validation"]
        kept = max(epoch for epoch in (1, 2) if as_good_as_the_best(errors[:epoch], images))
        assert row["best"] == run["best"]["epoch"] == kept
    trained = results.stat().st_mtime_ns
    again = benchmark("looks.py", *call, *places)
    assert (again.returncode, again.stdout) == (0, "")
    assert results.stat().st_mtime_ns == trained


def test_calls_at_the_same_time_take_turns_at_a_run(tmp_path: Path) -> None:
    """A teacher that two rows need is trained by one of them, and the other waits for it."""
    waits = """
import sys
from pathlib import Path
import reproduce
reproduce.train = lambda settings, data_dir, folder: print("in", (folder / "by another").exists())
reproduce.evaluate = lambda *_: None
print("here", flush=True)
reproduce.reproduce("mnist/cnn-wide", 0, {}, Path("data"), Path(sys.argv[1]))
"""
    run = tmp_path / "mnist--cnn-wide-seed0"
    run.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    with held(run):
        command = [sys.executable, "-c", waits, run]
        other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert other.stdout and other.stdout.readline() == "here\n"
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.5)
        (run / "by another").touch()
    assert other.communicate(timeout=60)[0] == "in True\n"
