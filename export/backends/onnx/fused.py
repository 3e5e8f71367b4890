"""Routing as one node per capsule layer: `EMRouting` of the domain `qcn`, for the fused kernels of `deploy/`.

    inputs      pose [B, C, 3, H, W], activation [B, C, H, W], rotation [kh, kw, C, J, 3, 3] (or [1, 1, …] where all
                places of a window share their rotations), beta_u [J], beta_a [J]; the first two in float32 or
                bfloat16, the others in float32
    outputs     pose [B, J, 3, H', W'], activation [B, J, H', W'] or its logit, in float32
    attributes  window [kh, kw], stride, iterations, mode ("logistic" or "unit"), logit (1: of the class layer, whose
                second output is the logit), half (1: votes may be made in float16;
                poses are float32 even so, since layers give them out in float32, and a cast is one more kernel)

A TensorRT plugin or a custom operator of ONNX Runtime stands behind the node. Where there is neither, the file still
runs: each node is also a function of the model, whose body is the unrolled form.
"""

from collections.abc import Mapping
from typing import Any

from onnx import FunctionProto, TensorProto, helper

from qcn.export.backends.onnx.graph import TYPES, GraphValue, OnnxGraph
from qcn.export.backends.onnx.unrolled import UnrolledLayer
from qcn.export.program.program import Array, Route, Shape

DOMAIN, VERSION = "qcn", 1
OPERATOR = "EMRouting"
INPUTS = ("pose", "activation", "rotation", "beta_u", "beta_a")
OUTPUTS = ("pose_out", "activation_out")


def route(
    g: OnnxGraph, op: Route, map: Shape, arrays: Mapping[str, Array], pose: GraphValue, activation: GraphValue
) -> tuple[GraphValue, GraphValue]:
    """Add a capsule layer, as one node: see `qcn.export.backends.onnx.unrolled`."""
    type_ = _input_type(op)
    pose, activation = g.cast("pose.cast", pose, type_), g.cast("activation.cast", activation, type_)
    weights = [g.weight(role, arrays[name]) for role, name in zip(INPUTS[2:], op.arrays, strict=True)]
    inputs = [pose, activation, *weights]
    attributes: dict[str, Any] = {
        "window": list(op.window),
        "stride": op.stride,
        "iterations": op.iterations,
        "mode": op.mode,
        "logit": int(op.ending == "none"),
        "half": int(op.precision == "fp16"),
    }
    outputs = [GraphValue(g.name(name), TensorProto.FLOAT) for name in ("pose", "activation")]
    node = helper.make_node(
        OPERATOR,
        [value.name for value in inputs],
        [value.name for value in outputs],
        g.name("routing"),
        domain=DOMAIN,
        overload=op.name,
        **attributes,
    )
    g.nodes.append(node)
    g.functions.append(_body(g.opset, op, map, arrays, list(attributes)))
    return outputs[0], outputs[1]


def _input_type(op: Route) -> int:
    """The type of a layer's poses and activations."""
    return TYPES["fp32" if op.precision == "fp16" else op.precision]


def _body(opset: int, op: Route, map: Shape, arrays: Mapping[str, Array], attributes: list[str]) -> FunctionProto:
    """The node as a function: the unrolled form, with its weights as constants inside."""
    g = OnnxGraph(opset)
    inputs = [GraphValue(name, _input_type(op)) for name in INPUTS[:2]]
    with g.scope("unrolled"):
        outputs = UnrolledLayer(g, op, map, arrays).write(inputs[0], inputs[1])
    pairs = zip(OUTPUTS, outputs, strict=True)
    renamed = [helper.make_node("Identity", [value.name], [name], name) for name, value in pairs]
    constants = [helper.make_node("Constant", [], [name], name, value=value) for name, value in g.weights.items()]
    return helper.make_function(
        DOMAIN,
        OPERATOR,
        list(INPUTS),
        list(OUTPUTS),
        [*constants, *g.nodes, *renamed],
        [helper.make_opsetid("", opset)],
        attributes,
        overload=op.name,
        doc_string=f"EM routing of {op.name}",
    )
