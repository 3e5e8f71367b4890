"""Bundles of small networks, honest ones and ones with a fault planted in them that no hash can show.

A fault is planted by altering an artefact or the manifest and writing the new hashes: only the parity check can see it.
Used by the tests and by benchmarks/faults.py.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from bundles import trained_network
from graphs import (
    above_size,
    another_class,
    at_odd_sizes,
    at_place,
    at_size,
    behind,
    by_companions,
    chance,
    channels_swapped,
    declared,
    half_sums,
    half_variance,
    in_reverse,
    not_a_number_for_denormals,
    one_class_off,
    padding_by_one,
    put_golden,
    put_graph,
    scaled,
    softmax_over,
    tf32,
    transposed_pose,
    without_first_relu,
)
from onnx import helper
from styles import STYLES

from qcn import create
from qcn.data.spec import Preprocessing
from qcn.direction import Directions
from qcn.export.backends.native.runner import NativeRunner
from qcn.export.backends.onnx.build import build
from qcn.export.backends.torch.interpreter import Interpreter
from qcn.export.bundle import WEIGHTS, Bundle, weights
from qcn.export.bundle.manifest import MANIFEST_SHA256, BundleSource, Manifest, manifest_sums, ports
from qcn.export.calibrated import write_calibrated
from qcn.export.pipeline import FROM_RUN
from qcn.export.program.lower import lower
from qcn.export.program.program import Product, Program, Route
from qcn.export.program.quantise import halved, quantised
from qcn.export.program.reference import golden_of, with_edge_cases
from qcn.names import MANIFEST

SIZE, CLASSES = 24, ("above", "below", "left", "right")  # as folders of pictures would have them
TURNS = "the direction of "  # … noise 3 turns by 43°, where 0.01° is allowed
SPEC = Preprocessing(mean=(0.45, 0.35, 0.25), std=(0.2, 0.3, 0.4))


def trained(seed: int, size: int = SIZE, model: str = "qcn-tiny") -> Any:
    return trained_network(model, 3, len(CLASSES), size, size, seed=seed)


def honest(
    folder: Path,
    seed: int = 0,
    routing: Any = "unrolled",
    precision: Any = "fp32",
    size: int = SIZE,
    images: int = 6,
    model: str = "qcn-tiny",
) -> Bundle:
    """A bundle of a network of three channels, with weights, golden answers and one ONNX graph."""
    network = trained(seed, size, model)
    program = lower(network, size, size)
    image, outputs = ports(program.input.shape, program.classes, poses=program.poses)
    source = BundleSource("0" * 64, model, "last", 1, "noise", "0" * 64)
    shape = (3, size, size)
    manifest = Manifest("planted", CLASSES, shape, SPEC, image, outputs, source, {})
    pixels = np.random.default_rng(seed).integers(0, 256, (images, *shape), np.uint8)
    rows = [f"noise {index}" for index in range(images)]
    labels = [index % len(CLASSES) for index in range(images)]
    answers = golden_of(network, with_edge_cases(rows, pixels, labels, SPEC), CLASSES)
    bundle = Bundle.create(folder, manifest, program, lambda: answers, FROM_RUN)
    put_graph(bundle, build(program.at(precision, rest=precision), style=STYLES[routing]), precision)
    return bundle


def calibrated_program(program: Program, inputs: Any, first: str | None = None) -> Program:
    """All convolutions in int8, with scales from the largest values on these inputs, and all capsule layers in fp16.

    Those before the operation `first` stay float32.
    """
    products = [op.name for op in program.operations if isinstance(op, Product)]
    lowered = products[products.index(first) if first else 0 :]
    network, values = Interpreter(program, kernels="reference"), {program.input.name: torch.from_numpy(inputs)}
    result = program
    with torch.inference_mode():
        for op in program.operations:
            if isinstance(op, Product) and op.name in lowered:
                scales = [float(values[name].abs().max()) / 127 for name in op.reads]
                result = quantised(result, op.name, [max(scale, 1e-3) for scale in scales])
            found = network.operation(op, [values[name] for name in op.reads])
            values |= {value.name: tensor for value, tensor in zip(op.outputs, found, strict=True)}
    for route in program.routes:
        result = halved(result, route.name)
    return result


def calibrated(
    folder: Path,
    seed: int = 0,
    size: int = SIZE,
    images: int = 6,
    model: str = "qcn-tiny",
    first: str | None = None,
) -> Bundle:
    """A bundle of a calibrated network, with its plan's answers and model.int8.onnx."""
    base = honest(folder / "float32", seed=seed, size=size, images=images, model=model)
    program = calibrated_program(base.program(), base.golden().input, first)
    return write_calibrated(base, program, folder / "int8", {"sha256": "0" * 64}, "qcn calibrate RUN --out {bundle}")


