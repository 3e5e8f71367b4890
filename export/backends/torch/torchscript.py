"""TorchScript: the program traced and frozen, weights as constants, for LibTorch or torch without this package.

torch calls TorchScript deprecated and names torch.export its successor (pt2.py); C++ programs load it still. It is not
`optimize_for_inference`d: that lays weights out for the machine it runs on, in a form that cannot be loaded.
"""

import io
import json
import re
import warnings
from collections.abc import Iterator
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


def write_torchscript(
    program: Program, path: Path, *, precision: Precision = "fp32", every_layer: bool = False, metadata: dict[str, str]
) -> dict[str, Any]:
    """Write the program for any batch size to `path`; returns its facts, which are in the file beside `metadata`.

    It takes images [B, channels, height, width] and returns a tuple of the facts' outputs, in their order.
    """
    interpreter = Interpreter(program.at(precision), every_layer)
    facts = facts_of(interpreter, precision)
    with _traceable(), torch.no_grad():
        # Convolutions keep torch's leave to compute in TF32 on a GPU as it was when they were traced; fp32 is fp32.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            traced = torch.jit.trace(_Guarded(interpreter).eval(), interpreter.example())
        model = torch.jit.freeze(traced)
        file = io.BytesIO()  # given a path, torch would write the file's name into it
        torch.jit.save(model, file, _extra_files={METADATA: json.dumps(metadata | facts)})
    path.write_bytes(_reproducible(file.getvalue()))
    return facts


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
    """Whatever tracing would make a constant is an error, but for the outcome of routing's checks of shapes.

    These hold for every batch when they hold for one.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=TracerWarning)
        warnings.filterwarnings("ignore", category=TracerWarning, module=r"qcn\.kernels\.shapes")
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is (deprecated|not supported)")
        yield
