"""`--run`: is the bundle of this training run? Its record, program and golden answers against the run. Needs torch.

A bundle carries its own truth: an attacker who can write all of it can add other answers with matching hashes. The run
is the truth from outside:

    manifest    what it says of the run must be so, and the weights file must have the hash that it names
    program     must be what the run's network lowers to, operation by operation and number by number; a calibrated one
                what calibration makes of that (`qcn.calibrate.check`)
    golden      answers are computed again, by the run's own network in float64
    files       must be what the program builds (`qcn.export.rebuild`); where a format cannot be compared so, the file
                answers fresh images too (`qcn.verify.parity.fresh`)

Float64 answers of two machines differ by float64's rounding, which is 2⁻²⁹ of float32's. They may differ by 2⁻¹⁰ noise
floors (`qcn.export.bundle.tolerance`): half a million times that, and 2¹⁴ times less than fp32 is allowed, so that what
is let through changes no verdict. The float32 answers, which tolerances follow from, must be as near to the truth as
any fp32 backend must.
"""

import math
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qcn.data.spec import Preprocessing
from qcn.errors import MissingError, QcnError, UsageError
from qcn.export.bundle import GOLDEN, WEIGHTS, Artefact, Bundle
from qcn.export.bundle.golden import Golden
from qcn.export.bundle.manifest import Manifest
from qcn.export.bundle.tolerance import noise_floor, tolerance
from qcn.export.program.program import Program
from qcn.export.rebuild import difference
from qcn.networks.shipped import is_shipped_run, run_of
from qcn.storage import measured
from qcn.verify.parity.compare import Allowed, Errors, errors
from qcn.verify.parity.program import differences
from qcn.verify.parity.verdict import RUN, Verdict

if TYPE_CHECKING:
    from qcn.export.program.reference import Inputs
    from qcn.train.record import Run

FLOORS = 2.0**-10  # noise floors between two float64 answers
FLOORS_APART = 4.0  # times that another machine's noise floor of a half precision may be larger: sums round otherwise
Named = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Origin:
    """The training run that a bundle should come from, by the name that was typed, and its trained network.

    `seed` draws the fresh images.
    """

    name: str
    folder: Path
    network: Any
    run: "Run"
    seed: int = field(default_factory=lambda: secrets.randbits(32))
    _same: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def open(name: str, bundle: Bundle) -> "Origin":
        """The run of this name, with the checkpoint that the bundle says it was made from."""
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise MissingError("--run needs torch, which is not installed: pip install 'qcn-toolkit[train]'") from error
        from qcn.train.checkpoint import load_network

        folder = run_of(name)
        # It refuses a weights file whose hash is not the record's.
        return Origin(name, folder, *load_network(folder, _checkpoint(bundle.manifest)))

    def difference(self, bundle: Bundle, artefact: Artefact) -> str:
        """How a file differs from what the bundle's program builds (`qcn.export.rebuild`); each is compared once."""
        if artefact.file not in self._same:
            self._same[artefact.file] = difference(bundle, artefact)
        return self._same[artefact.file]

    @cached_property
    def program(self) -> Program:
        """What the run's network lowers to."""
        from qcn.export.program.lower import lower

        height, width = self.run.preprocessing.output_size(*self.run.data.image[1:])
        return lower(self.network, height, width)

    def answers(self, bundle: Bundle, inputs: "Inputs") -> Golden:
        """The answers of the run's network, or of a calibrated bundle's plan, which must have been checked before."""
        from qcn.export.program.reference import answers, evaluated, golden_of

        if not (program := bundle.program()).calibrated:
            return golden_of(self.network, inputs, bundle.manifest.classes)
        import torch

        exact, single = evaluated(program, inputs.input)
        trained = answers(self.network, torch.from_numpy(inputs.input).double()).answers
        classes = bundle.manifest.classes
        return Golden(**vars(inputs), classes=classes, reference=exact, float32=single, plan=True, trained=trained)

    def fresh(self, bundle: Bundle) -> Golden:
        """Images that are in no file, with the answers to them."""
        from qcn.verify.parity.fresh import fresh_inputs

        return self.answers(bundle, fresh_inputs(bundle.golden(), self.run, self.seed))


