"""How few photographs are enough: ETH-80 with 20, 50 and 100 pictures per class, asked about objects never seen.

    python benchmarks/few_pictures.py --seeds 0-2 --data-dir data
    python benchmarks/few_pictures.py --way --data-dir data     # 160 photographs to a verified bundle, by the clock

Seed S trains on pictures drawn from eight objects of every kind and tests on the two of fold S. They are given as a
user gives them: a table of files, with the name of the object, from which `qcn train` deals the validation pictures.
Networks that start from nothing see 64×64 pixels, as they would by default; those on a backbone 128×128.
"""

import argparse
import csv
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measurements import RESULTS, put, seeds_of
from PIL import Image

import qcn
from qcn.data import eth80
from qcn.data.imageset import ImageSet

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command does: spinning threads are slow on a busy machine

FILE = RESULTS / "few-pictures.json"
MODELS = {"qcn-lite0": 128, "cnn-lite0": 128, "qcn-deep": 64, "cnn-small": 64}
COUNTS = (20, 50, 100)


def write_pictures(images: ImageSet, folder: Path) -> list[Path]:
    """Every photograph as a file."""
    paths = [folder / f"{place:04}.png" for place in range(len(images))]
    folder.mkdir(parents=True, exist_ok=True)
    for path, pixels in zip(paths, images.images, strict=True):
        if not path.exists():
            Image.fromarray(pixels.transpose(1, 2, 0)).save(path)
    return paths


def write_table(images: ImageSet, paths: list[Path], count: int, seed: int, table: Path, tests: int | None) -> None:
    """So many pictures per class to train on, and those of two more objects, all or so many per class, to test."""
    assert images.views is not None
    chosen = np.random.default_rng(seed)
    tested = images.views.instance // 2 == seed % eth80.FOLDS
    with table.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("path", "label", "object", "split"))
        for label, name in enumerate(images.classes):
            of_class = images.labels == label
            for split, places, most in (
                ("train", np.flatnonzero(of_class & ~tested), count),
                ("test", np.flatnonzero(of_class & tested), tests),
            ):
                for place in sorted(chosen.permutation(places)[:most]):
                    rows.writerow((paths[place], name, images.views.instance[place], split))


def measured(table: Path, model: str, seed: int, folder: Path, log: Callable[[str], None]) -> Any:
    """Train and test; with a folder of data of its own, so that no features are found from an earlier run."""
    data = folder.with_name(f"{folder.name}-data")
    began = time.perf_counter()
    run = qcn.train(table, model=model, size=MODELS[model], seed=seed, out=folder, data_dir=data, device="cpu")
    seconds = time.perf_counter() - began
    (result,) = run.evaluate(data_dir=data, out=folder / "evaluation").results
    shutil.rmtree(data)
    row = {
        "model": model,
        "seed": seed,
        "error": 100 * result.overall.error,
        "images": result.overall.total,
        "seconds": seconds,
        "epochs": run.record.settings.epochs,
    }
    log(f"{table.stem} {model}: {row['error']:.1f} % of {row['images']}, {seconds:.0f} s")
    return row


def way(images: ImageSet, paths: list[Path], folder: Path, data_dir: Path) -> dict[str, Any]:
    """A folder of 160 photographs to a verified bundle, with defaults: seconds for each command."""
    table = folder / "way.csv"
    write_table(images, paths, 16, 0, table, 4)
    times, last = {}, time.perf_counter()

    def clock(name: str) -> None:
        nonlocal last
        times[name], last = time.perf_counter() - last, time.perf_counter()

    run = qcn.train(table, out=folder / "way", data_dir=data_dir)  # the network is chosen from the pictures
    clock("train")
    bundle = run.export("onnx", out=folder / "way-bundle", data_dir=data_dir)
    clock("export")
    report = bundle.verify(run=run)
    clock("verify")
    if not report.passed:
        raise SystemExit(report.summary)
    (result,) = run.evaluate(data_dir=data_dir, out=folder / "way-evaluation").results
    return {
        "model": run.record.model.name,
        "seconds": times,
        "total": sum(times.values()),
        "error": result.overall.error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=seeds_of, default=[0], help="one, or a range such as 0-2")
    parser.add_argument("--counts", type=int, nargs="*", default=COUNTS, help="pictures per class")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--way", action="store_true", help="only the way to a verified bundle")
    parser.add_argument("--runs", type=Path, default=Path("runs/few-pictures"))
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--json", type=Path, default=FILE)
    arguments = parser.parse_args()
    images = eth80.read(arguments.data_dir / "eth80", eth80.LARGE)
    paths = write_pictures(images, arguments.runs / "pictures")
    if arguments.way:
        row = way(images, paths, arguments.runs, arguments.data_dir)
        put(arguments.json, [{"count": "way", "seed": 0, **row}], "count", "model", "seed")
        print(row)
        return
    for seed in arguments.seeds:
        for count in arguments.counts:
            table = arguments.runs / f"{count}-per-class-{seed}.csv"
            write_table(images, paths, count, seed, table, None)
            for model in arguments.models:
                folder = arguments.runs / f"{table.stem}-{model}"
                if not folder.exists():
                    row = measured(table, model, seed, folder, lambda line: print(line, flush=True))
                    put(arguments.json, [{"count": count, **row}], "count", "model", "seed")


if __name__ == "__main__":
    main()
