"""Class and direction of view together: trains networks with and without directions and measures both.

    python benchmarks/direction.py --list
    python benchmarks/direction.py --rows 'viewpoints/*' --seeds 0-4 --jobs 6 --data-dir data

A row is DATASET/MODEL/WEIGHT; --rows takes patterns. Each row and seed is a process of its own, --jobs of them at a
time: several share one GPU well, best under NVIDIA's MPS. What is done is not done again. --set varies a recipe, and
--epochs and --limit make it small enough to try on a CPU.
"""

import argparse
import fnmatch
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from measurements import RESULTS, machine, put, seeds_of, stamp

from qcn.data import registry
from qcn.data.imageset import ImageSet, Splits
from qcn.evaluate.directions import measure_directions
from qcn.evaluate.networks import open_network
from qcn.evaluate.rates import measure_answers
from qcn.networks.devices import pick_device
from qcn.train.loop import Training
from qcn.train.settings import settings_from

FILE = RESULTS / "direction-h200.json"
MODELS = {
    "qcn-deep": {"loss": "spread", "lr": 1e-2, "iterations": 1},
    "qcn": {"loss": "spread", "lr": 1e-2, "iterations": 1},
    "cnn-small": {"loss": "ce", "lr": 1e-2},
}
BACKBONE = {"qcn-lite0": {}, "cnn-lite0": {}}  # on a pretrained backbone; --set freeze=true epochs=40 without tuning it
WEIGHTS = ("off", "1", "3")
# As many steps for all networks of a data set.
RECIPES: dict[str, dict[str, Any]] = {
    "viewpoints": {"epochs": 30},
    "viewpoints-between": {"epochs": 30},
    "viewpoints-azimuth": {"epochs": 40},
    "viewpoints-azimuth-pooled": {"epochs": 30},
    "viewpoints-dev": {"epochs": 30},
    "viewpoints-demo": {"epochs": 18, "batch_size": 27},
    "coil20-between": {"epochs": 240, "batch_size": 32},
    "coil20-azimuth": {"epochs": 240, "batch_size": 32},
    **{f"eth80-fold{fold}": {"epochs": 200, "batch_size": 128} for fold in range(5)},
    "eth80-azimuth": {"epochs": 200, "batch_size": 128},
    "scanned": {"epochs": 60, "batch_size": 128},
}
PHOTOGRAPHS = {
    f"eth80-{side}-fold{fold}": {"epochs": 24, "batch_size": 64, "augment": "photo", "flip": True}
    for side in (128, 192)
    for fold in range(5)
}
ROWS = [f"{dataset}/{model}/{weight}" for dataset in RECIPES for model in MODELS for weight in WEIGHTS]
ROWS += [f"{dataset}/{model}/2" for dataset in PHOTOGRAPHS for model in BACKBONE]


def settings_of(row: str, seed: int, changed: dict[str, Any]) -> dict[str, Any]:
    dataset, model, weight = row.split("/")
    recipe = {"augment": "turned", **(RECIPES | PHOTOGRAPHS)[dataset], **(MODELS | BACKBONE)[model], **changed}
    return {"dataset": dataset, "model": model, "direction": weight, "seed": seed, **recipe}


def measured(row: str, seed: int, changed: dict[str, Any], data_dir: Path, folder: Path, limit: int) -> dict[str, Any]:
    """Train a row's network and measure it on its test splits."""
    settings = settings_from("best", **settings_of(row, seed, changed))
    dataset = registry.find(settings.dataset)
    splits = registry.read(dataset, data_dir)
    if limit:
        tests = {name: some(images, limit) for name, images in splits.tests.items()}
        splits = Splits(some(splits.train, limit), some(splits.validation, limit), tests, splits.remarks)
    run = Training(settings, splits, folder, pick_device("auto"), dataset, data_dir=data_dir).run()
    network = open_network(folder)
    results = {}
    for name, images in splits.tests.items():
        answers = network.answers(images, lambda done: None)
        result = measure_answers(name, images, answers, 2)
        direction = None
        if network.direction and answers.pose is not None:
            direction = measure_directions(images, answers.predicted, answers.pose, network.direction)
        results[name] = {"error": 100 * result.overall.error, "images": result.overall.total}
        if direction:
            medians = {at: one.median for at, one in direction.by_azimuth.items()}
            results[name] |= asdict(replace(direction.overall, images=result.overall.total)) | {"by_azimuth": medians}
    last = run.history[-1]
    return {
        "row": row,
        "seed": seed,
        "changed": changed,
        "limit": limit,
        "epochs": run.settings.epochs,
        "train": len(splits.train),
        "validation_error": 100 * last.validation_error,
        "validation_direction_error": last.direction_error,
        "seconds": sum(one.seconds for one in run.history),
        "splits": results,
        "machine": machine(),
    }


