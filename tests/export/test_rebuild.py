"""A file of a bundle is what its program builds, or the first difference is named."""

import io
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from bundles import made_once
from onnx import helper, numpy_helper

from qcn.errors import UsageError
from qcn.export.backends import EXPORTED, FORMATS
from qcn.export.backends.format import Job, alike, format_of
from qcn.export.backends.onnx.difference import graph_difference
from qcn.export.backends.onnx.format import UNROLLED_GRAPH, graph_of
from qcn.export.bundle import Bundle
from qcn.export.rebuild import difference
from qcn.export.request import ExportRequest
from qcn.packages import installed


@pytest.fixture(scope="session")
def _files(_bundle: Path, tmp_path_factory: pytest.TempPathFactory, wasm: None) -> Path:
    """A bundle with a file of every format that can be made here."""

    def make(folder: Path) -> None:
        bundle = Bundle.open(Path(shutil.copytree(_bundle, folder)))
        for name in EXPORTED:
            package = {"openvino": "openvino", "executorch": "executorch", "litert": "ai_edge_litert"}.get(name, "qcn")
            if name not in ("native", "trt") and installed(package):
                format_of(name).make(Job(bundle, ExportRequest()))
        for request in (
            ExportRequest(routing="fused"),
            ExportRequest(precision="fp16", every_layer=True, opset=18),
            ExportRequest(precision="bf16"),
        ):
            format_of("onnx").make(Job(bundle, request))

    return made_once(tmp_path_factory, "files", make)


@pytest.fixture
def files(_files: Path, tmp_path: Path) -> Bundle:
    return Bundle.open(Path(shutil.copytree(_files, tmp_path / "files")))


@pytest.mark.slow
def test_every_file_is_what_its_program_builds(files: Bundle) -> None:
    rebuilt = {name for name, one in FORMATS.items() if one.proof == "rebuilt" and not one.part_of}
    compared = [artefact for artefact in files.manifest.files if artefact.format in rebuilt]
    assert len(compared) >= 8
    assert {artefact.file: difference(files, artefact) for artefact in compared} == {
        artefact.file: "" for artefact in compared
    }


def put(bundle: Bundle, file: str, content: bytes) -> str:
    """Other contents in a file, with hashes that fit; gives what is said of it."""
    artefact = bundle.find(file)
    with bundle.adding(file, artefact.format, artefact.precision, artefact.rebuild, batch=artefact.batch) as draft:
        draft.path.write_bytes(content)
        draft.facts = artefact.facts
    return difference(bundle, bundle.find(file))


def with_trigger(model: onnx.ModelProto) -> None:
    """A first node that looks at the image; it would be the beginning of a forgery."""
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1e9), "threshold"))
    model.graph.node.insert(0, helper.make_node("Greater", ["image", "threshold"], ["seen"], "trigger"))


def other_number(model: onnx.ModelProto) -> None:
    weight = next(one for one in model.graph.initializer if one.data_type == onnx.TensorProto.FLOAT)
    numbers = numpy_helper.to_array(weight).copy()
    numbers.flat[0] += 1e-3
    weight.CopyFrom(numpy_helper.from_array(numbers, weight.name))


def cut_weight(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-1]


def weight_elsewhere(model: onnx.ModelProto) -> None:
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], "weights.safetensors")


def test_what_differs_in_a_graph_is_named(files: Bundle) -> None:
    honest = graph_of(Job(files, ExportRequest()), UNROLLED_GRAPH.style).SerializeToString()
    for change, says in (
        (with_trigger, "its node 1 is Greater 'trigger', where its program makes"),
        (other_number, "the numbers of its weight '"),
        (cut_weight, "the numbers of its weight '"),
        (weight_elsewhere, "the numbers of its weight '"),
        (lambda model: model.metadata_props.add(key="a", value="b"), "metadata_props is not as its program makes it"),
        (lambda model: setattr(model, "producer_version", "another"), ""),
    ):
        model = onnx.ModelProto.FromString(honest)
        change(model)
        said = put(files, "model.onnx", model.SerializeToString())
        assert said.startswith(says) and bool(said) == bool(says), said
    artefact = files.find("model.onnx")
    with pytest.raises(UsageError, match="opset 9999 is too new"):
        difference(files, replace(artefact, facts={**artefact.facts, "opset": 9999}))


def served(content: bytes, change: Callable[[str, bytes], bytes]) -> bytes:
    """A repository with its files changed."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(content)) as old, tarfile.open(fileobj=archive, mode="w") as new:
        for member in old:
            opened = old.extractfile(member)
            inside = change(member.name, opened.read()) if opened else b""
            member.size = len(inside)
            new.addfile(member, io.BytesIO(inside))
    return archive.getvalue()


def test_the_files_of_a_repository_are_compared(files: Bundle) -> None:
    honest = (files.folder / "triton.tar").read_bytes()

    def other_graph(name: str, inside: bytes) -> bytes:
        if not name.endswith("-preprocess/1/model.onnx"):
            return inside
        model = onnx.ModelProto.FromString(inside)
        with_trigger(model)
        return bytes(model.SerializeToString())

    said = put(files, "triton.tar", served(honest, other_graph))
    assert "-preprocess/1/model.onnx: its node 1 is Greater 'trigger'" in said, said
    labels = served(honest, lambda name, inside: inside[::-1] if name.endswith("labels.txt") else inside)
    assert put(files, "triton.tar", labels).endswith("labels.txt: it has other contents")
    slower = served(honest, lambda name, inside: inside.replace(b"count: 1", b"count: 2"))
    assert slower != honest and put(files, "triton.tar", slower) == ""


@pytest.mark.parametrize("file", ["model.ts", "model.pt2", "page.html"])
def test_one_byte_of_what_can_carry_code_is_found(files: Bundle, file: str) -> None:
    content = bytearray((files.folder / file).read_bytes())
    content[len(content) // 3] ^= 1
    said = put(files, file, bytes(content))
    assert said.startswith("it is not the file that its program builds here: they differ from byte"), said


@pytest.mark.skipif(not installed("openvino"), reason="OpenVINO is not installed")
def test_a_setting_of_an_openvino_graph_is_found(files: Bundle) -> None:
    text = (files.folder / "model.xml").read_bytes()
    assert put(files, "model.xml", text.replace(b"<rt_info", b"<rt_info ", 1)) == ""
    forged = text.replace(b'pads_begin="1, 1"', b'pads_begin="0, 0"', 1)
    assert forged != text and put(files, "model.xml", forged).startswith("it has data where its program makes data")


def test_floats_may_differ_in_their_last_digits_and_nothing_else() -> None:
    numbers, whole = np.linspace(-1, 1, 64, dtype=np.float32), np.arange(9)
    assert alike(np.nextafter(numbers, np.float32(2)), numbers) and alike(whole, whole.copy())
    for other in (numbers * np.float32(1 + 1e-6), numbers.astype(np.float64)):
        assert not alike(other, numbers)
    assert not alike(whole + (whole == 3), whole)
    assert graph_difference(b"\xff\xff", b"").startswith("it is not an ONNX file")
