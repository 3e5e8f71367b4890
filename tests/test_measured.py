"""What `qcn evaluate` leaves in a run reaches the manifests of its bundles, as long as the weights are the same."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from libqcn_load import OK, load

from qcn.errors import UsageError
from qcn.evaluate.evaluation import evaluate
from qcn.evaluate.networks import open_network
from qcn.evaluate.request import Request
from qcn.export.bundle import Bundle
from qcn.export.pipeline import open_source
from qcn.export.request import ExportRequest
from qcn.networks.shipped import run_of
from qcn.storage import measured
from qcn.storage.measured import Measured, SplitError
from qcn.train import checkpoint
from qcn.train.checkpoint import load_network
from qcn.train.record import load_run

NATIVE = ExportRequest(("native",))


@pytest.fixture
def own(run: Path, tmp_path: Path) -> Path:
    """The run, of the test's own and never evaluated."""
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    (copy / measured.FILE).unlink(missing_ok=True)
    return copy


def test_the_error_on_test_images_gets_into_the_manifest(own: Path, data_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    assert open_source(own, out, NATIVE, data_dir).manifest.measured is None
    (result,) = evaluate(own, Request(data_dir=data_dir, out=tmp_path / "evaluation", device="cpu")).results
    bundle = open_source(own, out, NATIVE, data_dir)  # into the one that is there
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    assert result.calibration_error is not None
    split = SplitError("test", 60, result.overall.wrong, result.calibration_error)
    assert bundle.manifest.measured == Bundle.open(out).manifest.measured == Measured("mnist", day, (split,))
    assert load(out) == (OK, "")  # libqcn takes it


def test_only_the_whole_test_of_its_own_data_counts(own: Path, data_dir: Path, tmp_path: Path) -> None:
    evaluate(own, Request(split="validation", data_dir=data_dir, out=tmp_path / "a", device="cpu"))
    evaluate(own, Request("mnist", data_dir=data_dir, out=tmp_path / "b", device="cpu"))
    assert not (own / measured.FILE).exists()


def test_what_the_last_weights_do_is_not_said_of_those_that_ship(own: Path, data_dir: Path, tmp_path: Path) -> None:
    evaluate(own, Request(data_dir=data_dir, out=tmp_path / "a", device="cpu"))
    before = (own / measured.FILE).read_bytes()
    network, run = load_network(own)
    later = replace(run, progress=replace(run.progress, step=run.progress.step + 1))
    other = {name: tensor * 0.9 for name, tensor in network.state_dict().items()}
    checkpoint.save(own, later, other, {}, epoch=9, best=False)
    evaluate(own, Request(data_dir=data_dir, out=tmp_path / "b", checkpoint="last", device="cpu"))
    assert (own / measured.FILE).read_bytes() == before


def test_nothing_is_written_beside_a_network_that_ships() -> None:
    open_network("mnist", device="cpu").remember(Measured("mnist", "2026-11-16", (SplitError("test", 60, 3, 0.1),)))
    assert not (run_of("mnist") / measured.FILE).exists()


def test_other_weights_were_not_measured(own: Path) -> None:
    weights = load_run(own).weights("best")
    assert weights is not None and measured.read(own, weights.sha256) is None
    found = Measured("mnist", "2026-11-16", (SplitError("test", 60, 3, 0.1),))
    measured.write(own, weights.sha256, found)
    assert measured.read(own, weights.sha256) == found
    assert measured.read(own, "0" * 64) is None


def test_a_file_that_is_something_else_is_refused(own: Path) -> None:
    (own / measured.FILE).write_text(json.dumps({"weights_sha256": "0" * 64, "measured": {"error": 0.07}}))
    with pytest.raises(UsageError, match=r"not what `qcn evaluate` writes.*'error'"):
        measured.read(own, "0" * 64)
