"""`qcn export --target FILE`: a list of devices, and a bundle for each, made by one call.

[orin]                     # its name: of the bundle's folder, of the host that commands are for, of its report
target = "jetson-orin"     # as --target; "cpu" if not given: no engine is built for it
tensorrt = "10.3"          # the version that is installed there; that of its JetPack if not given
formats = ["native", "trt"]
precision = "fp16"
batch = "1:8:64"
cpu = "Cortex-A78AE"       # for people
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from qcn.errors import UsageError
from qcn.export.backends.format import Made
from qcn.export.bundle import WEIGHTS, Batch, Bundle
from qcn.export.pipeline import export, open_source
from qcn.export.request import ExportRequest
from qcn.names import MANIFEST, Precision
from qcn.storage import records
from qcn.storage.toml import read_toml
from qcn.terminal.progress import doing, part

CPU = "cpu"  # the target of a device without a GPU
WORDS = (
    "a device is a table, [NAME], with target, tensorrt, formats, precision, batch and cpu, each of which may be left "
    "out: docs/fleet.md"
)


@dataclass(frozen=True)
class FleetDevice:
    """One device of the list: the fields are the keys of its table."""

    name: str
    target: str = CPU
    tensorrt: str = ""
    formats: tuple[str, ...] = ("native", "onnx")
    precision: Precision = "fp32"
    batch: str = "1:8:64"
    cpu: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", self.name):
            raise UsageError(f"'{self.name}' is not a device name: use letters, digits, '.', '_' and '-'")
        if self.tensorrt and not re.fullmatch(r"\d+\.\d+(\.\d+)*", self.tensorrt):
            raise UsageError(f"tensorrt must be a version such as \"10.3\", not '{self.tensorrt}'")
        if self.target == CPU and ("trt" in self.formats or self.tensorrt):
            raise UsageError("an engine needs a GPU: name its target (jetson-orin, sm89), or leave trt out")
        self.request(ExportRequest())

    def request(self, request: ExportRequest) -> ExportRequest:
        """The command's request, with this device's own settings."""
        return replace(
            request,
            formats=self.formats,
            precision=self.precision,
            batch=Batch.parse(self.batch),
            target="this" if self.target == CPU else self.target,
            target_tensorrt=self.tensorrt or None,
            host=self.name,
        )


def read_devices(path: Path) -> list[FleetDevice]:
    """The devices of a list; UsageError says what is wrong in it, and where."""
    try:
        tables = read_toml(path, "a list of devices")
    except UsageError as error:
        raise UsageError(f"{error}; {WORDS}") from error
    if strange := [name for name, table in tables.items() if not isinstance(table, dict)]:
        raise UsageError(f"{path}: '{strange[0]}' is not a device: {WORDS}")
    if not tables:
        raise UsageError(f"{path} has no devices: {WORDS}")
    if twice := [name for name in tables if [one.lower() for one in tables].count(name.lower()) > 1]:
        raise UsageError(f"{path}: {' and '.join(twice)} would be the same folder on some disks: choose other names")
    defaults = {one.name: one.default for one in fields(FleetDevice) if one.name != "name"}
    defaults["formats"] = list(FleetDevice.formats)
    for name, table in tables.items():
        if strange := table.keys() - defaults.keys():
            names = ", ".join(defaults)
            raise UsageError(f"{path}: [{name}] has an unknown entry '{min(strange)}'; known: {names}")
    return [
        records.read(FleetDevice, {"name": name, **defaults, **table}, f"{path}: [{name}]")
        for name, table in tables.items()
    ]


def export_fleet(
    source: Path, out: Path, devices: Sequence[FleetDevice], request: ExportRequest, data_dir: Path
) -> Iterator[tuple[FleetDevice, Bundle, list[Made]]]:
    """A bundle for each device, in a folder of its name below `out`. The golden answers are made once."""
    first = None if (source / MANIFEST).exists() else out / devices[0].name
    base = open_source(source, first, request, data_dir)
    golden, program = base.golden(), base.program()
    for place, device in enumerate(devices):
        with part(place, len(devices)):
            doing(f"making the bundle of {device.name}")
            manifest = replace(base.manifest, files=())
            Bundle.create(out / device.name, manifest, program, lambda: golden, base.find(WEIGHTS).rebuild)
            yield device, *export(out / device.name, None, device.request(request), data_dir)


def commands(device: FleetDevice, bundle: Bundle, results: Sequence[Made]) -> list[str]:
    """The commands that copy a bundle to its device, finish it there, and copy its report back."""
    name = device.name
    there = [command for one in results for command in one.commands if command.startswith("ssh ")]
    benchmark = f"qcn benchmark {name} --json {name}.json"
    verify = f"qcn verify-parity {name} --report reports/{name} --benchmark {name}.json"
    return [
        f"scp -r {shlex.quote(str(bundle.folder))} {name}:",
        *there,
        f"ssh {name} '{benchmark}; {verify}'",
        f"mkdir -p reports && scp -r {name}:reports/{name} reports/",
    ]
