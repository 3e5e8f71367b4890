"""What a TensorRT engine runs, layer by layer: types, the nodes in it, and the time of each by TensorRT's own profiler.

    python benchmarks/engine_layers.py BUNDLE/engines/*.engine --json FILE

Needs a GPU. The engine is run at the batch that it is fastest at, without a CUDA graph; a layer's time is the median of
200 runs. They add up to more than the engine takes, since each is waited for.
"""

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from qcn.export.backends.model_file import ModelFile
from qcn.export.backends.runner import Options
from qcn.export.backends.tensorrt.receipt import from_inspector
from qcn.export.backends.tensorrt.runner import TensorRTRunner

RUNS, WARM_UP = 200, 20
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="+", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    if missing := [path for path in arguments.engines if not path.is_file()]:
        parser.error(f"there is no engine {missing[0]}")
    found = {str(path): layers(path) for path in arguments.engines}
    arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for path, rows in found.items():
        print(path)
        for row in rows:
            print(f"  {row['us'] or 0:8.1f} µs  {row['type']:24} {row['precision']:20} {row['name'][:90]}")


def layers(path: Path) -> list[Row]:
    """The layers of an engine in their order."""
    model = ModelFile.at(path)
    facts = model.facts
    shape = facts["inputs"][0]["shape"]
    images = np.random.default_rng(0).standard_normal((facts["batch"][1], *shape[1:]), np.float32)
    with TensorRTRunner(model, Options("cuda")) as runner:
        runner.graph = False
        times = profiled(runner, images)
        return [
            {
                "name": layer.name,
                "type": layer.type,
                "precision": layer.precision,
                "nodes": list(layer.nodes),
                "us": 1e3 * statistics.median(times[layer.name]) if layer.name in times else None,
            }
            for layer in from_inspector(runner.inspected())
        ]


def profiled(runner: TensorRTRunner, images: np.ndarray) -> dict[str, list[float]]:
    """Milliseconds of each layer, by name."""
    times: dict[str, list[float]] = defaultdict(list)
    trt = runner._trt

    class Profiler(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            times[layer_name].append(ms)

    runner.infer(images)
    runner._context.profiler = (profiler := Profiler())
    for _ in range(WARM_UP + RUNS):
        runner.enqueue()
    runner.synchronize()
    del profiler
    return {name: taken[WARM_UP:] for name, taken in times.items()}


if __name__ == "__main__":
    main()
