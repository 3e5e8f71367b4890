"""Calibrated bundles: every command runs them, receipts say what ran, and parity is judged by the plan."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import made_once
from command import Command
from graphs import half_sums, half_variance, put_graph
from PIL import Image
from plants import calibrated
from runners import model_at
from styles import STYLES

from qcn.errors import CheckFailed, UsageError
from qcn.export.backends.onnx.build import build
from qcn.export.backends.receipts import receipts, require_met
from qcn.export.backends.runner import Options
from qcn.export.backends.tensorrt.layers import STYLE
from qcn.export.backends.web.runner import WebRunner
from qcn.export.bundle import WEIGHTS, Bundle
from qcn.export.calibrated import precisions, write_calibrated
from qcn.export.program.program import Convolution, Program
from qcn.kernels import native as native_kernels
from qcn.verify.parity.verify import verify

NATIVE = ["native"] if native_kernels.available() else []
CONV = "pose.0.conv2"  # of two inputs


@pytest.fixture(scope="session")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """float32: what it was made from; int8: the calibrated bundle."""
    return made_once(tmp_path_factory, "calibrated", lambda out: calibrated(out, seed=1, size=16, images=4))


@pytest.fixture
def low(_folder: Path, tmp_path: Path) -> Bundle:
    return Bundle.open(shutil.copytree(_folder / "int8", tmp_path / "int8"))


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node here: apt install nodejs")
def test_a_page_of_a_calibrated_network_answers_as_its_plan_does(wasm: None, low: Bundle, qcn: Command) -> None:
    code, said = qcn("export", low.folder, "--format", "web")
    assert code == 0, said
    page = Bundle.open(low.folder).find("page.html")
    assert page.precision == "int8" and page.rebuild == "qcn export {bundle} --format web"
    code, said = qcn("verify-parity", low.folder, "--backends", "web")
    assert code == 0 and "passed    web: page.html (int8)" in said, said
    answers = []
    for variant in ("simd", "plain"):
        with WebRunner(model_at(low.folder / "page.html"), Options(), variant) as runner:
            answers.append(runner.infer(low.golden().input)["logit"])
    np.testing.assert_allclose(*answers, atol=1e-5)


def test_the_road_of_a_calibrated_bundle(_folder: Path, low: Bundle, qcn: Command, tmp_path: Path) -> None:
    artefacts = {artefact.file: artefact for artefact in low.manifest.files}
    assert set(artefacts) == {"weights.safetensors", "golden.safetensors", "model.int8.onnx"}
    assert {artefact.precision for artefact in artefacts.values()} == {"int8", "fp64"}
    facts = artefacts[WEIGHTS].facts["calibration"]
    assert facts["precisions"][CONV] == "int8" and facts["precisions"]["classes"] == "fp16"
    backends = ",".join(["onnxruntime", *NATIVE])
    code, said = qcn("verify-parity", low.folder, "--backends", backends, "--report", tmp_path / "report")
    assert code == 0 and "the plan against the trained network: logit within" in said, said
    assert "answer as the calibrated network's plan does" in said
    code, said = qcn("doctor", low.folder)
    assert code == 0 and "model.int8.onnx" in said, said
    code, said = qcn("benchmark", low.folder, "--backends", backends, "--duration", "0.01")
    assert code == 0 and "int8" in said, said
    if NATIVE:
        Image.fromarray(low.golden().image[0].transpose(1, 2, 0)).save(tmp_path / "picture.png")
        code, said = qcn("predict", tmp_path / "picture.png", "--model", low.folder)
        expected = low.manifest.classes[int(low.golden().reference.logit[0].argmax())]
        assert code == 0 and expected in said, said
    code, said = qcn("install", low.folder, tmp_path / "there")
    assert code == 0, said
    code, said = qcn("export", low.folder, "--format", "onnx")
    assert code == 0 and "model.int8.onnx" in said, said
    for arguments, says in (
        (("--format", "onnx", "--precision", "fp16"), "leave out --precision"),
        (("--format", "torchscript"), "cannot be made from a calibrated network"),
        (("--format", "onnx", "--precision", "int8"), "qcn calibrate"),
    ):
        code, said = qcn("export", low.folder, *arguments)
        assert code == 2 and says in said, said


def test_receipts_say_what_onnx_runtime_ran(low: Bundle) -> None:
    found = receipts(low, "onnxruntime")
    assert [one.operation for one in found] == list(precisions(low.program()))
    assert {(one.asked, one.ran, one.by) for one in found if one.asked == "int8"} == {("int8", "int8", "ConvInteger")}
    assert {one.asked for one in found} == {"int8", "fp16"} and all(one.met for one in found)
    require_met(found)
    if NATIVE:
        native = receipts(low, "native")
        assert [(one.operation, one.asked) for one in native] == [(one.operation, one.asked) for one in found]
        require_met(native)
        assert {one.ran for one in native if one.asked == "int8"} == {"int8"}
    put_graph(low, build(low.program(), style=STYLE), "int8")  # Q/DQ pairs, whose convolutions run in floats
    with pytest.raises(CheckFailed, match=r"should run in int8, but runs in fp32 \(.*Conv"):
        require_met(receipts(Bundle.open(low.folder), "onnxruntime"))


def convolution(program: Program) -> str:
    """The name of one that has two inputs."""
    return next(op.name for op in program.operations if isinstance(op, Convolution) and len(op.inputs) == 2)


def altered(
    change: Callable[[Convolution], Convolution], routing: Any = "unrolled", put: Callable[..., None] = put_graph
) -> Callable[[Bundle], None]:
    """The graph of the plan with one of its convolutions changed."""

    def plant(bundle: Bundle) -> None:
        program = bundle.program()
        chosen = convolution(program)
        operations = [
            change(op) if isinstance(op, Convolution) and op.name == chosen else op for op in program.operations
        ]
        put(bundle, build(replace(program, operations=tuple(operations)), style=STYLES[routing]), "int8")

    return plant


def scaled_by(
    factor: float, routing: Any = "unrolled", put: Callable[..., None] = put_graph
) -> Callable[[Bundle], None]:
    return altered(
        lambda op: replace(op, input_scales=tuple(float(np.float32(s * factor)) for s in op.input_scales)), routing, put
    )


def without_bias(bundle: Bundle) -> None:
    program = bundle.program()
    bias = f"{convolution(program)}.bias"
    arrays = {**program.arrays, bias: np.zeros_like(program.arrays[bias])}
    put_graph(bundle, build(replace(program, arrays=arrays)), "int8")


def in_floats(bundle: Bundle) -> None:
    """The trained network itself in float32, in the place of the plan's graph."""
    program = Bundle.open(bundle.folder.parent / "float32").program()
    put_graph(bundle, build(program), "int8")


