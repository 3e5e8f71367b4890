"""What `qcn export` can make: by format a function that adds a file to the bundle of a `Job`.

`FILES` has, by format, the function that writes the file itself, from the bundle's program; `qcn.export.rebuild` uses
it to see whether a file is what its program builds.
"""

import json
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import qcn
from qcn.errors import MissingError, UsageError
from qcn.export import precision, targets
from qcn.export.bundle import WEIGHTS, Artefact, Batch, Bundle
from qcn.export.bundle.manifest import Format, file_of
from qcn.export.program import Program
from qcn.export.request import Request
from qcn.names import OperationPrecision
from qcn.packages import installed

if TYPE_CHECKING:
    from onnx import ModelProto

    from qcn.export.onnx.build import Routing
    from qcn.export.tensorrt.receipt import Receipt

# How the graph is arranged that TensorRT is given, by --routing; and a graph's format in the manifest, by arrangement.
ENGINE_ROUTINGS: dict[str, "Routing"] = {"unrolled": "tensorrt", "fused": "fused"}
GRAPHS: dict["Routing", Format] = {"unrolled": "onnx", "fused": "onnx-fused", "tensorrt": "onnx-tensorrt"}


@dataclass(frozen=True)
class Made:
    """What became of one format: the artefact, or why there is none here and what to type to get it elsewhere.

    `notes` are what else there is to say of it, in lines.
    """

    format: str
    artefact: Artefact | None = None
    reason: str = ""
    commands: tuple[str, ...] = ()
    receipt: "Receipt | None" = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """One format being made."""

    bundle: Bundle
    request: Request

    @cached_property
    def program(self) -> Program:
        """The bundle's program in the precision asked for; a calibrated one says itself what it computes in."""
        program, asked = self.bundle.program(), self.request.precision
        if not program.calibrated:
            return program.at(asked, rest=asked)
        if asked not in ("fp32", program.precision):
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
        """What a model file says of itself, for whoever meets it without its bundle."""
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

    def add(self, format: Format, command: str, batch: Batch | None = None, beside: Format | None = None) -> Artefact:
        """The file of this format, in the bundle. The precision is read from the file itself."""
        bundle, kind = self.bundle, self.precision
        file = file_of(format, kind)
        with bundle.adding(file, format, kind, command, batch=batch, beside=beside) as draft:
            draft.facts = FILES[format](self, draft.path)
            draft.found = precision.read(draft.path.read_bytes(), format, bundle.program()).precision
        return bundle.find(file)


def _native(job: Job) -> Made:
    """Every bundle has it already."""
    artefact = job.bundle.find(WEIGHTS)
    job.bundle.read(artefact)
    return Made("native", artefact)


def _torch_file(job: Job, format: Literal["torchscript", "pt2"]) -> Made:
    need_torch("TorchScript" if format == "torchscript" else "pt2")
    _refuse_calibrated(job, format)
    return Made(format, job.add(format, job.command(format)))


def _write_torch_file(job: Job, path: Path, format: Literal["torchscript", "pt2"]) -> dict[str, Any]:
    from qcn.export.torch.pt2 import write_pt2
    from qcn.export.torch.torchscript import write_torchscript

    write, request = write_torchscript if format == "torchscript" else write_pt2, job.request
    program, metadata = job.bundle.program(), job.metadata
    return write(program, path, precision=request.precision, every_layer=request.every_layer, metadata=metadata)


def _executorch(job: Job) -> Made:
    """A .pte file, for the fewest images that were asked for."""
    from qcn.export.executorch import summary

    need_torch("ExecuTorch")
    _need_executorch()
    _refuse_calibrated(job, "executorch")
    _refuse_fused(job, "ExecuTorch")
    if job.precision != "fp32":
        raise UsageError(f"executorch is only made in fp32, not in {job.precision}: leave out --precision")
    least = job.request.batch.min
    job = replace(job, request=replace(job.request, batch=Batch(least, least, least), opset=None))
    made = job.add("executorch", job.command("executorch"), job.request.batch)
    return Made("executorch", made, notes=(f"{made.file}, for batches of {made.batch}: {summary(made.facts)}",))


