"""benchmarks/: how results are merged, which runs count, how networks compare, and whose runs they are."""

import csv
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from command import call

from qcn.train.settings import settings_from

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import accuracy  # noqa: E402
import comparison  # noqa: E402
import measurements  # noqa: E402
import speed  # noqa: E402


def rate(error: float) -> dict[str, float]:
    return {"wrong": round(100 * error), "total": 100, "error": error, "low": error, "high": error}


def run(model: str, seed: int, error: float, validation: float = 0.0, **more: Any) -> dict[str, Any]:
    fixed = {"dataset": "viewpoints-azimuth-pooled", "loss": "ce", "lr": 0.01, "epochs": 30, "batch_size": 128}
    splits = {"familiar": rate(0.0), "novel": rate(error)}
    return {**fixed, "model": model, "seed": seed, "validation_error": validation, "splits": splits, **more}


@pytest.mark.parametrize("name", ["results.json", "results.csv"])
def test_rows_of_others_stay_and_each_keeps_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file = tmp_path / name
    for commit, rows in {"one": [("a", 1), ("b", 2)], "two": [("b", 3), ("c", 4)]}.items():
        monkeypatch.setenv("QCN_COMMIT", commit)
        count = measurements.put(file, [{"shape": shape, "error": error} for shape, error in rows], "shape", epochs=5)
    rows_now = [(row["shape"], str(row["error"]), row["commit"]) for row in measurements.rows_of(file)]
    assert rows_now == [("a", "1", "one"), ("b", "3", "two"), ("c", "4", "two")] and count == 3
    assert all(row["date"] and row["machine"] for row in measurements.rows_of(file))


def test_turns_of_one_backend_become_one_row_with_its_median_and_least_time() -> None:
    names = dict.fromkeys(speed.KEY, "x")
    turns = [
        {**names, "median_ms": median, "least_ms": least} for median, least in ((3.0, 2.5), (2.0, 1.5), (9.0, 2.0))
    ]
    assert speed.merge(turns) == [{**names, "median_ms": 3.0, "least_ms": 1.5}]


def test_a_rival_is_compared_by_the_seeds_that_both_have() -> None:
    ours = [run("qcn", seed, 0.10 + 0.001 * seed) for seed in range(5)]
    theirs = [run("cnn-small", seed, 0.20 + 0.002 * seed) for seed in range(1, 4)]
    assert comparison.ratio_text(ours, theirs) == "2.00×, p < 0.001"
    assert comparison.ratio_text(ours, theirs[:2]).endswith("too few runs for a test")


def test_a_seed_that_was_trained_twice_counts_once() -> None:
    ours = [run("qcn", 0, 0.1), run("qcn", 0, 0.3), run("qcn", 1, 0.1)]
    assert comparison.by_seed(ours) == pytest.approx({0: 20, 1: 10})
    assert comparison.error_text(ours) == "15.00 ± 7.07 (2)"


def test_a_recipe_is_chosen_by_validation_and_not_by_the_test() -> None:
    plain = [run("qcn", seed, 0.10, validation=0.02) for seed in range(3)]
    strong = [run("qcn", seed, 0.30, validation=0.01, augment="strong") for seed in range(3)]
    assert comparison.choose(plain + strong, "viewpoints-azimuth-pooled", "qcn") == strong


def test_a_recipe_for_novel_viewpoints_is_chosen_by_other_toys() -> None:
    light = [run("qcn", seed, 0.10) for seed in range(3)]
    turned = [run("qcn", seed, 0.20, validation=0.01, augment="turned") for seed in range(3)]
    untried = [run("qcn", seed, 0.01, augment="turned", iterations=1) for seed in range(5)]
    tried = [
        run("qcn", 0, 0.3, dataset="viewpoints-dev"),
        run("qcn", 0, 0.2, dataset="viewpoints-dev", augment="turned"),
    ]
    assert comparison.choose(light + turned + untried + tried, "viewpoints-azimuth-pooled", "qcn") == turned
    # A model that was not tried there: its images are varied as was best there.
    large = [run("cnn", 0, 0.1), run("cnn", 0, 0.2, validation=0.01, augment="turned")]
    assert comparison.choose(large + tried, "viewpoints-azimuth-pooled", "cnn") == large[1:]


