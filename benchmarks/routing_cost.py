"""Fits the constants of deploy/kernels/em_routing_cost.cuh to measured times, and says what the kernels then choose.

    python benchmarks/routing_cost.py [FILE]

FILE: what `deploy/tests/cuda_routing --sweep --json FILE` wrote on an H200; benchmarks/results/routing-cuda-cpp.json if
none is named. Needs g++, not a GPU. Least squares of relative errors, over tiles that take at most twice as long as the
fastest: the others are never chosen. Copy the constants to the header, and to the table of docs/kernels.md, if they
differ. What no row of FILE pays for keeps the header's price.
"""

import ctypes
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "routing-cuda-cpp.json"
ARITHMETIC = ("single", "half")  # qcn_cuda_arithmetic
H200 = (132, 232448, 233472, 9)  # Device of em_routing_cost.cuh

# The full-size QCN's, as bench() of deploy/tests/cuda_routing.cu has them: qcn_routing_shape without the batch.
LAYERS = {
    "layer 1": (32, 16, 16, 5, 5, 1, 16, 2, 0, 0),
    "layer 2": (16, 12, 12, 5, 5, 1, 16, 2, 0, 0),
    "layer 3": (16, 8, 8, 5, 5, 1, 16, 2, 0, 0),
    "classes": (16, 4, 4, 4, 4, 1, 5, 2, 1, 0),
}
SOURCE = """
#include "emulated_device.h"
#include "em_routing_cost.cuh"
extern "C" void prices(double* single, double* half) {
  std::copy(kSingleCost.begin(), kSingleCost.end(), single), std::copy(kHalfCost.begin(), kHalfCost.end(), half);
}
extern "C" void paid(const qcn_routing_shape* shape, int arithmetic, const qcn_cuda_routing_tile* tile,
                     const Device* device, double* to) {
  const Cost all = counts(*shape, static_cast<qcn_cuda_arithmetic>(arithmetic), *tile, *device);
  std::copy(all.begin(), all.end(), to);
}
"""


class Costs:
    """The header's own functions, compiled for this machine."""

    def __init__(self, folder: Path) -> None:
        library, include = folder / "costs.so", [f"-I{ROOT / 'deploy' / name}" for name in ("tests", "kernels")]
        flags = ["-std=c++17", "-shared", "-fPIC", "-x", "c++", "-"]
        subprocess.run(["g++", *include, *flags, "-o", str(library)], input=SOURCE, text=True, check=True)
        self.functions = ctypes.CDLL(str(library))

    def prices(self) -> dict[str, np.ndarray]:
        """The header's constants, by arithmetic."""
        found = {name: np.empty(5) for name in ARITHMETIC}
        self.functions.prices(*(ctypes.c_void_p(found[name].ctypes.data) for name in ARITHMETIC))
        return found

    def paid(self, row: dict[str, Any]) -> np.ndarray:
        """How often a measured row pays each of them."""
        names = ("windows", "splits", "threads", "stages", "shared_bytes", "cluster")
        shape, tile = (row["batch"], *LAYERS[row["layer"]]), tuple(row[name] for name in names)
        counts, arrays = np.empty(5), [np.int32(x) for x in (shape, tile, H200)]
        to_shape, to_tile, to_device, to = (ctypes.c_void_p(x.ctypes.data) for x in (*arrays, counts))
        self.functions.paid(to_shape, ARITHMETIC.index(row["arithmetic"]), to_tile, to_device, to)
        return counts


def groups(rows: list[dict[str, Any]], *keys: str) -> Iterator[tuple[tuple[Any, ...], list[dict[str, Any]]]]:
    for key in sorted({tuple(row[name] for name in keys) for row in rows}):
        yield key, [row for row in rows if tuple(row[name] for name in keys) == key]


def measured(path: Path = RESULTS) -> list[dict[str, Any]]:
    """The rows of single layers, on tiles that are among the kernels."""
    rows = json.loads(path.read_text())["results"]
    return [row for row in rows if row["layer"] in LAYERS and row["tile"] is not None]


def fitted(costs: Costs, rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """The prices that fit best, by arithmetic, to three digits."""
    found = {}
    for (arithmetic,), these in groups(rows, "arithmetic"):
        near = []
        for _, of_layer in groups(these, "layer", "batch"):
            near += [row for row in of_layer if row["us"] <= 2 * min(r["us"] for r in of_layer)]
        relative = np.array([costs.paid(row) / row["us"] for row in near])
        seen = relative.any(axis=0)
        found[arithmetic] = costs.prices()[arithmetic]
        prices = np.linalg.lstsq(relative[:, seen], np.ones(len(near)), rcond=None)[0]
        found[arithmetic][seen] = [float(f"{price:.3g}") for price in prices]
    return found


def choices(costs: Costs, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By batch and layer: the row that is the cheapest by the header's prices, and the `fastest` time that there is."""
    prices = costs.prices()
    return [
        min(these, key=lambda row: float(costs.paid(row) @ prices[row["arithmetic"]]))
        | {"fastest": min(row["us"] for row in these)}
        for _, these in groups(rows, "batch", "layer")
    ]


def main() -> None:
    rows = measured(Path(sys.argv[1])) if len(sys.argv) > 1 else measured()
    with tempfile.TemporaryDirectory() as folder:
        costs = Costs(Path(folder))
    for name, prices in fitted(costs, rows).items():
        error = [float(costs.paid(r) @ prices) / r["us"] - 1 for r in rows if r["arithmetic"] == name and r["chosen"]]
        print(
            f"{name}: {{{', '.join(map(str, prices))}}}, within {100 * max(map(abs, error)):.0f} % on the chosen tiles"
        )
    for (batch,), chosen in groups(choices(costs, rows), "batch"):
        for row in chosen:
            print(
                f"batch {batch:3}  {row['layer']}: {row['arithmetic']:6} tile {row['tile']}, {row['us']:7.1f} us",
                end="",
            )
            print(f" (the fastest: {row['fastest']:.1f})")
        print(f"batch {batch:3}  sum of these: {sum(row['us'] for row in chosen):.1f} us")


if __name__ == "__main__":
    main()
