"""TensorRT's engines in a bundle, and the graphs that they are built from."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from qcn.errors import MissingError, UsageError
from qcn.export import targets
from qcn.export.backends.format import Format, Job, Made, Support
from qcn.export.backends.onnx.format import FUSED_GRAPH, OnnxFile
from qcn.export.backends.onnx.precision import convolutions
from qcn.export.backends.precision import Seen
from qcn.export.backends.runner import Runner
from qcn.export.backends.tensorrt import build as building
from qcn.export.backends.tensorrt import plugin
from qcn.export.backends.tensorrt.find import FLAVOURS, find
from qcn.export.backends.tensorrt.receipt import from_inspector, receipt
from qcn.export.backends.tensorrt.runner import refit_command
from qcn.export.bundle import Artefact, Bundle
from qcn.packages import installed, version


class EngineGraph(OnnxFile):
    style = "tensorrt.layers:STYLE"


class EngineFile(Format):
    """It has its entry of the manifest beside it."""

    def make(self, job: Job) -> Made:
        """An engine, or what to type on the device where it cannot be built here."""
        request, bundle, kind, command = job.request, job.bundle, job.precision, job.command(self.name)
        target = targets.target(request.target, request.target_tensorrt)
        loaded: plugin.Plugin | None = None
        try:
            result = building.find(request.tensorrt)
            obstacle = targets.obstacle(target, result.flavour, result.version, result.known_sms, targets.this_gpu())
            if request.routing == "fused" and not obstacle:
                loaded = plugin.load(result)
        except MissingError as error:
            obstacle = str(error) if target.name == "this" else targets.without_tensorrt(target)
        if obstacle and target.name == "this":
            raise MissingError(obstacle)
        graph = graph_for(request.routing).fitting(job)
        content = bundle.read(graph)
        if obstacle:
            commands = targets.device_commands(bundle.folder, command, request.host)
            return Made(self.name, reason=obstacle, commands=tuple(commands))
        sm = target.sm if result.flavour == "rtx" else None  # TensorRT itself builds for the GPU that it runs on
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qcn"
        timings = caches / f"timings-{result.flavour}-{result.version_text}.cache"
        engine = building.build(content, request.engine(timings, sm, kind), result, loaded, bundle.folder / graph.file)
        file = f"engines/{engine.file_name}"
        fused = bool(engine.facts["plugin"])
        with bundle.adding(file, self.name, kind, command, batch=request.batch, plugin=fused) as draft:
            draft.path.write_bytes(engine.plan)
            draft.found, draft.facts = engine.facts["precision_found"], engine.facts
        return Made(self.name, bundle.find(file), receipt=engine.receipt)

    def seen_running(self, bundle: Bundle, artefact: Artefact, runner: Runner) -> Seen:
        """Ask the engine inspector, and compare with the types of the convolutions in the bundle's own graph."""
        layers = from_inspector(runner.inspected())
        result = receipt(layers, "engine inspector", artefact.precision, _graph_types(bundle, artefact))
        if result.met is False:
            return Seen(None, f"{result.unmet[0]} ({len(result.unmet)} such layers)")
        if result.met:
            return Seen(artefact.precision)
        why = "no layer of it is named as a convolution of the graph" if layers else "TensorRT shows no layers of it"
        return Seen(None, why, readable=False)

    def support(self, artefact: Artefact, bundle: Bundle) -> Support:
        """An engine runs with the TensorRT and on the kind of GPU that it was built with."""
        facts, rebuild = artefact.facts, artefact.rebuild_command(bundle.folder)
        flavour = facts.get("flavour")
        if flavour not in FLAVOURS:
            return Support("cannot", f"its facts name no TensorRT that this version of qcn knows: {flavour!r}", rebuild)
        name = targets.product(flavour)
        module = next(filter(installed, FLAVOURS[flavour]), None)
        if module is None:
            return Support("cannot", f"{name} is not installed", targets.install_hint(flavour))
        gpu = targets.this_gpu()
        if gpu is None:
            return Support("cannot", "there is no NVIDIA GPU here, or its driver is not loaded", "run it on the device")
        here = version(module)
        if why := targets.foreign(facts, here, gpu):
            return Support("cannot", f"it {why}", rebuild)
        if facts.get("stripped"):
            return Support("cannot", "it has no weights in it", refit_command(bundle.folder / artefact.file))
        runs = f"by {name} {here or 'of unknown version'} on {gpu.name}{_reach(facts)}"
        return _with_plugin(runs, flavour) if artefact.plugin else Support("runs", runs)


def graph_for(routing: str) -> OnnxFile:
    """The format of the graph that an engine is built from, by --routing."""
    return FUSED_GRAPH if routing == "fused" else GRAPH


def _graph_types(bundle: Bundle, artefact: Artefact) -> dict[str, str]:
    """The convolutions of the graph that the engine was built from, if the bundle has it."""
    file = graph_for("fused" if artefact.plugin else "unrolled").data.file_in(artefact.precision)
    try:
        return convolutions(bundle.read(bundle.find(file)))
    except UsageError:  # not there
        return {}


def _reach(facts: Mapping[str, Any]) -> str:
    """The other machines and versions that an engine runs on, and whether it can be refitted."""
    words = [
        f"every GPU from sm{targets.AMPERE} on" if facts.get("hardware_compatible") else "",
        f"newer versions too, by the lean runtime of {facts.get('version')}" if facts.get("version_compatible") else "",
        "`qcn export --refit` gives it other weights" if facts.get("refittable") else "",
    ]
    return "".join(f"; {one}" for one in words if one)


def _with_plugin(runs: str, flavour: str) -> Support:
    """Diagnose the plugin of an engine with fused routing that TensorRT and the GPU can run.

    The plugin is loaded, and TensorRT with it: nothing less tells whether the two go together.
    """
    try:
        loaded = plugin.load(find(flavour))
    except MissingError as error:
        return Support("cannot", str(error), plugin.BUILD)
    return Support("runs", f"{runs}, its routing by {loaded.path}")


def _installed(flavour: str) -> str:
    """The version that is installed; empty if none is."""
    module = next(filter(installed, FLAVOURS[flavour]), None)
    return (version(module) or "installed, of unknown version") if module else ""


tensorrt, rtx = partial(_installed, "tensorrt"), partial(_installed, "rtx")
GRAPH, ENGINE = EngineGraph("onnx-tensorrt"), EngineFile("trt")
