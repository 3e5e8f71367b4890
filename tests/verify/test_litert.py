"""LiteRT: the road of a .tflite file, int8 that is int8, a planted fault, and files and requests that are refused."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundles import bundle_of, made_once
from command import Command
from plants import calibrated_program
from runners import create

import qcn as product
from qcn.errors import CheckFailed, FellBack, MissingError, UsageError
from qcn.export.backends.candidates import candidates
from qcn.export.backends.litert import precision
from qcn.export.backends.litert.format import TFLITE
from qcn.export.backends.receipts import receipts, require_met
from qcn.export.bundle import Bundle
from qcn.export.bundle.manifest import Batch
from qcn.export.calibrated import write_calibrated
from qcn.export.program.program import Array, Product, Program, Route
from qcn.export.program.quantise import halved
from qcn.export.rebuild import difference
from qcn.names import BUNDLE
from qcn.packages import installed
from qcn.verify.parity.verify import verify

INSTALL = "pip install ai-edge-litert"
needed = pytest.mark.skipif(not installed("ai_edge_litert"), reason=f"LiteRT is not installed: {INSTALL}")


MODELS = ("qcn-tiny", "cnn-small")


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each model a bundle, and in MODEL.int8 a calibrated one: products in int8, capsule layers in fp16."""

    def make(folder: Path) -> None:
        for model in MODELS:
            torch.manual_seed(0)
            base = bundle_of(folder / model, product.create(model, in_channels=1, classes=3).eval(), 16, 16)
            planned(base, calibrated_program(base.program(), base.golden().input), folder / f"{model}.int8")

    return made_once(tmp_path_factory, "litert", make)


@pytest.fixture
def tiny(kept: Path, tmp_path: Path) -> Bundle:
    return Bundle.open(shutil.copytree(kept / "qcn-tiny", tmp_path / "tiny"))


@pytest.fixture
def cnn(kept: Path, tmp_path: Path) -> Bundle:
    return Bundle.open(shutil.copytree(kept / "cnn-small", tmp_path / "cnn"))


@pytest.fixture(params=MODELS)
def low(request: pytest.FixtureRequest, kept: Path, tmp_path: Path) -> Bundle:
    return Bundle.open(shutil.copytree(kept / f"{request.param}.int8", tmp_path / "low"))


def planned(base: Bundle, program: Program, folder: Path) -> Bundle:
    return write_calibrated(base, program, folder, {"sha256": "0" * 64}, "qcn calibrate RUN --out {bundle}")


def put(bundle: Bundle, content: bytes, kind: Any = "fp32") -> None:
    """A file in the bundle, with its hashes."""
    rebuild = f"qcn export {BUNDLE} --format litert"
    with bundle.adding(TFLITE.data.file_in(kind), "litert", kind, rebuild, batch=Batch(1, 8, 64)) as draft:
        draft.path.write_bytes(content)


