"""Programs survive their JSON, and what does not make a program is refused with what is wrong."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qcn import create
from qcn.errors import UsageError
from qcn.export.program.lower import lower
from qcn.export.program.program import Affine, Array, Convolution, Output, Pool, Program, Route, Value

Record = dict[str, Any]
CASES = json.loads((Path(__file__).parents[1] / "programs.json").read_text(encoding="utf-8"))["cases"]


@pytest.fixture(scope="module")
def program() -> Program:
    """Of a network that was not trained: what it answers does not matter here."""
    return lower(create("qcn-tiny", in_channels=1, classes=10), 28, 28)


@pytest.fixture(scope="module")
def cnn() -> Program:
    return lower(create("cnn", in_channels=2, classes=3, size=12), 12, 12)


def operation(record: Record, name: str) -> Record:
    return next(one for one in record["operations"] if one["name"] == name)


def test_a_program_survives_json(program: Program, cnn: Program) -> None:
    for one in (program, cnn, program.at("fp16", rest="bf16")):
        again = Program.from_json(one.to_json(), one.arrays)
        assert again == one
        assert again.to_json() == one.to_json()


def test_products_and_the_rest_have_their_own_precision(program: Program) -> None:
    halved = program.at("fp16")
    assert {operation.precision for operation in program.operations} == {"fp32"}
    expected = {Affine: "fp32", Convolution: "fp16", Route: "fp32"}
    assert {type(one): one.precision for one in halved.operations} == expected
    assert {one.precision for one in program.at("bf16", rest="fp16").routes} == {"fp16"}


def test_what_a_program_says_of_itself(program: Program, cnn: Program) -> None:
    assert [route.name for route in program.routes] == ["capsules1", "capsules2", "classes"]
    assert (program.classes, cnn.classes, cnn.routes) == (10, 3, [])
    every = [output.name for output in program.outputs_with(True)]
    layers = [f"capsules{i}.{part}" for i in (1, 2) for part in ("pose", "activation")]
    assert every == ["logit", "pose", *layers]
    assert cnn.outputs_with(True) == cnn.outputs
    assert program.shapes["image"] == (1, 28, 28) and program.shapes["classes.pose"] == (10, 3, 1, 1)


# A text that was altered


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda record: record.pop("outputs"), "the program: outputs is missing"),
        (lambda record: record.update(extra=1), "unknown entry 'extra'"),
        (lambda record: record.update(operations=[3]), r"operations\[0\] must be an object"),
        (lambda record: record["input"].update(shape=[1, 28.0, 28]), r"input.shape\[1\] must be an integer"),
        (lambda record: operation(record, "classes").pop("mode"), "'classes': mode is missing"),
        (lambda record: operation(record, "classes").pop("op"), "unknown operation None"),
        (lambda record: record["operations"].reverse(), "which is not there"),
        *(
            (lambda record, shape=shape: record["input"].update(shape=shape), "do not make the operation")
            for shape in ([1, 27, 28], [1, 28], [])
        ),
        (lambda record: record.update(outputs=[]), "outputs are logit .* pose"),
        (lambda record: record["outputs"].pop(0), "outputs are logit .*, not pose"),
        (lambda record: record["outputs"].reverse(), "outputs are logit .* pose"),
        (lambda record: record["outputs"][0].update(name="score"), "outputs are logit .*, not "),
        (lambda record: record["outputs"].append(record["outputs"][0]), "outputs are logit .*, not "),
        (lambda record: record["outputs"][0].update(value="nothing"), "the output 'logit' .* 'nothing'"),
        (lambda record: record["outputs"][0].update(shape=[9]), r"the output 'logit' of \[9\]"),
        (lambda record: record["outputs"][0].update(shape=[5, 2]), r"logit \[5, 2\]"),
        (lambda record: record["outputs"][0].update(shape=[-10, -1]), r"logit \[-10, -1\]"),
        (lambda record: record["outputs"][1].update(shape=[3, 10]), r"pose \[3, 10\]"),
        (lambda record: record["outputs"][1].update(shape=[10, 4]), r"the output 'pose' of \[10, 4\]"),
    ],
)
def test_an_altered_program_is_refused(program: Program, change: Callable[[Record], object], says: str) -> None:
    refused(program, change, says)


def refused(program: Program, change: Callable[[Record], object], says: str) -> None:
    record = json.loads(program.to_json())
    change(record)
    with pytest.raises(UsageError, match=says):
        Program.from_json(json.dumps(record), program.arrays)


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("classes", [{"colour": "red"}], "'classes' has an unknown entry 'colour'"),
        ("classes", [{"iterations": 2.0}, {"iterations": True}], "iterations must be an integer"),
        ("classes", [{"precision": "int8"}], "'classes' is not a convolution"),
        ("classes", [{"scale": None}], "has 'scale', and nothing in it"),
        ("classes", [{"rotation": "turns"}], "reads the array 'turns'"),
        ("classes", [{"shape": shape} for shape in ([9, 1, 1], [0, 1, 1], [], [10, 1, -1])], r"'classes' of \["),
        ("classes", [{"window": [0, 1]}, {"iterations": 0}, {"iterations": 6}, {"scale": 1.0}], "do not .* 'classes'"),
        ("capsules1", [{"stride": 1}, {"stride": 0}, {"stride": -1}], "do not make the operation 'capsules1'"),
        ("capsules2", [{"name": "capsules1"}], "two operations .* 'capsules1'"),
        ("pose.0.conv1", [{"precision": "int8"}], "do not make .* in int8"),
        ("pose.0.conv1", [{"input_scales": []}], "'input_scales', and nothing in"),
        ("pose.0.conv1", [{"input_scales": [0.1]}], "do not make .* in fp32"),
        ("pose.0.conv1", [{"strides": [1]}, {"strides": []}, {"strides": [0]}], "do not make .* 'pose.0.conv1'"),
        ("pose.0.conv1", [{"paddings": [-1]}, {"paddings": [1, 1]}, {"inputs": []}], "'pose.0.conv1'"),
        ("pose.0.conv2", [{"inputs": ["pose.0.conv1"]}, {"paddings": [1, 1]}], "'pose.0.conv2'"),
        ("pose.entry", [{"ending": "tanh"}], "ending must be one of 'none'"),
        ("pose.entry", [{"op": "softplus"}, {"op": ["affine"]}], "unknown operation"),
        ("pose.entry", [{"op": "pool"}], "'pose.entry' has an unknown entry 'scale'"),
        ("pose.entry", [{"input": "pixels"}, {"input": "classes.pose"}], "reads the value '(pixels|classes.pose)'"),
        ("pose.entry", [{"name": "image"}], "two values .* named 'image'"),
        ("pool1", [{"kind": "least"}], "kind must be one of"),
        ("pool1", [{"kernel": 0}, {"stride": 3}, {"kernel": 13}], "do not make the operation 'pool1'"),
        ("hidden", [{"shape": [1023]}, {"shape": [1024, 1]}, {"input": "pool1"}], "do not make the operation 'hidden'"),
    ],
)
def test_an_altered_operation_is_refused(
    program: Program, cnn: Program, name: str, changes: list[Record], says: str
) -> None:
    for change in changes:
        refused(
            cnn if name in ("pool1", "hidden") else program, lambda r, to=change: operation(r, name).update(to), says
        )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_shared_cases_of_outputs(case: Record) -> None:
    """libqcn is tested on the same ones (deploy/tests/test_programs.cpp)."""
    arrays = {name: np.full(shape, 0.5, np.float32) for name, shape in case["arrays"].items()}
    if case["taken"]:
        Program.from_json(case["program"], arrays)
        return
    with pytest.raises(UsageError):
        Program.from_json(case["program"], arrays)


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[]", "3", '"text"', "{}", '{"input": 1, "input": 1}', "[" * 100_000]
)
def test_a_text_that_holds_no_program_is_refused(program: Program, text: str) -> None:
    with pytest.raises(UsageError):
        Program.from_json(text, program.arrays)


# Arrays that were altered


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("pose.projection.bias", None, "reads the array 'pose.projection.bias', which is not there"),
        ("classes.rotation", None, "reads the array 'classes.rotation', which is not there"),
        ("pose.entry.scale", lambda array: array[:0], "do not make the operation 'pose.entry'"),
        ("pose.0.conv1.weight", lambda array: array[:-1], "do not make the operation 'pose.0.conv1'"),
        ("pose.0.conv1.weight", lambda array: array[..., :2], "do not make the operation 'pose.0.conv1'"),
        ("pose.1.conv2.skip", lambda array: array[..., 0], "do not make the operation 'pose.1.conv2'"),
        ("activation.projection.weight", lambda array: array[0, 0, 0, 0], "'activation.projection'"),
        ("capsules1.rotation", lambda array: array[..., 0], "do not make the operation 'capsules1'"),
        ("capsules1.rotation", lambda array: array[:2], "do not make the operation 'capsules1'"),
        ("capsules1.rotation", lambda array: array[:, :, :, :-1], "do not make the operation 'capsules1'"),
        ("capsules2.beta_a", lambda array: array[None], "do not make the operation 'capsules2'"),
        ("classes.rotation", lambda array: array[:, :, :, :-1], "do not make the operation 'classes'"),
        ("classes.beta_u", lambda array: array.astype(np.float64), "'classes.beta_u' must be float32, not float64"),
        ("classes.beta_u", lambda array: array.astype(np.float16), "'classes.beta_u' must be float32, not float16"),
        ("surplus", lambda array: np.zeros(3, np.float32), "no operation reads the array 'surplus'"),
    ],
)
def test_altered_arrays_are_refused(
    program: Program, name: str, change: Callable[[Array], Array] | None, says: str
) -> None:
    arrays = dict(program.arrays)
    if change is None:
        del arrays[name]
    else:
        arrays[name] = change(arrays.get(name, np.zeros(())))
    with pytest.raises(UsageError, match=says):
        Program.from_json(program.to_json(), arrays)


def test_arrays_of_another_program_are_refused(program: Program, cnn: Program) -> None:
    with pytest.raises(UsageError, match="which is not there"):
        Program.from_json(program.to_json(), cnn.arrays)


# Operations that no network of ours has today


def single(operation: Any) -> Program:
    """A program of one operation without arrays, whose output is the answer."""
    answer = Output("logit", operation.name, (int(np.prod(operation.shape)),))
    return Program(Value("image", (2, 6, 8)), (operation,), (answer,), {})


def test_windows_need_not_be_square_nor_fill_the_map() -> None:
    pool = Pool(name="pool", input="image", kind="average", kernel=3, stride=2, shape=(2, 2, 3))
    assert single(pool).shapes["pool"] == (2, 2, 3)
    with pytest.raises(UsageError, match="do not make the operation 'pool'"):
        single(replace(pool, shape=(2, 3, 4)))
    route = Route(
        name="r",
        pose="pose",
        activation="image",
        rotation="R",
        beta_u="u",
        beta_a="a",
        window=(5, 2),
        stride=2,
        iterations=5,
        mode="unit",
        ending="none",
        shape=(4, 1, 4),
    )
    spread = Convolution(
        name="pose",
        inputs=("image",),
        weights=("w",),
        bias="b",
        strides=(1,),
        paddings=(0,),
        ending="none",
        shape=(6, 6, 8),
    )
    arrays = {"w": (6, 2, 1, 1), "b": (6,), "R": (5, 2, 2, 4, 3, 3), "u": (4,), "a": (4,)}
    zeros = {name: np.zeros(shape, np.float32) for name, shape in arrays.items()}
    outputs = (Output("logit", "r.logit", (16,)), Output("pose", "r.pose", (16, 3)))
    routed = Program(Value("image", (2, 6, 8)), (spread, route), outputs, zeros)
    assert routed.shapes["r.pose"] == (4, 3, 1, 4)
    shared = {**zeros, "R": np.zeros((1, 1, 2, 4, 3, 3), np.float32)}
    assert replace(routed, arrays=shared).arrays["R"].shape[:2] == (1, 1)
    with pytest.raises(UsageError, match="do not make the operation 'r'"):
        replace(routed, arrays={**zeros, "R": np.zeros((2, 5, 2, 4, 3, 3), np.float32)})
