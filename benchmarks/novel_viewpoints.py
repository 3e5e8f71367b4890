"""QCN and its rivals on familiar and novel viewpoints: trained and measured one by one, by the product's own code.

    python benchmarks/novel_viewpoints.py --recipe qcn:compile=true --recipe cnn:lr=0.001 --epochs 16 --json FILE

A recipe is a model and, after a colon, settings (`qcn.train.settings.Settings`) as key=value,key=value. The JSON is
written again after every recipe.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from apart import Died, apart
from machine import facts

from qcn.evaluate import evaluate
from qcn.train import resume, train
from qcn.train.record import load_run
from qcn.train.settings import settings_from
from qcn.zoo import parameter_count


def parse(recipe: str) -> dict[str, Any]:
    """`model:key=value,key=value` -> settings; values are read as JSON where they can be."""
    model, _, rest = recipe.partition(":")
    settings: dict[str, Any] = {"model": model}
    for pair in filter(None, rest.split(",")):
        key, _, value = pair.partition("=")
        try:
            settings[key] = json.loads(value)
        except json.JSONDecodeError:
            settings[key] = value
    return settings


def measure(recipe: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train one recipe, or continue its run, and measure it on the test splits."""
    chosen = {"dataset": arguments.dataset, "epochs": arguments.epochs, **parse(recipe)}
    folder = arguments.out / recipe.replace(":", "-").replace(",", "-")
    start = time.perf_counter()
    if (folder / "run.json").exists():
        run = resume(folder, arguments.data_dir)
    else:
        run = train(settings_from(arguments.preset, **chosen), arguments.data_dir, folder)
    seconds = time.perf_counter() - start
    results = evaluate(folder, None, arguments.data_dir, folder / "evaluation", which="last", split=None, device="auto")
    last = load_run(folder).history[-1]
    return {
        "recipe": recipe,
        "model": run.model.name,
        "settings": {name: getattr(run.settings, name) for name in ("loss", "lr", "batch_size", "seed")},
        "parameters": parameter_count(run.model.create()),
        "seconds": round(seconds, 1),
        "images_per_second": round(last.images_per_second),
        "train_error": last.train_error,
        "validation_error": last.validation_error,
        **{result.split: vars(result.overall) for result in results},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="viewpoints-azimuth")
    parser.add_argument("--recipe", action="append", required=True)
    parser.add_argument("--preset", default="best")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/novel_viewpoints"))
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for recipe in arguments.recipe:
        try:
            rows.append(apart(measure, recipe, arguments))
        except Died as error:
            rows.append({"recipe": recipe, "failed": str(error)})
        record = {**facts(), "dataset": arguments.dataset, "epochs": arguments.epochs, "results": rows}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
        print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
