"""Speed and memory of training the full-size QCN: one epoch (or --steps of it) per variant, by the product's own loop.

    python benchmarks/training.py --device cuda --json FILE
    python benchmarks/training.py --device cpu --dataset viewpoints-demo --batch-size 16 --steps 4 --json FILE

The first epoch is for warming up (and, with torch.compile, for compiling); the second one is reported.
Each variant runs in a process of its own; one that crashes it has `failed` in its row.
"""

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from apart import Died, apart
from machine import facts

from qcn.data import load
from qcn.train.loop import Training
from qcn.train.settings import settings_from

# Settings of a run, and whether its step is one CUDA graph (on a GPU only)
VARIANTS: dict[str, tuple[dict[str, Any], bool]] = {
    "kernel by kernel, fp32": ({}, False),
    "CUDA graph, fp32": ({}, True),
    "CUDA graph, bf16 convolutions": ({"precision": "bf16"}, True),
    "torch.compile, CUDA graph, fp32": ({"compile": True}, True),
    "torch.compile, CUDA graph, bf16 convolutions": ({"compile": True, "precision": "bf16"}, True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dataset", default="viewpoints-azimuth")
    parser.add_argument("--model", default="qcn")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, help="steps per epoch; all of them if not given")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    load(arguments.dataset, arguments.data_dir)  # rendered or unpacked once, and not by the first variant
    rows: list[dict[str, Any]] = []
    for name in arguments.variants:
        try:
            rows.append(apart(measure, name, arguments))
        except Died as error:
            rows.append({"variant": name, "failed": str(error)})
        asked = {name: getattr(arguments, name) for name in ("device", "dataset", "model", "batch_size", "steps")}
        record = {**facts(), **asked, "results": rows}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
        print(rows[-1], flush=True)


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Two epochs of one variant; what is reported of the second."""
    splits = load(arguments.dataset, arguments.data_dir)
    steps = arguments.steps or len(splits.train) // arguments.batch_size
    # One validation image: what is measured is training.
    few = np.arange(steps * arguments.batch_size)
    splits = replace(splits, train=splits.train[few], validation=splits.validation[np.arange(1)])
    device = torch.device(arguments.device)
    chosen, as_graph = VARIANTS[name]
    settings = settings_from(
        "best", dataset=arguments.dataset, model=arguments.model, epochs=2, batch_size=arguments.batch_size, **chosen
    )
    with tempfile.TemporaryDirectory() as folder:
        training = Training(settings, splits, Path(folder), device)
        training.as_graph &= as_graph
        history = training.run().history
    return {
        "variant": name,
        "images_per_second": history[1].images_per_second,
        "ms_per_step": 1e3 * arguments.batch_size / history[1].images_per_second,
        "first_epoch_seconds": history[0].seconds,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None,
    }


if __name__ == "__main__":
    main()
