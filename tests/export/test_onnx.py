"""ONNX graphs answer as the trained network does, in standard operators, with named nodes and known shapes."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from bundles import trained_network
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from styles import STYLES
from torch import Tensor

from qcn import create
from qcn.errors import BuildError
from qcn.export.backends.format import Job
from qcn.export.backends.onnx.build import FUSED, build
from qcn.export.backends.onnx.graph import GraphValue, OnnxGraph
from qcn.export.backends.onnx.unrolled import UnrolledLayer
from qcn.export.backends.torch.interpreter import Interpreter
from qcn.export.bundle import Bundle
from qcn.export.program import reference
from qcn.export.program.lower import lower
from qcn.export.program.program import Array, Convolution, Program, Route, Shape, slide
from qcn.export.request import ExportRequest
from qcn.networks.model import QCN
from qcn.routing import route
from qcn.train.checkpoint import load_network

SIZE = (29, 26)  # odd, and not square: rows and columns must not be mixed up
NEWEST = onnx.defs.onnx_opset_version()
EPSILON = float(np.finfo(np.float32).eps)
Answers = dict[str, Array]
every_routing = pytest.mark.parametrize("routing", ["unrolled", "tensorrt", "fused"])


def answers(trained: QCN, image: Tensor) -> Answers:
    """All outputs of a trained network in the precision of `image`, by name."""
    return {name: x for name, x in reference.answers(trained, image).arrays.items() if "/" not in name}


def tolerances(exact: Answers, rounded: Answers, times: float = 8) -> dict[str, float]:
    """Output by output, eight times what rounding to float32 did to the trained network itself.

    Twice, since the graph has the first variance as E[v²] − μ², where μ² is about σ² in a network whose poses are
    scaled; four times, since the largest of some hundred errors is hardly ever four times the largest of as many
    others. Where the network was lucky: as many units in the last place.
    """
    return {name: times * max(abs(rounded[name] - x).max(), EPSILON * abs(x).max()) for name, x in exact.items()}


def assert_agree(found: Answers, exact: Answers, tolerance: dict[str, float]) -> None:
    for name, x in found.items():
        assert (x.dtype, x.shape) == (np.float32, exact[name].shape), name
        assert abs(x - exact[name]).max() <= tolerance[name], name


def run_graph(model: onnx.ModelProto, **inputs: Array) -> Answers:
    """By ONNX Runtime, with nothing registered in it."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs), strict=True))


def evaluate(model: onnx.ModelProto, **inputs: Array) -> Answers:
    """By ONNX's own evaluator, in numpy."""
    names = [output.name for output in model.graph.output]
    return dict(zip(names, ReferenceEvaluator(model).run(None, inputs), strict=True))


def noise(batch: int) -> Tensor:
    return torch.randn(batch, 2, *SIZE, generator=torch.Generator().manual_seed(1))


def golden_rows(bundle: Bundle, rows: Array) -> tuple[Array, Answers, dict[str, float]]:
    """Images of the golden file, the answers to them, and the tolerance by all of the file."""
    golden = bundle.golden()
    exact = {"logit": golden.reference.logit, "pose": golden.reference.pose}
    tolerance = tolerances(exact, {"logit": golden.float32.logit, "pose": golden.float32.pose})
    return golden.input[rows], {name: array[rows] for name, array in exact.items()}, tolerance


def routed(program: Program, **changes: Any) -> Program:
    """The program with its capsule layers changed."""
    operations = (replace(op, **changes) if isinstance(op, Route) else op for op in program.operations)
    return replace(program, operations=tuple(operations))


@pytest.fixture(scope="module")
def trained(run: Path) -> QCN:
    network, _ = load_network(run)
    assert isinstance(network, QCN)
    return network


# The answers


@pytest.mark.parametrize(
    ("name", "mode", "iterations"),
    [
        *(("qcn-tiny", mode, iterations) for mode in ("logistic", "unit") for iterations in (1, 2, 3, 4)),
        ("qcn", "logistic", 2),
        pytest.param("qcn", "unit", 2, marks=pytest.mark.slow),
        pytest.param("qcn-unbranched", "logistic", 3, marks=pytest.mark.slow),
        pytest.param("qcn-unbranched", "unit", 2, marks=pytest.mark.slow),
    ],
)
def test_a_graph_answers_as_the_trained_network_does(name: str, mode: str, iterations: int) -> None:
    """Every layer, each way of writing routing; the layers of qcn-tiny have stride 2, the others stride 1."""
    trained, image = trained_network(name, 2, 4, *SIZE, mode=mode, iterations=iterations), noise(3)
    exact = answers(trained, image.double())
    tolerance = tolerances(exact, answers(trained, image))
    program = lower(trained, *SIZE)
    found = {
        routing: run_graph(build(program, style=STYLES[routing], every_layer=True), image=image.numpy())
        for routing in ("unrolled", "tensorrt", "fused")
    }
    for outputs in found.values():
        assert outputs.keys() == exact.keys()
        assert_agree(outputs, exact, tolerance)
    for output, x in found["fused"].items():
        np.testing.assert_allclose(x, found["unrolled"][output], rtol=0, atol=4 * EPSILON * abs(x).max())


