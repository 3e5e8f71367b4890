"""Every kind of network through every backend, each held to the tolerance that the manifest has for its file.

The toy extractor is defined here alone: its class, and the function that lowers it. Nothing else knows it, in Python or
in C++, and yet it reaches every backend.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from bundles import bundle_of, with_quick_norms
from runners import create as create_runner
from torch import Tensor, nn

from qcn import create
from qcn.errors import MissingError, UsageError
from qcn.export.backends.format import Job
from qcn.export.backends.tensorrt.format import GRAPH
from qcn.export.backends.torch.interpreter import Interpreter
from qcn.export.bundle import WEIGHTS, Bundle
from qcn.export.bundle.manifest import Artefact
from qcn.export.pipeline import export
from qcn.export.program.lower import IMAGE, ProgramBuilder, lower, lower_extractor
from qcn.export.program.program import Array, Convolution, Pool, Route
from qcn.export.request import ExportRequest
from qcn.networks.model import QCN


class ToyExtractor(nn.Module):
    """A 5×5 convolution of stride 2, batch norm, ReLU, 2×2 average pooling, and a 1×1 convolution for each answer."""

    def __init__(self, in_channels: int, capsules: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, 12, 5, stride=2, padding=2, bias=False)
        self.norm = nn.BatchNorm2d(12)
        self.pose = nn.Conv2d(12, 3 * capsules, 1)
        self.activation = nn.Conv2d(12, capsules, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, in, H, W] -> pose [B, C, 3, H', W'], activation [B, C, H', W']."""
        x = F.avg_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.pose(x).unflatten(1, (-1, 3)), torch.sigmoid(self.activation(x))


@lower_extractor.register
def _toy(extractor: ToyExtractor, build: ProgramBuilder) -> tuple[str, str]:
    value = build.convolution("toy.conv", IMAGE, extractor.conv, norm=extractor.norm, ending="relu")
    value = build.pool("toy.pool", value, "average", 2, 2)
    pose = build.convolution("toy.pose", value, extractor.pose)
    return pose, build.convolution("toy.activation", value, extractor.activation, ending="sigmoid")


def toy() -> nn.Module:
    network = create("qcn-tiny", in_channels=2, classes=5)
    assert isinstance(network, QCN)
    network.extractor = ToyExtractor(2, network.config.primary_capsules)
    return network


# Networks, and the sides of their images: odd and not square where the network takes such.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int]]] = {
    "toy": (toy, (45, 50)),
    "qcn-tiny": (lambda: create("qcn-tiny", in_channels=2, classes=5), (29, 26)),
    "cnn": (lambda: create("cnn", in_channels=2, classes=5, size=21), (21, 21)),
    "cnn-small": (lambda: create("cnn-small", in_channels=2, classes=5), (27, 27)),
    "qcn-lite0": (lambda: create("qcn-lite0", in_channels=3, classes=5), (49, 50)),
    "cnn-lite0": (lambda: create("cnn-lite0", in_channels=3, classes=5), (33, 33)),
    "qcn-tiny-64": (lambda: create("qcn-tiny", in_channels=2, classes=5, size=64), (64, 59)),
    "qcn-tiny-96": (lambda: create("qcn-tiny", in_channels=2, classes=5, size=96), (96, 96)),
    "qcn-deep": (lambda: create("qcn-deep", in_channels=2, classes=5), (23, 26)),
    "qcn-unbranched": (lambda: create("qcn-unbranched", in_channels=2, classes=5), (25, 26)),
    "qcn-64": (lambda: create("qcn", in_channels=2, classes=5, size=64), (64, 64)),
    "qcn-96": (lambda: create("qcn", in_channels=2, classes=5, size=96), (96, 96)),
}
SLOW = ("cnn-lite0", "cnn-small", "qcn-tiny-64", "qcn-tiny-96", "qcn-deep", "qcn-unbranched", "qcn-64", "qcn-96")


