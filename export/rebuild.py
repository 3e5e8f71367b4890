"""Is a file of a bundle what its program builds? It is built again, and the two are compared.

The same program, options and versions of the writers give the same bytes. Where another version wrote the file, an ONNX
graph and OpenVINO's IR are compared part by part: every node and every array must be the same. Files that can carry
code, and pages, must be the same bytes: nothing less shows that they do nothing else.

An engine of TensorRT is not built alike twice, and cannot be compared so.
"""

import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qcn.export.bundle import Artefact, Batch, Bundle
from qcn.export.bundle.manifest import Format, Manifest, file_of
from qcn.export.formats import FILES, Job
from qcn.export.pipeline import check_opset
from qcn.export.request import Request
from qcn.export.web.page import network_of, networks_in, page_text
from qcn.names import PRECISIONS
from qcn.text import readable

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from onnx import ModelProto, TensorProto

MOST_DELAY = 1_000_000  # microseconds
GRAPHS: tuple[Format, ...] = ("onnx", "onnx-fused", "onnx-tensorrt")
ULPS = 2.0**-21  # of itself that a float32 number may differ by: arrays are folded in float64 on another machine


def difference(bundle: Bundle, artefact: Artefact) -> str:
    """The first difference between a file and what the bundle's program builds, in words; empty if there is none.

    MissingError where a package is not installed that builds it.
    """
    found = bundle.read(artefact)
    if artefact.format == "web":
        return _page_difference(bundle, found)
    with tempfile.TemporaryDirectory() as folder:
        path, request = Path(folder) / artefact.file, request_of(artefact, bundle.manifest)
        check_opset(request)
        FILES[artefact.format](Job(bundle, request), path)
        built = path.read_bytes()
        if artefact.format == "openvino":
            return _openvino_difference(bundle, artefact, found, path)
    if artefact.format == "triton":
        return _repository_difference(bundle, artefact, found, built)
    if found == built:
        return ""
    if artefact.format in GRAPHS:
        return graph_difference(found, built)
    return _bytes_difference(found, built)


def request_of(artefact: Artefact, manifest: Manifest) -> Request:
    """What asks `qcn export` for this file; its facts may be a stranger's."""
    outputs, opset = artefact.facts.get("outputs"), artefact.facts.get("opset")
    return Request(
        precision=next((one for one in PRECISIONS if one == artefact.precision), "fp32"),
        batch=artefact.batch or Batch(1, 8, 64),
        routing="fused" if artefact.format == "onnx-fused" else "unrolled",
        opset=opset if isinstance(opset, int) and not isinstance(opset, bool) else None,
        every_layer=isinstance(outputs, list | dict) and len(outputs) > len(manifest.outputs),
    )


