"""Engines from ONNX: built for real by TensorRT-RTX where its wheel is installed, and what each TensorRT is told."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from fake_tensorrt import fake
from onnx import TensorProto, helper
from small_graphs import write_graph

from qcn.errors import BuildError, MissingError, UsageError
from qcn.export import targets
from qcn.export.backends.tensorrt import config as tensorrt_config
from qcn.export.backends.tensorrt import progress as building
from qcn.export.backends.tensorrt.build import BuildRequest, TensorRT, build, find
from qcn.export.backends.tensorrt.find import library_version
from qcn.export.backends.tensorrt.progress import BuildLog
from qcn.export.backends.tensorrt.receipt import from_inspector
from qcn.export.bundle.manifest import Batch
from qcn.export.targets import Gpu
from qcn.terminal import progress

OPEN = Batch(1, 8, 64)


@pytest.fixture(scope="module")
def rtx() -> TensorRT:
    pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT-RTX has no wheel here")
    return find("rtx")


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "this_gpu", lambda: Gpu("NVIDIA H200", 90))


def faked(version: str, **habits: object) -> TensorRT:
    module = fake(version, **habits)  # type: ignore[arg-type]
    return TensorRT("tensorrt", tuple(int(part) for part in version.split(".")), module)


# TensorRT-RTX, for real


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_real_engine_holds_the_precision_asked_for(tmp_path: Path, rtx: TensorRT, precision: str) -> None:
    path = write_graph(tmp_path / "model.onnx", precision, island=True)
    engine = build(path.read_bytes(), BuildRequest(precision, OPEN), rtx)
    assert len(engine.plan) > 1000
    assert engine.receipt.met is True
    assert engine.receipt.unseen == []
    kinds = " ".join(kind for _, kind, _ in engine.receipt.layers)
    assert {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[precision] in kinds
    facts = json.loads(json.dumps(engine.facts))
    assert facts["precision_found"] == precision
    assert facts["inputs"] == [{"name": "image", "dtype": "float32", "shape": [-1, 2, 16, 16]}]
    assert facts["outputs"] == [{"name": "logit", "dtype": "float32", "shape": [-1, 8]}]
    assert engine.file_name == f"{precision}-b1-8-64-rtx{rtx.version_text}.engine"
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.onnx"]


def test_engines_for_one_batch_for_another_gpu_and_without_a_gpu(tmp_path: Path, rtx: TensorRT) -> None:
    fixed = write_graph(tmp_path / "fixed.onnx", batch=4).read_bytes()
    assert build(fixed, BuildRequest("fp32", Batch(4, 4, 4)), rtx).file_name.startswith("fp32-b4-rtx")
    engine = build(write_graph(tmp_path / "model.onnx").read_bytes(), BuildRequest("fp32", OPEN, sm=89), rtx)
    assert "-sm89-" in engine.file_name
    if targets.this_gpu() is None:
        assert engine.receipt.source == "builder log" and "fp32 met, by the builder log" in engine.receipt.summary()


def unknown_node() -> bytes:
    """A graph of a node that TensorRT lacks."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in ("image", "logit")]
    node = helper.make_node("Route", ["image"], ["logit"], name="/capsule/route", domain="qcn")
    graph = helper.make_graph([node], "custom", ports[:1], ports[1:])
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("qcn", 1)]
    return bytes(helper.make_model(graph, opset_imports=sets, ir_version=8).SerializeToString())


def test_what_cannot_be_built_is_said(tmp_path: Path, rtx: TensorRT) -> None:
    full, half = (write_graph(tmp_path / f"{kind}.onnx", kind).read_bytes() for kind in ("fp32", "fp16"))
    fixed = write_graph(tmp_path / "fixed.onnx", batch=4).read_bytes()
    for graph, request, error, says in (
        (fixed, BuildRequest("fp32", OPEN), BuildError, "4, but 1:8:64 was requested; export it with --batch 1:8:64"),
        (full, BuildRequest("fp32", OPEN, sm=87), UsageError, "cannot build for sm87"),
        (full, BuildRequest("fp16", OPEN), BuildError, "is float16; export it again with --precision fp16"),
        (half, BuildRequest("fp32", OPEN), BuildError, r"half precision at .*/stem/conv"),
        (unknown_node(), BuildRequest("fp32", Batch(1, 1, 1)), BuildError, r"node '/capsule/route' \(Route\)"),
        (b"not a graph", BuildRequest("fp32", OPEN), BuildError, "refuses"),
    ):
        with pytest.raises(error, match=says):
            build(graph, request, rtx)


