"""Calibrated programs: integers that stand for the numbers they replace, rotors that turn as their matrices did."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from fake_tensorrt import fake
from onnxruntime import InferenceSession
from styles import STYLES

from qcn import create
from qcn.errors import UsageError
from qcn.export import targets
from qcn.export.backends.onnx.build import FUSED, build
from qcn.export.backends.tensorrt.build import BuildRequest, TensorRT
from qcn.export.backends.tensorrt.build import build as build_engine
from qcn.export.backends.tensorrt.find import find as find_tensorrt
from qcn.export.backends.tensorrt.layers import STYLE
from qcn.export.backends.torch.interpreter import Interpreter
from qcn.export.bundle import weights
from qcn.export.bundle.manifest import Batch
from qcn.export.program.lower import lower
from qcn.export.program.program import Array, Convolution, Linear, Pool, Product, Program, Route
from qcn.export.program.quantise import halved, quantised, rotors_of
from qcn.quaternion import rotation_matrix, rotor


def calibrated(program: Program, scale: float = 0.03) -> Program:
    """Every convolution and linear in int8 with this scale, every capsule layer in fp16."""
    for op in program.operations:
        if isinstance(op, Product):
            program = quantised(program, op.name, [scale] * len(op.factors))
    for route in program.routes:
        program = halved(program, route.name)
    return program


@pytest.fixture(scope="module")
def whole() -> Program:
    torch.manual_seed(0)
    return lower(create("qcn-tiny", in_channels=1, classes=10), 28, 28)


@pytest.fixture(scope="module")
def cnn() -> Program:
    torch.manual_seed(0)
    return lower(create("cnn", in_channels=2, classes=3, size=12), 12, 12)


def test_a_calibrated_program_survives_its_file_and_others_keep_their_form(whole: Program, tmp_path: Path) -> None:
    program = calibrated(whole)
    assert program.calibrated and not whole.calibrated
    weights.write(tmp_path / "weights.safetensors", program)
    again = weights.read((tmp_path / "weights.safetensors").read_bytes())
    assert again.to_json() == program.to_json()
    for name, array in program.arrays.items():
        assert again.arrays[name].dtype == array.dtype and np.array_equal(again.arrays[name], array)
    kinds = {array.dtype.name for array in again.arrays.values()}
    assert kinds == {"int8", "int32", "float16", "float32"}
    assert sum(a.nbytes for a in program.arrays.values()) < 0.3 * sum(a.nbytes for a in whole.arrays.values())
    keys = {key for operation in json.loads(whole.to_json())["operations"] for key in operation}
    assert not keys & {"weight_scales", "input_scales"}
    assert {key for route in json.loads(whole.to_json())["operations"][-3:] for key in route}.isdisjoint({"scale"})
    with pytest.raises(UsageError, match="the network is calibrated"):
        program.at("fp16")


def by_definition(program: Program, op: Convolution | Linear, inputs: list[Array]) -> Array:
    """In torch, in whole numbers."""
    total: Any = 0
    for place, (x, scale) in enumerate(zip(inputs, op.input_scales, strict=True)):
        q = torch.round(torch.from_numpy(x) / torch.tensor(scale)).clamp(-128, 127).long()
        weight = torch.from_numpy(program.arrays[op.factors[place]]).long()
        if isinstance(op, Convolution):
            groups = op.shape[0] if op.depthwise else 1
            acc = F.conv2d(q.double(), weight.double(), None, op.strides[place], op.paddings[place], groups=groups)
        else:
            acc = (q.flatten(1) @ weight.T).double()
        broad = (-1, *[1] * (len(op.shape) - 1))
        bias = torch.from_numpy(program.arrays[op.bias]).double().view(broad)
        factor = torch.tensor(scale) * torch.from_numpy(program.arrays[op.weight_scales[place]])
        total = total + (acc + (0 if place else bias)).float() * factor.view(broad)
    return np.asarray(total.numpy())


def before_ending(program: Program, op: Product, inputs: list[Array]) -> Array:
    """By torch, as the product computes it."""
    with torch.inference_mode():
        (y,) = Interpreter(program).operation(replace(op, ending="none"), [torch.from_numpy(x) for x in inputs])
    return np.asarray(y)


def in_floats(program: Program, op: Convolution | Linear, inputs: list[Array]) -> Array:
    """What the operation makes in float32 before its ending."""
    tensors = [torch.from_numpy(x) for x in inputs]
    weight = [torch.from_numpy(program.arrays[name]) for name in op.factors]
    bias = torch.from_numpy(program.arrays[op.bias])
    if isinstance(op, Linear):
        return np.asarray(F.linear(tensors[0].flatten(1), weight[0], bias))
    parts = [F.conv2d(x, w, None, s, p) for x, w, s, p in zip(tensors, weight, op.strides, op.paddings, strict=True)]
    return np.asarray(sum(parts) + bias[:, None, None])


def test_integers_are_exact_and_stand_for_what_they_replace(whole: Program, cnn: Program) -> None:
    random = np.random.default_rng(0)
    for program, names in ((whole, ("pose.0.conv2", "pose.projection")), (cnn, ("conv2", "hidden"))):
        for name in names:
            op = next(one for one in program.operations if one.name == name)
            inputs = [random.standard_normal((2, *program.shapes[read])).astype(np.float32) for read in op.reads]
            small = quantised(program, name, [float(abs(x).max()) / 127 for x in inputs])
            found = next(one for one in small.operations if one.name == name)
            assert isinstance(found, Convolution | Linear) and isinstance(op, Convolution | Linear)
            y = before_ending(small, found, inputs)
            assert y.dtype == np.float32 and np.array_equal(y, by_definition(small, found, inputs)), name
            exact = in_floats(program, op, inputs)
            assert np.abs(y - exact).max() < 0.02 * np.abs(exact).max(), name


def test_a_channel_of_zeros_and_a_large_bias_beside_small_weights(cnn: Program) -> None:
    """Such as batch norms leave where a channel died."""
    weight, bias = cnn.arrays["conv1.weight"].copy(), cnn.arrays["conv1.bias"].copy()
    weight[0], weight[1], bias[:2] = 0.0, 1e-12, (0.25, 3.0)
    small = quantised(replace(cnn, arrays={**cnn.arrays, "conv1.weight": weight, "conv1.bias": bias}), "conv1", [0.01])
    op = small.operations[0]
    assert isinstance(op, Convolution)
    y = before_ending(small, op, [np.zeros((1, 2, 12, 12), np.float32)])
    np.testing.assert_allclose(y[0, :2, 0, 0], [0.25, 3.0], rtol=1e-2)


def test_rotors_turn_as_their_matrices_did(whole: Program) -> None:
    turned = rotor(torch.linspace(-4, 4, 500).double(), torch.randn(500, 3, generator=torch.Generator().manual_seed(0)))
    found = rotors_of(rotation_matrix(turned.double()).numpy())
    np.testing.assert_allclose(np.abs((found * turned.numpy()).sum(-1)), 1, atol=1e-9)
    for name in ("capsules1", "classes"):
        route = next(one for one in whole.routes if one.name == name)
        scaled = replace(whole, arrays={**whole.arrays, route.rotation: whole.arrays[route.rotation] * np.float32(2.5)})
        half = halved(scaled, name)
        op = next(one for one in half.routes if one.name == name)
        assert op.precision == "fp16" and op.scale == pytest.approx(2.5, rel=1e-6)
        assert half.arrays[op.rotation].dtype == np.float16 and half.arrays[op.rotation].shape[-1] == 4
        np.testing.assert_allclose(half.rotation(op), scaled.arrays[route.rotation], atol=2.5 * 2.0**-9)
        with pytest.raises(UsageError, match="cannot be halved"):
            halved(half, name)
    with pytest.raises(UsageError, match="not rotations"):
        halved(replace(whole, arrays={**whole.arrays, route.rotation: whole.arrays[route.rotation] ** 2}), "classes")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda arrays: arrays.update({"conv1.weight": arrays["conv1.weight"].astype(np.float32)}), "must be int8"),
        (lambda arrays: arrays.update({"conv1.bias": arrays["conv1.bias"].astype(np.int64)}), "must be int32"),
        (lambda arrays: arrays["conv1.weight.scale"].__setitem__(0, 0.0), "scale of 'conv1' .* not 0.0"),
        (lambda arrays: arrays["conv1.weight.scale"].__setitem__(0, np.nan), "scale of 'conv1' .* not nan"),
        (lambda arrays: arrays["conv1.weight"].__setitem__((0, 0, 0, 0), -128), "a weight of 'conv1' is -128"),
        (lambda arrays: arrays["conv1.bias"].__setitem__(0, 2**31 - 1), "'conv1' may be too large for int32"),
    ],
)
def test_altered_integers_are_refused(cnn: Program, change: Callable[[dict[str, Array]], object], says: str) -> None:
    program = quantised(cnn, "conv1", [0.1])
    arrays = {name: array.copy() for name, array in program.arrays.items()}
    change(arrays)
    with pytest.raises(UsageError, match=says):
        replace(program, arrays=arrays)


@pytest.mark.parametrize("scale", [0.0, -1.0, 0.1, float("inf"), float("nan")])
def test_scales_are_positive_float32(cnn: Program, scale: float) -> None:
    program = quantised(cnn, "conv1", [0.1])
    first, *others = program.operations
    assert isinstance(first, Convolution)
    with pytest.raises(UsageError, match="scale of 'conv1' must be a positive float32"):
        replace(program, operations=(replace(first, input_scales=(scale,)), *others))


def test_what_cannot_be_quantised_is_refused(cnn: Program) -> None:
    for name, scales, says in (
        ("pool1", [1.0], "is pool"),
        ("conv1", [1.0, 2.0], "1 inputs"),
        ("conv9", [1.0], "did you mean"),
    ):
        with pytest.raises(UsageError, match=says):
            quantised(cnn, name, scales)


def walked(program: Program, image: Array) -> Array:
    """The answers of a calibrated CNN, its convolutions and linears by their definition."""
    values = {program.input.name: image}
    for op in program.operations:
        if isinstance(op, Convolution | Linear):
            y = by_definition(program, op, [values[name] for name in op.reads])
            endings = {"relu": F.relu, "none": lambda x: x}
            values[op.name] = endings[op.ending](torch.from_numpy(y)).numpy()
        elif isinstance(op, Pool):
            values[op.name] = F.max_pool2d(torch.from_numpy(values[op.input]), op.kernel, op.stride).numpy()
    return values[program.outputs[0].value]


def test_torch_computes_the_same_integers(cnn: Program) -> None:
    program = calibrated(cnn)
    image = np.random.default_rng(1).standard_normal((3, 2, 12, 12)).astype(np.float32)
    with torch.inference_mode():
        (found,) = Interpreter(program)(torch.from_numpy(image))
        (exact,) = Interpreter(program).double()(torch.from_numpy(image).double())
        (moved,) = Interpreter(program, nudge=0.5)(torch.from_numpy(image))
    assert np.array_equal(found.numpy(), walked(program, image))
    np.testing.assert_allclose(exact.numpy(), found.numpy(), atol=1e-6)  # the same integers, by float64
    assert (moved - found).abs().max() > 1e-4


def test_a_layer_in_fp16_rounds_its_votes_and_not_in_float64(whole: Program) -> None:
    image = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    program = whole
    for route in whole.routes:
        program = halved(program, route.name)
    turned = [replace(op, precision="fp32", scale=None) if isinstance(op, Route) else op for op in program.operations]
    matrices = {route.rotation: program.rotation(route) for route in program.routes}
    same = replace(program, operations=tuple(turned), arrays={**program.arrays, **matrices})
    with torch.inference_mode():
        for kernels in ("reference", "unrolled"):
            rounded, whole_votes = (Interpreter(one, kernels=kernels)(image)[1] for one in (program, same))  # type: ignore[arg-type]
            apart = (rounded - whole_votes).abs().max() / whole_votes.abs().max()
            assert 1e-5 < apart < 1e-2, kernels
        doubles = [Interpreter(one, kernels="reference").double()(image.double())[1] for one in (program, same)]
    assert torch.equal(*doubles)


def test_onnx_runtime_computes_the_same_integers(cnn: Program) -> None:
    """To the last bit; and Q/DQ pairs, in floats, mean the same."""
    last = replace(cnn.operations[-1], ending="none")
    program = calibrated(replace(cnn, operations=(*cnn.operations[:-1], last)))
    image = np.random.default_rng(1).standard_normal((3, 2, 12, 12)).astype(np.float32)
    expected = walked(program, image)
    graphs = {routing: build(program, style=STYLES[routing]) for routing in ("unrolled", "tensorrt")}
    found = {name: InferenceSession(graph.SerializeToString()) for name, graph in graphs.items()}
    assert np.array_equal(found["unrolled"].run(None, {"image": image})[0], expected)
    np.testing.assert_allclose(found["tensorrt"].run(None, {"image": image})[0], expected, rtol=1e-5, atol=1e-6)
    operators = [node.op_type for node in graphs["tensorrt"].graph.node]
    assert operators.count("QuantizeLinear") == operators.count("DequantizeLinear") == 2 * 4  # input and weight
    # The parser of TensorRT 8.6 takes the size of a kernel behind Q/DQ from nowhere else, and refuses a graph without.
    convolutions = [node for node in graphs["tensorrt"].graph.node if node.op_type == "Conv"]
    assert convolutions
    for node in convolutions:
        shape = cnn.arrays[node.name.removesuffix("/conv").replace("/", ".") + ".weight"].shape
        assert onnx.helper.get_node_attr_value(node, "kernel_shape") == list(shape[2:])


def test_rotors_in_a_graph_turn_as_in_torch(whole: Program) -> None:
    program = calibrated(whole)
    image = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        exact = Interpreter(program, kernels="reference").double()(image.double())
    for routing in ("unrolled", "tensorrt", "fused"):
        graph = build(program, style=STYLES[routing])
        answers = InferenceSession(graph.SerializeToString()).run(None, {"image": image.numpy()})
        for answer, due in zip(answers, exact, strict=True):
            np.testing.assert_allclose(answer, due, atol=3e-3 * float(due.abs().max()), err_msg=routing)
        if routing == "unrolled":
            assert graph.ByteSize() < 0.5 * build(whole).ByteSize()


def test_a_real_engine_computes_in_integers(whole: Program) -> None:
    """By TensorRT-RTX, whose builder needs no GPU: each convolution in int8, and none that only rounds its inputs."""
    pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT-RTX has no wheel here")
    graph = build(calibrated(whole), style=STYLE).SerializeToString()
    engine = build_engine(graph, BuildRequest("int8", Batch(1, 8, 64)), find_tensorrt("rtx"))
    assert engine.receipt.met is True
    assert ("correlation", "int8 → float32") in {(kind, precision) for kind, precision, _ in engine.receipt.layers}


def test_tensorrt_8_6_is_told_no_type_where_integers_are_computed(
    whole: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not to a convolution behind Q/DQ pairs, nor to a ReLU right behind it. Everything else, as a sum, is told."""
    monkeypatch.setattr(targets, "this_gpu", lambda: targets.Gpu("NVIDIA H200", 90))
    graph = build(calibrated(whole), style=FUSED).SerializeToString()
    tensorrt = TensorRT("tensorrt", (8, 6, 1), fake("8.6.1", disobey="INT8"))
    engine = build_engine(graph, BuildRequest("int8", Batch(1, 8, 64)), tensorrt)
    assert engine.receipt.met
    assert tensorrt.module.told["flags"] == {"FP16", "INT8", "OBEY_PRECISION_CONSTRAINTS"}
    layers = {layer.name: layer for layer in tensorrt.module.told["network"].layers}
    told = {name for name, layer in layers.items() if layer.precision_is_set}
    sums = {name.removesuffix("/sum") for name in layers if name.endswith("/sum")}
    assert sums and {f"{op}/{node}" for op in sums for node in ("sum", "relu")} <= told
    alone = {name.removesuffix("/conv") for name in layers if name.endswith("/conv")} - sums
    assert not {f"{op}/{node}" for op in sums for node in ("conv", "skip")} & told
    assert not {f"{op}/{node}" for op in alone for node in ("conv", "relu")} & told
    assert {name for name in layers if name.endswith("/sigmoid")} <= told
