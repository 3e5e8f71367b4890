"""benchmarks/: how results are merged, which runs count, how networks compare, and whose runs they are."""

import csv
import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import call
from PIL import Image

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
            asked[comparison.recipe(accuracy.settings_of_run({**settings, **usual, "teachers": teachers}))] = set(
                trial.seeds
            )
    assert asked == trained


def test_every_direction_on_record_is_of_a_trial_of_a_sweep_and_every_trial_was_trained() -> None:
    trained: dict[str, set[int]] = {}
    for row in measurements.read("direction-h200.json")["results"]:
        changed = {name: value for name, value in row["changed"].items() if name != "variations"}  # a setting of then
        trained.setdefault(json.dumps([row["row"], changed], sort_keys=True), set()).add(row["seed"])
    asked = {}
    for sweep in map(asdict, accuracy.sweeps("directions").values()):
        for trial in sweep["trials"]:
            row = accuracy.direction_row(sweep, trial["name"])
            asked[json.dumps([row["row"], row["changed"]], sort_keys=True)] = set(trial["seeds"])
    assert asked == trained


@pytest.mark.slow
def test_runs_of_a_sweep_are_measured_once_and_join_the_others(tmp_path: Path) -> None:
    """With and without directions, of photographs in a table."""
    runs, sweep, table = tmp_path / "sweep", tmp_path / "sweep.toml", tmp_path / "table.csv"
    lines = ["path,label,azimuth,split"]
    for number, split in enumerate(3 * ["train", "train", "train", "train", "val", "test"]):
        for label in ("cup", "horse"):
            name = f"{label}{number}.png"
            Image.fromarray(np.random.default_rng(number).integers(0, 256, (16, 16), np.uint8)).save(tmp_path / name)
            lines.append(f"{name},{label},{20 * number},{split}")
    table.write_text("\n".join(lines))
    common = f'dataset = "{table}"\nsize = 16\nepochs = 1\nmodel = "cnn-small"\n[sweep]\nkeep = 1\n[trials]\n'
    sweep.write_text(f"{common}told = {{ direction = 3.0, seed = [2, 3] }}\nuntold = {{ direction = 0.0 }}\n")
    assert call("sweep", sweep, "--data-dir", tmp_path, "--out", runs).returncode == 0

    def measured(*options: str) -> tuple[str, list[dict[str, Any]]]:
        results = tmp_path / f"results{len(options)}.json"
        if not results.exists():
            results.write_text(json.dumps({"date": "", "results": [{"weights_sha256": "older"}]}))
        command = [sys.executable, BENCHMARKS / "accuracy.py", runs, *options, "--data-dir", tmp_path]
        done = subprocess.run([*command, "--json", results], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        older, *rows = json.loads(results.read_text())["results"]
        assert older == {"weights_sha256": "older"}
        return done.stdout, rows

    said, rows = measured()
    assert "told-seed3: measured; 3 runs" in said and [row["seed"] for row in rows] == [2, 3, 0]
    assert all(0 <= row["splits"]["test"]["error"] <= 1 and row["commit"] and row["date"] for row in rows)
    assert measured() == ("", rows)
    for evaluation in runs.glob("*/evaluation"):
        shutil.rmtree(evaluation)
    told, _, untold = measured("--directions")[1]
    assert (told["row"], told["changed"]) == (f"{table}/cnn-small/3", {})
    assert (untold["row"], untold["changed"]) == (f"{table}/cnn-small/off", {})
    assert told["splits"]["test"]["images"] == 6 and 0 <= told["splits"]["test"]["within_15"] <= 1
    assert "median" not in untold["splits"]["test"] and 0 <= untold["splits"]["test"]["error"] <= 100