def altered(content: bytes, change: Callable[[Any], object]) -> bytes:
    """The model after a change of its tables."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(content)
    change(model)
    builder = flatbuffers.Builder()
    builder.Finish(model.Pack(builder), precision.IDENTIFIER)
    return bytes(builder.Output())


def first_weight(model: Any) -> Any:
    """The weight of the first convolution."""
    graph = model.subgraphs[0]
    codes = [code.builtinCode for code in model.operatorCodes]
    conv = next(op for op in graph.operators if codes[op.opcodeIndex] == precision.CONVOLUTIONS[0])
    return graph.tensors[conv.inputs[1]]


def test_what_is_missing_is_named(cnn: Bundle, qcn: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ai_edge_litert", "ai_edge_litert.interpreter"):
        monkeypatch.setitem(sys.modules, name, None)
    code, said = qcn("export", cnn.folder, "--format", "litert")
    assert code == 3 and f"LiteRT is not installed: {INSTALL}" in " ".join(said.split())
    put(cnn, b"whatever it is")
    with pytest.raises(MissingError, match=f"LiteRT is not installed.*: {INSTALL}"):
        create("litert", cnn.folder / "model.tflite").open()
    code, said = qcn("doctor", cnn.folder)
    assert "cannot model.tflite: LiteRT is not installed" in " ".join(said.split()), said
    code, said = qcn("export", cnn.folder, "--format", "tflite")
    assert code == 2 and "LiteRT's model.tflite is --format litert" in " ".join(said.split()), said


@needed
def test_the_road_of_a_tflite(tiny: Bundle, qcn: Command) -> None:
    code, said = qcn("export", tiny.folder, "--format", "litert", "--set", "every_layer")
    assert code == 0 and "model.tflite" in said, said
    code, said = qcn("verify-parity", tiny.folder, "--backends", "litert", "--set", "bisect")
    assert code == 0 and "passed    litert: model.tflite (fp32)" in said, said
    bundle = Bundle.open(tiny.folder)
    artefact = bundle.find("model.tflite")
    assert "capsules1.pose" in artefact.facts["outputs"] and difference(bundle, artefact) == ""
    code, said = qcn("benchmark", tiny.folder, "--backends", "litert", "--batch", "2", "--duration", "0.01")
    assert code == 0 and "model.tflite" in said, said
    code, said = qcn("doctor", tiny.folder)
    assert code == 0 and "runs      model.tflite: by LiteRT" in said, said
    golden = bundle.golden()
    answer = product.load(bundle.folder, "litert").predict(golden.image[0].transpose(1, 2, 0))
    assert answer.label == golden.classes[golden.reference.logit[0].argmax()]


@needed
def test_images_and_answers_are_those_of_every_runner(tiny: Bundle, qcn: Command) -> None:
    assert qcn("export", tiny.folder, "--format", "litert", "--set", "every_layer")[0] == 0
    path, images = tiny.folder / "model.tflite", tiny.golden().input
    open_it = "import sys, pathlib; from qcn.export.backends.litert.runner import *; path = pathlib.Path(sys.argv[1]); "
    open_it += "LiteRtRunner(ModelFile(path, path.read_bytes()), Options()).open()"
    ended = subprocess.run([sys.executable, "-c", open_it, path], capture_output=True, text=True, check=True)
    assert not ended.stdout and not ended.stderr  # of XNNPACK
    with create("litert", path, threads=2) as runner:
        assert runner.name.startswith("litert 2") and runner.options.threads == 2
        found = {count: runner.infer(images[:count]) for count in (3, 1, 2)}
        assert {name: one.shape for name, one in found[2].items()} == {
            "logit": (2, 3),
            "pose": (2, 3, 3),
            **{value.name: (2, *value.shape) for route in tiny.program().routes[:-1] for value in route.outputs},
        }
        for name, values in found[3].items():
            np.testing.assert_allclose(found[2][name], values[:2], atol=1e-4, err_msg=name)
        with pytest.raises(UsageError, match=r"images are \[2, 1, 8, 16\], .* takes \['batch', 1, 16, 16\]"):
            runner.infer(images[:2, :, :8])
    with pytest.raises(UsageError, match="is not open"):
        runner.infer(images)
    assert qcn("export", tiny.folder, "--format", "litert", "--batch", "2")[0] == 0
    with create("litert", path) as runner, pytest.raises(UsageError, match=r"takes \[2, 1, 16, 16\]"):
        runner.infer(images[:1])


@needed
@pytest.mark.parametrize("mode", ["logistic", "unit"])
def test_every_form_of_routing(tiny: Bundle, mode: Any) -> None:
    """One iteration and three, and the authors' activation, against torch."""
    from qcn.export.backends.litert.runner import LiteRtRunner
    from qcn.export.backends.litert.writer import write
    from qcn.export.backends.model_file import ModelFile
    from qcn.export.backends.runner import Options
    from qcn.export.backends.torch.interpreter import Interpreter

    images = tiny.golden().input
    for iterations in (1, 3):
        program = tiny.program()
        operations = (
            replace(op, iterations=iterations, mode=mode) if isinstance(op, Route) else op for op in program.operations
        )
        program = replace(program, operations=tuple(operations))
        expected = Interpreter(program, kernels="reference")(torch.from_numpy(images))
        with LiteRtRunner(ModelFile(Path("model.tflite"), write(program)[0]), Options()) as runner:
            found = runner.infer(images)
        for name, values in zip(("logit", "pose"), expected, strict=True):
            np.testing.assert_allclose(found[name], values.detach().numpy(), rtol=1e-3, atol=1e-3, err_msg=name)


