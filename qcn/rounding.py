"""Numbers as a half precision has them."""

import platform

import numpy as np
import torch
from torch import Tensor

# There torch converts to float16 number by number, 9 ns each and back; NumPy has the processor's instruction, 1.2 ns.
SLOW = platform.machine() in ("aarch64", "arm64")


def rounded(x: Tensor, half: torch.dtype) -> Tensor:
    """Round each number to float16 or bfloat16, and keep its dtype."""
    plain = x.device.type == "cpu" and x.dtype == torch.float32 and not x.requires_grad
    if SLOW and half == torch.float16 and plain:
        with np.errstate(over="ignore", invalid="ignore"):
            return torch.from_numpy(x.numpy().astype(np.float16).astype(np.float32))
    return x.to(half).to(x.dtype)
