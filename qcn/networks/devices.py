"""Which device a command runs on."""

import torch

from qcn.errors import MissingError, UsageError
from qcn.networks.distributed import local_rank
from qcn.terminal.text import counted


def pick_device(name: str) -> torch.device:
    """ "auto": a GPU where there is one, this process's own under torchrun; else the device as torch names it."""
    own = f"cuda:{local_rank()}"
    if name == "auto":
        return torch.device(own if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(own if name == "cuda" else name)
    except RuntimeError as error:
        raise UsageError(f"no device named '{name}'; use auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device '{name}' is not supported; use auto, cpu, cuda or cuda:N")
    count = torch.cuda.device_count()
    if device.type == "cuda" and device.index >= count:
        raise MissingError(
            f"device '{name}' was requested, but torch {torch.__version__} finds {counted(count, 'CUDA device')}"
        )
    return device