def alike(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays are the same, floats but for the last digits."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if found.dtype not in (np.float32, np.float64):
        return found.tobytes() == expected.tobytes()
    left, right = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(left - right) <= ULPS * np.abs(right) + 2.0**-40 * np.abs(right).max(initial=0.0)
    return bool((apart | (found == expected)).all())


def graph_difference(found: bytes, built: bytes) -> str:
    """The first difference of two ONNX graphs, of which the second is ours; versions of writers are no difference."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        given = onnx.ModelProto.FromString(found)
    except DecodeError as error:
        return f"it is not an ONNX file: {error}"
    ours = onnx.ModelProto.FromString(built)
    for model in (given, ours):
        model.ClearField("producer_version")
        said = [one for one in model.metadata_props if one.key != "qcn"]
        del model.metadata_props[:]
        model.metadata_props.extend(said)
    return next(_graph_differences(given, ours), "")


def _graph_differences(given: "ModelProto", ours: "ModelProto") -> Iterator[str]:
    left, right = given.graph, ours.graph
    for kind in ("input", "output", "node"):
        for place, (a, b) in enumerate(zip_longest(getattr(left, kind), getattr(right, kind))):
            if a != b:
                yield f"its {kind} {place + 1} is {_said(a)}, where its program makes {_said(b)}"
    for a, b in zip_longest(left.initializer, right.initializer):
        if a is None or b is None or a.name != b.name:
            yield f"its weight {_said(a)} stands where its program has {_said(b)}"
        elif a != b and not _same_numbers(a, b):
            yield f"the numbers of its weight '{readable(a.name)}' are others than its program's"
    for graph in (left, right):
        del graph.initializer[:]
    if given != ours:
        yield f"{_first_field(given, ours)} is not as its program makes it"


def _same_numbers(given: "TensorProto", ours: "TensorProto") -> bool:
    """Whether a stranger's weight is ours but for the last digits; one that is kept in another file is not."""
    from onnx import numpy_helper

    if given.data_type != ours.data_type or given.HasField("data_location") or given.external_data:
        return False
    try:
        return alike(numpy_helper.to_array(given), numpy_helper.to_array(ours))
    except (ValueError, TypeError):  # fewer bytes than its shape says
        return False


def _first_field(given: "ModelProto", ours: "ModelProto") -> str:
    """The name of a part that differs, beside nodes and weights."""
    for a, b in ((given, ours), (given.graph, ours.graph)):
        for field in b.DESCRIPTOR.fields:
            if field.name != "graph" and getattr(a, field.name) != getattr(b, field.name):
                return field.name
    return "a part that ONNX does not know"


def _said(part: Any) -> str:
    """A node, a weight or an input of a graph, in words."""
    if part is None:
        return "nothing"
    name = f"'{readable(part.name)}'"
    return f"{readable(part.op_type)} {name}" if hasattr(part, "op_type") else name


def _openvino_difference(bundle: Bundle, artefact: Artefact, found: bytes, built: Path) -> str:
    """Of the graph, but for which version wrote it; and of the weights, which the graph has the hash of."""
    weights = bundle.read(bundle.find(file_of("openvino-weights", artefact.precision)))
    if weights != built.with_suffix(".bin").read_bytes():
        return f"{Path(artefact.file).with_suffix('.bin')} are other weights than its program's"
    return _xml_difference(found, built.read_bytes())


def _xml_difference(found: bytes, built: bytes) -> str:
    from qcn.export.precision.openvino_file import parse

    if found == built:
        return ""
    given, ours = parse(found), parse(built)
    for graph in (given, ours):
        for info in graph.findall("rt_info"):
            graph.remove(info)
    for a, b in zip_longest(given.iter(), ours.iter()):
        if a is None or b is None or _part(a) != _part(b):
            return f"it has {_said_of_part(a)} where its program makes {_said_of_part(b)}, or with other settings"
    return ""


def _part(part: "Element") -> tuple[str, dict[str, str], str]:
    """What a part of a graph says. OpenVINO numbers parts without a name by how many the process has made before."""
    named = {"name": re.sub(r"_\d+$", "", part.get("name", ""))} if part.tag == "layer" else {}
    return part.tag, {**part.attrib, **named}, (part.text or "").strip()


def _said_of_part(part: "Element | None") -> str:
    return "nothing" if part is None else readable(f"{part.tag} {part.get('name', '')}".strip())


def _repository_difference(bundle: Bundle, artefact: Artefact, found: bytes, built: bytes) -> str:
    """File by file. How a server puts requests into batches changes no answer, and may have been measured."""
    from qcn.export.triton.repository import CONFIG, read_repository

    given, ours = (read_repository(one, artefact.file) for one in (found, built))
    for name in dict.fromkeys((*ours, *given)):
        a, b = given.get(name), ours.get(name)
        if a is None or b is None:
            return f"{readable(name)} is {'missing' if a is None else 'not of its program'}"
        if name.endswith(CONFIG):
            a, b = (_without_batching(one) for one in (a, b))
        if a != b and (why := graph_difference(a, b) if name.endswith(".onnx") else "it has other contents"):
            return f"{readable(name)}: {why}"
    served = bundle.find(file_of("onnx", artefact.precision))
    why = difference(bundle, served)
    return f"{served.file}, which it serves: {why}" if why else ""


def _without_batching(config: bytes) -> bytes:
    """A configuration without comments, and without what only says how requests are put into batches.

    Requests may wait for others for as long as a benchmark makes it worth, which is never above MOST_DELAY.
    """
    text = re.sub(rb"(?m)^#.*\n", b"", config)
    for wait in re.findall(rb"max_queue_delay_microseconds: (\d+)", text):
        if int(wait) > MOST_DELAY:
            return text
    for block in (b"instance_group", b"dynamic_batching", b"model_warmup"):
        text = re.sub(rb"(?m)^" + block + rb" \{\n(?:  .*\n)*\}\n", b"", text)
    return text


def _page_difference(bundle: Bundle, found: bytes) -> str:
    """The same page, but for what its manifest says of tools and of errors on test images, which are added later."""
    given, own = networks_in(found), bundle.manifest
    if len(given) > 1:
        return "it shows another network beside this one: export it without --beside"
    text = given[0].get("manifest")
    manifest = Manifest.from_json(text) if isinstance(text, str) else None
    if manifest is None or replace(own, tools={}, measured=None, files=()) != replace(
        manifest, tools={}, measured=None, files=()
    ):
        return "its network is described otherwise than in the bundle's manifest"
    like = Bundle(bundle.folder, replace(own, tools=manifest.tools, measured=manifest.measured))
    built = page_text(like, [network_of(like)]).encode()
    return "" if found == built else _bytes_difference(found, built)


def _bytes_difference(found: bytes, built: bytes) -> str:
    short = min(len(found), len(built))
    same = np.frombuffer(found[:short], np.uint8) == np.frombuffer(built[:short], np.uint8)
    place = short if same.all() else int(same.argmin())
    return f"it is not the file that its program builds here: they differ from byte {place:,} on"
