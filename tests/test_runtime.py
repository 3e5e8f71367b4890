"""`qcn.load`: answers without torch, equal in every backend, from files and arrays of any size."""

import inspect
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import put_manifest
from PIL import Image

import qcn
from qcn.errors import CheckFailed, MissingError, UsageError
from qcn.export.backends import BACKENDS
from qcn.export.bundle import MANIFEST, Bundle
from qcn.export.pipeline import export
from qcn.export.request import ExportRequest
from qcn.networks.confidence import Confidence
from qcn.runtime import Model
from qcn.runtime.engines import RunnerEngine

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
RNG = np.random.default_rng(0)


@pytest.fixture
def folder(bundle: Bundle, data_dir: Path) -> Path:
    """A bundle with an ONNX graph in it."""
    export(bundle.folder, None, ExportRequest(formats=("onnx",)), data_dir)
    return bundle.folder


@pytest.fixture
def model(bundle: Bundle) -> Model:
    return qcn.load(bundle.folder, "native")


def test_golden_images_get_their_golden_answers(bundle: Bundle, model: Model) -> None:
    golden = bundle.golden()
    rows = [row for row, name in enumerate(golden.rows) if name not in golden.inputs_only]
    answers = model.predict([golden.image[row].transpose(1, 2, 0) for row in rows])
    allowed = bundle.find("weights.safetensors").tolerance or {}
    for row, answer in zip(rows, answers, strict=True):
        assert np.abs(answer.logit - golden.reference.logit[row]).max() <= allowed["logit"]
        assert answer.pose is not None
        assert np.abs(answer.pose - golden.reference.pose[row]).max() <= allowed["pose"]
        assert answer.label == model.classes[int(answer.logit.argmax())]


def test_every_backend_gives_the_same_answers(folder: Path) -> None:
    pictures = [
        RNG.integers(0, 256, shape, dtype=np.uint8) for shape in ((28, 28), (480, 640, 3), (31, 17, 4), (5, 90, 1))
    ]
    native, onnx = (qcn.load(folder, backend).predict(pictures) for backend in ("native", "onnxruntime"))
    for one, other in zip(native, onnx, strict=True):
        assert np.allclose(one.logit, other.logit, atol=1e-5)
        assert one.pose is not None and other.pose is not None and np.allclose(one.pose, other.pose, atol=1e-4)


def test_a_probability_follows_from_the_temperature(bundle: Bundle) -> None:
    pixels = RNG.integers(0, 256, (28, 28), dtype=np.uint8)
    plain = qcn.load(bundle.folder, "native").predict(pixels)
    assert plain.probability == pytest.approx(float(plain.probabilities.max()))
    assert float(plain.probabilities.sum()) == pytest.approx(1)
    assert plain.top(3)[0] == (plain.label, plain.probability) and len(plain.top(3)) == 3
    assert plain.top(0) == plain.top(-1) == [] and len(plain.top(99)) == len(plain.classes)
    manifest = replace(bundle.manifest, confidence=Confidence(100.0, 0.1))
    hot = Model.of_bundle(Bundle(bundle.folder, manifest), qcn.load(bundle.folder, "native")._engine).predict(pixels)
    assert hot.probability < plain.probability and hot.label == plain.label


def test_threads_share_a_model(model: Model) -> None:
    pictures = [RNG.integers(0, 256, (28 + i, 28, 1), dtype=np.uint8) for i in range(8)]
    expected = [answer.logit for answer in model.predict(pictures)]

    def right(number: int) -> bool:
        return all(np.array_equal(model.predict(pictures[number]).logit, expected[number]) for _ in range(10))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(right, range(8)))


