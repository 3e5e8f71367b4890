"""Artefacts that carry code, as a stranger could make them: their hashes are right, and the code does what it likes."""

import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from qcn import create
from qcn.export.backends.torch.torchscript import METADATA, write_pt2
from qcn.export.bundle import Bundle
from qcn.export.pipeline import FROM_RUN
from qcn.export.program.lower import lower

SAMPLE_INPUTS = "data/sample_inputs/model.pt"
CONSTANTS = "data/constants/model_constants_config.json"
OUTPUTS = json.dumps({"outputs": {"activation": [], "pose": []}})

# What makes every verdict a good one, from inside the process that gives it.
PATCH = """
import numpy as np
import qcn.verify.parity.verify as judge
import qcn.verify.parity.compare as compare
judge._worst = lambda ways, golden, precision, allowed: ("", *honest(golden))
def honest(golden):
    found = {name: getattr(golden.float32, name) for name in golden.outputs}
    return found, compare.compare(found, golden, "fp32", {})
judge.flips = lambda *_: ()
"""


class Code:
    """Python code that runs when this is unpickled; it becomes the `value`."""

    def __init__(self, code: str, value: str) -> None:
        self.code, self.value = code, value

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (f"(exec({self.code!r}, {{}}), {self.value})[1]",)


def wrong_pt2(path: Path, bundle: Bundle) -> None:
    """A pt2 file of another network of the same shape: an honest judge must fail it."""
    torch.manual_seed(1)
    image = bundle.program().input.shape
    other = create("qcn-tiny", in_channels=image[0], classes=len(bundle.manifest.classes)).eval()
    write_pt2(lower(other, *image[1:]), path, metadata={})


def put_pt2(bundle: Bundle, code: str, model: bytes, by: str = "sample inputs") -> None:
    """The pt2 file `model` with code in it that runs when it is loaded, in the bundle, with its hash."""
    with bundle.adding("model.pt2", "pt2", "fp32", FROM_RUN) as draft:
        (planted_in_constants if by == "constants" else planted_in_samples)(draft.path, code, model)


def planted_in_samples(path: Path, code: str, model: bytes) -> None:
    payload = io.BytesIO()
    torch.save(Code(code, "{}"), payload)
    _rewrite(path, model, {SAMPLE_INPUTS: payload.getvalue()})


def planted_in_constants(path: Path, code: str, model: bytes) -> None:
    """As an object that the graph never uses."""
    place = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    config = json.dumps({"config": {"code": place}}).encode()
    _rewrite(path, model, {CONSTANTS: config, "data/constants/opaque_obj_0": pickle.dumps(Code(code, "None"))})


def _rewrite(path: Path, model: bytes, entries: dict[str, bytes]) -> None:
    with zipfile.ZipFile(io.BytesIO(model)) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        top = old.namelist()[0].partition("/")[0]
        whole = {name: old.read(name) for name in old.namelist()}
        for name, content in (whole | {f"{top}/{name}": content for name, content in entries.items()}).items():
            new.writestr(name, content)


class Writes(torch.nn.Module):
    """TorchScript whose code writes the file that it was told of: a mapped file of seven floats."""

    def __init__(self, file: str, classes: int) -> None:
        super().__init__()
        self.file, self.classes = file, classes

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        written = torch.from_file(self.file, True, 7, dtype=torch.float32).fill_(1.0)
        zeros = torch.zeros([image.size(0), self.classes]) * written[0]
        return zeros, zeros[:, :, None].expand(-1, -1, 3)


def put_torchscript(bundle: Bundle, module: torch.nn.Module) -> None:
    with bundle.adding("model.ts", "torchscript", "fp32", FROM_RUN) as draft:
        torch.jit.save(torch.jit.script(module), str(draft.path), _extra_files={METADATA: OUTPUTS})
