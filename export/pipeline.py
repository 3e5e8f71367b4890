"""`qcn export`: from a training run, or from a bundle made earlier, to the artefacts asked for, all in one bundle.

A run needs torch. A bundle has the network in deployment form, so that ONNX graphs and TensorRT engines can be made
from it on a device without torch.
"""

import json
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import qcn
from qcn.errors import MissingError, UsageError, unknown_name
from qcn.export import precision, targets
from qcn.export.bundle import MANIFEST, WEIGHTS, Artefact, Batch, Bundle
from qcn.export.bundle.manifest import BUNDLE, CARRY_CODE, Format, file_of, manifest_of, tools
from qcn.export.program import Program
from qcn.export.tensorrt.config import BuildRequest, Fleet
from qcn.export.tensorrt.find import FLAVOURS
from qcn.export.triton.batching import Latencies
from qcn.names import PRECISIONS, RUN, OperationPrecision, Precision
from qcn.packages import installed
from qcn.progress import doing, part, say
from qcn.shipped import networks

if TYPE_CHECKING:
    from onnx import ModelProto

    from qcn.export.onnx.build import Routing
    from qcn.export.tensorrt.receipt import Receipt

ROUTINGS = ("unrolled", "fused")
# How the graph is arranged that TensorRT is given, by --routing; and a graph's format in the manifest, by arrangement.
ENGINE_ROUTINGS: dict[str, "Routing"] = {"unrolled": "tensorrt", "fused": "fused"}
GRAPHS: dict["Routing", Format] = {"unrolled": "onnx", "fused": "onnx-fused", "tensorrt": "onnx-tensorrt"}
# The command that makes the weights and the golden answers, which come with every export of a run.
FROM_RUN = f"qcn export RUN --format native --out {BUNDLE}"
# What people ask for that there is not, and what there is instead.
WITHOUT_GPU = "a machine without a GPU runs --format native (libqcn) and --format onnx (ONNX Runtime)"
OTHER_FORMATS = {
    **dict.fromkeys(("tflite", "litert", "coreml", "ncnn"), WITHOUT_GPU),
    **dict.fromkeys(("pte", "xnnpack", "mobile"), "phones run --format executorch"),
    **dict.fromkeys(("ir", "vino", "intel"), "OpenVINO's IR is --format openvino"),
    **dict.fromkeys(("tfjs", "wasm", "webassembly", "html", "browser"), "a browser runs --format web"),
    **dict.fromkeys(("tensorrt", "engine", "plan"), "TensorRT engines are --format trt"),
    **dict.fromkeys(("onnxruntime", "ort"), "ONNX Runtime runs --format onnx"),
    **dict.fromkeys(("tritonserver", "serving", "server"), "a server's model repository is --format triton"),
    **dict.fromkeys(("pytorch", "pt", "torch", "ts", "jit", "libtorch"), "torch runs --format torchscript and pt2"),
    **dict.fromkeys(("safetensors", "libqcn", "c", "cpp"), "the weights for libqcn, in C and C++, are --format native"),
}
OTHER_PRECISIONS = {
    "int8": "int8 needs images to choose its scales by: `qcn calibrate` makes such a bundle",
    **dict.fromkeys(("int4", "fp8", "uint8"), "the smallest are --precision fp16, and int8 by `qcn calibrate`"),
    **dict.fromkeys(("half", "float16", "16"), "half precision is --precision fp16"),
    **dict.fromkeys(("single", "float32", "float", "32"), "single precision is --precision fp32"),
    "bfloat16": "it is --precision bf16 here",
}
OLDEST_OPSET, BF16_OPSET = 17, 22  # 17: what TensorRT 8.6 reads; 22: the first whose convolutions know bfloat16


