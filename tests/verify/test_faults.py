"""`qcn verify-parity` finds planted faults, and names the place where that makes sense; honest bundles pass."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from command import Command
from fake_engine import FakeContext, FakeCuda, fake_runtime
from plants import FAULTS, Fault, honest

from qcn.export import targets
from qcn.export.backends.tensorrt import runner as runner_module
from qcn.export.backends.tensorrt.build import TensorRT
from qcn.export.bundle import Bundle
from qcn.export.bundle.manifest import Batch
from qcn.export.pipeline import FROM_RUN
from qcn.export.targets import Gpu
from qcn.kernels import native as native_kernels
from qcn.verify.parity.arithmetic import WAYS, Way, check, layers, statistics
from qcn.verify.parity.check import check as check_bundle
from qcn.verify.parity.preprocessing import check_preprocessing
from qcn.verify.parity.request import ParityRequest
from qcn.verify.parity.results import read_report, status_lines
from qcn.verify.parity.verify import verify

NATIVE = ["native"] if native_kernels.available() else []
HALF = ("variance in fp16", "sums of squares in fp16", "sums of squares in fp16, of the second iteration")


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_honest_bundles_pass(honest_folders: dict[str, Path], qcn: Command, precision: str) -> None:
    backends = ",".join(["onnxruntime", "torch", *NATIVE])
    code, said = qcn("verify-parity", honest_folders[precision], "--backends", backends, "--set", "bisect")
    assert code == 0 and said.startswith("passed") and "failed" not in said, said


def planted(fault: Fault, honest_folders: dict[str, Path], folder: Path) -> Path:
    if fault.backend == "native" and not NATIVE:
        pytest.skip("libqcn is not built")
    fault.plant(Bundle.open(shutil.copytree(honest_folders[fault.precision], folder)))
    return folder


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if place % 3 else []) for place, name in enumerate(FAULTS)]
)
def test_a_planted_fault_is_found_and_its_place_named(
    honest_folders: dict[str, Path], tmp_path: Path, name: str
) -> None:
    fault = FAULTS[name]
    folder = planted(fault, honest_folders, tmp_path / "bundle")
    with fault.running():
        verdicts = check_bundle(Bundle.open(folder), ParityRequest(backends=[fault.backend], bisect=True)).verdicts
    *others, preprocessing = verdicts
    verdict = next((one for one in others if one.status == "failed"), others[0])
    said = "\n".join(line for *_, lines in status_lines(verdicts, True) for line in lines)
    assert fault.says in said
    if fault.place == "input":
        assert verdict.status == "passed"  # which is why pre-processing has its own verdict
        assert (preprocessing.backend, preprocessing.status) == ("preprocessing", "failed")
        return
    assert verdict.status == "failed"
    seen_at = verdict.first_wrong
    if fault.place is None:
        assert seen_at in (None, "activation")
        return
    assert seen_at in {fault.place, fault.next_place} - {None}
    if "/" in fault.place:
        assert f"the first to leave its tolerance: {seen_at}, which is" in said


@pytest.mark.isolated
@pytest.mark.parametrize("name", [*FAULTS][:: len(FAULTS) // 8][:8])
def test_a_planted_fault_ends_the_command_with_1(
    honest_folders: dict[str, Path], tmp_path: Path, qcn: Command, name: str
) -> None:
    fault = FAULTS[name]
    folder, report = planted(fault, honest_folders, tmp_path / "bundle"), tmp_path / "report"
    with fault.running():
        code, said = qcn("verify-parity", folder, "--backends", fault.backend, "--report", report)
    assert code == 1 and said.startswith("failed") and fault.says in said, said
    assert read_report(report / "report.json").status == "failed"


def half_statistics_are_found(folder: Path, seed: int) -> None:
    """Whatever the weights: in the honest graph no alarm, in the other ones the fault, though fp16's answers pass."""
    kept = honest(folder / "honest", seed=seed, precision="fp16", size=16, images=4)
    (verdict,) = verify(kept, ["onnxruntime"], {})
    assert verdict.status == "passed", verdict.reasons
    for name in HALF:
        planted = shutil.copytree(kept.folder, folder / name)
        FAULTS[name].plant(Bundle.open(planted))
        (verdict,) = verify(Bundle.open(planted), ["onnxruntime"], {})
        places = {FAULTS[name].place, FAULTS[name].next_place} - {None}
        assert verdict.status == "failed" and verdict.first_wrong in places, (seed, name, verdict.reasons)
        assert FAULTS[name].says in verdict.reasons[0] and all(one.passed for one in verdict.outputs.values())


