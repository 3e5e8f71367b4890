"""A stand-in for TensorRT's Python module, version by version.

It has the names that the public headers of each version have and no others, so that using one that a version lacks
fails; it records what it is told; and its engines hold what the network says, unless told to disobey. It shows that
we call what a version has. That the version then does as its documentation says, only the real one can show.
"""

import enum
import json
from types import SimpleNamespace
from typing import Any

import onnx

_ONNX_TYPES = {onnx.TensorProto.FLOAT: "FLOAT", onnx.TensorProto.FLOAT16: "HALF", onnx.TensorProto.BFLOAT16: "BF16"}
_LAYERS = {
    "Conv": "CONVOLUTION",
    "Cast": "CAST",
    "GlobalAveragePool": "POOLING",
    "Flatten": "SHUFFLE",
    "Sigmoid": "ACTIVATION",
    "Relu": "ACTIVATION",
    "QuantizeLinear": "QUANTIZE",
    "DequantizeLinear": "DEQUANTIZE",
}
_OTHERS = "ELEMENTWISE"


def nth(list_name: str) -> Any:
    """A method that gives one of a list."""
    return lambda self, index: getattr(self, list_name)[index]


def fake(
    version: str,
    *,
    disobey: str | None = None,
    foreign_cache: bool = False,
    logs: tuple[str, ...] = (),
    plugins: tuple[str, ...] = (),
) -> Any:
    """The module of a version ("8.6.1", "10.3.0", "11.1.0").

    disobey         the type in which its engines hold every convolution, whatever was asked
    foreign_cache   whether it refuses to attach a timing cache that was loaded
    logs            errors that it logs while building; the build then fails
    plugins         names of the plugins that are registered
    """
    major = int(version.split(".", maxsplit=1)[0])
    typed = major >= 10
    told: dict[str, Any] = {"flags": set(), "cleared": set(), "profiles": [], "network_flags": None, "config": {}}
    told["preview"] = {}
    told["refitted"] = {}

    kinds = enum.IntEnum("DataType", ["FLOAT", "HALF", "INT32", "INT8"] + (["BF16"] if typed else []), start=0)
    creation = {8: ["EXPLICIT_BATCH"], 10: ["EXPLICIT_BATCH", "STRONGLY_TYPED"], 11: ["STRONGLY_TYPED"]}[major]
    builder_flags = ["TF32", "REFIT", "VERSION_COMPATIBLE", "EXCLUDE_LEAN_RUNTIME"] + (["STRIP_PLAN"] if typed else [])
    builder_flags += [] if major == 11 else ["FP16", "INT8", "OBEY_PRECISION_CONSTRAINTS"]
    sources = ([] if major == 11 else ["CUBLAS", "CUBLAS_LT", "CUDNN"]) + ["EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"]
    tactics = enum.IntEnum("TacticSource", sources, start=0)
    kinds_of_layers = _LAYERS | {"EMRouting": "PLUGIN_V3" if typed else "PLUGIN_V2"}
    layer_types = enum.IntEnum("LayerType", [*dict.fromkeys(kinds_of_layers.values()), _OTHERS], start=0)

    hardware = enum.IntEnum("HardwareCompatibilityLevel", ["NONE", "AMPERE_PLUS"], start=0)

    def tensor(name: str, kind: str) -> Any:
        return SimpleNamespace(name=name, dtype=kinds[kind], shape=(), is_shape_tensor=False)

    class Layer:
        num_outputs = 1
        get_input, get_output = nth("inputs"), nth("outputs")

        def __init__(self, node: Any, inputs: list[Any], output: Any) -> None:
            self.name, self.type = node.name, layer_types[kinds_of_layers.get(node.op_type, _OTHERS)]
            self.inputs, self.outputs, self.num_inputs = inputs, [output], len(inputs)
            if not typed:
                self.precision, self.told = kinds.FLOAT, False

        if not typed:

            def __setattr__(self, name: str, value: Any) -> None:
                object.__setattr__(self, name, value)
                if name == "precision":
                    object.__setattr__(self, "told", True)

            @property
            def precision_is_set(self) -> bool:
                return self.told

            def set_output_type(self, index: int, kind: Any) -> None:
                self.outputs[index].dtype = kind

    class Network:
        num_layers = property(lambda self: len(self.layers))
        num_inputs = property(lambda self: len(self.inputs))
        num_outputs = property(lambda self: len(self.outputs))
        get_layer, get_input, get_output = nth("layers"), nth("inputs"), nth("outputs")

        def __init__(self) -> None:
            self.layers: list[Layer] = []

    class Parser:
        num_errors = 0

        def __init__(self, network: Network, voice: Any) -> None:
            self.network = network

        def parse(self, model: bytes) -> bool:
            told["graph"] = onnx.load_from_string(model)
            graph = onnx.shape_inference.infer_shapes(told["graph"]).graph
            types = {t.name: t.data_type for t in graph.initializer}
            types |= {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
            tensors = {}
            for name, element in types.items():  # without strong typing, only a cast says that it is half
                known = _ONNX_TYPES.get(element, "INT32")
                kind = known if typed or known == "INT32" or name.endswith("image16") else "FLOAT"
                tensors[name] = tensor(name, kind)
            for value in graph.input:
                tensors[value.name].shape = tuple(d.dim_value or -1 for d in value.type.tensor_type.shape.dim)
            self.network.inputs = [tensors[value.name] for value in graph.input]
            self.network.outputs = [tensors[value.name] for value in graph.output]
            for node in graph.node:
                inputs = [tensors[name] for name in node.input]
                self.network.layers.append(Layer(node, inputs, tensors[node.output[0]]))
            return True

    class Config:
        # What an attribute of pybind's classes is: fixed. Setting another fails.
        __slots__ = (
            "builder_optimization_level",
            "hardware_compatibility_level",
            "profiling_verbosity",
            *(("progress_monitor",) if typed else ()),
        )

        def __init__(self) -> None:
            self.builder_optimization_level = 3
            self.hardware_compatibility_level = hardware.NONE

        def set_flag(self, flag: Any) -> None:
            told["flags"].add(flag.name)

        def clear_flag(self, flag: Any) -> None:
            told["cleared"].add(flag.name)

        def set_preview_feature(self, feature: Any, on: bool) -> None:
            told["preview"][feature.name] = on

        def set_memory_pool_limit(self, pool: Any, size: int) -> None:
            told["config"][pool] = size

        def add_optimization_profile(self, profile: Any) -> None:
            told["config"]["profile"] = True

        def get_tactic_sources(self) -> int:
            return (1 << len(sources)) - 1

        def set_tactic_sources(self, mask: int) -> None:
            told["tactics"] = [source.name for source in tactics if mask >> source & 1]

        def create_timing_cache(self, content: bytes) -> Any:
            return SimpleNamespace(content=content, serialize=lambda: b"timings")

        def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
            told["cache"] = cache.content
            return not (foreign_cache and cache.content)

    class Builder:
        def __init__(self, voice: Any) -> None:
            self.voice = voice

        def create_network(self, flags: int) -> Network:
            told["network_flags"] = [name for bit, name in enumerate(creation) if flags >> bit & 1]
            return Network()

        create_builder_config = staticmethod(Config)

        def create_optimization_profile(self) -> Any:
            return SimpleNamespace(set_shape=lambda *shape: told["profiles"].append(shape))

        def build_serialized_network(self, network: Network, config: Config) -> bytes | None:
            told["network"], told["level"] = network, config.builder_optimization_level
            told["hardware"] = config.hardware_compatibility_level.name
            for message in logs:
                self.voice.log(SimpleNamespace(name="ERROR"), message)
            return None if logs else json.dumps({"Layers": [described(layer) for layer in network.layers]}).encode()

    def described(layer: Layer) -> dict[str, Any]:
        kind = disobey if disobey and layer.type.name == "CONVOLUTION" else layer.get_output(0).dtype.name
        words = {"FLOAT": "Row major linear FP32", "HALF": "Channel major FP16 format where channel % 8 == 0"}
        tensor = {"Name": "x", "Dimensions": [1], "Format/Datatype": words.get(kind, kind)}
        return {"Name": layer.name, "LayerType": layer.type.name, "Inputs": [tensor], "Outputs": [tensor]}

    class Runtime:
        def __init__(self, voice: Any) -> None:
            pass

        def deserialize_cuda_engine(self, plan: bytes) -> Any:
            inspector = SimpleNamespace(get_engine_information=lambda form: plan.decode())
            engine = SimpleNamespace(create_engine_inspector=lambda: inspector, refittable="REFIT" in told["flags"])
            if typed:
                engine.create_serialization_config = lambda: serialization
                engine.serialize_with_config = lambda config: json.dumps({"refitted": config.flags}).encode()
            else:
                engine.serialize = lambda: json.dumps({"refitted": []}).encode()
            return engine

    kept = ["EXCLUDE_WEIGHTS"]
    serialization = SimpleNamespace(
        flags=kept,
        clear_flag=lambda flag: kept.remove(flag.name),
        set_flag=lambda flag: kept.append(flag.name),
    )

    class Refitter:
        """Of an engine that has the weights of the graph that was parsed last."""

        def __init__(self, engine: Any, voice: Any) -> None:
            self.sizes = {one.name: len(one.raw_data) for one in told["graph"].graph.initializer}

        def get_all_weights(self) -> list[str]:
            return list(self.sizes)

        def get_missing_weights(self) -> list[str]:
            return []

        def set_named_weights(self, name: str, weights: Any) -> bool:
            told["refitted"][name] = weights
            return self.sizes[name] == weights.nbytes

        def refit_cuda_engine(self) -> bool:
            return True

    enums = {"NetworkDefinitionCreationFlag": creation, "BuilderFlag": builder_flags, "MemoryPoolType": ["WORKSPACE"]}
    enums |= {"ProfilingVerbosity": ["DETAILED"], "LayerInformationFormat": ["JSON"]}
    enums |= {"SerializationFlag": ["EXCLUDE_WEIGHTS", "INCLUDE_REFIT"]} if typed else {}
    enums |= {} if typed else {"PreviewFeature": ["PROFILE_SHARING_0806"]}
    module = SimpleNamespace(
        __version__=version,
        told=told,
        DataType=kinds,
        TacticSource=tactics,
        HardwareCompatibilityLevel=hardware,
        ILogger=type("ILogger", (), {}),
        Builder=Builder,
        OnnxParser=Parser,
        Runtime=Runtime,
        Refitter=Refitter,
        Weights=lambda array: array,
        **{name: enum.IntEnum(name, members, start=0) for name, members in enums.items()},
    )
    registry = SimpleNamespace()
    look_up = "get_creator" if typed else "get_plugin_creator"
    setattr(registry, look_up, lambda name, version, space: name if name in plugins else None)
    module.get_plugin_registry = lambda: registry
    if typed:
        module.IProgressMonitor = type("IProgressMonitor", (), {})
    return module