@dataclass(frozen=True)
class Request:
    """What to make; the fields are the options of `qcn export`.

    target_tensorrt   the TensorRT version of the target, where that is known
    host              what ssh knows the target by
    """

    formats: tuple[str, ...] = ("onnx",)
    precision: Precision = "fp32"
    batch: Batch = Batch(1, 8, 64)  # noqa: RUF009 (frozen)
    routing: str = "unrolled"
    opset: int | None = None
    every_layer: bool = False
    checkpoint: str = "best"
    target: str = "this"
    target_tensorrt: str | None = None
    host: str = "device"
    tensorrt: str | None = None
    tf32: bool = False
    optimization: int | None = None
    workspace: int | None = None
    fleet: Fleet = Fleet()  # noqa: RUF009 (frozen)
    beside: Path | None = None
    benchmark: Latencies | None = None
    public_key: Path | None = None

    def __post_init__(self) -> None:
        for name in self.formats:
            if name not in (*FORMATS, "all"):
                raise unknown_name("format", name, (*FORMATS, "all"), OTHER_FORMATS)
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS, OTHER_PRECISIONS)
        if self.routing not in ROUTINGS:
            raise unknown_name("routing", self.routing, ROUTINGS)
        if self.opset is not None and self.opset < OLDEST_OPSET:
            raise UsageError(f"opset {self.opset} is too old: {OLDEST_OPSET} (what TensorRT 8.6 reads) or newer")
        if self.opset is not None and self.precision == "bf16" and self.opset < BF16_OPSET:
            raise UsageError(f"bf16 needs opset {BF16_OPSET} or newer, not {self.opset}: older convolutions lack it")
        targets.target(self.target, self.target_tensorrt)
        if self.tensorrt is not None and self.tensorrt not in FLAVOURS:
            raise unknown_name("TensorRT", self.tensorrt, FLAVOURS)
        if self.fleet.version_compatible and self.routing == "fused":
            raise UsageError(
                "--version-compatible goes with --routing unrolled: the plugin of fused routing belongs to one version"
            )
        self.engine()

    def engine(
        self, timing_cache: Path | None = None, sm: int | None = None, precision: OperationPrecision | None = None
    ) -> BuildRequest:
        """The engine that this asks for, in this precision or another."""
        return BuildRequest(
            precision or self.precision,
            self.batch,
            tf32=self.tf32,
            optimization=self.optimization,
            workspace=self.workspace,
            timing_cache=timing_cache,
            sm=sm,
            fleet=self.fleet,
        )

    def command(self, format: str, source: str = BUNDLE, calibrated: bool = False) -> str:
        """The command that asks for the same of a bundle; a `calibrated` one has its own precision."""
        valued: dict[str, object] = {"--format": format}
        valued |= {"--precision": self.precision} if not calibrated else {}
        switches = {"--every-layer": self.every_layer}
        if format in ("onnx", "trt", "triton", "openvino", "executorch"):
            valued |= {"--batch": self.batch, "--opset": self.opset}
            valued |= {"--routing": self.routing} if self.routing != "unrolled" else {}
        if format == "trt":
            valued |= {"--optimization": self.optimization, "--workspace": self.workspace}
            switches |= {"--tf32": self.tf32}
            switches |= {f"--{name.replace('_', '-')}": True for name in self.fleet.asked}
        if format == "web":
            valued |= {"--beside": self.beside and shlex.quote(str(self.beside))}
        if format == "triton":
            valued |= {"--benchmark": self.benchmark and shlex.quote(str(self.benchmark.file))}
        given = [f"{option} {value}" for option, value in valued.items() if value is not None]
        return " ".join(("qcn export", source, *given, *(option for option, on in switches.items() if on)))


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

    @property
    def program(self) -> Program:
        """The bundle's program in the precision asked for; a calibrated one says itself what it computes in."""
        program, asked = self.bundle.program(), self.request.precision
        if not program.calibrated:
            return program.at(asked, rest=asked)
        if asked not in ("fp32", program.precision):
            raise UsageError(f"{self.bundle.folder} is calibrated, each operation in its own: leave out --precision")
        return program

    def precision_of(self, program: Program) -> OperationPrecision:
        """What a file of this program is named for."""
        return program.precision if program.calibrated else self.request.precision


def export(source: Path, out: Path | None, request: Request, data_dir: Path) -> tuple[Bundle, list[Made]]:
    """Make what is asked for, from the run or bundle in `source`; the bundle takes in each artefact when it is done."""
    check_opset(request)
    bundle = open_source(source, out, request, data_dir)
    everything = "all" in request.formats
    wanted = [(name, request) for name in dict.fromkeys(request.formats)]
    capsules = not (everything or request.routing == "fused") or bool(bundle.program().routes)
    if everything:
        unrolled, fused = replace(request, routing="unrolled"), replace(request, routing="fused")
        of_engine = request if capsules else unrolled
        wanted = [("onnx", fused)] if capsules else []
        left_out = {"triton"}  # the same files once more
        left_out |= {*CARRY_CODE, "executorch"} if bundle.program().calibrated else set()
        left_out |= {"executorch"} if request.precision != "fp32" else set()
        formats = [name for name in FORMATS if name not in left_out]
        wanted += [(name, of_engine if name == "trt" else unrolled) for name in formats]
    elif not capsules:
        raise UsageError(f"{bundle.manifest.name} has no capsule layers to fuse: leave out --routing fused")
    made = []
    for place, (name, asked) in enumerate(wanted):
        with part(place, len(wanted)):
            job = Job(bundle, asked)
            doing(f"writing {name}, {job.precision_of(bundle.program())}")
            try:
                made.append(FORMATS[name](job))
            except MissingError as error:
                if not everything:
                    raise
                made.append(Made(name, reason=str(error)))
    return bundle, made


