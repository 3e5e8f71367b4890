"""A training step as one CUDA graph.

A step of a QCN is several hundred small kernels, and launching them one by one takes longer than running them. So the
step is run as it is a few times, which compiles kernels and makes the optimiser's state; then it is recorded, and from
there on replayed by a single launch.
"""

from collections.abc import Callable

import torch
from torch import Tensor

WARM_UP = 3  # calls before the recording; they are steps like any other


class Recorded:
    """A function of tensors in device memory, as a CUDA graph from its fourth call on.

    It may read and change other tensors, but always the same ones, and must not wait for the device. Each call takes
    tensors of the same shapes. The tensor it returns is overwritten by the next call.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function
        self.calls = 0
        self.stream = torch.cuda.Stream()
        self.graph = torch.cuda.CUDAGraph()
        self.inputs: tuple[Tensor, ...] = ()
        self.output = torch.empty(0)

    def __call__(self, *inputs: Tensor) -> Tensor:
        self.calls += 1
        if self.calls <= WARM_UP:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                output = self.function(*inputs)
            torch.cuda.current_stream().wait_stream(self.stream)
            return output
        if not self.inputs:
            self.inputs = tuple(one.clone() for one in inputs)
            # What plain steps left in torch's cache is of no use to the graph, which has memory of its own.
            torch.cuda.empty_cache()
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.output = self.function(*self.inputs)
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        self.graph.replay()
        return self.output