@every_routing
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_whatever_is_seen_the_answers_are_finite(program: Program, routing: str, precision: str) -> None:
    """Black, blinding, constant, alternating, tiny; in float32 also far beyond what pre-processing lets through."""
    shape = program.input.shape
    board = np.indices(shape).sum(0) % 2 * 2.0 - 1
    largest = 1e6 if precision == "fp32" else 100.0
    images = [np.full(shape, value) for value in (0.0, -0.5, 3.0, 1e-30, largest, -largest)]
    batch = np.stack([*images, board, board * largest]).astype(np.float32)
    for output, x in run_graph(
        build(program.at(precision, rest=precision), style=STYLES[routing]), image=batch
    ).items():
        assert np.isfinite(x).all(), output


# The batch


@every_routing
def test_an_open_batch_takes_any_number_of_images_and_a_fixed_one_no_other(
    program: Program, bundle: Bundle, routing: str
) -> None:
    unlimited, fixed = (build(program, style=STYLES[routing], batch=batch) for batch in (None, 4))
    for model, batch in ((unlimited, 1), (unlimited, 3), (unlimited, 64), (fixed, 4)):
        image, exact, tolerance = golden_rows(bundle, np.arange(batch) % 21)
        assert_agree(run_graph(model, image=image), exact, tolerance)
    with pytest.raises(Exception, match="Got: 3 Expected: 4"):
        run_graph(fixed, image=image[:3])


# Half precision


class Halved(Interpreter):
    """The program in exact arithmetic, on values rounded to half where the fp16 graph keeps them in half.

    What is left of its error is what half precision costs, whoever does the sums.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program, every_layer=True, kernels="reference")
        self.double()
        for name, array in self.named_buffers():
            if "beta" not in name:
                array.copy_(array.half())

    def _convolution(self, op: Convolution, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        (out,) = super()._convolution(replace(op, ending="none"), [x.half().double() for x in inputs])
        end: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "sigmoid": torch.sigmoid}
        return (end.get(op.ending, torch.clone)(out.half().double()),)


@pytest.fixture(scope="module")
def halved(trained: QCN, program: Program) -> tuple[Tensor, Answers, Answers]:
    """Images, and the answers to them: exact, and with what half precision costs."""
    image = torch.randn(4, *program.input.shape, generator=torch.Generator().manual_seed(0))
    image[-1] = 0
    model = Halved(program)
    with torch.inference_mode():
        found = {out.name: x.numpy() for out, x in zip(model.outputs, model(image.double()), strict=True)}
    return image, answers(trained, image.double()), found


def test_half_precision_errs_as_much_as_rounding_to_half_does(
    trained: QCN, program: Program, halved: tuple[Tensor, Answers, Answers]
) -> None:
    """By ONNX's own evaluator, which sums in float32 as GPUs do."""
    image, exact, rounded = halved
    model = build(program.at("fp16", rest="fp16"), every_layer=True)
    found = evaluate(model, image=image.numpy())
    assert_agree(found, exact, tolerances(exact, rounded, times=4))
    with pytest.raises(AssertionError):  # and it is half precision: float32 would do better
        assert_agree(found, exact, tolerances(exact, answers(trained, image)))


@every_routing
def test_half_precision_in_onnx_runtime(
    program: Program, halved: tuple[Tensor, Answers, Answers], routing: str
) -> None:
    """On ARM it sums in half, too: one rounding for each of n terms, which add up to √n of them."""
    image, exact, rounded = halved
    terms = max(array[0].size for name, array in program.arrays.items() if name.endswith("conv2.weight"))
    found = run_graph(
        build(program.at("fp16", rest="fp16"), style=STYLES[routing], every_layer=True), image=image.numpy()
    )
    assert_agree(found, exact, tolerances(exact, rounded, times=terms**0.5))


