"""Bundles of small networks, honest ones and ones with a fault planted in them that no hash can show.

A fault is planted by altering an artefact or the manifest and mending the hashes: the parity check alone can see it.
Used by the tests and by benchmarks/faults.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from qcn import create
from qcn.data.spec import Preprocessing
from qcn.export import golden, native
from qcn.export.bundle import GOLDEN, WEIGHTS, Bundle
from qcn.export.lower import lower
from qcn.export.manifest import MANIFEST, Manifest, Source, ports
from qcn.export.network import Network
from qcn.export.onnx import build
from qcn.export.reference import golden_of, with_edge_cases
from qcn.model import QCN

SIZE, CLASSES = 24, ("left", "right", "above", "below")
SPEC = Preprocessing(mean=(0.45, 0.35, 0.25), std=(0.2, 0.3, 0.4))


def trained(seed: int, size: int = SIZE) -> QCN:
    """A qcn-tiny after a few steps on noise, so that no statistic and no bias is where it began."""
    torch.manual_seed(seed)
    network = create("qcn-tiny", in_channels=3, classes=len(CLASSES))
    assert isinstance(network, QCN)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(3):
        prediction = network.train()(torch.randn(4, 3, size, size) * 1.5 + 0.5)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(prediction.logit, torch.arange(len(CLASSES))).backward()
        optimizer.step()
    return network.eval()


def honest(
    folder: Path, seed: int = 0, routing: str = "unrolled", precision: Any = "fp32", size: int = SIZE, images: int = 6
) -> Bundle:
    """A bundle of a network of three channels, with weights, golden answers and one ONNX graph."""
    network = trained(seed, size)
    deployed = lower(network, size, size)
    image, outputs = ports(deployed.structure)
    source = Source("0" * 64, "qcn-tiny", "last", 1, "noise", "0" * 64)
    shape = (3, size, size)
    manifest = Manifest("planted", CLASSES, shape, SPEC, image, outputs, deployed.structure, source, {})
    bundle = Bundle.create(folder, manifest)
    pixels = np.random.default_rng(seed).integers(0, 256, (images, *shape), np.uint8)
    rows = [f"noise {index}" for index in range(images)]
    labels = [index % len(CLASSES) for index in range(images)]
    with bundle.adding(GOLDEN, "golden", "fp64") as draft:
        golden.write(draft.path, golden_of(network, with_edge_cases(rows, pixels, labels, SPEC)))
    with bundle.adding(WEIGHTS, "native", "fp32") as draft:
        native.write(draft.path, deployed)
    put_graph(bundle, build(deployed, routing=routing, precision=precision), precision)
    return bundle


def put_graph(bundle: Bundle, model: onnx.ModelProto, precision: Any = "fp32") -> None:
    """A graph in the bundle, with its hash."""
    with bundle.adding("model.onnx", "onnx", precision) as draft:
        draft.path.write_bytes(model.SerializeToString())


def graph(bundle: Bundle) -> onnx.ModelProto:
    return onnx.load(bundle.folder / "model.onnx")


def altered_network(change: Callable[[Network], Network], routing: str = "unrolled") -> Callable[[Bundle], None]:
    """The graph of an altered network, while golden answers are the honest one's."""
    return lambda bundle: put_graph(bundle, build(change(bundle.network()), routing=routing))


def array(name: str, change: Callable[[Any], Any]) -> Callable[[Network], Network]:
    return lambda network: Network(
        network.structure, {**network.arrays, name: change(network.arrays[name].copy()).astype(np.float32)}
    )


def structure(**changes: Any) -> Callable[[Network], Network]:
    return lambda network: replace(network, structure=replace(network.structure, **changes))


def one_rotor_backwards(rotation: Any) -> Any:
    """The rotor of −θ is the inverse rotation."""
    rotation[1, 1, 2, 3] = rotation[1, 1, 2, 3].T
    return rotation


