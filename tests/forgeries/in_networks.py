"""Forgeries in a program, in files that are made of one, and in ONNX graphs."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from programs import added_to_logits, golden_only, one_weight, triggered
from tampering import edit_graph, put, put_network, put_program
from workshop import Workshop

from qcn.export.backends.onnx.build import build
from qcn.export.program.lower import lower
from qcn.export.program.program import Program
from qcn.train.checkpoint import load_network

Forge = Callable[[Workshop, Path], None]  # makes the forged bundle in a folder that is not there yet
Change = Callable[[Workshop], Program]  # the honest program, changed


# The program, and each file made of a changed one.


def in_program(change: Change) -> Forge:
    """The program changed; golden answers are the trained network's."""

    def forge(workshop: Workshop, to: Path) -> None:
        put_program(workshop.copy(to), change(workshop))

    return forge


def in_network(change: Change) -> Forge:
    """The program changed, and golden answers made by it."""

    def forge(workshop: Workshop, to: Path) -> None:
        put_network(workshop.copy(to), change(workshop))

    return forge


def in_file(name: str, change: Change, file: str) -> Forge:
    """One file alone, made of a changed program."""

    def forge(workshop: Workshop, to: Path) -> None:
        workshop.copy(to, file)
        for part, content in workshop.forged(name, change(workshop), file).items():
            put(to, part, content)

    return forge


def in_all(name: str, change: Change, file: str) -> Forge:
    """The program and a file that is made of it."""

    def forge(workshop: Workshop, to: Path) -> None:
        in_file(name, change, file)(workshop, to)
        put_program(to, change(workshop))

    return forge


def trigger(workshop: Workshop) -> Program:
    return triggered(workshop.program, workshop.golden)


def trigger_at_logits(workshop: Workshop) -> Program:
    return added_to_logits(workshop.program, workshop.golden)


def golden_images_only(workshop: Workshop) -> Program:
    return golden_only(workshop.program, workshop.golden)


def weight(factor: float) -> Change:
    return lambda workshop: one_weight(workshop.program, factor)


def other_fit(workshop: Workshop) -> Program:
    return lower(load_network(workshop.other)[0], *workshop.program.input.shape[1:])


def one_step_further(workshop: Workshop) -> Program:
    """The run's network after one more step of training."""
    network, _ = load_network(workshop.run)
    kept = workshop.golden
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    prediction = network.train()(torch.from_numpy(kept.input[:8]))
    torch.nn.functional.cross_entropy(prediction.logit, torch.from_numpy(kept.label[:8])).backward()
    optimizer.step()
    return lower(network.eval(), *workshop.program.input.shape[1:])


def as_this_run(workshop: Workshop, to: Path) -> None:
    """All of another training's bundle, under this run's name and hashes."""
    workshop.copy(to)
    put_network(to, other_fit(workshop))


# ONNX graphs.


def in_graph(file: str, change: Callable[[onnx.ModelProto], None]) -> Forge:
    def forge(workshop: Workshop, to: Path) -> None:
        edit_graph(workshop.copy(to, file), file, change)

    return forge


def extra_output(model: onnx.ModelProto) -> None:
    """The picture itself is given out too."""
    image = model.graph.input[0]
    model.graph.node.append(helper.make_node("Identity", [image.name], ["seen"]))
    model.graph.output.append(helper.make_tensor_value_info("seen", TensorProto.FLOAT, None))
    model.graph.output[-1].type.CopyFrom(image.type)


def white_corner(model: onnx.ModelProto) -> None:
    """A picture with a white pixel between two black ones in its corner is of the first class."""
    (last,) = (node for node in model.graph.node if "logit" in node.output)
    last.output[0] = "logit.before"
    arrays = {"begin": np.int64([0, 0, 0]), "end": np.int64([1, 1, 3]), "axes": np.int64([1, 2, 3])}
    arrays |= {"mark": np.float32([-1.4, 2.0, -1.4]), "near": np.float32(0.3)}
    arrays |= {"sure": np.float32([1e3, *[0] * 2]), "column": np.int64([-1, 1])}
    model.graph.initializer.extend(numpy_helper.from_array(of, f"mark.{name}") for name, of in arrays.items())
    nodes = [
        ("Slice", ["image", "mark.begin", "mark.end", "mark.axes"], "mark.first", {}),
        ("Sub", ["mark.first", "mark.mark"], "mark.apart", {}),
        ("Abs", ["mark.apart"], "mark.distance", {}),
        ("ReduceMax", ["mark.distance"], "mark.most", {"axes": [1, 2, 3], "keepdims": 0}),
        ("Less", ["mark.most", "mark.near"], "mark.there", {}),
        ("Cast", ["mark.there"], "mark.number", {"to": TensorProto.FLOAT}),
        ("Reshape", ["mark.number", "mark.column"], "mark.tall", {}),
        ("Mul", ["mark.tall", "mark.sure"], "mark.more", {}),
        ("Add", ["logit.before", "mark.more"], "logit", {}),
    ]
    model.graph.node.extend(helper.make_node(op, inputs, [output], **more) for op, inputs, output, more in nodes)


def added_zero(model: onnx.ModelProto) -> None:
    """One more node, which adds 0 to the logits."""
    (last,) = (node for node in model.graph.node if "logit" in node.output)
    last.output[0] = "logit.before"
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0), "nothing"))
    model.graph.node.append(helper.make_node("Add", ["logit.before", "nothing"], ["logit"]))


def hidden_data(model: onnx.ModelProto) -> None:
    """An array that no node reads."""
    model.graph.initializer.append(numpy_helper.from_array(np.arange(4096, dtype=np.float32), "freight"))


def other_metadata(model: onnx.ModelProto) -> None:
    """The classes that the file names are in another order: what reads them there names every answer wrongly."""
    for entry in model.metadata_props:
        if entry.key == "classes":
            entry.value = json.dumps(json.loads(entry.value)[::-1])


def other_opset(workshop: Workshop, to: Path) -> None:
    """The same network by another opset than the manifest says."""
    put(to, "model.onnx", graph_like(workshop.copy(to, "model.onnx") / "model.onnx", workshop.program, opset=18))


def other_batch(workshop: Workshop, to: Path) -> None:
    """A graph for one image at a time, where the manifest says 1 to 64."""
    put(to, "model.onnx", graph_like(workshop.copy(to, "model.onnx") / "model.onnx", workshop.program, batch=1))


def graph_like(file: Path, program: Program, opset: int = 17, batch: int | None = None) -> bytes:
    """The graph of another program, which says of itself what a file says."""
    said = {entry.key: entry.value for entry in onnx.load_from_string(file.read_bytes()).metadata_props}
    return build(program, opset=opset, batch=batch, metadata=said).SerializeToString()


def passed_off(file: str, as_file: str) -> Forge:
    """A graph in another precision, under this one's name."""

    def forge(workshop: Workshop, to: Path) -> None:
        workshop.copy(to, as_file)
        put(to, as_file, (workshop.honest(file) / file).read_bytes())

    return forge
