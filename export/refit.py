"""`qcn export --refit`: a network that was trained again takes over the engines of the one before, unbuilt.

The engines go into the bundle of the new weights, whose golden answers and hashes are then theirs too; the bundle that
they come from stays as it is.
"""

import hashlib
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from qcn.errors import MissingError, UsageError
from qcn.export import targets
from qcn.export.backends.format import Job
from qcn.export.backends.tensorrt import plugin
from qcn.export.backends.tensorrt.build import file_name
from qcn.export.backends.tensorrt.config import Fleet
from qcn.export.backends.tensorrt.find import TensorRT, find
from qcn.export.backends.tensorrt.format import graph_for
from qcn.export.backends.tensorrt.refit import refit
from qcn.export.bundle import Artefact, Batch, Bundle, folder_of
from qcn.export.pipeline import open_source
from qcn.export.program.program import Program
from qcn.export.request import ExportRequest
from qcn.names import MANIFEST
from qcn.terminal.progress import doing, part
from qcn.terminal.text import command_line


@dataclass(frozen=True)
class Refitted:
    """An engine with its new weights, and the seconds that it took, and took to build."""

    artefact: Artefact
    seconds: float
    build_seconds: float


def refit_engines(source: Path, weights: Path, out: Path | None, data_dir: Path) -> tuple[Bundle, list[Refitted]]:
    """Refit an engine, or all of a bundle that can be, with the weights of a run or bundle, into its bundle."""
    old = Bundle.open(folder_of(source) if source.is_file() else source)
    engines = _engines(old, source)
    for artefact in engines:  # before anything takes long
        _tensorrt_of(artefact)
    new = open_source(weights, out, ExportRequest(("native",)), data_dir)
    _check_same_network(old, new)
    done = []
    for place, artefact in enumerate(engines):
        with part(place, len(engines)):
            doing(f"refitting {artefact.file}")
            done.append(_refit(old, artefact, new))
    return new, done


def _engines(bundle: Bundle, source: Path) -> list[Artefact]:
    engines = [one for one in bundle.manifest.files if one.format == "trt"]
    if source.is_file():
        engines = [one for one in engines if Path(one.file).name == source.name]
    if not engines:
        if source.is_file():
            raise UsageError(f"{source} is not an engine that {bundle.folder / MANIFEST} names")
        build = command_line("qcn", "export", source, "--format", "trt", "--set", "refittable")
        raise UsageError(f"{source} has no TensorRT engine; build one on the device with: {build}")
    able = [one for one in engines if one.facts.get("refittable") or one.facts.get("stripped")]
    if not able:
        again = engines[0].rebuild_command(bundle.folder)
        raise UsageError(f"{source} has no engine that can be refitted: build one with: {again} --set refittable")
    return able


def _check_same_network(old: Bundle, new: Bundle) -> None:
    before, after = old.program(), new.program()
    if before.calibrated or after.calibrated:
        one = old if before.calibrated else new
        raise UsageError(
            f"{one.folder} is calibrated, and its scales are part of the engine: build it again with `qcn export`"
        )
    if _structure(before) != _structure(after):
        raise UsageError(
            f"{new.folder} ({new.manifest.name}) has other layers, sizes or classes than {old.folder} "
            f"({old.manifest.name}): only weights can be refitted; build an engine of it with `qcn export`"
        )


def _structure(program: Program) -> tuple[object, ...]:
    return program.operations, program.input, program.classes, {name: a.shape for name, a in program.arrays.items()}


def _tensorrt_of(artefact: Artefact) -> TensorRT:
    """The TensorRT that built an engine, ready to refit it."""
    tensorrt, built = find(artefact.facts["flavour"]), artefact.facts["version"]
    if tensorrt.version_text != built:
        raise MissingError(
            f"{artefact.file} was built with TensorRT {built}, but this is {tensorrt}: refit it with the "
            f"version that built it"
        )
    targets.need_gpu(str(tensorrt))
    if artefact.plugin:
        plugin.load(tensorrt)
    return tensorrt


def _refit(old: Bundle, artefact: Artefact, new: Bundle) -> Refitted:
    facts, tensorrt = dict(artefact.facts), _tensorrt_of(artefact)
    batch = artefact.batch or Batch(*facts["batch"])
    request = ExportRequest(
        ("trt",),
        artefact.precision,  # type: ignore[arg-type]  # one that --precision takes: it is not calibrated
        batch,
        routing="fused" if artefact.plugin else "unrolled",
        every_layer=len(facts["outputs"]) > len(old.manifest.outputs),
        tf32=facts["tf32"],
        fleet=Fleet(facts["version_compatible"], facts["hardware_compatible"], refittable=True),
    )
    graph = new.read(graph_for(request.routing).fitting(Job(new, request)))
    began = time.monotonic()
    plan = refit(old.read(artefact), graph, tensorrt)
    seconds = round(time.monotonic() - began, 2)
    facts |= asdict(request.fleet) | {
        "onnx_sha256": hashlib.sha256(graph).hexdigest(),
        "plan_sha256": hashlib.sha256(plan).hexdigest(),
        "refitted_from": artefact.sha256,
        "refit_seconds": seconds,
    }
    file, command = f"engines/{file_name(facts)}", request.command("trt")
    with new.adding(file, "trt", artefact.precision, command, batch=batch, plugin=artefact.plugin) as draft:
        draft.path.write_bytes(plan)
        draft.found, draft.facts = facts["precision_found"], facts
    return Refitted(new.find(file), seconds, facts["build_seconds"])
