"""What the CUDA kernels compute is checked without a GPU: deploy/tests/emulated_device.h runs their own source on a
CPU, lane by lane, and float16 is rounded as the GPU rounds it.

On a GPU deploy/tests/cuda_routing.cu checks the same cases, on every tile. Which tile and which arithmetic the kernels
choose for the QCN's layers is compared with the times that were measured.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qcn.model import QCN
from qcn.shipped import run_of
from qcn.train import checkpoint

DEPLOY = Path(__file__).parents[2] / "deploy"

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on PATH")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("emulated") / "emulated_routing"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-function"]
    source = DEPLOY / "tests" / "emulated_routing.cpp"
    subprocess.run(["g++", *flags, "-I", str(DEPLOY / "kernels"), str(source), "-o", str(built)], check=True)
    return built


def test_routing_is_as_precise_as_the_plan_allows(program: Path) -> None:
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("half: ") > 15, done.stdout
    assert done.stdout.count("single: ") > 20, done.stdout


@torch.no_grad()
def test_half_precision_routes_trained_layers_as_the_plan_allows(program: Path, tmp_path: Path) -> None:
    """The last two capsule layers of a network that ships, on what an image gives them."""
    network, _ = checkpoint.load_network(run_of("fashion-mnist-qcn"))
    assert isinstance(network, QCN)
    files = []

    def keep(layer: Any, given: tuple[torch.Tensor, torch.Tensor]) -> None:
        files.append(tmp_path / f"layer-{len(files)}")
        files[-1].write_bytes(problem(layer, given))

    for layer in (network.layers[-1], network.class_capsules):
        layer.register_forward_pre_hook(keep)
    torch.manual_seed(0)
    network.eval()(torch.rand(1, network.in_channels, 32, 32))
    done = subprocess.run([program, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASS") == len(files) == 2, done.stdout


def test_the_fastest_tile_and_arithmetic_are_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On the machine that was measured; and the constants of the choice are those that fit the measured times."""
    monkeypatch.syspath_prepend(str(DEPLOY.parent / "benchmarks"))
    import routing_cost

    costs, rows = routing_cost.Costs(tmp_path), routing_cost.measured()
    chosen = routing_cost.choices(costs, rows)
    assert len(chosen) == 12
    assert {row["arithmetic"] for row in chosen} == {"single", "half"}
    slow = [row for row in chosen if row["us"] > 1.06 * row["fastest"]]
    assert slow == []
    prices = costs.prices()
    for arithmetic, fit in routing_cost.fitted(costs, rows).items():
        np.testing.assert_allclose(prices[arithmetic], fit, rtol=0.02, err_msg="run benchmarks/routing_cost.py")


def problem(layer: Any, given: tuple[torch.Tensor, torch.Tensor]) -> bytes:
    """As emulated_routing.cpp reads it: the shape's numbers, then the arrays."""
    pose, activation = given
    rotation = layer.rotors("reference")
    shared = rotation.dim() == 4  # of the class layer: [C, J, 3, 3]
    window = tuple(pose.shape[-2:]) if shared else (layer.kernel, layer.kernel)
    stride, unit = (1 if shared else layer.stride), layer.mode == "unit"
    shape = (*pose.shape[:2], *pose.shape[-2:], *window, stride, rotation.shape[-3], layer.iterations)
    flags = (shared, unit, shared)  # the last: the layer of the classes gives out logits
    arrays = (pose, activation, rotation, layer.rotors.beta_u, layer.rotors.beta_a)
    return np.int32(shape + flags).tobytes() + b"".join(x.numpy().astype(np.float32).tobytes() for x in arrays)
