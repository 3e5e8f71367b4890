"""The trained network's own answers, for golden.safetensors: by the reference routing, in float64 and float32.

They have not gone through lower.py: a fault of folding must show when an artefact is compared with them.
What a program answers (`evaluated`) is for images that the trained network is not there for, and for calibrated
networks, whose plan is their program.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from qcn import routing
from qcn.data.imageset import ImageSet
from qcn.data.preprocess import preprocess
from qcn.data.registry import read
from qcn.data.spec import Preprocessing
from qcn.data.viewpoints.dataset import Variant, render
from qcn.data.viewpoints.toys import CATEGORIES
from qcn.errors import BuildError, CheckFailed, UsageError
from qcn.export.backends.torch.interpreter import DTYPES, Interpreter, end, groups
from qcn.export.bundle.golden import QUANTITIES, Evaluation, Floors, Golden, step_names
from qcn.export.bundle.tolerance import HALVES
from qcn.export.program.lower import CLASSES, lower
from qcn.export.program.program import Array, Convolution, Operation, Pool, Product, Program, Route, Sum
from qcn.networks.baselines import CNN, ResidualCNN
from qcn.networks.lite0 import Lite0CNN
from qcn.networks.model import QCN, choose_kernels
from qcn.rounding import rounded
from qcn.terminal.progress import doing
from qcn.train.record import Run

REAL = 16  # images of the data set among the golden ones, beside the edge cases
SHIPPED_REAL = 4  # the same in a bundle that comes with the product, which is to be small
BATCH = 4  # the votes of a full-size QCN take 0.2 GB per image in float64
STEPPED = 2  # rows whose routing is kept step by step: they show where a fault is, all rows show that there is one
DENORMAL = "denormal"
# By what share of itself float32 may move a number before it is rounded to int8: two units in the last place. What lies
# nearer to the middle between two steps may become either.
NUDGE = 2.0**-22
HALVED = 6  # rows at either end that half precisions are tried on: images of the data set, and the edge cases
LAYERED = 8  # rows of a calibrated network whose layers are kept: its bundle is to be small


@dataclass(frozen=True)
class Inputs:
    """The inputs of a network: the fields of `Golden` that are known before it answers."""

    rows: tuple[str, ...]
    preprocessing: Preprocessing
    image: NDArray[np.uint8]
    label: NDArray[np.int64]
    input: NDArray[np.float32]
    inputs_only: tuple[str, ...]


def make_golden(network: nn.Module, run: Run, data_dir: Path, *, of_toys: bool = False, count: int = REAL) -> Golden:
    """`count` images of the test splits of the run's data set, and edge cases, with its network's answers to them.

    With `of_toys` no data set is read: rendered toys are in the place of its images.
    """
    dataset = run.dataset()
    dataset.check_fits(run.classes, run.data.image)
    samples = toys(run.data.image, count) if of_toys else real_images(read(dataset, data_dir).tests, count)
    rows, images, labels = zip(*samples, strict=True)
    inputs = with_edge_cases(rows, np.stack(images), labels, run.preprocessing)
    doing("making golden answers, in float64")
    return golden_of(network, inputs, tuple(run.classes))


def golden_of(network: nn.Module, inputs: Inputs, classes: tuple[str, ...]) -> Golden:
    """The answers of a network with these classes to these inputs; it is refused if they are not finite."""
    images = torch.from_numpy(inputs.input)
    exact, single = answers(network, images.double()), answers(network, images)
    for name, logit, pose in zip(inputs.rows, exact.logit, exact.pose, strict=True):
        if not (np.isfinite(logit).all() and np.isfinite(pose).all()):
            raise CheckFailed(
                f"the trained network's answer to the image '{name}' is not finite: it cannot be exported"
            )
    floors = half_floors(lower(network, *inputs.input.shape[2:]), inputs.input)
    return Golden(**vars(inputs), classes=classes, reference=exact, float32=single, floors=floors)


def with_edge_cases(
    rows: Sequence[str], images: NDArray[np.uint8], labels: Sequence[int], spec: Preprocessing
) -> Inputs:
    """Images [N, C, H, W] pre-processed, and edge cases behind them; denormal inputs, which no image gives, last."""
    edges = {**edge_images(images.shape[1:]), DENORMAL: np.zeros(images.shape[1:], np.uint8)}
    raw = np.concatenate([images, *(edge[None] for edge in edges.values())])
    network_inputs = preprocess(torch.from_numpy(raw), spec).numpy()
    network_inputs[-1] = denormal_input(network_inputs.shape[1:])
    label = np.array([*labels, *[-1] * len(edges)], np.int64)
    return Inputs((*rows, *edges), spec, raw, label, network_inputs, (DENORMAL,))


def answers(network: nn.Module, image: Tensor) -> Evaluation:
    """Evaluate a network on `image` [N, C, h, w], in the image's precision. Layers are named as in lower.py."""
    network = copy.deepcopy(network).to(image.dtype).cpu().eval()
    choose_kernels(network, "reference")
    if isinstance(network, CNN | ResidualCNN | Lite0CNN):
        network.direction = None  # no program has it: see lower.py
    by_layer: dict[str, list[Any]] = {}
    if isinstance(network, QCN):
        for i, layer in enumerate(network.layers):
            outs = by_layer.setdefault(f"capsules{i + 1}", [])
            layer.register_forward_hook(lambda module, inputs, outputs, kept=outs: kept.append(outputs))
    whole, steps = _run(network, image)
    outputs = {"logit": _joined(whole, 1), "pose": _joined(whole, 0)}
    for name, outs in by_layer.items():
        outputs |= {f"{name}.activation": _joined(outs, 1), f"{name}.pose": _joined(outs, 0)}
    return _evaluation(outputs, [*by_layer, CLASSES], steps)


