"""`qcn calibrate`, step by step: images and their audit, ranges, digits of routing, sensitivity, search, bundle.

Every step writes its record to the `report` folder, from which an interrupted calibration resumes.
"""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qcn.calibrate import digits, record, sensitivity
from qcn.calibrate.assignments import apply, lowest, require_float32
from qcn.calibrate.bodies import find_body
from qcn.calibrate.images import OBSERVED, Audit, audit, spread
from qcn.calibrate.record import Calibration, Key
from qcn.calibrate.request import CalibrationRequest, Method
from qcn.calibrate.search import Search, Searcher, Trial
from qcn.calibrate.sensitivity import Sensitivity
from qcn.data.imageset import ImageSet
from qcn.data.registry import read
from qcn.data.spec import Dataset
from qcn.errors import CheckFailed, MissingError, UsageError
from qcn.evaluate.networks import open_network
from qcn.export.backends import find
from qcn.export.backends.format import Job, format_of
from qcn.export.backends.receipts import Receipt, receipts, require_met
from qcn.export.bundle import Bundle
from qcn.export.calibrated import write_calibrated
from qcn.export.pipeline import open_source
from qcn.export.program.program import Program
from qcn.export.request import ExportRequest
from qcn.names import CALIBRATION, MANIFEST
from qcn.packages import installed
from qcn.storage import records
from qcn.storage.files import alone_in, write_text
from qcn.terminal.progress import doing, part

SENSITIVITY, SEARCH, AUDIT = "sensitivity.json", "search.json", "audit.json"
FLOAT32 = "float32"  # the bundle of a run, in the report's folder
STEPS = 5


@dataclass(frozen=True)
class SensitivityRecord:
    """sensitivity.json."""

    key: Key
    method: Method
    found: tuple[Sensitivity, ...]


@dataclass(frozen=True)
class Calibrated:
    """The results of all steps, and the float32 bundle."""

    base: Bundle
    program: Program
    audit: Audit
    calibration: Calibration
    digits: list[digits.Digits]
    sensitivities: list[Sensitivity]
    search: Search

    @property
    def chosen(self) -> Trial:
        if self.search.chosen is None:
            raise ValueError("the search has not ended")
        return self.search.chosen


def calibrate(
    source: Path, report: Path, request: CalibrationRequest, on_audit: Callable[[Audit, list[digits.Digits]], None]
) -> Calibrated:
    """Calibrate the run or bundle in `source`. `on_audit` gets the audit and the digits before anything is built."""
    require_packages()
    with alone_in(report):
        with part(0, STEPS):
            doing(f"loading {source}")
            base = open_base(source, report, request)
            program = base.program()
            require_float32(program, str(source))
            if request.max_turn is not None and base.manifest.direction is None:
                raise UsageError(f"{source} tells no directions, so that max_turn says nothing: leave it out")
            images, tests, name = calibration_images(source, base, request)
            doing(f"looking at {len(images):,} images")
            checked = audit(images, tests, request.max_drop)
            records.write(report / AUDIT, checked)
            checked.require()
        spec = base.manifest.preprocessing
        key, observed = Key.of(program, spec, images), spread(images, OBSERVED)
        again = f"rm {report / CALIBRATION} && {request.command}"
        with part(1, STEPS):
            calibration = record.calibrate(
                report / CALIBRATION, program, spec, observed, name, request.method, key, again
            )
        with part(2, STEPS):
            result = digits.analyse(program, spread(images, digits.IMAGES).images, spec)
        on_audit(checked, result)
        with part(3, STEPS):
            sensitivities = sensitive(
                report / SENSITIVITY, program, calibration, spread(images, sensitivity.IMAGES), base
            )
        with part(4, STEPS):
            search = search_in(report / SEARCH, program, calibration, images, sensitivities, base, request)
    return Calibrated(base, program, checked, calibration, result, sensitivities, search)


