"""`--run`: is the bundle of this training run? Its record and its golden answers against the run itself. Needs torch.

A bundle carries its own truth: whoever can write all of it can put other answers into it, with hashes that fit. The run
is the truth from outside. What the manifest says of it must be so; the weights file must have the hash that the bundle
was made from; and the golden answers are computed again, by the run's own network in float64. A calibrated bundle
answers otherwise: its plan must be what calibration makes of that network (`qcn.verify.parity.plan`).

Float64 answers of two machines differ by float64's rounding, which is 2⁻²⁹ of float32's. They may differ by 2⁻¹⁰ noise
floors (`qcn.export.bundle.tolerance`): half a million times that, and 2¹⁴ times less than fp32 is allowed, so that what
is let through changes no verdict. The float32 answers, which tolerances follow from, must be as near to the truth as
any fp32 backend must.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qcn import measured
from qcn.data.spec import Preprocessing
from qcn.errors import MissingError, UsageError
from qcn.export.bundle import GOLDEN, Bundle
from qcn.export.bundle.golden import Evaluation, Golden
from qcn.export.bundle.manifest import Manifest
from qcn.export.bundle.tolerance import noise_floor, tolerance
from qcn.shipped import is_shipped_run
from qcn.verify.parity.compare import Allowed, Errors, errors
from qcn.verify.parity.plan import not_of
from qcn.verify.parity.verdict import RUN, Verdict

if TYPE_CHECKING:
    from qcn.train.record import Run

FLOORS = 2.0**-10  # noise floors between two float64 answers
FLOORS_APART = 4.0  # times that another machine's noise floor of a half precision may be larger: sums round otherwise
Named = dict[str, NDArray[Any]]


def check_run(bundle: Bundle, folder: Path) -> Verdict:
    """A verdict on the bundle's manifest and golden answers, by the training run in `folder`."""
    try:
        import torch
    except ImportError as error:
        raise MissingError("--run needs torch, which is not installed: pip install 'qcn-toolkit[train]'") from error
    from qcn.train.checkpoint import load_network

    about = (RUN, GOLDEN, "fp64")
    which = _checkpoint(bundle.manifest)
    network, run = load_network(folder, which)  # refuses a weights file whose hash is not the record's
    by = f"{folder}, by torch {torch.__version__}"
    if different := [*_different(bundle.manifest, run, which), *_measured(bundle.manifest, folder)]:
        return Verdict(*about, "failed", tuple(different), by)
    golden = bundle.golden()
    reasons = list(_inputs(golden, run, is_shipped_run(folder)))
    exact, single = (_answers(network, golden.input, dtype) for dtype in (torch.float64, torch.float32))
    trained = Evaluation(golden.trained, {}, {}) if golden.trained else golden.exact
    compared, wrong = _compared(trained.named(), exact, single, "the run's")
    reasons += wrong
    again = "golden answers computed again from the run's own weights"
    if golden.plan:  # then the rest is not the run's, but the plan's
        from qcn.export.lower import lower
        from qcn.export.reference import evaluated

        program = bundle.program()
        strange = list(not_of(program, lower(network, *golden.input.shape[2:])))
        reasons += [f"the plan is not of this run: {what}" for what in strange]
        again += "" if strange else "; the plan is what calibration makes of them"
        exact, single = (of.named() for of in evaluated(program, golden.input))
        plan = golden.exact.named()
        kept = {name: len(array) for name, array in plan.items()}  # of layers not all rows
        exact, single = ({name: of[name][: kept.get(name)] for name in of} for of in (exact, single))
        reasons += _compared(plan, exact, single, "the plan's")[1]
    reasons += [*_noise(golden, exact, single), *_half_floors(golden, network)]
    return Verdict(
        *about,
        "failed" if reasons else "passed",
        tuple(reasons),
        by,
        outputs={name: compared[name] for name in golden.outputs if name in compared},
        images=len(golden.rows),
        notes=(again,),
    )


def _compared(found: Named, exact: Named, single: Named, whose: str) -> tuple[dict[str, Errors], list[str]]:
    """Each array against what it is computed to be now, and what is wrong with them, in words."""
    compared, reasons = {}, []
    for name, array in found.items():
        truth = exact.get(name)
        if truth is None or truth.shape != array.shape:
            reasons.append(f"'{name}' is not what {whose} network gives")
            continue
        allowed = Allowed(FLOORS * noise_floor(truth, single[name]))
        compared[name] = errors(array, truth, noise_floor(truth, single[name]), "fp64", allowed)
        if not compared[name].passed:
            reasons.append(f"the golden {name} is not {whose}: {compared[name].words()}")
    return compared, reasons