def test_progress_ends_near_the_end_and_ctrl_c_ends_the_build(
    tmp_path: Path, rtx: TensorRT, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, reported = write_graph(tmp_path / "model.onnx"), []
    monkeypatch.setattr(building, "doing", lambda what, fraction: reported.append(fraction))
    build(path.read_bytes(), BuildRequest("fp32", OPEN), rtx)
    fractions = [fraction for fraction in reported if fraction is not None]
    assert fractions == sorted(fractions)
    assert fractions[-1] > 0.5

    def interrupt(what: str, fraction: float | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "doing", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build(path.read_bytes(), BuildRequest("fp32", OPEN), rtx)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.onnx"]


def test_ctrl_c_leaves_a_build_that_cannot_be_ended() -> None:
    """TensorRT 8 cannot be told to stop: the process cleans up and ends all the same."""
    script = (
        "import time\n"
        "from qcn.export.backends.tensorrt.progress import BuildLog, run_interruptibly\n"
        "def interrupt(): raise KeyboardInterrupt\n"
        "try:\n    run_interruptibly(lambda: time.sleep(60), BuildLog(), interrupt, can_cancel=False)\n"
        "except KeyboardInterrupt:\n    print('cleaned up')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout) == (130, "cleaned up\n")


def test_a_build_is_shown_with_its_phase(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("qcn.terminal.progress.QUIET_S", 0.0)
    monkeypatch.setattr("qcn.terminal.progress.PACE", math.inf)
    log = BuildLog()
    log.start("Timing kernels", None, 4)
    log.step("Timing kernels", 0)
    with progress.shown():
        log.show("building by TensorRT 10.3.0")
    assert "building by TensorRT 10.3.0: timing kernels  25 %" in capsys.readouterr().err


# What each version is told


@pytest.mark.parametrize(
    ("version", "flags", "network_flags"),
    [
        ("8.6.1", {"FP16", "OBEY_PRECISION_CONSTRAINTS"}, ["EXPLICIT_BATCH"]),
        ("10.3.0", set(), ["STRONGLY_TYPED"]),
        ("11.1.0", set(), []),
    ],
)
@pytest.mark.usefixtures("h200")
def test_half_precision_is_asked_as_the_version_takes_it(
    tmp_path: Path, version: str, flags: set[str], network_flags: list[str]
) -> None:
    tensorrt = faked(version)
    path = write_graph(tmp_path / "model.onnx", "fp16", island=True)
    engine = build(path.read_bytes(), BuildRequest("fp16", OPEN, optimization=2, workspace=256), tensorrt)
    told = tensorrt.module.told
    assert told["flags"] == flags
    assert told["cleared"] == {"TF32"}
    assert told["preview"] == ({"PROFILE_SHARING_0806": True} if version.startswith("8") else {})
    assert told["network_flags"] == network_flags
    assert told["profiles"] == [("image", (1, 2, 16, 16), (8, 2, 16, 16), (64, 2, 16, 16))]
    assert (told["level"], told["config"][tensorrt.module.MemoryPoolType.WORKSPACE]) == (2, 256 << 20)
    assert engine.receipt.source == "engine inspector"
    assert engine.file_name == f"fp16-b1-8-64-sm90-trt{version}.engine"


@pytest.mark.usefixtures("h200")
def test_each_layer_of_8_6_is_told_its_type(tmp_path: Path) -> None:
    tensorrt = faked("8.6.1")
    build(write_graph(tmp_path / "model.onnx", "fp16", island=True).read_bytes(), BuildRequest("fp16", OPEN), tensorrt)
    layers = {layer.name: layer for layer in tensorrt.module.told["network"].layers}
    assert layers["/stem/conv"].precision.name == layers["/stem/conv"].get_output(0).dtype.name == "HALF"
    for name in ("/stem/sigmoid", "/capsule/conv", "/head/mean"):
        assert (layers[name].precision.name, layers[name].precision_is_set) == ("FLOAT", True)
    assert not layers["/stem/narrow"].precision_is_set


@pytest.mark.parametrize(
    ("precision", "built", "layer"),
    [("fp16", "FLOAT", "/stem/conv"), ("fp16", "HALF", "/capsule/conv"), ("fp32", "HALF", "/stem/conv")],
)
@pytest.mark.usefixtures("h200")
def test_an_engine_in_another_precision_is_an_error_that_names_the_layer(
    tmp_path: Path, precision: str, built: str, layer: str
) -> None:
    path = write_graph(tmp_path / "model.onnx", precision, island=True)
    with pytest.raises(BuildError, match=f"{precision} was requested, .* built something else:\n  {layer}") as caught:
        build(path.read_bytes(), BuildRequest(precision, OPEN), faked("10.3.0", disobey=built))
    assert caught.value.exit_code == 4


@pytest.mark.usefixtures("h200")
def test_a_build_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, half = (write_graph(tmp_path / kind, kind).read_bytes() for kind in ("fp32", "bf16"))
    broken = faked("10.3.0", logs=("Could not find any implementation for node /stem/conv",))
    request = BuildRequest("fp32", OPEN, timing_cache=tmp_path / "timings")
    with pytest.raises(BuildError, match="error: Could not find any implementation for node /stem/conv"):
        build(graph, request, broken)
    assert not (tmp_path / "timings").exists()
    with pytest.raises(MissingError, match=r"bf16 needs TensorRT 10 or newer, this is TensorRT 8\.6\.1"):
        build(half, BuildRequest("bf16", OPEN), faked("8.6.1"))
    unreadable = faked("8.6.0")
    monkeypatch.setattr(unreadable.module.Runtime, "deserialize_cuda_engine", lambda self, plan: None)
    with pytest.raises(BuildError, match="cannot read back"):
        build(graph, BuildRequest("fp32", OPEN), unreadable)
    monkeypatch.setattr(targets, "this_gpu", lambda: None)
    with pytest.raises(MissingError, match=r"TensorRT 10\.3\.0 needs an NVIDIA GPU"):
        build(graph, BuildRequest("fp32", OPEN), faked("10.3.0"))


@pytest.mark.usefixtures("h200")
def test_timings_are_kept_and_foreign_ones_begun_anew(tmp_path: Path) -> None:
    path, cache = write_graph(tmp_path / "model.onnx"), tmp_path / "timings"
    request = BuildRequest("fp32", OPEN, timing_cache=cache)
    tensorrt = faked("8.6.1")
    build(path.read_bytes(), request, tensorrt)
    assert (tensorrt.module.told["cache"], cache.read_bytes()) == (b"", b"timings")
    build(path.read_bytes(), request, tensorrt)
    assert tensorrt.module.told["cache"] == b"timings"
    tensorrt = faked("8.6.1", foreign_cache=True)
    engine = build(path.read_bytes(), request, tensorrt)
    assert tensorrt.module.told["cache"] == b""
    assert any("begun anew" in warning for warning in engine.facts["warnings"])


@pytest.mark.usefixtures("h200")
def test_kernels_of_libraries_that_do_not_load_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, request = write_graph(tmp_path / "model.onnx"), BuildRequest("fp32", OPEN)
    monkeypatch.setattr("qcn.export.backends.tensorrt.config._loads", lambda library, function: "cudnn" in library)
    tensorrt = faked("8.6.1")
    assert build(path.read_bytes(), request, tensorrt).facts["tactics_left_out"] == ["CUBLAS", "CUBLAS_LT"]
    assert tensorrt.module.told["tactics"] == ["CUDNN", "EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"]
    assert build(path.read_bytes(), request, faked("11.1.0")).facts["tactics_left_out"] == []
    # A newer cuBLAS is of no use to TensorRT 8.
    monkeypatch.setattr("qcn.export.backends.tensorrt.config._loads", lambda library, function: library.endswith(".13"))
    facts = build(path.read_bytes(), request, faked("8.6.0")).facts
    assert facts["tactics_left_out"] == ["CUBLAS", "CUBLAS_LT", "CUDNN"]


def test_the_inspectors_control_characters_are_read() -> None:
    """TensorRT 8.6 parts the ONNX nodes of a layer by U+001E, which JSON does not allow in a text."""
    convolution = {"Name": "c + r", "LayerType": "CaskConvolution", "Inputs": [], "Outputs": []}
    text = json.dumps({"Layers": [{**convolution, "Metadata": "[ONNX Layer: c]?[ONNX Layer: r]"}]}).replace("?", "\x1e")
    (layer,) = from_inspector(text)
    assert layer.nodes == ("c", "r")


def test_a_library_without_the_function_does_not_count() -> None:
    assert tensorrt_config._loads("libm.so.6", "cos")
    assert not tensorrt_config._loads("libm.so.6", "cudnnCreate")
    assert not tensorrt_config._loads("libnone.so.1", "cos")


# Requests, versions, targets


def test_library_versions() -> None:
    versions = {8601: (8, 6, 1), 100300: (10, 3, 0), 101303: (10, 13, 3), 10701: (1, 7, 1)}
    assert {number: library_version(number) for number in versions} == versions


def test_targets() -> None:
    orin, rtx_sms = targets.target("jetson-orin"), frozenset({75, 80, 86, 89, 120})
    there = targets.obstacle(orin, "tensorrt", (10, 3, 0), frozenset(), Gpu("NVIDIA H200", 90))
    assert there == "jetson-orin is sm87; this machine's NVIDIA H200 is sm90"
    assert not targets.obstacle(orin, "tensorrt", (10, 3, 0), frozenset(), Gpu("Orin", 87))
    assert "none here" in targets.obstacle(orin, "tensorrt", (10, 3, 0), frozenset(), None)
    assert "has TensorRT 8.6 or 10.3" in targets.obstacle(orin, "tensorrt", (10, 9, 0), frozenset(), Gpu("Orin", 87))
    assert "sm75, sm80" in targets.obstacle(orin, "rtx", (1, 7, 1), rtx_sms, None)
    assert not targets.obstacle(targets.target("sm89"), "rtx", (1, 7, 1), rtx_sms, None)
    assert not targets.obstacle(targets.target("this"), "rtx", (1, 7, 1), rtx_sms, None)
    with pytest.raises(UsageError, match="did you mean 'jetson-orin'"):
        targets.target("jetson-orinn")


def test_progress_from_the_log_of_a_version_that_reports_none() -> None:
    log = BuildLog()
    assert log.now()[0] is None
    log.add("VERBOSE", "After final dead-layer removal: 4 layers")
    log.add("VERBOSE", "=============== Computing costs for /stem/conv")
    log.add("VERBOSE", "=============== Computing costs for /head/mean")
    assert log.now() == (0.25, "timing kernels")
