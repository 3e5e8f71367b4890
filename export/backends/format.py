"""The behaviour of a file format: write it, read its precision, compare it, and say what `qcn doctor` says of it."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import qcn
from qcn.errors import MissingError, UsageError
from qcn.export.backends import FORMATS
from qcn.export.backends.definition import FileFormat, load
from qcn.export.backends.precision import Products, Seen, seen, seen_in
from qcn.export.backends.runner import Runner
from qcn.export.bundle import Artefact, Bundle
from qcn.export.program.program import Program
from qcn.export.request import ExportRequest
from qcn.names import OperationPrecision
from qcn.packages import installed, version

if TYPE_CHECKING:
    from qcn.export.backends.tensorrt.receipt import EngineReceipt

ULPS = 2.0**-21  # of itself that a float32 number may differ by: arrays are folded in float64 on another machine


def format_of(name: str) -> "Format":
    """The format of this name."""
    result: Format = load(FORMATS[name].behaviour)
    return result


@dataclass(frozen=True)
class Made:
    """The result of one format: the artefact, or why there is none and the commands that make it elsewhere.

    `notes` are what else there is to say of it, in lines.
    """

    format: str
    artefact: Artefact | None = None
    reason: str = ""
    commands: tuple[str, ...] = ()
    receipt: "EngineReceipt | None" = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """One format being made."""

    bundle: Bundle
    request: ExportRequest

    @cached_property
    def program(self) -> Program:
        """The bundle's program in the precision asked for; a calibrated one says itself what it computes in."""
        program, precision = self.bundle.program(), self.request.precision
        if not program.calibrated:
            return program.at(precision, rest=precision)
        if precision not in ("fp32", program.precision):
            raise UsageError(
                f"{self.bundle.folder} is calibrated, and each operation has its own precision: leave out --precision"
            )
        return program

    @property
    def precision(self) -> OperationPrecision:
        """The precision in the name of its file."""
        return self.program.precision if self.program.calibrated else self.request.precision

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of a model file, for readers without its bundle."""
        manifest = self.bundle.manifest
        return {
            "name": manifest.name,
            "classes": json.dumps(manifest.classes, ensure_ascii=False),
            "preprocessing": json.dumps(manifest.preprocessing.__dict__),
            "source_sha256": manifest.source.sha256,
            "qcn": qcn.__version__,
        }

    def command(self, format: str) -> str:
        """The command that makes this format again."""
        return self.request.command(format, calibrated=self.program.calibrated)

    def add(self, format: "Format") -> Artefact:
        """The file of this format, in the bundle. The precision is read from the file itself."""
        format.require()
        bundle, kind, command = self.bundle, self.precision, format.data.made_by or format.name
        batch = self.request.batch if "batch" in FORMATS[command].options else None
        file, part = (
            format.data.file_in(kind),
            next((one.name for one in FORMATS.values() if one.part_of == format.name), None),
        )
        with bundle.adding(file, format.name, kind, self.command(command), batch=batch, beside=part) as draft:
            draft.facts = format.write(self, draft.path)
            draft.found = format.seen(draft.path.read_bytes(), bundle.program()).precision
        return bundle.find(file)


@dataclass(frozen=True)
class Support:
    """The diagnosis of an unaltered file: whether it runs here, by what or why not, and the fix."""

    state: Literal["runs", "intact", "cannot"]
    reason: str
    fix: str = ""


class Format:
    """One kind of file in a bundle; what is known of it without any work is `data`.

    package, title, install   what runs it: its module, its name for people, and the command that brings it
    needs                     what writes it: modules, what to say where one is missing, and the command that brings it
    fused                     whether it has routing as one node, or is made the same whatever --routing says
    """

    package = title = install = ""
    needs: tuple[tuple[str, str, str], ...] = ()
    fused = True

    def __init__(self, name: str) -> None:
        self.data: FileFormat = FORMATS[name]
        self.name = name

    def make(self, job: Job) -> Made:
        """Add it to the bundle of a job; raises MissingError where something is not installed."""
        self.check(job)
        return Made(self.name, job.add(self))

    def check(self, job: Job) -> None:
        """Refuse a request that this format cannot meet."""
        if job.request.routing == "fused" and not self.fused:
            raise UsageError(f"--format {self.name} has no fused routing: leave out --routing fused")
        if job.bundle.program().calibrated and not self.data.calibrated:
            raise UsageError(
                f"{self.name} cannot be made from a calibrated network, because torch has no kernels for its "
                f"integers: use --format onnx"
            )

    def require(self) -> None:
        """Refuse to go on without what writes it; packages are looked for, not imported."""
        for needed in self.needs:
            need(*needed)

    def write(self, job: Job, path: Path) -> dict[str, Any]:
        """Write the file itself, from the bundle's program; returns facts for the manifest."""
        raise NotImplementedError(f"{self.name} is not written by itself")

    def products(self, content: bytes) -> Products:
        """Read the weights that the file multiplies by; UsageError says why they cannot be read."""
        if not self.data.products:
            raise UsageError(f"files of {self.name} do not say what they compute in")
        result: Products = load(self.data.products)(content)
        return result

    def seen(self, content: bytes, program: Program) -> Seen:
        """The precision that a file with these bytes computes in, as the file says itself, or the weights in it."""
        return (
            seen_in(program) if self.data.follows_weights else seen(self.products, content, program, self.data.routing)
        )

    def seen_running(self, bundle: Bundle, artefact: Artefact, runner: Runner) -> Seen | None:
        """The same for formats that only an open runner can tell it of; None: the file says it."""
        return None

    def difference(self, bundle: Bundle, artefact: Artefact, content: bytes, rebuilt: Path) -> str:
        """How a file differs from the one that was built again, in words; empty if it does not.

        Unless a format can be compared part by part, it must be the same bytes.
        """
        return bytes_difference(content, rebuilt.read_bytes())

    def support(self, artefact: Artefact, bundle: Bundle) -> Support:
        """Diagnose an unaltered file. Packages are looked for, not imported."""
        if not installed(self.package):
            return Support("cannot", f"{self.title} is not installed", self.install)
        return Support("runs", f"by {self.title} {version(self.package)}")


def need(package: str, what: str, get: str) -> None:
    """Refuse to go on without a package; it is looked for, not imported."""
    if not installed(package):
        raise MissingError(f"{what}: {get}")


def bytes_difference(content: bytes, built: bytes) -> str:
    """Describe where two files first differ; empty if they do not."""
    if content == built:
        return ""
    short = min(len(content), len(built))
    same = np.frombuffer(content[:short], np.uint8) == np.frombuffer(built[:short], np.uint8)
    place = short if same.all() else int(same.argmin())
    return f"it is not the file that its program builds here: they differ from byte {place:,} on"


def alike(array: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays are equal, floats up to their last digits."""
    if array.dtype != expected.dtype or array.shape != expected.shape:
        return False
    if array.dtype not in (np.float32, np.float64):
        return array.tobytes() == expected.tobytes()
    left, right = array.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(left - right) <= ULPS * np.abs(right) + 2.0**-40 * np.abs(right).max(initial=0.0)
    return bool((apart | (array == expected)).all())
