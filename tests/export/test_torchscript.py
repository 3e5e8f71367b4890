"""TorchScript and pt2: the trained network's answers at any batch size, from a file that needs no `qcn`."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundles import made_once, trained_network
from test_onnx import Answers, assert_agree, tolerances
from torch import Tensor

from qcn.errors import BuildError, UsageError
from qcn.export.backends.torch.torchscript import write_pt2, write_torchscript
from qcn.export.program import reference
from qcn.export.program.lower import lower
from qcn.export.program.program import Program, Route
from qcn.networks.model import QCN
from qcn.train.checkpoint import load_network

WRITERS: dict[str, Callable[..., dict[str, Any]]] = {"ts": write_torchscript, "pt2": write_pt2}

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.load. is deprecated:DeprecationWarning")
every_format = pytest.mark.parametrize("ending", WRITERS)
# pt2 takes ten times as long to write.
pt2_slow = pytest.mark.parametrize("ending", ["ts", pytest.param("pt2", marks=pytest.mark.slow)])
HALVES = [("fp16", torch.float16), pytest.param("bf16", torch.bfloat16, marks=pytest.mark.slow)]


def images(program: Program, batch: int = 6) -> Tensor:
    """Noise, and one image of zeros."""
    out = torch.randn(batch, *program.input.shape, generator=torch.Generator().manual_seed(0))
    out[-1] = 0
    return out


def answers(trained: QCN, image: Tensor) -> Answers:
    """All outputs of a trained network in the precision of `image`, by name."""
    evaluation = reference.answers(trained, image)
    layers = (f"{layer}.{of}" for layer in evaluation.layers for of in ("pose", "activation"))
    return {name: evaluation.arrays[name] for name in ("logit", "pose", *layers)}


def run_model(path: Path, image: Tensor, names: list[str]) -> Answers:
    with torch.no_grad():
        out = load_model(path)(image)
    assert isinstance(out, tuple)
    return {name: tensor.numpy() for name, tensor in zip(names, out, strict=True)}


def load_model(path: Path) -> Any:
    return torch.jit.load(path) if path.suffix == ".ts" else torch.export.load(path).module()


@pytest.fixture(scope="module")
def trained(run: Path) -> QCN:
    network, _ = load_network(run)
    assert isinstance(network, QCN)
    return network


@pytest.fixture(scope="module")
def written(program: Program, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The program in both formats."""

    def make(folder: Path) -> None:
        folder.mkdir()
        for ending, write in WRITERS.items():
            write(program, folder / f"model.{ending}", metadata={"name": "a name"})

    folder = made_once(tmp_path_factory, "written", make)
    return {ending: folder / f"model.{ending}" for ending in WRITERS}


