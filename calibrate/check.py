"""Is a calibrated program what calibration makes of a trained network? It is made again, and its scales are measured.

The scales and mean inputs come from the bundle's calibration.json, whose hash the manifest has. They are not believed:
a scale must be near the one that the same method finds on the golden images, and the answers that the plan loses there
must not be more than its calibration says.
"""

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from qcn import records
from qcn.calibrate.assignments import apply
from qcn.calibrate.observers import Observer, observe
from qcn.calibrate.ranges import scale_of
from qcn.calibrate.record import Calibration
from qcn.data.preprocess import preprocess
from qcn.data.spec import Preprocessing
from qcn.errors import UsageError
from qcn.export.bundle import WEIGHTS, Bundle, inside
from qcn.export.program import Product, Program
from qcn.export.reference import program_answers
from qcn.intervals import paired_drop
from qcn.names import CALIBRATION

# How many times the scale found again a scale may be, by how many images it is found on. Of 16 images, honest scales of
# four networks and all methods were 0.65 to 1.86 times it; of 4 images 0.33 to 4.7 times (entropy; others 0.7 to 2.4).
MANY, NEAR, NEAR_OF_FEW = 12, (0.5, 3.0), (0.25, 6.0)
# How many times as far off its logits may be as those of a plan with the scales found again, and how far in any case,
# as a share of the logits.
WORSE, ALWAYS = 3.0, 0.01


def read_calibration(bundle: Bundle) -> Calibration:
    """The bundle's calibration.json; another than the manifest has the hash of is refused."""
    facts = bundle.find(WEIGHTS).facts.get("calibration")
    expected = facts.get("sha256") if isinstance(facts, dict) else None
    try:
        text = inside.read_file(bundle.folder, CALIBRATION)
    except FileNotFoundError:
        raise UsageError(
            f"{bundle.folder} has no {CALIBRATION}: copy it from where the bundle was calibrated"
        ) from None
    if hashlib.sha256(text).hexdigest() != expected:
        raise UsageError(f"{bundle.folder / CALIBRATION} is not the one that the manifest has the sha256 of")
    return records.read(Calibration, records.parse(text, CALIBRATION), CALIBRATION)


def plan_of(plan: Program, trained: Program, calibration: Calibration) -> Program:
    """What calibration makes of the trained network's program, with the operations of `plan` in its precisions."""
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
    """What is wrong with the scales of a plan, by what the network makes of these images [N, C, H, W], in words."""
    observers: dict[str, Observer] = {}
    deque(observe(trained, images, spec, observers), 0)
    again = {name: scale_of(seen, calibration.method) for name, seen in observers.items()}
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
    found = {name: replace(value, scale=again[name]) for name, value in calibration.values.items() if name in again}
    honest = plan_of(plan, trained, replace(calibration, values=found))
    inputs = preprocess(torch.from_numpy(images), spec)
    truth, given, expected = (program_answers(one, inputs).answers.logit for one in (trained, plan, honest))
    off, allowed = (float(np.sqrt(np.mean((one - truth) ** 2) / np.mean(truth**2))) for one in (given, expected))
    if off > WORSE * allowed + ALWAYS:
        yield (
            f"the plan's logits are off by {100 * off:.1f} % on {len(images)} golden images, where scales that are "
            f"found on these make {100 * allowed:.1f} %"
        )


def larger_drop(
    plan: NDArray[np.float64], trained: NDArray[np.float64], labels: NDArray[np.int64], bound: float
) -> str:
    """Why the logits of a plan lose more right answers than its calibration said, in words; empty if they need not.

    `bound` is what the drop was shown to be below, in percentage points. Logits are [N, classes].
    """
    known = labels >= 0
    before, after = (of[known].argmax(1) == labels[known] for of in (trained, plan))
    lost, won, total = int((before & ~after).sum()), int((after & ~before).sum()), int(known.sum())
    if not total or 100 * paired_drop(lost, won, total)[0] <= bound:
        return ""
    return (
        f"the plan loses {lost} and gains {won} right answers of {total}: more than the {bound:.2g} points that its "
        "calibration allows"
    )
