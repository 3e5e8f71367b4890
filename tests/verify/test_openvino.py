"""OpenVINO: the road of a bundle's IR, float32 that is float32, planted faults, int8, and files that do not belong."""

import platform
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundles import bundle_of, made_once
from command import Command
from graphs import BATCH, graph, put_graph
from onnx import ModelProto
from plants import FAULTS, calibrated
from runners import create
from test_calibrated import altered

import qcn as product
from qcn.errors import CheckFailed, FellBack, MissingError, UsageError
from qcn.export import pipeline
from qcn.export.backends.candidates import capsule_layers
from qcn.export.backends.format import Job
from qcn.export.backends.onnx.format import graph_of
from qcn.export.backends.openvino import runner as runner_module
from qcn.export.backends.openvino.format import GRAPH
from qcn.export.backends.openvino.ir import write_ir
from qcn.export.backends.receipts import receipts, require_met
from qcn.export.bundle import WEIGHTS, Bundle
from qcn.export.bundle.manifest import file_of
from qcn.export.program.program import Convolution
from qcn.export.request import ExportRequest
from qcn.names import BUNDLE
from qcn.verify.parity.verify import verify

openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")


def put_ir(bundle: Bundle, model: ModelProto, precision: Any = "fp32") -> None:
    """A graph in the bundle as OpenVINO's, with its hashes."""
    file, rebuild = file_of("openvino", precision), f"qcn export {BUNDLE} --format openvino"
    with bundle.adding(file, "openvino", precision, rebuild, batch=BATCH, beside="openvino-weights") as draft:
        write_ir(model.SerializeToString(), draft.path)


def arranged(bundle: Bundle, precision: Any = "fp32") -> ModelProto:
    """The graph as OpenVINO is given it."""
    return graph_of(Job(bundle, ExportRequest(precision=precision)), "openvino.layers:STYLE")


@pytest.fixture
def cnn(tmp_path: Path) -> Bundle:
    torch.manual_seed(0)
    return bundle_of(tmp_path / "cnn", product.create("cnn-small", in_channels=1, classes=3).eval(), 16, 16)


def test_the_road_of_an_ir(small: Bundle, qcn: Command) -> None:
    code, said = qcn("export", small.folder, "--format", "openvino")
    assert code == 0 and "model.xml" in said and "model.bin" in said, said
    whole = (small.folder / WEIGHTS).read_bytes()
    (small.folder / WEIGHTS).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    code, said = qcn("doctor", small.folder)
    assert code == 1 and "altered   weights.safetensors" in said and "runs      model.xml" in said, said
    (small.folder / WEIGHTS).write_bytes(whole)
    code, said = qcn("verify-parity", small.folder, "--backends", "openvino", "--set", "bisect")
    assert code == 0 and "passed    openvino: model.xml (fp32)" in said, said
    code, said = qcn("benchmark", small.folder, "--backends", "openvino", "--duration", "0.01")
    assert code == 0 and "model.xml" in said, said
    code, said = qcn("doctor", small.folder)
    assert code == 0 and "computes in float32" in said and "model.bin: the weights of model.xml" in said, said

    bundle, layers = Bundle.open(small.folder), capsule_layers(small)
    golden = bundle.golden()
    with create("openvino", bundle.folder / "model.xml", layers=layers, threads=1) as runner:
        found = runner.infer(golden.input)
        with pytest.raises(UsageError, match=r"images are \[2, 1, 24, 24\], .* takes \['batch', 3, 24, 24\]"):
            runner.infer(golden.input[:2, :1])
    with create("onnxruntime", bundle.folder / "model.onnx", layers=layers) as other:
        expected = other.infer(golden.input)
    assert found.keys() == expected.keys() and any("iteration2" in name for name in found)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-3, atol=1e-4, err_msg=name)

    model = product.load(bundle.folder, "openvino")
    pictures = [picture.transpose(1, 2, 0) for picture in golden.image[:4]]
    with ThreadPoolExecutor(4) as threads:
        answers = [answer.label for answer in threads.map(model.predict, pictures)]
    assert answers == [golden.classes[k] for k in golden.reference.logit[:4].argmax(1)]


