"""pt2: the program as torch.export writes it, the successor of TorchScript; torch runs and compiles it by itself.

torch.export.load unpickles parts of such a file, so that whoever loads one runs what its maker put there. Files of ours
have nothing pickled in them. Unlike TorchScript a pt2 file does not say whether a GPU may compute its float32
convolutions in TF32: that is for whoever runs it, by torch.backends.cudnn.allow_tf32.
"""

import io
import json
from pathlib import Path
from typing import Any

import torch

from qcn.export.backends.torch.interpreter import Interpreter, facts_of
from qcn.export.backends.torch.torchscript import METADATA
from qcn.export.program.program import Program
from qcn.names import Precision


def write_pt2(
    program: Program, path: Path, *, precision: Precision = "fp32", every_layer: bool = False, metadata: dict[str, str]
) -> dict[str, Any]:
    """Write the program for any batch size to `path`; returns its facts, which are in the file beside `metadata`.

    It takes images [B, channels, height, width] and returns a tuple of the facts' outputs, in their order.
    """
    interpreter = Interpreter(program.at(precision), every_layer)
    facts = facts_of(interpreter, precision)
    batch = torch.export.Dim("batch", min=1)
    with torch.no_grad():
        exported = torch.export.export(interpreter, (interpreter.example(),), dynamic_shapes={"image": {0: batch}})
    exported.example_inputs = None  # it is traced; in the file they would be pickled, and unpickling runs code
    for node in exported.graph.nodes:  # the paths of this machine; without them the bytes are the same everywhere
        node.meta.pop("stack_trace", None)
    file = io.BytesIO()  # given a path, torch would insist on its ending
    torch.export.save(exported, file, extra_files={METADATA: json.dumps(metadata | facts)})
    path.write_bytes(file.getvalue())
    return facts
