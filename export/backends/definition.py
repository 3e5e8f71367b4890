"""A backend described as data: its files, what runs them, and what must be installed for it.

Each folder here registers one runtime, with a `Registration` in its `__init__`. All else asks the registry
(`qcn.export.backends`) and names no backend. What a backend does is named by a text, FOLDER.MODULE:NAME, and is
imported when it is asked for: the manifest of a bundle needs the data alone.
"""

import importlib
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from qcn.names import AnyPrecision, ProgramKernels
from qcn.packages import package_version

Device = Literal["cpu", "cuda"]
DEPLOYED: tuple[AnyPrecision, ...] = ("fp32", "fp16", "bf16", "int8")
IN_GRAPHS = ("batch", "opset")  # options of `qcn export` that shape every graph


def load(reference: str) -> Any:
    """Import the object that FOLDER.MODULE:NAME refers to."""
    module, name = reference.split(":")
    return getattr(importlib.import_module(f"qcn.export.backends.{module}"), name)


@dataclass(frozen=True)
class FileFormat:
    """One kind of file in a bundle.

    name             in the manifest, and of `qcn export --format`
    file             its name in a bundle; * is the precision: nothing for fp32, .fp16, .bf16, .int8
    behaviour        what writes and compares it (`qcn.export.backends.format.Format`)
    products         what reads the weights that it multiplies by, and their types; empty where that cannot be read
    made_by          the --format that makes it, where that is another one
    pattern          of the names that it may have, where there are many
    precisions       those that it can be made in
    follows_weights  whether it computes in what the weights do, whatever is asked for
    carries_code     whether such a file can do anything when it is loaded or run
    part_of          the format whose files need it, or "bundle": nothing runs it by itself
    in_all           whether `--format all` makes it
    calibrated       whether it can be made from a calibrated network
    either_routing   whether `--format all` makes it with the --routing that was asked for, and not only unrolled
    options          further options of `qcn export` that its contents depend on
    hints            other words that people try for it, and what they are told
    proof            how --run proves it: it is the program, it is rebuilt and compared, or it answers fresh images
    graph            whether routing is written out in it, with the first votes in float32 in every precision
    routing          how many float32 products the first M-step of a capsule layer has in it
    """

    name: str
    file: str
    behaviour: str
    products: str = ""
    made_by: str = ""
    pattern: str = ""
    precisions: tuple[AnyPrecision, ...] = DEPLOYED
    follows_weights: bool = False
    carries_code: bool = False
    part_of: str = ""
    in_all: bool = True
    calibrated: bool = True
    either_routing: bool = False
    options: tuple[str, ...] = ()
    hints: dict[str, str] = field(default_factory=dict)
    proof: Literal["program", "rebuilt", "answers"] = "rebuilt"
    graph: bool = False
    routing: int = 3

    def file_in(self, precision: AnyPrecision) -> str:
        """The name of its file in this precision: model.onnx, model.fused.fp16.onnx, …"""
        return self.file.replace("*", "" if precision in ("fp32", "fp64") else f".{precision}")

    def owns(self, file: str, precision: AnyPrecision) -> bool:
        """Whether a bundle may keep it in this file."""
        return bool(re.fullmatch(self.pattern, file)) if self.pattern else file == self.file_in(precision)

    def possible(self, calibrated: bool, precision: AnyPrecision) -> bool:
        """Whether it can be made from a program that is calibrated or not, in this precision."""
        return self.calibrated if calibrated else self.follows_weights or precision in self.precisions


@dataclass(frozen=True)
class Backend:
    """A backend of `--backends`: the formats it runs, and its runner.

    precisions     those that it makes of one artefact; empty: the artefact's own
    shows_layers   whether its runner can give out capsule layers that the file does not (`Options.layers`)
    isolated       whether its files are checked in a process of their own (`qcn.export.backends.isolated`): they are
                   programs, which may run for ever or carry code
    timed          whether its time says anything; not that of a server that is stood in for
    loads          whether `qcn.load` and `qcn predict` take it
    lowers         the precisions that `qcn calibrate` may choose for its operations; empty: it calibrates for others
    receipts       what tells the precision that each operation of a bundle ran in
    """

    name: str
    formats: tuple[str, ...]
    runner: str
    device: Device = "cpu"
    kernels: ProgramKernels = "reference"
    precisions: tuple[AnyPrecision, ...] = ()
    shows_layers: bool = False
    isolated: bool = False
    timed: bool = True
    loads: bool = False
    lowers: tuple[AnyPrecision, ...] = ()
    receipts: str = ""


@dataclass(frozen=True)
class Piece:
    """Something that a machine has or lacks: what it is for, and the command that brings it.

    `look` finds it without importing it; without one the version of the first of `distributions` that is installed is
    what is found. Their versions are kept with every figure.
    """

    name: str
    enables: str
    get: str
    distributions: tuple[str, ...] = ()
    look: str = ""

    def release(self) -> str:
        """Its version or place; empty where it is missing."""
        if self.look:
            return str(load(self.look)())
        return next(filter(None, map(package_version, self.distributions)), "")


@dataclass(frozen=True)
class Registration:
    """All of one folder: its formats, its backends, and what they need."""

    formats: tuple[FileFormat, ...]
    backends: tuple[Backend, ...]
    pieces: tuple[Piece, ...] = ()
