"""The precision receipt: which layers an engine really has, in which precision, and whether that is what was asked.

Three sources, best first:
    engine inspector     the finished engine, read back. Needs a GPU that can load it.
    builder log          the same table, as the builder logs it when it is done. TensorRT-RTX without a GPU.
    network definition   the typed network before building. It proves what was asked for, not what was built.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from qcn.export.backends.precision import ELEMENT_TYPES, FLOATS, HALVES
from qcn.terminal.tables import table_of
from qcn.terminal.text import readable

PRODUCTS = FLOATS | {"int8"}  # what a convolution computes in
# Layers made of additions and the like, which name the convolution that they end, and what they begin behind it.
POINTWISE = ("kgen",)
_SCALAR: tuple[list[int], ...] = ([], [1])  # the shape of constants that are no weights
_COMPUTING = ("float32", "bfloat16", "float16", "float8", "int8")  # widest first

# How TensorRT writes types: "Half", "Row major linear FP16 format", DataType.HALF. In the order to look for them.
_TYPES = {
    "bfloat16": r"BF16|BFloat16",
    "float16": r"FP16|Half|Float16",
    "float32": r"FP32|Float|Float32",
    "float8": r"FP8|Float8",
    "int8": r"INT8",
    "int32": r"INT32",
    "int64": r"INT64",
    "uint8": r"UINT8",
    "bool": r"BOOL",
}
_TYPE_WORDS = {name: re.compile(rf"\b(?:{words})\b", re.IGNORECASE) for name, words in _TYPES.items()}


def type_name(words: str) -> str:
    """numpy's name for a type in any of TensorRT's spellings; the words themselves if they name none."""
    for name, pattern in _TYPE_WORDS.items():
        if pattern.search(words):
            return name
    return words


@dataclass(frozen=True)
class EngineLayer:
    """One layer of an engine: the types it reads, writes and holds as weights, and the ONNX nodes fused into it."""

    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    @property
    def floats(self) -> set[str]:
        return FLOATS & {*self.inputs, *self.outputs, *self.weights}

    @property
    def computes_in(self) -> set[str]:
        """The types a convolution in it may compute in: that of its kernel if that is known, else any it touches."""
        return PRODUCTS & set(self.weights) or PRODUCTS & {*self.inputs, *self.outputs}

    @property
    def precision(self) -> str:
        """ "float16", or "float16 → float32" for a layer that also converts."""
        read = _widest(self.inputs) or _widest(self.weights) or _widest(self.outputs)
        written = _widest(self.outputs) or read
        if not read:
            others = sorted({*self.inputs, *self.outputs})
            return others[0] if others else "none"
        return read if read == written else f"{read} → {written}"


def _widest(types: Iterable[str]) -> str:
    return next((name for name in _COMPUTING if name in set(types)), "")


@dataclass(frozen=True)
class EngineReceipt:
    """The precisions in an engine, compared with the request.

    source   where the layers were read (see above)
    asked    fp32, fp16, bf16 or int8
    met      True or False; None where it could not be seen
    layers   how many layers of each type and precision: [type, precision, count]
    unmet    one sentence for each layer in a precision that was not asked for
    unseen   convolutions of the graph that no layer of the table names (folded, or inside a fused block)
    """

    source: str
    asked: str
    met: bool | None
    layers: list[tuple[str, str, int]]
    unmet: list[str]
    unseen: list[str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def summary(self) -> str:
        verdict = {True: "met", False: "not met", None: "not proven"}[self.met]
        return f"{self.asked} {verdict}, by the {self.source}: {sum(count for _, _, count in self.layers)} layers"

    def table(self) -> Table:
        table = table_of("layer", "precision", "count")
        for kind, precision, count in self.layers:
            table.add_row(readable(kind), precision, str(count))
        return table


def receipt(layers: list[EngineLayer], source: str, requested: str, convolutions: dict[str, str]) -> EngineReceipt:
    """Judge an engine's layers.

    convolutions   the graph's convolutions by ONNX node name, and the type the graph gives each. In a half precision
                   engine each must be found in its own type (some stay float32 on purpose); in a float32 engine no
                   layer may hold a half type at all.
    """
    layers = [layer for layer in layers if layer.inputs or layer.outputs]  # the rest is scheduling
    counts = Counter((layer.type, layer.precision) for layer in layers)
    by_node: dict[str, EngineLayer] = {}
    for layer in layers:
        for node in layer.nodes:
            if node not in by_node or by_node[node].type in POINTWISE:
                by_node[node] = layer
    unmet: list[str] = []
    if requested == "fp32":
        unmet += [f"{layer.name} ({layer.type}) is {layer.precision}" for layer in layers if layer.floats & HALVES]
    for node, type_name in convolutions.items():
        own = by_node.get(node)
        if own and own.computes_in and type_name not in own.computes_in:
            unmet.append(f"{node} is {own.precision} in {own.name} ({own.type}), not {type_name}")
    unseen = [node for node in convolutions if node not in by_node]
    proven = bool(layers) and source != "network definition"
    if requested != "fp32":
        proven = proven and any(
            node in by_node for node, type_name in convolutions.items() if type_name == ELEMENT_TYPES[requested]
        )
    met = False if unmet else (True if proven else None)
    table = sorted((kind, precision, count) for (kind, precision), count in counts.items())
    return EngineReceipt(source, requested, met, table, unmet, unseen)


def from_inspector(text: str) -> list[EngineLayer]:
    """The layers of the engine inspector's JSON (profiling verbosity DETAILED); none if it is not such."""
    try:
        records = json.loads(text, strict=False)["Layers"]  # TensorRT 8.6 puts control characters into texts
    except (ValueError, KeyError):
        return []
    layers = []
    for record in records:
        if isinstance(record, str):  # a plan built without details gives names alone
            continue
        weights = [record["Weights"]["Type"]] if isinstance(record.get("Weights"), dict) else []
        weights += [_tensor_type(array) for array in record.get("Constants", []) if array["Dimensions"] not in _SCALAR]
        layers.append(
            EngineLayer(
                record["Name"],
                record.get("LayerType", "?"),
                tuple(type_name(_tensor_type(tensor)) for tensor in record.get("Inputs", [])),
                tuple(type_name(_tensor_type(tensor)) for tensor in record.get("Outputs", [])),
                tuple(type_name(kind) for kind in weights),
                _nodes(record["Name"], record.get("Metadata") or ""),
            )
        )
    return layers