def altered_program(change: Callable[[Program], Program], routing: Any = "unrolled") -> Callable[[Bundle], None]:
    """The graph of an altered program, while golden answers are the honest one's."""
    return lambda bundle: put_graph(bundle, build(change(bundle.program()), style=STYLES[routing]))


def array(name: str, change: Callable[[Any], Any]) -> Callable[[Program], Program]:
    return lambda program: with_arrays(program, {name: change(program.arrays[name].copy()).astype(np.float32)})


def with_arrays(program: Program, arrays: dict[str, Any]) -> Program:
    return replace(program, arrays={**program.arrays, **arrays})


def one_iteration(program: Program) -> Program:
    operations = (replace(op, iterations=1) if isinstance(op, Route) else op for op in program.operations)
    return replace(program, operations=tuple(operations))


def other_floor(routing: Any) -> Callable[[Bundle], None]:
    """A graph with ten times the ε under the variance."""

    def plant(bundle: Bundle) -> None:
        with mock.patch("qcn.export.backends.onnx.unrolled.VARIANCE_FLOOR", 1e-3):
            put_graph(bundle, build(bundle.program(), style=STYLES[routing]))

    return plant


def one_rotor_backwards(rotation: Any) -> Any:
    """The rotor of −θ is the inverse rotation."""
    rotation[1, 1, 2, 3] = rotation[1, 1, 2, 3].T
    return rotation


def parents_swapped(rotation: Any) -> Any:
    """Of the first two of a layer."""
    rotation[:, :, :, [0, 1]] = rotation[:, :, :, [1, 0]]
    return rotation


def betas_swapped(program: Program) -> Program:
    a, u = "capsules1.beta_a", "capsules1.beta_u"
    return with_arrays(program, {a: program.arrays[u], u: program.arrays[a]})


def rounded_to_half(program: Program) -> Program:
    """Every weight, while everything is still computed in float32."""
    halves = {name: array.astype(np.float16) for name, array in program.arrays.items()}
    return with_arrays(program, {name: array.astype(np.float32) for name, array in halves.items()})


def unfolded_norm(program: Program) -> Program:
    """As if a convolution had kept its own weights, and its batch norm had been left out."""
    honest = trained(0).extractor.pose[0]
    weight = honest.conv1.weight.detach().numpy()
    return with_arrays(program, {"pose.0.conv1.weight": weight, "pose.0.conv1.bias": np.zeros(24, np.float32)})