FAULTS: dict[str, tuple[Callable[[Bundle], None], str]] = {
    "a scale 5 % off": (scaled_by(1.05), "logit is off by"),
    "a range that is clipped": (scaled_by(0.5), "logit is off by"),
    "no bias": (without_bias, "logit is off by"),
    "variances in fp16": (lambda bundle: half_variance(bundle, "int8"), "held in half precision"),
    "sums of squares in fp16": (lambda bundle: half_sums(bundle, "int8"), "not float32's sum"),
    "floats": (in_floats, "are not in what the program says"),
}


SLOW = ("a range that is clipped", "no bias", "sums of squares in fp16", "floats")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in FAULTS]
)
def test_a_fault_in_a_calibrated_graph_is_found(_folder: Path, low: Bundle, name: str) -> None:
    plant, says = FAULTS[name]
    shutil.copytree(_folder / "float32", low.folder.parent / "float32")
    plant(low)
    (verdict,) = verify(Bundle.open(low.folder), ["onnxruntime"], {})
    assert verdict.status == "failed" and says in " ".join(verdict.reasons), verdict.reasons


def test_faults_in_a_calibrated_cnn_are_found(tmp_path: Path) -> None:
    honest = calibrated(tmp_path / "cnn", seed=1, size=16, images=4, model="cnn-small")
    (verdict,) = verify(honest, ["onnxruntime"], {})
    assert verdict.status == "passed", verdict.reasons
    for name in ("a scale 5 % off", "no bias"):
        plant, says = FAULTS[name]
        bundle = Bundle.open(shutil.copytree(honest.folder, tmp_path / "planted", dirs_exist_ok=True))
        plant(bundle)
        (verdict,) = verify(Bundle.open(bundle.folder), ["onnxruntime"], {})
        assert verdict.status == "failed" and says in " ".join(verdict.reasons), (name, verdict.reasons)


@pytest.mark.slow
def test_other_images_are_judged_by_the_plan_too(low: Bundle, tmp_path: Path) -> None:
    (tmp_path / "pictures" / "above").mkdir(parents=True)
    for index in range(2):
        pixels = np.random.default_rng(index).integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pictures" / "above" / f"{index}.png")
    from qcn.verify.parity.samples import samples

    chosen = samples(low, str(tmp_path / "pictures"), None, tmp_path)
    assert chosen.golden.plan and chosen.golden.trained is None
    (verdict,) = verify(low, ["onnxruntime"], {}, golden=chosen.golden)
    assert verdict.status == "passed", verdict.reasons


def test_what_is_not_calibrated_or_is_already_is_not_written(_folder: Path, tmp_path: Path) -> None:
    base, low = Bundle.open(_folder / "float32"), Bundle.open(_folder / "int8")
    for bundle, program, out, says in (
        (base, base.program(), tmp_path / "new", "nothing to write"),
        (base, low.program(), _folder / "int8", "already has a bundle"),
        (low, low.program(), tmp_path / "new", "is already calibrated"),
    ):
        with pytest.raises(UsageError, match=says):
            write_calibrated(bundle, program, out, {}, "qcn calibrate RUN --out {bundle}")