def check_run(bundle: Bundle, origin: Origin, data_dir: Path = Path("data")) -> Verdict:
    """A verdict on the bundle's manifest, program and golden answers, by the training run and its data set."""
    import torch

    from qcn.export.program.reference import REAL, SHIPPED_REAL

    about, by = (RUN, GOLDEN, "fp64"), f"{origin.folder}, by torch {torch.__version__}"
    which, run, network = _checkpoint(bundle.manifest), origin.run, origin.network
    if different := [*_different(bundle.manifest, run, which), *_measured(bundle.manifest, origin.folder)]:
        return Verdict(*about, "failed", tuple(different), by)
    golden, program = bundle.golden(), bundle.program()
    different, notes = _program_differences(bundle, program, origin, data_dir)
    reasons = [f"{WEIGHTS}: {what}" for what in different]
    reasons += _inputs(golden, run, SHIPPED_REAL if is_shipped_run(origin.folder) else REAL, data_dir)
    exact, single = (_answers(network, golden.input, dtype) for dtype in (torch.float64, torch.float32))
    trained = golden.trained or golden.reference
    compared, wrong = _compared(trained.arrays, exact, single, "the run's")
    reasons += wrong
    if program.calibrated != golden.plan:
        reasons.append(f"{GOLDEN} is {'' if golden.plan else 'not '}of a calibrated network, unlike {WEIGHTS}")
    elif golden.plan:  # then the rest is not the run's, but the plan's
        from qcn.export.program.reference import evaluated

        exact, single = (of.arrays for of in evaluated(program, golden.input))
        plan = golden.reference.arrays
        row_counts = {name: len(array) for name, array in plan.items()}  # of layers not all rows
        exact, single = ({name: of[name][: row_counts.get(name)] for name in of} for of in (exact, single))
        reasons += _compared(plan, exact, single, "the plan's")[1]
    reasons += [*_noise(golden, exact, single), *_half_floors(golden, origin.program)]
    proven = "the program is what calibration makes of the run's network" if golden.plan else "the program is the run's"
    return Verdict(
        *about,
        "passed",
        tuple(reasons),
        by,
        outputs={name: compared[name] for name in golden.outputs if name in compared},
        images=len(golden.rows),
        notes=() if reasons else (f"{proven}, operation by operation; golden answers computed again", *notes),
    ).settled()


def _program_differences(
    bundle: Bundle, program: Program, origin: Origin, data_dir: Path
) -> tuple[list[str], list[str]]:
    """How the bundle's program differs from the run's network, or from a calibration of it; and notes."""
    if not program.calibrated:
        return list(differences(program, origin.program)), []
    from qcn.calibrate.check import odd_scales, other_drop, plan_of, read_calibration

    golden = bundle.golden()
    try:
        calibration = read_calibration(bundle)
        expected = plan_of(program, origin.program, calibration)
    except QcnError as error:
        return [str(error)], []
    result = list(differences(program, expected))
    result += odd_scales(program, origin.program, calibration, golden.image[_real(golden)], golden.preprocessing)
    if result:
        return result, []
    wrong, note = other_drop(bundle, calibration, origin.program, origin.run, data_dir)
    return [wrong] if wrong else [], [note] if note else []


def _real(golden: Golden) -> list[int]:
    """The places of the golden images that come from a data set, or stand for such."""
    from qcn.export.program.reference import edge_images

    edges = edge_images(golden.image.shape[1:])
    return [place for place in golden.with_image if golden.rows[place] not in edges]


def _compared(arrays: Named, exact: Named, single: Named, whose: str) -> tuple[dict[str, Errors], list[str]]:
    """Compare stored arrays with recomputed ones; returns errors and problems."""
    compared, reasons = {}, []
    for name, array in arrays.items():
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
    """How the manifest differs from the run's record."""
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
    stated, result = manifest.confidence, run.confidence if which == "best" else None
    pairs["the temperature of probabilities"] = (stated and stated.temperature, result and result.temperature)
    pairs["the calibration error"] = (stated and stated.error, result and result.error)
    limit, fitted = manifest.known, run.known if which == "best" else None
    pairs["when an answer counts as known"] = (limit and asdict(limit), fitted and asdict(fitted))
    poses = any(port.name == "pose" for port in manifest.outputs)  # of a CNN with a direction head there are none
    turned, trained = manifest.direction, run.direction if which == "best" and poses else None
    pairs["what makes directions of poses"] = (turned and asdict(turned), trained and asdict(trained))
    named = [field.name for field in fields(Preprocessing)]
    pairs |= {of: (getattr(manifest.preprocessing, of), getattr(run.preprocessing, of)) for of in named}
    for what, (in_bundle, in_run) in pairs.items():
        if in_bundle != in_run:
            yield f"{what}: the bundle says {in_bundle}, the run {in_run}"