def test_nan_is_no_answer(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = np.full((1, len(model.classes)), np.nan, np.float32), None
    monkeypatch.setattr(model._engine, "classify", lambda pixels: broken)
    with pytest.raises(CheckFailed, match="returned NaN or an infinite number, not an answer"):
        model.predict(np.zeros((28, 28), np.uint8))


def test_what_is_no_picture_is_refused(model: Model, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="channels"):  # what fits no network of this kind
        model.predict(np.zeros((4, 4, 2), np.uint8))
    with pytest.raises(UsageError, match="batch must be 1 or more, not 0"):
        list(model.stream([np.zeros((8, 8), np.uint8)], batch=0))
    with pytest.raises(UsageError, match="there is no file"):
        model.predict(tmp_path / "none.png")


def test_a_bundle_that_cannot_run_says_why(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a bundle"):
        qcn.load(tmp_path)
    with pytest.raises(UsageError, match="no backend named 'fast'"):
        qcn.load(folder, "fast")  # type: ignore[arg-type]
    with pytest.raises((MissingError, UsageError), match=r"TensorRT|tensorrt|engine"):
        qcn.load(folder, "tensorrt")


def test_no_other_precision_takes_the_place_of_the_one_asked_for(folder: Path, data_dir: Path) -> None:
    for backend in ("auto", "onnxruntime", "openvino", "web"):
        with pytest.raises(MissingError, match=r"file in fp16; make one: `qcn export .* --precision fp16`"):
            qcn.load(folder, backend, precision="fp16")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="no precision named 'half'"):
            qcn.load(folder, backend, precision="half")  # type: ignore[arg-type]
    export(folder, None, ExportRequest(formats=("onnx",), precision="fp16"), data_dir)
    for backend in ("auto", "onnxruntime"):
        engine = qcn.load(folder, backend, precision="fp16")._engine  # type: ignore[arg-type]
        assert isinstance(engine, RunnerEngine) and engine._artefact.file == "model.fp16.onnx"


def test_no_number_is_cut_to_what_c_can_hold(folder: Path, model: Model) -> None:
    for backend in ("auto", "onnxruntime"):
        for threads in (-1, 2**31, 2**32 + 1, "a", None, 1.5):
            with pytest.raises(UsageError, match=f"threads must be from 0 to 1024, not {threads}"):
                qcn.load(folder, backend, threads=threads)  # type: ignore[arg-type]
    for shape in ((2**32 + 28, 28), (28, 2**31), (28, 2**32 + 28, 3)):
        with pytest.raises(UsageError, match=f"at most 16384×16384 pixels, not {shape[1]}×{shape[0]}"):
            model.predict(np.broadcast_to(np.uint8(7), shape))


def test_without_libqcn_onnx_runtime_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QCN_LIBRARY", "/nowhere/libqcn.so")
    assert "onnxruntime" in qcn.load(folder).backend
    with pytest.raises(MissingError, match="libqcn"):
        qcn.load(folder, "native")


def test_an_onnx_graph_with_other_answers_is_refused(folder: Path) -> None:
    import onnx
    from onnx import numpy_helper

    bundle = Bundle.open(folder)
    graph = onnx.load(folder / "model.onnx")
    weight = max(graph.graph.initializer, key=lambda one: int(np.prod(one.dims)))
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1.1), weight.name))
    artefact = bundle.find("model.onnx")
    with bundle.adding("model.onnx", "onnx", "fp32", artefact.rebuild, batch=artefact.batch) as draft:
        onnx.save(graph, draft.path)
    with pytest.raises(CheckFailed, match="answers the golden images wrongly"):
        qcn.load(folder, "onnxruntime")


@pytest.mark.parametrize("backend", ["auto", "native", "onnxruntime", "openvino", "web"])
def test_a_manifest_cannot_allow_wrong_answers(bundle: Bundle, data_dir: Path, backend: str) -> None:
    """What is allowed is computed from the golden answers."""
    if backend not in ("auto", "native"):
        try:
            export(bundle.folder, None, ExportRequest(formats=BACKENDS[backend].formats[:1]), data_dir)
        except MissingError as error:
            pytest.skip(f"{error}")
    record = json.loads((bundle.folder / MANIFEST).read_text(encoding="utf-8"))
    for file in record["files"]:
        if file["tolerance"]:
            file["tolerance"] = dict.fromkeys(file["tolerance"], 1e30)
    put_manifest(bundle.folder, json.dumps(record))
    with pytest.raises(UsageError, match=r"has other tolerances in manifest\.json"):
        qcn.load(bundle.folder, backend)  # type: ignore[arg-type]


def test_the_examples_of_the_documentation_run(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(bundle.folder, tmp_path / "runs/export/my-toys")
    (tmp_path / "holiday").mkdir()
    for name in ("photo.jpg", "a.jpg", "b.png", "holiday/1.jpg", "holiday/2.jpg"):
        Image.fromarray(RNG.integers(0, 256, (50, 40, 3), dtype=np.uint8)).save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    page, names = PAGE.read_text(encoding="utf-8"), dict[str, Any]()
    blocks = [one for one in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "qcn.load" in one or "model" in one]
    assert len(blocks) == 2  # what trains is in test_api
    for block in blocks:
        exec(block, names)
    printed = capsys.readouterr().out.split()
    assert printed[0] in bundle.manifest.classes and 0 < float(printed[1]) <= 1
    assert sorted(printed[2:]) == sorted(names["model"].predict(f"holiday/{number}.jpg").label for number in (1, 2))
    assert len(names["answers"]) == 2


def test_what_the_documentation_names_is_there(model: Model) -> None:
    page = PAGE.read_text(encoding="utf-8")
    names = {"model": model, "answer": model.predict(np.zeros((28, 28), np.uint8))}
    found = {said: eval(said, names) for said in re.findall(r"`((?:answer|model)\.[^`]+)`", page)}
    assert found["answer.logit"].dtype == found["answer.pose"].dtype == np.float32
    assert (found["answer.logit"].shape, found["answer.pose"].shape) == ((10,), (10, 3))
    assert found["answer.top(3)"][0] == (found["answer.label"], found["answer.probability"])
    assert found["answer.label"] in found["model.classes"] and {"model.name", "model.backend"} <= set(found)
    (sentence,) = re.findall(r"Other\s+arguments: (`precision`.*?) \(", page, re.DOTALL)
    arguments = list(inspect.signature(qcn.load).parameters)
    assert arguments == ["bundle", "backend", *re.findall(r"`(\w+)`", sentence)]