def some(images: ImageSet, limit: int) -> ImageSet:
    """About so many images, at even distances."""
    return images[np.arange(0, len(images), max(1, len(images) // limit))]


def place(runs: Path, row: str, note: str, seed: int) -> Path:
    return runs / f"{row.replace('/', '--')}{note.replace('/', '-')}-seed{seed}"


def line(result: dict[str, Any]) -> str:
    """A result in a line."""
    parts = [f"{result['row']} seed {result['seed']} {json.dumps(result['changed']) if result['changed'] else ''}:"]
    for name, one in result["splits"].items():
        parts.append(f"{name} {one['error']:.2f} %")
        if "median" in one:
            parts.append(
                f"{one['median']:.1f}° ({100 * one['within_15']:.0f} % within 15°, {100 * one['within_30']:.0f} % "
                f"within 30°, {100 * one['coverage']:.0f} % within the spread)"
            )
    return " ".join(parts)


def say(text: str) -> None:
    """A line at once: of several threads and processes, `print` would write the text and the line's end apart."""
    print(f"{text}\n", end="", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", default=[], metavar="ROW", help="DATASET/MODEL/WEIGHT, or patterns of it")
    parser.add_argument("--list", action="store_true", help="show the rows")
    parser.add_argument("--seeds", type=seeds_of, default=[0], help="one, or a range such as 0-4")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="other settings, values as JSON")
    parser.add_argument("--epochs", type=int, help="instead of the recipe's")
    parser.add_argument("--limit", type=int, default=0, help="about so many images per split; 0: all")
    parser.add_argument("--runs", type=Path, default=Path("runs/direction"))
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--json", type=Path, default=FILE)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # one row, in this process
    arguments = parser.parse_args()
    chosen = [row for row in ROWS if any(fnmatch.fnmatch(row, pattern) for pattern in arguments.rows)]
    if arguments.list or not chosen:
        print("\n".join(ROWS))
        sys.exit(0 if arguments.list else 2)
    epochs = [f"epochs={arguments.epochs}"] if arguments.epochs else []
    settings = [*arguments.set, *epochs]
    changed = {name: json.loads(value) for name, value in (one.split("=", 1) for one in settings)}
    note = "".join(f",{one}" for one in settings)
    if arguments.here:
        (row,), (seed,) = chosen, arguments.seeds
        folder = place(arguments.runs, row, note, seed)
        result = measured(row, seed, changed, arguments.data_dir, folder, arguments.limit)
        put(arguments.json, [result | stamp()], "row", "seed", "changed", "limit", "train")
        (folder / "direction.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
        say(line(result))
        return

    def start(job: tuple[str, int]) -> int:
        row, seed = job
        folder = place(arguments.runs, row, note, seed)
        if (folder / "direction.json").exists():
            say(line(json.loads((folder / "direction.json").read_text(encoding="utf-8"))))
            return 0
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, __file__, "--here", "--rows", row, "--seeds", str(seed), "--limit"]
        command += [str(arguments.limit), "--runs", str(arguments.runs), "--data-dir", str(arguments.data_dir)]
        command += ["--json", str(arguments.json), "--set", *arguments.set, *epochs]
        with (folder / "log.txt").open("w", encoding="utf-8") as log:
            code = subprocess.run(command, stderr=log, check=False).returncode
        if code:
            say(f"{row} seed {seed} failed: see {folder / 'log.txt'}")
        return code

    with ThreadPoolExecutor(arguments.jobs) as pool:
        codes = list(pool.map(start, [(row, seed) for seed in arguments.seeds for row in chosen]))
    sys.exit(1 if any(codes) else 0)


if __name__ == "__main__":
    main()
