"""What is done with a file format: it is made, its precision is read, it is compared, and `qcn doctor` speaks of it."""

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import qcn
from qcn.errors import MissingError, UsageError
from qcn.export.backends import FORMATS, parts_of
from qcn.export.backends.definition import FileFormat, load
from qcn.export.backends.differences import bytes_difference
from qcn.export.backends.precision import Seen, seen
from qcn.export.backends.products import Products
from qcn.export.backends.runner import Runner
from qcn.export.bundle import Artefact, Batch, Bundle
from qcn.export.program.program import Program
from qcn.export.request import ExportRequest
from qcn.names import AnyPrecision, OperationPrecision
from qcn.packages import installed

if TYPE_CHECKING:
    from qcn.export.backends.tensorrt.receipt import EngineReceipt


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
        """What its file is named for."""
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

    def add(self, format: "Format", batch: Batch | None = None, command: str | None = None) -> Artefact:
        """The file of this format, in the bundle. The precision is read from the file itself."""
        bundle, kind = self.bundle, self.precision
        file, command = format.file_in(kind), command or self.command(format.name)
        part = next((one.name for one in FORMATS.values() if one.part_of == format.name), None)
        with bundle.adding(file, format.name, kind, command, batch=batch, beside=part) as draft:
            draft.facts = format.write(self, draft.path)
            draft.found = format.seen(draft.path.read_bytes(), bundle.program()).precision
        return bundle.find(file)

    def refuse_fused(self, runtime: str) -> None:
        if self.request.routing == "fused":
            raise UsageError(f"{runtime} has no fused routing: leave out --routing fused")

    def refuse_calibrated(self, format: str) -> None:
        if self.bundle.program().calibrated:
            raise UsageError(
                f"{format} cannot be made from a calibrated network, because torch has no kernels for its integers: "
                f"use --format onnx"
            )


@dataclass(frozen=True)
class Support:
    """What `qcn doctor` says of a whole file: whether it runs here, by what or why not, and the fix."""

    state: Literal["runs", "intact", "cannot"]
    reason: str
    fix: str = ""


class Format(ABC):
    """One kind of file in a bundle; what is known of it without any work is `data`."""

    def __init__(self, name: str) -> None:
        self.data: FileFormat = FORMATS[name]
        self.name = name

    def file_in(self, precision: AnyPrecision) -> str:
        """The name of its file in this precision."""
        return self.data.file_in(precision)

    def beside(self, precision: AnyPrecision) -> tuple[str, ...]:
        """Other files of the bundle that a runner of this one needs."""
        return parts_of(self.name, precision)

    def make(self, job: Job) -> Made:
        """Add it to the bundle of a job; raises MissingError where something is not installed."""
        return Made(self.name, job.add(self))

    def write(self, job: Job, path: Path) -> dict[str, Any]:
        """Write the file itself, from the bundle's program; returns facts for the manifest."""
        raise NotImplementedError(f"{self.name} is not written by itself")

    def products(self, content: bytes) -> Products:
        """What the file multiplies by; UsageError says why that cannot be read."""
        raise NotImplementedError(f"{self.name} has no products")

    def seen(self, content: bytes, program: Program) -> Seen:
        """The precision that a file with these bytes computes in, as the file says itself."""
        return seen(self.products, content, program, self.data.routing)

    def seen_running(self, bundle: Bundle, artefact: Artefact, runner: Runner) -> Seen | None:
        """The same, where only an open runner can tell; None: the file says it."""
        return None

    def difference(self, bundle: Bundle, artefact: Artefact, content: bytes, rebuilt: Path) -> str:
        """How a file differs from the one that was built again, in words; empty if it does not.

        Unless a format can be compared part by part, it must be the same bytes.
        """
        return bytes_difference(content, rebuilt.read_bytes())

    @abstractmethod
    def support(self, artefact: Artefact, bundle: Bundle) -> Support:
        """What `qcn doctor` says of a file that is whole. Packages are looked for, not imported."""


def need(package: str, what: str, get: str) -> None:
    """Refuse to go on without a package; it is looked for, not imported."""
    if not installed(package):
        raise MissingError(f"{what}: {get}")
