"""Ranges: histograms that grow, the four methods, the calibration file, and the digits of routing."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from qcn.calibrate import digits, record
from qcn.calibrate.images import spread
from qcn.calibrate.observers import BINS, Observer, observe
from qcn.calibrate.ranges import scale_of
from qcn.calibrate.request import METHODS
from qcn.data.imageset import ImageSet
from qcn.data.registry import load
from qcn.errors import CheckFailed, UsageError
from qcn.export.program.lower import lower
from qcn.export.program.program import Program
from qcn.intervals import paired_drop
from qcn.names import CALIBRATION
from qcn.networks.model import qcn_tiny
from qcn.storage import records
from qcn.train.record import load_run


def observer_of(*parts: torch.Tensor) -> Observer:
    observer = Observer()
    for part in parts:
        observer.see(part[:, None])  # a channel
    return observer


@pytest.fixture(scope="module")
def images(data_dir: Path) -> ImageSet:
    return load("mnist", data_dir).validation


def test_a_histogram_grows_and_loses_no_number() -> None:
    numbers = torch.randn(6000, generator=torch.Generator().manual_seed(0))
    growing = numbers * torch.logspace(-3, 2, 6000)
    apart, at_once = observer_of(*growing.split(500)), observer_of(growing)
    assert sum(apart.counts) == sum(at_once.counts) == 6000 and len(apart.counts) == BINS
    assert (apart.low, apart.high, apart.top) == (at_once.low, at_once.high, at_once.top)
    # Numbers that fell on the edge of a narrow bin may count one bin beside.
    assert np.abs(np.cumsum(apart.counts) - np.cumsum(at_once.counts)).max() <= 2
    assert at_once.saturated(at_once.top) == 0 and at_once.saturated(0.0) == 1
    with pytest.raises(CheckFailed, match="not all numbers are finite"):
        observer_of(torch.tensor([1.0, torch.nan]))


@pytest.mark.parametrize("method", [one for one in METHODS if one != "mse"])  # for which this outlier counts
def test_a_method_cuts_off_an_outlier_or_says_that_it_does_not(method: str) -> None:
    numbers = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    scale = scale_of(observer_of(numbers, torch.tensor([60.0])), method)  # type: ignore[arg-type]
    assert scale == float(np.float32(scale)) > 0
    rounded = (numbers / scale).round().clamp(-128, 127) * scale
    error = float((rounded - numbers).square().mean())
    assert (error < 2e-3) == (method != "minmax")  # (60/127)²/12 is 0.019
    assert scale_of(observer_of(torch.zeros(8)), method) > 0  # type: ignore[arg-type]


def test_the_best_threshold_by_squared_error_is_found() -> None:
    """By trying every threshold on the numbers themselves."""
    numbers = torch.distributions.Laplace(0.0, 1.0).sample((50_000,))
    tried = torch.linspace(1, float(numbers.abs().max()), 60)
    errors = [float(((numbers / t * 127).round().clamp(-127, 127) * t / 127 - numbers).square().mean()) for t in tried]
    found = scale_of(observer_of(numbers), "mse")
    error = float(((numbers / found).round().clamp(-127, 127) * found - numbers).square().mean())
    assert error <= 1.05 * min(errors)


def test_interrupted_observation_goes_on_and_other_inputs_are_refused(
    run: Path, program: Program, images: ImageSet, tmp_path: Path
) -> None:
    spec, path = load_run(run).preprocessing, tmp_path / CALIBRATION
    many = images[np.arange(100) % len(images)]
    key = record.Key.of(program, spec, many)
    whole = record.calibrate(path, program, spec, many, "mnist", "mse", key, "qcn calibrate x")
    assert whole.done == whole.images == 100 and record.read(path, key, "") == whole
    assert whole.values.keys() == program.shapes.keys()
    observers: dict[str, Observer] = {}
    next(observe(program, many.images, spec, observers))  # and then it is killed
    records.write(path, record._record(key, "mnist", 100, 32, "mse", observers))
    assert record.calibrate(path, program, spec, many, "mnist", "mse", key, "") == whole
    few = whole.shown().values["image"]
    assert sum(few.counts) == sum(whole.values["image"].counts) and len(few.counts) == record.SHOWN_BINS

    name = next(iter(program.arrays))
    weights = replace(program, arrays={**program.arrays, name: program.arrays[name] + 1})
    others = {
        "weights": record.Key.of(weights, spec, many),
        "preprocessing": record.Key.of(program, replace(spec, fit="stretch"), many),
        "data": record.Key.of(program, spec, many[np.arange(99)]),
    }
    for what, other in others.items():
        with pytest.raises(UsageError, match=f"of other {what}: .*make a new one: qcn calibrate x"):
            record.read(path, other, "qcn calibrate x")
    path.write_text(json.dumps({"key": 1}))
    with pytest.raises(UsageError, match="not what `qcn calibrate` writes"):
        record.read(path, key, "")


def test_means_are_of_all_images_whatever_the_batches() -> None:
    maps = torch.randn(70, 3, 4, 4)
    observer = Observer()
    for part in maps.split(32):
        observer.see(part)
    assert observer.images == 70
    np.testing.assert_allclose(observer.means, maps.mean((0, 2, 3)).numpy(), atol=1e-6)


def test_digits_are_those_of_routing(run: Path, program: Program, images: ImageSet) -> None:
    """A layer's own numbers, and a planted one that half precision cannot hold."""
    few = spread(images, 2).images
    found = {(one.layer, one.name): one for one in digits.analyse(program, few, load_run(run).preprocessing)}
    assert {layer for layer, _ in found} == {route.name for route in program.routes}
    for one in found.values():
        assert 0 < one.smallest <= one.largest < float("inf") and one.mean_error < 1
    floor = found[program.routes[0].name, "variance σ²"]
    assert floor.smallest >= 1e-4 and floor.largest <= (1 / found[floor.layer, "1/σ"].smallest) ** 2 * 1.001
    planted = digits.Digits("classes", "d²")
    planted.see(torch.tensor([1e-5, 1e-9, 0.0, 1.0, 70000.0]))
    assert (planted.numbers, planted.below, planted.above) == (4, 2, 1)
    assert planted.mean_error > 1 / 3  # 1e-9 becomes 0
    assert "50 % of the values are below 6.1e-05 and 25 % are above 65504; it stays float32" in planted.words()
    assert len(digits.table(digits.worst(list(found.values()))).rows) == len(digits.WHY)


