"""Faults planted in a bundle's ONNX graph: the hash is put right, so that the parity check alone can see them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qcn.export.bundle import Bundle
from qcn.export.bundle.manifest import BUNDLE, file_of


def put_graph(bundle: Bundle, model: onnx.ModelProto, precision: Any = "fp32") -> None:
    """A graph in the bundle, with its hash."""
    file = file_of("onnx", precision)
    with bundle.adding(file, "onnx", precision, f"qcn export {BUNDLE} --format onnx") as draft:
        draft.path.write_bytes(model.SerializeToString())


def graph(bundle: Bundle) -> onnx.ModelProto:
    (file,) = (artefact.file for artefact in bundle.manifest.files if artefact.format == "onnx")
    return onnx.load(bundle.folder / file)


def channels_swapped(bundle: Bundle) -> None:
    """The graph takes BGR for RGB."""
    model = graph(bundle)
    model.graph.initializer.append(numpy_helper.from_array(np.array([2, 1, 0]), "bgr"))
    for node in model.graph.node:
        node.input[:] = ["image.bgr" if name == "image" else name for name in node.input]
    model.graph.node.insert(0, helper.make_node("Gather", ["image", "bgr"], ["image.bgr"], axis=1))
    put_graph(bundle, model)


SPLITTER = np.float32(2**13 + 1)  # c = SPLITTER · x; c − (c − x) is x less its last 13 bits, rounded


def rounding(model: onnx.ModelProto, name: str, rounded: str) -> list[onnx.NodeProto]:
    """Nodes that round float32 to eleven bits, float16's and TF32's.

    By arithmetic: of two casts that only lose digits, ONNX Runtime removes both where it has no float16 kernel.
    """
    if not any(one.name == "splitter" for one in model.graph.initializer):
        model.graph.initializer.append(numpy_helper.from_array(SPLITTER, "splitter"))
    return [
        helper.make_node("Mul", [name, "splitter"], [f"{rounded}.c"]),
        helper.make_node("Sub", [f"{rounded}.c", name], [f"{rounded}.rest"]),
        helper.make_node("Sub", [f"{rounded}.c", f"{rounded}.rest"], [rounded]),
    ]


def tf32(bundle: Bundle) -> None:
    """What goes into convolutions and products of matrices, rounded to TF32's eleven bits."""
    model = graph(bundle)
    weights = {weight.name: weight for weight in model.graph.initializer}
    nodes, rounded = [], set()
    for node in model.graph.node:
        for place in range(2) if node.op_type in ("Conv", "MatMul") else ():
            name = node.input[place]
            if name in weights:
                given = numpy_helper.to_array(weights[name])
                weights[name].CopyFrom(numpy_helper.from_array(SPLITTER * given - (SPLITTER * given - given), name))
                continue
            if name not in rounded:
                rounded.add(name)
                nodes += rounding(model, name, f"{name}.tf32")
            node.input[place] = f"{name}.tf32"
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    put_graph(bundle, model)


def half_variance(bundle: Bundle) -> None:
    """The variances of an fp16 graph held in float16, and given on as float32."""
    model = graph(bundle)
    nodes = []
    for node in model.graph.node:
        name = node.output[0]
        nodes.append(node)
        if name.endswith("/variance"):
            node.output[0] = f"{name}.wide"
            nodes += rounding(model, f"{name}.wide", name)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    put_graph(bundle, model, "fp16")


def half_sums(bundle: Bundle) -> None:
    """The sums behind the variances of an fp16 graph made in float16; all that follows is float32."""
    model = graph(bundle)
    nodes = []
    for node in model.graph.node:
        if node.output[0].endswith("/variance"):
            sums = node.input[0]
            nodes += rounding(model, sums, f"{sums}.half")
            node.input[0] = f"{sums}.half"
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    put_graph(bundle, model, "fp16")


