"""Which epoch's weights to keep: rules that choose one by validation errors, compared on images they did not see.

    python benchmarks/choosing.py mnist/qcn-deep fashion-mnist/qcn-deep --seeds 0-2 --data-dir data

Rows of reproduce.py are trained once more, and after every epoch it is noted which validation images were answered
wrongly. Then these images are halved at random, many times: a rule chooses an epoch by the errors on one half, and the
error at that epoch on the other half counts. No test image is looked at.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from machine import facts
from numpy.typing import NDArray
from pages import RESULTS
from reproduce import RECIPES, add_options, changed_by, folder_of, told

from qcn.data import find
from qcn.devices import pick_device
from qcn.files import write_text
from qcn.train.begin import load_once
from qcn.train.loop import Training
from qcn.train.record import Epoch
from qcn.train.settings import Settings, settings_from
from qcn.train.validation import predict

HALVINGS = 1000
Errors = NDArray[np.float64]  # of all epochs, shares of the images
RULES: dict[str, Callable[[Errors, int], int]] = {
    "the least error, the last of equal ones": lambda errors, images: last(errors <= errors.min()),
    "the last within one standard error of the least": lambda errors, images: last(
        errors <= errors.min() + np.sqrt(errors.min() * (1 - errors.min()) / images)
    ),
    "the last": lambda errors, images: len(errors) - 1,
}


def last(epochs: NDArray[np.bool_]) -> int:
    return int(np.flatnonzero(epochs)[-1])


class Watched(Training):
    """A training that notes after every epoch which validation images were answered wrongly."""

    wrong: list[NDArray[np.bool_]]

    def finish_epoch(self, seconds: float, steps: int) -> Epoch:
        images = self.splits.validation
        self.wrong.append(predict(self.average, images, self.preprocessing, self.device) != images.labels)
        return super().finish_epoch(seconds, steps)


def compared(wrong: NDArray[np.bool_], halvings: int = HALVINGS) -> dict[str, dict[str, float]]:
    """By rule, for wrong answers [epochs, images]: the mean error on the other half, and the mean epoch, from 1."""
    draws = np.random.default_rng(0)
    images = wrong.shape[1]
    found: dict[str, list[tuple[float, int]]] = {rule: [] for rule in RULES}
    for _ in range(halvings):
        order = draws.permutation(images)
        seen, other = (wrong[:, half].mean(1) for half in np.array_split(order, 2))
        for rule, choose in RULES.items():
            epoch = choose(seen, images // 2)
            found[rule].append((float(other[epoch]), epoch + 1))
    means = {rule: np.mean(pairs, 0).tolist() for rule, pairs in found.items()}
    return {rule: {"error": error, "epoch": epoch} for rule, (error, epoch) in means.items()}


def watched(settings: Settings, data_dir: Path, out: Path) -> dict[str, Any]:
    """Train with these settings, and compare the rules."""
    training = Watched(settings, load_once(find(settings.dataset), data_dir), out, pick_device("auto"))
    training.wrong = []
    run = training.run()
    return told(asdict(run.settings)) | {"rules": compared(np.array(training.wrong))}


def results(file: Path) -> list[dict[str, Any]]:
    """The runs that are done."""
    return json.loads(file.read_text(encoding="utf-8"))["results"] if file.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    untaught = [row for row, settings in RECIPES.items() if "teachers" not in settings]
    parser.add_argument("rows", nargs="+", metavar="ROW", choices=untaught)
    add_options(parser, "runs/choosing", RESULTS / "choosing.json")
    arguments = parser.parse_args()
    changed, note = changed_by(arguments.set)
    for row in arguments.rows:
        for seed in arguments.seeds:
            settings = settings_from("best", **RECIPES[row] | changed | {"seed": seed})
            found = watched(settings, arguments.data_dir, folder_of(arguments.runs, row + note, seed))
            record = facts() | {"results": [*results(arguments.json), {"row": row + note, **found}]}
            write_text(arguments.json, json.dumps(record, indent=1) + "\n")
            print(
                f"{row}{note} seed {seed}:",
                *(
                    f"{rule}: {100 * one['error']:.3f} %, epoch {one['epoch']:.0f};"
                    for rule, one in found["rules"].items()
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
