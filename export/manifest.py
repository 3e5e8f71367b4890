"""The contents of a bundle's manifest.json: what the network is, where it came from, and every file of the bundle.

A manifest may come from anywhere: reading one accepts exactly what writing one makes. No torch here.
"""

import importlib.metadata
import json
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, get_args

import qcn
from qcn.data.spec import Preprocessing
from qcn.errors import UsageError
from qcn.export.network import Structure

if TYPE_CHECKING:
    from qcn.checkpoint import Run

SCHEMA = 1
MANIFEST = "manifest.json"

Format = Literal["native", "golden", "torchscript", "pt2", "onnx", "onnx-fused", "onnx-trt", "trt"]
Precision = Literal["fp64", "fp32", "fp16", "bf16", "int8"]
# What to ask of `qcn export` for an artefact; golden answers and weights come with every export of a run.
FLAGS: dict[Format, str] = {"golden": "native", "onnx-fused": "onnx --routing fused", "onnx-trt": "trt"}
# Those that are one file, of one precision, in a bundle: readers find them by name.
WEIGHTS, GOLDEN = "weights.safetensors", "golden.safetensors"
FIXED: dict[Format, tuple[str, Precision]] = {"native": (WEIGHTS, "fp32"), "golden": (GOLDEN, "fp64")}
# Facts of engines that are read again, and their kinds; each may be left out or null.
FACTS = {"flavour": str, "version": str, "gpu": str, "sm": int, "precision": str, "batch": list}
MOST_IMAGES = 65536  # at once; libqcn reads no more