def test_a_lower_precision_than_float32_is_refused_and_would_be_found(
    cnn: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the processor has bfloat16 or float16, OpenVINO takes it unless it is told not to.

    Of a CNN: on ARM OpenVINO 2026.4 does not compile capsule layers in float16 ("object is not initialized").
    """
    core = openvino.Core()
    can = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    lower = next((name for name in ("BF16", "FP16") if name in can), None)
    if lower is None:
        pytest.skip("this processor has neither bfloat16 nor float16")
    hint = {"BF16": "bf16", "FP16": "f16"}[lower]
    put_ir(cnn, arranged(cnn))
    path, golden = cnn.folder / "model.xml", cnn.golden()
    lowered = core.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": hint})
    error = abs(lowered(golden.input)["logit"] - golden.reference.logit).max()
    assert error > 10 * (cnn.find("model.xml").tolerance or {})["logit"]
    monkeypatch.setattr(runner_module, "ARITHMETIC", hint)
    with pytest.raises(MissingError, match="was told to compute in float32 on this CPU, but computes in"):
        create("openvino", path).open()


IN_BRIEF = "variance in fp16"
PLANTED = (
    IN_BRIEF,
    "TF32 left on",
    "sums of squares in fp16",
    "channels swapped in the graph",
    "not a number for denormal inputs",
)
PLANTED += ("a transposed pose", "the graph of a model of other classes")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == IN_BRIEF else pytest.mark.slow) for name in PLANTED]
)
def test_a_planted_fault_is_found(honest_folders: dict[str, Path], tmp_path: Path, name: str) -> None:
    fault = FAULTS[name]
    bundle = Bundle.open(shutil.copytree(honest_folders[fault.precision], tmp_path / "bundle"))
    put_graph(bundle, arranged(bundle, fault.precision), fault.precision)
    fault.plant(bundle)
    put_ir(bundle, graph(bundle), fault.precision)
    (verdict,) = verify(bundle, ["openvino"], {})
    assert verdict.status == "failed" and verdict.first_wrong == fault.place, verdict.reasons
    assert fault.says in " ".join(verdict.reasons)


@pytest.fixture
def low(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Bundle:
    """A calibrated bundle of the test's own."""
    folder = made_once(tmp_path_factory, "calibrated", lambda out: calibrated(out, seed=1, size=16, images=4))
    return Bundle.open(shutil.copytree(folder / "int8", tmp_path / "int8"))


@pytest.mark.slow
def test_int8_runs_as_int8_or_not_at_all(low: Bundle, qcn: Command) -> None:
    code, said = qcn("export", low.folder, "--format", "openvino")
    assert code == 0 and "model.int8.xml" in said, said
    bundle = Bundle.open(low.folder)
    (verdict,) = verify(bundle, ["openvino"], {})
    found = {(one.asked, one.ran) for one in receipts(bundle, "openvino")}
    if platform.machine() != "x86_64" and found == {("int8", "fp32"), ("fp16", "fp32")}:
        assert verdict.status == "missing" and re.search(
            r"computes (\d+) of \1 int8 .* in floating point", verdict.reasons[0]
        )
        for command in (("benchmark", bundle.folder, "--backends", "openvino"), ("doctor", bundle.folder)):
            code, said = qcn(*command)
            assert code == (3 if "openvino" in command else 0), said
            assert "in floating point" in said or "cannot model.int8.xml" in " ".join(said.split()), said
        with pytest.raises(FellBack, match="in floating point on this processor"):
            product.load(bundle.folder, "openvino")
        return
    assert verdict.status == "passed", verdict.reasons
    assert found == {("int8", "int8"), ("fp16", "fp32")}
    assert product.load(bundle.folder, "openvino").predict(bundle.golden().image[0].transpose(1, 2, 0)).label


@pytest.mark.isolated  # a child asks whether int8 runs here
def test_doctor_compiles_nothing(low: Bundle, qcn: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's graph may take for ever."""
    assert qcn("export", low.folder, "--format", "openvino")[0] == 0
    monkeypatch.setattr(runner_module.OpenVinoRunner, "compile", lambda runner: pytest.fail("it was compiled"))
    code, said = qcn("doctor", low.folder)
    words = "its int8 runs as int8" if platform.machine() == "x86_64" else "computes int8 in floating point"
    assert code == 0 and words in " ".join(said.split()), said


def test_integers_may_be_unsigned(low: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an x86-64 that has AVX2 and no VNNI, which this processor may not be."""
    pipeline.export(low.folder, None, ExportRequest(("openvino",)), low.folder)
    bundle = Bundle.open(low.folder)
    names = [op.name for op in bundle.program().operations if op.precision == "int8"]
    said = {"layerType": "Convolution", "runtimePrecision": "u8", "primitiveType": "jit_avx2_I8"}
    layers = [{**said, "originalLayersNames": f"{name.replace('.', '/')}/conv,other"} for name in names] * 2
    monkeypatch.setattr(runner_module.OpenVinoRunner, "executed", lambda self: layers)
    with create("openvino", bundle.folder / "model.int8.xml"):
        pass
    assert {one.ran for one in receipts(bundle, "openvino") if one.asked == "int8"} == {"int8"}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="OpenVINO computes int8 convolutions on x86-64 alone")
@pytest.mark.slow
def test_floats_for_int8_and_a_wrong_scale_are_found(low: Bundle) -> None:
    put_ir(low, graph(low), "int8")  # with ConvInteger, which OpenVINO computes in floats
    with pytest.raises(CheckFailed, match=r"should run in int8, but runs in fp32"):
        require_met(receipts(low, "openvino"))
    with pytest.raises(FellBack, match="in floating point on this processor"):
        create("openvino", low.folder / "model.int8.xml").open()
    altered(clipped, "openvino", put_ir)(low)
    (verdict,) = verify(low, ["openvino"], {})
    assert verdict.status == "failed" and "logit is off by" in verdict.reasons[0], verdict.reasons


def clipped(op: Convolution) -> Convolution:
    """With half the range for its first input. The second has another reader; with two scales OpenVINO takes floats."""
    first, second = op.input_scales
    return replace(op, input_scales=(first / 2, second))


def test_files_that_do_not_belong(small: Bundle, qcn: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    put_ir(small, arranged(small))
    graph_file, weights = small.folder / "model.xml", small.folder / "model.bin"
    kept = graph_file.read_bytes()
    assert GRAPH.seen(graph_file.read_bytes(), small.program()).precision == "fp32"
    pipeline.export(small.folder, None, ExportRequest(("openvino",), precision="fp16"), small.folder)
    half = GRAPH.seen((small.folder / "model.fp16.xml").read_bytes(), small.program())
    assert half.contradicts("fp32") == "declared fp32, computes in fp16"

    bad: list[tuple[bytes, str]] = [
        (b"<net>", "not a graph of OpenVINO's"),
        (b"<!DOCTYPE a><net/>", "declares entities"),
        (b"<net/>", "does not name the hash of its weights"),
        (
            kept.replace(b'type="Convolution"', b'type="Convolutiom"', 1),
            r"cannot load .*, which was written by \d+\.\d+\.\d+; with another version, rebuild it",
        ),
    ]
    for content, says in bad:
        graph_file.write_bytes(content)
        with pytest.raises(UsageError, match=says):
            create("openvino", graph_file).open()
    graph_file.write_bytes(kept)
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.raises(UsageError, match=r"model\.bin is missing, or is not the weights of model\.xml"):
        create("openvino", graph_file).open()
    code, said = qcn("doctor", small.folder)
    assert code == 1 and "model.bin" in said

    monkeypatch.setitem(sys.modules, "openvino", None)
    code, said = qcn("export", small.folder, "--format", "openvino")
    assert code == 3 and "OpenVINO is not installed: pip install openvino" in " ".join(said.split())
