"""The precision of a file is read from the file: what it only declares is refused, and widens no tolerance."""

import json
import shutil
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from bundles import made_once, put_manifest
from command import Command
from graphs import BATCH, above_size, behind, graph, put_graph
from onnx import TensorProto, helper, numpy_helper
from styles import STYLES

from qcn import create
from qcn.errors import UsageError
from qcn.export.backends.candidates import candidates
from qcn.export.backends.format import format_of
from qcn.export.backends.onnx.build import build
from qcn.export.backends.onnx.precision import convolutions
from qcn.export.backends.precision import Seen
from qcn.export.backends.torch.torchscript import write_pt2, write_torchscript
from qcn.export.bundle import Bundle
from qcn.export.bundle.manifest import file_of
from qcn.export.pipeline import FROM_RUN
from qcn.export.program.lower import lower
from qcn.export.program.program import Program
from qcn.names import PRECISIONS
from qcn.verify.doctor import diagnose
from qcn.verify.parity.precision import judged_precision
from qcn.verify.parity.verify import verify

HALVES = ("fp16", "bf16")
ROUTING = {"onnx": "unrolled", "onnx-tensorrt": "tensorrt", "onnx-fused": "fused"}


def read(content: bytes, format: str, program: Program) -> Seen:
    return format_of(format).seen(content, program)


