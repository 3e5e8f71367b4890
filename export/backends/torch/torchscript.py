"""Files for torch: TorchScript, the program traced and frozen; and pt2, as torch.export writes it.

TorchScript has weights as constants, for LibTorch or torch without this package. torch calls it deprecated and names
torch.export its successor; C++ programs load it still. It is not `optimize_for_inference`d: that lays weights out for
the machine it runs on, in a form that cannot be loaded.

torch runs and compiles a pt2 file by itself. torch.export.load unpickles parts of such a file: whoever loads one
runs what its maker put there. Files of ours have nothing pickled in them. Unlike TorchScript a pt2 file does not say
whether a GPU may compute its float32 convolutions in TF32: that is for whoever runs it, by
torch.backends.cudnn.allow_tf32.

Names of this module and of what it traces are in TorchScript files: with others, their bytes would be others.
"""

import io
import json
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit import TracerWarning  # type: ignore[attr-defined]

from qcn.export.backends.torch.interpreter import Interpreter, facts_of
from qcn.export.program.program import Program
from qcn.names import Precision

METADATA = "metadata.json"  # the extra file of a model: what it is, its facts included
WRITTEN_BY_TORCH = ("version", ".data/version", "byteorder", ".data/serialization_id")  # at the end of any archive


def write_torchscript(program: Program, path: Path, **how: Any) -> dict[str, Any]:
    """Write the program to `path` as TorchScript; see `_write`."""
    return _write(program, path, _torchscript, **how)


def write_pt2(program: Program, path: Path, **how: Any) -> dict[str, Any]:
    """Write the program to `path` as torch.export has it; see `_write`."""
    return _write(program, path, _pt2, **how)


def _write(
    program: Program,
    path: Path,
    content: Callable[[Interpreter, str], bytes],
    *,
    precision: Precision = "fp32",
    every_layer: bool = False,
    metadata: dict[str, str],
) -> dict[str, Any]:
    """For any batch size. Returns the file's facts, which are in it beside `metadata`.

    It takes images [B, channels, height, width] and returns a tuple of the facts' outputs, in their order.
    """
    interpreter = Interpreter(program.at(precision), every_layer)
    facts = facts_of(interpreter, precision)
    with torch.no_grad():
        path.write_bytes(content(interpreter, json.dumps(metadata | facts)))
    return facts


def _torchscript(interpreter: Interpreter, metadata: str) -> bytes:
    with _traceable():
        # Convolutions keep torch's leave to compute in TF32 on a GPU as it was when they were traced; fp32 is fp32.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            traced = torch.jit.trace(_Guarded(interpreter).eval(), interpreter.example())
        model = torch.jit.freeze(traced)
        file = io.BytesIO()  # given a path, torch would write the file's name into it
        torch.jit.save(model, file, _extra_files={METADATA: metadata})
    return _reproducible(file.getvalue())


def _pt2(interpreter: Interpreter, metadata: str) -> bytes:
    batch = torch.export.Dim("batch", min=1)
    exported = torch.export.export(interpreter, (interpreter.example(),), dynamic_shapes={"image": {0: batch}})
    exported.example_inputs = None  # it is traced; in the file they would be pickled, and unpickling runs code
    for node in exported.graph.nodes:  # the paths of this machine; without them the bytes are the same everywhere
        node.meta.pop("stack_trace", None)
    file = io.BytesIO()  # given a path, torch would insist on its ending
    torch.export.save(exported, file, extra_files={METADATA: metadata})
    return file.getvalue()


def _reproducible(archive: bytes) -> bytes:
    """The archive without what depends on this machine and process: the same program gives the same bytes.

    torch records which source lines were traced, with the paths of this machine, and numbers the traced class by how
    many classes the process has made before it.
    """
    reader, output = torch._C.PyTorchFileReader(io.BytesIO(archive)), io.BytesIO()
    writer = torch._C.PyTorchFileWriter(output)
    for name in reader.get_all_records():
        if not name.endswith(".debug_pkl") and name not in WRITTEN_BY_TORCH:
            record = reader.get_record(name)
            if name == "data.pkl" or name.startswith("code/"):
                record = re.sub(rb"___torch_mangle_\d+", b"___torch_mangle_0", record)
            writer.write_record(re.sub(r"___torch_mangle_\d+", "___torch_mangle_0", name), record, len(record))
    writer.write_end_of_file()
    return output.getvalue()


class _Guarded(nn.Module):
    """Refuses images of another size than the program's: routing in a window of all places would take them."""

    def __init__(self, interpreter: Interpreter) -> None:
        super().__init__()
        self.interpreter = interpreter
        self.checked = torch.jit.script(_checked)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        return self.interpreter(self.checked(image, *self.interpreter.program.input.shape))


def _checked(image: Tensor, channels: int, height: int, width: int) -> Tensor:
    """Compiled, not traced, so that the check is made whenever the model runs."""
    if image.dim() != 4 or image.size(1) != channels or image.size(2) != height or image.size(3) != width:
        raise ValueError(f"the network takes images [B, {channels}, {height}, {width}], not {image.size()}")
    return image


@contextmanager
def _traceable() -> Iterator[None]:
    """Raise for everything that tracing would turn into a constant, except routing's checks of shapes.

    These hold for every batch when they hold for one.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=TracerWarning)
        warnings.filterwarnings("ignore", category=TracerWarning, module=r"qcn\.kernels\.shapes")
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is (deprecated|not supported)")
        yield