def answers_alone(golden: Golden) -> Golden:
    """Drop layers and iterations: enough is left to check every backend, but not to locate a fault."""
    return replace(golden, reference=golden.reference.answers, float32=golden.float32.answers)


def planned(golden: Golden, program: Program) -> Golden:
    """The golden answers of a calibrated network: the images of the trained one's, with what its plan answers.

    Where the trained network's have no inner layers, these have none either.
    """
    exact, single = (
        Evaluation({name: array[:LAYERED] if "." in name else array for name, array in of.arrays.items()})
        for of in evaluated(program, golden.input)
    )
    trained = golden.reference.answers
    result = replace(golden, reference=exact, float32=single, plan=True, trained=trained, floors={})
    return result if golden.reference.arrays.keys() - golden.reference.answers.arrays.keys() else answers_alone(result)


class Rounding(Interpreter):
    """A program in half precision by float32 arithmetic: arrays, and what operations read and give, are rounded to it.

    Sums of convolutions and linears are float32's, as most backends have them; with `half_sums` they are rounded after
    each channel of the input, as by backends that add in half precision (and round after each product). What a capsule
    layer gives is float32, and so is what a sigmoid makes.
    """

    def __init__(self, program: Program, half_sums: bool = False) -> None:
        super().__init__(program, every_layer=True, kernels="reference")
        self.half_sums = half_sums
        self.float()

    def operation(self, operation: Operation, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        half = DTYPES[operation.precision]
        if isinstance(operation, Route | Pool):
            return super().operation(operation, inputs)
        operands = [rounded(x, half) for x in inputs]
        if isinstance(operation, Sum):
            return (rounded(operands[0] + operands[1], half),)
        if self.half_sums and isinstance(operation, Product):
            result = self._added_in_halves(operation, operands)
        else:
            plain: Any = replace(operation, ending="none")  # type: ignore[call-arg]
            (result,) = super().operation(plain, operands)
        return (end(rounded(result, half), operation.ending),)  # type: ignore[attr-defined]

    def _added_in_halves(self, op: Product, inputs: list[Tensor]) -> Tensor:
        """Before the ending: the bias, and channel by channel of the inputs what they add to it."""
        half = DTYPES[op.precision]
        total = self._array(op, op.bias).view(-1, *[1] * (len(op.shape) - 1))
        for i, (x, name) in enumerate(zip(inputs, op.factors, strict=True)):
            weight = self._array(op, name)
            if isinstance(op, Convolution) and op.depthwise:  # each sum has one channel
                part = F.conv2d(x, weight, None, op.strides[i], op.paddings[i], groups=len(weight))
                total = rounded(total + part, half)
                continue
            read = x if isinstance(op, Convolution) else x.flatten(1)
            for channel, factor in zip(read.split(1, 1), weight.split(1, 1), strict=True):
                if isinstance(op, Convolution):
                    more = F.conv2d(channel, factor, None, op.strides[i], op.paddings[i])
                else:
                    more = F.linear(channel, factor)
                total = rounded(total + more, half)
        return total


def half_floors(program: Program, inputs: NDArray[np.float32]) -> Floors:
    """The largest difference from float32 that rounding to each half precision makes in every array of `Golden`.

    Backends add up convolutions in float32, or, some of them, in float16 (ONNX Runtime on ARM): of both the larger.
    All is of the program, so that a fault in lowering a network widens no tolerance. A program whose arrays do not
    fit a precision has no floors of it.
    """
    image = torch.from_numpy(np.concatenate([inputs[:HALVED], inputs[HALVED:][-HALVED:]]))
    result: Floors = {}
    single = program_answers(program, image)
    for precision in HALVES:
        try:
            rounded = program.at(precision, rest=precision)
            ways = [Rounding(rounded), *([Rounding(rounded, half_sums=True)] if precision == "fp16" else [])]
        except BuildError:
            continue
        apart = [_largest_differences(_program_answers(network.eval(), image), single) for network in ways]
        result[precision] = {name: max(one[name] for one in apart) for name in apart[0]}
    return result


def _largest_differences(evaluation: Evaluation, truth: Evaluation) -> dict[str, float]:
    """The largest difference by array; where it overflows, the array's largest value."""
    exact = truth.arrays
    with np.errstate(invalid="ignore"):
        apart = {name: float(np.abs(x - exact[name]).max(initial=0.0)) for name, x in evaluation.arrays.items()}
    return {name: x if np.isfinite(x) else float(np.abs(exact[name]).max()) for name, x in apart.items()}


def evaluated(program: Program, inputs: NDArray[np.float32]) -> tuple[Evaluation, Evaluation]:
    """Evaluate a program in float64, and in float32 with all the rounding that a backend may do."""
    image = torch.from_numpy(inputs)
    exact = program_answers(program, image.double())
    nudges = (NUDGE, -NUDGE) if program.calibrated else (0.0,)
    return exact, _furthest(exact, [program_answers(program, image, nudge) for nudge in nudges])


def program_answers(program: Program, image: Tensor, nudge: float = 0.0) -> Evaluation:
    """Evaluate a program on `image` [N, C, h, w], in the image's precision; `nudge` as in `Interpreter`."""
    network = Interpreter(program, every_layer=True, kernels="reference", nudge=nudge).eval()
    return _program_answers(network.double() if image.dtype == torch.float64 else network, image)


def _program_answers(network: Interpreter, image: Tensor) -> Evaluation:
    whole, steps = _run(network, image)
    outputs = {output.name: _joined(whole, place) for place, output in enumerate(network.outputs)}
    return _evaluation(outputs, [route.name for route in network.program.routes], steps)


def _evaluation(outputs: dict[str, Array], layers: Sequence[str], steps: Sequence[tuple[Tensor, ...]]) -> Evaluation:
    """Put outputs and the steps of these capsule layers in order; empty poses of a CNN are left out."""
    names = ["logit", "pose", *(f"{layer}.{of}" for layer in layers for of in ("activation", "pose"))]
    arrays = {name: outputs[name] for name in names if name in outputs and outputs[name].size}
    for name, step in zip(step_names(layers, len(steps) // max(1, len(layers))), steps, strict=True):
        arrays |= {f"{name}/{of}": x[:STEPPED].numpy() for of, x in zip(QUANTITIES, step, strict=True)}
    return Evaluation(arrays)


def _run(network: nn.Module, image: Tensor) -> tuple[list[Any], list[tuple[Tensor, ...]]]:
    """Run a network on batches of `image`; returns all outputs, and the routing steps of the first batch."""
    steps: list[tuple[Tensor, ...]] = []
    whole = []
    with torch.inference_mode(), few_threads(network):
        for number, batch in enumerate(image.split(BATCH)):
            with routing.watched(lambda *step: steps.append(step)) if number == 0 else nullcontext():
                whole.append(network(batch))
    return whole, steps


@contextmanager
def few_threads(network: nn.Module) -> Iterator[None]:
    """One thread, if the network has depthwise convolutions.

    In float64 torch computes these channel by channel, and its threads wait for each other after each: on a machine
    that does something else too, a thousand times as long as one thread takes alone.
    """
    threads = torch.get_num_threads()
    operations = network.program.operations if isinstance(network, Interpreter) else ()
    counts = [getattr(layer, "groups", 1) for layer in network.modules()] + [groups(op) for op in operations]
    torch.set_num_threads(1 if max(counts) > 1 else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _furthest(exact: Evaluation, others: Sequence[Evaluation]) -> Evaluation:
    """For each array, the candidate that differs most from the exact one."""

    def furthest(name: str, truth: Array) -> Array:
        return max((one.arrays[name] for one in others), key=lambda x: np.abs(x - truth).max(initial=0.0))

    return Evaluation({name: furthest(name, truth) for name, truth in exact.arrays.items()})


def _joined(batches: list[Any], index: int) -> NDArray[Any]:
    return torch.cat([batch[index] for batch in batches]).numpy()


def real_images(tests: dict[str, ImageSet], count: int) -> Iterator[tuple[str, NDArray[np.uint8], int]]:
    """Up to `count` images, each with a name and a label, spread over classes and, within a class, over splits."""
    splits = list(tests.items())
    if not any(len(images) for _, images in splits):
        raise UsageError("the data set has no test images: golden answers need some")
    generator = np.random.default_rng(0)
    orders = {name: generator.permutation(len(images)) for name, images in splits}
    drawn = 0
    for turn in range(max(len(images) for _, images in splits)):
        for label, title in enumerate(splits[0][1].classes):
            name, images = splits[(label + turn) % len(splits)]
            candidates = orders[name][images.labels[orders[name]] == label]
            if turn // len(splits) < len(candidates):
                index = candidates[turn // len(splits)]
                yield f"{name} {index}: {title}", images.images[index], label
                drawn += 1
                if drawn == count:
                    return


def toys(shape: tuple[int, int, int], count: int) -> Iterator[tuple[str, NDArray[np.uint8], int]]:
    """`count` toys of `viewpoints` as images [C, H, W] without a label. Channels are the views of both eyes in turn."""
    channels, height, width = shape
    each = Variant(size=max(height, width), elevations=(45,), azimuths=(40,), lightings=(0,))
    pairs = render(each)[:: len(each.instances) * len(CATEGORIES) // count]
    for number, pair in enumerate(pairs[:count], 1):
        yield f"toy {number}", pair[np.arange(channels) % 2, :height, :width], -1


def edge_images(shape: tuple[int, ...]) -> dict[str, NDArray[np.uint8]]:
    """Images [C, H, W] that no camera is asked for and every deployment meets, by name."""
    pixel = np.zeros(shape, np.uint8)
    pixel[:, shape[1] // 2, shape[2] // 2] = 255
    return {
        "zeros": np.zeros(shape, np.uint8),
        "grey": np.full(shape, 128, np.uint8),
        "saturated": np.full(shape, 255, np.uint8),
        "noise": np.random.default_rng(0).integers(0, 256, shape, np.uint8),
        "one bright pixel": pixel,
    }


def denormal_input(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """[C, h, w] of both signs, from float32's smallest number to just below its smallest normal one."""
    count = np.finfo(np.float32).smallest_normal / np.finfo(np.float32).smallest_subnormal
    steps = np.random.default_rng(0).integers(1, int(count), shape) * np.float64(
        np.finfo(np.float32).smallest_subnormal
    )
    sign = np.where(np.indices(shape).sum(0) % 2, -1.0, 1.0)
    return (steps * sign).astype(np.float32)