@pytest.mark.parametrize(
    ("precision", "type"), [("fp16", TensorProto.FLOAT16), ("bf16", TensorProto.BFLOAT16)], ids=["fp16", "bf16"]
)
def test_convolutions_and_votes_are_in_half_and_statistics_are_not(program: Program, precision: str, type: int) -> None:
    """For bf16 this is all that can be seen here: ONNX Runtime has no such convolutions on a CPU."""
    model = build(program.at(precision, rest=precision), opset=22)
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.value_info}
    types |= {value.name: value.type.tensor_type.elem_type for value in model.graph.output}
    statistics = ("/iteration", "/parents.", "/mean", "/z", "/active", "/votes.float", "/pose.float", "output/")
    statistics += ("activation/projection/sigmoid", "activation/projection/float")
    for node in model.graph.node:
        expected = TensorProto.FLOAT if any(part in node.name for part in statistics) else type
        assert types[node.output[0]] == expected, node.name
    kinds = Counter((node.op_type, types[node.output[0]]) for node in model.graph.node)
    assert kinds["Conv", type] == 3 * 3 + 2  # blocks and projections
    assert kinds["Conv", TensorProto.FLOAT] == 3 * 3 - 1  # three per first M-step, two in the class layer
    assert len(model.SerializeToString()) < 0.9 * len(build(program, opset=22).SerializeToString())


@pytest.mark.parametrize("name", ["pose.0.conv1.weight", "capsules1.rotation"])
def test_weights_too_large_for_half_precision_are_refused(program: Program, name: str) -> None:
    large = replace(program, arrays={**program.arrays, name: program.arrays[name] + np.float32(1e5)})
    with pytest.raises(BuildError, match=r"does not fit float16: its largest is 1000\d\d"):
        build(large.at("fp16", rest="fp16"))
    build(large.at("bf16", rest="bf16"), opset=22)


# The graph


