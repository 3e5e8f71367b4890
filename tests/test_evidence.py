"""The figures of docs/results.md: what the tables count, and the pictures that are drawn of them."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qcn.model import qcn_deep
from qcn.train.validation import as_good_as_the_best
from qcn.zoo import parameter_count

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = ("accuracy_page", "choosing", "counting", "evidence", "figures", "machine", "pages", "poses", "shapes")
    modules = {name: importlib.import_module(name) for name in names}
    monkeypatch.setattr(modules["figures"], "IMAGES", tmp_path)
    return SimpleNamespace(**modules)


def rate(error: float) -> dict[str, float]:
    return {"wrong": round(100 * error), "total": 100, "error": error, "low": error, "high": error}


def run(model: str, seed: int, error: float, validation: float = 0.0, **more: Any) -> dict[str, Any]:
    fixed = {"dataset": "viewpoints-azimuth-pooled", "loss": "ce", "lr": 0.01, "epochs": 30, "batch_size": 128}
    splits = {"familiar": rate(0.0), "novel": rate(error)}
    return {**fixed, "model": model, "seed": seed, "validation_error": validation, "splits": splits, **more}


def test_shapes_that_were_compared_are_of_one_size_and_the_best_is_qcn_deep(made: SimpleNamespace) -> None:
    shapes = {name: made.shapes.network(changed, 3, 10) for name, changed in made.shapes.SHAPES.items()}
    assert all(parameter_count(network) <= 189_000 for network in shapes.values())
    compared = json.loads(made.shapes.FILE.read_text(encoding="utf-8"))["results"]
    assert {row["shape"]: row["parameters"] for row in compared if row["shape"] in shapes} == {
        name: parameter_count(network) for name, network in shapes.items()
    }
    best = min((row for row in compared if row["shape"] in shapes), key=lambda row: row["validation_error"])
    assert shapes[best["shape"]].config == qcn_deep(3, 10).config


def test_a_rival_is_compared_by_the_seeds_that_both_have(made: SimpleNamespace) -> None:
    ours = [run("qcn", seed, 0.10 + 0.001 * seed) for seed in range(5)]
    theirs = [run("cnn-small", seed, 0.20 + 0.002 * seed) for seed in range(1, 4)]
    assert made.evidence.compared(ours, theirs) == "2.00×, p < 0.001"
    assert made.evidence.compared(ours, theirs[:2]).endswith("too few runs for a test")


def test_a_seed_that_was_trained_twice_counts_once(made: SimpleNamespace) -> None:
    ours = [run("qcn", 0, 0.1), run("qcn", 0, 0.3), run("qcn", 1, 0.1)]
    assert made.evidence.by_seed(ours) == pytest.approx({0: 20, 1: 10})
    assert made.evidence.told_error(ours) == "15.00 ± 7.07 (2)"
    assert made.evidence.compared(ours, [run("cnn", 0, 0.3)]).startswith("2.00×")


def test_runs_with_other_batches_are_of_another_recipe(made: SimpleNamespace) -> None:
    runs = [run("qcn", 0, 0.1), run("qcn", 1, 0.2), run("qcn", 0, 0.3, batch_size=30)]
    assert list(made.evidence.by_recipe(runs).values()) == [runs[2:], runs[:2]]


def test_where_the_recipe_that_other_toys_favour_was_not_run_is_said(made: SimpleNamespace) -> None:
    tried = [
        run("qcn", 0, 0.3, dataset="viewpoints-dev"),
        run("qcn", 0, 0.2, dataset="viewpoints-dev", epochs=40, augment="turned"),
    ]
    light, turned = run("qcn", 0, 0.1), run("qcn", 0, 0.2, augment="turned")
    line = "- `viewpoints-azimuth-pooled`: `qcn` was not trained there with turned."
    assert line in made.evidence.not_favoured([light, *tried])
    assert made.evidence.not_favoured([light, turned, *tried]) == ""


def test_results_of_others_stay_and_each_keeps_its_commit(
    made: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"commit": "none", "results": [{"shape": "z", "error": 0}]}))  # as before rows had one
    for commit, rows in {"one": [("a", 1), ("b", 2)], "two": [("b", 3), ("c", 4)]}.items():
        monkeypatch.setenv("QCN_COMMIT", commit)
        made.machine.put_results(file, [{"shape": shape, "error": error} for shape, error in rows], "shape", epochs=5)
    record = json.loads(file.read_text(encoding="utf-8"))
    found = [(row["shape"], row["error"], row["commit"]) for row in record["results"]]
    assert found == [("z", 0, "none"), ("a", 1, "one"), ("b", 3, "two"), ("c", 4, "two")]
    assert record["epochs"] == 5 and made.pages.source(record).endswith(", commit none and one and two")


def test_a_recipe_is_chosen_by_validation_and_not_by_the_test(made: SimpleNamespace) -> None:
    plain = [run("qcn", seed, 0.10, validation=0.02) for seed in range(3)]
    strong = [run("qcn", seed, 0.30, validation=0.01, augment="strong") for seed in range(3)]
    assert made.evidence.chosen(plain + strong, "viewpoints-azimuth-pooled", "qcn") == strong


def test_a_recipe_for_novel_viewpoints_is_chosen_by_other_toys(made: SimpleNamespace) -> None:
    light = [run("qcn", seed, 0.10) for seed in range(3)]
    turned = [run("qcn", seed, 0.20, validation=0.01, augment="turned") for seed in range(3)]
    untried = [run("qcn", seed, 0.01, augment="turned", iterations=1) for seed in range(5)]
    tried = [
        run("qcn", 0, 0.3, dataset="viewpoints-dev"),
        run("qcn", 0, 0.2, dataset="viewpoints-dev", augment="turned"),
    ]
    assert made.evidence.chosen(light + turned + untried + tried, "viewpoints-azimuth-pooled", "qcn") == turned
    # A model that was not tried there: its images are varied as was best there.
    large = [run("cnn", 0, 0.1), run("cnn", 0, 0.2, validation=0.01, augment="turned")]
    assert made.evidence.chosen(large + tried, "viewpoints-azimuth-pooled", "cnn") == large[1:]


def test_a_taught_network_is_not_compared_with_one_that_was_not(made: SimpleNamespace) -> None:
    taught = [run("qcn", 0, 0.1, teachers=["cifar10/cnn-wide"])]
    published: dict[str, Any] = {"paper": {}, "capsules": {}}
    line = made.evidence.headline([*taught, run("cnn-small", 0, 0.2)], published).splitlines()[2]
    assert "10.00 (1 seed), taught |" in line and "×" not in line
    line = made.evidence.headline([*taught, run("cnn-small", 0, 0.2, teachers=["cifar10/cnn-wide"])], published)
    assert "2.00×" in line


def test_a_rival_is_compared_with_the_best_of_ours_that_was_trained_as_it_was(made: SimpleNamespace) -> None:
    taught = run("qcn-deep", 0, 0.1, validation=0.1, teachers=["a", "b"])
    alike = [run("qcn-deep", 0, 0.4, validation=0.2), run("qcn-deep", 0, 0.3, validation=0.3, label_smoothing=0.1)]
    rows, published = [taught, *alike, run("cnn-small", 0, 0.2)], {"paper": {}, "capsules": {}}
    line = made.evidence.headline(rows, published)
    assert "10.00 (1 seed), taught by two |" in line
    assert "| 0.50×, too few runs for a test (trained as `cnn-small`: 40.00 (1 seed)) |" in line
    assert made.evidence.not_better(rows, published).endswith(
        "`qcn-deep` (10.00) is not better than `cnn-small` (20.00) trained alike (40.00)."
    )


def test_the_first_table_has_ten_lines_and_names_where_qcn_is_behind(made: SimpleNamespace) -> None:
    published = {"paper": {"svhn": 4.63}, "capsules": {}}
    rows = [run("qcn", 0, 0.2), run("cnn", 0, 0.1)]
    lines = made.evidence.headline(rows, published).splitlines()[2:]
    assert len(lines) == 10
    assert "| 20.00 (1 seed) |" in lines[0]
    assert "0.50×" in lines[0]
    assert any("data not available where this was run" in line and "4.63" in line for line in lines)
    assert (
        made.evidence.not_better(rows, published)
        == "- `viewpoints-azimuth-pooled`: `qcn` (20.00) is not better than `cnn` (10.00)."
    )
    assert "Nowhere" in made.evidence.not_better([run("qcn", 0, 0.1), run("cnn", 0, 0.2)], published)


def looks(*errors: tuple[float, float, float, float]) -> list[dict[str, float]]:
    """After each epoch: training, validation, familiar, novel."""
    return [dict(zip(("train", "validation", "familiar", "novel"), each, strict=True)) for each in errors]


def test_the_rule_that_training_follows_is_among_those_compared(made: SimpleNamespace) -> None:
    rule = made.choosing.RULES["the last within the 95 % interval of the least"]
    draws = np.random.default_rng(0)
    for images in (10, 200):
        for _ in range(100):
            wrong = draws.integers(0, images // 2, 30).tolist()
            shares = [count / images for count in wrong]
            kept = [epoch for epoch in range(30) if as_good_as_the_best(shares[: epoch + 1], images)]
            assert rule(wrong, images) == kept[-1]


def test_the_gain_of_a_rule_is_counted_on_the_other_images(made: SimpleNamespace) -> None:
    runs = [
        {
            "dataset": name,
            "per_class": 20,
            "validation": 20,
            "wrong": [9, 4, 5],
            "others": 100,
            "wrong_of_others": found,
        }
        for name, found in (("cifar10", [60, 50, 40]), ("fashion-mnist", [40, 30, 32]))
    ]
    head, _, least, *_, interval, last = made.choosing.compared(runs).splitlines()
    assert head.startswith("| rule | `fashion-mnist`, 20 per class | `cifar10`, 20 per class | gain |")
    assert "| 30.00 (2) | 50.00 (2) |  |" in least
    assert "| 32.00 (3) | 40.00 (3) | 4.00 ± 6.00 |" in interval and "| 4.00 ± 6.00 |" in last


def test_the_checkpoint_counts_that_training_kept_or_the_best_look(made: SimpleNamespace) -> None:
    seen = looks((0.3, 0.1, 0.1, 0.30), (0.2, 0.0, 0.0, 0.25), (0.1, 0.0, 0.0, 0.20), (0.1, 0.1, 0.0, 0.05))
    assert made.counting.by_validation({"best": 3, "looks": seen})["novel"] == 0.20
    assert made.counting.best_look(seen, "novel") == 0.05


def test_the_better_network_is_taken_back_to_where_it_erred_as_the_other_ends(made: SimpleNamespace) -> None:
    slow = looks((0.5, 0, 0.30, 0.4), (0.4, 0, 0.05, 0.3), (0.3, 0, 0.10, 0.2))
    fast = looks((0.6, 0, 0.20, 0.5), (0.3, 0, 0.08, 0.4), (0.1, 0, 0.00, 0.1))
    for ours, theirs in ((slow, fast), (fast, slow)):
        one, other, chose = made.counting.matched(ours, theirs, "familiar")
        assert chose and {one["novel"], other["novel"]} == {0.2, 0.4}
        assert (one is slow[-1]) == (ours is slow)
    assert made.counting.matched(slow, fast, "train")[:2] == (slow[2], fast[1])
    assert made.counting.matched(fast, fast, "familiar") == (fast[-1], fast[-1], False)


def test_both_ways_of_counting_are_in_the_page(
    made: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made.accuracy_page, "RESULTS", tmp_path)
    monkeypatch.setattr("pages.RESULTS", tmp_path)
    assert made.accuracy_page.two_ways() == ""  # was not run
    ours, theirs, other = (
        [
            run(model, seed, 0, augment=augment, **more)
            | {
                "best": 2,
                "looks": looks((0.3, 0, 0, far + 0.1), (end, 0, 0, far + 0.01 * seed), (end, 0.1, 0, far - 0.02)),
            }
            for seed in range(3)
        ]
        for model, augment, end, far, more in (
            ("qcn", "turned", 0.1, 0.1, {"iterations": 1}),
            ("cnn-small", "turned", 0.2, 0.2, {}),
            ("cnn-small", "light", 0.1, 0.5, {}),  # not trained alike: has its own line, and is compared with none
        )
    )
    stamp = {"date": "", "machine": "", "versions": {}, "commit": ""}
    (tmp_path / "looks-h200.json").write_text(json.dumps(stamp | {"results": ours + theirs[:2] + other}))
    said = made.accuracy_page.two_ways()
    every, paired = (part.splitlines() for part in said.split("On novel viewpoints, by the seeds"))
    begins = "| `viewpoints-azimuth-pooled` | `qcn` | turned, iterations 1 | 30 "
    assert f"{begins}| familiar | 0.00 ± 0.00 (3) | 0.00 ± 0.00 (3) |" in every
    assert f"{begins}| novel | 11.00 ± 1.00 (3) | 8.00 ± 0.00 (3) |" in every
    assert sum("`cnn-small`" in line for line in every) == 4
    begins, ends = "| `viewpoints-azimuth-pooled`, turned, iterations 1 ", "too few runs for a test |"
    assert [line for line in paired if line.startswith(begins)] == [
        f"{begins}| chosen by validation | 10.50 ± 0.71 (2) | 20.50 ± 0.71 (2) | 1.95×, {ends}",
        f"{begins}| best of all looks | 8.00 ± 0.00 (2) | 18.00 ± 0.00 (2) | 2.25×, {ends}",
        f"{begins}| at equal familiar error | 8.00 ± 0.00 (2) | 18.00 ± 0.00 (2) | 2.25×, {ends}",
        f"{begins}| at equal training error | 10.50 ± 0.71 (2) | 18.00 ± 0.00 (2) | 1.71×, {ends}",
    ]
    assert "familiar error: in 2 of 2 pairs both end with the same error (0.00 %), matching chooses nothing" in said
    assert "training error: in 2 of 2 one is taken back to an earlier epoch, at 20.00 %." in said


def test_a_pose_that_turns_is_told_from_one_that_does_not(made: SimpleNamespace) -> None:
    azimuth = np.radians(np.arange(0, 360, 20.0))
    still = np.array([0.3, 0.2, 2.0])
    for name, times in (("once", 1), ("twice", 2)):
        turning = np.stack([np.cos(times * azimuth), -np.sin(times * azimuth), 0 * azimuth], 1) + still
        found = made.poses.turning(turning, azimuth)
        assert found[name] > 0.95
        assert found["twice" if name == "once" else "once"] < 0.2
        assert found["explained"] > 0.9
    shaken = still + 0.01 * np.random.default_rng(0).standard_normal((len(azimuth), 3))
    found = made.poses.turning(shaken, azimuth)
    assert found["once"] < 0.5
    assert found["swing_degrees"] < 5


def test_circular_correlation_has_a_sign_and_no_zero_point(made: SimpleNamespace) -> None:
    angle = np.radians(np.arange(0, 360, 20.0))
    assert made.poses.circular_correlation(angle, angle + 1.0) == pytest.approx(1)
    assert made.poses.circular_correlation(angle, 2.0 - angle) == pytest.approx(-1)


def test_every_picture_is_drawn(made: SimpleNamespace, tmp_path: Path) -> None:
    by_azimuth = {"familiar": {"0": rate(0.0), "20": rate(0.01)}, "novel": {"120": rate(0.2), "240": rate(0.1)}}
    assert not made.figures.azimuths([run("qcn", 0, 0.1)])  # as runs were recorded before
    assert made.figures.azimuths([run(model, 0, 0.1, by_azimuth=by_azimuth) for model in ("qcn", "cnn")])
    network = {
        "clean": rate(0.1),
        "corruptions": {kind: [rate(0.1 * k) for k in range(1, 6)] for kind in ("noise", "contrast")},
        "attacks": {kind: [rate(0.5)] for kind in ("fgsm", "pgd")},
        "calibration": {"error": 0.02, "bins": [{"images": 5, "confidence": 0.9, "right": 0.8}]},
        "rejection": {"coverage": [1.0, 0.95, 0.9, 0.8], "error": [0.1, 0.05, 0.02, 0.0], "aurc": 0.01},
    }
    amounts = {kind: {"values": [5, 4, 3, 2, 1], "unit": "so much"} for kind in ("noise", "contrast")}
    rows = [{**network, "model": "qcn"}, {**network, "model": "bundle", "attacks": {}}]
    record = {"dataset": "mnist", "amounts": amounts, "epsilons": [8], "results": rows}
    made.figures.robustness("mnist", record)
    said = made.evidence.robustness(record)
    assert "| `qcn` (1) | 10.00 (10.00 to 10.00) | 10.0 / 20.0 / 30.0 / 40.0 / 50.0 |" in said
    assert "| `qcn`, PGD | 50.0 |" in said
    assert "`bundle`, PGD" not in said
    assert {path.name for path in tmp_path.iterdir()} == {"azimuths.png", "robustness-mnist.png"}


def test_pictures_in_the_page_are_there(made: SimpleNamespace) -> None:
    stored = json.loads((BENCHMARKS / "results" / "poses.json").read_text(encoding="utf-8"))
    made.figures.poses(stored)
    assert (made.figures.IMAGES / "poses.png").stat().st_size > 10_000
    for name in vars(made):
        sys.modules.pop(name)