def manifest_with(**changes: Any) -> Callable[[Bundle], None]:
    """Other pre-processing in the manifest, and in what the golden answers say of it."""

    def plant(bundle: Bundle) -> None:
        spec = replace(bundle.manifest.preprocessing, **changes)
        answers = replace(bundle.golden(), preprocessing=spec)
        put_golden(bundle, answers)
        manifest = replace(bundle.manifest, preprocessing=spec)
        (bundle.folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        (bundle.folder / MANIFEST_SHA256).write_bytes(manifest_sums(manifest.to_json().encode()))

    return plant


def truncated(file: str, format: Any) -> Callable[[Bundle], None]:
    def plant(bundle: Bundle) -> None:
        content = (bundle.folder / file).read_bytes()
        with bundle.adding(file, format, "fp32", FROM_RUN) as draft:
            draft.path.write_bytes(content[: len(content) // 2])

    return plant


def faulty_weights(bundle: Bundle) -> None:
    altered = array("capsules2.rotation", one_rotor_backwards)(bundle.program())
    with bundle.adding(WEIGHTS, "native", "fp32", FROM_RUN) as draft:
        weights.write(draft.path, altered)


def other_classes(bundle: Bundle) -> None:
    """The graph of a network that tells five things apart."""
    network = create("qcn-tiny", in_channels=3, classes=5).eval()
    put_graph(bundle, build(lower(network, SIZE, SIZE)))


def turning(**axes: tuple[float, float, float]) -> Callable[[Bundle], None]:
    """A graph whose poses have these axes, in a bundle that tells directions by them."""

    def plant(bundle: Bundle) -> None:
        directions = Directions((1,) * len(CLASSES), True, (), (10.0,))
        manifest = replace(bundle.manifest, direction=directions).to_json()
        (bundle.folder / MANIFEST).write_text(manifest, encoding="utf-8")
        (bundle.folder / MANIFEST_SHA256).write_bytes(manifest_sums(manifest.encode()))
        matrix = np.float32([axes.get(name, unit) for name, unit in zip("xyz", np.eye(3), strict=True)])
        behind("pose", helper.make_node("MatMul", ["right", "axes"], ["pose"]), axes=matrix.T)(
            Bundle.open(bundle.folder)
        )

    return plant


Answer = dict[str, Any]
# What a faulty runner answers, of the call's number from 1 on, the right answer, and the one before (None at first).
Spoil = Callable[[int, Answer, Answer | None], Answer]


@contextmanager
def spoilt(spoil: Spoil) -> Iterator[None]:
    """libqcn's runner with a fault that has a memory, which no graph has: every newly opened one begins anew."""
    honest_open, honest_infer = NativeRunner.open, NativeRunner.infer

    def opened(self: Any) -> None:
        honest_open(self)
        self.calls, self.before = 0, None

    def infer(self: Any, images: Any) -> Answer:
        right = honest_infer(self, images)
        self.calls += 1
        answer = spoil(self.calls, right, self.before)
        self.before = right
        return answer

    with mock.patch.object(NativeRunner, "open", opened), mock.patch.object(NativeRunner, "infer", infer):
        yield


def times(factor: float, answer: Answer) -> Answer:
    return {**answer, "logit": answer["logit"] * np.float32(factor)}


def from_call(number: int) -> Spoil:
    return lambda call, right, before: times(0.9, right) if call >= number else right


def every(number: int) -> Spoil:
    return lambda call, right, before: right if call % number else times(0.9, right)


def of_the_call_before(call: int, right: Answer, before: Answer | None) -> Answer:
    """What a buffer that is read too early holds, where it has the right size."""
    if before is None or len(before["logit"]) != len(right["logit"]):
        return right
    return {**right, **{name: before[name] for name in ("logit", "pose")}}


def drifting(call: int, right: Answer, before: Answer | None) -> Answer:
    """A little further off with every call, as a sum that is not cleared is."""
    return times(1 + 2e-6 * call, right)


def one_number(call: int, right: Answer, before: Answer | None) -> Answer:
    """One number of one pose is none, in one call."""
    pose = right["pose"].copy()
    if call == 33:
        pose[-1, -1, -1] = np.nan
    return {**right, "pose": pose}


def left_over(call: int, right: Answer, before: Answer | None) -> Answer:
    """After a larger batch the last answer of a smaller one is not written: what was there is left over."""
    if before is None or len(before["logit"]) <= len(right["logit"]):
        return right
    place = len(right["logit"]) - 1
    kept = {name: np.concatenate([right[name][:place], before[name][[place]]]) for name in ("logit", "pose")}
    return {**right, **kept}


@dataclass(frozen=True)
class Fault:
    """What `plant` does to an honest bundle, or `spoil` to libqcn's runner, is seen in `backend`, first at `place`, or,
    where that layer says nothing, at `next_place`; the command `says` so."""

    plant: Callable[[Bundle], None]
    place: str | None
    backend: str = "onnxruntime"
    says: str = ""
    precision: str = "fp32"
    spoil: Spoil | None = None
    next_place: str | None = None

    def running(self) -> AbstractContextManager[None]:
        """In which the command is to run."""
        return spoilt(self.spoil) if self.spoil else nullcontext()


def with_memory(spoil: Spoil, says: str) -> Fault:
    return Fault(lambda bundle: None, "logit", "native", says, spoil=spoil)


FAULTS = {
    "one rotor turns backwards": Fault(
        altered_program(array("capsules2.rotation", one_rotor_backwards)), "capsules2/iteration1/mean"
    ),
    "one rotor turns backwards, in the graph for TensorRT": Fault(
        altered_program(array("capsules2.rotation", one_rotor_backwards), "tensorrt"), "capsules2/iteration1/mean"
    ),
    "one rotor turns backwards, in the weights, by libqcn": Fault(
        faulty_weights, "capsules2/iteration1/mean", "native"
    ),
    "one rotor turns backwards, in the weights, by torch": Fault(faulty_weights, "capsules2/iteration1/mean", "torch"),
    "one routing iteration dropped": Fault(
        altered_program(one_iteration), "capsules1/iteration2/mean", says="not there"
    ),
    "another ε under the variance": Fault(other_floor("unrolled"), "capsules1/iteration1/variance"),
    "another ε, in the graph for TensorRT": Fault(other_floor("tensorrt"), "capsules1/iteration1/variance"),
    "a batch norm not folded": Fault(altered_program(unfolded_norm), "capsules1/iteration1/mean"),
    "the RMS between layers not folded": Fault(
        altered_program(array("capsules2.rotation", lambda rotation: rotation * 1.1)), "capsules2/iteration1/mean"
    ),
    "a bias of the classes lost": Fault(
        altered_program(array("classes.beta_a", np.zeros_like)), "classes/iteration1/logit"
    ),
    "two capsules swapped": Fault(
        altered_program(array("capsules2.rotation", parents_swapped)), "capsules2/iteration1/mean"
    ),
    "β_a and β_u swapped": Fault(altered_program(betas_swapped), "capsules1/iteration1/logit"),
    "the softmax over another axis": Fault(softmax_over(0), "capsules2/iteration2/mean"),
    "a bias of a convolution lost": Fault(
        altered_program(array("pose.0.conv1.bias", np.zeros_like)), "capsules1/iteration1/mean"
    ),
    "a ReLU left out": Fault(without_first_relu, "capsules1/iteration1/mean"),
    "a padding off by one": Fault(padding_by_one, "capsules1/iteration1/mean"),
    "weights rounded to float16, in an fp32 graph": Fault(
        altered_program(rounded_to_half), "capsules1/iteration1/mean"
    ),
    "one class off by a thousandth": Fault(one_class_off(1e-3), "logit"),
    "poses a thousandth too long": Fault(scaled("pose", 1.001), "pose"),
    "wrong for one image alone": Fault(at_size(1), "logit", says="for images that are given alone"),
    "wrong for several images at once": Fault(above_size(1), "logit", says="or more; first at call"),
    "wrong in batches of 8": Fault(at_size(8), "logit", says="in batches of 8; first at call"),
    "wrong in batches of 64": Fault(at_size(64), "logit", says="in batches of 64; first at call"),
    "wrong in batches of more than 32": Fault(above_size(32), "logit", says="first at call"),
    "wrong in batches of odd size": Fault(at_odd_sizes(), "logit", says="first at call"),
    "wrong at the third place of a batch": Fault(at_place(2), "logit", says="at place 3 of a batch"),
    "wrong at the last place of a batch": Fault(at_place(1, last=True), "logit", says="first at call"),
    "answers that depend on the batch's other images": Fault(by_companions(), "logit", says="first at call"),
    "wrong from the 21st call on": with_memory(from_call(21), "from call 21 of"),
    "wrong from the 40th call on": with_memory(from_call(40), "from call 40 of"),
    "wrong in every tenth call": with_memory(every(10), "first at call 10"),
    "the answers of the call before": with_memory(of_the_call_before, "first at call 2"),
    "answers that drift from call to call": with_memory(drifting, "times what is allowed"),
    "one number of one pose not finite, in call 33": Fault(
        lambda bundle: None,
        "pose",
        "native",
        "not finite in 1 places, in 1 of 64 calls; first at call 33",
        spoil=one_number,
    ),
    "answers in reverse order": Fault(in_reverse(), "pose", says="or more; first at call"),
    "an answer left over from a larger batch": with_memory(left_over, "first at call"),
    "an fp32 graph declared bf16": Fault(declared("bf16"), None, says="declared bf16, computes in fp32"),
    "an fp16 graph declared bf16": Fault(
        declared("bf16"), None, says="declared bf16, computes in fp16", precision="fp16"
    ),
    "another class within fp16's tolerance": Fault(
        another_class, None, says="images get another class", precision="fp16"
    ),
    "other answers every time": Fault(chance(1e-2), "logit", says="two runs differ in their bits"),
    "not a number for denormal inputs": Fault(
        not_a_number_for_denormals(), "logit", says="logit is not finite in 4 places"
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
    "sums of squares in fp16": Fault(
        half_sums, "capsules2/iteration1/variance", says="not float32's sum", precision="fp16"
    ),
    "sums of squares in fp16, of the second iteration": Fault(
        lambda bundle: half_sums(bundle, where="iteration2"),
        "capsules2/iteration2/variance",
        says="not float32's sum",
        precision="fp16",
        next_place="classes/iteration2/variance",  # where the votes of capsules2 were added up in another way
    ),
    "a transposed pose": Fault(transposed_pose, "pose"),
    "an axis of poses mirrored": Fault(turning(y=(0, -1, 0)), "pose", says=TURNS),
    "two axes of poses swapped": Fault(turning(x=(0, 1, 0), y=(1, 0, 0)), "pose", says=TURNS),
    "an axis of poses a thousandth too long": Fault(turning(z=(0, 0, 1.001)), "pose", says=TURNS),
    "a truncated weight file": Fault(truncated(WEIGHTS, "native"), None, "native", "it does not run"),
    "a truncated graph": Fault(truncated("model.onnx", "onnx"), None, says="it does not run"),
    "the graph of another model": Fault(
        lambda bundle: put_graph(bundle, build(lower(trained(1), SIZE, SIZE))), "capsules1/iteration1/mean"
    ),
    "the graph of a model of other classes": Fault(other_classes, None, says="it belongs to another network"),
}
