"""Two ways of counting: the checkpoint that validation chose, or the best of many looks at the test views.

    python benchmarks/looks.py viewpoints-azimuth-pooled/qcn viewpoints-azimuth-pooled/cnn-small --seeds 0-2
    python benchmarks/looks.py demo/qcn-tiny demo/cnn-small --seeds 0-2 --json benchmarks/results/looks-demo.json

Rows of reproduce.py, or the set of `make demo`, are trained once more, and after every epoch the test splits are looked
at, which chooses nothing. So each run has both figures: that of docs/results.md#accuracy, and that of the paper, whose
code keeps the network with the least test error, and compares networks at equal accuracy on familiar views.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from machine import facts
from pages import RESULTS
from reproduce import RECIPES, folder_of, seeds_of

from qcn.data import find
from qcn.devices import pick_device
from qcn.files import write_text
from qcn.train.loop import Training, load_once
from qcn.train.record import Epoch
from qcn.train.settings import settings_from
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


def looked(row: str, seed: int, data_dir: Path, out: Path) -> dict[str, Any]:
    """Train a row, and the errors after each of its epochs."""
    settings = settings_from("best", **ROWS[row], seed=seed)
    training = Looked(settings, load_once(find(settings.dataset), data_dir), out, pick_device("auto"))
    training.looks = []
    training.run()
    return {"row": row, "dataset": settings.dataset, "model": settings.model, "seed": seed, "looks": training.looks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", metavar="ROW", choices=ROWS)
    parser.add_argument("--seeds", type=seeds_of, default=[0], help="one, or a range such as 0-4")
    parser.add_argument("--runs", type=Path, default=Path("runs/looks"))
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--json", type=Path, default=RESULTS / "looks-h200.json")
    arguments = parser.parse_args()
    record = json.loads(arguments.json.read_text(encoding="utf-8")) if arguments.json.exists() else {"results": []}
    for row in arguments.rows:
        for seed in arguments.seeds:
            if any((one["row"], one["seed"]) == (row, seed) for one in record["results"]):
                continue
            found = looked(row, seed, arguments.data_dir, folder_of(arguments.runs, row, seed))
            record |= facts() | {"results": [*record["results"], found]}
            write_text(arguments.json, json.dumps(record, indent=1) + "\n")
            print(f"{row} seed {seed}: the last look {found['looks'][-1]}", flush=True)


if __name__ == "__main__":
    main()
