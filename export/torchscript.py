"""TorchScript: the network traced and frozen, weights as constants, for LibTorch or torch without this package.

torch calls TorchScript deprecated and names torch.export its successor (`qcn.export.pt2`); C++ programs load it still.
It is not `optimize_for_inference`d: that lays weights out for the machine it runs on, in a form that cannot be loaded.
"""

import io
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit import TracerWarning  # type: ignore[attr-defined]

from qcn.export.lower import Deployed
from qcn.export.network import Network

METADATA = "metadata.json"  # the extra file of a model: what it is, its facts included


def write_torchscript(
    network: Network,
    path: Path,
    *,
    precision: str = "fp32",
    every_layer: bool = False,
    metadata: dict[str, str],
) -> dict[str, Any]:
    """Write the network for any batch size to `path`; returns its facts, which are in the file beside `metadata`.

    It takes images [B, channels, height, width] and returns a tuple of the facts' outputs, in their order.
    """
    deployed = Deployed(network, every_layer, precision)
    facts = deployed.facts()
    with _traceable(), torch.no_grad():
        # Convolutions keep torch's leave to compute in TF32 on a GPU as it was when they were traced; fp32 is fp32.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            traced = torch.jit.trace(_Guarded(deployed).eval(), deployed.example())
        model = torch.jit.freeze(traced)
        file = io.BytesIO()  # given a path, torch would write the file's name into it
        torch.jit.save(model, file, _extra_files={METADATA: json.dumps(metadata | facts)})
    path.write_bytes(file.getvalue())
    return facts


class _Guarded(nn.Module):
    """Refuses images of a size that the network was not lowered for: routing in a window of all places would not."""

    def __init__(self, deployed: Deployed) -> None:
        super().__init__()
        self.deployed = deployed
        self.checked = torch.jit.script(_checked)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        structure = self.deployed.structure
        return self.deployed(self.checked(image, structure.channels, structure.height, structure.width))


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
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
        yield