def _write_executorch(job: Job, path: Path) -> dict[str, Any]:
    _need_executorch()
    from qcn.export.torch.executorch import write_executorch

    request, program = job.request, job.bundle.program()
    return write_executorch(
        program, path, batch=request.batch.min, every_layer=request.every_layer, metadata=job.metadata
    )


def _onnx(job: Job) -> Made:
    return Made("onnx", onnx_graph(job, "fused" if job.request.routing == "fused" else "unrolled"))


def onnx_graph(job: Job, routing: "Routing") -> Artefact:
    """Write the ONNX graph with its routing arranged this way."""
    _need_onnx()
    command = job.command("trt" if routing == "tensorrt" else "onnx")  # an engine's graph is made with the engine
    return job.add(GRAPHS[routing], command, job.request.batch)


def _write_graph(job: Job, path: Path, routing: "Routing") -> dict[str, Any]:
    _need_onnx()
    import onnx

    model = onnx_model(job, routing)
    onnx.save(model, path)
    outputs = [output.name for output in model.graph.output]
    return {"opset": model.opset_import[0].version, "nodes": len(model.graph.node), "outputs": outputs}


def onnx_model(job: Job, routing: "Routing") -> "ModelProto":
    """The graph itself, as asked for."""
    from qcn.export.onnx.build import build

    request = job.request
    return build(
        job.program,
        routing=routing,
        batch=request.batch.min if request.batch.min == request.batch.max else None,
        opset=request.opset_of(job.precision),
        every_layer=request.every_layer,
        metadata=job.metadata,
    )


def graph_for(job: Job, routing: "Routing") -> Artefact:
    """The bundle's ONNX graph with its routing arranged this way if it will do, else a new one."""
    request = job.request
    for artefact in job.bundle.manifest.files:
        if artefact.file == file_of(GRAPHS[routing], job.precision) and artefact.batch is not None:
            open_batch = artefact.batch.min < artefact.batch.max
            layers_shown = len(artefact.facts.get("outputs", ())) > len(job.bundle.manifest.outputs)
            opset_fits = request.opset in (None, artefact.facts.get("opset"))
            if (open_batch or artefact.batch == request.batch) and layers_shown == request.every_layer and opset_fits:
                return artefact
    return onnx_graph(job, routing)


def _openvino(job: Job) -> Made:
    """OpenVINO's IR, by way of the ONNX graph."""
    _refuse_fused(job, "OpenVINO")
    batch = job.request.batch
    return Made("openvino", job.add("openvino", job.command("openvino"), batch, beside="openvino-weights"))


def _write_openvino(job: Job, path: Path) -> dict[str, Any]:
    from qcn.export.openvino import import_openvino, write_ir

    import_openvino()
    _need_onnx()
    return write_ir(onnx_model(job, "openvino").SerializeToString(), path)


def _trt(job: Job) -> Made:
    """An engine, or what to type on the device where it cannot be built here."""
    from qcn.export.tensorrt import plugin
    from qcn.export.tensorrt.build import build, find

    request, bundle, kind, command = job.request, job.bundle, job.precision, job.command("trt")
    target = targets.target(request.target, request.target_tensorrt)
    loaded: plugin.Plugin | None = None
    try:
        found = find(request.tensorrt)
        obstacle = targets.obstacle(target, found.flavour, found.version, found.known_sms, targets.this_gpu())
        if request.routing == "fused" and not obstacle:
            loaded = plugin.load(found)
    except MissingError as error:
        obstacle = str(error) if target.name == "this" else targets.without_tensorrt(target)
    if obstacle and target.name == "this":
        raise MissingError(obstacle)
    graph = graph_for(job, ENGINE_ROUTINGS[request.routing])
    content = bundle.read(graph)
    if obstacle:
        commands = targets.device_commands(bundle.folder, command, request.host)
        return Made("trt", reason=obstacle, commands=tuple(commands))
    sm = target.sm if found.flavour == "rtx" else None  # TensorRT itself builds for the GPU that it runs on
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qcn"
    timings = caches / f"timings-{found.flavour}-{found.version_text}.cache"
    engine = build(content, request.engine(timings, sm, kind), found, loaded, bundle.folder / graph.file)
    file = f"engines/{engine.file_name}"
    fused = bool(engine.facts["plugin"])
    with bundle.adding(file, "trt", kind, command, batch=request.batch, plugin=fused) as draft:
        draft.path.write_bytes(engine.plan)
        draft.found, draft.facts = engine.facts["precision_found"], engine.facts
    return Made("trt", bundle.find(file), receipt=engine.receipt)