def check_opset(request: Request) -> None:
    """Refuse an opset that the onnx package here does not know, before anything is made."""
    if request.opset is not None and installed("onnx"):
        import onnx

        if request.opset > (newest := onnx.defs.onnx_opset_version()):
            raise UsageError(f"opset {request.opset} is newer than onnx {onnx.__version__} knows: at most {newest}")


def open_source(source: Path, out: Path | None, request: Request, data_dir: Path) -> Bundle:
    """The bundle to add to, with weights and golden answers in it."""
    if (source / MANIFEST).exists():
        if out is not None and os.path.realpath(out) != os.path.realpath(source):
            raise UsageError(f"{source} is a bundle, and what is made from it goes into it: leave out --out")
        return Bundle.open(source, request.public_key)
    if request.public_key:
        raise UsageError(f"--public-key is for bundles, and {source} is not one: leave it out")
    if not (source / RUN).exists():
        raise UsageError(f"{source} is neither a training run (no {RUN}) nor a bundle (no {MANIFEST})")
    _need_torch("exporting from a run, unlike from a bundle,")
    return _from_run(source, out or Path("runs/export") / Path(os.path.realpath(source)).name, request, data_dir)


def _from_run(source: Path, out: Path, request: Request, data_dir: Path) -> Bundle:
    from qcn.export.lower import lower
    from qcn.export.reference import make_golden
    from qcn.train.checkpoint import load_network

    trained, run = load_network(source, request.checkpoint)
    program = lower(trained, *run.preprocessing.output_size(*run.data.image[1:]))
    name, versions = f"{run.data.name}-{run.model.name}", tools("torch", "onnx", "numpy", "safetensors")
    manifest = manifest_of(run, source, request.checkpoint, program, name, versions)
    # A network that ships is exported where its data set is not, too: its golden answers are then to other pictures.
    of_toys = source.resolve() in networks().values() and not (data_dir / run.dataset().folder).is_dir()
    if of_toys:
        say(f"{run.data.name} is not in {data_dir}: golden answers are to pictures of rendered toys")
    return Bundle.create(out, manifest, program, lambda: make_golden(trained, run, data_dir, of_toys=of_toys), FROM_RUN)


def _native(job: Job) -> Made:
    """Every bundle has it already."""
    artefact = job.bundle.find(WEIGHTS)
    job.bundle.path(artefact)
    return Made("native", artefact)


def _torchscript(job: Job) -> Made:
    _need_torch("TorchScript")
    from qcn.export.torch.torchscript import write_torchscript

    return _torch_file(job, "torchscript", write_torchscript)


def _pt2(job: Job) -> Made:
    _need_torch("pt2")
    from qcn.export.torch.pt2 import write_pt2

    return _torch_file(job, "pt2", write_pt2)


def _need_torch(what: str) -> None:
    if not installed("torch"):
        raise MissingError(f"{what} needs torch: pip install 'qcn-toolkit[train]'")


def _torch_file(job: Job, format: Any, write: Callable[..., dict[str, Any]]) -> Made:
    request = job.request
    _refuse_calibrated(job, format)
    file = file_of(format, request.precision)
    with job.bundle.adding(file, format, request.precision, request.command(format)) as draft:
        draft.facts = write(
            job.bundle.program(),
            draft.path,
            precision=request.precision,
            every_layer=request.every_layer,
            metadata=metadata(job.bundle),
        )
        draft.found = precision.read(draft.path, format, job.bundle.program()).precision
    return Made(format, job.bundle.find(file))


def _refuse_fused(job: Job, runtime: str) -> None:
    if job.request.routing == "fused":
        raise UsageError(f"{runtime} has no fused routing: leave out --routing fused")


