"""Faults planted in a bundle's ONNX graph: the hash is put right, so that the parity check alone can see them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from bundles import answering
from onnx import helper, numpy_helper

from qcn.export.bundle import GOLDEN, Bundle, golden
from qcn.export.bundle.manifest import Batch, file_of
from qcn.export.bundle.tolerance import tie_band, tolerances
from qcn.export.pipeline import FROM_RUN
from qcn.names import BUNDLE

BATCH = Batch(1, 8, 64)  # what `qcn export` makes


def put_graph(bundle: Bundle, model: onnx.ModelProto, precision: Any = "fp32") -> None:
    """A graph in the bundle, with its hash."""
    file = file_of("onnx", precision)
    with bundle.adding(file, "onnx", precision, f"qcn export {BUNDLE} --format onnx", batch=BATCH) as draft:
        draft.path.write_bytes(model.SerializeToString())


def put_golden(bundle: Bundle, answers: golden.Golden) -> None:
    """Golden answers in the bundle, with their hash."""
    with bundle.adding(GOLDEN, "golden", "fp64", FROM_RUN) as draft:
        golden.write(draft.path, answers)


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
                array = numpy_helper.to_array(weights[name])
                weights[name].CopyFrom(numpy_helper.from_array(SPLITTER * array - (SPLITTER * array - array), name))
                continue
            if name not in rounded:
                rounded.add(name)
                nodes += rounding(model, name, f"{name}.tf32")
            node.input[place] = f"{name}.tf32"
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    put_graph(bundle, model)


def half_variance(bundle: Bundle, precision: Any = "fp16") -> None:
    """The variances of a graph held in float16, and given on as float32."""
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
    put_graph(bundle, model, precision)


def half_sums(bundle: Bundle, precision: Any = "fp16", where: str = "") -> None:
    """The sums behind the variances of a graph, or of one iteration, made in float16; all that follows is float32."""
    model = graph(bundle)
    nodes = []
    for node in model.graph.node:
        if node.output[0].endswith(f"{where}/variance"):
            sums = node.input[0]
            nodes += rounding(model, sums, f"{sums}.half")
            node.input[0] = f"{sums}.half"
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    put_graph(bundle, model, precision)


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
        (artefact,) = (one for one in bundle.manifest.files if one.format == "onnx")
        put_graph(bundle, model, artefact.precision)

    return plant


def scaled(output: str, factor: float) -> Callable[[Bundle], None]:
    return behind(output, helper.make_node("Mul", ["right", "factor"], [output]), factor=np.float32(factor))


def one_class_off(by: float) -> Callable[[Bundle], None]:
    """By so much, in the third of four classes."""
    return behind("logit", helper.make_node("Add", ["right", "off"], ["logit"]), off=np.float32([0, 0, by, 0]))


def by_batch(wrong: Callable[[str], list[onnx.NodeProto]], **constants: Any) -> Callable[[Bundle], None]:
    """Activations times 0.9 where "wrong" is true, which these nodes make of the size of the batch."""
    return behind(
        "logit",
        helper.make_node("Shape", ["image"], ["sides"]),
        helper.make_node("Gather", ["sides", "first"], ["images"]),
        *wrong("images"),
        helper.make_node("Where", ["wrong", "spoilt", "kept"], ["factor"]),
        helper.make_node("Mul", ["right", "factor"], ["logit"]),
        first=np.int64([0]),
        spoilt=np.float32(0.9),
        kept=np.float32(1),
        **constants,
    )


def at_size(size: int) -> Callable[[Bundle], None]:
    """Wrong in batches of this size, and in no other."""
    return by_batch(lambda images: [helper.make_node("Equal", [images, "size"], ["wrong"])], size=np.int64([size]))


def above_size(size: int) -> Callable[[Bundle], None]:
    """Wrong in batches of more images."""
    return by_batch(lambda images: [helper.make_node("Greater", [images, "size"], ["wrong"])], size=np.int64([size]))


def at_odd_sizes() -> Callable[[Bundle], None]:
    """Wrong in batches of 3, 5, 7, … images, as a kernel that takes two at once may be."""
    return by_batch(
        lambda images: [
            helper.make_node("Mod", [images, "two"], ["rest"]),
            helper.make_node("Equal", ["rest", "one"], ["odd"]),
            helper.make_node("Greater", [images, "one"], ["several"]),
            helper.make_node("And", ["odd", "several"], ["wrong"]),
        ],
        two=np.int64([2]),
        one=np.int64([1]),
    )


def at_place(place: int, last: bool = False) -> Callable[[Bundle], None]:
    """Wrong for the image at this place of a batch, counted from its end if `last`; one image alone is right."""
    return by_batch(
        lambda images: [
            helper.make_node("Squeeze", [images], ["count"]),
            helper.make_node("Range", ["zero", "count", "step"], ["places"]),
            helper.make_node("Sub", ["count", "place"], ["from_end"]),
            helper.make_node("Equal", ["places", "from_end" if last else "place"], ["there"]),
            helper.make_node("Greater", ["count", "step"], ["several"]),
            helper.make_node("And", ["there", "several"], ["both"]),
            helper.make_node("Reshape", ["both", "column"], ["wrong"]),
        ],
        zero=np.int64(0),
        step=np.int64(1),
        place=np.int64(place),
        column=np.int64([-1, 1]),
    )


def by_companions() -> Callable[[Bundle], None]:
    """Answers that depend on what else is in the batch: its mean is subtracted, and the first image's added."""
    return behind(
        "logit",
        helper.make_node("ReduceMean", ["right"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Gather", ["right", "first"], ["one"], axis=0),
        helper.make_node("Sub", ["one", "mean"], ["apart"]),
        helper.make_node("Add", ["right", "apart"], ["logit"]),
        first=np.int64([0]),
    )


def in_reverse() -> Callable[[Bundle], None]:
    """The poses of a batch, last image first."""
    return behind(
        "pose",
        helper.make_node("Slice", ["right", "start", "end", "axis", "step"], ["pose"]),
        start=np.int64([-1]),
        end=np.int64([-(2**31)]),
        axis=np.int64([0]),
        step=np.int64([-1]),
    )


def another_class(bundle: Bundle) -> None:
    """Answers within fp16's tolerance that turn a decision round, though the network preferred its own by more than
    rounding in fp16 can make up for."""
    kept = bundle.golden()
    exact, allowed = kept.reference.logit, tolerances(kept, "fp16")["logit"]
    first, second = exact[0].argsort()[[-1, -2]]
    margin = 0.8 * allowed
    assert margin > 1.2 * tie_band(kept, "fp16")
    near = np.zeros(exact.shape[1], np.float32)  # what brings the first image's second class so near to its first
    near[second] = exact[0, first] - exact[0, second] - margin
    closer = (answering(of, logit=of.logit + near) for of in (kept.reference, kept.float32))
    put_golden(bundle, replace(kept, **dict(zip(("exact", "single"), closer, strict=True))))
    off = near.copy()
    off[[first, second]] += np.array([-0.6, 0.6]) * margin
    behind("logit", helper.make_node("Add", ["right", "off"], ["logit"]), off=off)(bundle)


def declared(precision: Any) -> Callable[[Bundle], None]:
    """The bundle's graph, whatever it computes in, under another precision's name."""

    def plant(bundle: Bundle) -> None:
        put_graph(bundle, graph(bundle), precision)

    return plant


def chance(scale: float) -> Callable[[Bundle], None]:
    """Other logits every time."""
    return behind(
        "logit",
        helper.make_node("RandomNormalLike", ["right"], ["noise"], scale=scale),
        helper.make_node("Add", ["right", "noise"], ["logit"]),
    )


def not_a_number_for_denormals() -> Callable[[Bundle], None]:
    """As a division by what a backend has flushed to zero gives it."""
    return behind(
        "logit",
        helper.make_node("Abs", ["image"], ["sizes"]),
        helper.make_node("ReduceMax", ["sizes"], ["size"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Reshape", ["size", "column"], ["largest"]),
        helper.make_node("Less", ["largest", "normal"], ["denormal"]),
        helper.make_node("Where", ["denormal", "nan", "right"], ["logit"]),
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
        (axis_of_total,) = (one for one in model.graph.initializer if one.name == "capsules2/iteration2/total.axis")
        axis_of_total.CopyFrom(numpy_helper.from_array(np.int64([axis]), axis_of_total.name))
        put_graph(bundle, model)

    return plant
