"""Measure the runs of docs/runs.csv: those that sweeps of benchmarks/accuracy trained, or more of their kind.

    qcn sweep benchmarks/accuracy/mnist.toml 'qcn*' --data-dir data    # in several shells at once, they share the work
    python benchmarks/accuracy.py runs/sweep/mnist --data-dir data     # on the same machine

Evaluates each finished run of these folders once, and merges its errors into --json. The test splits are looked at
here, when a run has ended; every choice was made on validation images.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from comparison import MORE
from measurements import RESULTS, machine, put

from qcn.evaluate import evaluate
from qcn.names import RUN
from qcn.sweep.plan import Sweep, read_sweep
from qcn.train.record import load_run
from qcn.train.settings import settings_from

FILE = RESULTS / "accuracy-h200.json"
SWEEPS = Path(__file__).parent / "accuracy"


def sweeps() -> dict[str, Sweep]:
    """By data set."""
    return {path.stem: read_sweep(path) for path in sorted(SWEEPS.glob("*.toml"))}


def told(settings: dict[str, Any]) -> dict[str, Any]:
    """What a result says of a run's settings, as run.json has them; some only where they are not the preset's."""
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
    run = json.loads((folder / RUN).read_text(encoding="utf-8"))
    evaluation = json.loads((folder / "evaluation" / "evaluation.json").read_text(encoding="utf-8"))
    best = run[evaluation["checkpoint"]]
    epoch = next(one for one in run["history"] if one["epoch"] == best["epoch"])
    return {
        "row": f"{run['settings']['dataset']}/{trial_of(folder)}",
        **told(run["settings"]),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", type=Path, metavar="FOLDER", help="of qcn sweep")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--json", type=Path, default=FILE)
    arguments = parser.parse_args()
    for folder in sorted(path.parent for sweep in arguments.sweeps for path in sweep.glob(f"*/{RUN}")):
        run, out = load_run(folder), folder / "evaluation"
        if run.progress.epoch < run.settings.epochs or (out / "evaluation.json").exists():
            continue
        evaluate(folder, None, arguments.data_dir, out)
        count = put(arguments.json, [result(folder)], "weights_sha256")
        print(f"{folder}: measured; {count} runs in {arguments.json}")


if __name__ == "__main__":
    main()