@dataclass(frozen=True)
class Batch:
    """How many images an artefact takes at once: from `min` to `max`, made to be fastest at `opt`."""

    min: int
    opt: int
    max: int

    def __post_init__(self) -> None:
        if not all(type(size) is int for size in (self.min, self.opt, self.max)):
            raise TypeError(f"batch sizes must be whole numbers, not {self.min!r}, {self.opt!r}, {self.max!r}")
        if not 1 <= self.min <= self.opt <= self.max <= MOST_IMAGES:
            raise UsageError(
                f"a batch range goes upwards (min:opt:max), from 1 or more to {MOST_IMAGES} or less, not "
                f"{self.min}:{self.opt}:{self.max}"
            )

    @staticmethod
    def parse(text: str) -> "Batch":
        """From what `--batch` was given: 1, or 1:8:64."""
        sizes = text.split(":")
        if len(sizes) not in (1, 3) or not all(size.isascii() and size.isdigit() for size in sizes):
            raise UsageError(f"--batch takes a number of images, or min:opt:max such as 1:8:64, not '{text}'")
        return Batch(int(sizes[0]), int(sizes[len(sizes) // 2]), int(sizes[-1]))

    def __str__(self) -> str:
        """As `--batch` takes it: 1, or 1:8:64."""
        return str(self.min) if self.min == self.max else f"{self.min}:{self.opt}:{self.max}"


@dataclass(frozen=True)
class Artefact:
    """A file of the bundle.

    file       path below the bundle, with slashes
    precision  what was asked for; `found` is what the artefact was seen to compute in, the same (None: it could not be
               seen)
    batch      None: any number of images
    facts      what else is worth knowing of this format, such as the opset or the TensorRT version
    """

    file: str
    format: Format
    sha256: str
    bytes: int
    precision: Precision
    found: Precision | None = None
    batch: Batch | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_place(self.file)
        precisions = get_args(Precision)
        known = {"format": get_args(Format), "precision": precisions, "found": (*precisions, None)}
        for name, choices in known.items():
            if (seen := getattr(self, name)) not in choices:
                raise ValueError(f"{self.file}: {name} must be one of {', '.join(map(str, choices))}, not {seen!r}")
        if self.found not in (None, self.precision):  # its tolerance is the precision's
            raise ValueError(f"{self.file}: asked for in {self.precision}, and found to compute in {self.found}")
        if FIXED.get(self.format, (self.file, self.precision)) != (self.file, self.precision):
            file, precision = FIXED[self.format]
            raise ValueError(f"{self.format} is {file} in {precision}, not {self.file} in {self.precision}")
        if type(self.sha256) is not str or not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ValueError(f"{self.file}: {self.sha256!r} is not a sha256")
        if type(self.bytes) is not int or self.bytes < 0:
            raise ValueError(f"{self.file}: {self.bytes!r} is not a size in bytes")
        if not isinstance(self.facts, dict):
            raise TypeError(f"{self.file}: facts must be an object, not {self.facts!r}")
        for name, kind in FACTS.items():
            if (fact := self.facts.get(name)) is not None and type(fact) is not kind:
                raise TypeError(f"{self.file}: the fact '{name}' must be a {kind.__name__}, not {fact!r}")
        Batch(*self.facts.get("batch") or (1, 1, 1))

    def command(self, bundle: Path) -> str:
        """The command that makes this artefact again."""
        source, out = ("RUN", f" --out {bundle}") if self.format != "trt" else (bundle, "")
        precision = f" --precision {self.precision}" if self.format not in FIXED else ""
        batch = f" --batch {self.batch}" if self.batch else ""
        routing = " --routing fused" if self.format == "trt" and self.facts.get("plugin") else ""
        return f"qcn export {source} --format {FLAGS.get(self.format, self.format)}{precision}{batch}{routing}{out}"


@dataclass(frozen=True)
class Port:
    """An input or output of the network: its name and its shape without the batch, which comes first. All float32."""

    name: str
    shape: tuple[int, ...]
    layout: str
    dtype: Literal["float32"] = "float32"


@dataclass(frozen=True)
class Source:
    """What the bundle was made from: the weights file of a training run, and the data that it was trained on."""

    sha256: str
    model: str
    checkpoint: str
    epoch: int
    data: str
    data_sha256: str

    def __post_init__(self) -> None:
        texts = (self.sha256, self.model, self.checkpoint, self.data, self.data_sha256)
        if not all(type(text) is str for text in texts) or type(self.epoch) is not int:
            raise TypeError("the entries of 'source' are not of their kinds")


@dataclass(frozen=True)
class Manifest:
    """The whole. `image` is [C, H, W] of the images before pre-processing; `tools` are versions by package."""

    name: str
    classes: tuple[str, ...]
    image: tuple[int, ...]
    preprocessing: Preprocessing
    input: Port
    outputs: tuple[Port, ...]
    structure: Structure
    source: Source
    tools: dict[str, str]
    files: tuple[Artefact, ...] = ()
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        """Refuse entries that are not of their kind, or that contradict each other."""
        texts = (self.name, *self.classes, *self.tools, *self.tools.values())
        if not all(type(text) is str and text.isprintable() for text in texts):
            raise TypeError("the name, classes and tools must be printable text")
        if len(set(self.classes)) != len(self.classes) or "" in self.classes:
            raise ValueError(f"the classes must have names, each its own, not {list(self.classes)}")
        if len(self.image) != 3 or not all(type(side) is int and side > 0 for side in self.image):
            raise ValueError(f"image must be [channels, height, width], not {list(self.image)}")
        if len(self.classes) != self.structure.classes:
            raise ValueError(f"{len(self.classes)} classes are named, but the network has {self.structure.classes}")
        if (self.input, self.outputs) != ports(self.structure):
            raise ValueError("the input and outputs are not those of the network's structure")
        seen = (self.image[0], *self.preprocessing.output_size(*self.image[1:]))
        if seen != self.input.shape:
            raise ValueError(f"images become {list(seen)}, but the network takes {list(self.input.shape)}")
        if self.preprocessing.standardise == "dataset" and len(self.preprocessing.mean) != self.image[0]:
            raise ValueError(f"{len(self.preprocessing.mean)} means for {self.image[0]} channels")
        files = [artefact.file for artefact in self.files]
        if twice := sorted({file for file in files if files.count(file) > 1}):
            raise ValueError(f"'{twice[0]}' is named twice")

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @staticmethod
    def from_json(text: str) -> "Manifest":
        """The inverse of `to_json`. Raises ValueError, TypeError or UsageError with what is wrong."""
        record = json.loads(text, parse_constant=_no_number)
        if isinstance(record, dict) and record.get("schema") != SCHEMA:
            raise UsageError(f"it has schema {record.get('schema')!r}; this version of qcn reads {SCHEMA}")
        record = _entries(Manifest, record, "the manifest")
        seen = _entries(Preprocessing, record["preprocessing"], "preprocessing")
        record["preprocessing"] = Preprocessing(**{**seen, "mean": tuple(seen["mean"]), "std": tuple(seen["std"])})
        record["input"] = _port(record["input"])
        record["outputs"] = tuple(map(_port, _list(record["outputs"], "outputs")))
        record["structure"] = Structure.from_json(record["structure"])
        record["source"] = Source(**_entries(Source, record["source"], "source"))
        record["classes"] = tuple(_list(record["classes"], "classes"))
        record["image"] = tuple(_list(record["image"], "image"))
        record["files"] = tuple(map(_artefact, _list(record["files"], "files")))
        if not isinstance(record["tools"], dict):
            raise TypeError("tools must be an object")
        return Manifest(**record)


def manifest_of(run: "Run", which: str, structure: Structure, name: str, tools: dict[str, str]) -> Manifest:
    """The manifest, of no files yet, for the network that `qcn.checkpoint.load_network(folder, which)` gives."""
    weights, best = (run.best, "best") if which == "best" and run.best else (run.last, "last")
    if weights is None:
        raise UsageError("the run has no checkpoint yet")
    image, outputs = ports(structure)
    return Manifest(
        name=name,
        classes=tuple(run.classes),
        image=tuple(run.data.image),
        preprocessing=run.preprocessing,
        input=image,
        outputs=outputs,
        structure=structure,
        source=Source(weights.sha256, run.model["name"], best, weights.epoch, run.data.name, run.data.sha256),
        tools=tools,
    )


def tools(*packages: str) -> dict[str, str]:
    """The versions of qcn and of these packages, for the manifest; those that are not installed are left out."""
    found = {"qcn": qcn.__version__}
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def ports(structure: Structure) -> tuple[Port, tuple[Port, ...]]:
    """The input and the outputs of every artefact of a network."""
    image = Port("image", (structure.channels, structure.height, structure.width), "NCHW")
    return image, (Port("activation", (structure.classes,), "NK"), Port("pose", (structure.classes, 3), "NKP"))


def check_place(file: object) -> None:
    """Refuse a path that is not a plain one below the bundle: a manifest must not lead a reader or writer elsewhere."""
    path = PurePosixPath(file) if type(file) is str else PurePosixPath()
    odd = not path.parts or path.is_absolute() or any(part.startswith(".") for part in path.parts)
    if odd or str(path) != file or "\\" in file or not file.isprintable() or file == MANIFEST:
        raise UsageError(f"{file!r} is not a place for a file of a bundle: a plain path below it is wanted")


def _artefact(record: Any) -> Artefact:
    seen = _entries(Artefact, record, "an entry of 'files'")
    if seen["batch"] is not None:
        seen["batch"] = Batch(**_entries(Batch, seen["batch"], "batch"))
    return Artefact(**seen)


def _port(record: Any) -> Port:
    seen = _entries(Port, record, "an input or output")
    return Port(**{**seen, "shape": tuple(_list(seen["shape"], "shape"))})


def _entries(kind: type, record: Any, what: str) -> dict[str, Any]:
    """The record as keyword arguments for `kind`: all of its fields and no others."""
    if not isinstance(record, dict):
        raise TypeError(f"{what} must be an object, not a {type(record).__name__}")
    if odd := sorted({entry.name for entry in fields(kind)} ^ record.keys()):
        raise ValueError(f"{what} has an unknown entry '{odd[0]}'" if odd[0] in record else f"{what} has no '{odd[0]}'")
    return dict(record)


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"'{what}' must be a list, not a {type(value).__name__}")
    return value


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number that JSON knows")