def write(calibrated: Calibrated, out: Path, request: CalibrationRequest) -> tuple[Bundle, list[Receipt]]:
    """The bundle of what was chosen, and what its operations are seen to run in."""
    trial = calibrated.chosen
    program = apply(calibrated.program, trial.assignment, calibrated.calibration)
    text = records.text(calibrated.calibration.shown())
    facts = {
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "key": asdict(calibrated.calibration.key),
        "method": calibrated.calibration.method,
        "target": calibrated.search.target,
        "judged_by": calibrated.search.body,
        "images": trial.images,
        "drop": trial.drop,
        "bound": trial.bound,
        "turn": trial.turn,
    }
    bundle = write_calibrated(calibrated.base, program, out, facts, request.rebuild)
    write_text(bundle.folder / CALIBRATION, text)
    try:
        # An engine is built on its device; until then the graph that is there speaks for it.
        target = request.backend if find(request.backend).receipts else "onnxruntime"
        (format, *_) = find(target).formats
        if not any(one.format == format for one in bundle.manifest.files):
            format_of(format).make(Job(bundle, ExportRequest()))
        ran = receipts(bundle, target)
        require_met(ran)
    except MissingError:  # it does not run here, as the search has said
        ran = []
    except CheckFailed:
        shutil.rmtree(out)  # what runs in another precision than was judged is not kept
        raise
    return bundle, ran


def require_packages() -> None:
    """Before anything takes long."""
    for package, extra in (("torch", "train"), ("onnx", "onnx")):
        if not installed(package):
            raise MissingError(f"calibrating needs {package}: pip install 'qcn-toolkit[{extra}]'")


def open_base(source: Path, report: Path, request: CalibrationRequest) -> Bundle:
    """The float32 bundle: the source, or one made of a run."""
    if (source / MANIFEST).is_file():
        return Bundle.open(source, request.public_key)
    export_request = ExportRequest(formats=("native",), public_key=request.public_key)
    return open_source(source, report / FLOAT32, export_request, request.data_dir)


def calibration_images(
    source: Path, base: Bundle, request: CalibrationRequest
) -> tuple[ImageSet, dict[str, NDArray[np.uint8]], str]:
    """The validation split of the data; what it must not be among, by name; and the data's name."""
    network = open_network(source, public_key=request.public_key)
    dataset = network.dataset(request.dataset)
    splits = read(dataset, request.data_dir)
    tests = {f"the {split} split of {dataset.name}": part.images for split, part in splits.tests.items()}
    tests |= _own_tests(network.own_dataset, dataset, request.data_dir)
    real = base.golden().label >= 0  # edge cases are not of any split
    tests["the bundle's golden images"] = base.golden().image[real]
    images = spread(splits.validation, request.images or len(splits.validation))
    return images, tests, dataset.name


def _own_tests(own: Callable[[], Dataset], dataset: Dataset, data_dir: Path) -> dict[str, NDArray[np.uint8]]:
    """The test splits of the data that the network was trained on, where they can be read here and are others."""
    try:
        result = own()
        if result.name == dataset.name:
            return {}
        return {
            f"the {name} split of {result.name}": part.images for name, part in read(result, data_dir).tests.items()
        }
    except (UsageError, MissingError):  # then the golden images, which are of them, must do
        return {}


def sensitive(
    path: Path, program: Program, calibration: Calibration, images: ImageSet, base: Bundle
) -> list[Sensitivity]:
    """From the record at `path`, as far as it is of the same calibration, and measured."""
    measured: tuple[Sensitivity, ...] = ()
    if path.exists():
        before = records.load(SensitivityRecord, path, "qcn calibrate")
        same = (before.key, before.method) == (calibration.key, calibration.method)
        measured = before.found if same else ()
    result = list(measured)
    for result in sensitivity.measure(program, calibration, images, base.manifest.preprocessing, measured):
        records.write(path, SensitivityRecord(calibration.key, calibration.method, tuple(result)))
    return result


def search_in(
    path: Path,
    program: Program,
    calibration: Calibration,
    images: ImageSet,
    sensitivities: list[Sensitivity],
    base: Bundle,
    request: CalibrationRequest,
) -> Search:
    """The search, from the trials at `path` on, as far as they are of the same calibration and target."""
    lowered = apply(program, lowest(program), calibration)
    body = find_body(base, request.backend, lowered)
    allowed = (request.max_drop, request.max_turn)
    new = Search(calibration.key, calibration.method, request.backend, body.name, request.goal, *allowed)
    if path.exists():
        before = records.load(Search, path, "qcn calibrate")
        if all(getattr(before, name) == getattr(new, name) for name in ("key", "method", "target", "body")):
            new = replace(new, trials=before.trials)
    keep, directions = partial(records.write, path), base.manifest.direction
    return Searcher(program, calibration, images, body, sensitivities, new, keep, directions).run()
