"""Training with several processes (`torchrun … -m qcn train …`): the rank of a process, and statistics over all.

A run with P processes of B/P images each must compute what one process with B images does. torch's
DistributedDataParallel averages the gradients; this module does the same for the statistics of a batch.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def launched() -> bool:
    """Whether torchrun started this process."""
    return "WORLD_SIZE" in os.environ and "RANK" in os.environ


def local_rank() -> int:
    """This process's number on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def first_process() -> bool:
    """Whether this process is the only one, or the first of those that torchrun started, even before they have met."""
    return int(os.environ.get("RANK", "0")) == 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the other processes of a torchrun for the length of the block; alone, do nothing."""
    if not launched():
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def barrier() -> None:
    """Wait for all processes."""
    if world_size() > 1:
        dist.barrier()


def sum_over_processes(x: Tensor) -> Tensor:
    """The sum of `x` over all processes, without gradients."""
    total = x.clone()
    if world_size() > 1:
        dist.all_reduce(total)
    return total


class _Sum(torch.autograd.Function):
    """The sum over all processes. A value on one process enters the sums on all, so gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return sum_over_processes(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return sum_over_processes(gradient)


def mean_over_processes(x: Tensor) -> Tensor:
    """The mean of `x` over all processes; gradients flow through it. With one process, `x`."""
    if world_size() == 1:
        return x
    total: Tensor = _Sum.apply(x)  # type: ignore[no-untyped-call]
    return total / world_size()


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation over the whole batch, also where the batch is spread over processes.

    torch's own SyncBatchNorm does this on GPUs only; this does it anywhere.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C, H, W]."""
        if not self.training or world_size() == 1:
            return super().forward(x)
        values = x.to(torch.promote_types(x.dtype, torch.float32))
        moments = torch.stack([values.mean((0, 2, 3)), values.square().mean((0, 2, 3))])
        mean, square = mean_over_processes(moments).unbind()
        variance = (square - mean.square()).clamp_min(0)
        with torch.no_grad():
            assert self.running_mean is not None and self.running_var is not None
            assert self.num_batches_tracked is not None and self.momentum is not None
            count = x.numel() // x.shape[1] * world_size()
            self.num_batches_tracked.add_(1)
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            unbiased = variance * (count / max(count - 1, 1))
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        scale = torch.rsqrt(variance + self.eps)
        out = (values - mean[:, None, None]) * scale[:, None, None]
        if self.affine:
            out = out * self.weight[:, None, None] + self.bias[:, None, None]
        return out.to(x.dtype)