class Files(dict[tuple[str, str], Path]):
    """A file of each format in each precision, of one small network, by format and precision; made when asked for."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory

    def __missing__(self, key: tuple[str, str]) -> Path:
        self[key] = made_once(self._factory, ".".join(key), lambda path: self._make(path, *key))
        return self[key]

    def _make(self, path: Path, format_: str, precision: Any) -> None:
        program = lower(create("qcn-tiny", in_channels=3, classes=4), 24, 24)
        if write := {"torchscript": write_torchscript, "pt2": write_pt2}.get(format_):
            write(program, path, precision=precision, metadata={})
            return
        opset, at = 22 if precision == "bf16" else 17, program.at(precision, rest=precision)
        path.write_bytes(build(at, style=STYLES[ROUTING[format_]], opset=opset).SerializeToString())


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory)


KINDS = [
    pytest.param(format_, precision, marks=[pytest.mark.slow] * (format_ == "pt2"))
    for format_ in (*ROUTING, "torchscript", "pt2")
    for precision in PRECISIONS
]


@pytest.mark.parametrize(("format_", "precision"), KINDS)
def test_it_is_read_from_every_kind_of_file(
    files: Files, monkeypatch: pytest.MonkeyPatch, format_: Any, precision: str
) -> None:
    program = lower(create("qcn-tiny", in_channels=3, classes=4), 24, 24)
    content = files[format_, precision].read_bytes()
    for package in ("torch", "onnx"):
        monkeypatch.setitem(sys.modules, package, None)  # neither is needed
    reading = read(content, format_, program)
    assert (reading.precision, reading.why) == (precision, "")
    assert reading.contradicts(precision) == ""
    for other in set(PRECISIONS) - {precision}:
        assert reading.contradicts(other) == f"declared {other}, computes in {precision}"


def test_networks_of_other_kinds(tmp_path: Path) -> None:
    """Without capsules, and with other extractors."""
    for name, size in (("cnn", 32), ("qcn-unbranched", 28)):
        program = lower(create(name, in_channels=1, classes=5, **({"size": size} if name == "cnn" else {})), size, size)
        for precision in ("fp32", "fp16"):
            path = tmp_path / f"{name}.{precision}"
            path.write_bytes(build(program.at(precision, rest=precision)).SerializeToString())
            assert read(path.read_bytes(), "onnx", program).precision == precision
            write_torchscript(program, path, precision=precision, metadata={})
            assert read(path.read_bytes(), "torchscript", program).precision == precision


def test_an_fp32_graph_declared_bf16_is_refused_however_many_decisions_change(small: Bundle, qcn: Command) -> None:
    above_size(0)(small)  # wrong in every call
    put_graph(small, graph(small), "bf16")
    (small.folder / "model.onnx").unlink()
    record = json.loads((small.folder / "manifest.json").read_text(encoding="utf-8"))
    record["files"] = [one for one in record["files"] if one["file"] != "model.onnx"]
    put_manifest(small.folder, json.dumps(record))
    code, said = qcn("verify-parity", small.folder, "--backends", "onnxruntime")
    assert code == 1 and "declared bf16, computes in fp32" in said, said


@pytest.mark.parametrize("format_", ["torchscript", "pt2"])
def test_a_torch_file_declared_otherwise_is_refused(small: Bundle, files: Files, format_: Any) -> None:
    """Before it is opened: it is not run."""
    with small.adding(file_of(format_, "fp16"), format_, "fp16", FROM_RUN) as draft:
        shutil.copy(files[format_, "fp32"], draft.path)
    (candidate,) = candidates(small, [format_], trust=True)
    assert judged_precision(small, candidate).refused == "declared fp16, computes in fp32"
    (row,) = (row for row in diagnose(small.folder) if row.file == file_of(format_, "fp16"))
    assert row.state == "altered" and row.reason.endswith("declared fp16, computes in fp32")


def weights_cast(model: onnx.ModelProto) -> onnx.ModelProto:
    """Weights are stored in half precision, and everything is computed in float32."""
    nodes, kept = [], {one.name: one for one in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Conv":
            weight = kept[node.input[1]]
            half = numpy_helper.to_array(weight).astype(np.float16)
            model.graph.initializer.append(numpy_helper.from_array(half, f"{weight.name}.half"))
            nodes.append(helper.make_node("Cast", [f"{weight.name}.half"], [f"{node.name}.w"], to=TensorProto.FLOAT))
            node.input[1] = f"{node.name}.w"
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def dead_half(model: onnx.ModelProto, half: onnx.ModelProto) -> onnx.ModelProto:
    """An fp32 graph beside the nodes of an fp16 one that lead to no output."""
    whole = onnx.compose.merge_graphs(
        onnx.compose.add_prefix_graph(half.graph, "dead/"), model.graph, io_map=[], outputs=["logit", "pose"]
    )
    merged = helper.make_model(whole, opset_imports=model.opset_import)
    merged.ir_version = model.ir_version
    for node in merged.graph.node:
        node.input[:] = ["image" if name == "dead/image" else name for name in node.input]
    del merged.graph.input[0]
    return merged


def one_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """One convolution of an fp32 graph in half precision."""
    first = next(node for node in model.graph.node if node.op_type == "Conv")
    casts = []
    for place, name in enumerate(list(first.input)):
        casts.append(helper.make_node("Cast", [name], [f"{name}.half"], to=TensorProto.FLOAT16))
        first.input[place] = f"{name}.half"
    output = first.output[0]
    first.output[0] = f"{output}.half"
    back = helper.make_node("Cast", [f"{output}.half"], [output], to=TensorProto.FLOAT)
    place = list(model.graph.node).index(first)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:place], *casts, first, back, *nodes[place + 1 :]])
    return model


def test_graphs_that_pretend_to_be_half_precision_are_refused(small: Bundle, files: Files, tmp_path: Path) -> None:
    program, path = small.program(), tmp_path / "graph.onnx"

    def contradiction(model: onnx.ModelProto, declared: Any) -> str:
        path.write_bytes(model.SerializeToString())
        return read(path.read_bytes(), "onnx", program).contradicts(declared)

    assert "convolutions and linear layers are not in fp16" in contradiction(weights_cast(graph(small)), "fp16")
    half = onnx.load(files["onnx", "fp16"])
    assert contradiction(dead_half(graph(small), half), "fp16") == "declared fp16, computes in fp32"
    assert "declared fp32, but" in contradiction(one_half(graph(small)), "fp32")
    assert "convolutions and linear layers are not in fp16" in contradiction(one_half(graph(small)), "fp16")


def loop_inside(bundle: Bundle) -> None:
    """A graph whose types are not followed: it has a graph inside."""
    inner = helper.make_graph(
        [helper.make_node("Identity", ["right"], ["out"])],
        "inner",
        [],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
    )
    behind(
        "logit",
        helper.make_node("If", ["yes"], ["logit"], then_branch=inner, else_branch=inner),
        yes=np.array(True),
    )(bundle)


def test_what_cannot_be_read_is_held_to_the_tolerance_of_fp32(honest_folders: dict[str, Path], tmp_path: Path) -> None:
    """An fp16 graph that hides its types, and is as wrong as fp16 may be."""
    bundle = Bundle.open(shutil.copytree(honest_folders["fp16"], tmp_path / "half"))
    loop_inside(bundle)
    (verdict,) = verify(Bundle.open(bundle.folder), ["onnxruntime"], {})
    assert verdict.status == "failed" and verdict.outputs["logit"].share > 1
    assert any("held to fp32's tolerance: its precision cannot be read" in note for note in verdict.notes)


def test_files_that_are_none_are_not_read(tmp_path: Path, small: Bundle) -> None:
    program, path = small.program(), tmp_path / "file"
    whole = (small.folder / "model.onnx").read_bytes()
    for content in (b"", b"\xff" * 64, b"PK\x03\x04", whole[: len(whole) // 2], b"\x3a\xff\xff\xff\xff\x7f"):
        path.write_bytes(content)
        for format_ in ("onnx", "torchscript", "pt2"):
            reading = read(path.read_bytes(), format_, program)
            assert (
                not reading.readable and reading.precision is None and reading.why and not reading.contradicts("fp16")
            )


def test_a_pickle_that_would_run_something_is_only_looked_at(tmp_path: Path, small: Bundle) -> None:
    marker = tmp_path / "ran"
    evil = b"cos\nsystem\n(X" + len(f"touch {marker}").to_bytes(4, "little") + f"touch {marker}".encode() + b"tR."
    path = tmp_path / "model.ts"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("constants.pkl", "data.pkl"):
            archive.writestr(f"archive/{name}", evil)
    read(path.read_bytes(), "torchscript", small.program())
    assert not marker.exists()


@pytest.mark.parametrize(
    "odd",
    [
        b"\x80\x02)).",  # two tuples
        b"\x80\x02K\x05.",  # a number
        b"\x80\x02((K\x01K\x02tt.",  # a tuple of a tuple of numbers, which is no tensor
    ],
)
def test_constants_that_torchscript_does_not_write(tmp_path: Path, small: Bundle, odd: bytes) -> None:
    path = tmp_path / "model.ts"
    code = f"x = torch.conv2d(image, CONSTANTS.c{'9' * 5000}, None)"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {"constants.pkl": odd, "data.pkl": b"\x80\x02).", "code/a.py": code}.items():
            archive.writestr(f"archive/{name}", content)
    assert read(path.read_bytes(), "torchscript", small.program()).precision in (None, "fp32")


def test_archives_that_torch_does_not_write(tmp_path: Path, small: Bundle) -> None:
    damaged, double = tmp_path / "damaged.ts", tmp_path / "double.pt2"
    with zipfile.ZipFile(damaged, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/constants.pkl", bytes(10000))
    whole = bytearray(damaged.read_bytes())
    start = whole.index(b"constants.pkl") + len("constants.pkl")
    whole[start : start + 4] = b"\xff" * 4  # the first of what was deflated
    damaged.write_bytes(whole)
    with zipfile.ZipFile(double, "w") as archive:
        for name in ("one", "two"):
            archive.writestr(f"archive/models/{name}.json", "{}")
    assert "constants.pkl cannot be read" in read(damaged.read_bytes(), "torchscript", small.program()).why
    assert "it has 2 models" in read(double.read_bytes(), "pt2", small.program()).why


def calling(path: Path, calls: dict[str, str]) -> Path:
    """A graph that calls the function f0; each of the functions calls another one."""
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    call = helper.make_node("f0", ["x"], ["y"], domain="d")
    model = helper.make_model(helper.make_graph([call], "g", [image], [image]), opset_imports=opset)
    model.graph.output[0].name = "y"
    for name, other in calls.items():
        node = helper.make_node(other, ["x"], ["y"], domain="d")
        model.functions.append(helper.make_function("d", name, ["x"], ["y"], [node], opset))
    path.write_bytes(model.SerializeToString())
    return path


def test_functions_that_call_each_other_for_ever_end(tmp_path: Path, small: Bundle) -> None:
    assert (
        "calls itself" in read(calling(tmp_path / "loop.onnx", {"f0": "f0"}).read_bytes(), "onnx", small.program()).why
    )
    chain = {f"f{number}": f"f{number + 1}" for number in range(2000)}
    assert "more than 64 deep" in read(calling(tmp_path / "deep.onnx", chain).read_bytes(), "onnx", small.program()).why


def test_a_graph_that_is_none_gives_no_convolutions(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\xff" * 64)
    with pytest.raises(UsageError, match="it is not an ONNX graph"):
        convolutions((tmp_path / "model.onnx").read_bytes())


def layers_text(precision: str, graph_file: Path) -> str:
    """What the engine inspector says of an engine in which all convolutions are in this type."""
    layers = [
        {
            "Name": name,
            "LayerType": "Convolution",
            "Inputs": [{"Format/Datatype": precision}],
            "Outputs": [{"Format/Datatype": precision}],
            "Weights": {"Type": precision},
        }
        for name in convolutions(graph_file.read_bytes())
    ]
    return json.dumps({"Layers": layers})


def test_an_engine_is_read_by_tensorrts_inspector(small: Bundle, files: Files) -> None:
    with small.adding("engines/one.engine", "trt", "fp16", FROM_RUN, batch=BATCH) as draft:
        draft.path.write_bytes(b"plan")
        draft.facts |= {"flavour": "tensorrt", "precision": "fp16"}
    (candidate,) = candidates(small, ["tensorrt"])
    path = files["onnx-tensorrt", "fp16"]

    def judged(text: str) -> tuple[str, str, str]:
        found = judged_precision(small, candidate, SimpleNamespace(inspected=lambda: text))
        return found.precision, found.refused, found.note

    unread = "held to fp32's tolerance: its precision cannot be read"
    assert judged(layers_text("Half", path))[2].startswith(unread)  # no graph that says which layers are convolutions
    with small.adding(file_of("onnx-tensorrt", "fp16"), "onnx-tensorrt", "fp16", FROM_RUN, batch=BATCH) as draft:
        shutil.copy(path, draft.path)
    types = convolutions(path.read_bytes())
    assert "float16" in types.values() and "float32" in types.values()  # the network's, and routing's
    exact = json.loads(layers_text("Half", path))
    for layer in exact["Layers"]:
        kind = {"float16": "Half", "float32": "Float"}[types[layer["Name"]]]
        layer |= {
            "Inputs": [{"Format/Datatype": kind}],
            "Outputs": [{"Format/Datatype": kind}],
            "Weights": {"Type": kind},
        }
    assert judged(json.dumps(exact)) == ("fp16", "", "")
    assert "declared fp16, but" in judged(layers_text("Float", path))[1]
    assert judged("")[0] == "fp32" and judged("")[2].startswith(unread)