def transposed_pose(bundle: Bundle) -> None:
    """[B, 3, K] where [B, K, 3] is due, under the right shape."""
    model = graph(bundle)
    (last,) = (node for node in model.graph.node if node.output[0] == "pose")
    last.output[0] = "pose.right"
    shape = numpy_helper.from_array(np.array([0, len(bundle.manifest.classes), 3]), "pose.shape")
    model.graph.initializer.append(shape)
    model.graph.node.append(helper.make_node("Transpose", ["pose.right"], ["pose.turned"], perm=[0, 2, 1]))
    model.graph.node.append(helper.make_node("Reshape", ["pose.turned", "pose.shape"], ["pose"]))
    put_graph(bundle, model)


def behind(output: str, *nodes: onnx.NodeProto, **constants: Any) -> Callable[[Bundle], None]:
    """Nodes that make another thing of an output of the graph, which they find under the name "right"."""

    def plant(bundle: Bundle) -> None:
        model = graph(bundle)
        (last,) = (node for node in model.graph.node if node.output[0] == output)
        last.output[0] = "right"
        model.graph.initializer.extend(numpy_helper.from_array(np.array(of), name) for name, of in constants.items())
        model.graph.node.extend(nodes)
        onnx.checker.check_model(model)
        put_graph(bundle, model)

    return plant


def scaled(output: str, factor: float) -> Callable[[Bundle], None]:
    return behind(output, helper.make_node("Mul", ["right", "factor"], [output]), factor=np.float32(factor))


def one_class_off(by: float) -> Callable[[Bundle], None]:
    """By so much, in the third of four classes."""
    return behind(
        "activation", helper.make_node("Add", ["right", "off"], ["activation"]), off=np.float32([0, 0, by, 0])
    )


def by_batch(alone: float, together: float) -> Callable[[Bundle], None]:
    """Activations times `alone` for one image, times `together` for several at once."""
    return behind(
        "activation",
        helper.make_node("Shape", ["image"], ["sides"]),
        helper.make_node("Gather", ["sides", "first"], ["images"]),
        helper.make_node("Equal", ["images", "one"], ["is_one"]),
        helper.make_node("Where", ["is_one", "alone", "together"], ["factor"]),
        helper.make_node("Mul", ["right", "factor"], ["activation"]),
        first=np.int64([0]),
        one=np.int64([1]),
        alone=np.float32(alone),
        together=np.float32(together),
    )


def chance(scale: float) -> Callable[[Bundle], None]:
    """Other activations every time."""
    return behind(
        "activation",
        helper.make_node("RandomNormalLike", ["right"], ["noise"], scale=scale),
        helper.make_node("Add", ["right", "noise"], ["activation"]),
    )


def not_a_number_for_denormals() -> Callable[[Bundle], None]:
    """As a division by what a backend has flushed to zero gives it."""
    return behind(
        "activation",
        helper.make_node("Abs", ["image"], ["sizes"]),
        helper.make_node("ReduceMax", ["sizes"], ["size"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Reshape", ["size", "column"], ["largest"]),
        helper.make_node("Less", ["largest", "normal"], ["denormal"]),
        helper.make_node("Where", ["denormal", "nan", "right"], ["activation"]),
        column=np.int64([-1, 1]),
        normal=np.finfo(np.float32).smallest_normal,
        nan=np.float32(np.nan),
    )


def without_first_relu(bundle: Bundle) -> None:
    model = graph(bundle)
    next(node for node in model.graph.node if node.op_type == "Relu").op_type = "Identity"
    put_graph(bundle, model)


def padding_by_one(bundle: Bundle) -> None:
    """The first convolution sees the image a line lower."""
    model = graph(bundle)
    first = next(node for node in model.graph.node if node.op_type == "Conv")
    (pads,) = (attribute for attribute in first.attribute if attribute.name == "pads")
    top, left, bottom, right = pads.ints
    pads.ints[:] = [top + 1, left, bottom - 1, right]
    put_graph(bundle, model)


def softmax_over(axis: int) -> Callable[[Bundle], None]:
    """Assignments of the second layer that add up to one along another axis than the parents'."""

    def plant(bundle: Bundle) -> None:
        model = graph(bundle)
        (given,) = (one for one in model.graph.initializer if one.name == "capsules2/iteration2/total.axis")
        given.CopyFrom(numpy_helper.from_array(np.int64([axis]), given.name))
        put_graph(bundle, model)

    return plant
