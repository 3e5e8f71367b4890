"""What ONNX Runtime runs each operation in: it is profiled on one image.

The profile has the kernel of each node, and the types of what it was given.
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qcn.errors import MissingError
from qcn.export.backends import FORMATS
from qcn.export.backends.onnx import INSTALL
from qcn.export.backends.onnx.runner import session_options
from qcn.export.backends.receipts import Receipt, receipt_of
from qcn.export.backends.runner import Options
from qcn.export.bundle import Bundle
from qcn.export.program.program import Operation, Product, Route

TYPES = {"float": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8"}
ENDING = "_kernel_time"


def receipts(bundle: Bundle) -> list[Receipt]:
    program = bundle.program()
    events = _profile(bundle.read(bundle.find(FORMATS["onnx"].file_in(program.precision))), program.input.shape)
    return [_receipt(op, events) for op in program.operations if isinstance(op, Product | Route)]


def _receipt(op: Operation, events: Sequence[dict[str, Any]]) -> Receipt:
    """From the products of an operation: its convolutions, or the votes of a capsule layer.

    Those of a class layer's first iteration, `PLACE/iteration1/turned`, are float32 in every plan.
    """
    place = op.name.replace(".", "/")
    names = ("turned",) if isinstance(op, Route) else ("conv", "skip", "gemm")
    nodes = {f"{place}/{name}" for name in names}
    own = [event for event in events if event["name"].removesuffix(ENDING).removesuffix("_nchwc") in nodes]
    types = (kind for event in own for one in event["args"]["input_type_shape"][:2] for kind in one)
    return receipt_of(op, types, (event["args"]["op_name"] for event in own), TYPES)


def _profile(graph: bytes, shape: tuple[int, ...]) -> list[dict[str, Any]]:
    """The kernels that ONNX Runtime calls for one image, with what they are given."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingError(f"ONNX Runtime is not installed: {INSTALL}") from error
    with tempfile.TemporaryDirectory() as folder:
        options = session_options(onnxruntime, Options())
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        session.run(None, {session.get_inputs()[0].name: np.zeros((1, *shape), np.float32)})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return [event for event in events if event.get("cat") == "Node" and event["name"].endswith(ENDING)]
