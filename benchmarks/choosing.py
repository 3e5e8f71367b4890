"""Which epoch is best: rules that choose one by few validation images, judged by many others.

    python benchmarks/choosing.py --seeds 0-7 --data-dir data

A `qcn-tiny` learns from few images of a set, as from a user's folder: a tenth of each class is for validation. After
every epoch its errors are counted on these, and on a thousand images that neither the network nor the rules see. Both
come from the set's training images; no test image is used. One process per core; what is done is not repeated.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import put_results, results
from pages import RESULTS, Row, table
from reproduce import seeds_of

from qcn.data import find, read
from qcn.data.imageset import ImageSet, Splits
from qcn.data.splits import hold_out
from qcn.intervals import wilson
from qcn.train.loop import Training
from qcn.train.record import Epoch
from qcn.train.settings import settings_from
from qcn.train.validation import count_errors

FILE = RESULTS / "choosing.json"
SETS = ("fashion-mnist", "cifar10")
PER_CLASS = (20, 60)
OTHERS = 1000
Rule = Callable[[Sequence[int], int], int]  # from wrong answers by epoch, of so many, to the place of an epoch


def within(allowed: Callable[[int, int], float]) -> Rule:
    """The rule that chooses the last epoch whose errors are at most what `allowed` makes of the least, of so many."""

    def rule(wrong: Sequence[int], images: int) -> int:
        most = allowed(min(wrong), images)
        return max(epoch for epoch, errors in enumerate(wrong) if errors <= most)

    return rule


RULES: dict[str, Rule] = {
    "the least error, the last of equal ones": within(lambda least, _: least),
    "the last within one standard error of the least": within(
        lambda least, images: least + (least * (1 - least / images)) ** 0.5
    ),
    "the last within the 95 % interval of the least": within(lambda least, images: images * wilson(least, images)[1]),
    "the last": lambda wrong, _: len(wrong) - 1,
}


class Watched(Training):
    """A training that also counts the errors on other images after every epoch."""

    others: ImageSet
    wrong: list[int]

    def finish_epoch(self, seconds: float, steps: int) -> Epoch:
        self.wrong.append(count_errors(self.average, self.others, self.preprocessing, self.device, slice(None)))
        return super().finish_epoch(seconds, steps)


def measure(name: str, per_class: int, seed: int, data_dir: Path) -> Row:
    """Train on `per_class` images of each class; wrong answers by epoch."""
    torch.set_num_threads(1)
    dataset = find(name)
    splits = read(dataset, data_dir)
    draws, labels = np.random.default_rng(seed), splits.train.labels
    few = [draws.choice(np.flatnonzero(labels == label), per_class, False) for label in range(len(dataset.classes))]
    train, validation = hold_out(splits.train[np.sort(np.concatenate(few))], name)
    settings = settings_from("best", dataset=name, model="qcn-tiny", seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        training = Watched(settings, Splits(train, validation, {}), Path(folder), torch.device("cpu"), dataset)
        training.others = splits.validation[np.linspace(0, len(splits.validation) - 1, OTHERS).astype(int)]
        training.wrong = []
        history = training.run().history
    return {
        "dataset": name,
        "per_class": per_class,
        "seed": seed,
        "validation": len(validation),
        "wrong": [round(row.validation_error * len(validation)) for row in history],
        "others": OTHERS,
        "wrong_of_others": training.wrong,
    }


def compared(runs: Sequence[Row]) -> str:
    """By rule: the error on the other images in per cent, and the epoch; and what it gains over the first rule."""
    groups: dict[str, list[Row]] = {}
    for run in sorted(runs, key=lambda run: (SETS.index(run["dataset"]), run["per_class"])):
        groups.setdefault(f"`{run['dataset']}`, {run['per_class']} per class", []).append(run)
    first, *_ = RULES.values()
    lines = []
    for name, rule in RULES.items():
        cells = [
            f"{statistics.mean(errors_at(run, rule) for run in group):.2f} "
            f"({statistics.mean(rule(run['wrong'], run['validation']) + 1 for run in group):.0f})"
            for group in groups.values()
        ]
        gains = [errors_at(run, first) - errors_at(run, rule) for run in runs]
        spread = statistics.stdev(gains) / len(gains) ** 0.5
        lines.append([name, *cells, f"{statistics.mean(gains):.2f} ± {spread:.2f}" if rule is not first else ""])
    return table(["rule", *groups, "gain"], lines)


def chose_last(runs: Sequence[Row]) -> int:
    """In how many runs the rule that training follows chooses the last epoch."""
    rule = RULES["the last within the 95 % interval of the least"]
    return sum(rule(run["wrong"], run["validation"]) == len(run["wrong"]) - 1 for run in runs)


def errors_at(run: Row, rule: Rule) -> float:
    """The error in per cent on the other images at the epoch that a rule chooses."""
    return 100 * run["wrong_of_others"][rule(run["wrong"], run["validation"])] / run["others"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=seeds_of, default=[0], help="one, or a range such as 0-4")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--json", type=Path, default=FILE)
    arguments = parser.parse_args()
    jobs = [(name, per_class, seed) for seed, name, per_class in product(arguments.seeds, SETS, PER_CLASS)]
    key = ("dataset", "per_class", "seed")
    done: list[Any] = [tuple(row[name] for name in key) for row in results(arguments.json)]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for run in as_completed(pool.submit(measure, *job, arguments.data_dir) for job in jobs if job not in done):
            put_results(arguments.json, [run.result()], *key)


if __name__ == "__main__":
    main()