def _refuse_calibrated(job: Job, format: str) -> None:
    if job.bundle.program().calibrated:
        raise UsageError(
            f"{format} is not made of a calibrated network, whose integers torch has no kernels for: --format onnx"
        )


def _executorch(job: Job) -> Made:
    """A .pte file, for the fewest images that were asked for."""
    from qcn.export.executorch import INSTALL, summary

    _need_torch("ExecuTorch")
    if not installed("executorch"):
        raise MissingError(f"ExecuTorch is not installed: {INSTALL}")
    from qcn.export.torch.executorch import write_executorch

    _refuse_calibrated(job, "executorch")
    _refuse_fused(job, "ExecuTorch")
    least = job.request.batch.min
    request = replace(job.request, batch=Batch(least, least, least), opset=None)
    if request.precision != "fp32":
        raise UsageError(f"executorch is made in fp32 and not in {request.precision}: leave out --precision")
    file = file_of("executorch", "fp32")
    with job.bundle.adding(file, "executorch", "fp32", request.command("executorch"), batch=request.batch) as draft:
        draft.facts = write_executorch(
            job.bundle.program(),
            draft.path,
            batch=least,
            every_layer=request.every_layer,
            metadata=metadata(job.bundle),
        )
    made = job.bundle.find(file)
    return Made("executorch", made, notes=(f"{file}, for batches of {made.batch}: {summary(made.facts)}",))


def metadata(bundle: Bundle) -> dict[str, str]:
    """What a model file says of itself, for whoever meets it without its bundle."""
    manifest = bundle.manifest
    return {
        "name": manifest.name,
        "classes": json.dumps(manifest.classes, ensure_ascii=False),
        "preprocessing": json.dumps(manifest.preprocessing.__dict__),
        "source_sha256": manifest.source.sha256,
        "qcn": qcn.__version__,
    }


def _onnx(job: Job) -> Made:
    return Made("onnx", onnx_graph(job, "fused" if job.request.routing == "fused" else "unrolled"))


def onnx_graph(job: Job, routing: "Routing") -> Artefact:
    """Write the ONNX graph with its routing arranged this way."""
    _need_onnx()
    import onnx

    request, bundle, program = job.request, job.bundle, job.program
    kind, format = job.precision_of(program), GRAPHS[routing]
    file = file_of(format, kind)
    # An engine's graph is made with the engine.
    command = request.command("trt" if routing == "tensorrt" else "onnx", calibrated=program.calibrated)
    with bundle.adding(file, format, kind, command, batch=request.batch) as draft:
        model = onnx_model(job, routing)
        onnx.save(model, draft.path)
        draft.found = precision.read(draft.path, format, bundle.program()).precision
        draft.facts = {
            "opset": model.opset_import[0].version,
            "nodes": len(model.graph.node),
            "outputs": [output.name for output in model.graph.output],
        }
    return bundle.find(file)


def onnx_model(job: Job, routing: "Routing") -> "ModelProto":
    """The graph itself, as asked for."""
    from qcn.export.onnx.build import build

    request, program = job.request, job.program
    return build(
        program,
        routing=routing,
        batch=request.batch.min if request.batch.min == request.batch.max else None,
        opset=request.opset or (BF16_OPSET if job.precision_of(program) == "bf16" else OLDEST_OPSET),
        every_layer=request.every_layer,
        metadata=metadata(job.bundle),
    )


def _need_onnx() -> None:
    if not installed("onnx"):
        raise MissingError("writing ONNX needs the onnx package: pip install onnx")


def _openvino(job: Job) -> Made:
    """OpenVINO's IR, by way of the ONNX graph."""
    from qcn.export.openvino import import_openvino, write_ir

    import_openvino()
    _need_onnx()
    _refuse_fused(job, "OpenVINO")
    request, bundle, program = job.request, job.bundle, job.program
    kind = job.precision_of(program)
    file, command = file_of("openvino", kind), request.command("openvino", calibrated=program.calibrated)
    with bundle.adding(file, "openvino", kind, command, batch=request.batch, beside="openvino-weights") as draft:
        draft.facts = write_ir(onnx_model(job, "openvino").SerializeToString(), draft.path)
        draft.found = precision.read(draft.path, "openvino", bundle.program()).precision
    return Made("openvino", bundle.find(file))


