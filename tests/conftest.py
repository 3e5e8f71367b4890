"""What tests share: small data sets in the official file formats, skips by name, and what each test costs."""

import os
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest
import torch
from bundles import _bundle, bundle, made_once, manifest, program, run  # noqa: F401 (fixtures for all tests below)
from command import qcn  # noqa: F401
from in_process import _in_this_process  # noqa: F401
from official import accept, idx, write

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _two_threads() -> None:
    """The same arithmetic on every machine, and no more threads than CI has cores."""
    torch.set_num_threads(2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def cpu_time() -> float:
    """Seconds of this process and of those that it started and waited for."""
    return sum(os.times()[:4])


_counted = cpu_time()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the CPU time of the test, fixtures that it was the first to need included, for tests/times.py."""
    global _counted
    if call.when == "teardown":
        before, _counted = _counted, cpu_time()
        item.user_properties.append(("cpu", f"{_counted - before:.3f}"))
    return (yield)


def write_bars(folder: Path, train: int = 200, test: int = 60) -> None:
    """MNIST's four files with other pictures in them: class c is a bright bar at angle 18° · c, at a random place."""
    generator = np.random.default_rng(0)
    y, x = np.mgrid[:28, :28]
    for name, count in (("train", train), ("t10k", test)):
        labels = np.arange(count, dtype=np.uint8) % 10
        angles = np.radians(18 * labels.astype(float))[:, None, None]
        centre = generator.uniform(11, 17, (2, count, 1, 1))
        along = (x - centre[0]) * np.cos(angles) + (y - centre[1]) * np.sin(angles)
        across = (y - centre[1]) * np.cos(angles) - (x - centre[0]) * np.sin(angles)
        images = 200.0 * ((abs(along) < 9) & (abs(across) < 1.6)) + generator.uniform(0, 40, (count, 28, 28))
        write(folder / f"{name}-images-idx3-ubyte.gz", idx(images))
        write(folder / f"{name}-labels-idx1-ubyte.gz", idx(labels))
    accept("mnist", folder)


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a small `mnist` in it: 180 training, 20 validation and 60 test images."""
    folder = tmp_path_factory.mktemp("data")
    write_bars(folder / "mnist")
    return folder


@pytest.fixture(scope="session")
def wasm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """libqcn as WebAssembly, up to date where it can be made here."""
    if shutil.which("emcmake"):
        make = ["make", "--silent", "build/web/qcn-simd.wasm"]
        made_once(tmp_path_factory, "wasm", lambda _: subprocess.run(make, cwd=ROOT, check=True, capture_output=True))
    elif not (ROOT / "build/web/qcn-simd.wasm").exists():
        pytest.skip("libqcn is not built as WebAssembly: apt install emscripten && make build/web/qcn-simd.wasm")
