"""The deployment form as an ONNX graph: convolutions, and routing either written out or as one node a capsule layer."""

from collections.abc import Mapping

import onnx
from onnx import TensorProto, helper

from qcn.export import fused, pointwise, unrolled
from qcn.export.graph import Graph, Value
from qcn.export.network import Array, Network

TYPES = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}


def build(
    network: Network,
    *,
    routing: str = "unrolled",
    precision: str = "fp32",
    batch: int | None = None,
    opset: int = 17,
    every_layer: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> onnx.ModelProto:
    """The graph, checked. `batch` None leaves the batch open."""
    structure = network.structure
    g, type = Graph(opset), TYPES[precision]
    route = {"unrolled": unrolled.route, "pointwise": pointwise.route, "fused": fused.route}[routing]
    image = Value("image", TensorProto.FLOAT)
    pose, activation = _extractor(g, network, g.cast("image.cast", image, type))
    layers: dict[str, Value] = {}
    for site in network.sites():
        with g.scope(site.name):
            pose, activation = route(g, network, site, pose, activation, type)
        if every_layer and site.name != structure.capsules[-1].name:
            layers |= {f"{site.name}.pose": pose, f"{site.name}.activation": activation}
    outputs = {
        "activation": g.reshape("output/activation.flat", activation, 0, structure.classes),
        "pose": g.reshape("output/pose.flat", pose, 0, structure.classes, 3),
        **layers,
    }
    for name, value in outputs.items():
        single = g.cast(f"output/{name}.float", value, TensorProto.FLOAT)
        g.nodes.append(helper.make_node("Identity", [single.name], [name], f"output/{name}"))
    shape = [batch or "batch", structure.channels, structure.height, structure.width]
    graph = helper.make_graph(
        g.nodes,
        "qcn",
        [helper.make_tensor_value_info(image.name, image.type, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        list(g.weights.values()),
    )
    opsets = [helper.make_opsetid("", opset)]
    if g.functions:
        opsets.append(helper.make_opsetid(fused.DOMAIN, fused.VERSION))
    model = helper.make_model(graph, opset_imports=opsets, producer_name="qcn", functions=g.functions)
    model.ir_version = max(helper.find_min_ir_version_for(opsets[:1]), 10 if g.functions else 8)  # 10: overloads
    helper.set_model_props(model, dict(metadata or {}))
    model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    onnx.checker.check_model(model, full_check=True)
    return model


def _extractor(g: Graph, network: Network, image: Value) -> tuple[Value, Value]:
    """Primary capsules: pose [B, C, 3, H, W], activation [B, C, H, W]."""
    structure, arrays = network.structure, network.arrays
    trunk = _stack(g, network, "stem", structure.stem, image)
    found = {}
    for name, strides in (("pose", structure.pose), ("activation", structure.activation)):
        x = _stack(g, network, name, strides, trunk)
        weight, bias = arrays[f"{name}.projection.weight"], arrays[f"{name}.projection.bias"]
        found[name] = _conv(g, f"{name}/projection", x, weight, bias)
    first = next(network.sites())
    pose = g.reshape("pose/capsules", found["pose"], 0, first.children, 3, first.height, first.width)
    with g.scope("activation"):
        return pose, g.sigmoid("sigmoid", g.cast("float", found["activation"], TensorProto.FLOAT))


def _stack(g: Graph, network: Network, name: str, strides: tuple[int, ...], x: Value) -> Value:
    """Residual blocks, as `qcn.export.network` has them."""
    arrays = network.arrays
    with g.scope(name):
        if f"{name}.scale" in arrays:
            scale = g.weight("scale", arrays[f"{name}.scale"][:, None, None], x.type)
            shift = g.weight("shift", arrays[f"{name}.shift"][:, None, None], x.type)
            x = g.node("Relu", "relu", g.node("Add", "shifted", g.node("Mul", "scaled", x, scale), shift))
        for i, stride in enumerate(strides):
            block = f"{name}.{i}"
            with g.scope(f"block{i + 1}"):
                y = _conv(g, "conv1", x, arrays[f"{block}.conv1.weight"], arrays[f"{block}.conv1.bias"], stride)
                y = g.node("Relu", "conv1.relu", y)
                y = _conv(g, "conv2", y, arrays[f"{block}.conv2.weight"], arrays[f"{block}.conv2.bias"])
                skip = _conv(g, "skip", x, arrays[f"{block}.skip.weight"], None, stride)
                x = g.node("Relu", "relu", g.node("Add", "sum", y, skip))
    return x


def _conv(g: Graph, name: str, x: Value, weight: Array, bias: Array | None, stride: int = 1) -> Value:
    """A convolution that keeps the size of its map but for the stride."""
    given = [g.weight(f"{name}.weight", weight, x.type)]
    if bias is not None:
        given.append(g.weight(f"{name}.bias", bias, x.type))
    return g.node("Conv", name, x, *given, strides=[stride, stride], pads=[weight.shape[-1] // 2] * 4)
