"""`qcn verify-parity` finds planted faults, and names the place where that makes sense; honest bundles pass."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from fake_engine import FakeContext, FakeCuda, fake_runtime
from plants import FAULTS, honest

from qcn.cli import main
from qcn.export import targets
from qcn.export.bundle import Bundle
from qcn.export.manifest import Batch
from qcn.export.targets import Gpu
from qcn.export.tensorrt import TensorRT
from qcn.kernels import native as native_kernels
from qcn.verify import parity
from qcn.verify import tensorrt as runner_module
from qcn.verify.preprocessing import check_preprocessing


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Honest bundles with a graph in single and in half precision."""
    folder = tmp_path_factory.mktemp("honest")
    return {precision: honest(folder / precision, precision=precision).folder for precision in ("fp32", "fp16")}


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """The command's exit code, and what it printed."""
    monkeypatch.setattr(sys, "argv", ["qcn", "verify-parity", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out + printed.err


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_its_place_named(
    kept: dict[str, Path],
    tmp_path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fault = FAULTS[name]
    if fault.backend == "native" and not native_kernels.available():
        pytest.skip("libqcn is not built")
    folder = shutil.copytree(kept[fault.precision], tmp_path / "bundle")
    code, said = run(monkeypatch, capsys, folder, "--backends", fault.backend)
    assert code == 0 and said.startswith("passed"), said
    fault.plant(Bundle.open(folder))
    code, said = run(monkeypatch, capsys, folder, "--backends", fault.backend)
    assert code == 1 and said.startswith("failed"), said
    assert fault.says in said
    verdicts = parity.verify(Bundle.open(folder), [fault.backend], {})
    if fault.place == "input":
        assert all(verdict.status == "passed" for verdict in verdicts)  # which is why pre-processing has its own
        assert re.search(r"failed +preprocessing: manifest\.json", said)
        return
    (verdict,) = verdicts
    assert verdict.first_wrong == fault.place or (fault.place is None and verdict.first_wrong in (None, "activation"))
    if fault.place and "/" in fault.place:
        assert f"the first to leave its tolerance: {fault.place}, which is" in said


def test_an_engine_of_another_model_is_found(
    kept: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that takes other images, behind a fake of TensorRT."""
    bundle = Bundle.open(shutil.copytree(kept["fp32"], tmp_path / "bundle"))
    with bundle.adding("engines/other.engine", "trt", "fp32", Batch(1, 4, 8)) as draft:
        draft.path.write_bytes(b"plan")
        draft.facts |= {"flavour": "tensorrt", "version": "8.6.1", "sm": 90, "precision": "fp32", "batch": [1, 4, 8]}
    monkeypatch.setattr(targets, "this_gpu", lambda: Gpu("NVIDIA H200", 90))
    monkeypatch.setattr(runner_module, "Cuda", FakeCuda)
    found = TensorRT("tensorrt", (8, 6, 1), fake_runtime(FakeContext()))
    monkeypatch.setattr(runner_module, "find", lambda flavour=None: found)
    (verdict,) = parity.verify(bundle, ["tensorrt"], {})
    assert verdict.status == "failed" and verdict.reasons[0].startswith("it does not run: images are [8, 3, 24, 24]")


def test_fifty_honest_networks_raise_no_alarm(tmp_path: Path) -> None:
    """Of other weights, other images and other statistics each, in every backend that computes in its own way."""
    backends = ["onnxruntime", "torch", *(["native"] if native_kernels.available() else [])]
    for seed in range(50):
        routing = ("unrolled", "pointwise")[seed % 2]
        bundle = honest(tmp_path / str(seed), seed=seed, routing=routing, size=16, images=4)
        for verdict in [*parity.verify(bundle, backends, {}, bisect=seed % 10 < 2), check_preprocessing(bundle)]:
            assert verdict.status == "passed", (seed, verdict.key, verdict.reasons)
            assert all(stage.passed for stage in verdict.stages), (seed, verdict.key)
        shutil.rmtree(bundle.folder)
