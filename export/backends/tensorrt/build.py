"""An ONNX graph to a TensorRT engine: one adapter for TensorRT 8.6, 10 and 11 and for TensorRT-RTX 1.

The precision of every tensor is the ONNX graph's (its casts). What was built is read back and compared with what was
asked (`qcn.export.backends.tensorrt.receipt`), so that an engine in another precision is an error and not a surprise.

    engine = build(bundle.read(graph), BuildRequest("fp16", Batch(1, 8, 64)), find())
    (folder / engine.file_name).write_bytes(engine.plan)
"""

import hashlib
import time
from dataclasses import asdict, astuple, dataclass
from typing import Any

from qcn.errors import BuildError
from qcn.export import targets
from qcn.export.backends.onnx import precision
from qcn.export.backends.tensorrt.config import BuildRequest, check_support, configure, load_timings
from qcn.export.backends.tensorrt.find import TensorRT, find
from qcn.export.backends.tensorrt.network import check_types, convolutions, network_layers, parse
from qcn.export.backends.tensorrt.plugin import Plugin
from qcn.export.backends.tensorrt.progress import BuildLog, logger, monitor, run_interruptibly
from qcn.export.backends.tensorrt.receipt import (
    EngineLayer,
    EngineReceipt,
    from_inspector,
    from_log,
    receipt,
    type_name,
)
from qcn.export.bundle.manifest import Batch
from qcn.storage.files import atomic_write

__all__ = ["BuildRequest", "BuiltEngine", "TensorRT", "build", "file_name", "find"]


@dataclass(frozen=True)
class BuiltEngine:
    """A built engine: the plan as TensorRT wrote it, what is known of it (JSON), and its precision receipt."""

    plan: bytes
    facts: dict[str, Any]
    receipt: EngineReceipt

    @property
    def file_name(self) -> str:
        return file_name(self.facts)


def file_name(facts: dict[str, Any]) -> str:
    """An engine's file name, such as fp16-b1-8-64-sm90-trt8.6.0.engine; its facts lie beside it as .json."""
    traits = {"tf32": "tf32", "plugin": "fused", "refittable": "refittable", "stripped": "stripped"}
    parts = [
        "-".join([facts["precision"], *(word for trait, word in traits.items() if facts[trait])]),
        "b" + str(Batch(*facts["batch"])).replace(":", "-"),
        *([f"sm{facts['sm']}"] if facts["sm"] else []),
        *(["ampere-plus"] if facts["hardware_compatible"] else []),
        *(["compatible"] if facts["version_compatible"] else []),
        ("rtx" if facts["flavour"] == "rtx" else "trt") + facts["version"],
    ]
    return "-".join(parts) + ".engine"


def build(
    onnx: bytes, request: BuildRequest, tensorrt: TensorRT, plugin: Plugin | None = None, name: object = "the graph"
) -> BuiltEngine:
    """Build an engine of an ONNX graph's bytes, showing how far it is, and check its precision.

    Messages call the graph `name`.

    A graph with fused routing needs the plugin to be loaded: `plugin` is what was loaded, for the engine's facts.

    Writes nothing but the timing cache, which is kept also when the engine is refused. Ctrl-C ends the build.
    """
    check_support(request, tensorrt)
    gpu = targets.need_gpu(str(tensorrt)) if tensorrt.flavour == "tensorrt" else targets.this_gpu()
    trt, log = tensorrt.module, BuildLog()
    trt_logger = logger(trt, log)
    try:
        builder = trt.Builder(trt_logger)
    except TypeError as error:  # how the bindings say that there is none
        raise BuildError(f"{tensorrt} cannot start its builder: {error}{log.summary()}") from error
    network, parser = parse(tensorrt, builder, trt_logger, onnx, request.precision, name)
    layers = network_layers(network)
    check_types(layers, request.precision, name)
    config, left_out = configure(builder, network, request, tensorrt)
    timings = load_timings(config, request.timing_cache, tensorrt, log)
    teller = monitor(trt, log)
    if teller is not None:
        config.progress_monitor = teller

    began = time.monotonic()
    memory = run_interruptibly(
        lambda: builder.build_serialized_network(network, config),
        log,
        lambda: log.show(f"building an engine by {tensorrt}"),
        can_cancel=teller is not None,
    )
    seconds = time.monotonic() - began
    if memory is None:
        raise BuildError(f"{tensorrt} could not build an engine from {name}:{log.summary()}")
    plan = bytes(memory)
    del parser
    if timings is not None and request.timing_cache is not None:
        with atomic_write(request.timing_cache) as aside:
            aside.write_bytes(bytes(timings.serialize()))

    warnings = list(log.warnings)  # before reading the plan back, which complains where there is no GPU
    graph = precision.convolutions(onnx) if request.precision == "int8" else convolutions(layers)
    result = read_receipt(plan, request.precision, layers, graph, log, trt, trt_logger)
    if gpu and tensorrt.flavour == "tensorrt" and result.source != "engine inspector":
        raise BuildError(f"{tensorrt} built an engine from {name} that it cannot read back:{log.summary()}")
    if result.met is False:
        named = "".join(f"\n  {line}" for line in result.unmet[:8])
        raise BuildError(f"{request.precision} was requested, but {tensorrt} built something else:{named}")
    facts = {
        "flavour": tensorrt.flavour,
        "version": tensorrt.version_text,
        "gpu": gpu.name if gpu else None,
        "sm": gpu.sm if gpu and tensorrt.flavour == "tensorrt" else request.sm,
        "precision": request.precision,
        "precision_found": request.precision if result.met else None,
        "tf32": request.tf32,
        "plugin": plugin.facts() if plugin else None,
        **asdict(request.fleet),
        "batch": list(astuple(request.batch)),
        "inputs": [_described(network.get_input(index)) for index in range(network.num_inputs)],
        "outputs": [_described(network.get_output(index)) for index in range(network.num_outputs)],
        "optimization": config.builder_optimization_level,
        "workspace_mib": request.workspace,
        "tactics_left_out": left_out,
        "build_seconds": round(seconds, 2),
        "onnx_sha256": hashlib.sha256(onnx).hexdigest(),
        "plan_sha256": hashlib.sha256(plan).hexdigest(),
        "receipt": result.as_json(),
        "warnings": warnings,
    }
    return BuiltEngine(plan, facts, result)


def read_receipt(
    plan: bytes,
    asked: str,
    network: list[EngineLayer],
    graph: dict[str, str],
    log: BuildLog,
    trt: Any,
    trt_logger: Any,
) -> EngineReceipt:
    """The receipt from the best source there is: the engine read back, the builder's log, the network it was given.

    `graph` are the convolutions of the ONNX graph by node name, and the type of each.
    """
    engine = trt.Runtime(trt_logger).deserialize_cuda_engine(plan)
    if engine is not None:
        text = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
        if read := from_inspector(text):
            return receipt(read, "engine inspector", asked, graph)
    if logged := from_log(log.layers):
        return receipt(logged, "builder log", asked, graph)
    return receipt(network, "network definition", asked, graph)


def _described(tensor: Any) -> dict[str, Any]:
    return {"name": tensor.name, "dtype": type_name(tensor.dtype.name), "shape": list(tensor.shape)}