def _checkpoint(manifest: Manifest) -> str:
    """The checkpoint of the run that the bundle says it was made from."""
    if manifest.source.checkpoint not in ("best", "last"):
        raise UsageError(
            f"the bundle names the checkpoint '{manifest.source.checkpoint}', but runs have only 'best' and 'last'"
        )
    return manifest.source.checkpoint


def _different(manifest: Manifest, run: "Run", which: str) -> Iterator[str]:
    """What the manifest says otherwise than the run's record."""
    weights, source = run.weights(which), manifest.source
    if weights is None:
        raise UsageError(f"the run has no checkpoint '{which}' yet")
    pairs: dict[str, tuple[Any, Any]] = {
        f"the sha256 of the {which} weights": (source.sha256, weights.sha256),
        "the model": (source.model, run.model.name),
        "the epoch": (source.epoch, weights.epoch),
        "the data set": (source.data, run.data.name),
        "the sha256 of the training data": (source.data_sha256, run.data.sha256),
        "the classes": (list(manifest.classes), list(run.classes)),
        "the image": (list(manifest.image), list(run.data.image)),
    }
    told, found = manifest.confidence, run.confidence if which == "best" else None
    pairs["the temperature of probabilities"] = (told and told.temperature, found and found.temperature)
    pairs["the calibration error"] = (told and told.error, found and found.error)
    limit, fitted = manifest.known, run.known if which == "best" else None
    pairs["when an answer counts as known"] = (limit and asdict(limit), fitted and asdict(fitted))
    named = [field.name for field in fields(Preprocessing)]
    pairs |= {of: (getattr(manifest.preprocessing, of), getattr(run.preprocessing, of)) for of in named}
    for what, (said, is_so) in pairs.items():
        if said != is_so:
            yield f"{what}: the bundle says {said}, the run {is_so}"


def _measured(manifest: Manifest, folder: Path) -> Iterator[str]:
    """Other errors on test images than were measured of the run; the day may be another."""
    told, found = manifest.measured, measured.read(folder, manifest.source.sha256)
    if told and (found is None or (told.data, told.splits) != (found.data, found.splits)):
        yield "the errors on test images: the bundle says " + (
            "others than the run" if found else "some, and the run has none: measure it again with `qcn evaluate`"
        )


def _inputs(golden: Golden, run: "Run", shipped: bool) -> Iterator[str]:
    """Whether all golden images are there, and their inputs what the run's pre-processing makes of them, to the bit."""
    import torch

    from qcn.data.preprocess import preprocess
    from qcn.export.reference import DENORMAL, REAL, SHIPPED_REAL, denormal_input, edge_images

    images, seen_as = (dict(zip(golden.rows, of, strict=True)) for of in (golden.image, golden.input))
    edges = edge_images(run.data.image)
    for name, image in edges.items():
        if not np.array_equal(images.get(name, ()), image):
            yield f"the golden edge case '{name}' is missing or another"
    if not np.array_equal(seen_as.get(DENORMAL, ()), denormal_input(golden.input.shape[1:])):
        yield f"the golden edge case '{DENORMAL}' is missing or another"
    real, least = len(golden.rows) - len(edges) - 1, SHIPPED_REAL if shipped else REAL
    if real < least:
        yield f"there are {real} golden images of the data set, where `qcn export` takes {least}"
    kept = golden.with_image
    seen = preprocess(torch.from_numpy(golden.image[kept]), run.preprocessing).numpy()
    if not np.array_equal(seen, golden.input[kept]):
        yield "the golden inputs are not what the run's pre-processing makes of the golden images"


def _answers(network: Any, inputs: NDArray[np.float32], dtype: Any) -> Named:
    import torch

    from qcn.export.reference import answers

    return answers(network, torch.from_numpy(inputs).to(dtype)).named()


def _noise(golden: Golden, exact: Named, single: Named) -> Iterator[str]:
    """Float32 answers that are further from the truth than float32 is: they would widen every tolerance."""
    for name, found in golden.single.named().items():
        if name in exact and exact[name].shape == found.shape:
            limit = tolerance(exact[name], noise_floor(exact[name], single[name]), "fp32")
            off = float(np.abs(found - exact[name]).max())
            if not off <= limit:
                yield f"the golden {name} in float32 is off by {off:.2g}, where float32 is by {limit:.2g} at most"


def _half_floors(golden: Golden, network: Any) -> Iterator[str]:
    """Noise floors of half precisions that are larger than rounding makes them: they would widen tolerances too."""
    from qcn.export.lower import lower
    from qcn.export.reference import half_floors

    rounding = {} if golden.plan else half_floors(lower(network, *golden.input.shape[2:]), golden.input)
    for precision, floors in rounding.items():
        for name, floor in floors.items():
            if (found := golden.floors.get(precision, {}).get(name, math.inf)) > FLOORS_APART * floor:
                yield f"the noise floor of {name} in {precision} is {found:.2g}, where rounding makes {floor:.2g}"
