"""Measure the runs of docs/runs.csv: those that sweeps of benchmarks/accuracy trained, or more of their kind.

    qcn sweep benchmarks/accuracy/mnist.toml 'qcn*' --data-dir data    # in several shells at once, they share the work
    python benchmarks/accuracy.py runs/sweep/mnist --data-dir data     # on the same machine

Evaluates each finished run of these folders once, and merges its errors into --json. The test splits are looked at
here, when a run has ended; every choice was made on validation images. With --directions, which is for the sweeps of
benchmarks/directions, it merges errors and angles into benchmarks/results/direction-h200.json.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from comparison import MORE
from measurements import RESULTS, machine, put, stamp

from qcn.evaluate.evaluation import evaluate
from qcn.evaluate.request import Request
from qcn.names import RUN
from qcn.sweep.plan import Sweep, read_sweep
from qcn.sweep.run import PLAN
from qcn.train.record import load_run
from qcn.train.settings import settings_from

SWEEPS = Path(__file__).parent
EVALUATION = Path("evaluation") / "evaluation.json"  # in a run


def sweeps(folder: str = "accuracy") -> dict[str, Sweep]:
    """By file: in `accuracy`, by data set."""
    return {path.stem: read_sweep(path) for path in sorted((SWEEPS / folder).glob("*.toml"))}


def settings_of_run(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of run.json that a result has; some only where they differ from the preset."""
    usual = asdict(settings_from("best", dataset="", model=""))
    names = ("dataset", "model", "loss", "lr", "epochs", "batch_size", "augment", "label_smoothing", "seed")
    results = {name: settings[name] for name in names}
    results |= {name: settings[name] for name in MORE if name in settings and settings[name] not in (usual[name], [])}
    if teachers := results.get("teachers"):
        results["teachers"] = [f"{settings['dataset']}/{trial_of(Path(teacher))}" for teacher in teachers]
    return results


def trial_of(folder: Path) -> str:
    """The trial that a run is of: cnn-wide of cnn-wide-seed0, or of mnist--cnn-wide-seed0, an older name."""
    return folder.name.rsplit("-seed", 1)[0].rpartition("--")[2]


def result(folder: Path) -> dict[str, Any]:
    """A finished run: its settings, its least validation error, and that of each test split with its 95 % interval."""
    run, evaluation = read_json(folder / RUN), read_json(folder / EVALUATION)
    best = run[evaluation["checkpoint"]]
    epoch = next(one for one in run["history"] if one["epoch"] == best["epoch"])
    return {
        "row": f"{run['settings']['dataset']}/{trial_of(folder)}",
        **settings_of_run(run["settings"]),
        "checkpoint": evaluation["checkpoint"],
        "epoch": best["epoch"],
        "weights_sha256": best["sha256"],
        "train_error": epoch["train_error"],
        "validation_error": min(one["validation_error"] for one in run["history"]),
        "seconds": sum(one["seconds"] for one in run["history"]),
        "splits": {split["split"]: split["overall"] for split in evaluation["splits"]},
        "by_azimuth": {split["split"]: split["by_azimuth"] for split in evaluation["splits"] if split["by_azimuth"]},
        "machine": machine(),
    }


def direction_result(folder: Path) -> dict[str, Any]:
    """A finished run of a sweep in benchmarks/directions: per cent of errors, and how far directions are off."""
    run, evaluation = read_json(folder / RUN), read_json(folder / EVALUATION)
    last, splits = run["history"][-1], {}
    for split in evaluation["splits"]:
        error, total = 100 * split["overall"]["error"], split["overall"]["total"]
        splits[split["split"]] = {"error": error, "images": total}
        if off := split["direction"]:
            medians = {at: one["median"] for at, one in off["by_azimuth"].items()}
            splits[split["split"]] |= {**off["overall"], "images": total, "by_azimuth": medians}
    return {
        **direction_row(read_json(folder.parent / PLAN), trial_of(folder)),
        "seed": run["settings"]["seed"],
        "limit": 0,
        "epochs": run["settings"]["epochs"],
        "train": run["data"]["train"],
        "validation_error": 100 * last["validation_error"],
        "validation_direction_error": last["direction_error"],
        "seconds": sum(one["seconds"] for one in run["history"]),
        "splits": splits,
        **stamp(),
    }


def direction_row(sweep: dict[str, Any], trial: str) -> dict[str, Any]:
    """The row of a trial, DATASET/MODEL/WEIGHT, and what was changed against the sweep's first trial of its network."""
    trials = {one["name"]: {**sweep["common"], **one["changed"]} for one in sweep["trials"]}
    own = trials[trial]
    first = next(one for one in trials.values() if one["model"] == own["model"])
    others = {name: value for name, value in own.items() if name not in ("dataset", "direction")}
    weight = f"{own['direction']:g}" if own["direction"] else "off"
    return {
        "row": f"{own['dataset']}/{own['model']}/{weight}",
        "changed": {name: value for name, value in others.items() if value != first.get(name)},
    }


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", type=Path, metavar="FOLDER", help="of qcn sweep")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--directions", action="store_true", help="measure how far directions of view are off, too")
    parser.add_argument("--json", type=Path, help="file to merge into")
    arguments = parser.parse_args()
    if arguments.directions:
        measured, key, name = direction_result, ("row", "seed", "changed", "limit", "train"), "direction-h200.json"
    else:
        measured, key, name = result, ("weights_sha256",), "accuracy-h200.json"
    file = arguments.json or RESULTS / name
    for folder in sorted(path.parent for sweep in arguments.sweeps for path in sweep.glob(f"*/{RUN}")):
        run = load_run(folder)
        if run.progress.epoch < run.settings.epochs or (folder / EVALUATION).exists():
            continue
        evaluate(folder, Request(data_dir=arguments.data_dir, out=(folder / EVALUATION).parent))
        count = put(file, [measured(folder)], *key)
        print(f"{folder}: measured; {count} runs in {file}")


if __name__ == "__main__":
    main()
