"""The contents of a bundle's manifest.json: what the network is, where it came from, and every file of the bundle.

docs/bundle.md is the schema. A manifest may come from anywhere: reading one accepts exactly what writing one makes, and
libqcn (deploy/src/manifest.cpp) is held to the same cases (tests/manifests). No torch here.
"""

import hashlib
import json
import math
import re
import shlex
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import qcn
from qcn.data.spec import Preprocessing
from qcn.direction import Directions
from qcn.errors import UsageError
from qcn.export.backends import FORMATS
from qcn.export.program.program import Program
from qcn.names import BUNDLE, MANIFEST, AnyPrecision
from qcn.networks.confidence import Confidence, Known
from qcn.packages import package_version
from qcn.storage import measured, records
from qcn.storage.measured import Measured

if TYPE_CHECKING:
    from qcn.train.record import Run

SCHEMA = 4
WEIGHTS, GOLDEN = "weights.safetensors", "golden.safetensors"
MANIFEST_SHA256 = "manifest.sha256"  # the hash of manifest.json, as `sha256sum` writes it and `sha256sum -c` checks it
_SUMS = re.compile(rf"([0-9a-f]{{64}}  {re.escape(MANIFEST)}\n){{1,2}}".encode())
SIGNATURE = "manifest.sig"
COMMANDS = ("qcn export ", "qcn calibrate ")  # that make files of a bundle
# Facts of engines that are read again, and their kinds; each may be left out or null.
FACTS = {"flavour": str, "version": str, "gpu": str, "sm": int, "precision": str, "batch": list}
FACTS |= {"hardware_compatible": bool, "stripped": bool}  # which engines libqcn can run is decided by them too
MOST_IMAGES = 65536  # at once; libqcn reads no more
MOST_CLASSES = MOST_PIXELS_A_SIDE = 65536  # likewise
MOST_NUMBERS = 1 << 26  # of the network's input, likewise


def file_of(format: str, precision: AnyPrecision) -> str:
    """The name of a format's file in a bundle: model.onnx, model.fused.fp16.onnx, …"""
    return FORMATS[format].file_in(precision)


