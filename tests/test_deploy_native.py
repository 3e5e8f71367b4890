"""libqcn's native backend answers as the trained networks do, by its C interface and from bundles as export makes them.

What needs no trained network is in deploy/tests: test_native.cpp (every operation, threads, memory), test_programs.cpp
(refusals).
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from bundles import trained_network
from runners import model_at
from torch import nn

from qcn.data.spec import Preprocessing
from qcn.errors import UsageError
from qcn.export.backends.native.runner import NativeRunner
from qcn.export.backends.runner import Options
from qcn.export.backends.torch.interpreter import Interpreter
from qcn.export.bundle import WEIGHTS, Bundle
from qcn.export.bundle.golden import Evaluation, Golden
from qcn.export.bundle.manifest import BundleSource, Manifest, ports
from qcn.export.bundle.tolerance import noise_floor
from qcn.export.program.lower import lower
from qcn.export.program.program import (
    Array,
    Convolution,
    Ending,
    Linear,
    Output,
    Product,
    Program,
    Shape,
    Sum,
    Value,
)
from qcn.export.program.quantise import halved, quantised
from qcn.export.program.reference import answers
from qcn.kernels.native import instruction_set, set_threads
from qcn.libqcn.binding import NativeModel

FLOORS = 4  # of float32's noise: a quarter of what verify-parity allows; 0.6 to 1.4 were seen
CHANNELS, CLASSES = 2, 4
REBUILD = "qcn export RUN --out {bundle}"


def golden_of(network: nn.Module, images: torch.Tensor) -> Golden:
    rows = tuple(map(str, range(len(images))))
    exact, single = (answers(network, x).answers for x in (images.double(), images))
    raw, labels = np.zeros(images.shape, np.uint8), np.zeros(len(images), np.int64)
    classes = tuple(map(str, range(exact.answers.logit.shape[1])))
    spec = Preprocessing(standardise="image")
    return Golden(rows, classes, spec, raw, labels, images.numpy(), exact, single)


def bundle_of(program: Program, truth: Golden, folder: Path) -> Path:
    """The weights in a bundle of the network, and the golden answers that decide their tolerances."""
    image, outputs = ports(program.input.shape, program.classes, program.poses)
    manifest = Manifest(
        name="test",
        classes=tuple(map(str, range(program.classes))),
        image=program.input.shape,
        preprocessing=Preprocessing(standardise="image"),
        input=image,
        outputs=outputs,
        source=BundleSource("", "", "last", 0, "", ""),
        tools={},
    )
    Bundle.create(folder, manifest, program, lambda: truth, REBUILD)
    return folder / WEIGHTS


def noise_floors(found: dict[str, Array], truth: Golden) -> float:
    """The largest error of an output, counted in noise floors."""
    assert found.keys() == set(truth.outputs)
    exact = {name: getattr(truth.reference, name) for name in found}
    floors = {name: noise_floor(exact[name], getattr(truth.float32, name)) for name in found}
    return max(float(np.abs(found[name] - exact[name]).max()) / floors[name] for name in found)


EVERY = [{"mode": mode, "iterations": iterations} for mode in ("logistic", "unit") for iterations in (1, 2, 3)]
CASES = [
    *(("qcn-tiny", settings, (29, 37)) for settings in EVERY),
    *(("qcn", settings, (28, 28)) for settings in EVERY),
    ("qcn", EVERY[1], (32, 32)),
    ("qcn-unbranched", EVERY[1], (31, 29)),
    ("qcn-deep", EVERY[1], (27, 33)),
    ("qcn-unbranched", EVERY[5], (28, 28)),
    ("cnn", {"size": 28}, (28, 28)),
    ("cnn", {"size": 35}, (35, 35)),
]


@pytest.mark.parametrize(("name", "settings", "sides"), CASES)
def test_answers_are_those_of_the_trained_network(
    name: str, settings: dict[str, str | int], sides: tuple[int, int], tmp_path: Path
) -> None:
    network = trained_network(name, CHANNELS, CLASSES, *sides, **settings)
    truth = golden_of(network, torch.randn(3, CHANNELS, *sides))
    with NativeRunner(model_at(bundle_of(lower(network, *sides), truth, tmp_path / "bundle")), Options()) as runner:
        assert noise_floors(runner.infer(truth.input), truth) < FLOORS


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return trained_network("qcn-tiny", CHANNELS, CLASSES, 28, 28, mode="logistic", iterations=2)


def test_any_batch_and_any_number_of_threads(network: nn.Module, tmp_path: Path) -> None:
    truth = golden_of(network, torch.randn(41, CHANNELS, 28, 28))
    with NativeRunner(model_at(bundle_of(lower(network, 28, 28), truth, tmp_path / "bundle")), Options()) as runner:
        whole = runner.infer(truth.input)
        assert noise_floors(whole, truth) < FLOORS
        for batch in range(1, 18):
            first = runner.infer(truth.input[:batch])
            for part, expected in whole.items():
                # Another batch may put other images into a tile: a guard of the routing then moves last bits.
                np.testing.assert_allclose(first[part], expected[:batch], rtol=0, atol=1e-5)
        try:
            for threads in (1, 2, 7):
                set_threads(threads)
                assert all(np.array_equal(found, whole[part]) for part, found in runner.infer(truth.input).items())
        finally:
            set_threads(0)


def test_a_wrong_weight_is_noticed(network: nn.Module, tmp_path: Path) -> None:
    """In any array: at its beginning, its end, and between."""
    truth = golden_of(network, torch.randn(8, CHANNELS, 28, 28))
    program = lower(network, 28, 28)
    names = [name for name, array in program.arrays.items() if array.ndim > 1]
    assert len(names) == 14
    for i, name in enumerate(names):
        right = program.arrays[name].copy()
        flat = program.arrays[name].reshape(-1)
        flat[[0, flat.size // 2, -1]] += 0.5 * np.abs(flat).max()
        with NativeRunner(model_at(bundle_of(program, truth, tmp_path / str(i))), Options()) as runner:
            assert noise_floors(runner.infer(truth.input), truth) > 100, name
        program.arrays[name][...] = right


def test_a_nan_comes_out_as_nan_and_leaves_no_trace(network: nn.Module, tmp_path: Path) -> None:
    images = np.random.default_rng(0).normal(size=(3, CHANNELS, 28, 28)).astype(np.float32)
    truth = golden_of(network, torch.from_numpy(images))
    with NativeRunner(model_at(bundle_of(lower(network, 28, 28), truth, tmp_path / "bundle")), Options()) as runner:
        before = runner.infer(images)
        spoilt = images.copy()
        spoilt[1, 0, 13, 13] = np.nan
        found = runner.infer(spoilt)
        assert np.isnan(found["pose"][1]).any()
        for part, expected in before.items():
            np.testing.assert_allclose(found[part][[0, 2]], expected[[0, 2]], rtol=0, atol=1e-5)
            assert np.array_equal(runner.infer(images)[part], expected)


def test_an_operation_in_another_precision_is_refused(network: nn.Module, tmp_path: Path) -> None:
    program = lower(network, 28, 28)
    first, *others = program.operations
    narrow = replace(program, operations=(replace(first, precision="fp16"), *others))
    truth = golden_of(network, torch.randn(1, CHANNELS, 28, 28))
    path = bundle_of(narrow, truth, tmp_path / "bundle")
    with (
        pytest.raises(UsageError, match="in fp32, a convolution or linear also in int8"),
        NativeRunner(model_at(path), Options()),
    ):
        pass


def loaded(program: Program, images: Array, folder: Path) -> NativeRunner:
    """A program without golden answers of its own, which the runner does not look at."""
    shape = (len(images), program.classes)
    exact = Evaluation({"logit": np.zeros(shape), **({"pose": np.zeros((*shape, 3))} if program.poses else {})})
    single = Evaluation({name: array.astype(np.float32) for name, array in exact.arrays.items()})
    raw, labels = np.zeros(images.shape, np.uint8), np.zeros(len(images), np.int64)
    rows, classes = tuple(map(str, range(len(images)))), tuple(map(str, range(program.classes)))
    spec, trained = Preprocessing(standardise="image"), exact if program.calibrated else None
    truth = Golden(*(rows, classes, spec, raw, labels, images, exact, single), plan=program.calibrated, trained=trained)
    return NativeRunner(model_at(bundle_of(program, truth, folder)), Options())


@pytest.mark.parametrize("outputs", [20, 37, 3])
def test_integers_are_those_of_torch_to_the_last_bit(outputs: int, tmp_path: Path) -> None:
    """Channels that fill no vector, two inputs and strides, bytes that are also read as floats, halves."""
    rng, (channels, height, width) = np.random.default_rng(outputs), (3, 11, 9)

    def normal(*shape: int) -> Array:
        return rng.normal(size=shape).astype(np.float32)

    def convolution(
        name: str, inputs: dict[str, int], stride: int, shape: Shape, ending: Ending = "none", depthwise: bool = False
    ) -> Convolution:
        pads = tuple(kernel // 2 for kernel in inputs.values())
        weights, strides = tuple(f"{name}.{i}" for i in range(len(inputs))), (stride,) * len(inputs)
        return Convolution(
            name=name, inputs=tuple(inputs), weights=weights, bias=f"{name}.bias", strides=strides, paddings=pads,
            ending=ending, shape=shape, depthwise=depthwise,
        )  # fmt: skip

    operations = (
        convolution("bytes", {"image": 3}, 1, (outputs, height, width)),
        convolution("both", {"bytes": 3, "image": 1}, 2, (outputs, 6, 5)),
        convolution("apart", {"bytes": 5}, 1, (outputs, height, width), "relu6", depthwise=True),
        convolution("again", {"apart": 3}, 2, (outputs, 6, 5), depthwise=True),
        Sum(name="added", inputs=("both", "again"), shape=(outputs, 6, 5)),
        convolution("last", {"added": 1}, 1, (7, 6, 5)),
        Linear(name="units", input="added", weight="units.0", bias="units.bias", ending="none", shape=(outputs,)),
    )
    arrays = {
        "bytes.0": normal(outputs, channels, 3, 3),
        "both.0": normal(outputs, outputs, 3, 3),
        "both.1": normal(outputs, channels, 1, 1),
        "apart.0": normal(outputs, 1, 5, 5),
        "again.0": normal(outputs, 1, 3, 3),
        "last.0": normal(7, outputs, 1, 1),
        "units.0": normal(outputs, outputs * 30),
        **{f"{op.name}.bias": normal(op.shape[0]) for op in operations},
    }
    scales = {"bytes": [1 / 32], "both": [0.11, 0.029], "apart": [0.11], "again": [6 / 127], "last": [0.7]}
    scales["units"] = [0.9]
    images = np.rint(normal(5, channels, height, width) * 128) / np.float32(64)  # half of them between two integers
    for last in range(1, len(operations) + 1):
        kept, answer = operations[:last], operations[last - 1]
        if answer.name == "units":
            kept = (*operations[:-2], answer)
        used = {name: arrays[name] for op in kept for name in op.arrays}
        value = Value("image", images.shape[1:])
        output = Output("logit", answer.name, (int(np.prod(answer.shape)),))
        program = Program(value, kept, (output,), used)
        for op in kept:
            if isinstance(op, Product):
                program = quantised(program, op.name, scales[op.name])
        expected = Interpreter(program).values(torch.from_numpy(images))[answer.name].numpy()
        with loaded(program, images, tmp_path / answer.name) as runner:
            found = runner.infer(images)["logit"]
        np.testing.assert_array_equal(found, expected.reshape(5, -1))


def test_a_calibrated_network_answers_as_its_float32_one_and_says_what_runs(network: nn.Module, tmp_path: Path) -> None:
    program, images = lower(network, 28, 28), np.random.default_rng(0).normal(size=(3, 2, 28, 28)).astype(np.float32)
    for op in program.operations:
        if isinstance(op, Product):
            program = quantised(program, op.name, [0.03] * len(op.factors))
    for route in program.routes:
        program = halved(program, route.name)
    with loaded(lower(network, 28, 28), images, tmp_path / "float32") as exact:
        expected = exact.infer(images)
    with loaded(program, images, tmp_path / "calibrated") as runner:
        found = runner.infer(images)
    for name, numbers in expected.items():
        assert 0 < np.abs(found[name] - numbers).max() < 0.1 * np.abs(numbers).max()
    files = model_at(tmp_path / "calibrated" / WEIGHTS).files
    model = NativeModel(files, tmp_path / "calibrated", backend="native", self_test=0)
    assert model.info.precision == b"int8"
    runs = model.operations
    assert [(run.name, run.op, run.asked) for run in runs] == [(o.name, o.op, o.precision) for o in program.operations]
    assert {run.ran for run in runs if run.asked == "int8"} == {"int8"}
    half = kernels_of_half_precision()
    assert {(run.ran, run.kernel) for run in runs if run.asked == "fp16"} == {half}


def kernels_of_half_precision() -> tuple[str, str]:
    """What libqcn runs for fp16, and by which kernels: float32 where the CPU has no such arithmetic."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    for flag, kernel in (("asimdhp", "neonfp16"), ("avx512_fp16", "avx512fp16")):
        if flag in flags:
            return "fp16", kernel
    return "fp32", instruction_set()
