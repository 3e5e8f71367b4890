"""Depthwise convolutions, ReLU6 and sums of maps: in graphs and engines, in integers and floats."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from fake_tensorrt import fake
from onnxruntime import InferenceSession
from styles import STYLES
from test_quantise import by_definition
from torch import nn

from qcn import create
from qcn.calibrate.assignments import with_corrected_bias
from qcn.errors import UsageError
from qcn.export import targets
from qcn.export.backends.onnx.build import FUSED, build
from qcn.export.backends.tensorrt.build import BuildRequest, TensorRT
from qcn.export.backends.tensorrt.build import build as build_engine
from qcn.export.backends.tensorrt.find import find as find_tensorrt
from qcn.export.backends.tensorrt.layers import STYLE
from qcn.export.backends.torch.interpreter import Interpreter
from qcn.export.bundle.manifest import Batch
from qcn.export.program.lower import CLASSES, IMAGE, ProgramBuilder, lower
from qcn.export.program.program import Array, Convolution, Program
from qcn.export.program.quantise import quantised


def conv(channels: int, out: int, kernel: int, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(channels, out, kernel, padding=kernel // 2, **options)


@pytest.fixture(scope="module")
def block() -> Program:
    """An inverted residual block, of which ReLU6 cuts off some, and a classifier."""
    torch.manual_seed(0)
    build = ProgramBuilder(3, 11, 11)
    stem = build.convolution("stem", IMAGE, conv(3, 8, 3, stride=2), ending="relu6")
    x = build.convolution("expand", stem, conv(8, 24, 1), ending="relu6")
    x = build.convolution("depthwise", x, conv(24, 24, 5, groups=24), ending="relu6")
    x = build.sum("sum", stem, build.convolution("project", x, conv(24, 8, 1)))
    x = build.convolution("halved", x, conv(8, 8, 3, stride=2, groups=8), ending="relu6")
    x = build.linear(CLASSES, build.pool("mean", x, "average", 3, 3), nn.Linear(8, 4), "none")
    program = build.program(logit=(x, (4,)))
    return replace(program, arrays={name: 4 * array for name, array in program.arrays.items()})


@pytest.fixture(scope="module")
def image() -> Array:
    return np.random.default_rng(0).normal(size=(3, 3, 11, 11)).astype(np.float32)


def in_integers(program: Program, image: Array) -> Program:
    """Every convolution in int8, by the largest values on this image."""
    values = Interpreter(program).values(torch.from_numpy(image))
    for op in program.operations:
        if isinstance(op, Convolution):
            program = quantised(program, op.name, [float(values[name].detach().abs().max()) / 127 for name in op.reads])
    return program


def test_integers_are_those_of_the_definition(block: Program, image: Array) -> None:
    program = in_integers(block, image)
    with torch.inference_mode():
        values = Interpreter(program).values(torch.from_numpy(image))
        exact = Interpreter(program).double().values(torch.from_numpy(image).double())
    for op in program.operations:
        if isinstance(op, Convolution):
            due = by_definition(program, op, [values[name].numpy() for name in op.reads])
            assert np.array_equal(values[op.name], due.clip(0, 6) if op.ending == "relu6" else due), op.name
            np.testing.assert_allclose(exact[op.name], values[op.name], atol=1e-5)
    assert (values["depthwise"] == 6).any() and (values["depthwise"] == 0).any()
    whole = Interpreter(block)(torch.from_numpy(image))[0].detach().numpy()
    assert 0 < abs(values[CLASSES].numpy() - whole).max() < 0.05 * abs(whole).max()


@pytest.mark.parametrize("style", ["unrolled", "tensorrt", "openvino"])
def test_graphs_compute_the_same_integers(block: Program, image: Array, style: str) -> None:
    program = in_integers(block, image)
    graph = build(program, style=STYLES[style])
    expected = Interpreter(program)(torch.from_numpy(image))[0].detach().numpy()
    found = InferenceSession(graph.SerializeToString()).run(None, {"image": image})[0]
    if style == "unrolled":
        assert np.array_equal(found, expected)
    np.testing.assert_allclose(found, expected, atol=0.02 * abs(expected).max())  # a number in the next step
    groups = {node.name: onnx.helper.get_node_attr_value(node, "group") for node in graph.graph.node if grouped(node)}
    assert set(groups) == {"depthwise/conv", "halved/conv"} and set(groups.values()) == {24, 8}


def grouped(node: Any) -> bool:
    return any(attribute.name == "group" for attribute in node.attribute)


def test_a_relu6_in_half_precision_has_limits_of_its_type(block: Program, image: Array) -> None:
    expected = Interpreter(block)(torch.from_numpy(image))[0].detach().numpy()
    for precision, allowed in (("fp32", 1e-6), ("fp16", 1e-2)):
        graph = build(block.at(precision, rest=precision)).SerializeToString()  # type: ignore[arg-type]
        found = InferenceSession(graph).run(None, {"image": image})[0]
        np.testing.assert_allclose(found, expected, atol=allowed * abs(expected).max())


def test_tensorrt_8_6_is_told_no_type_of_a_relu6_behind_integers(
    block: Program, image: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "this_gpu", lambda: targets.Gpu("NVIDIA H200", 90))
    graph = build(in_integers(block, image), style=FUSED).SerializeToString()
    tensorrt = TensorRT("tensorrt", (8, 6, 1), fake("8.6.1", disobey="INT8"))
    assert build_engine(graph, BuildRequest("int8", Batch(1, 8, 64)), tensorrt).receipt.met
    layers = tensorrt.module.told["network"].layers
    told = {layer.name for layer in layers if layer.precision_is_set}
    assert "sum/sum" in told
    assert not {f"{name}/{node}" for name in ("stem", "depthwise", "halved") for node in ("conv", "relu6")} & told


def test_a_real_engine_has_depthwise_convolutions_in_every_precision(block: Program, image: Array) -> None:
    """By TensorRT-RTX, whose builder needs no GPU."""
    pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT-RTX has no wheel here")
    for precision in ("fp32", "fp16", "int8"):
        program = in_integers(block, image) if precision == "int8" else block.at(precision)  # type: ignore[arg-type]
        graph = build(program, style=STYLE).SerializeToString()
        engine = build_engine(graph, BuildRequest(precision, Batch(1, 8, 64)), find_tensorrt("rtx"))  # type: ignore[arg-type]
        assert engine.receipt.met and not engine.receipt.unseen, precision


def test_a_depthwise_bias_makes_up_for_rounding(block: Program, image: Array) -> None:
    """A channel's mean output moves by the rounding error of its own kernel alone."""
    values = Interpreter(block).values(torch.from_numpy(image))
    op = next(op for op in block.operations if op.name == "depthwise")
    assert isinstance(op, Convolution)
    means = SimpleNamespace(values={"expand": SimpleNamespace(means=values["expand"].mean((0, 2, 3)).tolist())})
    corrected: Any = with_corrected_bias(block, op, means)  # type: ignore[arg-type]
    moved = corrected.arrays[op.bias] - block.arrays[op.bias]
    weight = block.arrays[op.weights[0]].astype(np.float64)[:, 0]
    scale = abs(weight).max((1, 2), keepdims=True) / 127
    error = (np.rint(weight / scale) * scale - weight).sum((1, 2))
    np.testing.assert_allclose(moved, -error * means.values["expand"].means, atol=1e-5)


@pytest.mark.parametrize("fault", ["two inputs", "wide weight"])
def test_depthwise_convolutions_that_do_not_fit_are_refused(block: Program, fault: str) -> None:
    op: Any = next(op for op in block.operations if op.name == "depthwise")
    if fault == "two inputs":
        twice = {name: 2 * getattr(op, name) for name in ("inputs", "weights", "strides", "paddings")}
        changed, arrays = replace(op, **twice), block.arrays
    else:
        changed, arrays = op, block.arrays | {op.weights[0]: np.zeros((24, 24, 5, 5), np.float32)}
    operations = tuple(changed if one.name == op.name else one for one in block.operations)
    with pytest.raises(UsageError, match="do not make the operation 'depthwise'"):
        replace(block, operations=operations, arrays=arrays)


def test_a_program_without_them_is_written_as_before(block: Program) -> None:
    text = block.to_json()
    assert text.count('"depthwise": true') == 2 and '"depthwise": false' not in text
    assert Program.from_json(text, block.arrays).to_json() == text
    plain = lower(create("cnn", in_channels=2, classes=3, size=12), 12, 12).to_json()
    assert "depthwise" not in plain and "relu6" not in plain