def unfolded_norm(network: Network) -> Network:
    """As if a convolution had kept its own weights, and its batch norm had been left out."""
    honest = trained(0).extractor.pose[0]  # type: ignore[index,union-attr]
    arrays = {"pose.0.conv1.weight": honest.conv1.weight.detach().numpy()}
    return Network(network.structure, {**network.arrays, **arrays, "pose.0.conv1.bias": np.zeros(24, np.float32)})


def manifest_with(**changes: Any) -> Callable[[Bundle], None]:
    """Other pre-processing in the manifest."""

    def plant(bundle: Bundle) -> None:
        manifest = replace(bundle.manifest, preprocessing=replace(bundle.manifest.preprocessing, **changes))
        (bundle.folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")

    return plant


def channels_swapped(bundle: Bundle) -> None:
    """The graph takes BGR for RGB."""
    model = graph(bundle)
    model.graph.initializer.append(numpy_helper.from_array(np.array([2, 1, 0]), "bgr"))
    for node in model.graph.node:
        node.input[:] = ["image.bgr" if name == "image" else name for name in node.input]
    model.graph.node.insert(0, helper.make_node("Gather", ["image", "bgr"], ["image.bgr"], axis=1))
    put_graph(bundle, model)


def tf32(bundle: Bundle) -> None:
    """What goes into convolutions and products of matrices, rounded to TF32's eleven bits."""
    model = graph(bundle)
    weights = {weight.name: weight for weight in model.graph.initializer}
    splitter = np.float32(2**13 + 1)  # c = splitter · x; c − (c − x) is x less its last 13 bits, rounded
    model.graph.initializer.append(numpy_helper.from_array(splitter, "splitter"))
    nodes, rounded = [], set()
    for node in model.graph.node:
        for place in range(2) if node.op_type in ("Conv", "MatMul") else ():
            name = node.input[place]
            if name in weights:
                given = numpy_helper.to_array(weights[name])
                weights[name].CopyFrom(numpy_helper.from_array(splitter * given - (splitter * given - given), name))
                continue
            if name not in rounded:
                rounded.add(name)
                nodes += [
                    helper.make_node("Mul", [name, "splitter"], [f"{name}.c"]),
                    helper.make_node("Sub", [f"{name}.c", name], [f"{name}.rest"]),
                    helper.make_node("Sub", [f"{name}.c", f"{name}.rest"], [f"{name}.tf32"]),
                ]
            node.input[place] = f"{name}.tf32"
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    put_graph(bundle, model)


def half_variance(bundle: Bundle) -> None:
    """The variances of an fp16 graph added up in float16, and given on as float32."""
    model = graph(bundle)
    nodes = []
    for node in model.graph.node:
        name = node.output[0]
        if not name.endswith("/variance"):
            nodes.append(node)
            continue
        given = [f"{name}.{index}" for index in range(len(node.input))]
        casts = zip(node.input, given, strict=True)
        nodes += [helper.make_node("Cast", [wide], [half], to=TensorProto.FLOAT16) for wide, half in casts]
        nodes.append(helper.make_node(node.op_type, given, [f"{name}.half"]))
        nodes.append(helper.make_node("Cast", [f"{name}.half"], [name], to=TensorProto.FLOAT))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    put_graph(bundle, model, "fp16")


def transposed_pose(bundle: Bundle) -> None:
    """[B, 3, K] where [B, K, 3] is due, under the right shape."""
    model = graph(bundle)
    (last,) = (node for node in model.graph.node if node.output[0] == "pose")
    last.output[0] = "pose.right"
    shape = numpy_helper.from_array(np.array([0, len(CLASSES), 3]), "pose.shape")
    model.graph.initializer.append(shape)
    model.graph.node.append(helper.make_node("Transpose", ["pose.right"], ["pose.turned"], perm=[0, 2, 1]))
    model.graph.node.append(helper.make_node("Reshape", ["pose.turned", "pose.shape"], ["pose"]))
    put_graph(bundle, model)


def truncated(file: str, format: Any) -> Callable[[Bundle], None]:
    def plant(bundle: Bundle) -> None:
        content = (bundle.folder / file).read_bytes()
        with bundle.adding(file, format, "fp32") as draft:
            draft.path.write_bytes(content[: len(content) // 2])

    return plant


def faulty_weights(bundle: Bundle) -> None:
    altered = array("capsules2.rotation", one_rotor_backwards)(bundle.network())
    with bundle.adding(WEIGHTS, "native", "fp32") as draft:
        native.write(draft.path, altered)


def other_classes(bundle: Bundle) -> None:
    """The graph of a network that tells five things apart."""
    network = create("qcn-tiny", in_channels=3, classes=5).eval()
    put_graph(bundle, build(lower(network, SIZE, SIZE)))


@dataclass(frozen=True)
class Fault:
    """What `plant` does to an honest bundle is seen in `backend`, first at `place`, and told in the words of `says`."""

    plant: Callable[[Bundle], None]
    place: str | None
    backend: str = "onnxruntime"
    says: str = ""
    precision: str = "fp32"


FAULTS = {
    "one rotor turns backwards": Fault(
        altered_network(array("capsules2.rotation", one_rotor_backwards)), "capsules2/iteration1/mean"
    ),
    "one rotor turns backwards, in the graph for TensorRT": Fault(
        altered_network(array("capsules2.rotation", one_rotor_backwards), "pointwise"), "capsules2/iteration1/mean"
    ),
    "one rotor turns backwards, in the weights, by libqcn": Fault(
        faulty_weights, "capsules2/iteration1/mean", "native"
    ),
    "one rotor turns backwards, in the weights, by torch": Fault(faulty_weights, "capsules2/iteration1/mean", "torch"),
    "one routing iteration dropped": Fault(
        altered_network(structure(iterations=1)), "capsules1/iteration2/mean", says="not there"
    ),
    "another ε under the variance": Fault(
        altered_network(structure(variance_floor=1e-3)), "capsules1/iteration1/variance"
    ),
    "another ε, in the graph for TensorRT": Fault(
        altered_network(structure(variance_floor=1e-3), "pointwise"), "capsules1/iteration1/variance"
    ),
    "a batch norm not folded": Fault(altered_network(unfolded_norm), "capsules1/iteration1/mean"),
    "the RMS between layers not folded": Fault(
        altered_network(array("capsules2.rotation", lambda rotation: rotation * 1.1)), "capsules2/iteration1/mean"
    ),
    "a bias of the classes lost": Fault(
        altered_network(array("classes.beta_a", np.zeros_like)), "classes/iteration1/activation"
    ),
    "mean and std swapped in pre-processing": Fault(
        manifest_with(mean=SPEC.std, std=SPEC.mean), "input", says="channels 0, 1, 2"
    ),
    "channels swapped in pre-processing": Fault(
        manifest_with(mean=SPEC.mean[::-1], std=SPEC.std[::-1]), "input", says="channels 0, 2"
    ),
    "channels swapped in the graph": Fault(channels_swapped, "capsules1/iteration1/mean"),
    "TF32 left on": Fault(tf32, "capsules1/iteration1/mean"),
    "variance in fp16": Fault(
        half_variance, "capsules1/iteration1/variance", says="held in half precision", precision="fp16"
    ),
    "a transposed pose": Fault(transposed_pose, "pose"),
    "a truncated weight file": Fault(truncated(WEIGHTS, "native"), None, "native", "it does not run"),
    "a truncated graph": Fault(truncated("model.onnx", "onnx"), None, says="it does not run"),
    "the graph of another model": Fault(
        lambda bundle: put_graph(bundle, build(lower(trained(1), SIZE, SIZE))), "capsules1/iteration1/mean"
    ),
    "the graph of a model of other classes": Fault(other_classes, None, says="it is of another network"),
}
