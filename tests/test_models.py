"""The trained networks in models/: whole, of the runs that docs/results.md reports, and fit to be exported."""

import json
from pathlib import Path

import pytest
import torch

from qcn.export.lower import lower
from qcn.export.torch.interpreter import Interpreter
from qcn.train.checkpoint import load_network

ROOT = Path(__file__).parent.parent
FOLDERS = sorted(path.parent for path in (ROOT / "models").glob("*/run.json"))
ACCURACY = json.loads((ROOT / "benchmarks" / "results" / "accuracy-h200.json").read_text(encoding="utf-8"))["results"]


def test_there_are_some() -> None:
    assert len(FOLDERS) == 4


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_shipped_network_is_the_one_reported_and_can_be_exported(folder: Path) -> None:
    network, run = load_network(folder)  # which checks the hash
    assert run.best is not None
    (row,) = [row for row in ACCURACY if row["weights_sha256"] == run.best.sha256]
    assert (row["dataset"], row["epoch"]) == (run.data.name, run.best.epoch)
    sides = run.preprocessing.output_size(*run.data.image[1:])
    image = torch.randn(2, run.data.image[0], *sides, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = network.eval()(image)
        activation, pose = Interpreter(lower(network, *sides))(image)
    assert (activation - expected.activation).abs().max() < 1e-4
    assert (pose - expected.pose).abs().max() < 1e-3 * expected.pose.abs().max()