def _trt(job: Job) -> Made:
    """An engine, or what to type on the device where it cannot be built here."""
    from qcn.export.tensorrt import plugin
    from qcn.export.tensorrt.build import build, find, told

    request, bundle, program = job.request, job.bundle, job.program
    kind, command = job.precision_of(program), request.command("trt", calibrated=program.calibrated)
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
    graph = bundle.path(graph_for(job, ENGINE_ROUTINGS[request.routing]))
    if obstacle:
        commands = targets.device_commands(bundle.folder, command, request.host)
        return Made("trt", reason=obstacle, commands=tuple(commands))
    sm = target.sm if found.flavour == "rtx" else None  # TensorRT itself builds for the GPU that it runs on
    timings = cache_folder() / f"timings-{found.flavour}-{found.version_text}.cache"
    engine = build(graph, request.engine(timings, sm, kind), found, told(f"building an engine by {found}"), loaded)
    file = f"engines/{engine.file_name}"
    fused = bool(engine.facts["plugin"])
    with bundle.adding(file, "trt", kind, command, batch=request.batch, plugin=fused) as draft:
        draft.path.write_bytes(engine.plan)
        draft.found, draft.facts = engine.facts["precision_found"], engine.facts
    return Made("trt", bundle.find(file), receipt=engine.receipt)


def _web(job: Job) -> Made:
    """One page with libqcn and the weights in it; it computes as they do, whatever else is asked for."""
    from qcn.export.web.page import write_page

    request = replace(job.request, precision="fp32", every_layer=False)
    beside = Bundle.open(request.beside) if request.beside else None
    precision, calibrated = job.bundle.find(WEIGHTS).precision, job.bundle.program().calibrated
    file = file_of("web", precision)
    with job.bundle.adding(file, "web", precision, request.command("web", calibrated=calibrated)) as draft:
        draft.facts, draft.found = write_page(job.bundle, beside, draft.path), precision
    there = job.bundle.folder / file
    return Made("web", job.bundle.find(file), notes=(f"open {there} in a browser: the network runs in it",))


def _triton(job: Job) -> Made:
    """A server's model repository: pre-processing, and behind it the ONNX graph, or the engine where there is one."""
    from qcn.export.triton.networks import networks, unbatched
    from qcn.export.triton.repository import model_name, write_repository

    request, bundle, kind = job.request, job.bundle, job.precision_of(job.program)
    _refuse_fused(job, "Triton's ONNX Runtime")
    if why := unbatched(request.batch):
        raise UsageError(f"it cannot be served: {why}")
    served, notes = networks(bundle, graph_for(job, "unrolled"), request.batch, request.benchmark)
    name, file = model_name(bundle.manifest.name, kind), file_of("triton", kind)
    command = request.command("triton", calibrated=job.program.calibrated)
    with bundle.adding(file, "triton", kind, command, batch=request.batch) as draft:
        draft.facts = write_repository(draft.path, name, bundle, served, command)
        draft.found = precision.read(draft.path, "triton", bundle.program()).precision
    notes += [
        f"mkdir -p models && tar -xf {shlex.quote(str(bundle.folder / file))} -C models",
        f"tritonserver --model-repository=models   # serves {name}: docs/serve.md",
    ]
    return Made("triton", bundle.find(file), notes=tuple(notes))


def graph_for(job: Job, routing: "Routing") -> Artefact:
    """The bundle's ONNX graph with its routing arranged this way if it will do, else a new one."""
    request = job.request
    for artefact in job.bundle.manifest.files:
        if artefact.file == file_of(GRAPHS[routing], job.precision_of(job.program)) and artefact.batch is not None:
            open_batch = artefact.batch.min < artefact.batch.max
            layers_shown = len(artefact.facts.get("outputs", ())) > len(job.bundle.manifest.outputs)
            opset_fits = request.opset in (None, artefact.facts.get("opset"))
            if (open_batch or artefact.batch == request.batch) and layers_shown == request.every_layer and opset_fits:
                return artefact
    return onnx_graph(job, routing)


def cache_folder() -> Path:
    """Where this user's programs keep what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qcn"


# A new format is a function and a line here.
FORMATS: dict[str, Callable[[Job], Made]] = {
    "native": _native,
    "torchscript": _torchscript,
    "pt2": _pt2,
    "onnx": _onnx,
    "trt": _trt,
    "web": _web,
    "triton": _triton,
    "openvino": _openvino,
    "executorch": _executorch,
}