def test_small_activations_have_all_their_digits() -> None:
    """ONNX Runtime's own Sigmoid has none of that of −13 on a CPU, and routing takes shares of activations."""
    g = OnnxGraph(17)
    found = g.sigmoid("active", GraphValue("z", TensorProto.FLOAT))
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in ("z", found.name)}
    graph = helper.make_graph(g.nodes, "sigmoid", [values["z"]], [values[found.name]], list(g.weights.values()))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    z = np.linspace(-80, 80, 1601, dtype=np.float32)
    exact = 1 / (1 + np.exp(-z.astype(np.float64)))
    np.testing.assert_allclose(run_graph(model, z=z)[found.name], exact, rtol=4 * EPSILON)
    extremes = np.array([-np.inf, -1e30, 1e30, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(run_graph(model, z=extremes)[found.name], [0, 0, 1, 1, np.nan])


@pytest.mark.parametrize("opset", sorted({17, 18, 22, 26, NEWEST}))
@every_routing
def test_opsets(program: Program, bundle: Bundle, opset: int, routing: str) -> None:
    """The same answers; of the newest by ONNX's own evaluator, since runtimes follow later.

    That one takes all functions of one name for the same, whatever their overload: it cannot run the fused graph.
    """
    image, exact, tolerance = golden_rows(bundle, np.arange(2))
    model = build(program, style=STYLES[routing], opset=opset)
    assert [(one.domain, one.version) for one in model.opset_import][:1] == [("", opset)]
    if opset < NEWEST or routing == "unrolled":
        found = (evaluate if opset == NEWEST else run_graph)(model, image=image)
        assert_agree(found, exact, tolerance)


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_every_shape_is_known_but_the_batch(program: Program, batch: int | None, precision: str) -> None:
    model = build(program.at(precision, rest=precision), batch=batch, every_layer=True)
    onnx.checker.check_model(model, full_check=True)
    known = {value.name: value.type.tensor_type.shape.dim for value in (*model.graph.value_info, *model.graph.output)}
    for node in model.graph.node:
        first, *others = known[node.output[0]]
        assert (first.dim_value or first.dim_param) == (batch or "batch"), node.name
        assert all(side.dim_value > 0 for side in others), node.name
    classes = program.classes
    assert [[side.dim_value for side in known[name]][1:] for name in ("logit", "pose")] == [
        [classes],
        [classes, 3],
    ]


@pytest.mark.parametrize("iterations", [1, 3])
def test_an_unrolled_graph_is_of_standard_operators_and_says_where_each_belongs(
    program: Program, iterations: int
) -> None:
    model = build(routed(program, iterations=iterations))
    assert {node.domain for node in model.graph.node} == {""} and not model.functions
    assert [one.domain for one in model.opset_import] == [""]
    assert not {node.op_type for node in model.graph.node} & {"Loop", "Scan", "If", "Slice", "Split", "Unsqueeze"}
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names) and all(names)
    assert {name.split("/")[0] for name in names} == {
        "pose",
        "activation",
        "capsules1",
        "capsules2",
        "classes",
        "output",
    }
    for layer in ("capsules1", "capsules2", "classes"):
        steps = {name.split("/")[1] for name in names if name.startswith(f"{layer}/iteration")}
        assert steps == {f"iteration{t}" for t in range(1, iterations + 1)}
        assert f"{layer}/iteration{iterations}/variance" in names


def test_an_iteration_more_costs_few_nodes(program: Program) -> None:
    """Whole tensors at once: the number of nodes depends on neither children, parents nor positions."""

    def nodes(iterations: int) -> int:
        return len(build(routed(program, iterations=iterations)).graph.node)

    layers = len(program.routes)
    assert nodes(4) - nodes(3) == nodes(3) - nodes(2) < 60 * layers
    large = lower(create("qcn", in_channels=2, classes=4), *SIZE)
    assert len(build(large).graph.node) - nodes(2) < 110  # one layer more


def test_the_file_is_whole_in_itself(bundle: Bundle, tmp_path: Path) -> None:
    model = build(bundle.program(), style=FUSED, metadata=Job(bundle, ExportRequest()).metadata)
    onnx.save(model, tmp_path / "model.onnx")
    again = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    assert again.graph.initializer and not any(weight.external_data for weight in again.graph.initializer)
    says = {entry.key: entry.value for entry in again.metadata_props}
    assert (says["name"], json.loads(says["classes"])) == (bundle.manifest.name, list(bundle.manifest.classes))
    assert says["source_sha256"] == bundle.manifest.source.sha256
    assert set(json.loads(says["preprocessing"])) == {"fit", "resize", "crop", "standardise", "mean", "std"}
    assert again.producer_name == "qcn"


@pytest.mark.parametrize("mode", ["logistic", "unit"])
def test_a_fused_graph_is_one_node_a_capsule_layer(program: Program, mode: Any) -> None:
    program = routed(program, mode=mode)
    model = build(program, style=FUSED)
    assert [(one.domain, one.version) for one in model.opset_import] == [("", 17), ("qcn", 1)]
    nodes = [node for node in model.graph.node if node.domain]
    weights = {weight.name: numpy_helper.to_array(weight) for weight in model.graph.initializer}
    for node, op in zip(nodes, program.routes, strict=True):
        assert (node.domain, node.op_type, node.name) == ("qcn", "EMRouting", f"{op.name}/routing")
        attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        assert attributes == {
            "window": list(op.window),
            "stride": op.stride,
            "iterations": op.iterations,
            "mode": mode.encode(),
            "logit": int(op.name == "classes"),
            "half": 0,
        }
        for name, given_name in zip((op.rotation, op.beta_u, op.beta_a), node.input[2:], strict=True):
            assert np.array_equal(weights[given_name], program.arrays[name])
    assert [function.overload for function in model.functions] == [op.name for op in program.routes]


def test_poses_go_to_a_fused_node_in_float32_and_half_is_an_attribute(program: Program) -> None:
    """A layer gives out float32: a cast to float16 in front of the next would be two more kernels per layer."""
    graph = build(program.at("fp32", rest="fp16"), style=FUSED).graph
    nodes = [node for node in graph.node if node.domain]
    assert all(helper.get_node_attr_value(node, "half") == 1 for node in nodes)
    behind = [node.name for node in graph.node if node.name.startswith(tuple(op.name for op in program.routes[1:]))]
    assert behind and not [name for name in behind if "cast" in name]


# One capsule layer alone

NAMED = {name: name for name in ("pose", "activation", "rotation", "beta_u", "beta_a")}  # what a layer reads


@st.composite
def layers(draw: st.DrawFn) -> tuple[Route, Shape, bool, int]:
    """A capsule layer, the map that it reads, whether all places share their rotors, and a seed."""
    small = st.integers(1, 3)
    window, stride = (draw(small), draw(small)), draw(st.integers(1, 2))
    sides = (window[0] + draw(st.integers(0, 3)), window[1] + draw(st.integers(0, 3)))
    op = Route(
        name="layer",
        **NAMED,
        window=window,
        stride=stride,
        iterations=draw(st.integers(1, 4)),
        mode=draw(st.sampled_from(["logistic", "unit"])),
        ending=draw(st.sampled_from(["none", "sigmoid"])),
        shape=(draw(st.integers(1, 6)), *slide(sides, window, stride)),
    )
    return op, (draw(st.integers(1, 4)), *sides), draw(st.booleans()), draw(st.integers(0, 2**32 - 1))


@settings(max_examples=60, deadline=None)
@given(layers())
def test_any_capsule_layer_is_routed_as_the_reference_routes_it(layer: tuple[Route, Shape, bool, int]) -> None:
    """Within eight times the graph's own rounding.

    Windows of one to three children have next to no variance, of which E[v²] − μ² leaves few digits. So the rounding is
    measured: it is how far the answers move when the poses move in their last place.
    """
    op, (children, *sides), shared, seed = layer
    generator = np.random.default_rng(seed)
    places = (1, 1) if shared else op.window
    rotation = np.linalg.qr(generator.standard_normal((*places, children, op.parents, 3, 3)))[0]
    beta_u, beta_a = generator.standard_normal((2, op.parents))
    weights = {"rotation": rotation, "beta_u": beta_u, "beta_a": beta_a}
    arrays = {name: array.astype(np.float32) for name, array in weights.items()}
    pose = generator.standard_normal((1, children, 3, *sides)).astype(np.float32)
    activation = generator.uniform(0, 1, (1, children, *sides)).astype(np.float32)

    truth = route(
        *(torch.from_numpy(array).double() for array in (pose, activation, *arrays.values())),
        window=op.window,
        stride=op.stride,
        iterations=op.iterations,
        mode=op.mode,
        logit=op.ending == "none",
        kernels="reference",
    )
    nudges = 1 + EPSILON * generator.integers(-1, 2, (16, *pose.shape[1:]))
    nudges[0] = 1
    model = layer_graph(op, (children, *sides), arrays)
    nudged = (pose * nudges).astype(np.float32)
    found = run_graph(model, pose=nudged, activation=activation.repeat(len(nudged), 0))
    for x, exact in zip(found.values(), (tensor.numpy()[0] for tensor in truth), strict=True):
        rounding = max(np.ptp(x, axis=0).max(), EPSILON * max(1.0, abs(exact).max()))
        assert x[0].shape == exact.shape
        assert abs(x[0] - exact).max() <= 8 * rounding


def layer_graph(op: Route, map: Shape, arrays: dict[str, Array]) -> onnx.ModelProto:
    """A graph of one capsule layer: pose, activation -> those of its parents."""
    children, *sides = map
    shapes = {"pose": ["batch", children, 3, *sides], "activation": ["batch", children, *sides]}
    g = OnnxGraph(17)
    with g.scope(op.name):
        inputs = (GraphValue(name, TensorProto.FLOAT) for name in shapes)
        outputs = UnrolledLayer(g, op, map, arrays).write(*inputs)
    graph = helper.make_graph(
        g.nodes,
        "layer",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info(output.name, TensorProto.FLOAT, None) for output in outputs],
        list(g.weights.values()),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


def test_class_votes_that_agree_to_many_digits_keep_their_variance() -> None:
    """As in a confident network: Σ v² − μ² of votes about 3 that differ by 0.03 would leave three digits of it."""
    op = Route(
        name="classes",
        **NAMED,
        window=(4, 4),
        stride=1,
        iterations=1,
        mode="logistic",
        ending="none",
        shape=(5, 1, 1),
    )
    generator = torch.Generator().manual_seed(0)
    pose = 3 + 0.03 * torch.randn(2, 16, 3, 4, 4, generator=generator)
    activation = 0.5 + 0.5 * torch.rand(2, 16, 4, 4, generator=generator)
    rotation = torch.eye(3).expand(1, 1, 16, 5, 3, 3).contiguous()
    betas = 0.1 * torch.randn(2, 5, generator=generator) - torch.tensor([[0.0], [15.0]])  # scores about 0
    arrays = {"rotation": rotation.numpy(), "beta_u": betas[0].numpy(), "beta_a": betas[1].numpy()}
    exact = (x.double() for x in (pose, activation, rotation, *betas))
    _, expected = route(*exact, window=(4, 4), iterations=1, mode="logistic", logit=True)
    graph = layer_graph(op, (16, 4, 4), arrays)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    _, found = session.run(None, {"pose": pose.numpy(), "activation": activation.numpy()})
    assert abs(found - expected.numpy()).max() < 2e-5
