"""A short training run and its network in deployment form, for everything that is made from them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from qcn.checkpoint import load_network
from qcn.data import load
from qcn.export.lower import lower
from qcn.export.network import Network
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
