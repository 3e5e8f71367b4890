"""Routing as one node a capsule layer: `EMRouting` of the domain `qcn`, for the fused kernels of `deploy/`.

    inputs      pose [B, C, 3, H, W], activation [B, C, H, W], rotation [kh, kw, C, J, 3, 3] (or [1, 1, …] where all
                places of a window share their rotations), beta_u [J], beta_a [J]; the first two in float32, float16
                or bfloat16, the others in float32
    outputs     pose [B, J, 3, H', W'], activation [B, J, H', W'], in float32
    attributes  window [kh, kw], stride, iterations, mode ("logistic" or "unit"), variance_floor, mass_floor

A TensorRT plugin or a custom operator of ONNX Runtime stands behind the node. Where there is neither, the file still
runs: each node is also a function of the model, whose body is the unrolled form.
"""

from typing import Any

from onnx import FunctionProto, TensorProto, helper

from qcn.export import unrolled
from qcn.export.graph import Graph, Value
from qcn.export.network import Network, Site

DOMAIN, VERSION = "qcn", 1
OPERATOR = "EMRouting"
INPUTS = ("pose", "activation", "rotation", "beta_u", "beta_a")
OUTPUTS = ("pose_out", "activation_out")


def route(g: Graph, network: Network, site: Site, pose: Value, activation: Value, type: int) -> tuple[Value, Value]:
    """Add a capsule layer: pose [B, C, 3, H, W], activation [B, C, H, W] -> those of its parents."""
    structure = network.structure
    weights = [g.weight(name, network.arrays[f"{site.name}.{name}"]) for name in INPUTS[2:]]
    activation = g.cast("activation.cast", activation, pose.type)  # kernels take both in one type
    inputs = [pose, activation, *weights]
    attributes: dict[str, Any] = {
        "window": list(site.window),
        "stride": site.stride,
        "iterations": structure.iterations,
        "mode": structure.mode,
        "variance_floor": structure.variance_floor,
        "mass_floor": structure.mass_floor,
    }
    outputs = [Value(g.name(name), TensorProto.FLOAT) for name in ("pose", "activation")]
    node = helper.make_node(
        OPERATOR,
        [value.name for value in inputs],
        [value.name for value in outputs],
        g.name("routing"),
        domain=DOMAIN,
        overload=site.name,
        **attributes,
    )
    g.nodes.append(node)
    g.functions.append(_body(g.opset, network, site, (pose.type, activation.type), list(attributes)))
    return outputs[0], outputs[1]


def _body(opset: int, network: Network, site: Site, types: tuple[int, int], attributes: list[str]) -> FunctionProto:
    """The node as a function: the unrolled form, with its weights as constants inside."""
    g = Graph(opset)
    inputs = [Value(name, type) for name, type in zip(INPUTS[:2], types, strict=True)]
    with g.scope("unrolled"):
        outputs = unrolled.route(g, network, site, inputs[0], inputs[1], types[0])
    given = zip(OUTPUTS, outputs, strict=True)
    renamed = [helper.make_node("Identity", [value.name], [name], name) for name, value in given]
    constants = [helper.make_node("Constant", [], [name], name, value=value) for name, value in g.weights.items()]
    return helper.make_function(
        DOMAIN,
        OPERATOR,
        list(INPUTS),
        list(OUTPUTS),
        [*constants, *g.nodes, *renamed],
        [helper.make_opsetid("", opset)],
        attributes,
        overload=site.name,
        doc_string=f"EM routing of {site.name}",
    )