def _tensor_type(tensor: dict[str, Any]) -> str:
    return str(tensor.get("Datatype") or tensor.get("Format/Datatype") or "")


def from_log(text: str) -> list[EngineLayer]:
    """The layers of the table in the builder's log: one per line, `Name: …, LayerType: …, Inputs: [ { … }], …`."""
    layers = []
    for line in text.splitlines():
        result = re.match(
            r"Name: (?P<name>.*?), LayerType: (?P<type>[^,]*), Inputs: \[(?P<inputs>.*)\], "
            r"Constants: \[(?P<weights>.*)\], Outputs: \[(?P<outputs>.*)\], TacticName: .*, "
            r"Metadata: ?(?P<metadata>.*)",
            line,
        )
        if result:
            types = {part: re.findall(r"Datatype: (\w+)", result[part]) for part in ("inputs", "outputs")}
            arrays = re.findall(r"Dimensions: \[(.*?)\].*?Datatype: (\w+)", result["weights"])
            layers.append(
                EngineLayer(
                    result["name"],
                    result["type"],
                    tuple(map(type_name, types["inputs"])),
                    tuple(map(type_name, types["outputs"])),
                    tuple(type_name(kind) for size, kind in arrays if size not in ("", "1")),
                    _nodes(result["name"], result["metadata"]),
                )
            )
    return layers


def _nodes(name: str, metadata: str) -> tuple[str, ...]:
    """The ONNX nodes of a layer: from its metadata (TensorRT 10 and later), else from a name like "conv + relu"."""
    if result := re.findall(r"\[ONNX Layer: (.*?)\]", metadata):
        return tuple(result)
    if name.startswith(("Reformatting", "{ForeignNode")):
        return ()
    return tuple(re.split(r" \+ | \|\| ", name))
