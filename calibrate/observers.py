"""Range and histogram of each value of a program, gathered batch by batch over images.

A histogram counts magnitudes, since int8 is symmetric here. Its range is a power of two and doubles when a larger
number comes: then two bins become one, so nothing is lost but resolution, and images may come in any order.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import qcn.kernels
from qcn.data.preprocess import preprocess
from qcn.data.spec import Preprocessing
from qcn.errors import CheckFailed
from qcn.export.backends.torch.interpreter import Interpreter
from qcn.export.program.program import Program
from qcn.names import ProgramKernels
from qcn.terminal.progress import doing

BINS = 2048
BATCH = 32


@dataclass
class Observer:
    """One value: its range, how many magnitudes lie in each of BINS below `top`, and its mean by channel."""

    low: float = math.inf
    high: float = -math.inf
    top: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * BINS)
    images: int = 0
    means: list[float] = field(default_factory=list)

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(self.high, -self.low, 0.0)

    def see(self, numbers: Tensor) -> None:
        """Take in more numbers of this value [B, C, …]."""
        self.low, self.high = min(self.low, float(numbers.min())), max(self.high, float(numbers.max()))
        if not math.isfinite(self.low + self.high):
            raise CheckFailed("not all numbers are finite")
        if self.largest > self.top:
            self._grow(2.0 ** math.ceil(math.log2(self.largest)))
        new = torch.histc(numbers.abs().float(), BINS, 0.0, self.top or 1.0)
        self.counts = (np.array(self.counts, np.int64) + new.to(torch.int64).numpy()).tolist()
        means = numbers.flatten(2).double().mean(2) if numbers.ndim > 2 else numbers.double()  # by channel [B, C]
        before = self.images * torch.tensor(self.means or [0.0] * means.shape[1], dtype=torch.float64)
        self.images += len(means)
        self.means = ((before + means.sum(0)) / self.images).tolist()

    def _grow(self, top: float) -> None:
        counts = np.array(self.counts, np.int64)
        merged = min(round(math.log2(top / self.top)), int(math.log2(BINS))) if self.top else 0
        joined = counts.reshape(-1, 2**merged).sum(1)
        self.top, self.counts = top, [*joined.tolist(), *[0] * (BINS - len(joined))]

    def saturated(self, limit: float) -> float:
        """The share of numbers whose magnitude is above `limit`; a bin that it cuts counts in part."""
        counts = np.array(self.counts, np.float64)
        if not self.top or not counts.sum():
            return 0.0
        edges = np.arange(BINS) * self.top / BINS
        inside = ((limit - edges) / (self.top / BINS)).clip(0, 1)
        return float((counts * (1 - inside)).sum() / counts.sum())


def batches(images: NDArray[np.uint8], spec: Preprocessing, start: int = 0) -> Iterator[tuple[int, Tensor]]:
    """Images [N, C, H, W] from `start` on, as the network sees them; and how many are done with each batch."""
    for row in range(start, len(images), BATCH):
        batch = images[row : row + BATCH]
        yield row + len(batch), preprocess(torch.from_numpy(batch), spec)


def fastest_kernels(program: Program) -> ProgramKernels:
    """The fastest kernels that route a float32 program on this CPU."""
    fused = all(not qcn.kernels.obstacle("cpu", torch.float32, route.parents) for route in program.routes)
    return "fused" if fused else "unrolled"


def observe(
    program: Program, images: NDArray[np.uint8], spec: Preprocessing, observers: dict[str, Observer], done: int = 0
) -> Iterator[int]:
    """Let the observers, by value, see what the program makes of images [N, C, H, W]; yields how many are done.

    The first `done` were seen before: the caller may stop at any batch, and resume there.
    """
    interpreter = Interpreter(program, kernels=fastest_kernels(program)).eval()
    with torch.inference_mode():
        for ready, batch in batches(images, spec, done):
            for name, numbers in interpreter.values(batch).items():
                try:
                    observers.setdefault(name, Observer()).see(numbers)
                except CheckFailed as error:
                    raise CheckFailed(f"the value '{name}' of the network: {error}; it cannot be calibrated") from None
            doing(f"ranges of {len(observers)} values, {len(images):,} images", ready, of=len(images))
            yield ready