def test_intermediates_give_what_routing_gives(images: ImageSet) -> None:
    """Mass, variance and the rest are those of the reference."""
    torch.manual_seed(0)
    program = lower(qcn_tiny(1, 10).eval(), 28, 28)
    route = program.routes[0]
    from qcn.export.backends.torch.interpreter import Interpreter
    from qcn.routing import watched

    interpreter, variances = Interpreter(program, kernels="reference"), []
    with torch.inference_mode(), watched(lambda mean, variance, active: variances.append(variance)):
        values = interpreter.values(torch.randn(1, *program.input.shape))
    computed = [
        x
        for name, x in digits.intermediates(program, route, values[route.pose], values[route.activation])
        if name == "variance σ²"
    ]
    for one, expected in zip(computed, variances, strict=False):  # [3, N, J] and [1, J, 3, N]
        torch.testing.assert_close(one.permute(2, 0, 1)[None], expected)
    assert len(computed) == route.iterations


def test_the_bound_of_a_drop() -> None:
    """Honest in the long run, and no better than what so few images can say."""
    generator = np.random.default_rng(0)
    for lost, won, total in ((0.003, 0.002, 2000), (0.02, 0.01, 500)):
        counts = generator.multinomial(total, (lost, won, 1 - lost - won), 2000)
        missed = np.mean([paired_drop(int(b), int(c), total)[1] < lost - won for b, c, _ in counts])
        assert 0.03 < missed < 0.07
    low, high = paired_drop(0, 0, 1000)
    assert high == -low == pytest.approx(0.0027, abs=1e-5)
    assert paired_drop(3, 7, 100) == tuple(-end for end in reversed(paired_drop(7, 3, 100)))
