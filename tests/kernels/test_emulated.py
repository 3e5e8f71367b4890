"""What the CUDA kernels compute is checked without a GPU: deploy/tests/emulated_device.h runs their own source on a
CPU, lane by lane, and float16 is rounded as the GPU rounds it.

On a GPU deploy/tests/cuda_routing.cu checks the same cases, on every tile. Which tile and which arithmetic the kernels
choose for the QCN's layers is compared with the times that were measured.
"""

import ctypes
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundles import made_once
from problems import Problem, trained_layers

DEPLOY = Path(__file__).parents[2] / "deploy"
H200 = (132, 232448, 233472, 9)  # Device of em_routing_cost.cuh
# The full-size QCN's, as bench() of deploy/tests/cuda_routing.cu has them: qcn_routing_shape without the batch.
LAYERS = {
    "layer 1": (32, 16, 16, 5, 5, 1, 16, 2, 0, 0),
    "layer 2": (16, 12, 12, 5, 5, 1, 16, 2, 0, 0),
    "layer 3": (16, 8, 8, 5, 5, 1, 16, 2, 0, 0),
    "classes": (16, 4, 4, 4, 4, 1, 5, 2, 1, 0),
}
COSTS = """
#include <numeric>
#include "emulated_device.h"
#include "em_routing_cost.cuh"
extern "C" double cost(const qcn_routing_shape* shape, int half, const qcn_cuda_routing_tile* tile,
                       const Device* device) {
  const Cost all = counts(*shape, static_cast<qcn_cuda_arithmetic>(half), *tile, *device);
  const Cost& prices = half ? kHalfCost : kSingleCost;
  return std::inner_product(all.begin(), all.end(), prices.begin(), 0.0);
}
"""

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on PATH")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-function"]
    source = DEPLOY / "tests" / "emulated_routing.cpp"
    command = ["g++", *flags, "-I", str(DEPLOY / "kernels"), str(source), "-o"]
    return made_once(tmp_path_factory, "emulated", lambda built: subprocess.run([*command, str(built)], check=True))


@pytest.mark.slow
def test_routing_is_as_precise_as_the_plan_allows(program: Path) -> None:
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("half: ") > 15, done.stdout
    assert done.stdout.count("single: ") > 20, done.stdout


@pytest.mark.slow
@torch.no_grad()
def test_half_precision_routes_trained_layers_as_the_plan_allows(program: Path, tmp_path: Path) -> None:
    """The last two capsule layers of a network that ships, on what an image gives them."""
    files = [tmp_path / f"layer-{number}" for number in range(2)]
    for file, p in zip(files, trained_layers(), strict=True):
        file.write_bytes(as_bytes(p))
    done = subprocess.run([program, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASS") == len(files) == 2, done.stdout


def test_the_chosen_tile_and_arithmetic_are_nearly_the_fastest(tmp_path: Path) -> None:
    """On the machine that was measured."""
    library, include = tmp_path / "costs.so", [f"-I{DEPLOY / name}" for name in ("tests", "kernels")]
    flags = ["-std=c++17", "-shared", "-fPIC", "-x", "c++", "-"]
    subprocess.run(["g++", *include, *flags, "-o", str(library)], input=COSTS, text=True, check=True)
    function = ctypes.CDLL(str(library)).cost
    function.restype = ctypes.c_double
    names = ("windows", "splits", "threads", "stages", "shared_bytes", "cluster")

    def cost(row: dict[str, Any]) -> float:
        arrays = [np.int32(x) for x in ((row["batch"], *LAYERS[row["layer"]]), [row[name] for name in names], H200)]
        shape, tile, device = (ctypes.c_void_p(x.ctypes.data) for x in arrays)
        return float(function(shape, int(row["arithmetic"] == "half"), tile, device))

    times = json.loads((DEPLOY.parent / "benchmarks" / "results" / "routing-cuda-cpp.json").read_text())["results"]
    rows = [row for row in times if row["layer"] in LAYERS and row["tile"] is not None]
    chosen = []
    for batch, layer in sorted({(row["batch"], row["layer"]) for row in rows}):
        these = [row for row in rows if (row["batch"], row["layer"]) == (batch, layer)]
        chosen.append(min(these, key=cost))
        assert chosen[-1]["us"] <= 1.06 * min(row["us"] for row in these), (batch, layer)
    assert len(chosen) == 12
    assert {row["arithmetic"] for row in chosen} == {"single", "half"}


def as_bytes(p: Problem) -> bytes:
    """As emulated_routing.cpp reads it: the shape's numbers, then the arrays."""
    shared = p.rotation.shape[:2] == (1, 1)
    shape = (*p.pose.shape[:2], *p.pose.shape[-2:], *p.window, p.stride, p.rotation.shape[3], p.iterations)
    arrays = b"".join(x.numpy().astype(np.float32).tobytes() for x in p.inputs)
    return np.int32(shape + (shared, p.unit, p.logit)).tobytes() + arrays
