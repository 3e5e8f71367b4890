"""The types of an OpenVINO graph, by its XML alone: each port of a layer says its own.

A convolution whose two inputs come from integers, by the multiplications that scale them, is one of integers: OpenVINO
makes it so when it compiles the graph, and `qcn.export.backends.receipts` asks what it made.
"""

import math
from xml.etree.ElementTree import Element, ParseError, fromstring

from qcn.errors import UsageError
from qcn.export.backends.precision import MOST_BYTES, Products

TYPES = {"FP32": "float32", "FP16": "float16", "BF16": "bfloat16", "FP64": "float64", "I8": "int8", "U8": "uint8"}
TYPES |= {"F8E4M3": "float8", "F8E5M2": "float8", "I4": "int4", "U4": "uint4", "I16": "int16", "U16": "uint16"}
CONVOLUTIONS = ("Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData")
SCALING = ("Multiply", "Subtract")  # a step of int8, and its zero point
BETWEEN = (*SCALING, "Reshape")  # … and the groups of a convolution
NESTED = ("TensorIterator", "Loop", "If")


def read(content: bytes) -> Products:
    """The products of a graph; UsageError says why they cannot be read."""
    net = parse(content)
    layers = {layer.get("id"): layer for layer in net.iterfind("layers/layer")}
    sources = {
        (edge.get("to-layer"), edge.get("to-port")): layers.get(edge.get("from-layer"))
        for edge in net.iterfind("edges/edge")
    }
    weights, types = [], set()
    for layer in layers.values():
        if layer.get("type") in NESTED:
            raise UsageError(f"it has a {layer.get('type')}, a layer with graphs inside")
        ports = layer.findall("input/port")
        types |= {port.get("precision", "") for port in [*ports, *layer.iterfind("output/port")]}
        if _multiplies_by_weights(layer) and len(ports) > 1:
            shape = tuple(int(side.text or 0) for side in ports[1].iterfind("dim"))
            if layer.get("type") == "GroupConvolution":  # [groups, out / groups, in, h, w] for [out, in, h, w]
                shape = (math.prod(shape[:2]), *shape[2:])
            kinds = {_from(layer, port, sources) for port in ports[:2]}
            kind = kinds.pop() if len(kinds) == 1 else ports[1].get("precision", "")
            weights.append((TYPES.get(kind, "unknown"), shape))
    if not layers:
        raise UsageError("it is not a graph of OpenVINO's: it has no layers")
    return Products(tuple(weights), frozenset(TYPES[one] for one in types if one in TYPES))


def _multiplies_by_weights(layer: Element) -> bool:
    """A convolution, or a linear layer: its weights are turned, as Gemm's are, and votes' are not."""
    if layer.get("type") != "MatMul":
        return layer.get("type") in CONVOLUTIONS
    data = layer.find("data")
    return data is not None and data.get("transpose_b") == "true"


def _from(layer: Element, port: Element, sources: dict[tuple[str | None, str | None], Element | None]) -> str:
    """The type of a product's input: that of the integers before the scaling, or of the port."""
    source = sources.get((layer.get("id"), port.get("id")))
    for _ in BETWEEN:
        if source is not None and source.get("type") in BETWEEN:
            source = sources.get((source.get("id"), "0"))
    inner = source.find("input/port") if source is not None and source.get("type") == "Convert" else None
    precision = inner.get("precision", "") if inner is not None else ""
    return precision if precision in ("I8", "U8") else port.get("precision", "")


def parse(text: bytes) -> Element:
    """The graph's XML. Entities could make a small file a large one; OpenVINO writes none."""
    if len(text) > MOST_BYTES:
        raise UsageError(f"the graph has more than {MOST_BYTES:,} bytes")
    if b"<!" in text:
        raise UsageError("it is not a graph of OpenVINO's: it declares entities or has comments")
    try:
        return fromstring(text)
    except ParseError as error:
        raise UsageError(f"it is not a graph of OpenVINO's: {error}") from None
