"""libqcn runs networks on EfficientNet-Lite0: in float32, and as `qcn calibrate` would make them of random weights."""

from pathlib import Path

import numpy as np
import pytest
import torch
from bundles import bundle_of, trained_network

from qcn.calibrate import assignments, record
from qcn.calibrate.simulation import answers
from qcn.data.imageset import ImageSet
from qcn.export.bundle import Bundle
from qcn.export.pipeline import FROM_RUN
from qcn.export.program import reference
from qcn.export.program.program import Convolution
from qcn.export.program.quantise import quantised
from qcn.names import CALIBRATION
from qcn.verify.parity.check import check
from qcn.verify.parity.request import ParityRequest

SIDE = 64
NAMES = ("qcn-lite0", "cnn-lite0")


@pytest.fixture(scope="module", params=NAMES)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    network = trained_network(request.param, 3, 4, SIDE, SIDE)
    with pytest.MonkeyPatch.context() as patch:
        # Of layers this wide they take minutes, and nothing here computes in half precision.
        patch.setattr(reference, "half_floors", lambda program, inputs: {})
        return bundle_of(tmp_path_factory.mktemp("lite0") / request.param, network, SIDE, SIDE)


@pytest.fixture(scope="module")
def calibration(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> record.Calibration:
    pixels = np.random.default_rng(1).integers(0, 256, (8, 3, SIDE, SIDE), np.uint8)
    images = ImageSet(pixels, np.zeros(8, np.int64), bundle.manifest.classes)
    program, spec = bundle.program(), bundle.manifest.preprocessing
    key = record.Key.of(program, spec, images)
    path = tmp_path_factory.mktemp("calibration") / CALIBRATION
    return record.calibrate(path, program, spec, images, "noise", "minmax", key, "")


def statuses(bundle: Bundle) -> set[str]:
    """Of libqcn, and of its pre-processing."""
    return {verdict.status for verdict in check(bundle, ParityRequest(backends=["native"])).verdicts}


def test_it_answers_as_the_trained_network(bundle: Bundle) -> None:
    assert statuses(bundle) == {"passed"}


def test_calibrated_it_answers_as_its_plan_and_nearly_as_before(
    bundle: Bundle, calibration: record.Calibration, tmp_path: Path
) -> None:
    before = bundle.program()
    program = assignments.apply(before, assignments.lowest(before), calibration)
    made = Bundle.create(
        tmp_path / "int8", bundle.manifest, program, lambda: reference.planned(bundle.golden(), program), FROM_RUN
    )
    assert statuses(made) == {"passed"}
    spec, images = bundle.manifest.preprocessing, bundle.golden().image[:2]
    exact, rounded = answers(before, images, spec), answers(program, images, spec)
    assert np.abs(rounded.logit - exact.logit).max() < 0.3 * np.ptp(exact.logit)


def test_a_depthwise_convolution_keeps_the_mean_of_each_channel(
    bundle: Bundle, calibration: record.Calibration
) -> None:
    """Nearer to the float32 mean with the corrected bias than without."""
    program = bundle.program()
    op = next(one for one in program.operations if isinstance(one, Convolution) and one.depthwise)
    corrected = assignments.with_corrected_bias(program, op, calibration)
    scales = [calibration.scales[value] for value in op.reads]
    means = torch.tensor(calibration.values[op.inputs[0]].means)
    weight = torch.tensor(program.arrays[op.weights[0]]).sum((1, 2, 3))
    off = []
    for base in (program, corrected):
        lowered = quantised(base, op.name, scales)
        factor = torch.tensor(lowered.arrays[f"{op.weights[0]}.scale"])
        integers = torch.tensor(lowered.arrays[op.weights[0]], dtype=torch.float64).sum((1, 2, 3))
        bias = torch.tensor(base.arrays[op.bias] - program.arrays[op.bias])
        off.append(float(((integers * factor - weight) * means + bias).abs().sum()))
    assert off[1] < 0.01 * off[0]
