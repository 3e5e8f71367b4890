"""libqcn's native backend answers as the trained networks do, by its C interface and from bundles as export makes them.

What needs no trained network (every operation, threads, refusals, memory) is in deploy/tests/test_native.cpp.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from qcn import create
from qcn.data.spec import Preprocessing
from qcn.errors import UsageError
from qcn.export.bundle import WEIGHTS, Bundle
from qcn.export.bundle.golden import Golden
from qcn.export.bundle.manifest import Manifest, Source, ports
from qcn.export.bundle.tolerance import noise_floor
from qcn.export.lower import lower
from qcn.export.program import Array, Program
from qcn.export.reference import answers
from qcn.kernels.native import set_threads
from qcn.verify.runners import Options
from qcn.verify.runners.native import NativeRunner

FLOORS = 4  # of float32's noise: a quarter of what verify-parity allows; 0.6 to 1.4 were seen
CHANNELS, CLASSES = 2, 4
REBUILD = "qcn export RUN --out {bundle}"


def trained(name: str, sides: tuple[int, int], **settings: str | int) -> nn.Module:
    """A network after a few steps, so that no statistic and no bias is where it began."""
    torch.manual_seed(0)
    network = create(name, in_channels=CHANNELS, classes=CLASSES, **settings)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.001 if name == "cnn" else 0.01)
    for _ in range(3):
        prediction = network.train()(torch.randn(4, CHANNELS, *sides) * 1.5 + 0.5)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(prediction.logit, torch.arange(CLASSES)).backward()
        optimizer.step()
    return network.eval()


def golden_of(network: nn.Module, images: torch.Tensor) -> Golden:
    rows = tuple(map(str, range(len(images))))
    exact = answers(network, images.double()).answers
    single = answers(network, images).answers
    raw, labels = np.zeros(images.shape, np.uint8), np.zeros(len(images), np.int64)
    classes = tuple(map(str, range(exact.activation.shape[1])))
    spec = Preprocessing(standardise="image")
    return Golden(rows, classes, spec, raw, labels, images.numpy(), exact, single, {}, {})


def bundle_of(program: Program, truth: Golden, folder: Path) -> Path:
    """The weights in a bundle of the network, and the golden answers that decide their tolerances."""
    image, outputs = ports(program.input.shape, program.classes, program.poses)
    manifest = Manifest(
        name="test",
        classes=tuple(map(str, range(program.classes))),
        image=program.input.shape,
        preprocessing=Preprocessing(standardise="image"),
        input=image,
        outputs=outputs,
        source=Source("", "", "last", 0, "", ""),
        tools={},
    )
    Bundle.create(folder, manifest, program, lambda: truth, REBUILD)
    return folder / WEIGHTS


def noise_floors(found: dict[str, Array], truth: Golden) -> float:
    """The largest error of an output, counted in noise floors."""
    assert found.keys() == set(truth.outputs)
    exact = {name: getattr(truth.reference, name) for name in found}
    floors = {name: noise_floor(exact[name], getattr(truth.float32, name)) for name in found}
    return max(float(np.abs(found[name] - exact[name]).max()) / floors[name] for name in found)


EVERY = [{"mode": mode, "iterations": iterations} for mode in ("logistic", "unit") for iterations in (1, 2, 3)]
CASES = [
    *(("qcn-tiny", settings, (29, 37)) for settings in EVERY),
    *(("qcn", settings, (28, 28)) for settings in EVERY),
    ("qcn", EVERY[1], (32, 32)),
    ("qcn-unbranched", EVERY[1], (31, 29)),
    ("qcn-unbranched", EVERY[5], (28, 28)),
    ("cnn", {"size": 28}, (28, 28)),
    ("cnn", {"size": 35}, (35, 35)),
]


@pytest.mark.parametrize(("name", "settings", "sides"), CASES)
def test_answers_are_those_of_the_trained_network(
    name: str, settings: dict[str, str | int], sides: tuple[int, int], tmp_path: Path
) -> None:
    network = trained(name, sides, **settings)
    truth = golden_of(network, torch.randn(3, CHANNELS, *sides))
    with NativeRunner(bundle_of(lower(network, *sides), truth, tmp_path / "bundle"), Options()) as runner:
        assert noise_floors(runner.infer(truth.input), truth) < FLOORS


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return trained("qcn-tiny", (28, 28), mode="logistic", iterations=2)


def test_any_batch_and_any_number_of_threads(network: nn.Module, tmp_path: Path) -> None:
    truth = golden_of(network, torch.randn(41, CHANNELS, 28, 28))
    with NativeRunner(bundle_of(lower(network, 28, 28), truth, tmp_path / "bundle"), Options()) as runner:
        whole = runner.infer(truth.input)
        assert noise_floors(whole, truth) < FLOORS
        for batch in range(1, 18):
            first = runner.infer(truth.input[:batch])
            for part, expected in whole.items():
                # Another batch may put other images into a tile: a guard of the routing then moves last bits.
                np.testing.assert_allclose(first[part], expected[:batch], rtol=0, atol=1e-5)
        try:
            for threads in (1, 2, 7):
                set_threads(threads)
                assert all(np.array_equal(found, whole[part]) for part, found in runner.infer(truth.input).items())
        finally:
            set_threads(0)


def test_a_wrong_weight_is_noticed(network: nn.Module, tmp_path: Path) -> None:
    """In any array: at its beginning, its end, and between."""
    truth = golden_of(network, torch.randn(8, CHANNELS, 28, 28))
    program = lower(network, 28, 28)
    names = [name for name, array in program.arrays.items() if array.ndim > 1]
    assert len(names) == 14
    for i, name in enumerate(names):
        right = program.arrays[name].copy()
        flat = program.arrays[name].reshape(-1)
        flat[[0, flat.size // 2, -1]] += 0.5 * np.abs(flat).max()
        with NativeRunner(bundle_of(program, truth, tmp_path / str(i)), Options()) as runner:
            assert noise_floors(runner.infer(truth.input), truth) > 100, name
        program.arrays[name][...] = right


def test_a_nan_comes_out_as_nan_and_leaves_no_trace(network: nn.Module, tmp_path: Path) -> None:
    images = np.random.default_rng(0).normal(size=(3, CHANNELS, 28, 28)).astype(np.float32)
    truth = golden_of(network, torch.from_numpy(images))
    with NativeRunner(bundle_of(lower(network, 28, 28), truth, tmp_path / "bundle"), Options()) as runner:
        before = runner.infer(images)
        spoilt = images.copy()
        spoilt[1, 0, 13, 13] = np.nan
        found = runner.infer(spoilt)
        assert np.isnan(found["pose"][1]).any()
        for part, expected in before.items():
            np.testing.assert_allclose(found[part][[0, 2]], expected[[0, 2]], rtol=0, atol=1e-5)
            assert np.array_equal(runner.infer(images)[part], expected)


def test_an_operation_in_another_precision_is_refused(network: nn.Module, tmp_path: Path) -> None:
    program = lower(network, 28, 28)
    first, *others = program.operations
    narrow = replace(program, operations=(replace(first, precision="fp16"), *others))
    truth = golden_of(network, torch.randn(1, CHANNELS, 28, 28))
    path = bundle_of(narrow, truth, tmp_path / "bundle")
    with pytest.raises(UsageError, match="in fp32 only"), NativeRunner(path, Options()):
        pass
