"""What fine-tuning with int8 wins back: errors in float32 and in int8, before and after `qcn train --quantise`.

    python benchmarks/quantise.py fashion-mnist-cnn-small --steps 300 --json benchmarks/results/quantise.json

All convolutions and linears are in int8, with ranges by `mse` of 512 validation images; capsule layers stay float32.
Then the network that ships is trained on with the scales of that plan, its ranges are taken anew, and the test splits
are answered once each. What the file has already of other networks stays.
"""

import argparse
import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import facts
from torch import nn

from qcn.calibrate.assignments import apply, lowest
from qcn.calibrate.images import OBSERVED, spread
from qcn.calibrate.record import Key, calibrate
from qcn.calibrate.simulation import answers
from qcn.data import load
from qcn.data.imageset import Splits
from qcn.export.lower import layer_scales, lower
from qcn.export.program import Program
from qcn.intervals import ErrorRate
from qcn.shipped import place
from qcn.train.checkpoint import load_network
from qcn.train.loop import Training
from qcn.train.record import Quantised, Run
from qcn.train.settings import settings_from


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--test", type=int, default=10_000, help="most images of a test split")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    for model in arguments.models:
        found = {"steps": arguments.steps, "batch_size": arguments.batch_size, "lr": arguments.lr}
        found |= measured(model, **found, test=arguments.test, data_dir=arguments.data_dir)
        there = json.loads(arguments.json.read_text(encoding="utf-8")) if arguments.json.exists() else {}
        there |= facts() | {"models": there.get("models", {}) | {model: found}}
        arguments.json.write_text(json.dumps(there, indent=1) + "\n", encoding="utf-8")


def measured(model: str, steps: int, batch_size: int, lr: float, test: int, data_dir: Path) -> dict[str, Any]:
    """Errors by split, when they were taken, and precision."""
    network, run = load_network(place(model))
    splits = load(run.data.name, data_dir)
    rows = errors(model, "before", network, run, splits, test)
    quantised = Quantised(model, layer_scales(network, in_int8(network, run, splits)[1]))
    chosen = {"epochs": 1, "batch_size": batch_size, "lr": lr, "init": model, "augment": run.settings.augment}
    settings = settings_from("best", dataset=run.data.name, model=run.model.name, **chosen)
    few = replace(splits, train=spread(splits.train, steps * batch_size))
    with tempfile.TemporaryDirectory() as folder:
        Training(settings, few, Path(folder) / "run", torch.device("cpu"), quantised=quantised).run()
        tuned, _ = load_network(Path(folder) / "run", "last")
    return {"rows": rows + errors(model, "after", tuned, run, splits, test)}


def in_int8(network: nn.Module, run: Run, splits: Splits) -> tuple[Program, Program]:
    """The network's program in float32, and with all products in int8."""
    program = lower(network, *run.preprocessing.output_size(*run.data.image[1:]))
    images = spread(splits.validation, OBSERVED)
    with tempfile.TemporaryDirectory() as folder:
        path, key = Path(folder) / "ranges.json", Key("", "", "")
        ranges = calibrate(path, program, run.preprocessing, images, "", "mse", key, "")
    products = {name: precision for name, precision in lowest(program).items() if precision == "int8"}
    return program, apply(program, products, ranges)


def errors(model: str, when: str, network: nn.Module, run: Run, splits: Splits, most: int) -> list[dict[str, Any]]:
    """On the test splits, in float32 and in int8."""
    rows = []
    for precision, program in zip(("fp32", "int8"), in_int8(network, run, splits), strict=True):
        for split, whole in splits.tests.items():
            images = spread(whole, most)
            wrong = answers(program, images.images, run.preprocessing).predicted != images.labels
            rate = ErrorRate.of(int(np.sum(wrong)), len(wrong))
            rows.append({"split": split, "when": when, "precision": precision, "error": asdict(rate)})
            print(f"{model:26} {split:9} {when:7} {precision}: {100 * rate.error:.2f} %", flush=True)
    return rows


if __name__ == "__main__":
    main()
