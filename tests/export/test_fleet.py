"""Engines for a fleet: what each TensorRT is told, where such an engine runs, and other weights for a built one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Command
from fake_tensorrt import fake
from small_graphs import write_graph

from qcn.errors import BuildError, MissingError, UsageError
from qcn.export import pipeline, targets
from qcn.export.backends.onnx.build import FUSED
from qcn.export.backends.onnx.build import build as build_graph
from qcn.export.backends.tensorrt import build as build_module
from qcn.export.backends.tensorrt import refit
from qcn.export.backends.tensorrt.build import BuildRequest, TensorRT, build, find
from qcn.export.backends.tensorrt.config import Fleet
from qcn.export.backends.tensorrt.refit import as_weights, weights_of
from qcn.export.bundle import Bundle
from qcn.export.bundle.manifest import SIGNATURE, Batch
from qcn.export.program.program import Convolution, Program, Route
from qcn.export.request import ExportRequest
from qcn.export.targets import Gpu
from qcn.names import Precision

OPEN = Batch(1, 8, 64)
H200 = Gpu("NVIDIA H200", 90)


@pytest.fixture(autouse=True)
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "this_gpu", lambda: H200)
    monkeypatch.delenv(targets.LEAN_RUNTIME, raising=False)


def faked(version: str) -> TensorRT:
    return TensorRT("tensorrt", tuple(map(int, version.split("."))), fake(version))


# Building


@pytest.mark.parametrize("version", ["8.6.1", "10.3.0", "11.1.0"])
def test_what_is_asked_for_is_told_and_written_down(tmp_path: Path, version: str) -> None:
    tensorrt, path = faked(version), write_graph(tmp_path / "model.onnx")
    fleet = Fleet(version_compatible=True, hardware_compatible=True, refittable=True)
    engine = build(path.read_bytes(), BuildRequest("fp32", OPEN, fleet=fleet), tensorrt)
    # Without the lean runtime: it is code for the host.
    assert tensorrt.module.told["flags"] == {"VERSION_COMPATIBLE", "EXCLUDE_LEAN_RUNTIME", "REFIT"}
    assert tensorrt.module.told["hardware"] == "AMPERE_PLUS"
    assert engine.file_name == f"fp32-refittable-b1-8-64-sm90-ampere-plus-compatible-trt{version}.engine"
    assert [name for name in fleet.asked if engine.facts[name]] == fleet.asked
    plain = faked(version)
    assert not any(build(path.read_bytes(), BuildRequest("fp32", OPEN), plain).facts[name] for name in fleet.asked)
    assert (plain.module.told["flags"], plain.module.told["hardware"]) == (set(), "NONE")


def test_what_a_version_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, rtx = write_graph(tmp_path / "model.onnx"), TensorRT("rtx", (1, 7, 1), fake("11.1.0"))

    def building(tensorrt: TensorRT, **options: bool) -> None:
        build(path.read_bytes(), BuildRequest("fp32", OPEN, fleet=Fleet(**options)), tensorrt)

    with pytest.raises(MissingError, match=r"stripped needs TensorRT 10 or newer, this is TensorRT 8\.6\.1"):
        building(faked("8.6.1"), stripped=True)
    with pytest.raises(MissingError, match="has no lean runtime"):
        building(rtx, version_compatible=True)
    with pytest.raises(UsageError, match="runs on every GPU that it supports: leave out hardware_compatible"):
        building(rtx, hardware_compatible=True)
    monkeypatch.setattr(targets, "on_jetson", lambda: True)
    with pytest.raises(MissingError, match="no hardware-compatible engines on a Jetson"):
        building(faked("10.3.0"), hardware_compatible=True)
    newer = faked("10.3.0")
    building(newer, stripped=True)
    assert newer.module.told["flags"] == {"REFIT", "STRIP_PLAN"}
    monkeypatch.setattr(targets, "this_gpu", lambda: None)
    with pytest.raises(MissingError, match=r"can build such engines \(refittable\) only with a GPU"):
        building(rtx, refittable=True)


def test_requests() -> None:
    with pytest.raises(UsageError, match="version_compatible needs --routing unrolled"):
        ExportRequest(("trt",), routing="fused", fleet=Fleet(version_compatible=True))
    request = ExportRequest(("trt",), routing="fused", fleet=Fleet(hardware_compatible=True, refittable=True))
    assert request.command("trt").endswith("--batch 1:8:64 --routing fused --set hardware_compatible --set refittable")
    assert "refittable" not in request.command("onnx")


def test_weights_that_are_nowhere(bundle: Bundle, tmp_path: Path, qcn: Command) -> None:
    code, said = qcn("export", tmp_path / "nowhere", "--refit", bundle.folder)
    assert code == 2 and "nowhere" in said


# Running


def test_where_such_an_engine_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"flavour": "tensorrt", "version": "8.6.1", "gpu": "NVIDIA A100", "sm": 80}
    hardware, version = facts | {"hardware_compatible": True}, facts | {"version_compatible": True, "sm": 90}
    assert "was built for NVIDIA A100, sm80; here is NVIDIA H200, sm90" in targets.foreign(facts, "8.6.1", H200)
    assert targets.foreign(hardware, "8.6.1", H200) == ""
    assert "from sm80 on; here is T4, sm75" in targets.foreign(hardware, "8.6.1", Gpu("T4", 75))
    assert targets.foreign(version, "8.6.1", H200) == ""
    assert "set QCN_LEAN_RUNTIME to its libnvinfer_lean.so" in targets.foreign(version, "10.3.0", H200)
    assert "only newer versions" in targets.foreign(version | {"version": "10.9.0"}, "10.3.0", H200)
    monkeypatch.setenv(targets.LEAN_RUNTIME, "/opt/libnvinfer_lean.so.8")
    assert targets.foreign(version, "10.3.0", H200) == ""


# Other weights


@pytest.fixture
def again(bundle: Bundle, program: Program, tmp_path: Path) -> Bundle:
    """A bundle of the same network with other weights."""
    random = np.random.default_rng(0)
    other = {
        name: array * random.uniform(0.9, 1.1, array.shape).astype(array.dtype)
        for name, array in program.arrays.items()
    }
    manifest = replace(bundle.manifest, files=())
    return Bundle.create(tmp_path / "again", manifest, replace(program, arrays=other), bundle.golden, pipeline.FROM_RUN)


@pytest.fixture(params=["8.6.1", "10.3.0"])
def tensorrt(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TensorRT:
    found = faked(request.param)
    for module in (refit, build_module):
        monkeypatch.setattr(module, "find", lambda flavour=None: found)
    return found


def export(bundle: Bundle, **options: Any) -> str:
    """The file of a new engine."""
    (result,) = pipeline.export(bundle.folder, None, ExportRequest(("trt",), **options), Path())[1]
    assert result.artefact
    return result.artefact.file


def test_an_engine_gets_the_weights_of_a_network_trained_again(
    bundle: Bundle, again: Bundle, tensorrt: TensorRT, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    file = export(bundle, fleet=Fleet(refittable=True))
    before = Bundle.open(bundle.folder).find(file)
    (again.folder / SIGNATURE).write_bytes(bytes(64))
    found, (done,) = refit.refit_engines(bundle.folder / file, again.folder, None, Path())
    assert f"{again.folder} changed, so its signature was removed" in capsys.readouterr().err
    weights = tensorrt.module.told["refitted"]
    program = again.program()
    convolution = next(op for op in program.operations if isinstance(op, Convolution))
    node = convolution.name.replace(".", "/")
    assert np.array_equal(weights[f"{node}/conv.weight"], program.arrays[convolution.weights[0]])
    assert np.array_equal(weights[f"{node}/bias"], program.arrays[convolution.bias])
    assert {name.partition("/")[0] for name in weights} >= {op.name for op in program.routes}
    after = done.artefact
    assert (found.folder, after.file, after.facts["refitted_from"]) == (again.folder, file, before.sha256)
    assert after.facts["onnx_sha256"] == found.find("model.tensorrt.onnx").sha256 != before.facts["onnx_sha256"]
    assert after.sha256 == after.facts["plan_sha256"]
    assert after.facts["refittable"] and "--set refittable" in after.rebuild
    flags = b"[]" if tensorrt.version[0] == 8 else b'["INCLUDE_REFIT"]'  # else a plan would leave its weights out again
    assert flags in (again.folder / file).read_bytes()
    assert Bundle.open(bundle.folder).find(file) == before

    for method, answer, message in (
        ("set_named_weights", False, "refuses the weight"),
        ("get_all_weights", [], "was built without such a weight"),
        ("get_missing_weights", ["stem"], "has no weight 'stem'"),
        ("refit_cuda_engine", False, "could not refit"),
    ):
        with monkeypatch.context() as broken:
            broken.setattr(tensorrt.module.Refitter, method, lambda *weights, answer=answer: answer)
            with pytest.raises(BuildError, match=message):
                refit.refit_engines(bundle.folder, again.folder, None, Path())


def test_what_cannot_be_refitted_is_said(
    bundle: Bundle, again: Bundle, tensorrt: TensorRT, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(error: type[Exception], says: str, source: Path = bundle.folder) -> None:
        with pytest.raises(error, match=says):
            refit.refit_engines(source, again.folder, None, Path())

    refused(UsageError, "has no TensorRT engine")
    refused(
        UsageError,
        r"no engine that can be refitted: build one with: qcn export .* --set ref",
        bundle.folder / export(bundle),
    )
    export(bundle, fleet=Fleet(refittable=True))
    with monkeypatch.context() as without:
        without.setattr(targets, "this_gpu", lambda: None)
        refused(MissingError, "needs an NVIDIA GPU")
        without.setattr(refit, "find", lambda flavour: replace(tensorrt, version=(9, 9, 9)))
        refused(MissingError, r"this is TensorRT 9\.9\.9: refit it with the version that built it")
    assert not [one for one in Bundle.open(again.folder).manifest.files if one.format.startswith("onnx")]
    plain = again.program()
    longer = tuple(replace(op, iterations=5) if isinstance(op, Route) else op for op in plain.operations)
    other = replace(plain, operations=longer)
    monkeypatch.setattr(Bundle, "program", lambda self: other if self.folder == again.folder else plain)
    refused(UsageError, "has other layers, sizes or classes")
    monkeypatch.setattr(Program, "calibrated", True)
    refused(UsageError, "is calibrated, and its scales are part of the engine")


@pytest.mark.parametrize(
    ("precision", "kinds"), [("fp32", {"FLOAT"}), ("fp16", {"FLOAT", "HALF"}), ("bf16", {"FLOAT", "BF16"})]
)
def test_weights_of_each_precision_as_the_real_tensorrt_takes_them(
    program: Program, precision: Precision, kinds: set[str]
) -> None:
    pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT-RTX has no wheel here")
    graph = build_graph(program.at(precision, rest=precision), style=FUSED, opset=22)
    weights, trt = weights_of(graph.SerializeToString()), find("rtx").module
    assert {as_weights(array, trt).dtype.name for array in weights.values()} == kinds
    assert all(as_weights(array, trt).size == array.size for array in weights.values())
