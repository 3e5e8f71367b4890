"""OpenVINO's IR: the ONNX graph as OpenVINO keeps it, in two files. No torch here.

    model.xml   the graph, with the types of all that is computed, and the sha256 of its weights
    model.bin   the weights

OpenVINO would round weights to float16 unless it is told not to, and read whatever model.bin lies beside a graph: so
`check_pair` checks that the two belong together.
"""

import hashlib
import re
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from qcn.errors import UsageError
from qcn.export.backends.openvino import INSTALL
from qcn.export.backends.openvino.precision import parse
from qcn.export.backends.runner import imported
from qcn.terminal.text import readable

WEIGHTS_SHA256 = ("qcn", "weights_sha256")  # where the graph says it, below rt_info


def write_ir(graph: bytes, path: Path) -> dict[str, Any]:
    """Write an ONNX graph to `path` (.xml) and its weights beside it (.bin); returns facts for the manifest."""
    openvino = imported("openvino", "OpenVINO", INSTALL)
    model = openvino.Core().read_model(graph)
    openvino.save_model(model, path, compress_to_fp16=False)
    weights = hashlib.sha256(path.with_suffix(".bin").read_bytes()).hexdigest()
    model.set_rt_info(weights, list(WEIGHTS_SHA256))
    openvino.save_model(model, path, compress_to_fp16=False)
    outputs = [output.get_any_name() for output in model.outputs]
    return {"openvino": openvino.__version__.partition("-")[0], "outputs": outputs}


def check_pair(path: Path, graph: bytes, beside: Mapping[str, bytes]) -> bytes:
    """The weights of the graph that was read in `path`, of the files that were read beside it."""
    named = parse(graph).find("/".join(("rt_info", *WEIGHTS_SHA256)))
    if named is None:
        raise UsageError(
            f"{path} does not name the hash of its weights: rebuild it with `qcn export BUNDLE --format openvino`"
        )
    expected, weights = named.get("value", ""), beside.get(path.with_suffix(".bin").name)
    if weights is None or hashlib.sha256(weights).hexdigest() != expected:
        raise UsageError(
            f"{path.with_suffix('.bin')} is missing, or is not the weights of {path.name} ({expected[:12]}…): copy "
            f"both files, or rebuild both with `qcn export BUNDLE --format openvino`"
        )
    return weights


def written_by(graph: bytes) -> str:
    """The version of OpenVINO that wrote a graph, as the graph says: an older one may not read it."""
    runtime = parse(graph).find("rt_info/info[@name='OpenVINO Runtime']")
    return runtime.get("value", "").partition("-")[0] if runtime is not None else "an unknown version"


def graph_difference(content: bytes, built: bytes) -> str:
    """The first difference of two graphs, but for which version wrote them; empty if there is none."""
    if content == built:
        return ""
    stored, ours = parse(content), parse(built)
    for graph in (stored, ours):
        for info in graph.findall("rt_info"):
            graph.remove(info)
    for a, b in zip_longest(stored.iter(), ours.iter()):
        if a is None or b is None or _part(a) != _part(b):
            return f"it has {_said_of_part(a)} where its program makes {_said_of_part(b)}, or with other settings"
    return ""


def _part(part: Element) -> tuple[str, dict[str, str], str]:
    """The contents of a part of a graph, without the counters that OpenVINO appends to unnamed parts."""
    named = {"name": re.sub(r"_\d+$", "", part.get("name", ""))} if part.tag == "layer" else {}
    return part.tag, {**part.attrib, **named}, (part.text or "").strip()


def _said_of_part(part: Element | None) -> str:
    return "nothing" if part is None else readable(f"{part.tag} {part.get('name', '')}".strip())