@needed
def test_a_planted_fault_and_another_program_are_found(cnn: Bundle) -> None:
    from qcn.export.backends.litert.writer import write

    program = cnn.program()
    assert write(program)[0] == write(program)[0]
    name = next(op.factors[0] for op in program.operations if isinstance(op, Product))
    wrong = replace(program, arrays={**program.arrays, name: program.arrays[name] * np.float32(1.01)})
    put(cnn, write(wrong)[0])
    (verdict,) = verify(cnn, ["litert"], {})
    assert verdict.status == "failed" and "logit is off by" in verdict.reasons[0], verdict.reasons
    with pytest.raises(CheckFailed, match="answers the golden images wrongly"):
        product.load(cnn.folder, "litert")
    assert "not the file that its program builds" in difference(cnn, cnn.find("model.tflite"))


@needed
def test_int8_is_the_programs_int8(low: Bundle, qcn: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = qcn("export", low.folder, "--format", "litert")
    assert code == 0 and "model.int8.tflite" in said, said
    bundle = Bundle.open(low.folder)
    artefact, program, golden = bundle.find("model.int8.tflite"), bundle.program(), bundle.golden()
    content = bundle.read(artefact)
    assert TFLITE.seen(content, program).precision == "int8" and difference(bundle, artefact) == ""
    (verdict,) = verify(bundle, ["litert"], {})
    assert verdict.status == "passed", verdict.reasons
    require_met(receipts(bundle, "litert"))
    precisions = {one.operation: one.ran for one in receipts(bundle, "litert") if one.asked == "int8"}
    assert precisions == {op.name: "int8" for op in program.operations if op.precision == "int8"}

    for without_xnnpack in (False, True):  # the integers are the same, so answers are but for the last digits
        found = interpreted(content, golden.input, without_xnnpack)
        np.testing.assert_allclose(found, golden.reference.logit, rtol=1e-4, atol=2e-4)

    integers = "qcn.export.backends.litert.integers.multiplies_integers"
    monkeypatch.setattr(integers, lambda: False)
    with pytest.raises(FellBack, match="computes int8 convolutions in floating point on this processor"):
        create("litert", low.folder / artefact.file).open()
    with pytest.raises(CheckFailed, match="should run in int8, but runs in fp32"):
        require_met(receipts(bundle, "litert"))


def interpreted(content: bytes, images: Array, without_xnnpack: bool) -> Array:
    """The logits by LiteRT's own interface."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    chosen = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES if without_xnnpack else OpResolverType.AUTO
    interpreter = Interpreter(model_content=content, experimental_op_resolver_type=chosen)
    run = interpreter.get_signature_runner()
    answers: Array = np.concatenate([run(image=images[i : i + 1])["logit"] for i in range(len(images))])
    return answers


@needed
@pytest.mark.slow
def test_a_run_proves_it_and_calibration_chooses_for_it(
    bundle: Bundle, run: Path, data_dir: Path, qcn: Command, tmp_path: Path
) -> None:
    assert qcn("export", bundle.folder, "--format", "litert")[0] == 0
    code, said = qcn("verify-parity", bundle.folder, "--backends", "litert", "--run", run, "--data-dir", data_dir)
    assert code == 0 and "it is what its program builds" in said, said
    out, report = tmp_path / "calibrated", tmp_path / "report"
    code, said = qcn(
        *("calibrate", bundle.folder, "--data-dir", data_dir, "--max-drop", 40, "--backend", "litert"),
        *("--set", "goal=size", "--out", out, "--set", f"report={report}"),
    )
    assert code == 0 and (out / "model.int8.tflite").is_file(), said
    assert "litert; times are the least of many runs" in (report / "search.json").read_text(encoding="utf-8")
    code, said = qcn("verify-parity", out, "--backends", "litert")
    assert code == 0 and "passed    litert: model.int8.tflite (int8)" in said, said


@needed
def test_int8_in_floats_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """`multiplies_integers` tells them apart: here its weights are floats."""
    from qcn.export.backends.litert import graph, integers

    whole = graph.LiteGraph.constant

    def in_floats(self: Any, name: str, array: Array, *scales: Any, **options: Any) -> Any:
        return whole(self, name, array.astype(np.float32) if array.dtype == np.int8 else array)

    assert integers.multiplies_integers()
    monkeypatch.setattr(graph.LiteGraph, "constant", in_floats)
    assert not integers.multiplies_integers.__wrapped__()


@needed
def test_what_is_not_made(tiny: Bundle, tmp_path: Path, qcn: Command) -> None:
    for options, due, says in (
        (("--precision", "fp16"), 3, "only made in fp32, not in fp16"),
        (("--routing", "fused"), 2, "--format litert has no fused routing"),
    ):
        code, said = qcn("export", tiny.folder, "--format", "litert", *options)
        assert code == due and says in " ".join(said.split()), said


@needed
def test_a_plan_of_capsule_layers_alone(tiny: Bundle, tmp_path: Path, qcn: Command) -> None:
    """Their votes are float32 here, which is not a fall-back."""
    program = tiny.program()
    half = planned(tiny, halved(program, program.routes[0].name), tmp_path / "half")
    code, said = qcn("export", half.folder, "--format", "litert")
    assert code == 0 and "model.fp16.tflite" in said, said
    (verdict,) = verify(Bundle.open(half.folder), ["litert"], {})
    assert verdict.status == "passed", verdict.reasons


@needed
def test_the_precision_is_read_from_the_file(cnn: Bundle) -> None:
    from ai_edge_litert.schema_py_generated import TensorType

    from qcn.export.backends.litert.writer import write

    program = cnn.program()
    content, _ = write(program)
    products = TFLITE.products(content)
    expected = [
        program.arrays[name].shape for op in program.operations if isinstance(op, Product) for name in op.factors
    ]
    assert products.weights == tuple(("float32", shape) for shape in expected) and products.types == {"float32"}
    assert TFLITE.seen(content, program).precision == "fp32"
    for type_, says in (
        ("FLOAT16", "convolutions and linear layers are"),
        ("INT8", "int8 too"),
        ("FLOAT64", "float64 too"),
    ):
        other = altered(content, lambda model, to=type_: setattr(first_weight(model), "type", getattr(TensorType, to)))
        found = TFLITE.seen(other, program).contradicts("fp32")
        assert found.startswith("declared fp32, but") and says in found, found
    two = altered(content, lambda model: model.subgraphs.append(model.subgraphs[0]))
    assert TFLITE.seen(two, program).why == "it has 2 graphs; only one is supported"


@needed
def test_hostile_files_end_in_words(cnn: Bundle) -> None:
    from qcn.export.backends.litert.writer import write

    content, _ = write(cnn.program())
    random = np.random.default_rng(0)
    for bad in (b"", b"TFL3" * 3, content[: len(content) // 2], content[:64]):
        with pytest.raises(UsageError, match="not a LiteRT model"):
            TFLITE.products(bad)
    graph = int.from_bytes(content[:4], "little")
    for _ in range(200):  # of the tables, which are at the file's start; either it is read, or refused in words
        bytes_ = bytearray(content)
        for place in random.integers(8, graph + 4000, 4):
            bytes_[place] = random.integers(256)
        try:
            TFLITE.products(bytes(bytes_))
        except UsageError:
            continue

    def far(model: Any) -> None:
        model.subgraphs[0].operators[0].inputs = [1 << 30, 1 << 30]

    for bad in (content[: len(content) // 2], altered(content, far)):
        put(cnn, bad)
        (candidate,) = candidates(cnn, ["litert"])
        with pytest.raises(UsageError, match=r"cannot load .*model\.tflite|ended"), candidate.runner(cnn) as runner:
            runner.infer(cnn.golden().input)
        (verdict,) = verify(Bundle.open(cnn.folder), ["litert"], {})
        assert verdict.status == "failed", verdict.reasons
