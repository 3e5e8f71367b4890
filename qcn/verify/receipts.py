"""Receipts: what a backend really runs each operation of a bundle in, beside what its program asks for.

    receipts(bundle, "onnxruntime")     ->  [Receipt("pose.0.conv1", "int8", "int8", "ConvInteger"), …]

libqcn says it itself, and so does OpenVINO, of the graph that it compiled for this CPU. ONNX Runtime is profiled on one
image: the profile has the kernel of each node, and the types of what it was given. A convolution that was asked for in
int8 and runs in anything else is a fall-back (`require_met`). A capsule layer in fp16 that runs in float32 is not:
where kernels have no half precision, its numbers are still rounded.
"""

import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qcn.binding import Model
from qcn.errors import CheckFailed, MissingError, UsageError
from qcn.export.bundle import WEIGHTS, Bundle
from qcn.export.bundle.manifest import file_of
from qcn.export.program import OPERATIONS, Operation, Product, Program, Route
from qcn.verify.runners import Options
from qcn.verify.runners.model_file import ModelFile
from qcn.verify.runners.onnxruntime import session_options
from qcn.verify.runners.openvino import INTEGERS as OPENVINO_INTEGERS
from qcn.verify.runners.openvino import PRODUCTS as OPENVINO_PRODUCTS
from qcn.verify.runners.openvino import OpenVinoRunner

ELEMENTS = {"float": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8"}  # as ONNX Runtime names types
ELEMENTS |= {"f32": "fp32", "f16": "fp16", "bf16": "bf16"} | dict.fromkeys(OPENVINO_INTEGERS, "int8")  # as OpenVINO
ENDING = "_kernel_time"


@dataclass(frozen=True)
class Receipt:
    """An operation, the precision that was asked for, the one that it was seen to run in, and by which kernels."""

    operation: str
    asked: str
    ran: str
    by: str

    @property
    def met(self) -> bool:
        return self.ran == self.asked or (self.asked, self.ran) == ("fp16", "fp32")


def receipts(bundle: Bundle, backend: str) -> list[Receipt]:
    """One for each convolution, linear and capsule layer, in their order."""
    if backend == "native":
        return _of_libqcn(bundle)
    program = bundle.program()
    if backend == "openvino":
        return _of_openvino(ModelFile.of_bundle(bundle, bundle.find(file_of("openvino", program.precision))), program)
    if backend != "onnxruntime":
        raise UsageError(f"receipts exist for native, onnxruntime and openvino, not for {backend}")
    events = _profile(bundle.read(bundle.find(file_of("onnx", program.precision))), program.input.shape)
    return [_receipt(op, events) for op in program.operations if isinstance(op, Product | Route)]


def require_met(found: Sequence[Receipt]) -> None:
    """Refuse what fell back to another precision."""
    if fallen := [one for one in found if not one.met]:
        first = fallen[0]
        raise CheckFailed(
            f"{len(fallen)} of {len(found)} operations do not run in the requested precision: {first.operation} "
            f"should run in {first.asked}, but runs in {first.ran} ({first.by})"
        )


def _of_libqcn(bundle: Bundle) -> list[Receipt]:
    files = ModelFile.of_bundle(bundle, bundle.find(WEIGHTS)).files
    model = Model(files, bundle.folder, backend="native", self_test=0)
    try:
        return [
            Receipt(one.name, one.asked, one.ran, one.kernel)
            for one in model.operations
            if issubclass(OPERATIONS[one.op], Product | Route)
        ]
    finally:
        model.close()


def _of_openvino(model: ModelFile, program: Program) -> list[Receipt]:
    """From the products of each operation. A compiled layer has the names of all that is in it, the first one first."""
    places = {f"{op.name.replace('.', '/')}/": op for op in program.operations if isinstance(op, Product | Route)}
    ran: dict[str, list[dict[str, str]]] = {place: [] for place in places}
    runner = OpenVinoRunner(model, Options())
    runner.compile()
    try:
        for layer in runner.executed():
            names = layer["originalLayersNames"].split(",")
            place = next((place for name in names for place in places if name.startswith(place)), None)
            if place and layer["layerType"] in OPENVINO_PRODUCTS:
                ran[place].append(layer)
    finally:
        runner.close()
    return [
        _seen(op, (one["runtimePrecision"] for one in ran[place]), (one["primitiveType"] for one in ran[place]))
        for place, op in places.items()
    ]


def _receipt(op: Operation, events: Sequence[dict[str, Any]]) -> Receipt:
    """From the products of an operation: its convolutions, or the votes of a capsule layer.

    Those of a class layer's first iteration, `PLACE/iteration1/turned`, are float32 in every plan.
    """
    place = op.name.replace(".", "/")
    names = ("turned",) if isinstance(op, Route) else ("conv", "skip", "gemm")
    nodes = {f"{place}/{name}" for name in names}
    own = [event for event in events if event["name"].removesuffix(ENDING).removesuffix("_nchwc") in nodes]
    types = (kind for event in own for one in event["args"]["input_type_shape"][:2] for kind in one)
    return _seen(op, types, (event["args"]["op_name"] for event in own))


def _seen(op: Operation, types: Iterable[str], kernels: Iterable[str]) -> Receipt:
    ran = " and ".join(sorted({ELEMENTS.get(one, one) for one in types}))
    return Receipt(op.name, op.precision, ran or "nothing seen", ", ".join(sorted(set(kernels))) or "no kernel")


def _profile(graph: bytes, shape: tuple[int, ...]) -> list[dict[str, Any]]:
    """The kernels that ONNX Runtime calls for one image, with what they are given."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingError("ONNX Runtime is not installed: pip install onnxruntime") from error
    with tempfile.TemporaryDirectory() as folder:
        options = session_options(onnxruntime, None)
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        session.run(None, {session.get_inputs()[0].name: np.zeros((1, *shape), np.float32)})
        written = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return [event for event in written if event.get("cat") == "Node" and event["name"].endswith(ENDING)]