@dataclass(frozen=True)
class Batch:
    """How many images an artefact takes at once: from `min` to `max`, made to be fastest at `opt`."""

    min: int
    opt: int
    max: int

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.opt <= self.max <= MOST_IMAGES:
            raise UsageError(
                f"a batch range must rise (min:opt:max) and lie between 1 and {MOST_IMAGES}, not "
                f"{self.min}:{self.opt}:{self.max}"
            )

    @staticmethod
    def parse(text: str) -> "Batch":
        """Parse the value of `--batch`: 1, or 1:8:64."""
        sizes = text.split(":")
        if len(sizes) not in (1, 3) or not all(size.isascii() and size.isdigit() for size in sizes):
            raise UsageError(f"--batch takes a number of images, or min:opt:max such as 1:8:64, not '{text}'")
        return Batch(int(sizes[0]), int(sizes[len(sizes) // 2]), int(sizes[-1]))

    def __str__(self) -> str:
        """The value for `--batch`: 1, or 1:8:64."""
        return str(self.min) if self.min == self.max else f"{self.min}:{self.opt}:{self.max}"


@dataclass(frozen=True)
class Artefact:
    """A file of the bundle.

    file       path below the bundle, with slashes; its format decides it
    precision  what was asked for; `found` is what the artefact was seen to compute in, the same (None: it could not be
               seen)
    batch      None: any number of images
    rebuild    the command that makes it again, with {bundle} for the bundle's folder
    plugin     whether it needs the TensorRT plugin of fused routing
    tolerance  by output of the network, the largest error that is allowed; None for the golden answers themselves
    facts      what else is worth knowing of this format, such as the opset or the TensorRT version
    """

    file: str
    format: str
    sha256: str
    bytes: int
    precision: AnyPrecision
    found: AnyPrecision | None
    batch: Batch | None
    rebuild: str
    plugin: bool
    tolerance: dict[str, float] | None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def carries_code(self) -> bool:
        """Whether it can contain code; such files run only with --trust."""
        return FORMATS[self.format].carries_code

    def __post_init__(self) -> None:
        if (format := FORMATS.get(self.format)) is None:
            raise UsageError(f"{self.file}: the format must be one of {', '.join(FORMATS)}, not {self.format!r}")
        if not format.owns(self.file, self.precision):
            raise UsageError(f"{self.file!r} is not where a bundle keeps {self.format} in {self.precision}")
        if self.precision not in format.precisions:
            raise UsageError(f"{self.file}: {self.format} is not made in {self.precision}")
        if self.found not in (None, self.precision):
            raise UsageError(f"{self.file}: declared as {self.precision}, but found to compute in {self.found}")
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise UsageError(f"{self.file}: {self.sha256!r} is not a sha256")
        if self.bytes < 0:
            raise UsageError(f"{self.file}: {self.bytes} is not a size in bytes")
        if not self.rebuild.startswith(COMMANDS) or not self.rebuild.isprintable():
            raise UsageError(f"{self.file}: {self.rebuild!r} is not a command of `qcn export` or `qcn calibrate`")
        if self.plugin and self.format != "trt":
            raise UsageError(f"{self.file}: only engines need the plugin, not {self.format}")
        if (self.tolerance is None) != (self.format == "golden"):
            raise UsageError(f"{self.file}: every file but {GOLDEN} has a tolerance")
        if not all(allowed > 0 for allowed in (self.tolerance or {}).values()):
            raise UsageError(f"{self.file}: a tolerance must be positive, not {self.tolerance}")
        for name, kind in FACTS.items():
            if (fact := self.facts.get(name)) is not None and type(fact) is not kind:
                raise UsageError(f"{self.file}: the fact '{name}' must be of type {kind.__name__}, not {fact!r}")
        if (sizes := self.facts.get("batch")) is not None:
            if len(sizes) != 3:
                raise UsageError(f"{self.file}: the fact 'batch' must be [min, opt, max], not {sizes}")
            records.read(Batch, dict(zip(("min", "opt", "max"), sizes, strict=True)), f"{self.file}: the fact 'batch'")

    @property
    def has_record(self) -> bool:
        """Whether a copy of its entry is written beside it: engines are often copied without their bundle."""
        return "/" in self.file

    @property
    def facts_file(self) -> str:
        """The path of an engine's entry beside it, for people."""
        return str(Path(self.file).with_suffix(".json"))

    def to_json(self) -> str:
        """An engine's entry, for people."""
        return records.text(self)

    def rebuild_command(self, folder: Path) -> str:
        """The command that makes this artefact again, for the bundle in `folder`."""
        return self.rebuild.replace(BUNDLE, shlex.quote(str(folder)))


@dataclass(frozen=True)
class Port:
    """An input or output of the network: its name and its shape without the batch, which comes first. All float32."""

    name: str
    shape: tuple[int, ...]
    layout: str
    dtype: Literal["float32"] = "float32"


class NewerBundle(UsageError):
    """The bundle was made by a newer version of qcn."""


@dataclass(frozen=True)
class BundleSource:
    """The weights file that the bundle was made from, and the data that it was trained on."""

    sha256: str
    model: str
    checkpoint: str
    epoch: int
    data: str
    data_sha256: str


@dataclass(frozen=True)
class Manifest:
    """The whole. `image` is [C, H, W] of the images before pre-processing; `tools` are versions by package.

    confidence   the temperature of probabilities; None: not calibrated
    known        the threshold below which an answer is "unknown"; None: the network knows everything
    direction    what makes directions of view of the poses; None: the poses say none
    measured     the error on test images; None: not known
    """

    name: str
    classes: tuple[str, ...]
    image: tuple[int, int, int]
    preprocessing: Preprocessing
    input: Port
    outputs: tuple[Port, ...]
    source: BundleSource
    tools: dict[str, str]
    confidence: Confidence | None = None
    known: Known | None = None
    direction: Directions | None = None
    measured: Measured | None = None
    files: tuple[Artefact, ...] = ()
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        """Refuse entries that contradict each other."""
        texts = (self.name, *self.classes, *self.tools, *self.tools.values())
        if odd := [text for text in texts if not text.isprintable()]:
            raise UsageError(f"the name, classes and tools must be printable text, not {odd[0]!r}")
        if len(set(self.classes)) != len(self.classes) or "" in self.classes or not self.classes:
            raise UsageError(f"the classes must have different names, none empty, not {list(self.classes)}")
        if len(self.classes) > MOST_CLASSES:
            raise UsageError(f"there are {len(self.classes)} classes, but at most {MOST_CLASSES} are possible")
        spec = self.preprocessing
        sides = (*self.image, *self.input.shape, *(side for side in (spec.resize, spec.crop) if side is not None))
        if min(sides) < 1 or max(sides) > MOST_PIXELS_A_SIDE or math.prod(self.input.shape) > MOST_NUMBERS:
            raise UsageError(f"images of {list(self.image)} that become {list(self.input.shape)} are not possible")
        if spec.crop and spec.crop > (spec.resize or min(self.image[1:])):
            raise UsageError(f"a crop of {spec.crop} pixels is larger than the image")
        if spec.standardise == "image" and spec.mean:
            raise UsageError("mean and std must be empty if each image is standardised by its own")
        poses = len(self.outputs) > 1
        if (self.input, self.outputs) != ports(self.input.shape, len(self.classes), poses) or len(
            self.input.shape
        ) != 3:
            raise UsageError("the input and outputs do not match the number of classes")
        if self.direction and not poses:
            raise UsageError("directions of view are made of poses, which this network does not have")
        if self.direction and len(self.direction.symmetry) != len(self.classes):
            raise UsageError(f"{len(self.direction.symmetry)} symmetries for {len(self.classes)} classes")
        input_shape = (self.image[0], *self.preprocessing.output_size(*self.image[1:]))
        if input_shape != self.input.shape:
            raise UsageError(f"images become {list(input_shape)}, but the network takes {list(self.input.shape)}")
        if self.preprocessing.standardise == "dataset" and len(self.preprocessing.mean) != self.image[0]:
            raise UsageError(f"{len(self.preprocessing.mean)} means for {self.image[0]} channels")
        files = [artefact.file for artefact in self.files]
        if twice := sorted({file for file in files if files.count(file) > 1}):
            raise UsageError(f"'{twice[0]}' is named twice")
        names = {port.name for port in self.outputs}
        for artefact in self.files:
            if artefact.tolerance is not None and artefact.tolerance.keys() != names:
                raise UsageError(f"{artefact.file}: a tolerance for each of {', '.join(sorted(names))} is needed")

    @property
    def network_sha256(self) -> str:
        """A hash of what the network is, the same for every bundle of it, whichever other files it has.

        It covers the weights and golden answers, and how pictures become inputs and outputs become answers.
        """
        parts = asdict(self)
        answers = ("confidence", "known", "direction")
        parts_of_network = {name: parts[name] for name in ("source", "classes", "image", "preprocessing", *answers)}
        parts_of_network |= {one.file: one.sha256 for one in self.files if one.file in (WEIGHTS, GOLDEN)}
        return hashlib.sha256(json.dumps(parts_of_network, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        return records.text(self)

    @staticmethod
    def from_json(text: str | bytes) -> "Manifest":
        """The inverse of `to_json`; UsageError says what is wrong."""
        if (size := len(text.encode() if isinstance(text, str) else text)) > records.LARGEST:
            raise UsageError(f"it has {size:,} bytes, but at most {records.LARGEST:,} are allowed")
        record = records.parse(text, MANIFEST)
        if isinstance(record, dict) and (schema := record.get("schema")) != SCHEMA:
            if type(schema) is int and schema > SCHEMA:
                raise NewerBundle(_of_a_newer_qcn(schema, record.get("tools")))
            raise UsageError(f"it has schema {schema!r}; this version of qcn reads {SCHEMA}")
        return records.read(Manifest, record, MANIFEST)


def _of_a_newer_qcn(schema: int, tools: object) -> str:
    """The message for a newer schema; libqcn has the same (deploy/src/manifest.cpp)."""
    version = tools.get("qcn") if isinstance(tools, dict) else None
    readable = isinstance(version, str) and version.isprintable()
    return (
        f"it has schema {schema}, of {f'qcn {version}' if readable else 'a newer qcn'}; qcn {qcn.__version__} reads "
        f"schema {SCHEMA}: update qcn{f' to {version} or newer' if readable else ''}, with "
        "pip install --upgrade qcn-toolkit"
    )


def manifest_of(run: "Run", folder: Path, which: str, program: Program, name: str, tools: dict[str, str]) -> Manifest:
    """The manifest, of no files yet, for the network that `qcn.train.checkpoint.load_network(folder, which)` gives."""
    weights, best = (run.best, "best") if which == "best" and run.best else (run.last, "last")
    if weights is None:
        raise UsageError("the run has no checkpoint yet")
    channels, height, width = run.data.image
    image, outputs = ports(program.input.shape, program.classes, program.poses)
    return Manifest(
        name=name,
        classes=tuple(run.classes),
        image=(channels, height, width),
        preprocessing=run.preprocessing,
        confidence=run.confidence if best == "best" else None,
        known=run.known if best == "best" else None,
        direction=run.direction if best == "best" and program.poses else None,
        measured=measured.read(folder, weights.sha256),
        input=image,
        outputs=outputs,
        source=BundleSource(weights.sha256, run.model.name, best, weights.epoch, run.data.name, run.data.sha256),
        tools=tools,
    )


def tools(*packages: str) -> dict[str, str]:
    """The versions of qcn and of these packages, for the manifest; those that are not installed are left out."""
    return {"qcn": qcn.__version__} | {name: result for name in packages if (result := package_version(name))}


def ports(image: tuple[int, ...], classes: int, poses: bool) -> tuple[Port, tuple[Port, ...]]:
    """The input and the outputs of every artefact of a network; a CNN has no poses."""
    logit, pose = Port("logit", (classes,), "NK"), Port("pose", (classes, 3), "NKP")
    return Port("image", tuple(image), "NCHW"), (logit, pose) if poses else (logit,)


def manifest_sums(*texts: bytes) -> bytes:
    """The contents of manifest.sha256: one line, or two while a manifest is replaced, of the old and the new one."""
    return b"".join(f"{hashlib.sha256(text).hexdigest()}  {MANIFEST}\n".encode() for text in texts)


def check_manifest_digest(text: bytes, sums: bytes) -> None:
    """Refuse a manifest whose hash is not in manifest.sha256."""
    if not _SUMS.fullmatch(sums):
        raise UsageError(f"{MANIFEST_SHA256} is not what `sha256sum {MANIFEST}` writes")
    if manifest_sums(text) not in sums.splitlines(keepends=True):
        result, says = hashlib.sha256(text).hexdigest(), sums[:12].decode()
        raise UsageError(f"it was altered: its sha256 is {result[:12]}…, {MANIFEST_SHA256} says {says}…")