def test_statistics_in_half_precision_are_found(tmp_path: Path) -> None:
    half_statistics_are_found(tmp_path, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 21))
def test_statistics_in_half_precision_are_found_for_any_weights(tmp_path: Path, seed: int) -> None:
    half_statistics_are_found(tmp_path, seed)


def test_statistics_are_the_references(small: Bundle) -> None:
    """The check of a backend's arithmetic makes of the reference's own children the reference's statistics."""
    golden = small.golden()
    found = layers(small, "fp32")
    assert [layer.op.name for layer in found] == ["capsules2", "classes"]
    for layer in found:
        arrays, step = golden.reference.arrays, f"{layer.op.name}/iteration1"
        rows = len(arrays[f"{step}/mean"])
        mean, variance = statistics(layer, arrays[layer.op.pose][:rows], arrays[layer.op.activation][:rows])
        # Rotations are float32 in the program, and float64 in the reference.
        np.testing.assert_allclose(mean, arrays[f"{step}/mean"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(variance, arrays[f"{step}/variance"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_second_variances_are_those_of_votes_made_in_either_way(small: Bundle, way: Way) -> None:
    """And one that was rounded to float16 is not."""
    golden, layer = small.golden(), layers(small, "fp16")[0]
    first, second = f"{layer.op.name}/iteration1", f"{layer.op.name}/iteration2"
    arrays = golden.reference.arrays
    rows = len(arrays[f"{first}/mean"])
    children = tuple(arrays[name][:rows].astype(np.float32) for name in (layer.op.pose, layer.op.activation))
    even = statistics(layer, *children, type_=np.float32)
    mean, variance = statistics(layer, *children, even, np.float32, way)
    shown = {layer.op.pose: children[0], layer.op.activation: children[1]}
    shown |= {f"{first}/mean": even[0], f"{first}/variance": even[1], f"{second}/mean": mean}
    honest = check(layer, second, "variance", {**shown, f"{second}/variance": variance}, golden)
    rounded = variance.astype(np.float16).astype(np.float32)
    wrong = check(layer, second, "variance", {**shown, f"{second}/variance": rounded}, golden)
    assert honest and honest.passed
    assert wrong and not wrong.passed


def test_an_engine_of_another_model_is_found(small: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that takes other images, behind a fake of TensorRT."""
    with small.adding("engines/other.engine", "trt", "fp32", FROM_RUN, batch=Batch(1, 4, 8)) as draft:
        draft.path.write_bytes(b"plan")
        draft.facts |= {"flavour": "tensorrt", "version": "8.6.1", "sm": 90, "precision": "fp32", "batch": [1, 4, 8]}
    monkeypatch.setattr(targets, "this_gpu", lambda: Gpu("NVIDIA H200", 90))
    monkeypatch.setattr(runner_module, "Cuda", FakeCuda)
    found = TensorRT("tensorrt", (8, 6, 1), fake_runtime(FakeContext()))
    monkeypatch.setattr(runner_module, "find", lambda flavour=None: found)
    (verdict,) = verify(small, ["tensorrt"], {})
    assert verdict.status == "failed" and verdict.reasons[0].startswith("it does not run: images are [1, 3, 24, 24]")


def honest_networks_raise_no_alarm(folder: Path, seeds: range) -> None:
    """Of other weights, other images and other statistics each, in every backend that computes in its own way."""
    for seed in seeds:
        routing = ("unrolled", "tensorrt")[seed % 2]
        bundle = honest(folder / str(seed), seed=seed, routing=routing, size=16, images=4)
        verdicts = verify(bundle, ["onnxruntime", "torch", *NATIVE], {}, bisect=seed % 10 < 2)
        for verdict in [*verdicts, check_preprocessing(bundle)]:
            assert verdict.status == "passed", (seed, verdict.key, verdict.reasons)
            assert all(stage.passed for stage in verdict.stages), (seed, verdict.key)
        shutil.rmtree(bundle.folder)


def test_honest_networks_raise_no_alarm(tmp_path: Path) -> None:
    honest_networks_raise_no_alarm(tmp_path, range(2))


@pytest.mark.slow
def test_fifty_honest_networks_raise_no_alarm(tmp_path: Path) -> None:
    honest_networks_raise_no_alarm(tmp_path, range(2, 50))