def test_networks_are_compared_only_if_trained_alike() -> None:
    taught = run("qcn-deep", 0, 0.1, validation=0.1, teachers=["a", "b"])
    alike = [run("qcn-deep", 0, 0.4, validation=0.2), run("qcn-deep", 0, 0.3, validation=0.3, label_smoothing=0.1)]
    published: dict[str, Any] = {"paper": {}, "capsules": {}}
    line = comparison.quality([taught, *alike, run("cnn-small", 0, 0.2)], published).splitlines()[2]
    assert "10.00 (1 seed), taught by two |" in line
    assert "| 0.50×, too few runs for a test (trained as `cnn-small`: 40.00 (1 seed)) |" in line
    assert "×" not in comparison.quality([taught, run("cnn-small", 0, 0.2)], published).splitlines()[2]


def test_the_table_of_runs_has_every_run() -> None:
    runs = json.loads((BENCHMARKS / "results" / "accuracy-h200.json").read_text(encoding="utf-8"))["results"]
    with (BENCHMARKS.parent / "docs" / "runs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["weights_sha256"] for row in rows) == sorted(run["weights_sha256"] for run in runs)


def test_every_run_on_record_is_of_a_trial_of_a_sweep_and_every_trial_was_trained() -> None:
    rows = json.loads((BENCHMARKS / "results" / "accuracy-h200.json").read_text(encoding="utf-8"))["results"]
    trained: dict[comparison.Recipe, set[int]] = {}
    for row in rows:
        trained.setdefault(comparison.recipe(row), set()).add(row["seed"])
    asked = {}
    for sweep in accuracy.sweeps().values():
        for trial in sweep.trials:
            settings = asdict(settings_from("best", **sweep.settings(trial, 0)))
            usual = {"batch_size": settings["batch_size"] or 128, "augment": settings["augment"] or "light"}
            teachers = [f"mnist--{teacher}-seed0" for teacher in settings["teachers"]]
            asked[comparison.recipe(accuracy.told({**settings, **usual, "teachers": teachers}))] = set(trial.seeds)
    assert asked == trained


@pytest.mark.slow
def test_runs_of_a_sweep_are_measured_once_and_join_the_others(data_dir: Path, tmp_path: Path) -> None:
    results, runs = tmp_path / "results.json", tmp_path / "sweep"
    results.write_text(json.dumps({"date": "", "results": [{"weights_sha256": "older"}]}))
    file = tmp_path / "sweep.toml"
    settings = 'dataset = "mnist"\nepochs = 1\nbatch_size = 30\nseed = [2, 3]\n'
    file.write_text(settings + '[trials]\nsmall = { model = "cnn-small" }\n', encoding="utf-8")
    assert call("sweep", file, "--data-dir", data_dir, "--out", runs).returncode == 0
    command = [sys.executable, BENCHMARKS / "accuracy.py", runs, "--data-dir", data_dir, "--json", results]
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    assert first.returncode == 0 and "small-seed3: measured; 3 runs" in first.stdout, first.stderr
    older, *rows = json.loads(results.read_text())["results"]
    assert older == {"weights_sha256": "older"}
    assert [(row["row"], row["seed"], row["epochs"]) for row in rows] == [("mnist/small", seed, 1) for seed in (2, 3)]
    assert all(0 <= row["splits"]["test"]["error"] <= 1 and row["commit"] and row["date"] for row in rows)
    assert subprocess.run(command, capture_output=True, text=True, check=False).stdout == ""


@pytest.mark.slow
def test_directions_are_trained_and_measured_side_by_side(tmp_path: Path) -> None:
    options = ("--epochs", 1, "--limit", 60, "--jobs", 2, "--runs", tmp_path / "runs", "--json", tmp_path / "d.json")
    rows = ("--rows", "viewpoints-demo/cnn-small/off", "viewpoints-demo/cnn-small/3", "--data-dir", tmp_path)
    command = [sys.executable, BENCHMARKS / "direction.py", *map(str, (*rows, *options))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    found = {
        row["row"].rpartition("/")[2]: row["splits"] for row in json.loads((tmp_path / "d.json").read_text())["results"]
    }
    assert found.keys() == {"off", "3"} and all("novel" in splits for splits in found.values())
    assert "median" not in found["off"]["familiar"] and "within 15°" in done.stdout
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert sorted(again.stdout.splitlines()) == sorted(done.stdout.splitlines())  # nothing is trained again