def _measured(manifest: Manifest, folder: Path) -> Iterator[str]:
    """Whether the manifest's errors on test images differ from the run's; the date may differ."""
    stated, result = manifest.measured, measured.read(folder, manifest.source.sha256)
    if stated and (result is None or (stated.data, stated.splits) != (result.data, result.splits)):
        yield "the errors on test images: the bundle says " + (
            "others than the run" if result else "some, and the run has none: measure it again with `qcn evaluate`"
        )


def _inputs(golden: Golden, run: "Run", most: int, data_dir: Path) -> Iterator[str]:
    """Missing golden images, and inputs that differ from the run's pre-processing in any bit."""
    import torch

    from qcn.data.preprocess import preprocess
    from qcn.export.program.reference import DENORMAL, denormal_input, edge_images

    images, seen_as = (dict(zip(golden.rows, of, strict=True)) for of in (golden.image, golden.input))
    edges = edge_images(run.data.image)
    for name, image in edges.items():
        if not np.array_equal(images.get(name, ()), image):
            yield f"the golden edge case '{name}' is missing or another"
    if not np.array_equal(seen_as.get(DENORMAL, ()), denormal_input(golden.input.shape[1:])):
        yield f"the golden edge case '{DENORMAL}' is missing or another"
    real = len(golden.rows) - len(edges) - 1
    if real < most and real < (least := _golden_images(run, most, data_dir)):
        yield f"there are {real} golden images of the data set, where `qcn export` takes {least}"
    if len({golden.image[place].tobytes() for place in _real(golden)}) < real:
        yield "a golden image of the data set is there more than once"
    places = golden.with_image
    inputs = preprocess(torch.from_numpy(golden.image[places]), run.preprocessing).numpy()
    if not np.array_equal(inputs, golden.input[places]):
        yield "the golden inputs are not what the run's pre-processing makes of the golden images"


def _golden_images(run: "Run", most: int, data_dir: Path) -> int:
    """How many images of the data set `qcn export` takes: a small one has fewer. A missing one counts as large."""
    from qcn.data.registry import read

    try:
        return min(most, sum(map(len, read(run.dataset(), data_dir).tests.values())))
    except MissingError:
        return most


def _answers(network: Any, inputs: NDArray[np.float32], dtype: Any) -> Named:
    import torch

    from qcn.export.program.reference import answers

    return answers(network, torch.from_numpy(inputs).to(dtype)).arrays


def _noise(golden: Golden, exact: Named, single: Named) -> Iterator[str]:
    """Float32 answers further from the truth than float32 rounding: they would widen every tolerance."""
    for name, result in golden.float32.arrays.items():
        if name in exact and exact[name].shape == result.shape:
            limit = tolerance(exact[name], noise_floor(exact[name], single[name]), "fp32")
            off = float(np.abs(result - exact[name]).max())
            if not off <= limit:
                yield f"the golden {name} in float32 is off by {off:.2g}, where float32 is by {limit:.2g} at most"


def _half_floors(golden: Golden, program: Program) -> Iterator[str]:
    """Noise floors of half precisions that are larger than rounding makes them: they would widen tolerances too."""
    from qcn.export.program.reference import half_floors

    rounding = {} if golden.plan else half_floors(program, golden.input)
    for precision, floors in rounding.items():
        for name, floor in floors.items():
            if (result := golden.floors.get(precision, {}).get(name, math.inf)) > FLOORS_APART * floor:
                yield f"the noise floor of {name} in {precision} is {result:.2g}, where rounding makes {floor:.2g}"
