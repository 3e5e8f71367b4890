"""Two ways of counting: the checkpoint that validation chose, or the best of many looks at the test views.

    python benchmarks/looks.py viewpoints-azimuth-pooled/cnn-small-turned --seeds 0-4
    python benchmarks/looks.py viewpoints-azimuth-pooled/qcn-turned --set iterations=1 --seeds 0-4
    python benchmarks/looks.py demo/qcn-tiny demo/cnn-small --seeds 0-2 --json benchmarks/results/looks-demo.json

Rows of reproduce.py, or the set of `make demo`, are trained once more, and after every epoch the test splits are looked
at, which chooses nothing. So each run has both figures: that of docs/results.md#accuracy, and that of the paper, whose
code keeps the network with the least test error, and compares networks at equal accuracy on familiar views.
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from machine import put_results, results
from pages import RESULTS
from reproduce import RECIPES, add_options, changed_by, folder_of, told

from qcn.data import find
from qcn.devices import pick_device
from qcn.train.begin import load_once
from qcn.train.loop import Training
from qcn.train.record import Epoch
from qcn.train.settings import Settings, settings_from
from qcn.train.validation import count_errors

DEMO = {"dataset": "viewpoints-demo", "epochs": 18, "batch_size": 27}  # as `make demo`
ROWS = {row: settings for row, settings in RECIPES.items() if "teachers" not in settings} | {
    "demo/qcn-tiny": DEMO | {"model": "qcn-tiny", "loss": "spread", "lr": 0.02},
    "demo/cnn-small": DEMO | {"model": "cnn-small", "loss": "ce", "lr": 0.01},
}


class Looked(Training):
    """A training that also counts the errors on the test splits after every epoch."""

    looks: list[dict[str, float]]

    def finish_epoch(self, seconds: float, steps: int) -> Epoch:
        row = super().finish_epoch(seconds, steps)
        errors = {
            split: count_errors(self.average, images, self.preprocessing, self.device, slice(None)) / len(images)
            for split, images in self.splits.tests.items()
        }
        self.looks.append({"train": row.train_error, "validation": row.validation_error, **errors})
        return row


def looked(settings: Settings, data_dir: Path, out: Path) -> dict[str, Any]:
    """Train with these settings: the errors after each epoch, and the epoch that validation chose."""
    training = Looked(settings, load_once(find(settings.dataset), data_dir), out, pick_device("auto"))
    training.looks = []
    run = training.run()
    assert run.best
    return told(asdict(run.settings)) | {"best": run.best.epoch, "looks": training.looks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", metavar="ROW", choices=ROWS)
    add_options(parser, "runs/looks", RESULTS / "looks-h200.json")
    arguments = parser.parse_args()
    changed, note = changed_by(arguments.set)
    for row in arguments.rows:
        for seed in arguments.seeds:
            name = row + note
            if any((one["row"], one["seed"]) == (name, seed) for one in results(arguments.json)):
                continue
            settings = settings_from("best", **ROWS[row] | changed | {"seed": seed})
            found = looked(settings, arguments.data_dir, folder_of(arguments.runs, name, seed))
            put_results(arguments.json, [{"row": name, **found}], "row", "seed")
            print(f"{name} seed {seed}: the last look {found['looks'][-1]}", flush=True)


if __name__ == "__main__":
    main()