def _web(job: Job) -> Made:
    """One page with libqcn and the weights in it; it computes as they do, whatever else is asked for."""
    job = replace(job, request=replace(job.request, precision="fp32", every_layer=False))
    made = job.add("web", job.command("web"))
    return Made("web", made, notes=(f"open {job.bundle.folder / made.file} in a browser: the network runs in it",))


def _write_web(job: Job, path: Path) -> dict[str, Any]:
    from qcn.export.web.page import write_page

    beside = Bundle.open(job.request.beside) if job.request.beside else None
    return write_page(job.bundle, beside, path)


def _triton(job: Job) -> Made:
    """A server's model repository: pre-processing, and behind it the ONNX graph, or the engine where there is one."""
    from qcn.export.triton.networks import networks, unbatched
    from qcn.export.triton.repository import model_name

    request, bundle = job.request, job.bundle
    _refuse_fused(job, "Triton's ONNX Runtime")
    if why := unbatched(request.batch):
        raise UsageError(f"it cannot be served: {why}")
    _, notes = networks(bundle, graph_for(job, "unrolled"), request.batch, request.benchmark)
    made = job.add("triton", job.command("triton"), request.batch)
    notes += [
        f"mkdir -p models && tar -xf {shlex.quote(str(bundle.folder / made.file))} -C models",
        f"tritonserver --model-repository=models   # serves {model_name(bundle.manifest.name, job.precision)}: "
        "docs/serve.md",
    ]
    return Made("triton", made, notes=tuple(notes))


def _write_triton(job: Job, path: Path) -> dict[str, Any]:
    """The repository of the bundle's graph, which must be there, and of its engine, if there is one."""
    from qcn.export.triton.networks import networks
    from qcn.export.triton.repository import model_name, write_repository

    request, bundle = job.request, job.bundle
    served, _ = networks(bundle, bundle.find(file_of("onnx", job.precision)), request.batch, request.benchmark)
    name = model_name(bundle.manifest.name, job.precision)
    return write_repository(path, name, bundle, served, job.command("triton"))


def need_torch(what: str) -> None:
    if not installed("torch"):
        raise MissingError(f"{what} needs torch: pip install 'qcn-toolkit[train]'")


def _need_executorch() -> None:
    from qcn.export.executorch import INSTALL

    if not installed("executorch"):
        raise MissingError(f"ExecuTorch is not installed: {INSTALL}")


def _need_onnx() -> None:
    if not installed("onnx"):
        raise MissingError("writing ONNX needs the onnx package: pip install onnx")


def _refuse_fused(job: Job, runtime: str) -> None:
    if job.request.routing == "fused":
        raise UsageError(f"{runtime} has no fused routing: leave out --routing fused")


def _refuse_calibrated(job: Job, format: str) -> None:
    if job.bundle.program().calibrated:
        raise UsageError(
            f"{format} cannot be made from a calibrated network, because torch has no kernels for its integers: "
            f"use --format onnx"
        )


# A new format is a function and a line here, and its name in `qcn.export.request.FORMATS`.
WRITERS: dict[str, Callable[[Job], Made]] = {
    "native": _native,
    "torchscript": lambda job: _torch_file(job, "torchscript"),
    "pt2": lambda job: _torch_file(job, "pt2"),
    "onnx": _onnx,
    "trt": _trt,
    "web": _web,
    "triton": _triton,
    "openvino": _openvino,
    "executorch": _executorch,
}
# What writes a file of each format to a path; it returns facts for the manifest.
FILES: dict[Format, Callable[[Job, Path], dict[str, Any]]] = {
    "torchscript": partial(_write_torch_file, format="torchscript"),
    "pt2": partial(_write_torch_file, format="pt2"),
    "executorch": _write_executorch,
    **{format: partial(_write_graph, routing=routing) for routing, format in GRAPHS.items()},
    "openvino": _write_openvino,
    "web": _write_web,
    "triton": _write_triton,
}
