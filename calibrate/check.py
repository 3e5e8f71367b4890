"""Check that a calibrated program is what calibration makes of a trained network, by repeating it.

The scales and mean inputs come from the bundle's calibration.json, whose hash the manifest has. They are not believed:
a scale must be near the one that the same method finds on the golden images, and what the plan loses is measured again.
"""

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from qcn.calibrate.assignments import apply
from qcn.calibrate.bodies import find_body
from qcn.calibrate.images import OBSERVED, data_sha256, spread
from qcn.calibrate.observers import Observer, observe
from qcn.calibrate.ranges import scale_of
from qcn.calibrate.record import Calibration
from qcn.data.preprocess import preprocess
from qcn.data.registry import read
from qcn.data.spec import Preprocessing
from qcn.errors import MissingError, UsageError
from qcn.export.bundle import WEIGHTS, Bundle, paths
from qcn.export.program.program import Product, Program
from qcn.export.program.reference import program_answers
from qcn.intervals import paired_drop
from qcn.names import CALIBRATION
from qcn.storage import records
from qcn.train.record import Run

# How many times the scale found again a scale may be, by how many images it is found on. Of 16 images, honest scales of
# four networks and all methods were 0.65 to 1.86 times it; of 4 images 0.33 to 4.7 times (entropy; others 0.7 to 2.4).
MANY, NEAR, NEAR_OF_FEW = 12, (0.5, 3.0), (0.25, 6.0)
# How many times as far off its logits may be as those of a plan with the scales found again, and how far in any case,
# as a share of the logits.
WORSE, ALWAYS = 3.0, 0.01
FEW = 3  # answers that may be others in the backend that the drop was measured by


def read_calibration(bundle: Bundle) -> Calibration:
    """The bundle's calibration.json; another than the manifest has the hash of is refused."""
    facts = bundle.find(WEIGHTS).facts.get("calibration")
    expected = facts.get("sha256") if isinstance(facts, dict) else None
    try:
        text = paths.read_file(bundle.folder, CALIBRATION)
    except FileNotFoundError:
        raise UsageError(
            f"{bundle.folder} has no {CALIBRATION}: copy it from where the bundle was calibrated"
        ) from None
    if hashlib.sha256(text).hexdigest() != expected:
        raise UsageError(f"{bundle.folder / CALIBRATION} is not the one that the manifest has the sha256 of")
    return records.read(Calibration, records.parse(text, CALIBRATION), CALIBRATION)


def plan_of(plan: Program, trained: Program, calibration: Calibration) -> Program:
    """Calibrate the trained network's program, with the operations in the precisions of `plan`."""
    if [op.name for op in plan.operations] != [op.name for op in trained.operations]:
        raise UsageError("the plan has other operations than the network")
    lowered = {op.name: op.precision for op in plan.operations if op.precision != "fp32"}
    try:
        return apply(trained, lowered, calibration)
    except (KeyError, ValueError) as error:  # values that it does not have, or of other channels
        raise UsageError(f"{CALIBRATION} is not of this network: {error}") from error


def odd_scales(
    plan: Program, trained: Program, calibration: Calibration, images: NDArray[np.uint8], spec: Preprocessing
) -> Iterator[str]:
    """Describe what is wrong with the scales of a plan, measured on these images [N, C, H, W]."""
    observers: dict[str, Observer] = {}
    deque(observe(trained, images, spec, observers), 0)
    again = {name: scale_of(observer, calibration.method) for name, observer in observers.items()}
    products = [op for op in plan.operations if isinstance(op, Product) and op.precision == "int8"]
    least, most = NEAR if len(images) >= MANY else NEAR_OF_FEW
    for value in sorted({value for op in products for value in op.reads}):
        share = calibration.scales[value] / again[value]
        if not least <= share <= most:
            yield (
                f"the scale of '{value}' is {share:.2g} times what calibration finds on {len(images)} golden images, "
                f"where {least:g} to {most:g} times is allowed"
            )
            return
    result = {name: replace(value, scale=again[name]) for name, value in calibration.values.items() if name in again}
    honest = plan_of(plan, trained, replace(calibration, values=result))
    inputs = preprocess(torch.from_numpy(images), spec)
    truth, planned, expected = (program_answers(one, inputs).answers.logit for one in (trained, plan, honest))
    off, allowed = (float(np.sqrt(np.mean((one - truth) ** 2) / np.mean(truth**2))) for one in (planned, expected))
    if off > WORSE * allowed + ALWAYS:
        yield (
            f"the plan's logits are off by {100 * off:.1f} % on {len(images)} golden images, where scales that are "
            f"found on these make {100 * allowed:.1f} %"
        )


def other_drop(bundle: Bundle, calibration: Calibration, trained: Program, run: Run, data_dir: Path) -> tuple[str, str]:
    """Why the accuracy drop of a plan is not what its manifest says, and a note.

    It is measured again on the images that it was chosen by, if the run's data set is here and has them still.
    """
    record = bundle.find(WEIGHTS).facts["calibration"]  # `read_calibration` has seen that it is there
    images, figures = record.get("images"), [record.get("drop"), record.get("bound")]
    if not isinstance(images, int) or not all(isinstance(one, int | float) for one in figures):
        return "the manifest does not say how much the plan loses", ""
    if calibration.images != min(OBSERVED, images):
        return f"the manifest counts {images:,} images, of which {CALIBRATION} has seen {calibration.images:,}", ""
    try:
        sample = spread(read(run.dataset(), data_dir).validation, images)
    except (UsageError, MissingError) as error:
        return "", f"what it loses was not measured again: {error}"
    if data_sha256(sample) != calibration.key.data:
        return "", f"what it loses was not measured again: it was chosen by other images than {data_dir} has"
    plan = bundle.program()
    body, task = find_body(bundle, "native", plan), f"measuring the drop on {len(sample):,} images"
    before, after = (body.answers(one, sample.images, task).predicted == sample.labels for one in (trained, plan))
    lost, won, total = int((before & ~after).sum()), int((after & ~before).sum()), len(sample)
    result = 100 * (lost - won) / total, 100 * paired_drop(lost, won, total)[1]
    if any(abs(float(a) - b) > 100 * FEW / total for a, b in zip(figures, result, strict=True)):
        stated = " and ".join(map(str, figures))
        return f"it drops {result[0]:.2f} points, at most {result[1]:.2f}; the manifest says {stated}", ""
    return "", f"its drop was measured again on {total:,} images: {result[0]:.2f} points"
