"""Gather finished training runs into a file for docs/results.md: what was trained, and how often it is wrong.

    qcn train --dataset cifar10 --model qcn --epochs 150 --compile --out RUN
    qcn evaluate RUN --out RUN/evaluation
    python benchmarks/accuracy.py RUN… --json benchmarks/results/accuracy-h200.json

The machine is that of RUN/machine.json, which whoever trained there writes beside the run.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from machine import facts


def row(folder: Path) -> dict[str, Any]:
    """A run: its settings, its validation error, and the error of each test split with its 95 % interval."""
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    evaluation = json.loads((folder / "evaluation" / "evaluation.json").read_text(encoding="utf-8"))
    best = run[evaluation["checkpoint"]]
    epoch = next(one for one in run["history"] if one["epoch"] == best["epoch"])
    names = ("dataset", "model", "loss", "lr", "epochs", "batch_size", "seed")
    return {
        **{name: run["settings"][name] for name in names},
        "checkpoint": evaluation["checkpoint"],
        "epoch": best["epoch"],
        "weights_sha256": best["sha256"],
        "validation_error": epoch["validation_error"],
        "splits": {split["split"]: split["overall"] for split in evaluation["splits"]},
        "machine": json.loads((folder / "machine.json").read_text(encoding="utf-8")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--json", required=True, type=Path)
    arguments = parser.parse_args()
    rows = [row(folder) for folder in arguments.runs]
    arguments.json.write_text(json.dumps({"date": facts()["date"], "results": rows}, indent=1) + "\n", encoding="utf-8")
    print(f"{len(rows)} runs in {arguments.json}")


if __name__ == "__main__":
    main()
