"""Lowering: the program answers as the trained network does, and what has no program is refused."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from bundles import trained_network
from torch import nn

from qcn import create
from qcn.errors import UsageError
from qcn.export.backends.torch.interpreter import Interpreter
from qcn.export.bundle.golden import Evaluation
from qcn.export.program.lower import ProgramBuilder, lower, scale_and_shift
from qcn.export.program.program import Pool, Program
from qcn.export.program.reference import answers
from qcn.networks.model import QCN, BranchedExtractor, ConvCapsules, Prediction

SIZE = (28, 26)  # not square: rows and columns must not be mixed up
QCNS = ["qcn", "qcn-tiny", "qcn-deep", "qcn-unbranched"]


def assert_answers_as(network: nn.Module, program: Program, image: torch.Tensor) -> None:
    """Within a few times the float32 rounding of the trained network itself, every layer before the last included."""
    exact, single = answers(network, image.double()), answers(network, image)
    interpreter = Interpreter(program, every_layer=True, kernels="reference").eval()
    with torch.inference_mode():
        found = {out.name: x.numpy() for out, x in zip(interpreter.outputs, interpreter(image), strict=True)}
    rounded = outputs(single)
    for name, expected in outputs(exact).items():
        floor = max(abs(rounded[name] - expected).max(), 1e-7)
        actual = found.pop(name)
        assert actual.shape == expected.shape and actual.dtype == np.float32
        assert abs(actual - expected).max() < 8 * floor, f"{name}: noise floor {floor}"
    assert not found


def outputs(evaluation: Evaluation) -> dict[str, np.ndarray]:
    """What a network gives, by the names that its program has for it. A CNN gives no poses."""
    return {name: array for name, array in evaluation.arrays.items() if "/" not in name}


@pytest.mark.parametrize(
    ("name", "mode", "iterations"),
    [
        *(("qcn-tiny", mode, iterations) for mode in ("logistic", "unit") for iterations in (1, 2, 3)),
        ("qcn", "logistic", 2),
        ("qcn-unbranched", "unit", 1),
        ("qcn-deep", "logistic", 2),
        *(
            pytest.param(name, mode, iterations, marks=pytest.mark.slow)
            for name in ("qcn", "qcn-unbranched")
            for mode in ("logistic", "unit")
            for iterations in (1, 2, 3)
        ),
    ],
)
def test_a_program_answers_as_the_network_does(name: str, mode: str, iterations: int) -> None:
    network = trained_network(name, 2, 4, *SIZE, mode=mode, iterations=iterations)
    assert_answers_as(network, lower(network, *SIZE), torch.randn(2, 2, *SIZE))


@pytest.mark.parametrize("size", [28, 33])
@pytest.mark.parametrize(("name", "pools"), [("cnn", ["pool1", "pool2"]), ("cnn-small", ["mean"])])
def test_the_program_of_a_cnn_answers_as_the_network_does(name: str, pools: list[str], size: int) -> None:
    network = trained_network(name, 2, 4, size, size, **({"size": size} if name == "cnn" else {}))
    program = lower(network, size, size)
    assert_answers_as(network, program, torch.randn(3, 2, size, size))
    assert not program.routes and [output.name for output in program.outputs] == ["logit"]
    assert [operation.name for operation in program.operations if isinstance(operation, Pool)] == pools


@pytest.mark.parametrize("name", ["qcn-tiny", "cnn"])
def test_lowering_leaves_the_network_alone_and_shares_nothing_with_it(name: str) -> None:
    network = trained_network(name, 2, 4, 28, 28, **({"size": 28} if name == "cnn" else {}))
    before = copy.deepcopy(network.state_dict())
    lowered = lower(network, 28, 28)
    kept = {name: array.copy() for name, array in lowered.arrays.items()}
    assert all(torch.equal(network.state_dict()[name], tensor) for name, tensor in before.items())
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1)
    assert all(np.array_equal(lowered.arrays[name], array) for name, array in kept.items())


@pytest.mark.parametrize("name", QCNS)
def test_the_programs_shapes_are_those_of_the_networks_layers(name: str) -> None:
    network = create(name, in_channels=2, classes=4)
    exact = answers(network.double(), torch.zeros(1, 2, *SIZE, dtype=torch.float64))
    program = lower(network, *SIZE)
    *routes, last = program.routes
    for route, layer in zip(routes, exact.layers, strict=True):
        assert (route.name, route.shape) == (layer, exact.arrays[f"{layer}.activation"].shape[1:])
        assert program.shapes[f"{layer}.pose"] == exact.arrays[f"{layer}.pose"].shape[1:]
        assert program.arrays[route.rotation].shape[:2] == route.window
    assert (last.name, last.shape) == ("classes", (4, 1, 1))
    assert last.window == program.shapes[last.activation][1:]
    assert program.arrays[last.rotation].shape[:2] == (1, 1)  # all places share


@pytest.mark.parametrize(
    ("name", "options", "sizes", "says"),
    [
        ("em", {}, [(28, 28)], r"is for training only\. .*CNNs \(cnn, cnn-…\) can be exported; .* EM or VB routing"),
        ("vb", {}, [(28, 28)], r"is for training only\. .*EM or VB routing cannot"),
        ("qcn", {}, [(24, 40), (40, 24), (0, 0)], "too small for this network: at least 25×25"),
        ("cnn", {"size": 32}, [(28, 28), (32, 28), (28, 32)], r"built for images of 32×32, not (28×28|32×28|28×32)"),
        ("cnn-small", {}, [(28, 30)], "cnn-small can be exported for square images, not for 28×30"),
    ],
)
def test_networks_and_sizes_that_have_no_program(name: str, options: Any, sizes: list[Any], says: str) -> None:
    network = create(name, in_channels=1, classes=4, **options)
    for size in sizes:
        with pytest.raises(UsageError, match=says):
            lower(network, *size)
    if name == "qcn":
        lower(network, 25, 25)


def test_an_extractor_that_export_does_not_know_is_refused() -> None:
    network = create("qcn-tiny", in_channels=1, classes=4)
    assert isinstance(network, QCN)
    network.extractor = nn.Identity()
    with pytest.raises(UsageError, match="the extractor Identity cannot be exported"):
        lower(network, 28, 28)


class Turned(ConvCapsules):
    """A layer of somebody's own, which would be lowered as if it were its parent."""

    def forward(self, pose: torch.Tensor, activation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pose, activation = super().forward(pose, activation)
        return -pose, activation


class Doubled(QCN):
    def forward(self, image: torch.Tensor) -> Prediction:
        return super().forward(2 * image)


class Swapped(BranchedExtractor):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(x.flip(1))


class Same(QCN):
    """A subclass that computes the same is no other network."""


@pytest.mark.parametrize(("part", "kind"), [("layer", Turned), ("extractor", Swapped), ("network", Doubled)])
def test_what_computes_something_else_than_its_parent_is_refused(part: str, kind: type[nn.Module]) -> None:
    network = create("qcn-tiny", in_channels=1, classes=4)
    assert isinstance(network, QCN)
    network.__class__ = Same
    lower(network, 28, 28)
    {"layer": network.layers[0], "extractor": network.extractor, "network": network}[part].__class__ = kind
    parent = kind.__bases__[0].__name__
    with pytest.raises(UsageError, match=f"{kind.__name__} cannot be exported: it does not compute .* class {parent}"):
        lower(network, 28, 28)


@pytest.mark.parametrize(
    "options", [{"groups": 2}, {"dilation": 2}, {"stride": (1, 2)}, {"padding": "same"}, {"padding_mode": "reflect"}]
)
def test_a_convolution_that_no_operation_can_say_is_refused(options: dict[str, Any]) -> None:
    build = ProgramBuilder(4, 8, 8)
    build.convolution("plain", "image", nn.Conv2d(4, 4, 3))
    build.convolution("depthwise", "image", nn.Conv2d(4, 4, 3, groups=4))
    with pytest.raises(UsageError, match=r"odd, Conv2d\(4, 4, .* cannot be exported: .*one group or.*no dilation"):
        build.convolution("odd", "image", nn.Conv2d(4, 4, 3, **options))


def test_a_depthwise_convolution_beside_a_skip_is_refused() -> None:
    build, depthwise, plain = ProgramBuilder(4, 8, 8), nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 4, 3)
    for main, skip in ((depthwise, plain), (plain, depthwise)):
        with pytest.raises(UsageError, match=r"sum, .*groups=4.* cannot be exported: .*without a skip"):
            build.convolution("sum", "image", main, skip=("image", skip))


def test_norms_are_folded_or_refused() -> None:
    norm, image = nn.BatchNorm2d(4, affine=False), torch.randn(8, 4, 5, 5, dtype=torch.float64)
    norm.double()(image)
    norm.eval()
    scale, shift = scale_and_shift(norm)
    torch.testing.assert_close(image * scale[:, None, None] + shift[:, None, None], norm(image))
    for other in (nn.GroupNorm(2, 4), nn.BatchNorm2d(4, track_running_stats=False)):
        with pytest.raises(UsageError, match=rf"{type(other).__name__}\(.*cannot be exported.*running statistics"):
            scale_and_shift(other)