@dataclass
class Case:
    """A network's bundle, and its files as they are made."""

    bundle: Bundle

    def exported(self, file: str, **request: Any) -> Path:
        """A file of the bundle, exported with this request where it is not there yet."""
        if not (self.bundle.folder / file).exists():
            if request:
                export(self.bundle.folder, None, ExportRequest(**request), Path("nowhere"))
            else:
                assert Job(self.bundle, ExportRequest(("trt",))).add(GRAPH).file == file
            self.bundle = Bundle.open(self.bundle.folder)
        return self.bundle.folder / file


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in NETWORKS]
)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A network in which no statistic and no bias is where it began."""
    make, sides = NETWORKS[request.param]
    torch.manual_seed(0)
    network = with_quick_norms(make())
    with torch.no_grad():
        channels: Any = network.in_channels
        network.train()(torch.randn(8, channels, *sides) * 1.5 + 0.5)
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return Case(bundle_of(tmp_path_factory.mktemp("every") / request.param, network.eval(), *sides))


# Backends, the files that they run, and what makes these: a style of graphs for TensorRT, or a request.
RUNS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("torch", WEIGHTS, {}),
    ("torch-fused", WEIGHTS, {}),
    ("native", WEIGHTS, {}),
    ("torchscript", "model.ts", {"formats": ("torchscript",)}),
    ("pt2", "model.pt2", {"formats": ("pt2",)}),
    ("onnxruntime", "model.onnx", {"formats": ("onnx",)}),
    ("onnxruntime", "model.fp16.onnx", {"formats": ("onnx",), "precision": "fp16"}),
    ("onnxruntime", "model.fused.onnx", {"formats": ("onnx",), "routing": "fused"}),
    ("onnxruntime", "model.tensorrt.onnx", {}),
    ("openvino", "model.xml", {"formats": ("openvino",)}),
    ("litert", "model.tflite", {"formats": ("litert",)}),
)


@pytest.mark.parametrize(
    ("backend", "file", "request_"),
    [pytest.param(*run, marks=[pytest.mark.slow] * (run[0] == "pt2"), id=f"{run[0]} {run[1]}") for run in RUNS],
)
def test_answers_are_within_the_manifests_tolerance(
    case: Case, backend: str, file: str, request_: dict[str, Any]
) -> None:
    if "routing" in request_ and not case.bundle.program().routes:
        with pytest.raises(UsageError, match="has no capsule layers to fuse: leave out --routing fused"):
            case.exported(file, **request_)
        pytest.skip("a CNN has no capsule layers to fuse")
    golden = case.bundle.golden()
    try:
        path = case.exported(file, **request_)
        with create_runner(backend, path) as runner:
            found = runner.infer(golden.input)
    except MissingError as missing:
        pytest.skip(str(missing))
    hold(case.bundle, file, found)


def test_unrolled_routing_in_torch_is_within_it_too(case: Case) -> None:
    program, images = case.bundle.program(), torch.from_numpy(case.bundle.golden().input)
    found = Interpreter(program, kernels="unrolled")(images)
    hold(case.bundle, WEIGHTS, {out.name: x.detach().numpy() for out, x in zip(program.outputs, found, strict=True)})


def hold(bundle: Bundle, file: str, found: dict[str, Array]) -> None:
    """Every output is as near to the golden answers as the manifest asks of this file."""
    golden, allowed = bundle.golden(), bundle.find(file).tolerance
    assert allowed is not None and set(allowed) == set(golden.outputs) <= set(found)
    for name, tolerance in allowed.items():
        exact = getattr(golden.reference, name)
        assert (found[name].dtype, found[name].shape) == (np.float32, exact.shape), name
        error = abs(found[name] - exact).max()
        assert error <= tolerance, f"{name}: {error} where {tolerance} is allowed"


def test_an_engine_is_built(case: Case) -> None:
    """By TensorRT-RTX, whose builder needs no GPU. Its layers are in the precision asked for."""
    pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT-RTX has no wheel here")
    request = ExportRequest(("trt",), tensorrt="rtx", optimization=0)
    bundle, (exported,) = export(case.bundle.folder, None, request, Path("nowhere"))
    assert isinstance(exported.artefact, Artefact) and exported.receipt is not None
    assert exported.receipt.met and not exported.artefact.plugin
    assert [port["name"] for port in exported.artefact.facts["outputs"]] == [
        port.name for port in bundle.manifest.outputs
    ]
    case.bundle = bundle
    assert all(finding.state == "intact" for finding in bundle.check())


def test_the_toy_is_made_of_known_operations() -> None:
    program = lower(toy(), 45, 50)
    extractor, routes = program.operations[:4], program.operations[4:]
    assert [type(operation) for operation in extractor] == [Convolution, Pool, Convolution, Convolution]
    assert [type(operation) for operation in routes] == [Route] * 3
    assert program.shapes["toy.pool"] == (12, 11, 12)
