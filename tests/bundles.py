"""A short training run, its network in deployment form and a bundle of it, for everything that is made from them."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from qcn.checkpoint import load_network, load_run
from qcn.data import load
from qcn.export import golden, native
from qcn.export.bundle import GOLDEN, WEIGHTS, Bundle
from qcn.export.lower import lower
from qcn.export.manifest import Manifest, manifest_of, tools
from qcn.export.network import Network
from qcn.export.reference import make_golden
from qcn.model import QCN
from qcn.settings import Settings
from qcn.train import Training


@pytest.fixture(scope="session")
def run(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a qcn-tiny run on the small mnist: one epoch of eight steps."""
    out = tmp_path_factory.mktemp("runs") / "tiny"
    splits = load("mnist", data_dir)
    few = replace(splits, train=splits.train[np.arange(64)])
    Training(Settings("mnist", "qcn-tiny", epochs=1, batch_size=8), few, out, torch.device("cpu")).run()
    return out


@pytest.fixture(scope="session")
def network(run: Path) -> Network:
    """The best network of `run` in deployment form."""
    trained, record = load_network(run)
    return lower(trained, *record.preprocessing.output_size(*record.data.image[1:]))


@pytest.fixture(scope="session")
def manifest(run: Path, network: Network) -> Manifest:
    """The manifest of a bundle of `run`, of no files yet."""
    return manifest_of(load_run(run), "best", network.structure, "tiny", tools("torch"))


@pytest.fixture(scope="session")
def _bundle(
    run: Path, network: Network, manifest: Manifest, data_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    bundle = Bundle.create(tmp_path_factory.mktemp("bundles") / "tiny", manifest)
    with bundle.adding(WEIGHTS, "native", "fp32") as draft:
        native.write(draft.path, network)
        draft.found = "fp32"
    trained, record = load_network(run)
    assert isinstance(trained, QCN)
    with bundle.adding(GOLDEN, "golden", "fp64") as draft:
        golden.write(draft.path, make_golden(trained, record, data_dir))
        draft.found = "fp64"
    return bundle.folder


@pytest.fixture
def bundle(_bundle: Path, tmp_path: Path) -> Bundle:
    """A bundle of the test's own with weights and golden answers in it."""
    return Bundle.open(shutil.copytree(_bundle, tmp_path / "bundle"))