@pytest.mark.slow
def test_nothing_in_a_pt2_file_is_unpickled(written: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.export.load would unpickle sample inputs, and any weight or constant that says so: there are none."""
    with zipfile.ZipFile(written["pt2"]) as file:
        whole = {name.partition("/")[2]: file.read(name) for name in file.namelist()}
    assert whole["data/sample_inputs/model.pt"] == b""
    for config in ("weights/model_weights_config.json", "constants/model_constants_config.json"):
        assert '"use_pickle": true' not in whole[f"data/{config}"].decode()
    assert not [name for name, content in whole.items() if b"PK\x03\x04" in content[:4]]  # what torch.save writes

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr("pickle.loads", refuse)
    assert torch.export.load(written["pt2"]).example_inputs is None


@every_format
@pytest.mark.parametrize("batch", [1, pytest.param(64, marks=pytest.mark.slow), 3])
def test_any_batch_is_answered_as_the_trained_network_does(
    trained: QCN, program: Program, written: dict[str, Path], ending: str, batch: int
) -> None:
    image = images(program, batch)
    exact = answers(trained, image.double())
    tolerance = tolerances(exact, answers(trained, image))
    found = run_model(written[ending], image, ["logit", "pose"])
    assert_agree(found, exact, tolerance)


@pt2_slow
@pytest.mark.parametrize("name", ["qcn-tiny", pytest.param("qcn-unbranched", marks=pytest.mark.slow)])
def test_every_layer_in_order_in_the_other_shapes_of_the_network(name: str, ending: str, tmp_path: Path) -> None:
    trained = trained_network(name, 2, 5, 30, 28, mode="unit", iterations=3)
    assert isinstance(trained, QCN)
    program = lower(trained, 30, 28)
    path = tmp_path / f"model.{ending}"
    facts = WRITERS[ending](program, path, every_layer=True, metadata={})
    image = images(program, 3)
    exact = answers(trained, image.double())
    found = run_model(path, image, list(facts["outputs"]))
    assert found.keys() == exact.keys()
    assert {name: ["batch", *x.shape[1:]] for name, x in found.items()} == facts["outputs"]
    assert_agree(found, exact, tolerances(exact, answers(trained, image)))


@pt2_slow
@pytest.mark.parametrize(("precision", "dtype"), HALVES)
def test_half_precision_is_for_the_convolutions_alone(
    trained: QCN, program: Program, written: dict[str, Path], tmp_path: Path, ending: str, precision: str, dtype: Any
) -> None:
    path = tmp_path / f"model.{ending}"
    facts = WRITERS[ending](program, path, precision=precision, every_layer=True, metadata={})
    assert (facts["convolutions"], facts["routing"]) == (str(dtype).removeprefix("torch."), "float32")
    convolutions = {name for op in program.operations if not isinstance(op, Route) for name in op.arrays}
    saved = sum(program.arrays[name].nbytes for name in convolutions) / 2
    assert written[ending].stat().st_size - path.stat().st_size > 0.8 * saved  # every layer costs a little

    image = images(program)
    exact = answers(trained, image.double())
    with torch.autocast("cpu", dtype=dtype):  # what training does for such a precision
        half = answers(trained, image)
    found = run_model(path, image, list(facts["outputs"]))
    assert_agree(found, exact, tolerances(exact, half, times=4))
    single = tolerances(exact, answers(trained, image))
    with pytest.raises(AssertionError):
        assert_agree(found, exact, single)


@every_format
def test_weights_too_large_for_half_precision_are_refused(program: Program, tmp_path: Path, ending: str) -> None:
    name = "pose.0.conv1.weight"
    large = replace(program, arrays={**program.arrays, name: program.arrays[name] + np.float32(1e5)})
    with pytest.raises(BuildError, match=rf"'{name}' does not fit fp16: its largest is 1000\d\d"):
        WRITERS[ending](large, tmp_path / "model", precision="fp16", metadata={})
    with pytest.raises(UsageError, match="no precision named 'fp61'; did you mean 'fp16'"):
        WRITERS[ending](program, tmp_path / "model", precision="fp61", metadata={})
    assert not list(tmp_path.iterdir())


WITHOUT_QCN = """
import json, sys
sys.modules["qcn"] = None
import torch
path, names = sys.argv[1], {"metadata.json": ""}
if path.endswith(".ts"):
    model = torch.jit.load(path, _extra_files=names)
else:
    model = torch.export.load(path, extra_files=names).module()
metadata = json.loads(names["metadata.json"])
activation, pose = model(torch.zeros(metadata["inputs"]["image"][1:])[None])
print(json.dumps({"metadata": metadata, "logit": activation.tolist()}))
"""


@pt2_slow
def test_it_runs_where_there_is_no_qcn_and_says_what_it_is(written: dict[str, Path], ending: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_QCN, str(written[ending])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    metadata = report["metadata"]
    assert (metadata["name"], metadata["precision"]) == ("a name", "fp32")
    assert list(metadata["outputs"]) == ["logit", "pose"]
    zeros = torch.zeros(1, *metadata["inputs"]["image"][1:])
    found = run_model(written[ending], zeros, list(metadata["outputs"]))
    np.testing.assert_allclose(report["logit"], found["logit"], rtol=1e-5, atol=1e-6)


def test_torchscript_is_one_frozen_graph_in_true_single_precision(written: dict[str, Path]) -> None:
    model = torch.jit.load(written["ts"])
    assert not model.state_dict()
    assert not list(model.children())
    kinds = {node.kind() for node in model.graph.nodes()}
    assert not kinds & {"prim::GetAttr", "prim::CallMethod", "prim::CallFunction", "prim::PythonOp"}
    assert len(model.graph.findAllNodes("prim::Loop")) == 3  # over the children, in the second iteration of each layer
    convolutions = model.graph.findAllNodes("aten::_convolution")
    # Of blocks, of projections, three per first M-step, two in the class layer.
    assert len(convolutions) == 3 * 3 + 2 + 3 * 3 - 1
    assert not any(list(node.inputs())[-1].toIValue() for node in convolutions)  # allow_tf32


@every_format
@pytest.mark.parametrize("shape", [(1, 1, 40, 40), (1, 3, 28, 28), (1, 28, 28)])
def test_images_of_another_size_are_refused(written: dict[str, Path], ending: str, shape: tuple[int, ...]) -> None:
    message = r"takes images \[B, 1, 28, 28\], not" if ending == "ts" else r"input at \*args"
    with pytest.raises((torch.jit.Error, RuntimeError), match=message):
        load_model(written[ending])(torch.zeros(shape))


def test_what_tracing_would_freeze_is_an_error(program: Program, tmp_path: Path, monkeypatch: Any) -> None:
    def forward(_self: Any, image: Tensor) -> tuple[Tensor, ...]:
        return (image * float(image.sum()), image)

    monkeypatch.setattr("qcn.export.backends.torch.interpreter.Interpreter.forward", forward)
    with pytest.raises(SystemError) as caught:  # the tracer warns from C++, where the error comes out as this
        write_torchscript(program, tmp_path / "model.ts", metadata={})
    assert isinstance(caught.value.__cause__, torch.jit.TracerWarning)
    assert not list(tmp_path.iterdir())
