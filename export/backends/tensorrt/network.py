"""An ONNX graph as a TensorRT network, with the types that the ONNX graph has.

A strongly typed network (TensorRT 10 and later, TensorRT-RTX) takes them by itself. TensorRT 8.6 has none: it is told
them layer by layer. Its parser names a layer after the ONNX node it came from and a tensor after the ONNX tensor, so
the types that ONNX's shape inference finds can be looked up; what the parser adds between takes its node's or input's.
"""

from typing import Any

from qcn.errors import BuildError
from qcn.export.backends.onnx.proto import without_functions
from qcn.export.backends.precision import ELEMENT_TYPES, HALVES
from qcn.export.backends.runner import imported
from qcn.export.backends.tensorrt.find import TensorRT
from qcn.export.backends.tensorrt.receipt import EngineLayer, type_name

# Layers that have their type from elsewhere: a cast from its target, a constant from its weights, what only moves
# values about from its input, and a plugin from itself. Told it once more, TensorRT 8.6 finds no kernel for the region
# that they are fused into.
_MOVES = ("SHAPE", "GATHER", "SHUFFLE", "CONCATENATION", "IDENTITY")
_TYPED_ALREADY = ("CAST", "CONSTANT", "PLUGIN_V2", "QUANTIZE", "DEQUANTIZE", *_MOVES)


def parse(
    tensorrt: TensorRT, builder: Any, trt_logger: Any, graph: bytes, precision: str, name: object
) -> tuple[Any, Any]:
    """The network of an ONNX graph, and its parser, which holds the weights and must live until the build is done."""
    kinds, typed = tensorrt.module.NetworkDefinitionCreationFlag, tensorrt.strongly_typed
    flags = 0 if tensorrt.always_typed else 1 << int(kinds.STRONGLY_TYPED if typed else kinds.EXPLICIT_BATCH)
    network = builder.create_network(flags)
    parser = tensorrt.module.OnnxParser(network, trt_logger)
    # The functions are the unrolled bodies of the fused nodes, for programs that lack the operator. TensorRT from 10 on
    # would take them although it has the plugin, and the first for all layers, since it does not tell overloads apart.
    if not parser.parse(without_functions(graph)):
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        lines = "".join(f"\n  {_node(error, graph)}: {error.desc()}" for error in errors[:8])
        raise BuildError(f"the ONNX parser of {tensorrt} refuses {name}:{lines or ' it does not say why'}")
    if not tensorrt.strongly_typed and precision != "fp32":
        _constrain(network, tensorrt, graph)
    return network, parser


def _node(error: Any, graph: bytes) -> str:
    """The node a parser error is about, by name; TensorRT 8.6 knows only its number."""
    if hasattr(error, "node_name"):
        return f"node '{error.node_name()}' ({error.node_operator()})"
    try:
        import onnx
    except ImportError:
        return f"node {error.node()}"
    nodes = onnx.load_from_string(graph).graph.node
    if not 0 <= error.node() < len(nodes):
        return f"node {error.node()}"
    return f"node '{nodes[error.node()].name}' ({nodes[error.node()].op_type})"


def network_layers(network: Any) -> list[EngineLayer]:
    """The layers of the network before building, with the types it was given."""
    layers = []
    for layer in (network.get_layer(index) for index in range(network.num_layers)):
        outputs = [type_name(layer.get_output(index).dtype.name) for index in range(layer.num_outputs)]
        if getattr(layer, "precision_is_set", False):  # TensorRT 8.6: what it was told
            outputs[:1] = [type_name(layer.precision.name)]
        inputs = [layer.get_input(index) for index in range(layer.num_inputs)]
        types = tuple(type_name(tensor.dtype.name) for tensor in inputs if tensor is not None)
        layers.append(EngineLayer(layer.name, layer.type.name, types, tuple(outputs), (), (layer.name,)))
    return layers


def convolutions(layers: list[EngineLayer]) -> dict[str, str]:
    """The convolutions of a network by node name, and the type of each."""
    return {layer.name: layer.outputs[0] for layer in layers if layer.type in ("CONVOLUTION", "DECONVOLUTION")}


def check_types(layers: list[EngineLayer], precision: str, name: object) -> None:
    """Refuse a graph whose types are not of the precision asked: nothing built from it could be."""
    again = f"export it again with --precision {precision}"
    if precision == "int8":
        if not any(layer.type == "QUANTIZE" for layer in layers):
            raise BuildError(f"int8 was requested, but {name} quantises nothing; export it again from its bundle")
        return
    halves = [layer.name for layer in layers if HALVES & set(layer.outputs)]
    if precision == "fp32" and halves:
        raise BuildError(f"fp32 was requested, but {name} has half precision at {', '.join(halves[:5])}; {again}")
    type_name = ELEMENT_TYPES[precision]
    if precision != "fp32" and type_name not in convolutions(layers).values():
        raise BuildError(f"{precision} was requested, but no convolution of {name} is {type_name}; {again}")


def _constrain(network: Any, tensorrt: TensorRT, graph: bytes) -> None:
    """Give every layer that computes in floating point the precision and output type that the ONNX graph has."""
    tensors, nodes = _graph_types(graph, tensorrt)
    integers: set[str] = set()  # what layers behind Q/DQ pairs give out
    for layer in (network.get_layer(index) for index in range(network.num_layers)):
        inputs = [layer.get_input(index) for index in range(layer.num_inputs)]
        # Behind Q/DQ pairs a layer computes in integers, which a precision that it is told would forbid; so would one
        # that is told to the ReLU that is fused into it. A sum is told its own: else TensorRT 8.6 wants the convolution
        # that it is fused into to give out int8, and has no kernel that would add a float ("incorrectly marked as an
        # int8 node").
        names = {tensor.name for tensor in inputs if tensor is not None}
        joined = layer.name.endswith(("/relu", "/relu6")) and bool(names & integers)
        if joined or any(name.endswith(".pair") for name in names):
            integers |= {layer.get_output(index).name for index in range(layer.num_outputs)}
            continue
        if layer.type.name in _TYPED_ALREADY:
            continue
        fed = next((tensors[t.name] for t in inputs if t is not None and t.name in tensors), None)
        inner = nodes.get(layer.name, fed)
        layer_type = None
        for index in range(layer.num_outputs):
            tensor = layer.get_output(index)
            tensor_type = tensors.get(tensor.name, inner)
            if tensor.is_shape_tensor or tensor.dtype.name not in ("FLOAT", "HALF") or tensor_type is None:
                continue
            layer.set_output_type(index, tensor_type)
            tensors[tensor.name] = tensor_type
            layer_type = tensor_type if layer_type is None else layer_type
        if layer_type is not None:
            layer.precision = layer_type


def _graph_types(content: bytes, tensorrt: TensorRT) -> tuple[dict[str, Any], dict[str, Any]]:
    """The floating-point types of the graph: by tensor name, and by node name (that of the node's first output)."""
    onnx = imported(
        "onnx", f"onnx, by which {tensorrt} is told the types of a half-precision graph,", "pip install onnx"
    )
    kinds = tensorrt.module.DataType
    types = {onnx.TensorProto.FLOAT: kinds.FLOAT, onnx.TensorProto.FLOAT16: kinds.HALF}
    graph = onnx.shape_inference.infer_shapes(onnx.load_from_string(content)).graph
    elements = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in (*graph.input, *graph.output, *graph.value_info):
        elements[value.name] = value.type.tensor_type.elem_type
    tensors = {name: types[element] for name, element in elements.items() if element in types}
    nodes = {node.name: tensors[node.output[0]] for node in graph.node if node.name and node.output[0] in tensors}
    return tensors, nodes
