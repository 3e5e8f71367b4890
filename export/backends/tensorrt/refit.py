"""`qcn export --refit`: a network that was trained again takes over the engines of the one before, unbuilt.

The engines go into the bundle of the new weights, whose golden answers and hashes are then theirs too; the bundle that
they come from stays as it is. TensorRT's parser names every weight as the graph's initializer is named, and a
refittable engine takes it by that name. Rotations and betas of fused routing are constants that the plugin is given as
inputs, so they are among them.
"""

import hashlib
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.errors import BuildError, MissingError, UsageError
from qcn.export import targets
from qcn.export.backends.format import Job
from qcn.export.backends.tensorrt import plugin
from qcn.export.backends.tensorrt.build import file_name
from qcn.export.backends.tensorrt.config import Fleet
from qcn.export.backends.tensorrt.find import TensorRT, find
from qcn.export.backends.tensorrt.format import graph_for
from qcn.export.backends.tensorrt.progress import BuildLog, logger
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


def refit(plan: bytes, graph: bytes, tensorrt: TensorRT) -> bytes:
    """An engine with the weights of an ONNX graph of the same network in it, as a plan that can be refitted again."""
    trt, log = tensorrt.module, BuildLog()
    trt_logger = logger(trt, log)
    engine = trt.Runtime(trt_logger).deserialize_cuda_engine(plan)
    if engine is None:
        raise MissingError(f"{tensorrt} cannot load the engine:{log.summary()}")
    if not engine.refittable:
        raise UsageError(
            "the engine cannot be refitted: build one with `qcn export BUNDLE --format trt --set refittable`"
        )
    weights, refitter = weights_of(graph), trt.Refitter(engine, trt_logger)
    if unknown := sorted(weights.keys() - set(refitter.get_all_weights())):
        raise BuildError(f"the engine cannot take '{unknown[0]}' of the graph: it was built without such a weight")
    for name, array in weights.items():
        if not refitter.set_named_weights(name, as_weights(array, trt)):
            raise BuildError(f"{tensorrt} refuses the weight '{name}':{log.summary()}")
    if missing := refitter.get_missing_weights():
        raise BuildError(f"the graph has no weight '{missing[0]}', which the engine needs")
    if not refitter.refit_cuda_engine():
        raise BuildError(f"{tensorrt} could not refit the engine:{log.summary()}")
    return _serialised(engine, trt)


def as_weights(array: NDArray[Any], trt: Any) -> Any:
    """The array as TensorRT takes it; it keeps a pointer. numpy has no bfloat16 of its own that it would know."""
    if array.dtype.name == "bfloat16":
        return trt.Weights(trt.DataType.BF16, array.ctypes.data, array.size)
    return trt.Weights(array)


def weights_of(graph: bytes) -> dict[str, NDArray[Any]]:
    """The graph's weights by name: its arrays of numbers. Scalars and whole numbers are the same for all weights."""
    import onnx

    tensors = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load_from_string(graph).graph.initializer}
    return {
        name: np.ascontiguousarray(array)
        for name, array in tensors.items()
        if array.ndim and "float" in array.dtype.name
    }


def _serialised(engine: Any, trt: Any) -> bytes:
    if not hasattr(engine, "create_serialization_config"):  # TensorRT 8.6, which has no stripped engines
        return bytes(engine.serialize())
    config = engine.create_serialization_config()
    config.clear_flag(trt.SerializationFlag.EXCLUDE_WEIGHTS)
    if hasattr(trt.SerializationFlag, "INCLUDE_REFIT"):
        config.set_flag(trt.SerializationFlag.INCLUDE_REFIT)
    return bytes(engine.serialize_with_config(config))
