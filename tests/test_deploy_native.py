"""libqcn's native backend answers as the trained networks do, by its C interface and from bundles as export makes them.

What needs no trained network (every shape, threads, refusals, memory) is in deploy/tests/test_native.cpp.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from qcn import create
from qcn.data.spec import Preprocessing
from qcn.errors import UsageError
from qcn.export import native
from qcn.export.bundle import WEIGHTS, Bundle
from qcn.export.golden import Golden
from qcn.export.lower import lower
from qcn.export.manifest import Manifest, Source, ports
from qcn.export.network import Array, Network
from qcn.export.reference import answers
from qcn.kernels.native import set_threads
from qcn.model import QCN
from qcn.verify.compare import compare
from qcn.verify.native import NativeRunner

FLOORS = 4  # of float32's noise: a sixteenth of what verify-parity allows; 0.6 to 1.4 were seen
CHANNELS, CLASSES = 2, 4


def trained(name: str, mode: str, iterations: int, size: tuple[int, int]) -> QCN:
    """A network after a few steps, so that no statistic and no bias is where it began."""
    torch.manual_seed(0)
    network = create(name, in_channels=CHANNELS, classes=CLASSES, mode=mode, iterations=iterations)
    assert isinstance(network, QCN)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(3):
        prediction = network.train()(torch.randn(4, CHANNELS, *size) * 1.5 + 0.5)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(prediction.logit, torch.arange(CLASSES)).backward()
        optimizer.step()
    return network.eval()


def golden_of(network: QCN, images: torch.Tensor) -> Golden:
    rows = tuple(map(str, range(len(images))))
    exact = answers(network, images.double()).answers
    single = answers(network, images).answers
    raw, labels = np.zeros(images.shape, np.uint8), np.zeros(len(images), np.int64)
    return Golden(rows, raw, labels, images.numpy(), exact, single, {}, {})


def bundle_of(network: Network, folder: Path) -> Path:
    """The weights in a bundle of the network; no golden answers, since the runner makes no self-test."""
    structure = network.structure
    image, outputs = ports(structure)
    manifest = Manifest(
        name="test",
        classes=tuple(map(str, range(structure.classes))),
        image=image.shape,
        preprocessing=Preprocessing(standardise="image"),
        input=image,
        outputs=outputs,
        structure=structure,
        source=Source("", "", "last", 0, "", ""),
        tools={},
    )
    bundle = Bundle.create(folder, manifest)
    with bundle.adding(WEIGHTS, "native", "fp32") as draft:
        native.write(draft.path, network)
        draft.found = "fp32"
    return folder / WEIGHTS


def noise_floors(found: dict[str, Array], golden: Golden) -> float:
    return max(errors.noise_floor_multiple for errors in compare(found, golden, "fp32", {}).values())


EVERY = [(mode, iterations) for mode in ("logistic", "unit") for iterations in (1, 2, 3)]
CASES = [
    *(("qcn-tiny", mode, iterations, (29, 37)) for mode, iterations in EVERY),
    *(("qcn", mode, iterations, (28, 28)) for mode, iterations in EVERY),
    ("qcn", "logistic", 2, (32, 32)),
    ("qcn-unbranched", "logistic", 2, (31, 29)),
    ("qcn-unbranched", "unit", 3, (28, 28)),
]


@pytest.mark.parametrize(("name", "mode", "iterations", "size"), CASES)
def test_answers_are_those_of_the_trained_network(
    name: str, mode: str, iterations: int, size: tuple[int, int], tmp_path: Path
) -> None:
    network = trained(name, mode, iterations, size)
    golden = golden_of(network, torch.randn(3, CHANNELS, *size))
    with NativeRunner(bundle_of(lower(network, *size), tmp_path / "bundle")) as runner:
        assert noise_floors(runner.infer(golden.input), golden) < FLOORS


def test_any_batch_and_any_number_of_threads(tmp_path: Path) -> None:
    network = trained("qcn-tiny", "logistic", 2, (28, 28))
    golden = golden_of(network, torch.randn(41, CHANNELS, 28, 28))
    with NativeRunner(bundle_of(lower(network, 28, 28), tmp_path / "bundle")) as runner:
        whole = runner.infer(golden.input)
        assert noise_floors(whole, golden) < FLOORS
        for batch in range(1, 18):
            first = runner.infer(golden.input[:batch])
            for part, expected in whole.items():
                # Another batch may put other images into a tile: a guard of the routing then moves last bits.
                np.testing.assert_allclose(first[part], expected[:batch], rtol=0, atol=1e-5)
        try:
            for threads in (1, 2, 7):
                set_threads(threads)
                assert all(np.array_equal(found, whole[part]) for part, found in runner.infer(golden.input).items())
        finally:
            set_threads(0)


def test_a_wrong_weight_is_noticed(tmp_path: Path) -> None:
    """In any array: at its beginning, its end, and between."""
    network = trained("qcn-tiny", "logistic", 2, (28, 28))
    golden = golden_of(network, torch.randn(8, CHANNELS, 28, 28))
    lowered = lower(network, 28, 28)
    weights = [name for name in lowered.arrays if name.endswith((".weight", ".rotation"))]
    assert len(weights) == 14
    for i, name in enumerate(weights):
        right = lowered.arrays[name].copy()
        flat = lowered.arrays[name].reshape(-1)
        flat[[0, flat.size // 2, -1]] += 0.5 * np.abs(flat).max()
        with NativeRunner(bundle_of(lowered, tmp_path / str(i))) as runner:
            assert noise_floors(runner.infer(golden.input), golden) > 100, name
        lowered.arrays[name][...] = right


def test_a_nan_comes_out_as_nan_and_leaves_no_trace(tmp_path: Path) -> None:
    network = trained("qcn-tiny", "logistic", 2, (28, 28))
    images = np.random.default_rng(0).normal(size=(3, CHANNELS, 28, 28)).astype(np.float32)
    with NativeRunner(bundle_of(lower(network, 28, 28), tmp_path / "bundle")) as runner:
        before = runner.infer(images)
        spoilt = images.copy()
        spoilt[1, 0, 13, 13] = np.nan
        found = runner.infer(spoilt)
        assert np.isnan(found["pose"][1]).any()
        for part, expected in before.items():
            np.testing.assert_allclose(found[part][[0, 2]], expected[[0, 2]], rtol=0, atol=1e-5)
            assert np.array_equal(runner.infer(images)[part], expected)


def test_other_floors_are_refused(tmp_path: Path) -> None:
    network = lower(trained("qcn-tiny", "logistic", 2, (28, 28)), 28, 28)
    object.__setattr__(network.structure, "variance_floor", 1e-3)
    with pytest.raises(UsageError, match="floor of variances"), NativeRunner(bundle_of(network, tmp_path / "bundle")):
        pass
